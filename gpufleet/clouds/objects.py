"""Shared functions of the S3 and Cloud Storage readers: status checks and range reads.

Standard library only, because the node agent contains this module. FileNotFoundError, PermissionError and OSError
with ESTALE (the object changed) are permanent; ConnectionError and TimeoutError may be temporary.
"""

import errno
from collections.abc import Callable
from http.client import HTTPResponse
from typing import Final

ObjectCallback = Callable[[int | None, str], None]
"""Callback that receives the size of the whole object in bytes and its version, before the first byte of a range.

If the store does not report them, the size has the value None and the version "". An exception ends the read.
"""
PIECE: Final = 2 * 1024 * 1024
"""Maximum bytes per piece. Half of it takes 4 % more CPU time, because threads of one file contend more often."""
WITH_SIZE: Final = frozenset({200, 206, 416})
"""HTTP statuses of responses that include the size of the whole object."""


class Buffer:
    """A reusable read buffer of one connection. It grows to the largest piece that was requested."""

    def __init__(self) -> None:
        self._view = memoryview(b"")

    def of(self, length: int) -> memoryview:
        """A buffer for a response of `length` bytes. It has at least the smaller of `length` and `PIECE` bytes."""
        wanted = min(length, PIECE)
        if len(self._view) < wanted:
            self._view = memoryview(bytearray(wanted))
        return self._view


def check(answer: HTTPResponse, key: str) -> None:
    """Raise OSError unless the response is a success (200 or 206)."""
    if answer.status in (200, 206):
        return
    if answer.status == 404:
        raise FileNotFoundError(errno.ENOENT, "no such object", key)
    if answer.status in (401, 403):
        raise PermissionError(errno.EACCES, f"the store refuses (HTTP {answer.status})", key)
    if answer.status == 412:
        raise OSError(errno.ESTALE, "changed while it was read", key)
    if answer.status == 416:
        raise ConnectionError(f"{key}: the store reports that the object is shorter than the range")
    raise ConnectionError(f"{key}: HTTP {answer.status}")


def whole_size(answer: HTTPResponse) -> int | None:
    """Size of the whole object in bytes, from the response to a range request; None if it is not reported."""
    if answer.status == 200:
        return answer.length
    total = answer.headers.get("content-range", "").rpartition("/")[2]
    return int(total) if total.isdecimal() else None


def range_header(asked: range) -> str:
    """The value of the `Range` header for these bytes."""
    return f"bytes={asked.start}-{asked.stop - 1}"


def copy_body(
    answer: HTTPResponse,
    key: str,
    asked: range,
    buffer: memoryview,
    take: Callable[[memoryview], None],
) -> None:
    """Pass exactly the requested bytes to `take`, in pieces of at most the buffer's size. Raises ConnectionError."""
    left = len(asked)
    if answer.status == 200 and (asked.start or answer.length not in (None, left)):
        raise ConnectionError(f"{key}: the store sent the whole object instead of a range")
    while left:
        got = answer.readinto(buffer[: min(len(buffer), left)])
        if not got:
            raise ConnectionError(f"{key}: ended {left} bytes early")
        take(buffer[:got])
        left -= got
