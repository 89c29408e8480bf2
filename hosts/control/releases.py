"""Releases of the control host's software: beside each other in folders, one of them current, and the way back.

A release is a bundle, unpacked in a folder that its digest names; the link `current` says which one runs. A new one
is staged beside, tried on a copy of the ledger, and only then made current; when the machine is not well with it, the
old one is made current again, with the ledger as it was if the new one had changed its tables.
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
from hosts.control.paths import COMMAND, SHA256, Places

VERSION: Final = 1


class ReleaseError(Exception):
    """A release cannot be had, made current or taken back. Says which, why and what to do."""


class ReleaseBusyError(ReleaseError):
    """Another change of releases goes on."""


class HostMachine(Protocol):
    """What a change of releases does to the machine it runs on."""

    def fetch(self, sha256: str, target: Path) -> None:
        """The bundle of that digest into a file. Raises OSError."""
        ...

    def try_out(self, release: Path) -> None:
        """Whether a release could run here: its code, the fleet, a copy of the ledger. Raises ReleaseError."""
        ...

    def stop(self) -> None:
        """Stop all services and wait for their ends. Raises ReleaseError."""
        ...

    def start(self) -> None:
        """Write the units of the current release and start them. Raises ReleaseError."""
        ...

    def unwell(self) -> str | None:
        """What is wrong with the running services; None: all are well, and stayed so for a while."""
        ...

    def schema(self) -> str | None:
        """The ledger's schema; None: there is no ledger in a file. Raises ReleaseError."""
        ...

    def save_ledger(self, into: BinaryIO) -> None:
        """Write the whole ledger of a file; nothing where there is none. Raises ReleaseError."""
        ...

    def put_back_ledger(self, source: BinaryIO) -> None:
        """Replace the ledger's file. Raises ReleaseError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What `release.json` says."""

    current: str
    previous: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseChange:
    """From one release to another, as it is written down before anything is stopped."""

    before: str
    to: str
    schema: str | None
    """Of the ledger before; None: there was none."""
    wrong: str | None = None
    """Why it is taken back; None: it is not."""


def _digest(found: object) -> str:
    """A release's name out of a file. Raises ValueError."""
    if not isinstance(found, str) or not SHA256.fullmatch(found):
        raise ValueError(f"{found!r} is not a sha256 of 64 hexadecimal digits")
    return found


