"""The volume that outlives the machine: waited for, formatted once, mounted."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from node.ports import StepError

WAIT: Final = timedelta(minutes=10)
"""The old machine must let go of it first."""
_LOOK_S: Final = 2.0


def mount(device: str, at: Path, run: Callable[[Sequence[str]], str], wait: timedelta = WAIT) -> str:
    """Have the volume mounted there; says what was done. A volume that holds anything is never formatted.

    Raises StepError.
    """
    end = time.monotonic() + wait.total_seconds()
    while not Path(device).exists():
        if time.monotonic() > end:
            raise StepError(f"{device}: is not attached after {wait}: attach the environment's data volume")
        time.sleep(_LOOK_S)
    at.mkdir(parents=True, exist_ok=True)
    if _is_mounted(at, run):
        return f"{device} is mounted on {at}"
    fresh = not run(["lsblk", "--noheadings", "--nodeps", "--output", "FSTYPE", device]).strip()
    if fresh:
        # without -F: it refuses what has a partition table or a file system that lsblk does not know
        run(["mkfs.ext4", "-q", "-m", "1", device])
    run(["mount", "-o", "noatime", device, str(at)])
    return f"{device} is mounted on {at}{', formatted' if fresh else ''}"


def _is_mounted(at: Path, run: Callable[[Sequence[str]], str]) -> bool:
    try:
        run(["mountpoint", "--quiet", str(at)])
    except StepError:
        return False
    return True
