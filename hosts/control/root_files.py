"""Files that root keeps on a volume where other users have folders: opened without following a link. No mercy for
anything else under their names.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC


def read(path: Path) -> str:
    """The text of a file. Raises OSError, also for a link and for what is not a regular file."""
    with open_regular(path) as file:
        return file.read().decode()


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> BinaryIO:
    """A regular file itself, never what a link leads to. Raises OSError."""
    # O_NONBLOCK: a FIFO under its name must not hold root up
    number = os.open(path, flags | _OPEN | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(f"{path}: is not a regular file")
    return os.fdopen(number, "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "wb")


def write_durably(path: Path, text: str, reader: int | None = None) -> None:
    """The whole file or what was there before, also when the power goes; for its owner alone.

    `reader`: the number of a group that may read it. Raises OSError.
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
    """A new file; what was there under its name is removed. Raises OSError."""
    path.unlink(missing_ok=True)
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def make_folder(path: Path, mode: int) -> None:
    """A folder of the caller's own, with exactly that mode. Raises OSError when another thing has its name."""
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
    try:
        os.fchmod(number, mode)
    finally:
        os.close(number)
