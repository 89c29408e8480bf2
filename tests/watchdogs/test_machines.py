"""What is known of machine types, and that nothing is made up of those that are not."""

import pytest

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud
from tests.fixtures.watchdogs.plain import instance
from watchdogs.machines import machine_facts


@pytest.mark.parametrize(
    ("machine_type", "gpus", "watts", "disks"),
    [
        pytest.param("g6.12xlarge", 4, 72.0, True, id="known"),
        pytest.param("g7.2xlarge", 1, None, True, id="its GPU is not"),
        pytest.param("trn1.32xlarge", 16, None, True, id="no rated power is published"),
        pytest.param("m7i.large", None, None, True, id="no machine with GPUs"),
    ],
)
def test_known_machine_facts(machine_type: str, gpus: int | None, watts: float | None, *, disks: bool) -> None:
    found = machine_facts(Cloud.AWS, [instance(machine_type=machine_type)])
    assert found.gpus_expected.get(machine_type) == gpus
    assert found.watts_rated.get(machine_type) == watts
    assert (machine_type not in found.without_local_disks) is disks


@pytest.mark.parametrize("cloud", [Cloud.AWS, Cloud.GCP])
def test_facts_of_every_machine_type_can_be_read(cloud: Cloud) -> None:
    names = {machine.name for machine in catalogue.machines(cloud)}
    found = machine_facts(cloud, [instance(n, machine_type=name) for n, name in enumerate(names)])
    assert set(found.gpus_expected) == names
