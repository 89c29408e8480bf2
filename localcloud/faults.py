"""Faults that people ask for: files in a machine's root, which the simulated engine, exporter and others look at."""

from pathlib import Path
from typing import Final

FAULTS: Final = {
    "exporter": "the simulated DCGM exporter stops answering; engine and agent go on",
    "engine-hang": "the simulated engine accepts connections and answers nothing",
    "engine-crash": "the simulated engine ends with an error",
    "agent": "the node agent is stopped (SIGSTOP)",
}
FAULT_FOLDER: Final = "run/faults"
"""Inside a machine's private root; a file of the fault's name means that it is on."""


class Faults:
    """Which faults are on, per instance."""

    def __init__(self, machines: Path) -> None:
        self._machines = machines

    def _folder(self, instance: str) -> Path:
        return self._machines / instance / FAULT_FOLDER

    def add(self, instance: str, what: str) -> None:
        """Switch one on."""
        folder = self._folder(instance)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / what).touch()

    def has(self, instance: str, what: str) -> bool:
        return (self._folder(instance) / what).exists()

    def of(self, instance: str) -> list[str]:
        """The faults that are on."""
        folder = self._folder(instance)
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def clear(self, instance: str | None) -> None:
        """Switch off all of one instance, or of every instance."""
        for path in self._machines.glob(f"{instance or '*'}/{FAULT_FOLDER}/*"):
            path.unlink(missing_ok=True)

    def as_json(self) -> list[dict[str, str]]:
        found = sorted(self._machines.glob(f"*/{FAULT_FOLDER}/*"))
        return [{"instance": path.parents[2].name, "what": path.name} for path in found]
