"""Bring a revision of a model from a store to the local disks: in parallel, each chunk checked as it arrives.

There is no journal: after a crash every staged byte is hashed again (2 GB/s and more) and kept where it is right. So
no wrong byte can be kept, whatever died and when.
"""

import contextlib
import errno
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from serving.cache import manifest as manifests
from serving.cache.disk import Cache, CacheError
from serving.cache.manifest import CHUNK, LARGEST_MANIFEST, File, Manifest, ManifestError
from serving.cache.store import PartConsumer, Reader, Store, read_object

ATTEMPTS: Final = 6
"""Reads of one chunk before the sync fails."""
_BACKOFF_S: Final = (0.1, 0.4, 1.0, 2.0, 4.0)
_PIECE: Final = 1024 * 1024


class SyncError(CacheError):
    """The revision could not be brought; what is staged is kept for the next try."""


class CorruptError(SyncError):
    """The store's bytes are not those of the manifest, read after read."""


@dataclass(slots=True)
class Progress:
    """How far a sync is. Written by its threads, read by anybody."""

    total: int = 0
    fetched: int = 0
    """Bytes that came over the network and were right."""
    kept: int = 0
    """Bytes that lay there already and were right."""
    retries: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes of each file."""
    here: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes of each file that are right; a file of which nothing came yet is absent."""
    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, manifest: Manifest) -> None:
        """Know what is to come."""
        self.total = manifest.size
        self.sizes = {file.path: file.size for file in manifest.files}

    def add(self, path: str, *, fetched: int = 0, kept: int = 0, retries: int = 0) -> None:
        """Count what became of a part of a file."""
        with self._lock:
            self.fetched += fetched
            self.kept += kept
            self.retries += retries
            if fetched or kept:
                self.here[path] = self.here.get(path, 0) + fetched + kept

    def under_way(self) -> dict[str, float]:
        """Share of each file of which some is here and some is not."""
        with self._lock:
            return {path: here / self.sizes[path] for path, here in self.here.items() if here < self.sizes[path]}

    @property
    def bytes_per_s(self) -> float:
        """Rate of the network so far."""
        return self.fetched / max(1e-6, time.monotonic() - self.started)

    @property
    def eta_s(self) -> float | None:
        """Seconds left at that rate; None before anything came."""
        rate = self.bytes_per_s
        return (self.total - self.fetched - self.kept) / rate if rate > 0 and self.fetched else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One chunk to get right."""

    file: File
    index: int
    path: Path
    key: str

    @property
    def start(self) -> int:
        return self.index * CHUNK

    @property
    def length(self) -> int:
        return self.file.chunk_size(self.index)


def served_digest(store: Store, model: str) -> str:
    """The digest that `<model>/served.json` names. Raises OSError, ManifestError."""
    with contextlib.closing(store.connect()) as reader:
        body = read_object(reader, f"{model}/served.json", 64 * 1024)
    try:
        return manifests.check_digest(json.loads(body)["digest"])
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{model}/served.json names no digest: run `gpufleet model rollout`") from error


def fetch_manifest(store: Store, model: str, digest: str) -> Manifest:
    """The manifest of a revision. Raises OSError, ManifestError."""
    with contextlib.closing(store.connect()) as reader:
        body = read_object(reader, f"{model}/{digest}/manifest.json", LARGEST_MANIFEST)
    return manifests.parse(body, digest)


@dataclass(slots=True, kw_only=True)
class Sync:
    """Brings revisions of one model into one cache."""

    store: Store
    cache: Cache
    model: str
    """Its prefix in the store: `models/chat`."""
    workers: int = 16
    verify: bool = True
    """False only to measure what checking costs."""
    sleep: Callable[[float], None] = time.sleep
    lock_limit_s: float = 3600
    go_on: Callable[[], None] = lambda: None
    """Asked by every thread before each piece; what it raises ends the sync, and what is staged is kept."""

    def bring(self, digest: str, now: datetime, progress: Progress | None = None) -> Path:
        """The folder of the revision, brought if it is not there. Several callers wait for one download.

        Raises SyncError (CorruptError), NoSpaceError, ManifestError, OSError, TimeoutError.
        """
        progress = progress or Progress()
        self.cache.root.mkdir(parents=True, exist_ok=True)
        manifest = fetch_manifest(self.store, self.model, digest)
        progress.begin(manifest)
        with self.cache.lock(digest, self.lock_limit_s, self.go_on):
            found = self.cache.find(manifest.name, digest)
            if found is None:
                found = self._bring(manifest, digest, progress)
            else:
                for file in manifest.files:
                    progress.add(file.path, kept=file.size)
            self.cache.touch(digest, now)
        return found

    def _bring(self, manifest: Manifest, digest: str, progress: Progress) -> Path:
        staged = self.cache.staging_of(digest)
        staged.mkdir(parents=True, exist_ok=True, mode=0o755)
        self.cache.make_room(_missing(staged, manifest), digest)
        jobs = list(_jobs(staged, manifest, f"{self.model}/{digest}/files"))
        _reserve(jobs)
        self._run(jobs, progress)
        # each file's way to the disk is waited for, but not one after the other
        with ThreadPoolExecutor(max_workers=max(1, min(self.workers, len(manifest.files)))) as pool:
            settling = [pool.submit(_settle, staged / file.path, file) for file in manifest.files]
        for future in settling:
            future.result()
        return self.cache.publish(manifest)

    def _run(self, jobs: list[Job], progress: Progress) -> None:
        versions: dict[str, str] = {}
        rest = iter(jobs)
        guard = threading.Lock()
        stop = threading.Event()

        def work() -> None:
            with contextlib.closing(self.store.connect()) as reader:
                while not stop.is_set():
                    with guard:
                        job = next(rest, None)
                    if job is None:
                        return
                    self._one(job, _Source(reader, versions), progress)

        with ThreadPoolExecutor(max_workers=max(1, min(self.workers, len(jobs)))) as pool:
            running = [pool.submit(work) for _ in range(max(1, min(self.workers, len(jobs))))]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            stop.set()
        for future in [*done, *running]:
            future.result()

    def _one(self, job: Job, source: "_Source", progress: Progress) -> None:
        handle = os.open(job.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if self.verify and _is_right(handle, job):
                progress.add(job.file.path, kept=job.length)
                return
            self._read_until_right(handle, job, source, progress)
        finally:
            os.close(handle)

    def _read_until_right(self, handle: int, job: Job, source: "_Source", progress: Progress) -> None:
        last: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                self.go_on()
                progress.add(job.file.path, retries=1)
                self.sleep(_BACKOFF_S[min(attempt - 1, len(_BACKOFF_S) - 1)])
            try:
                if self._read_once(handle, job, source):
                    progress.add(job.file.path, fetched=job.length)
                    return
                last = CorruptError(
                    f"{job.key}: bytes {job.start} to {job.start + job.length} are not the manifest's"
                )
            except (ConnectionError, TimeoutError) as error:
                last = SyncError(f"{job.key}: {error}")
                last.__cause__ = error
        assert last is not None
        raise last

    def _read_once(self, handle: int, job: Job, source: "_Source") -> bool:
        seen = hashlib.sha256()
        offset = job.start

        def take(piece: memoryview) -> None:
            nonlocal offset
            self.go_on()
            if offset + len(piece) > job.start + job.length:
                raise ConnectionError(f"{job.key}: the store sent more than was asked for")
            if self.verify:
                seen.update(piece)
            offset += os.pwrite(handle, piece, offset)

        source.read(job, take)
        if offset != job.start + job.length:
            raise ConnectionError(f"{job.key}: ended {job.start + job.length - offset} bytes early")
        return not self.verify or seen.hexdigest() == job.file.chunks[job.index]


@dataclass(frozen=True, slots=True)
class _Source:
    """One thread's connection, and which version of each object the first answer about it was of.

    So nothing is asked before the first byte: each answer says size and version, and all of one object must agree.
    """

    reader: Reader
    versions: dict[str, str]
    """Of all threads; grows by `setdefault` alone, which is one step of the interpreter."""

    def read(self, job: Job, take: PartConsumer) -> None:
        """Give a chunk to `take`. Raises CorruptError, OSError."""

        def told(size: int | None, version: str) -> None:
            if size is not None and size != job.file.size:
                raise CorruptError(f"{job.key}: has {size} bytes in the store, the manifest says {job.file.size}")
            if version and self.versions.setdefault(job.key, version) != version:
                raise OSError(errno.ESTALE, "changed while it was read", job.key)

        self.reader.read_range(job.key, job.start, job.length, self.versions.get(job.key), take, told)


def _jobs(staged: Path, manifest: Manifest, prefix: str) -> Iterator[Job]:
    """Every chunk of every file, whose place is made ready."""
    for folder in {(staged / file.path).parent for file in manifest.files}:
        folder.mkdir(parents=True, exist_ok=True)
    for file in manifest.files:
        path = staged / file.path
        _make_plain(path, file.size)
        for index in range(len(file.chunks)):
            yield Job(file=file, index=index, path=path, key=f"{prefix}/{file.path}")


def _settle(path: Path, file: File) -> None:
    """Bring a file to the disk and look at its header."""
    if path.stat().st_size != file.size:
        raise CorruptError(f"{file.path}: has {path.stat().st_size} bytes on disk instead of {file.size}")
    if path.suffix == ".safetensors":
        manifests.check_safetensors(path, file.path)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _missing(staged: Path, manifest: Manifest) -> int:
    """Bytes that the disk must still give: staged files have theirs already."""
    have = 0
    for file in manifest.files:
        with contextlib.suppress(OSError):
            have += min(file.size, (staged / file.path).lstat().st_blocks * 512)
    return manifest.size - have


def _make_plain(path: Path, size: int) -> None:
    """A plain file of that size."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise CacheError(f"{path}: is no plain file; somebody else writes into the cache") from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise CacheError(f"{path}: is no plain file; somebody else writes into the cache")
        os.ftruncate(handle, size)
    finally:
        os.close(handle)


