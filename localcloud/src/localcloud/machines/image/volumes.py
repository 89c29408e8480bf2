"""What the disk commands of an emulated machine do with an attached volume: these are really mounted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from localcloud.machines import volumes
from localcloud.machines.image import this_machine

_WITH_VALUE: Final = frozenset({"-t", "-o", "-m", "-s", "-L", "--types", "--options", "--output"})


def run(name: str, arguments: Sequence[str]) -> int | None:
    """Exit code of the command; None: it is not about an attached volume."""
    root, named = this_machine.root(), _positional(arguments)
    found = [volume for argument in named if argument.startswith("/") and (volume := volumes.find(root, argument))]
    match name:
        case "mountpoint" | "findmnt" if named and _shown_in(root, named[-1]):
            return 0
        case "umount" if named and (found or _shown_in(root, named[0])):
            volumes.unmount(root, found[0] if found else str(_shown_in(root, named[0])))
            return 0
        case _ if not found:
            return None
        case "mkfs.ext4" | "mkfs.xfs":
            volumes.make_filesystem(root, found[0], name.removeprefix("mkfs."))
            return 0
        case "mount" if len(named) > 1:
            return _mount(root, found[0], named)
        case "wipefs" | "blkid":
            return _print_filesystem(name, arguments, named[0], volumes.filesystem(root, found[0]))
        case _:
            return None


def _mount(root: Path, volume: str, named: Sequence[str]) -> int:
    at = this_machine.inside(named[1])
    if volumes.filesystem(root, volume) is None:
        this_machine.fail(f"mount: {at}: wrong fs type, bad option, bad superblock on {named[0]}", 32)
    if (elsewhere := volumes.mounted_at(root, volume)) is not None:
        this_machine.fail(f"mount: {at}: {named[0]} already mounted on {elsewhere}.", 32)
    if not at.is_dir():
        this_machine.fail(f"mount: {at}: mount point does not exist.", 32)
    volumes.mount(root, volume, at)
    return 0


def _print_filesystem(name: str, arguments: Sequence[str], device: str, kind: str | None) -> int:
    if kind is None:
        return 2 if name == "blkid" else 0
    if name == "wipefs" and "--no-act" not in arguments:
        this_machine.fail("wipefs: an emulated machine knows --no-act only")
    print(kind if name == "wipefs" or "value" in arguments else f'{device}: TYPE="{kind}"')
    return 0


def _shown_in(root: Path, folder: str) -> str | None:
    """The volume that is mounted on a folder."""
    at = this_machine.inside(folder)
    return next((one for one in volumes.attached(root) if volumes.mounted_at(root, one) == at), None)


def _positional(arguments: Sequence[str]) -> list[str]:
    before = ("", *arguments)
    return [
        argument
        for argument, previous in zip(arguments, before, strict=False)
        if not argument.startswith("-") and previous not in _WITH_VALUE
    ]
