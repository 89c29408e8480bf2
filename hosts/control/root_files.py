"""Files of root on a volume where other users also have folders.

Links are never followed. Anything else at a file's path is an error, or is replaced.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC


def read(path: Path) -> str:
    """Return the text of a file. Raises OSError, also for a link and for anything but a regular file."""
    with open_regular(path) as file:
        return file.read().decode()


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> BinaryIO:
    """Open a regular file; never follow a link. Raises OSError."""
    # O_NONBLOCK: a FIFO at this path must not block root.
    number = os.open(path, flags | _OPEN | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(f"{path}: is not a regular file")
    return os.fdopen(number, "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "wb")


def write_durably(path: Path, text: str, reader: int | None = None) -> None:
    """Write a file atomically and durably (after a power loss it is the old or the new one), readable by its owner.

    `reader`: id of a group that may read it too. Raises OSError.
    """
    part = path.with_name(f".{path.name}.part")
    with create(part) as file:
        if reader is not None:
            os.fchown(file.fileno(), -1, reader)
            os.fchmod(file.fileno(), 0o640)
        file.write(text.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def create(path: Path) -> BinaryIO:
    """Create a file; remove an existing one first. Raises OSError."""
    path.unlink(missing_ok=True)
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def make_folder(path: Path, mode: int) -> None:
    """Create a folder with exactly this mode. Raises OSError if the path is not a folder."""
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
    try:
        os.fchmod(number, mode)
    finally:
        os.close(number)
