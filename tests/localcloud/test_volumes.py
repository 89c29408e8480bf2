"""Volumes of the embedded cloud: moved between machines, formatted and mounted by the image's disk commands."""

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path

import pytest
from localcloud.machines.image import disks
from localcloud.machines.spec import MachineSpec
from localcloud.machines.volumes import Volume, VolumePool, attached, unmount_all

from gpufleet.domain.model import Cloud
from hosts.control import volume
from hosts.node.ports import StepError

VOLUME = Volume(id="vol-1", device="nvme-Amazon_Elastic_Block_Store_vol1")
DEVICE = f"dev/disk/by-id/{VOLUME.device}"


def _machine(folder: Path, name: str) -> Path:
    root = folder / name
    (root / "var/log").mkdir(parents=True)
    spec = MachineSpec(
        instance=name, uid=name, cloud=str(Cloud.AWS), address="127.0.0.1", zone="z", region="r", machine_type="t",
        variables={}, nvme_disks=0, nvme_disk_bytes=0, image_commands=str(folder), code="", mark="",
    )  # fmt: skip
    spec.save(root)
    return root


def _commands(root: Path) -> Callable[[Sequence[str]], str]:
    """Runs the image's disk commands, as the machine does."""

    def run(command: Sequence[str]) -> str:
        output, wrong = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(wrong):
            patch.setenv("GPUFLEET_ROOT", str(root))
            try:
                code = disks.main(command[0], list(command[1:]))
            except SystemExit as end:
                code = end.code
        if code:
            raise StepError(f"{command[0]}: exit code {code}: {wrong.getvalue().strip()}")
        return output.getvalue()

    return run


def _use(root: Path) -> str:
    """Mount the volume as a control host does."""
    return volume.mount(str(root / DEVICE), root / "var/lib/data", _commands(root), wait=timedelta(0))


def test_next_machine_reads_the_data_of_the_previous_one(tmp_path: Path) -> None:
    pool = VolumePool(tmp_path / ".volumes")
    first, second = _machine(tmp_path, "first"), _machine(tmp_path, "second")
    with pytest.raises(StepError, match="is not attached"):
        _use(first)
    pool.attach(VOLUME, first)
    assert _use(first).endswith(", formatted")
    (first / "var/lib/data/ledger").write_text("facts")
    assert _use(first) == f"{first / DEVICE} is mounted on {first / 'var/lib/data'}", "mounted already"

    pool.detach_all(first)
    assert attached(first) == ()
    assert not (first / DEVICE).exists()
    assert list((first / "var/lib/data").iterdir()) == [], "the machine that ended has it no more"

    pool.attach(VOLUME, second)
    assert not (second / "var/lib/data/ledger").exists(), "attached is not mounted"
    assert not _use(second).endswith(", formatted")
    assert (second / "var/lib/data/ledger").read_text() == "facts"


def test_boot_starts_with_the_volume_attached_and_nothing_mounted(tmp_path: Path) -> None:
    root = _machine(tmp_path, "one")
    VolumePool(tmp_path / ".volumes").attach(VOLUME, root)
    _use(root)
    (root / "var/lib/data/ledger").write_text("facts")
    unmount_all(root)
    assert not (root / "var/lib/data/ledger").exists()
    _use(root)
    assert (root / "var/lib/data/ledger").read_text() == "facts"


def test_deleted_volume_loses_its_data(tmp_path: Path) -> None:
    pool, root = VolumePool(tmp_path / ".volumes"), _machine(tmp_path, "one")
    pool.attach(VOLUME, root)
    _use(root)
    pool.detach(VOLUME.id, root)
    pool.discard(VOLUME.id)
    pool.attach(VOLUME, root)
    assert _use(root).endswith(", formatted")


def test_disk_commands_refuse_as_the_real_ones_do(tmp_path: Path) -> None:
    root = _machine(tmp_path, "one")
    VolumePool(tmp_path / ".volumes").attach(VOLUME, root)
    run, device = _commands(root), str(root / DEVICE)
    (root / "data").mkdir()
    with pytest.raises(StepError, match="exit code 32: mount: .* wrong fs type"):
        run(["mount", device, "/data"])
    with pytest.raises(StepError, match="exit code 2"):
        run(["blkid", device])
    run(["mkfs.ext4", "-q", device])
    assert run(["blkid", "-o", "value", device]) == "ext4\n"
    assert run(["wipefs", "--no-act", "--noheadings", "--output", "TYPE", device]) == "ext4\n"
    with pytest.raises(StepError, match="mount point does not exist"):
        run(["mount", device, "/nowhere"])
    run(["mount", "-o", "noatime", device, "/data"])
    with pytest.raises(StepError, match="already mounted on"):
        run(["mount", device, "/data"])
    run(["umount", "/data"])
    with pytest.raises(StepError, match="exit code 1"):
        run(["mountpoint", "--quiet", "/data"])
