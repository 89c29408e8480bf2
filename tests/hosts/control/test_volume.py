"""The volume that outlives the machine: real file systems in files, and which of them are overwritten."""

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from hosts.control import volume
from hosts.node.ports import StepError
from hosts.node.systemd import run as run_real

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("wipefs", "mkfs.ext4"))), reason="needs wipefs and mkfs.ext4 (util-linux, e2fsprogs)"
)
MIB = 1024 * 1024


@dataclass
class Disk:
    """A file as a disk. Probing and formatting are real; mounting, which needs permissions, is simulated."""

    path: Path
    mounted: bool = False
    ran: list[str] = field(default_factory=list[str])

    def run(self, command: Sequence[str]) -> str:
        self.ran.append(command[0])
        match command[0]:
            case "mountpoint":
                if not self.mounted:
                    raise StepError("not a mountpoint")
                return ""
            case "mount":
                self.mounted = True
                return ""
            case _:
                return run_real(command)

    def use(self, at: Path) -> str:
        return volume.mount(str(self.path), at, self.run, wait=timedelta(0))

    def bytes(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(16 * MIB)
    return Disk(path=path)


def test_an_empty_volume_is_formatted_once(disk: Disk, tmp_path: Path) -> None:
    assert disk.use(tmp_path / "data").endswith(", formatted")
    written = disk.bytes()
    assert disk.use(tmp_path / "data") == f"{disk.path} is mounted on {tmp_path / 'data'}", "mounted already"
    another = Disk(path=disk.path)
    assert not another.use(tmp_path / "data").endswith(", formatted"), "another machine finds what is there"
    assert another.ran == ["mountpoint", "wipefs", "mount"]
    assert disk.bytes() == written


def ext4(path: Path) -> None:
    subprocess.run(["mkfs.ext4", "-q", str(path)], check=True, stdin=subprocess.DEVNULL, timeout=180)


def partitions(path: Path) -> None:
    """Write a partition table: the signature of a master boot record, and one partition."""
    with path.open("r+b") as file:
        file.seek(446)
        file.write(
            bytes([0x80, 0, 2, 0, 0x83, 0, 2, 0]) + (2048).to_bytes(4, "little") + (4096).to_bytes(4, "little")
        )
        file.seek(510)
        file.write(b"\x55\xaa")


def broken_xfs(path: Path) -> None:
    """Create a file system with a damaged superblock: no program recognizes it."""
    head = b"XFSB" + (4096).to_bytes(4, "big") + (4096).to_bytes(8, "big") + bytes(84) + b"\xb4\xa4" + bytes(10)
    with path.open("r+b") as file:
        file.write(head)


def lvm(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(512)
        file.write(b"LABELONE" + (1).to_bytes(8, "little") + bytes(8) + b"LVM2 001")


def unknown_text(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"an unknown file format")


@pytest.mark.parametrize("written", [ext4, partitions, broken_xfs, lvm, unknown_text])
def test_a_volume_with_data_is_never_overwritten(disk: Disk, tmp_path: Path, written: Callable[[Path], None]) -> None:
    written(disk.path)
    before = disk.bytes()
    known = written not in (unknown_text, broken_xfs)
    with nullcontext() if known else pytest.raises(StepError, match="neither mounted nor formatted"):
        disk.use(tmp_path / "data")
    assert disk.mounted == known, "what mount makes of it is its own affair"
    assert "mkfs.ext4" not in disk.ran
    assert disk.bytes() == before


def test_a_missing_volume_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="attach the environment's data volume"):
        Disk(path=tmp_path / "none").use(tmp_path / "data")
