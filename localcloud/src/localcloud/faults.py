"""Faults of a machine: files in its root that the simulated engine, exporter and others check."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.2
EXPORTER_FAULTS: Final = {
    "exporter": "the simulated exporter of the accelerators stops answering; engine and agent continue",
    "exporter-frozen": "it returns the same values again and again",
    "exporter-blank": "it returns its values for `no measurement`, or leaves the series out",
    "exporter-reset": "its counters restart at 0, once when the fault is added: the driver or the program restarted",
    "exporter-unit": "its energy (its memory, without energy) is wrong by this factor (a number)",
    "exporter-variant": "it behaves as another release or setup does (words, of the exporter's module)",
    "slices": "the devices are divided (MIG profiles, `shared:N`, or a mode of AMD's partitions)",
    "xid": "it reports this XID error (a number)",
    "gpus": "it reports this many devices (a number)",
    "gpu-active": "it reports this activity (a number from 0 to 1, or one for each unit in order)",
    "ecc": "it reports this many double-bit errors (a number)",
}
"""Faults and properties of the accelerators, which their exporter shows."""
FAULTS: Final = {
    **EXPORTER_FAULTS,
    "engine-hang": "the simulated engine accepts connections and answers nothing",
    "engine-crash": "the simulated engine ends with an error",
    "agent": "the node agent is stopped (SIGSTOP)",
    "metadata": "the metadata service accepts connections and answers nothing",
}
NUMBERED: Final = frozenset({"xid", "gpus", "gpu-active", "ecc", "exporter-unit"})
"""Faults whose file holds a number."""
WORDED: Final = frozenset({"gpu-active", "slices", "exporter-variant"})
"""Faults whose file holds words or numbers, separated by commas."""

FAULT_FOLDER: Final = "run/faults"
"""Inside a machine's private root; a file of the fault's name means that it is on."""


class Faults:
    """The faults that are on, per instance."""

    def __init__(self, machines: Path) -> None:
        self._machines = machines

    def _folder(self, instance: str) -> Path:
        return self._machines / instance / FAULT_FOLDER

    def add(self, instance: str, what: str, value: float | str | None = None) -> None:
        """Switch one on."""
        folder = self._folder(instance)
        folder.mkdir(parents=True, exist_ok=True)
        text = value if isinstance(value, str) else "" if value is None else f"{value:g}"
        # a program that reads it meanwhile finds the whole text or none
        fresh = folder.parent / f".{what}"
        fresh.write_text(f"{text}\n", "utf-8")
        fresh.replace(folder / what)

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
