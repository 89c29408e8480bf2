"""GPU driver versions as the kernel module reports them, and engines that need a newer driver."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.domain.catalogue import AcceleratorKind
from gpufleet.domain.model import Phase
from hosts.node import driver
from hosts.node.ports import UnitState
from serving import engine_container
from serving.accelerators import CONTRACTS, nvidia_driver
from tests.fixtures.node.fake_node import Machine, settings

NVIDIA = CONTRACTS["nvidia"].launch
CLOSED = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (dvs-builder@U16-A24-9-2)  \
Thu Oct 10 12:15:00 UTC 2024
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
SHORT = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  555.58  Release Build  (portage@localhost)\n"
OLD = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\n"


def write_version(root: Path, text: str) -> None:
    place = root / nvidia_driver.PLACE
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, "utf-8")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param(CLOSED, "535.104.05", id="closed module"),
        pytest.param(OPEN, "565.57.01", id="open module"),
        pytest.param(SHORT, "555.58", id="a version of two numbers"),
        pytest.param("", None, id="an empty file"),
        pytest.param("NVRM version: something new\n", None, id="an unknown format"),
    ],
)
def test_the_version_of_the_kernel_module_is_read(tmp_path: Path, text: str, version: str | None) -> None:
    write_version(tmp_path, text)
    assert driver.installed(tmp_path, NVIDIA) == version


def test_a_machine_without_a_driver_has_no_version(tmp_path: Path) -> None:
    assert driver.installed(tmp_path, NVIDIA) is None


@pytest.mark.parametrize(
    ("version", "env", "needed"),
    [
        pytest.param("470.256.02", {}, "525", id="older than any published engine can use"),
        pytest.param("525.60.13", {}, None, id="the least of CUDA 12"),
        pytest.param("570.133.20", {nvidia_driver.REQUIRE: "cuda>=13.0"}, "580", id="an engine that needs CUDA 13"),
        pytest.param("580.65.06", {nvidia_driver.REQUIRE: "cuda>=13.0"}, None, id="the least of CUDA 13"),
        pytest.param("470.256.02", {nvidia_driver.REQUIRE: "cuda>=11.8"}, None, id="an engine of an older CUDA"),
        pytest.param(
            "470.256.02", {nvidia_driver.REQUIRE: "cuda>=14.1"}, None, id="an unknown CUDA version is not checked"
        ),
        pytest.param(
            "470.256.02", {nvidia_driver.REQUIRE: "cuda>=12.9 brand=tesla,driver>=470"}, None, id="alternatives"
        ),
        pytest.param("470.256.02", {"NVIDIA_DISABLE_REQUIRE": "true"}, None, id="no check is wanted"),
        pytest.param("470.256.02", {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}, None, id="libraries of its own"),
    ],
)
def test_whether_the_driver_is_too_old(version: str, env: dict[str, str], needed: str | None) -> None:
    reason = nvidia_driver.why_too_old(version, env, 12)
    assert (reason is None) is (needed is None)
    if reason is not None:
        assert f"is {version}" in reason
        assert f"needs {needed} or newer" in reason


def test_a_driver_that_is_too_old_fails_the_boot_before_anything_is_fetched(bucket: Path, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path, bucket=bucket)
    write_version(tmp_path, OLD)
    assert not machine.boot.run()
    status = machine.state.status()
    assert status["phase"] == Phase.FAILED.value
    assert "470.256.02" in status["error"]
    assert "use a machine image with that driver" in status["error"]
    assert machine.disks.prepared == []
    assert machine.units.calls == []


def test_the_cuda_requirement_in_the_settings_counts(bucket: Path, tmp_path: Path) -> None:
    base = settings()
    needs = replace(base, engine=replace(base.engine, env={nvidia_driver.REQUIRE: "cuda>=13.0"}))
    write_version(tmp_path, OPEN)
    assert not Machine(root=tmp_path, bucket=bucket, settings=needs).boot.run()
    assert Machine(root=tmp_path / "other", bucket=bucket).boot.run()


def test_the_error_of_a_crashed_engine_contains_its_driver(bucket: Path, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path, bucket=bucket)
    write_version(tmp_path, OPEN)
    machine.units.on_start = lambda name: UnitState.FAILED if name == engine_container.UNIT else UnitState.ACTIVE
    assert not machine.boot.run()
    assert "the GPU driver is 565.57.01: an engine built with CUDA 13 needs 580" in machine.state.status()["error"]


DEVICES = {"amd": ("kfd", "dri/renderD128"), "neuron": ("neuron0", "neuron1"), "tpu": ("vfio/0", "vfio/vfio")}


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        pytest.param("amd", "amdgpu driver", id="AMD"),
        pytest.param("neuron", "aws-neuronx-dkms", id="Neuron"),
        pytest.param("tpu", "TPU VMs", id="TPU"),
    ],
)
def test_a_machine_without_device_files_fails_the_boot_before_anything_is_fetched(
    bucket: Path, tmp_path: Path, kind: str, fix: str
) -> None:
    there = settings(accelerator=AcceleratorKind(kind), accelerator_image="exporter@sha256:1")
    machine = Machine(root=tmp_path, bucket=bucket, settings=there)
    assert not machine.boot.run()
    assert fix in machine.state.status()["error"]
    assert machine.units.calls == []


@pytest.mark.parametrize("kind", DEVICES)
def test_the_engine_gets_the_device_files_and_their_groups(bucket: Path, tmp_path: Path, kind: str) -> None:
    for name in DEVICES[kind]:
        file = tmp_path / "dev" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    there = settings(accelerator=AcceleratorKind(kind), accelerator_image="exporter@sha256:1")
    machine = Machine(root=tmp_path, bucket=bucket, settings=there)
    assert machine.boot.run()
    unit = machine.units.texts[engine_container.UNIT]
    assert "--gpus" not in unit
    assert re.findall(r"--device=/dev/(\S+)", unit) == sorted(DEVICES[kind])
    groups = {file.stat().st_gid for file in tmp_path.glob("dev/**/*") if file.is_file()} - {0}
    assert re.findall(r"--group-add=(\d+)", unit) == [str(group) for group in sorted(groups)]
    assert "gpufleet-exporter.service" in machine.units.texts