def _change_of(found: dict[str, Any]) -> ReleaseChange:
    """Raises KeyError, TypeError, ValueError."""
    if not all(isinstance(found[word], str | None) for word in ("schema", "wrong")):
        raise TypeError("schema and wrong are texts")
    change = ReleaseChange(**found)
    return replace(change, before=_digest(change.before), to=_digest(change.to))


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """The releases of one control host."""

    places: Places
    machine: HostMachine
    say: Callable[[str], None]

    def running(self) -> str:
        """Digest of the release that `current` leads to. Raises ReleaseError."""
        try:
            return _digest(self.places.current.readlink().name)
        except ValueError as error:
            raise ReleaseError(f"{self.places.current}: leads to no release: {error}") from error
        except OSError as error:
            raise ReleaseError(
                f"{self.places.current}: {error.strerror}: no release was installed here; its boot data do that"
            ) from error

    def chosen(self) -> Chosen | None:
        """What was chosen last on this volume; None: nothing yet. Raises ReleaseError."""
        try:
            found: Any = json.loads(root_files.read(self.places.chosen))
            if found["version"] != VERSION:
                raise ReleaseError(f"{self.places.chosen}: version {found['version']!r} is not {VERSION}")
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
        """Remember it on the volume: a machine that comes after this one takes it up."""
        body = {"version": VERSION, "current": sha256, "previous": previous, "at": now.isoformat(timespec="seconds")}
        root_files.write_durably(self.places.chosen, json.dumps(body, indent=1))

    def stage(self, sha256: str) -> Path:
        """Have a release in its folder: fetched, or there already and what its digest says. Raises ReleaseError."""
        folder = self._folder(sha256)
        if self._is_whole(folder):
            return folder
        self.places.releases.mkdir(parents=True, exist_ok=True)
        part = folder.with_name(f"{sha256}.part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(mode=0o755)
            self.machine.fetch(sha256, part / bundle.KEPT)
            bundle.unpack(sha256, part)
            if not (part / COMMAND).is_file():
                raise ReleaseError(f"bundle {sha256}: holds no {COMMAND}, so it is no control host's software")
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                self.say(f"{sha256[:12]}: its folder was not what its digest says, and is replaced")
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

    def _is_whole(self, folder: Path) -> bool:
        try:
            return bundle.is_unpacked(folder.name, folder)
        except (OSError, tarfile.TarError, bundle.BundleError):
            return False

    def link(self, sha256: str) -> None:
        """Make a staged release the current one, at one stroke."""
        part = self.places.current.with_name(".current.part")
        part.unlink(missing_ok=True)
        part.symlink_to(self._folder(sha256))
        part.replace(self.places.current)

    def upgrade(self, sha256: str, now: datetime) -> None:
        """Make another release current; back again by itself when the machine is not well. Raises ReleaseError."""
        with self._alone():
            self._settle(now)
            before = self.running()
            if sha256 == before:
                self.say(f"{sha256[:12]} runs already")
                return
            self.say(f"staging {sha256[:12]} beside {before[:12]}")
            self.machine.try_out(self.stage(sha256))
            self._change(ReleaseChange(before=before, to=sha256, schema=self.machine.schema()), now)
            self.say(f"{sha256[:12]} runs, all services are well; `gpufleet upgrade --rollback` goes back")
            self._keep_only(sha256, before)

    def rollback(self, now: datetime) -> str:
        """Make the release before the current one current again; gives its digest. Raises ReleaseError."""
        with self._alone():
            self._settle(now)
            chosen, current = self.chosen(), self.running()
            if chosen is None or chosen.previous is None or chosen.current != current:
                raise ReleaseError("no release is known to go back to: name one with --to")
            # an older release that does not know the ledger's tables says so here, before anything is stopped
            self.machine.try_out(self.stage(chosen.previous))
            self._change(ReleaseChange(before=current, to=chosen.previous, schema=self.machine.schema()), now)
            return chosen.previous

    def settle(self, now: datetime) -> bool:
        """Bring a change that was cut off (killed, power lost) to an end, services started; whether there was one.

        What began to run is finished, so that nothing it wrote is lost, or taken back when it is not well; what did
        not begin is forgotten. Raises ReleaseError, also while a change goes on.
        """
        with self._alone():
            return self._settle(now)

    def unsettled(self) -> ReleaseChange | None:
        """A change that goes on, or was cut off; None: there is none. Raises ReleaseError."""
        try:
            found: Any = json.loads(root_files.read(self.places.change))
            if found.pop("version") != VERSION:
                raise ReleaseError(f"{self.places.change}: is of another version than {VERSION}")
            return _change_of(found)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReleaseError(
                f"{self.places.change}: cannot be used: {error}: look which release and which ledger are whole "
                f"({self.places.ledger_copy} is the ledger before), then remove the file"
            ) from error

    def _change(self, change: ReleaseChange, now: datetime) -> None:
        """From one release to another, both staged. Written down first: whoever comes after a death goes on here."""
        self.places.ledger_copy.unlink(missing_ok=True)
        self._note(change)
        self.machine.stop()
        self._copy_ledger()
        self.link(change.to)
        self._finish(change, now)

    def _note(self, change: ReleaseChange) -> None:
        root_files.write_durably(self.places.change, json.dumps({"version": VERSION, **asdict(change)}))

    def _settle(self, now: datetime) -> bool:
        if (change := self.unsettled()) is None:
            return False
        chosen, words = self.chosen(), f"the change from {change.before[:12]} to {change.to[:12]} was cut off"
        if change.wrong is not None:
            self.say(f"{words} on its way back: {change.wrong}")
            self._back(change)
        elif chosen is not None and chosen.current == change.to:
            self.say(f"{words} when all was done")
            self._go_on(change.to)
        elif self.running() != change.to and self.machine.schema() == change.schema:
            self.say(f"{words} before {change.to[:12]} ran: {change.before[:12]} goes on")
            self._go_on(change.before)
        else:
            self.say(f"{words} when {change.to[:12]} had begun to run: looking whether it is well")
            self.stage(change.to)
            self.link(change.to)
            self._finish(change, now)
            self.say(f"{change.to[:12]} runs, all services are well")
        return True

    def _finish(self, change: ReleaseChange, now: datetime) -> None:
        """Start the release that is current now; when it is not well, go back and raise ReleaseError."""
        wrong = self._start()
        if wrong is None:
            self.choose(change.to, change.before, now)
            self.places.change.unlink()
            return
        self.say(f"{change.to[:12]} is not well ({wrong}): going back to {change.before[:12]}")
        change = replace(change, wrong=wrong)
        self._note(change)
        self._back(change)
        raise ReleaseError(f"{change.to[:12]} was taken back, {change.before[:12]} runs again: {wrong}")

    def _back(self, change: ReleaseChange) -> None:
        self.machine.stop()
        if self.places.ledger_copy.is_file() and self.machine.schema() != change.schema:
            self.say("the ledger's tables had been changed: it is put back as it was before")
            # the copy stays: a death here comes back
            with root_files.open_regular(self.places.ledger_copy) as copy:
                self.machine.put_back_ledger(copy)
        self._go_on(change.before)

    def _go_on(self, sha256: str) -> None:
        """Run a release that was chosen before; the change is over then, well or not."""
        self.stage(sha256)
        self.link(sha256)
        wrong = self._start()
        self.places.change.unlink()
        if wrong is not None:
            raise ReleaseError(
                f"{sha256[:12]} is current again, but not well: {wrong}: see `journalctl -u 'gpufleet-*'`"
            )

    def _start(self) -> str | None:
        try:
            self.machine.start()
        except ReleaseError as error:
            return str(error)
        return self.machine.unwell()

    def _copy_ledger(self) -> None:
        """The ledger, for the way back; whoever wrote it has ended. A copy under its name is a whole one."""
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
    def _alone(self) -> Generator[None]:
        """Nobody else changes releases meanwhile; the kernel lets go of the lock when its holder dies."""
        root_files.make_folder(self.places.host, 0o700)
        try:
            lock = root_files.open_regular(self.places.change_lock, os.O_WRONLY | os.O_CREAT)
        except OSError as error:
            raise ReleaseError(f"{self.places.change_lock}: cannot be locked: {error}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ReleaseBusyError("another change of releases goes on: wait for its end") from error
            yield

    def _keep_only(self, *digests: str) -> None:
        """Remove releases that nothing goes back to."""
        for folder in self.places.releases.iterdir():
            if folder.name not in digests:
                shutil.rmtree(folder, ignore_errors=True)
