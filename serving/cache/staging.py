"""The files of a revision on its way: places, blocks, what is right already, the way to the disk."""

import contextlib
import errno
import hashlib
import os
import stat
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from serving.cache import manifest as manifests
from serving.cache.disk import CacheError
from serving.cache.manifest import CHUNK, File, Manifest
from serving.cache.threads import WorkQueue, in_threads

_PIECE: Final = 1024 * 1024
_RESERVERS: Final = 4
"""Threads that give files their blocks: a file system without extents writes zeros for it."""


@dataclass(slots=True, kw_only=True)
class Staged:
    """A file on its way."""

    file: File
    path: str
    key: str
    """Its object in the store."""
    fresh: bool = False
    """Whether nothing of it was there before: then no chunk can be right already."""
    _to_come: int = field(default=0, init=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._to_come = len(self.file.chunks)

    def chunk_is_here(self) -> bool:
        """Count a chunk that is right; whether it was the last of the file."""
        with self._guard:
            self._to_come -= 1
            return self._to_come == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkJob:
    """One chunk to get right."""

    staged: Staged
    index: int

    @property
    def start(self) -> int:
        return self.index * CHUNK

    @property
    def length(self) -> int:
        return self.staged.file.chunk_size(self.index)

    @property
    def sha256(self) -> str:
        return self.staged.file.chunks[self.index]


def stage(folder: Path, manifest: Manifest, prefix: str) -> list[ChunkJob]:
    """Give every file its place and its blocks, so that a full disk is found before the first byte comes.

    The chunks to get right, in order. Raises CacheError, OSError.
    """
    for inside in manifest.folders():
        (folder / inside).mkdir(parents=True, exist_ok=True)
    files = [Staged(file=f, path=f"{folder}/{f.path}", key=f"{prefix}/{f.path}") for f in manifest.files]
    for staged in files:
        _make_plain(staged)
    jobs = [ChunkJob(staged=staged, index=index) for staged in files for index in range(len(staged.file.chunks))]
    in_threads(min(_RESERVERS, len(jobs)), _reserve, [job for job in jobs if len(job.staged.file.chunks) > 1])
    return jobs


def _make_plain(staged: Staged) -> None:
    """A plain file of its size. The blocks of a small one come at once: it need not be opened again."""
    path, size = staged.path, staged.file.size
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise CacheError(f"{path}: is no plain file; somebody else writes into the cache") from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise CacheError(f"{path}: is no plain file; somebody else writes into the cache")
        staged.fresh = found.st_size == 0
        os.ftruncate(handle, size)
        if len(staged.file.chunks) == 1:
            os.posix_fallocate(handle, 0, size)
    finally:
        os.close(handle)


def _reserve(jobs: WorkQueue[ChunkJob]) -> None:
    for job in jobs:
        with opened(job.staged.path) as handle:
            os.posix_fallocate(handle, job.start, job.length)


@contextlib.contextmanager
def opened(path: str) -> Generator[int]:
    """A handle to read and write a staged file."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def missing(folder: Path, manifest: Manifest) -> int:
    """Bytes that the disk must still give: staged files have theirs already."""
    have = 0
    for file in manifest.files:
        with contextlib.suppress(OSError):
            have += min(file.size, os.lstat(f"{folder}/{file.path}").st_blocks * 512)
    return manifest.size - have


def is_right(handle: int, job: ChunkJob) -> bool:
    """Whether the bytes on disk are the manifest's."""
    seen = hashlib.sha256()
    offset, end = job.start, job.start + job.length
    while offset < end:
        piece = os.pread(handle, min(_PIECE, end - offset), offset)
        if not piece:
            return False
        seen.update(piece)
        offset += len(piece)
    return seen.hexdigest() == job.sha256


def was_kept(handle: int, job: ChunkJob) -> bool:
    """Whether a chunk came before an earlier sync ended."""
    if job.staged.fresh:
        return False
    first = os.pread(handle, 4096, job.start)
    # reserved and never written: not worth hashing all its zeros; real zeros are fetched again, which is no error
    return first != bytes(len(first)) and is_right(handle, job)


def settle(handle: int, file: File) -> None:
    """Look at the header of a file that is whole, and wait for its way to the disk. Raises CacheError, OSError."""
    if (size := os.fstat(handle).st_size) != file.size:
        raise CacheError(
            f"{file.path}: has {size} bytes on disk instead of {file.size}; somebody else writes into it"
        )
    if file.path.endswith(".safetensors"):
        manifests.check_safetensors(handle, size, file.path)
    os.fsync(handle)
