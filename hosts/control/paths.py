"""Where things lie on a control host, and whose they are. `root` is `/` on a real machine."""

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
"""What names a release; matched as a whole."""


class User(StrEnum):
    """The Unix users of a control host, one for each service; each has a group of its name."""

    ROUTER = "gpufleet-router"
    PROMETHEUS = "gpufleet-prometheus"
    ALERTMANAGER = "gpufleet-alertmanager"
    CONSOLE = "gpufleet-console"
    WATCH = "gpufleet-watch"
    """The watchdogs, and what speaks with the cloud for the other services: it alone reaches instance metadata."""

    @property
    def folder(self) -> str:
        """Its folder on the volume."""
        return self.removeprefix("gpufleet-")


LEDGER_GROUP: Final = "gpufleet-ledger"
"""Of those who write a ledger that is a file: watchdogs and console."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders and files of one control host."""

    root: Path = Path("/")

    @property
    def emulated(self) -> bool:
        """Whether this is a machine of the embedded cloud, where one user is everybody."""
        return bool(self.root.parts[1:])

    @property
    def settings(self) -> Path:
        return self.root / SETTINGS

    @property
    def data(self) -> Path:
        """Where the volume that outlives the machine is mounted. Root's; services have folders of their own in it."""
        return self.root / DATA

    @property
    def releases(self) -> Path:
        """One folder for each bundle, named by its digest."""
        return self.root / RELEASES

    @property
    def current(self) -> Path:
        """Link to the release that runs."""
        return self.root / CURRENT

    @property
    def host(self) -> Path:
        """What root obeys or keeps to itself: nobody else reads or writes it."""
        return self.data / "host"

    @property
    def ledger(self) -> Path:
        """In a folder that watchdogs and console write: SQLite makes files beside it."""
        return self.data / "ledger" / "ledger.db"

    @property
    def ledger_link(self) -> Path:
        """Leads to the ledger: fleet documents name it here."""
        return self.data / "ledger.db"

    @property
    def monitoring(self) -> Path:
        """Configuration of Prometheus, Alertmanager and Grafana; root writes it, no secret is in it."""
        return self.data / "monitoring"

    @property
    def token(self) -> Path:
        """The console's access token, made on the volume: a new machine keeps it."""
        return self.host / "console.token"

    @property
    def own_secrets(self) -> Path:
        """Variables that people wrote by hand; they win over the settings' secrets."""
        return self.host / "secrets.env"

    @property
    def chosen(self) -> Path:
        """Which release runs, on the volume: a new machine takes it up, whatever its boot data were made with."""
        return self.host / "release.json"

    @property
    def change(self) -> Path:
        """A change of releases that goes on, or was cut off; on the volume, as it concerns the ledger there."""
        return self.host / "change.json"

    @property
    def change_lock(self) -> Path:
        return self.host / "change.lock"

    @property
    def ledger_copy(self) -> Path:
        """The ledger as it was before the last change of releases."""
        return self.host / "ledger.before-upgrade.db"

    @property
    def run(self) -> Path:
        """In memory: gone with the machine, written again at its boot."""
        return self.root / "run/gpu-fleet"

    @property
    def feed(self) -> Path:
        """What the watchdogs' user read of the cloud, for the services that have no credentials."""
        return self.run / "feed"

    def state(self, user: User) -> Path:
        """A service's folder on the volume; nobody else enters it."""
        return self.data / user.folder

    def secrets(self, user: User) -> Path:
        """Variables with secrets of one user's services; systemd reads it as root."""
        return self.run / "secrets" / f"{user.folder}.env"

    def token_for(self, user: User) -> Path:
        """The console's access token, as the console and Alertmanager read it."""
        return self.run / user.folder / "console.token"

    def release(self, sha256: str) -> Path:
        """Its folder. Raises ValueError for what is not the digest of a bundle."""
        if not SHA256.fullmatch(sha256):
            raise ValueError(f"{sha256!r} is not a sha256 of 64 hexadecimal digits")
        return self.releases / sha256
