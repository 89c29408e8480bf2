"""The machine catalogue: figures from public sources, and suggestions for similar names."""

from fractions import Fraction

import pytest

from gpufleet.domain.catalogue import (
    EXCLUDED,
    AcceleratorKind,
    Interconnect,
    UnknownMachineError,
    gpu,
    launch_obstacle,
    machine,
    machines,
)
from gpufleet.domain.model import Cloud
from serving.accelerators import CONTRACTS


@pytest.mark.parametrize(
    ("cloud", "name", "gpus", "gpu_name", "memory_mib", "nvme_bytes"),
    [
        pytest.param(Cloud.AWS, "g6.xlarge", 1, "L4", 22_888, 250 * 10**9, id="one L4"),
        pytest.param(Cloud.AWS, "p5.48xlarge", 8, "H100-80GB", 81_920, 30_400 * 10**9, id="eight H100"),
        pytest.param(Cloud.AWS, "p4de.24xlarge", 8, "A100-80GB", 81_920, 8_000 * 10**9, id="the larger A100"),
        pytest.param(Cloud.GCP, "a3-highgpu-8g", 8, "H100-80GB", 81_920, 6_000 * 2**30, id="H100 on Google"),
        pytest.param(Cloud.GCP, "g2-standard-4", 1, "L4", 22_888, 375 * 2**30, id="L4 on Google"),
        pytest.param(Cloud.AWS, "trn2.48xlarge", 16, "Trainium2", 98_304, 7_600 * 10**9, id="Trainium2, not 512 GiB"),
        pytest.param(Cloud.AWS, "inf2.48xlarge", 12, "Inferentia2", 32_768, 0, id="Inferentia2 without disks"),
        pytest.param(Cloud.GCP, "ct6e-standard-8t", 8, "TPU-v6e", 32_768, 0, id="TPU v6e"),
        pytest.param(Cloud.GCP, "a4x-highgpu-4g", 4, "GB200", 189_471, 12_000 * 2**30, id="GB200 on Google"),
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


_NOT_RENTED = {
    (Cloud.AWS, AcceleratorKind.TPU),
    (Cloud.GCP, AcceleratorKind.NEURON),
    (Cloud.GCP, AcceleratorKind.AMD),
}


def test_every_machine_has_plausible_figures() -> None:
    for found in machines():
        assert found.gpu_count >= 1, found.name
        assert 0 < found.gpu_share <= 1, found.name
        assert found.vcpus > 0 and found.memory_mib > 0 and found.units_per_device >= 1, found.name
        assert (found.nvme_disks == 0) is (found.nvme_disk_bytes == 0), found.name
        assert not found.nvme_optional or found.nvme_disks, found.name
        assert (found.interconnect is Interconnect.NONE) is (found.gpu_count == 1), found.name
        assert found.architecture in ("x86_64", "arm64"), found.name
        assert (found.cloud, found.accelerator) not in _NOT_RENTED, found.name
    assert {m.cloud for m in machines()} == set(Cloud)
    assert len(machines(Cloud.AWS)) + len(machines(Cloud.GCP)) == len(machines())


def test_a_gpu_without_checked_figures_is_unknown() -> None:
    assert gpu("L4").fp8 and not gpu("A100-40GB").fp8
    with pytest.raises(UnknownMachineError, match="A100-40GB"):
        gpu("A100-40G")


def test_accelerator_kinds_are_the_contracts_of_serving() -> None:
    assert {kind.value for kind in AcceleratorKind} == set(CONTRACTS)


def test_no_machine_type_is_marked_as_tried_on_hardware() -> None:
    assert [m.name for m in machines() if m.tried_on_hardware] == []


def test_a_device_has_the_kind_and_the_memory_of_its_machines() -> None:
    for found in machines():
        try:
            device = gpu(found.gpu)
        except UnknownMachineError:
            continue
        assert device.accelerator is found.accelerator, found.name
        assert found.gpu_memory_mib == int(device.memory_mib * found.gpu_share), found.name


@pytest.mark.parametrize(
    ("cloud", "name", "devices", "units"),
    [
        pytest.param(Cloud.AWS, "inf1.24xlarge", 16, 4, id="Inferentia"),
        pytest.param(Cloud.AWS, "trn1.32xlarge", 16, 2, id="Trainium"),
        pytest.param(Cloud.AWS, "trn2.3xlarge", 1, 8, id="Trainium2: physical cores"),
        pytest.param(Cloud.AWS, "p5.48xlarge", 8, 1, id="a GPU is one unit"),
        pytest.param(Cloud.GCP, "ct5p-hightpu-4t", 4, 1, id="a TPU chip is one unit"),
    ],
)
def test_schedulable_units_of_machines(cloud: Cloud, name: str, devices: int, units: int) -> None:
    found = machine(cloud, name)
    assert (found.gpu_count, found.units_per_device) == (devices, units)


@pytest.mark.parametrize(
    ("cloud", "name", "obstacle"),
    [
        pytest.param(Cloud.AWS, "g6.xlarge", None, id="NVIDIA on x86"),
        pytest.param(Cloud.AWS, "trn1.32xlarge", None, id="Trainium"),
        pytest.param(Cloud.AWS, "g5g.xlarge", "arm64 CPUs", id="NVIDIA on Graviton"),
        pytest.param(Cloud.GCP, "a4x-highgpu-4g", "arm64 CPUs", id="NVIDIA on Grace"),
        pytest.param(Cloud.GCP, "ct6e-standard-4t", None, id="TPU"),
        pytest.param(Cloud.AWS, "g6f.large", "a fraction of a GPU and needs the vGPU driver", id="part of an L4"),
    ],
)
def test_only_whole_devices_on_x86_can_be_launched(cloud: Cloud, name: str, obstacle: str | None) -> None:
    found = launch_obstacle(machine(cloud, name))
    assert found is None if obstacle is None else found == f"has {obstacle}, which pools cannot launch yet"


@pytest.mark.parametrize(
    ("name", "device"),
    [("p3.2xlarge", "V100"), ("p3dn.24xlarge", "V100"), ("g4ad.xlarge", "Radeon"), ("inf1.xlarge", "Inferentia")],
)
def test_devices_that_engines_do_not_support_cannot_be_launched(name: str, device: str) -> None:
    found = launch_obstacle(machine(Cloud.AWS, name)) or ""
    assert device in found and found.endswith("not support")


@pytest.mark.parametrize(
    ("cloud", "name", "reason"),
    [
        pytest.param(Cloud.AWS, "dl1.24xlarge", "has Intel Gaudi accelerators, which", id="Gaudi"),
        pytest.param(Cloud.AWS, "vt1.3xlarge", "has video transcoders, which cannot serve models", id="video"),
        pytest.param(Cloud.AWS, "p2.xlarge", "has K80 GPUs, which current engines", id="old GPUs"),
        pytest.param(Cloud.AWS, "g2.2xlarge", "has K520 GPUs, which current engines", id="the oldest GPUs"),
        pytest.param(Cloud.GCP, "ct4p-hightpu-4t", "has TPU v4, which is older", id="old TPUs"),
        pytest.param(Cloud.GCP, "n1-standard-8", "for example g2-standard-8", id="attached GPUs"),
    ],
)
def test_an_excluded_family_is_an_error_with_its_reason(cloud: Cloud, name: str, reason: str) -> None:
    with pytest.raises(UnknownMachineError, match=f"machine type '{name}' has .*: choose a machine type") as raised:
        machine(cloud, name)
    assert reason in str(raised.value)


def test_excluded_families_are_not_in_the_catalogue() -> None:
    for excluded in EXCLUDED:
        assert not [m.name for m in machines(excluded.cloud) if m.name.startswith(excluded.prefix)]
