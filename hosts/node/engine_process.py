"""Start of the engine's main process and CPU time of it and its children, from the kernel: not every engine reports
them. A main process may only start others and wait for them."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from hosts.node.ports import ProcessTimes, StepError
from hosts.node.systemd import run

CONTAINER: Final = "gpufleet-engine"
_LIMIT_S: Final = 5.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_STARTED, _USER, _SYSTEM = 19, 11, 12
"""Fields of /proc/PID/stat after the command's name: start, user and system time, in clock ticks (proc(5))."""


@dataclass(slots=True, kw_only=True)
class EngineProcess:
    """The main process of the engine's container."""

    proc: Path = Path("/proc")
    _pid: int | None = field(default=None, init=False)
    _ticks: int | None = field(default=None, init=False)
    """Start of the process in clock ticks since boot: identifies it together with its number."""
    _started: float = field(default=0.0, init=False)
    """Computed once for a process: the kernel's boot time moves when the clock is set."""

    def times(self) -> ProcessTimes | None:
        """Return its times; None if it does not run or cannot be read."""
        ticks, cpu_s = self._read()
        if ticks is None or ticks != self._ticks:
            # the container restarted, or the number is used again
            self._pid = self._find()
            self._ticks, cpu_s = self._read()
            self._started = self._start_time()
        return None if self._ticks is None or not self._started else ProcessTimes(started=self._started, cpu_s=cpu_s)

    def _find(self) -> int | None:
        try:
            described: Any = json.loads(run(["docker", "inspect", CONTAINER], _LIMIT_S))
            pid = cast("dict[str, Any]", described[0])["State"]["Pid"]
        except (StepError, ValueError, LookupError, TypeError):
            return None
        return pid if isinstance(pid, int) and pid > 0 else None

    def _read(self) -> tuple[int | None, float]:
        """Return the start in ticks, None if the process does not exist, and the CPU time in seconds."""
        if self._pid is None:
            return None, 0.0
        try:
            started, ticks = self._stat(str(self._pid))
        except (OSError, ValueError, IndexError):
            return None, 0.0
        return started, (ticks + sum(self._of_children(self._pid))) / _TICKS_PER_S

    def _stat(self, pid: str) -> tuple[int, int]:
        """Return start and CPU time of a process in ticks. Raises OSError, ValueError, IndexError."""
        fields = (self.proc / pid / "stat").read_text("utf-8").rpartition(")")[2].split()
        return int(fields[_STARTED]), int(fields[_USER]) + int(fields[_SYSTEM])

    def _of_children(self, pid: int) -> Iterator[int]:
        """Yield the CPU time of each child in ticks. A child may end meanwhile."""
        for file in (self.proc / str(pid) / "task").glob("*/children"):
            with suppress(OSError):
                for child in file.read_text("utf-8").split():
                    with suppress(OSError, ValueError, IndexError):
                        yield self._stat(child)[1]

    def _start_time(self) -> float:
        """Return the start in Unix seconds; 0 if unknown."""
        try:
            lines = (self.proc / "stat").read_text("utf-8").splitlines()
            booted = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
        except (OSError, ValueError, IndexError, StopIteration):
            return 0.0
        return 0.0 if self._ticks is None else booted + self._ticks / _TICKS_PER_S
