"""The staged files of a revision during its download: disk allocation, chunk verification, final checks."""

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
from serving.cache.threads import WorkQueue, run_in_threads

_PIECE: Final = 1024 * 1024
_RESERVERS: Final = 4
"""Threads that allocate disk blocks: a file system without extents writes zeros, which takes time."""


@dataclass(slots=True, kw_only=True)
class Staged:
    """A file during its download."""

    file: File
    path: str
    key: str
    """Key of its object in the store."""
    fresh: bool = False
    """Whether the file was empty or absent before: then no chunk can be correct yet."""
    _to_come: int = field(default=0, init=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._to_come = len(self.file.chunks)

    def chunk_is_here(self) -> bool:
        """Count a verified chunk. Returns True for the last chunk of the file."""
        with self._guard:
            self._to_come -= 1
            return self._to_come == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkJob:
    """One chunk to download or verify."""

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
    """Create every file and allocate its blocks, so that a full disk fails before the download starts.

    Returns the jobs of all chunks, in order. Raises CacheError, OSError.
    """
    for inside in manifest.folders():
        (folder / inside).mkdir(parents=True, exist_ok=True)
    files = [Staged(file=f, path=f"{folder}/{f.path}", key=f"{prefix}/{f.path}") for f in manifest.files]
    for staged in files:
        _make_plain(staged)
    jobs = [ChunkJob(staged=staged, index=index) for staged in files for index in range(len(staged.file.chunks))]
    run_in_threads(min(_RESERVERS, len(jobs)), _reserve, [job for job in jobs if len(job.staged.file.chunks) > 1])
    return jobs


def _make_plain(staged: Staged) -> None:
    """Create a regular file of its final size. A one-chunk file gets its blocks here, so it is not opened again."""
    path, size = staged.path, staged.file.size
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise CacheError(f"{path}: is not a regular file; another process writes to the cache") from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise CacheError(f"{path}: is not a regular file; another process writes to the cache")
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
    """Open a staged file to read and write it; yields the file descriptor."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def missing(folder: Path, manifest: Manifest) -> int:
    """Return the bytes that the disk must still allocate, without the blocks that staged files have."""
    have = 0
    for file in manifest.files:
        with contextlib.suppress(OSError):
            have += min(file.size, os.lstat(f"{folder}/{file.path}").st_blocks * 512)
    return manifest.size - have


def is_correct(handle: int, job: ChunkJob) -> bool:
    """Whether the bytes on disk match the manifest's digest."""
    seen = hashlib.sha256()
    offset, end = job.start, job.start + job.length
    while offset < end:
        piece = os.pread(handle, min(_PIECE, end - offset), offset)
        if not piece:
            return False
        seen.update(piece)
        offset += len(piece)
    return seen.hexdigest() == job.sha256


def is_already_correct(handle: int, job: ChunkJob) -> bool:
    """Whether an earlier sync downloaded this chunk correctly."""
    if job.staged.fresh:
        return False
    first = os.pread(handle, 4096, job.start)
    # an allocated, never written chunk is zeros: do not hash it; a chunk of real zeros is only downloaded again
    return first != bytes(len(first)) and is_correct(handle, job)


def check_and_flush(handle: int, file: File) -> None:
    """Check the size and header of a complete file, then flush it to the disk. Raises CacheError, OSError."""
    if (size := os.fstat(handle).st_size) != file.size:
        raise CacheError(
            f"{file.path}: has {size} bytes on disk instead of {file.size}; another process writes to it"
        )
    if file.path.endswith(".safetensors"):
        manifests.check_safetensors(handle, size, file.path)
    os.fsync(handle)
