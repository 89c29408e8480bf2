"""The model cache on disk: its entries, its locks and leases, and eviction.

<root>/<name>@<digest>/          a complete revision; `MANIFEST.json` was written last
<root>/.staging/<digest>/        a revision during its download
<root>/.locks/<digest>           locked by the process that downloads it
<root>/.locks/<digest>.lease     shared lock of each process that serves it
<root>/.used/<digest>            its modification time is the last use of the revision
"""

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from serving.cache.manifest import Manifest, ManifestError, check_digest, parse

MANIFEST: Final = "MANIFEST.json"
_SPARE: Final = 64 * 1024 * 1024
"""Bytes that stay free on the disk."""


class CacheError(RuntimeError):
    """The cache cannot do what was requested; the message gives the reason and a remedy."""


class NoSpaceError(CacheError):
    """Too little free space, even after eviction of everything that can be evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRevision:
    """A complete revision in the cache."""

    name: str
    digest: str
    path: Path
    size: int
    used_at: datetime
    leased: bool


class Cache:
    """A folder of models on local disks."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, name: str, digest: str) -> Path:
        """Return the folder of a complete revision."""
        return self.root / f"{name}@{digest}"

    def staging_of(self, digest: str) -> Path:
        """Return the folder of a revision during its download."""
        return self.root / ".staging" / digest

    def find(self, name: str, digest: str) -> Path | None:
        """Return the folder of a revision when its manifest and file sizes are correct; None otherwise."""
        folder = self.path_of(name, digest)
        try:
            manifest = parse((folder / MANIFEST).read_bytes(), digest)
            if all(os.lstat(f"{folder}/{file.path}").st_size == file.size for file in manifest.files):
                return folder
        except (OSError, ManifestError):
            return None
        return None

    def find_digest(self, digest: str) -> Path | None:
        """Find a revision by digest alone; see `find`."""
        names = (folder.name.rpartition("@")[0] for folder in self.root.glob(f"*@{check_digest(digest)}"))
        return next((found for name in names if (found := self.find(name, digest)) is not None), None)

    def entries(self) -> list[CachedRevision]:
        """Return all complete revisions, least recently used first."""
        found: list[CachedRevision] = []
        for folder in self.root.glob("[!.]*@*"):
            name, _, digest = folder.name.rpartition("@")
            if self.find(name, digest) is None:
                continue
            manifest = parse((folder / MANIFEST).read_bytes())
            entry = CachedRevision(
                name=name,
                digest=digest,
                path=folder,
                size=manifest.size,
                used_at=self._used_at(digest, folder),
                leased=self.is_leased(digest),
            )
            found.append(entry)
        return sorted(found, key=lambda entry: (entry.used_at, entry.digest))

    def touch(self, digest: str, now: datetime) -> None:
        """Record `now` as the last use of a revision."""
        stamp = self._folder(".used") / check_digest(digest)
        stamp.touch()
        os.utime(stamp, (now.timestamp(), now.timestamp()))

    @contextlib.contextmanager
    def lock(self, digest: str, limit_s: float, waiting: Callable[[], None] = lambda: None) -> Generator[None]:
        """Hold the download lock of a revision. Raises TimeoutError after `limit_s`. Process exit releases it."""
        deadline = time.monotonic() + limit_s
        with self._open_lock(check_digest(digest)) as file:
            while not _try_lock(file, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"another process downloads {digest[:12]}… and did not finish within {limit_s:.0f} s"
                    )
                waiting()
                time.sleep(0.1)
            yield

    @contextlib.contextmanager
    def lease(self, digest: str) -> Generator[None]:
        """Protect a revision from eviction while the block (or the process) runs."""
        with self._open_lock(f"{check_digest(digest)}.lease") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def is_leased(self, digest: str) -> bool:
        """Whether any process serves it now."""
        with self._open_lock(f"{digest}.lease") as file:
            return not _try_lock(file, fcntl.LOCK_EX)

    def evict(self, entry: CachedRevision) -> bool:
        """Remove a revision. Returns False when a process serves it."""
        with self._open_lock(f"{entry.digest}.lease") as file:
            if not _try_lock(file, fcntl.LOCK_EX):
                return False
            # a revision without its manifest does not exist, so a crash during removal leaves no partial model
            (entry.path / MANIFEST).unlink(missing_ok=True)
            _remove(entry.path)
            (self.root / ".used" / entry.digest).unlink(missing_ok=True)
            return True

    def free_space(self, needed: int, keep: str) -> list[CachedRevision]:
        """Evict revisions, least recently used first, until `needed` bytes are free. Keeps `keep` and leased ones.

        First removes what killed syncs of other revisions left. Returns the evicted revisions. Raises NoSpaceError
        before any eviction when evicting all of them would not free enough.
        """
        if self._free() < needed + _SPARE:
            self._drop_leftovers(keep)
        free = self._free()
        candidates = [entry for entry in self.entries() if not entry.leased and entry.digest != keep]
        if free + sum(entry.size for entry in candidates) < needed + _SPARE:
            raise NoSpaceError(
                f"{self.root}: {needed} bytes needed, {free} free, {sum(e.size for e in candidates)} could "
                "be evicted: choose a machine type with more local NVMe, or a smaller model"
            )
        evicted: list[CachedRevision] = []
        for entry in candidates:
            if self._free() >= needed + _SPARE:
                break
            if self.evict(entry):
                evicted.append(entry)
        if self._free() < needed + _SPARE:
            raise NoSpaceError(
                f"{self.root}: {needed} bytes needed, {self._free()} free: the other revisions are in use"
            )
        return evicted

    def _drop_leftovers(self, keep: str) -> None:
        for folder in self.root.glob(".staging/*"):
            with self._open_lock(folder.name) as file:
                # the process that holds the lock downloads this revision now
                if folder.name != keep and _try_lock(file, fcntl.LOCK_EX):
                    _remove(folder)

    def publish(self, manifest: Manifest, body: bytes) -> Path:
        """Turn a complete staged revision into a cache entry. `body`: the bytes of its manifest, as received."""
        digest = hashlib.sha256(body).hexdigest()
        staged, target = self.staging_of(digest), self.path_of(manifest.name, digest)
        half_done = staged / f".{MANIFEST}.part"
        with half_done.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        half_done.replace(staged / MANIFEST)
        for folder in manifest.folders() | {""}:
            sync_folder(staged / folder)
        if target.exists():
            # an incomplete folder of that name: `find` never returned it
            _remove(target)
        staged.replace(target)
        sync_folder(self.root)
        return target

    def _used_at(self, digest: str, folder: Path) -> datetime:
        stamp = self.root / ".used" / digest
        seconds = (stamp if stamp.exists() else folder).stat().st_mtime
        return datetime.fromtimestamp(seconds, UTC)

    def _open_lock(self, name: str) -> IO[bytes]:
        return (self._folder(".locks") / name).open("ab")

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _free(self) -> int:
        disk = os.statvfs(self.root)
        return disk.f_bavail * disk.f_frsize


def _try_lock(file: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(folder: Path) -> None:
    # imported only when needed: it loads every archive format, and most syncs remove nothing
    import shutil

    shutil.rmtree(folder)


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk (fsync)."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
