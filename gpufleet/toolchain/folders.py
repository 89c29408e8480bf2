"""Paths: the clone, its `.local/`, and the tool cache outside the work tree. Uses only the standard library."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PULUMI_VERSION: Final = "3.259.0"
ROOT: Final = Path(__file__).resolve().parents[2]
"""The clone that contains this file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The folders of one clone and of the cache that clones share."""

    root: Path
    cache: Path

    @property
    def local(self) -> Path:
        """Folder of all local state; `make clean` removes it."""
        return self.root / ".local"

    @property
    def python(self) -> Path:
        return self.root / ".venv" / "bin" / "python"

    @property
    def pulumi_folder(self) -> Path:
        """Folder in which `make setup` installs the Pulumi CLI, as `bin/pulumi`."""
        return self.cache / "pulumi" / PULUMI_VERSION

    @property
    def tools(self) -> Path:
        """Folder of cached commands that other programs search on PATH (uv)."""
        return self.cache / "bin"

    @property
    def cloud(self) -> Path:
        """State of the embedded cloud."""
        return self.local / "cloud"

    @property
    def machines(self) -> Path:
        """Folder with a private root for each emulated instance."""
        return self.local / "machines"

    @property
    def pulumi_home(self) -> Path:
        return self.local / "pulumi" / "home"

    @property
    def pulumi_state(self) -> Path:
        return self.local / "pulumi" / "state"

    @property
    def run(self) -> Path:
        """Process records and locks."""
        return self.local / "run"

    @property
    def logs(self) -> Path:
        return self.local / "logs"

    @property
    def control(self) -> Path:
        """Data of the control host: Prometheus' data, HAProxy's files, the ledger."""
        return self.local / "control"

    @property
    def order_key(self) -> Path:
        """Public key for orders to the agents of the embedded environment."""
        return self.control / "order-key.pub"

    @property
    def models(self) -> Path:
        return self.local / "models"


def find_folders(environment: Mapping[str, str], root: Path = ROOT) -> Folders:
    """Return the folders of the clone at `root`. The cache is the first that is set of `$GPUFLEET_CACHE`,
    `$XDG_CACHE_HOME/gpu-fleet` and `~/.cache/gpu-fleet`; if it is not writable, `.local/cache` of the clone."""
    if chosen := environment.get("GPUFLEET_CACHE"):
        candidate = Path(chosen).expanduser().absolute()
    elif xdg := environment.get("XDG_CACHE_HOME"):
        candidate = Path(xdg).absolute() / "gpu-fleet"
    else:
        home = environment.get("HOME")
        candidate = Path(home or "/nonexistent") / ".cache" / "gpu-fleet"
    return Folders(root=root, cache=candidate if _writable(candidate) else root / ".local" / "cache")


def _writable(folder: Path) -> bool:
    # os.access returns True for root on a read-only file system, so write a file.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
