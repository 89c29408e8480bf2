"""TPU slices: hosts of a topology, and which machines join others."""

import pytest

from gpufleet.domain.catalogue import AcceleratorKind, machine, machines
from gpufleet.domain.model import Cloud
from gpufleet.domain.tpu_slices import TpuSlice, tpu_slices


def slices(name: str) -> dict[str, TpuSlice]:
    return {one.topology: one for one in tpu_slices(machine(Cloud.GCP, name))}


@pytest.mark.parametrize(
    ("name", "topology", "chips", "hosts"),
    [
        pytest.param("ct6e-standard-1t", "1x1", 1, 1, id="one chip"),
        pytest.param("ct6e-standard-4t", "2x2", 4, 1, id="half a host"),
        pytest.param("ct6e-standard-8t", "2x4", 8, 1, id="a whole host"),
        pytest.param("ct6e-standard-4t", "4x4", 16, 4, id="v6e-16"),
        pytest.param("ct5lp-hightpu-4t", "16x16", 256, 64, id="a whole v5e pod"),
        pytest.param("ct5p-hightpu-4t", "2x2x2", 8, 2, id="v5p in three dimensions"),
        pytest.param("tpu7x-standard-4t", "4x4x4", 64, 16, id="a TPU7x cube"),
    ],
)
def test_hosts_of_a_slice(name: str, topology: str, chips: int, hosts: int) -> None:
    found = slices(name)[topology]
    assert (found.chips, found.hosts, found.is_multi_host) == (chips, hosts, hosts > 1)


@pytest.mark.parametrize("name", ["ct6e-standard-1t", "ct6e-standard-8t", "ct5lp-hightpu-8t", "tpu7x-standard-1t"])
def test_machines_that_join_no_others_have_one_slice(name: str) -> None:
    assert [one.hosts for one in slices(name).values()] == [1]


def test_every_tpu_machine_has_slices_and_no_other_machine_has() -> None:
    for found in machines():
        assert bool(tpu_slices(found)) is (found.accelerator is AcceleratorKind.TPU), found.name
