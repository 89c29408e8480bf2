"""Releases of the control host's software: beside each other in folders, one of them current, and the way back.

A release is a bundle, unpacked in a folder that its digest names; the link `current` says which one runs. A new one
is staged beside, tried on a copy of the ledger, and only then made current; when the machine is not well with it, the
old one is made current again, with the ledger as it was if the new one had changed its tables.
"""

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from control.places import COMMAND, Places

VERSION: Final = 1


class ReleaseError(Exception):
    """A release cannot be had, made current or taken back. Says which, why and what to do."""


class Machine(Protocol):
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
        """The ledger's schema; None: there is no ledger in a file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What `release.json` says."""

    current: str
    previous: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """The releases of one control host."""

    places: Places
    machine: Machine
    say: Callable[[str], None]

    def running(self) -> str:
        """Digest of the release that `current` leads to. Raises ReleaseError."""
        try:
            return self.places.current.readlink().name
        except OSError as error:
            raise ReleaseError(
                f"{self.places.current}: {error.strerror}: no release was installed here; its boot data do that"
            ) from error

    def chosen(self) -> Chosen | None:
        """What was chosen last on this volume; None: nothing yet. Raises ReleaseError."""
        try:
            found: Any = json.loads(self.places.chosen.read_text("utf-8"))
            if found["version"] != VERSION:
                raise ReleaseError(f"{self.places.chosen}: version {found['version']!r} is not {VERSION}")
            return Chosen(
                current=found["current"], previous=found["previous"], at=datetime.fromisoformat(found["at"])
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ReleaseError(f"{self.places.chosen}: cannot be used: {error}") from error

    def choose(self, sha256: str, previous: str | None, now: datetime) -> None:
        """Remember it on the volume: a machine that comes after this one takes it up."""
        body = {"version": VERSION, "current": sha256, "previous": previous, "at": now.isoformat(timespec="seconds")}
        part = self.places.chosen.with_name(".release.json.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
        part.replace(self.places.chosen)

    def stage(self, sha256: str) -> Path:
        """Have a release in its folder, fetched and verified. Raises ReleaseError."""
        folder = self.places.release(sha256)
        if (folder / COMMAND).is_file():
            return folder
        self.places.releases.mkdir(parents=True, exist_ok=True)
        archive, part = folder.with_name(f"{sha256}.tar.gz"), folder.with_name(f"{sha256}.part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            self.machine.fetch(sha256, archive)
            with archive.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != sha256:
                raise ReleaseError(f"bundle {sha256}: what was fetched has sha256 {found}: it is not used")
            with tarfile.open(archive) as packed:
                packed.extractall(part, filter="data")
            if not (part / COMMAND).is_file():
                raise ReleaseError(f"bundle {sha256}: holds no {COMMAND}, so it is no control host's software")
            part.replace(folder)
        except (OSError, tarfile.TarError) as error:
            raise ReleaseError(f"bundle {sha256}: cannot be staged: {error}") from error
        finally:
            archive.unlink(missing_ok=True)
            shutil.rmtree(part, ignore_errors=True)
        return folder

    def link(self, sha256: str) -> None:
        """Make a staged release the current one, at one stroke."""
        part = self.places.current.with_name(".current.part")
        part.unlink(missing_ok=True)
        part.symlink_to(self.places.release(sha256))
        part.replace(self.places.current)

    def upgrade(self, sha256: str, now: datetime) -> None:
        """Make another release current; back again by itself when the machine is not well. Raises ReleaseError."""
        before = self.running()
        if sha256 == before:
            self.say(f"{sha256[:12]} runs already")
            return
        self.say(f"staging {sha256[:12]} beside {before[:12]}")
        self.machine.try_out(self.stage(sha256))
        schema = self.machine.schema()
        self.machine.stop()
        copy = self._copy_ledger()
        self.link(sha256)
        wrong = self._start()
        if wrong is None:
            self.choose(sha256, before, now)
            self.say(f"{sha256[:12]} runs, all services are well; `gpufleet upgrade --rollback` goes back")
            self._keep_only(sha256, before)
            return
        self.say(f"{sha256[:12]} is not well ({wrong}): going back to {before[:12]}")
        self._back(before, copy, schema)
        raise ReleaseError(f"{sha256[:12]} was taken back, {before[:12]} runs again: {wrong}")

    def rollback(self, now: datetime) -> str:
        """Make the release before the current one current again; gives its digest. Raises ReleaseError."""
        chosen, current = self.chosen(), self.running()
        if chosen is None or chosen.previous is None or chosen.current != current:
            raise ReleaseError("no release is known to go back to: name one with --to")
        before = self.stage(chosen.previous)
        # an older release that does not know the ledger's tables says so here, before anything is stopped
        self.machine.try_out(before)
        self.machine.stop()
        self.link(chosen.previous)
        wrong = self._start()
        if wrong is not None:
            self.machine.stop()
            self.link(current)
            self._start()
            raise ReleaseError(f"{chosen.previous[:12]} is not well either ({wrong}): {current[:12]} runs again")
        self.choose(chosen.previous, current, now)
        return chosen.previous

    def _start(self) -> str | None:
        try:
            self.machine.start()
        except ReleaseError as error:
            return str(error)
        return self.machine.unwell()

    def _back(self, before: str, copy: Path | None, schema: str | None) -> None:
        self.machine.stop()
        if copy is not None and self.machine.schema() != schema:
            self.say("the ledger's tables had been changed: it is put back as it was before")
            for end in ("-wal", "-shm"):
                self.places.ledger.with_name(self.places.ledger.name + end).unlink(missing_ok=True)
            copy.replace(self.places.ledger)
        self.link(before)
        if wrong := self._start():
            raise ReleaseError(
                f"{before[:12]} is current again, but not well: {wrong}: see `journalctl -u 'gpufleet-*'`"
            )

    def _copy_ledger(self) -> Path | None:
        """The ledger beside itself; whoever wrote it has ended."""
        ledger = self.places.ledger
        if not ledger.is_file():
            return None
        import sqlite3
        from contextlib import closing

        copy = ledger.with_name("ledger.before-upgrade.db")
        copy.unlink(missing_ok=True)
        with closing(sqlite3.connect(ledger)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        owner = ledger.stat()
        os.chown(copy, owner.st_uid, owner.st_gid)
        copy.chmod(owner.st_mode & 0o777)
        return copy

    def _keep_only(self, *digests: str) -> None:
        """Remove releases that nothing goes back to."""
        for folder in self.places.releases.iterdir():
            if folder.name not in digests:
                shutil.rmtree(folder, ignore_errors=True)
