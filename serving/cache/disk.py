"""The cache on disk: what is there, who uses it, what may go.

<root>/<name>@<digest>/          a revision, whole; `MANIFEST.json` was written last
<root>/.staging/<digest>/        a revision on its way
<root>/.locks/<digest>           held by the process that brings it
<root>/.locks/<digest>.lease     held shared by whoever serves it
<root>/.used/<digest>            its time of change says when it was last wanted
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
    """The cache cannot do what was asked; says what and what would help."""


class NoSpaceError(CacheError):
    """Too little room, also after everything that may go was counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRevision:
    """A revision that is there, whole."""

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
        """Where a revision is when it is there."""
        return self.root / f"{name}@{digest}"

    def staging_of(self, digest: str) -> Path:
        """Where a revision is while it comes."""
        return self.root / ".staging" / digest

    def find(self, name: str, digest: str) -> Path | None:
        """The folder of a revision that is whole by manifest and sizes; None for anything less."""
        folder = self.path_of(name, digest)
        try:
            manifest = parse((folder / MANIFEST).read_bytes(), digest)
            if all(os.lstat(f"{folder}/{file.path}").st_size == file.size for file in manifest.files):
                return folder
        except (OSError, ManifestError):
            return None
        return None

    def find_digest(self, digest: str) -> Path | None:
        """The same, by digest alone."""
        names = (folder.name.rpartition("@")[0] for folder in self.root.glob(f"*@{check_digest(digest)}"))
        return next((found for name in names if (found := self.find(name, digest)) is not None), None)

    def entries(self) -> list[CachedRevision]:
        """What is there, least recently wanted first."""
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
        """Note that a revision was wanted at `now`."""
        stamp = self._folder(".used") / check_digest(digest)
        stamp.touch()
        os.utime(stamp, (now.timestamp(), now.timestamp()))

    @contextlib.contextmanager
    def lock(self, digest: str, limit_s: float, waiting: Callable[[], None] = lambda: None) -> Generator[None]:
        """Be the one who brings a revision. Raises TimeoutError after `limit_s`; dies with the process."""
        deadline = time.monotonic() + limit_s
        with self._open_lock(check_digest(digest)) as file:
            while not _try_lock(file, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"another process brings {digest[:12]}… and did not end in {limit_s:.0f} s")
                waiting()
                time.sleep(0.1)
            yield

    @contextlib.contextmanager
    def lease(self, digest: str) -> Generator[None]:
        """Keep a revision from being evicted for as long as the block (or the process) lives."""
        with self._open_lock(f"{check_digest(digest)}.lease") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def is_leased(self, digest: str) -> bool:
        """Whether anybody serves it now."""
        with self._open_lock(f"{digest}.lease") as file:
            return not _try_lock(file, fcntl.LOCK_EX)

    def evict(self, entry: CachedRevision) -> bool:
        """Remove a revision. False when somebody serves it."""
        with self._open_lock(f"{entry.digest}.lease") as file:
            if not _try_lock(file, fcntl.LOCK_EX):
                return False
            # without its manifest it does not exist, so a death half-way leaves no half model
            (entry.path / MANIFEST).unlink(missing_ok=True)
            _remove(entry.path)
            (self.root / ".used" / entry.digest).unlink(missing_ok=True)
            return True

    def make_room(self, needed: int, keep: str) -> list[CachedRevision]:
        """Evict, least recently wanted first, until `needed` bytes are free; never `keep`, never a leased one.

        What dead syncs of other revisions left goes before any of them. Returns the revisions that went. Raises
        NoSpaceError before one is removed when even all of them would not do.
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
        gone: list[CachedRevision] = []
        for entry in candidates:
            if self._free() >= needed + _SPARE:
                break
            if self.evict(entry):
                gone.append(entry)
        if self._free() < needed + _SPARE:
            raise NoSpaceError(f"{self.root}: {needed} bytes needed, {self._free()} free: what could go is in use")
        return gone

    def _drop_leftovers(self, keep: str) -> None:
        for folder in self.root.glob(".staging/*"):
            with self._open_lock(folder.name) as file:
                # who holds the lock brings it now
                if folder.name != keep and _try_lock(file, fcntl.LOCK_EX):
                    _remove(folder)

    def publish(self, manifest: Manifest, body: bytes) -> Path:
        """Turn a staged revision, whole and on disk, into an entry; `body` is its manifest as it came."""
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
            # something of that name that is not whole: it never existed for anybody
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
    # imported where it is needed: it brings every archive format along, for a sync that removes nothing
    import shutil

    shutil.rmtree(folder)


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
