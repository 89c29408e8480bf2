"""Volumes that outlive machines: each is a folder, in the volume pool or in the root of its machine.

Only that machine can access it. In the folder, `disk` is the file behind the device name (its first bytes identify
the file system), and `files` holds the content of the file system. A mount is a link to `files`; the mount point's
own folder is moved aside until the volume is unmounted.
"""

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BY_ID: Final = "dev/disk/by-id"
POOL_FOLDER: Final = ".volumes"
_INSIDE: Final = "dev/volumes"
_MOUNTS: Final = "dev/mounts"
_BEGINNING: Final = 1024 * 1024
_SIGNATURES: Final = {"ext4": (0x438, b"\x53\xef"), "xfs": (0, b"XFSB")}
"""File system -> offset and bytes of its signature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One volume, and its name in `/dev/disk/by-id`."""

    id: str
    device: str


@dataclass(frozen=True, slots=True)
class VolumePool:
    """The volumes that are not attached."""

    folder: Path

    def attach(self, volume: Volume, root: Path) -> None:
        """Attach a volume to a machine; a new volume is blank. Raises OSError."""
        inside = root / _INSIDE / volume.id
        if not inside.is_dir():
            inside.parent.mkdir(parents=True, exist_ok=True)
            stored = self.folder / volume.id
            if not stored.is_dir():
                _make_blank(stored)
            stored.rename(inside)
        link = root / BY_ID / volume.device
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(Path("../..", Path(_INSIDE).name, volume.id, "disk"))

    def detach(self, volume_id: str, root: Path) -> None:
        """Detach a volume, mounted or not; no effect if it is not attached. Raises OSError."""
        inside = root / _INSIDE / volume_id
        if not inside.is_dir():
            return
        unmount(root, volume_id)
        for link in (root / BY_ID).iterdir():
            if link.is_symlink() and link.readlink().parent.name == volume_id:
                link.unlink()
        self.folder.mkdir(exist_ok=True)
        inside.rename(self.folder / volume_id)

    def detach_all(self, root: Path) -> None:
        """Detach all volumes of a machine that has ended. Raises OSError."""
        for volume_id in attached(root):
            self.detach(volume_id, root)

    def discard(self, volume_id: str) -> None:
        """Delete a volume."""
        shutil.rmtree(self.folder / volume_id, ignore_errors=True)


def _make_blank(folder: Path) -> None:
    (folder / "files").mkdir(parents=True)
    with (folder / "disk").open("wb") as disk:
        disk.truncate(_BEGINNING)


def attached(root: Path) -> tuple[str, ...]:
    """Ids of the volumes of a machine."""
    folder = root / _INSIDE
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def find(root: Path, device: str) -> str | None:
    """Id of the volume behind a device's path; None for another device."""
    path = Path(device)
    inside = path if path.is_relative_to(root) else root / path.relative_to("/")
    disk = inside.resolve()
    return disk.parent.name if disk.parent.parent == (root / _INSIDE).resolve() and disk.is_file() else None


def filesystem(root: Path, volume_id: str) -> str | None:
    """The file system of a volume, or None."""
    beginning = (root / _INSIDE / volume_id / "disk").read_bytes()
    return next(
        (kind for kind, (at, sign) in _SIGNATURES.items() if beginning[at : at + len(sign)] == sign),
        None,
    )


def make_filesystem(root: Path, volume_id: str, kind: str) -> None:
    """Format a volume; its content is lost."""
    folder = root / _INSIDE / volume_id
    shutil.rmtree(folder)
    _make_blank(folder)
    at, sign = _SIGNATURES[kind]
    with (folder / "disk").open("r+b") as disk:
        disk.seek(at)
        disk.write(sign)


def mounted_at(root: Path, volume_id: str) -> Path | None:
    """The mount point of a volume, or None."""
    try:
        return Path((root / _MOUNTS / volume_id).read_text("utf-8"))
    except FileNotFoundError:
        return None


def mount(root: Path, volume_id: str, at: Path) -> None:
    """Mount a volume on an existing folder. Raises OSError."""
    at.rename(_under(at))
    at.symlink_to(os.path.relpath(root / _INSIDE / volume_id / "files", at.parent))
    record = root / _MOUNTS / volume_id
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(str(at), "utf-8")


def unmount(root: Path, volume_id: str) -> None:
    """Unmount a volume; no effect if it is not mounted. Raises OSError."""
    at = mounted_at(root, volume_id)
    if at is None:
        return
    with contextlib.suppress(FileNotFoundError):
        at.unlink()
        _under(at).rename(at)
    (root / _MOUNTS / volume_id).unlink()


def unmount_all(root: Path) -> None:
    """Unmount all volumes of a machine. Raises OSError."""
    for volume_id in attached(root):
        unmount(root, volume_id)


def _under(at: Path) -> Path:
    return at.with_name(f".{at.name}.under")
