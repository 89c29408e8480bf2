"""Releases of the control host's software: staging, upgrade and rollback.

A release is a bundle, unpacked in a folder named by its digest; the link `current` selects the one that runs. A new
release is staged in its own folder, tested on a copy of the ledger, and only then made current. If a service is
unhealthy then, the old release becomes current again; the old ledger is restored if its schema had changed.
"""

import fcntl
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from hosts.control import bundle, root_files
from hosts.control.paths import COMMAND, SHA256, HostPaths

VERSION: Final = 1


class ReleaseError(Exception):
    """A release cannot be fetched, made current or rolled back. The message gives the release, reason and fix."""


class ReleaseBusyError(ReleaseError):
    """Another release change is in progress."""


class HostMachine(Protocol):
    """The operations of a release change on its machine."""

    def fetch(self, sha256: str, target: Path) -> None:
        """Download the bundle with that digest to a file. Raises OSError."""
        ...

    def try_out(self, release: Path) -> None:
        """Test a release with this fleet and a copy of the ledger. Raises ReleaseError if it cannot run here."""
        ...

    def stop(self) -> None:
        """Stop all services and wait until they have ended. Raises ReleaseError."""
        ...

    def start(self) -> None:
        """Write the systemd units of the current release and start them. Raises ReleaseError."""
        ...

    def health_problem(self) -> str | None:
        """Return what is wrong with the services; None if all are healthy and stay so for a while."""
        ...

    def schema(self) -> str | None:
        """Return the ledger's schema version; None if the ledger is not a file. Raises ReleaseError."""
        ...

    def save_ledger(self, into: BinaryIO) -> None:
        """Write the complete ledger file to `into`; nothing without a file. Raises ReleaseError."""
        ...

    def restore_ledger(self, source: BinaryIO) -> None:
        """Replace the ledger's file with `source`. Raises ReleaseError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The content of `release.json`."""

    current: str
    previous: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseChange:
    """A change between two releases. It is stored before any service is stopped."""

    before: str
    to: str
    schema: str | None
    """Schema version of the ledger before the change; None without a ledger file."""
    wrong: str | None = None
    """Why the change is rolled back; None if it is not."""


def _digest(found: object) -> str:
    """Validate a release's digest from a file. Raises ValueError."""
    if not isinstance(found, str) or not SHA256.fullmatch(found):
        raise ValueError(f"{found!r} is not a sha256 of 64 hexadecimal digits")
    return found