def _reserve(jobs: list[Job]) -> None:
    """Give all files their blocks, so that a full disk is found before the first byte comes. Raises OSError.

    By several threads: a file system without extents writes zeros for it.
    """

    def give(job: Job) -> None:
        handle = os.open(job.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.posix_fallocate(handle, job.start, job.length)
        finally:
            os.close(handle)

    with ThreadPoolExecutor(max_workers=4) as pool:
        for _ in pool.map(give, jobs):
            pass


def _is_right(handle: int, job: Job) -> bool:
    """Whether the bytes on disk are the manifest's already."""
    seen = hashlib.sha256()
    offset, end = job.start, job.start + job.length
    first = os.pread(handle, 4096, offset)
    if first == bytes(len(first)):
        # a chunk of a fresh file: not worth hashing all its zeros; real zeros are fetched again, which is no error
        return False
    while offset < end:
        piece = os.pread(handle, min(_PIECE, end - offset), offset)
        if not piece:
            return False
        seen.update(piece)
        offset += len(piece)
    return seen.hexdigest() == job.file.chunks[job.index]


def verify(cache: Cache, name: str, digest: str) -> list[str]:
    """Read a revision again and name every file that is not as its manifest says. Raises CacheError without it."""
    folder = cache.path_of(name, digest)
    try:
        manifest = manifests.parse((folder / "MANIFEST.json").read_bytes(), digest)
    except (OSError, ManifestError) as error:
        raise CacheError(f"{folder}: {error}") from error
    wrong: list[str] = []
    for file in manifest.files:
        job = Job(file=file, index=0, path=folder / file.path, key=file.path)
        try:
            handle = os.open(job.path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            wrong.append(f"{file.path}: {error.strerror}")
            continue
        try:
            wrong += _verify_file(handle, file, job)
        finally:
            os.close(handle)
    return wrong


def _verify_file(handle: int, file: File, job: Job) -> Iterator[str]:
    if os.fstat(handle).st_size != file.size:
        yield f"{file.path}: has {os.fstat(handle).st_size} bytes instead of {file.size}"
        return
    for index in range(len(file.chunks)):
        part = Job(file=file, index=index, path=job.path, key=job.key)
        seen, offset = hashlib.sha256(), part.start
        while offset < part.start + part.length:
            piece = os.pread(handle, min(_PIECE, part.start + part.length - offset), offset)
            seen.update(piece)
            offset += len(piece) or part.length
        if seen.hexdigest() != file.chunks[index]:
            yield f"{file.path}: bytes {part.start} to {part.start + part.length} are damaged"
