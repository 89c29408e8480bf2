"""The machine catalogue: figures from public sources, and suggestions for similar names."""

from fractions import Fraction

import pytest

from gpufleet.domain.catalogue import UnknownMachineError, gpu, machine, machines
from gpufleet.domain.model import Cloud


@pytest.mark.parametrize(
    ("cloud", "name", "gpus", "gpu_name", "memory_mib", "nvme_bytes"),
    [
        pytest.param(Cloud.AWS, "g6.xlarge", 1, "L4", 22_888, 250 * 10**9, id="one L4"),
        pytest.param(Cloud.AWS, "p5.48xlarge", 8, "H100-80GB", 81_920, 30_400 * 10**9, id="eight H100"),
        pytest.param(Cloud.AWS, "p4de.24xlarge", 8, "A100-80GB", 81_920, 8_000 * 10**9, id="the larger A100"),
        pytest.param(Cloud.GCP, "a3-highgpu-8g", 8, "H100-80GB", 81_920, 6_000 * 2**30, id="H100 on Google"),
        pytest.param(Cloud.GCP, "g2-standard-4", 1, "L4", 22_888, 375 * 2**30, id="L4 on Google"),
    ],
)
def test_the_figures_of_machine_types(
    cloud: Cloud, name: str, gpus: int, gpu_name: str, memory_mib: int, nvme_bytes: int
) -> None:
    found = machine(cloud, name)
    assert (found.gpu_count, found.gpu, found.gpu_memory_mib) == (gpus, gpu_name, memory_mib)
    assert found.nvme_bytes == nvme_bytes
    assert found.total_gpu_memory_mib == gpus * memory_mib


def test_a_fractional_machine_has_a_share_of_a_gpu() -> None:
    assert machine(Cloud.AWS, "g6f.2xlarge").gpu_share == Fraction(1, 4)


@pytest.mark.parametrize(
    ("cloud", "name", "hint"),
    [
        pytest.param(Cloud.AWS, "g6.xlrage", "g6.xlarge", id="letters swapped"),
        pytest.param(Cloud.AWS, "G6.XLARGE", "g6.xlarge", id="upper case"),
        pytest.param(Cloud.GCP, "g6.xlarge", "offered by aws", id="another cloud"),
        pytest.param(Cloud.GCP, "zzz", "known are a2-", id="nothing near"),
    ],
)
def test_an_unknown_machine_is_an_error_with_suggestions(cloud: Cloud, name: str, hint: str) -> None:
    with pytest.raises(UnknownMachineError, match=hint):
        machine(cloud, name)


def test_every_machine_has_plausible_figures() -> None:
    for found in machines():
        assert found.gpu_count >= 1, found.name
        assert 0 < found.gpu_share <= 1, found.name
        assert found.vcpus > 0 and found.memory_mib > 0 and found.nvme_bytes > 0, found.name
    assert {m.cloud for m in machines()} == set(Cloud)
    assert len(machines(Cloud.AWS)) + len(machines(Cloud.GCP)) == len(machines())


def test_a_gpu_without_checked_figures_is_unknown() -> None:
    assert gpu("L4").fp8 and not gpu("A100-40GB").fp8
    with pytest.raises(UnknownMachineError, match="A100-40GB"):
        gpu("A100-40G")
