"""Downloads a model revision from a store to local disks: in parallel, with a check of each chunk on arrival.

There is no journal. After a crash, every staged byte is hashed again (2 GB/s and more), and only correct chunks are
kept. So no wrong byte can remain, whatever crashed and when.
"""

import contextlib
import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from serving.cache import manifest as manifests
from serving.cache import staging
from serving.cache.disk import MANIFEST, Cache, CacheError
from serving.cache.manifest import LARGEST_MANIFEST, Manifest, ManifestError
from serving.cache.staging import ChunkJob, Staged
from serving.cache.store import ObjectStore, PartConsumer, Reader, read_object
from serving.cache.threads import WorkQueue, run_in_threads

ATTEMPTS: Final = 6
"""Reads of one chunk before the sync fails."""
_BACKOFF_S: Final = (0.1, 0.4, 1.0, 2.0, 4.0)


class SyncError(CacheError):
    """The download failed; staged files are kept for the next attempt."""


class CorruptError(SyncError):
    """The store's bytes do not match the manifest, in repeated reads."""


@dataclass(slots=True)
class Progress:
    """Progress of a sync. Its threads write it; any thread may read it."""

    total: int = 0
    fetched: int = 0
    """Verified bytes from the network."""
    kept: int = 0
    """Verified bytes that were on disk before the sync."""
    retries: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Size of each file in bytes."""
    here: dict[str, int] = field(default_factory=dict[str, int])
    """Verified bytes of each file; a file without any is absent."""
    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, manifest: Manifest) -> None:
        """Set the total and the file sizes."""
        self.total = manifest.size
        self.sizes = {file.path: file.size for file in manifest.files}

    def add(self, path: str, *, fetched: int = 0, kept: int = 0, retries: int = 0) -> None:
        """Count a result for a part of a file."""
        with self._lock:
            self.fetched += fetched
            self.kept += kept
            self.retries += retries
            if fetched or kept:
                self.here[path] = self.here.get(path, 0) + fetched + kept

    def under_way(self) -> dict[str, float]:
        """Return the completed share (0 to 1) of each partly downloaded file."""
        with self._lock:
            return {path: here / self.sizes[path] for path, here in self.here.items() if here < self.sizes[path]}

    @property
    def bytes_per_s(self) -> float:
        """Average download rate so far."""
        return self.fetched / max(1e-6, time.monotonic() - self.started)

    @property
    def eta_s(self) -> float | None:
        """Remaining seconds at that rate; None before the first verified chunk."""
        rate = self.bytes_per_s
        return (self.total - self.fetched - self.kept) / rate if rate > 0 and self.fetched else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRevision:
    """The content of a model's `served.json`."""

    digest: str
    changes_running: bool = False
    """Whether the control host changes running replicas. Otherwise only booting replicas serve the revision."""


def read_served(store: ObjectStore, model: str) -> ServedRevision:
    """Read `<model>/served.json`. Raises OSError, ManifestError."""
    with contextlib.closing(store.connect()) as reader:
        body = read_object(reader, f"{model}/served.json", 64 * 1024)
    try:
        found = json.loads(body)
        return ServedRevision(
            digest=manifests.check_digest(found["digest"]), changes_running=found.get("changes_running") is True
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"{model}/served.json has no digest: run `gpufleet model rollout`") from error


def served_digest(store: ObjectStore, model: str) -> str:
    """Return the digest in `<model>/served.json`. Raises OSError, ManifestError."""
    return read_served(store, model).digest


def fetch_manifest(store: ObjectStore, model: str, digest: str) -> Manifest:
    """Fetch the manifest of a revision. Raises OSError, ManifestError."""
    return manifests.parse(_manifest_body(store, model, digest), digest)


def _manifest_body(store: ObjectStore, model: str, digest: str) -> bytes:
    with contextlib.closing(store.connect()) as reader:
        return read_object(reader, f"{model}/{digest}/{manifests.OBJECT}", LARGEST_MANIFEST)