def _change_of(found: dict[str, Any]) -> ReleaseChange:
    """Parse a stored change. Raises KeyError, TypeError, ValueError."""
    if not all(isinstance(found[word], str | None) for word in ("schema", "wrong")):
        raise TypeError("schema, and wrong (the reason of the rollback), must be text")
    change = ReleaseChange(**found)
    return replace(change, before=_digest(change.before), to=_digest(change.to))


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """The releases of one control host."""

    places: HostPaths
    machine: HostMachine
    announce: Callable[[str], None]

    def running(self) -> str:
        """Return the digest of the release that `current` links to. Raises ReleaseError."""
        try:
            return _digest(self.places.current.readlink().name)
        except ValueError as error:
            raise ReleaseError(f"{self.places.current}: does not link to a release: {error}") from error
        except OSError as error:
            raise ReleaseError(
                f"{self.places.current}: {error.strerror}: no release is installed; the boot data install one"
            ) from error

    def chosen(self) -> Chosen | None:
        """Return the release that was last chosen on this volume; None if none was. Raises ReleaseError."""
        try:
            found: Any = json.loads(root_files.read(self.places.chosen))
            if found["version"] != VERSION:
                raise ReleaseError(f"{self.places.chosen}: version is {found['version']!r}, must be {VERSION}")
            return Chosen(
                current=_digest(found["current"]),
                previous=None if found["previous"] is None else _digest(found["previous"]),
                at=datetime.fromisoformat(found["at"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ReleaseError(f"{self.places.chosen}: cannot be used: {error}") from error

    def choose(self, sha256: str, previous: str | None, now: datetime) -> None:
        """Store the chosen release on the volume: a replacement machine runs it."""
        body = {"version": VERSION, "current": sha256, "previous": previous, "at": now.isoformat(timespec="seconds")}
        root_files.write_durably(self.places.chosen, json.dumps(body, indent=1))

    def stage(self, sha256: str) -> Path:
        """Fetch and unpack a release, unless its folder exists and matches the digest. Raises ReleaseError."""
        folder = self._folder(sha256)
        if self._is_complete(folder):
            return folder
        self.places.releases.mkdir(parents=True, exist_ok=True)
        part = folder.with_name(f"{sha256}.part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(mode=0o755)
            self.machine.fetch(sha256, part / bundle.KEPT)
            bundle.unpack(sha256, part)
            if not (part / COMMAND).is_file():
                raise ReleaseError(f"bundle {sha256}: contains no {COMMAND}, so it is not a bundle for control hosts")
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                self.announce(f"{sha256[:12]}: its folder did not match its digest and is replaced")
                shutil.rmtree(folder)
            part.replace(folder)
        except (OSError, tarfile.TarError, bundle.BundleError) as error:
            raise ReleaseError(f"bundle {sha256}: cannot be staged: {error}") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return folder

    def _folder(self, sha256: str) -> Path:
        try:
            return self.places.release(sha256)
        except ValueError as error:
            raise ReleaseError(f"no release has that name: {error}") from error

    def _is_complete(self, folder: Path) -> bool:
        try:
            return bundle.is_unpacked(folder.name, folder)
        except (OSError, tarfile.TarError, bundle.BundleError):
            return False

    def link(self, sha256: str) -> None:
        """Make a staged release the current one, atomically."""
        part = self.places.current.with_name(".current.part")
        part.unlink(missing_ok=True)
        part.symlink_to(self._folder(sha256))
        part.replace(self.places.current)

    def upgrade(self, sha256: str, now: datetime) -> None:
        """Make another release current; roll back if a service is unhealthy then. Raises ReleaseError."""
        with self._locked():
            self._complete_change(now)
            before = self.running()
            if sha256 == before:
                self.announce(f"{sha256[:12]} is already the current release")
                return
            self.announce(f"staging {sha256[:12]}; {before[:12]} keeps running")
            self.machine.try_out(self.stage(sha256))
            self._change(ReleaseChange(before=before, to=sha256, schema=self.machine.schema()), now)
            self.announce(
                f"{sha256[:12]} runs and all services are healthy; `gpufleet upgrade --rollback` reverts it"
            )
            self._remove_others(sha256, before)

    def rollback(self, now: datetime) -> str:
        """Make the previous release current again and return its digest. Raises ReleaseError."""
        with self._locked():
            self._complete_change(now)
            chosen, current = self.chosen(), self.running()
            if chosen is None or chosen.previous is None or chosen.current != current:
                raise ReleaseError("there is no previous release: select one with --to")
            # An older release that does not support the ledger's schema fails here, before any service is stopped.
            self.machine.try_out(self.stage(chosen.previous))
            self._change(ReleaseChange(before=current, to=chosen.previous, schema=self.machine.schema()), now)
            return chosen.previous

    def recover(self, now: datetime) -> bool:
        """Complete an interrupted change (killed, power lost) and start services; return whether there was one.

        If the new release had started, the change is completed, so that its writes are not lost, or rolled back if a
        service is unhealthy. If it had not started, the change is discarded. Raises ReleaseError, also while another
        change is in progress.
        """
        with self._locked():
            return self._complete_change(now)

    def pending_change(self) -> ReleaseChange | None:
        """Return the unfinished or interrupted change; None if there is none. Raises ReleaseError."""
        try:
            found: Any = json.loads(root_files.read(self.places.change))
            if (version := found.pop("version")) != VERSION:
                raise ReleaseError(f"{self.places.change}: version is {version!r}, must be {VERSION}")
            return _change_of(found)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReleaseError(
                f"{self.places.change}: cannot be used: {error}: check the current release and the ledger "
                f"({self.places.ledger_copy} is the previous ledger), then remove the file"
            ) from error

    def _change(self, change: ReleaseChange, now: datetime) -> None:
        """Change between two staged releases. The change is stored first, so that `recover` can resume it."""
        self.places.ledger_copy.unlink(missing_ok=True)
        self._store_change(change)
        self.machine.stop()
        self._copy_ledger()
        self.link(change.to)
        self._finish(change, now)

    def _store_change(self, change: ReleaseChange) -> None:
        root_files.write_durably(self.places.change, json.dumps({"version": VERSION, **asdict(change)}))

    def _complete_change(self, now: datetime) -> bool:
        if (change := self.pending_change()) is None:
            return False
        chosen, event = self.chosen(), f"the change from {change.before[:12]} to {change.to[:12]} was interrupted"
        if change.wrong is not None:
            self.announce(f"{event} during its rollback: {change.wrong}")
            self._roll_back(change)
        elif chosen is not None and chosen.current == change.to:
            self.announce(f"{event} after its last step")
            self._resume(change.to)
        elif self.running() != change.to and self.machine.schema() == change.schema:
            self.announce(f"{event} before {change.to[:12]} was started: {change.before[:12]} keeps running")
            self._resume(change.before)
        else:
            self.announce(f"{event} after {change.to[:12]} was started: checking its health")
            self.stage(change.to)
            self.link(change.to)
            self._finish(change, now)
            self.announce(f"{change.to[:12]} runs and all services are healthy")
        return True

    def _finish(self, change: ReleaseChange, now: datetime) -> None:
        """Start the current release; if a service is unhealthy, roll back and raise ReleaseError."""
        wrong = self._start()
        if wrong is None:
            self.choose(change.to, change.before, now)
            self.places.change.unlink()
            return
        self.announce(f"{change.to[:12]} is not healthy ({wrong}): rolling back to {change.before[:12]}")
        change = replace(change, wrong=wrong)
        self._store_change(change)
        self._roll_back(change)
        raise ReleaseError(f"{change.to[:12]} was rolled back to {change.before[:12]}: {wrong}")

    def _roll_back(self, change: ReleaseChange) -> None:
        self.machine.stop()
        if self.places.ledger_copy.is_file() and self.machine.schema() != change.schema:
            self.announce("the ledger's tables were changed: the previous ledger is restored")
            # Keep the copy: after an interruption here, the rollback is repeated.
            with root_files.open_regular(self.places.ledger_copy) as copy:
                self.machine.restore_ledger(copy)
        self._resume(change.before)

    def _resume(self, sha256: str) -> None:
        """Run a previously chosen release. The change ends then, even if a service is unhealthy."""
        self.stage(sha256)
        self.link(sha256)
        wrong = self._start()
        self.places.change.unlink()
        if wrong is not None:
            raise ReleaseError(
                f"{sha256[:12]} is current again, but not healthy: {wrong}: see `journalctl -u 'gpufleet-*'`"
            )

    def _start(self) -> str | None:
        try:
            self.machine.start()
        except ReleaseError as error:
            return str(error)
        return self.machine.health_problem()

    def _copy_ledger(self) -> None:
        """Copy the ledger for a rollback, after its writers have ended. A complete copy gets its final name."""
        copy = self.places.ledger_copy
        part = copy.with_name(f".{copy.name}.part")
        with root_files.create(part) as file:
            self.machine.save_ledger(file)
            file.flush()
            os.fsync(file.fileno())
        if part.stat().st_size:
            part.replace(copy)
        else:
            part.unlink()

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the lock for release changes. The kernel releases it when the process dies."""
        root_files.make_folder(self.places.host, 0o700)
        try:
            lock = root_files.open_regular(self.places.change_lock, os.O_WRONLY | os.O_CREAT)
        except OSError as error:
            raise ReleaseError(f"{self.places.change_lock}: cannot be locked: {error}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ReleaseBusyError("another release change is in progress: wait until it ends") from error
            yield

    def _remove_others(self, *digests: str) -> None:
        """Remove the releases that are not a rollback target."""
        for folder in self.places.releases.iterdir():
            if folder.name not in digests:
                shutil.rmtree(folder, ignore_errors=True)
