"""Bring a revision of a model from a store to the local disks: in parallel, each chunk checked as it arrives.

There is no journal: after a crash every staged byte is hashed again (2 GB/s and more) and kept where it is right. So
no wrong byte can be kept, whatever died and when.
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
from serving.cache.disk import Cache, CacheError
from serving.cache.manifest import LARGEST_MANIFEST, Manifest, ManifestError
from serving.cache.staging import ChunkJob, Staged
from serving.cache.store import ObjectStore, PartConsumer, Reader, read_object
from serving.cache.threads import WorkQueue, in_threads

ATTEMPTS: Final = 6
"""Reads of one chunk before the sync fails."""
_BACKOFF_S: Final = (0.1, 0.4, 1.0, 2.0, 4.0)


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
class Served:
    """What `served.json` of a model says."""

    digest: str
    changes_running: bool = False
    """Whether the control host changes replicas that run; else only those that boot serve it."""


def read_served(store: ObjectStore, model: str) -> Served:
    """What `<model>/served.json` says. Raises OSError, ManifestError."""
    with contextlib.closing(store.connect()) as reader:
        body = read_object(reader, f"{model}/served.json", 64 * 1024)
    try:
        found = json.loads(body)
        return Served(
            digest=manifests.check_digest(found["digest"]), changes_running=found.get("changes_running") is True
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"{model}/served.json names no digest: run `gpufleet model rollout`") from error


def served_digest(store: ObjectStore, model: str) -> str:
    """The digest that `<model>/served.json` names. Raises OSError, ManifestError."""
    return read_served(store, model).digest


def fetch_manifest(store: ObjectStore, model: str, digest: str) -> Manifest:
    """The manifest of a revision. Raises OSError, ManifestError."""
    return manifests.parse(_manifest_body(store, model, digest), digest)


def _manifest_body(store: ObjectStore, model: str, digest: str) -> bytes:
    with contextlib.closing(store.connect()) as reader:
        return read_object(reader, f"{model}/{digest}/manifest.json", LARGEST_MANIFEST)


@dataclass(slots=True, kw_only=True)
class Sync:
    """Brings revisions of one model into one cache."""

    store: ObjectStore
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
        body = _manifest_body(self.store, self.model, digest)
        manifest = manifests.parse(body, digest)
        progress.begin(manifest)
        with self.cache.lock(digest, self.lock_limit_s, self.go_on):
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
        self.cache.make_room(staging.missing(staged, manifest), digest)
        jobs = staging.stage(staged, manifest, f"{self.model}/{digest}/files")
        versions: dict[str, str] = {}

        def work(jobs: WorkQueue[ChunkJob]) -> None:
            with contextlib.closing(self.store.connect()) as reader:
                source = _Source(reader, versions)
                for job in jobs:
                    self._one(job, source, progress)

        in_threads(max(1, min(self.workers, len(jobs))), work, jobs)

    def _one(self, job: ChunkJob, source: "_Source", progress: Progress) -> None:
        """Get a chunk right; whoever has the last one of a file brings it to the disk, while others still read."""
        with staging.opened(job.staged.path) as handle:
            if self.verify and staging.was_kept(handle, job):
                progress.add(job.staged.file.path, kept=job.length)
            else:
                self._read_until_right(handle, job, source, progress)
            if job.staged.chunk_is_here():
                staging.settle(handle, job.staged.file)

    def _read_until_right(self, handle: int, job: ChunkJob, source: "_Source", progress: Progress) -> None:
        last: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                self.go_on()
                progress.add(job.staged.file.path, retries=1)
                self.sleep(_BACKOFF_S[min(attempt - 1, len(_BACKOFF_S) - 1)])
            try:
                if self._read_once(handle, job, source):
                    progress.add(job.staged.file.path, fetched=job.length)
                    return
                last = CorruptError(
                    f"{job.staged.key}: bytes {job.start} to {job.start + job.length} are not the manifest's"
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
            self.go_on()
            if offset + len(piece) > job.start + job.length:
                raise ConnectionError(f"{job.staged.key}: the store sent more than was asked for")
            if self.verify:
                seen.update(piece)
            offset += os.pwrite(handle, piece, offset)

        source.read(job, take)
        if offset != job.start + job.length:
            raise ConnectionError(f"{job.staged.key}: ended {job.start + job.length - offset} bytes early")
        return not self.verify or seen.hexdigest() == job.sha256


@dataclass(frozen=True, slots=True)
class _Source:
    """One thread's connection, and which version of each object the first answer about it was of.

    So nothing is asked before the first byte: each answer says size and version, and all of one object must agree.
    """

    reader: Reader
    versions: dict[str, str]
    """Of all threads; grows by `setdefault` alone, which is one step of the interpreter."""

    def read(self, job: ChunkJob, take: PartConsumer) -> None:
        """Give a chunk to `take`. Raises CorruptError, OSError."""

        def told(size: int | None, version: str) -> None:
            if size is not None and size != job.staged.file.size:
                raise CorruptError(
                    f"{job.staged.key}: has {size} bytes in the store, the manifest says {job.staged.file.size}"
                )
            if version and self.versions.setdefault(job.staged.key, version) != version:
                raise OSError(errno.ESTALE, "changed while it was read", job.staged.key)

        self.reader.read_range(job.staged.key, job.start, job.length, self.versions.get(job.staged.key), take, told)


def verify(cache: Cache, name: str, digest: str) -> list[str]:
    """Read a revision again and name every file that is not as its manifest says. Raises CacheError without it."""
    folder = cache.path_of(name, digest)
    try:
        manifest = manifests.parse((folder / "MANIFEST.json").read_bytes(), digest)
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
        if not staging.is_right(handle, job):
            yield f"{file.path}: bytes {job.start} to {job.start + job.length} are damaged"
