"""The processes that the host runs: programs and Python plugins. None outlives it."""

import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

END_LIMIT_S: Final = 2.0
"""The engine waits 5 s for the host itself."""
SUPERVISED: Final = Path(__file__).with_name("supervised.py")


class Children:
    """Starts processes and ends them all at once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def start(
        self, python: str, arguments: Sequence[str], *, cwd: str | None, environment: Mapping[str, str], piped: bool
    ) -> subprocess.Popen[bytes]:
        """Run `python supervised.py ARGUMENTS`. Raises OSError when it cannot, also after `end_all`."""
        out = subprocess.PIPE if piped else None
        with self._lock:
            if self._ended:
                raise OSError("the language host is ending")
            process = subprocess.Popen(
                [python, "-u", str(SUPERVISED), *arguments],
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
            self._running.add(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Terminate the process, and kill it after a limit."""
        process.terminate()
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with self._lock:
            self._running.discard(process)

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Forget a process that ended by itself."""
        with self._lock:
            self._running.discard(process)

    def end_all(self) -> None:
        """End all processes, and start no more."""
        with self._lock:
            self._ended = True
            running = tuple(self._running)
        for process in running:
            process.terminate()
        for process in running:
            self.end(process)
