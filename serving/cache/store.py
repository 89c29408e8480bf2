"""The interface to model stores: a bucket or a folder.

Errors are exceptions of the standard library, so that `clouds` does not depend on this package. Permanent errors:
FileNotFoundError (no such object), PermissionError (refused), OSError with errno ESTALE (the object changed while it
was read). Transient errors: ConnectionError and TimeoutError (throttling, resets, short reads).
"""

import errno
import os
from pathlib import Path
from typing import Protocol

from gpufleet.domain.files import write_atomically


class PartConsumer(Protocol):
    """Receives the bytes of a range as they arrive, in order."""

    def __call__(self, piece: memoryview, /) -> None: ...


class ObjectCallback(Protocol):
    """Receives the size and version of a range's object, before the first byte of the range.

    The size may be None and the version "" if the store does not report them. An exception here ends the read.
    """

    def __call__(self, size: int | None, version: str, /) -> None: ...


class Reader(Protocol):
    """One connection, for one thread."""

    def size_and_version(self, key: str) -> tuple[int, str]:
        """Return the size of an object in bytes, and its version."""
        ...

    def read_range(  # noqa: PLR0913 - a range, its version, and two callbacks
        self,
        key: str,
        start: int,
        length: int,
        version: str | None,
        take: PartConsumer,
        on_object: ObjectCallback | None = None,
    ) -> None:
        """Pass exactly `length` bytes from `start` to `take`, in pieces that are valid only during the call.

        With `version`, read only that version. First passes the object's size and version to `on_object`.
        """
        ...

    def close(self) -> None: ...


class ObjectStore(Protocol):
    """A store of objects by key."""

    def connect(self) -> Reader:
        """Open a new connection."""
        ...


class Writer(Protocol):
    """The write operations that publishing a model needs."""

    def exists(self, key: str) -> bool: ...

    def put_bytes(self, key: str, body: bytes) -> None: ...

    def put_file(self, key: str, path: Path) -> None: ...


_PIECE = 1024 * 1024


class FolderStore:
    """A folder that works as a bucket: keys are paths below it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def connect(self) -> "FolderReader":
        return FolderReader(self._root)

    def exists(self, key: str) -> bool:
        return (self._root / key).is_file()

    def put_bytes(self, key: str, body: bytes) -> None:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, body)

    def put_file(self, key: str, path: Path) -> None:
        target = self._root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        half_done = target.with_name(f".{target.name}.part")
        with path.open("rb") as source, half_done.open("wb") as copy:
            while piece := source.read(_PIECE):
                copy.write(piece)
        half_done.replace(target)


class FolderReader:
    """Reads files of a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._buffer = bytearray(_PIECE)

    def size_and_version(self, key: str) -> tuple[int, str]:
        found = (self._root / key).stat()
        return found.st_size, f"{found.st_mtime_ns}-{found.st_size}"

    def read_range(  # noqa: PLR0913 - a range, its version, and two callbacks
        self,
        key: str,
        start: int,
        length: int,
        version: str | None,
        take: PartConsumer,
        on_object: ObjectCallback | None = None,
    ) -> None:
        size, found = self.size_and_version(key)
        if version is not None and found != version:
            raise OSError(errno.ESTALE, "changed while it was read", key)
        if on_object is not None:
            on_object(size, found)
        view = memoryview(self._buffer)
        with (self._root / key).open("rb", buffering=0) as file:
            os.lseek(file.fileno(), start, os.SEEK_SET)
            while length:
                got = file.readinto(view[: min(_PIECE, length)])
                if not got:
                    raise ConnectionError(f"{key}: ended {length} bytes early")
                take(view[:got])
                length -= got

    def close(self) -> None:
        """Do nothing: no file is open between reads."""


def read_object(reader: Reader, key: str, largest: int) -> bytes:
    """Read a whole small object. Raises OSError; ValueError when it has more than `largest` bytes."""
    size, version = reader.size_and_version(key)
    if size > largest:
        raise ValueError(f"{key}: has {size} bytes, more than the {largest} expected")
    body = bytearray()
    if size:
        reader.read_range(key, 0, size, version, body.extend)
    return bytes(body)
