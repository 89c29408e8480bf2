"""Machine images by accelerator: every machine type has one row, and none gets another kind's driver."""

import pytest

from gpufleet.domain.catalogue import AcceleratorKind, launch_obstacle, machine, machines
from gpufleet.domain.images import image_of, machine_images
from gpufleet.domain.model import Cloud


@pytest.mark.parametrize(
    ("cloud", "name", "part"),
    [
        pytest.param(Cloud.AWS, "g6.xlarge", "x86_64/base-oss-nvidia-driver", id="NVIDIA"),
        pytest.param(Cloud.AWS, "g5g.xlarge", "arm64/base-oss-nvidia-driver", id="NVIDIA on Graviton"),
        pytest.param(Cloud.AWS, "trn2.48xlarge", "/aws/service/neuron/dlami/base/", id="Trainium2"),
        pytest.param(Cloud.AWS, "p3.2xlarge", None, id="V100 needs the proprietary driver"),
        pytest.param(Cloud.AWS, "inf1.xlarge", None, id="Inferentia: support ended"),
        pytest.param(Cloud.AWS, "g6f.large", None, id="a fraction needs the vGPU driver"),
        pytest.param(Cloud.GCP, "a4x-highgpu-4g", "arm64-with-nvidia", id="GB200"),
        pytest.param(Cloud.GCP, "ct6e-standard-8t", "tpu-v5e-v5p-v6e", id="TPU v6e"),
        pytest.param(Cloud.GCP, "tpu7x-standard-4t", "tpu-tpu7x", id="TPU7x"),
    ],
)
def test_the_image_of_a_machine(cloud: Cloud, name: str, part: str | None) -> None:
    found = image_of(machine(cloud, name))
    assert found is not None
    assert found.image is None if part is None else found.image is not None and part in found.image


def test_every_machine_type_has_a_row_of_its_own_kind() -> None:
    for one in machines():
        found = image_of(one)
        assert found is not None, one.name
        assert (found.accelerator, found.architecture) == (one.accelerator, one.architecture), one.name
        if launch_obstacle(one) is None:
            assert found.image is not None, one.name


def test_runtime_versions_of_the_tpu_api_are_for_tpus_only() -> None:
    for one in machine_images():
        assert (one.tpu_runtime is not None) is (one.accelerator is AcceleratorKind.TPU)
