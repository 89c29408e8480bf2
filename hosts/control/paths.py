"""Paths and users of a control host. `root` is `/` on a real machine."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

SETTINGS: Final = "etc/gpu-fleet/control.json"
DATA: Final = "var/lib/gpu-fleet"
RELEASES: Final = "opt/gpu-fleet/releases"
CURRENT: Final = "opt/gpu-fleet/current"
COMMAND: Final = "bin/gpufleet"
SHA256: Final = re.compile(r"[0-9a-f]{64}")
"""The name of a release. Use it with `fullmatch`."""


class User(StrEnum):
    """The Unix users of a control host, one per service. Each has a group of the same name."""

    ROUTER = "gpufleet-router"
    PROMETHEUS = "gpufleet-prometheus"
    ALERTMANAGER = "gpufleet-alertmanager"
    CONSOLE = "gpufleet-console"
    WATCH = "gpufleet-watch"
    """Runs the watchdogs, and the service that calls the cloud for others. Only it reaches instance metadata."""

    @property
    def folder(self) -> str:
        """Name of the user's folder on the volume."""
        return self.removeprefix("gpufleet-")


LEDGER_GROUP: Final = "gpufleet-ledger"
"""Group of the users that write a ledger file: watchdogs and console."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """The folders and files of one control host."""

    root: Path = Path("/")

    @property
    def emulated(self) -> bool:
        """Whether this is a machine of the embedded cloud, where one user runs all services."""
        return bool(self.root.parts[1:])

    @property
    def settings(self) -> Path:
        return self.root / SETTINGS

    @property
    def data(self) -> Path:
        """Mount point of the volume that outlives the machine. Root owns it; each service has a folder in it."""
        return self.root / DATA

    @property
    def releases(self) -> Path:
        """Folder with one folder per bundle, named by its digest."""
        return self.root / RELEASES

    @property
    def current(self) -> Path:
        """Link to the current release."""
        return self.root / CURRENT

    @property
    def host(self) -> Path:
        """Folder of files that root trusts or keeps secret. No other user can read or write it."""
        return self.data / "host"

    @property
    def ledger(self) -> Path:
        """The ledger, in a folder that watchdogs and console can write: SQLite creates side files there."""
        return self.data / "ledger" / "ledger.db"

    @property
    def ledger_link(self) -> Path:
        """Link to the ledger, at the path that fleet documents contain."""
        return self.data / "ledger.db"

    @property
    def monitoring(self) -> Path:
        """Configuration of Prometheus, Alertmanager and Grafana. Root writes it; it contains no secret."""
        return self.data / "monitoring"

    @property
    def token(self) -> Path:
        """The console's access token, created on the volume: a new machine keeps it."""
        return self.host / "console.token"

    @property
    def own_secrets(self) -> Path:
        """Environment variables that operators write by hand. They override the secrets of the settings."""
        return self.host / "secrets.env"

    @property
    def chosen(self) -> Path:
        """The chosen release, on the volume: a new machine runs it, whatever bundle its boot data contain."""
        return self.host / "release.json"

    @property
    def change(self) -> Path:
        """An unfinished or interrupted release change; on the volume, because the ledger is there."""
        return self.host / "change.json"

    @property
    def change_lock(self) -> Path:
        return self.host / "change.lock"

    @property
    def ledger_copy(self) -> Path:
        """Copy of the ledger from before the last release change."""
        return self.host / "ledger.before-upgrade.db"

    @property
    def run(self) -> Path:
        """Folder in memory: lost with the machine, written again at its boot."""
        return self.root / "run/gpu-fleet"

    @property
    def feed(self) -> Path:
        """Data that the watchdogs' user reads from the cloud, for services without credentials."""
        return self.run / "feed"

    def state(self, user: User) -> Path:
        """Return a service's folder on the volume. No other user can enter it."""
        return self.data / user.folder

    def secrets(self, user: User) -> Path:
        """Return the file of secret environment variables for a user's services. systemd reads it as root."""
        return self.run / "secrets" / f"{user.folder}.env"

    def token_for(self, user: User) -> Path:
        """Return the copy of the console's access token that this user (console or Alertmanager) reads."""
        return self.run / user.folder / "console.token"

    def release(self, sha256: str) -> Path:
        """Return the folder of a release. Raises ValueError for an invalid digest."""
        if not SHA256.fullmatch(sha256):
            raise ValueError(f"{sha256!r} is not a sha256 of 64 hexadecimal digits")
        return self.releases / sha256