@dataclass(slots=True, kw_only=True)
class Sync:
    """Downloads revisions of one model into one cache."""

    store: ObjectStore
    cache: Cache
    model: str
    """Prefix of the model in the store: `models/chat`."""
    workers: int = 16
    verify: bool = True
    """False only to measure the cost of checks."""
    sleep: Callable[[float], None] = time.sleep
    lock_limit_s: float = 3600
    raise_if_stopped: Callable[[], None] = lambda: None
    """Each thread calls it before each piece. An exception ends the sync; staged files are kept."""

    def bring(self, digest: str, now: datetime, progress: Progress | None = None) -> Path:
        """Return the folder of the revision; download it if it is absent. Concurrent callers share one download.

        Raises SyncError (CorruptError), NoSpaceError, ManifestError, OSError, TimeoutError.
        """
        progress = progress or Progress()
        self.cache.root.mkdir(parents=True, exist_ok=True)
        body = _manifest_body(self.store, self.model, digest)
        manifest = manifests.parse(body, digest)
        progress.begin(manifest)
        with self.cache.lock(digest, self.lock_limit_s, self.raise_if_stopped):
            found = self.cache.find(manifest.name, digest)
            if found is None:
                self._bring(manifest, digest, progress)
                found = self.cache.publish(manifest, body)
            else:
                for file in manifest.files:
                    progress.add(file.path, kept=file.size)
            self.cache.touch(digest, now)
        return found

    def _bring(self, manifest: Manifest, digest: str, progress: Progress) -> None:
        staged = self.cache.staging_of(digest)
        staged.mkdir(parents=True, exist_ok=True, mode=0o755)
        self.cache.free_space(staging.missing(staged, manifest), digest)
        jobs = staging.stage(staged, manifest, f"{self.model}/{digest}/files")
        versions: dict[str, str] = {}

        def work(jobs: WorkQueue[ChunkJob]) -> None:
            with contextlib.closing(self.store.connect()) as reader:
                source = _Source(reader, versions)
                for job in jobs:
                    self._fetch_chunk(job, source, progress)

        run_in_threads(max(1, min(self.workers, len(jobs))), work, jobs)

    def _fetch_chunk(self, job: ChunkJob, source: "_Source", progress: Progress) -> None:
        """Keep a staged chunk that matches its digest, or download it.

        The thread with a file's last chunk also flushes the file, while others still read.
        """
        with staging.opened(job.staged.path) as handle:
            if self.verify and staging.is_already_correct(handle, job):
                progress.add(job.staged.file.path, kept=job.length)
            else:
                self._read_with_retries(handle, job, source, progress)
            if job.staged.chunk_is_here():
                staging.check_and_flush(handle, job.staged.file)

    def _read_with_retries(self, handle: int, job: ChunkJob, source: "_Source", progress: Progress) -> None:
        last: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                self.raise_if_stopped()
                progress.add(job.staged.file.path, retries=1)
                self.sleep(_BACKOFF_S[min(attempt - 1, len(_BACKOFF_S) - 1)])
            try:
                if self._read_once(handle, job, source):
                    progress.add(job.staged.file.path, fetched=job.length)
                    return
                last = CorruptError(
                    f"{job.staged.key}: bytes {job.start} to {job.start + job.length} do not match the manifest"
                )
            except (ConnectionError, TimeoutError) as error:
                last = SyncError(f"{job.staged.key}: {error}")
                last.__cause__ = error
        assert last is not None
        raise last

    def _read_once(self, handle: int, job: ChunkJob, source: "_Source") -> bool:
        seen = hashlib.sha256()
        offset = job.start

        def take(piece: memoryview) -> None:
            nonlocal offset
            self.raise_if_stopped()
            if offset + len(piece) > job.start + job.length:
                raise ConnectionError(f"{job.staged.key}: the store sent more bytes than requested")
            if self.verify:
                seen.update(piece)
            offset += os.pwrite(handle, piece, offset)

        source.read(job, take)
        if offset != job.start + job.length:
            raise ConnectionError(f"{job.staged.key}: ended {job.start + job.length - offset} bytes early")
        return not self.verify or seen.hexdigest() == job.sha256


@dataclass(frozen=True, slots=True)
class _Source:
    """A thread's connection, and the version of each object from the first response about it.

    So no request is needed before the first byte: each response has size and version, and all must agree per object.
    """

    reader: Reader
    versions: dict[str, str]
    """Shared by all threads. Only `setdefault` adds to it, which is atomic in the interpreter."""

    def read(self, job: ChunkJob, take: PartConsumer) -> None:
        """Pass a chunk to `take`. Raises CorruptError, OSError."""

        def on_object(size: int | None, version: str) -> None:
            if size is not None and size != job.staged.file.size:
                raise CorruptError(
                    f"{job.staged.key}: has {size} bytes in the store, {job.staged.file.size} in the manifest"
                )
            if version and self.versions.setdefault(job.staged.key, version) != version:
                raise OSError(errno.ESTALE, "changed while it was read", job.staged.key)

        self.reader.read_range(
            job.staged.key, job.start, job.length, self.versions.get(job.staged.key), take, on_object
        )


def verify(cache: Cache, name: str, digest: str) -> list[str]:
    """Read a revision again; return an error for each file that does not match. Raises CacheError if it is absent."""
    folder = cache.path_of(name, digest)
    try:
        manifest = manifests.parse((folder / MANIFEST).read_bytes(), digest)
    except (OSError, ManifestError) as error:
        raise CacheError(f"{folder}: {error}") from error
    wrong: list[str] = []
    for file in manifest.files:
        staged = Staged(file=file, path=f"{folder}/{file.path}", key=file.path)
        try:
            handle = os.open(staged.path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            wrong.append(f"{file.path}: {error.strerror}")
            continue
        try:
            wrong += _verify_file(handle, staged)
        finally:
            os.close(handle)
    return wrong


def _verify_file(handle: int, staged: Staged) -> Iterator[str]:
    file = staged.file
    if (size := os.fstat(handle).st_size) != file.size:
        yield f"{file.path}: has {size} bytes instead of {file.size}"
        return
    for index in range(len(file.chunks)):
        job = ChunkJob(staged=staged, index=index)
        if not staging.is_correct(handle, job):
            yield f"{file.path}: bytes {job.start} to {job.start + job.length} are damaged"
