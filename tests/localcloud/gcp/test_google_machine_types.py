"""Machine types of the embedded Google Cloud: names of accelerators as Compute Engine has them."""

import pytest
from localcloud.capacity_kind import Kind
from localcloud.gcp.capacity import gpus, metric
from localcloud.gcp.catalogue import accelerator_name

from gpufleet.domain.catalogue import machine
from gpufleet.domain.model import Cloud


@pytest.mark.parametrize(
    ("machine_type", "name"),
    [
        ("g2-standard-8", "nvidia-l4"),
        ("a2-highgpu-1g", "nvidia-tesla-a100"),
        ("a2-ultragpu-1g", "nvidia-a100-80gb"),
        ("a3-highgpu-8g", "nvidia-h100-80gb"),
        ("a3-megagpu-8g", "nvidia-h100-mega-80gb"),
        ("a3-ultragpu-8g", "nvidia-h200-141gb"),
        ("a4-highgpu-8g", "nvidia-b200"),
        ("a4x-highgpu-4g", "nvidia-gb200"),
        ("g4-standard-48", "nvidia-rtx-pro-6000"),
        ("ct6e-standard-4t", "ct6e"),
        ("tpu7x-standard-4t", "tpu7x"),
    ],
)
def test_accelerators_have_the_names_of_compute_engine(machine_type: str, name: str) -> None:
    assert accelerator_name(machine(Cloud.GCP, machine_type)) == name


def test_tpus_use_no_quota_of_gpus() -> None:
    assert gpus("ct6e-standard-4t") == ("", 0)
    assert metric(gpus("g2-standard-24")[0], Kind.SPOT) == "PREEMPTIBLE_NVIDIA_L4_GPUS"
