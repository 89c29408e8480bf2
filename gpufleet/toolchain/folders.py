"""Where things lie: the clone, its `.local/`, and the cache of tools outside the work tree. Standard library only."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PULUMI_VERSION: Final = "3.259.0"
ROOT: Final = Path(__file__).resolve().parents[2]
"""The clone that this file belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The folders of one clone and the cache it shares with others."""

    root: Path
    cache: Path

    @property
    def local(self) -> Path:
        """All local state; `make clean` removes it."""
        return self.root / ".local"

    @property
    def python(self) -> Path:
        return self.root / ".venv" / "bin" / "python"

    @property
    def pulumi_folder(self) -> Path:
        """Where `make setup` puts the Pulumi CLI, with `bin/pulumi` in it."""
        return self.cache / "pulumi" / PULUMI_VERSION

    @property
    def tools(self) -> Path:
        """Commands of the cache that others look for on PATH (uv)."""
        return self.cache / "bin"

    @property
    def cloud(self) -> Path:
        """The embedded cloud's own state."""
        return self.local / "cloud"

    @property
    def machines(self) -> Path:
        """A private root for each emulated instance."""
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
        """What the control host keeps: Prometheus' data, HAProxy's files, the ledger."""
        return self.local / "control"

    @property
    def order_key(self) -> Path:
        """The public half of the key that signs orders to the embedded environment's agents."""
        return self.control / "order-key.pub"

    @property
    def models(self) -> Path:
        return self.local / "models"


def find_folders(environment: Mapping[str, str], root: Path = ROOT) -> Folders:
    """The folders of the clone at `root`. The cache is the first of these that can be written: `$GPUFLEET_CACHE`,
    `$XDG_CACHE_HOME/gpu-fleet`, `~/.cache/gpu-fleet`, and else `.local/cache` of the clone."""
    if chosen := environment.get("GPUFLEET_CACHE"):
        candidate = Path(chosen).expanduser().absolute()
    elif xdg := environment.get("XDG_CACHE_HOME"):
        candidate = Path(xdg).absolute() / "gpu-fleet"
    else:
        home = environment.get("HOME")
        candidate = Path(home or "/nonexistent") / ".cache" / "gpu-fleet"
    return Folders(root=root, cache=candidate if _writable(candidate) else root / ".local" / "cache")


def _writable(folder: Path) -> bool:
    # os.access says yes to root on a read-only file system, so write something
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
