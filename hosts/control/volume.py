"""The volume that outlives the machine: waits for it, formats it once, mounts it."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from gpufleet.domain.durations import approximate
from hosts.node.ports import StepError

WAIT: Final = timedelta(minutes=10)
"""How long to wait for the volume: the old machine must detach it first."""
_LOOK_S: Final = 2.0
_LOOKED_AT: Final = 1024 * 1024
"""Number of bytes checked at the start of a disk. A new disk contains zeros."""


def mount(device: str, at: Path, run: Callable[[Sequence[str]], str], wait: timedelta = WAIT) -> str:
    """Mount the volume at `at` and return a description. A volume that contains data is never formatted.

    Raises StepError.
    """
    end = time.monotonic() + wait.total_seconds()
    while not Path(device).exists():
        if time.monotonic() > end:
            raise StepError(
                f"{device}: is not attached after {approximate(wait)}: attach the environment's data volume"
            )
        time.sleep(_LOOK_S)
    at.mkdir(parents=True, exist_ok=True)
    if _is_mounted(at, run):
        return f"{device} is mounted on {at}"
    fresh = _is_empty(device, run)
    if fresh:
        run(["mkfs.ext4", "-q", "-m", "1", device])
    run(["mount", "-o", "noatime", device, str(at)])
    return f"{device} is mounted on {at}{', formatted' if fresh else ''}"


def _is_empty(device: str, run: Callable[[Sequence[str]], str]) -> bool:
    """Return whether the disk is empty. Raises StepError if that cannot be determined.

    `wipefs` reads the disk itself. lsblk queries udev, which may not have probed a disk that was just attached.
    Without a terminal, mkfs does not ask: it would overwrite an existing file system.
    """
    if run(["wipefs", "--no-act", "--noheadings", "--output", "TYPE", device]).strip():
        return False
    try:
        with Path(device).open("rb") as disk:
            beginning = disk.read(_LOOKED_AT)
    except OSError as error:
        raise StepError(f"{device}: cannot be read: {error.strerror}") from error
    if beginning.strip(b"\0"):
        raise StepError(
            f"{device}: contains data but not a known file system, so it is neither mounted nor formatted: "
            f"check the data; if you do not need them, erase them with `dd if=/dev/zero of={device} bs=1M count=1`"
        )
    return True


def _is_mounted(at: Path, run: Callable[[Sequence[str]], str]) -> bool:
    try:
        run(["mountpoint", "--quiet", str(at)])
    except StepError:
        return False
    return True
