"""Faults of a machine: files in its root that the simulated engine, exporter and others check."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.2
FAULTS: Final = {
    "exporter": "the simulated DCGM exporter stops answering; engine and agent continue",
    "exporter-frozen": "it returns the same values again and again",
    "exporter-blank": "it returns DCGM's sentinels for `no value`",
    "xid": "it reports this XID error (a number)",
    "gpus": "it reports this many GPUs (a number)",
    "gpu-active": "it reports this activity (a number from 0 to 1)",
    "ecc": "it reports this many double-bit errors (a number)",
    "engine-hang": "the simulated engine accepts connections and answers nothing",
    "engine-crash": "the simulated engine ends with an error",
    "agent": "the node agent is stopped (SIGSTOP)",
    "metadata": "the metadata service accepts connections and answers nothing",
}
NUMBERED: Final = frozenset({"xid", "gpus", "gpu-active", "ecc"})
"""Faults whose file holds a number."""

FAULT_FOLDER: Final = "run/faults"
"""Inside a machine's private root; a file of the fault's name means that it is on."""


class Faults:
    """The faults that are on, per instance."""

    def __init__(self, machines: Path) -> None:
        self._machines = machines

    def _folder(self, instance: str) -> Path:
        return self._machines / instance / FAULT_FOLDER

    def add(self, instance: str, what: str, value: float | None = None) -> None:
        """Switch one on."""
        folder = self._folder(instance)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / what).write_text("" if value is None else f"{value:g}\n", "utf-8")

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


class Silence:
    """Makes a server hang: it holds requests while the fault is on, then closes them without a response."""

    def __init__(self, is_on: Callable[[], bool]) -> None:
        self._is_on = is_on
        self._ended = threading.Event()

    def holds(self) -> bool:
        """Wait for as long as it lasts. Returns whether there was any: the request gets no answer then."""
        if not self._is_on():
            return False
        while self._is_on() and not self._ended.wait(_LOOK_S):
            pass
        return True

    def end(self) -> None:
        """Release all held requests: the server closes."""
        self._ended.set()
