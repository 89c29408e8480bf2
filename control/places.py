"""Where things lie on a control host. `root` is empty on a real machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SETTINGS: Final = "etc/gpu-fleet/control.json"
DATA: Final = "var/lib/gpu-fleet"
RELEASES: Final = "opt/gpu-fleet/releases"
CURRENT: Final = "opt/gpu-fleet/current"
COMMAND: Final = "bin/gpufleet"
USER: Final = "gpufleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders and files of one control host."""

    root: Path = Path("/")

    @property
    def settings(self) -> Path:
        return self.root / SETTINGS

    @property
    def data(self) -> Path:
        """Where the volume that outlives the machine is mounted."""
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
    def ledger(self) -> Path:
        return self.data / "ledger.db"

    @property
    def monitoring(self) -> Path:
        """Configuration of Prometheus, Alertmanager and Grafana."""
        return self.data / "monitoring"

    @property
    def token(self) -> Path:
        """The console's access token, made on the volume: a new machine keeps it."""
        return self.data / "console.token"

    @property
    def secrets(self) -> Path:
        """Values of secrets for the services, in memory alone: gone with the machine, read again at its boot."""
        return self.root / "run/gpu-fleet/secrets.env"

    @property
    def chosen(self) -> Path:
        """Which release runs, on the volume: a new machine takes it up, whatever its boot data were made with."""
        return self.data / "release.json"

    @property
    def change(self) -> Path:
        """A change of releases that goes on, or was cut off; on the volume, as it concerns the ledger there."""
        return self.data / "change.json"

    @property
    def change_lock(self) -> Path:
        return self.data / "change.lock"

    @property
    def ledger_copy(self) -> Path:
        """The ledger as it was before the last change of releases."""
        return self.data / "ledger.before-upgrade.db"

    def release(self, sha256: str) -> Path:
        return self.releases / sha256
