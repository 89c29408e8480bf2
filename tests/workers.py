"""How `pytest -n` distributes tests to its workers, and how the workers end when they are interrupted."""

import queue
import time
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.conftest import WHOLE_FLEETS

END_LIMIT_S: Final = 120


class OneFleetAtATime(LoadFileScheduling):
    """Gives a worker one file at a time, as `--dist loadfile` does, and all files with whole fleets to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return "whole fleets" if nodeid.startswith(WHOLE_FLEETS) else super()._split_scope(nodeid)


class CleanInterrupt:
    """Ctrl-C reaches every worker: lets them stop the servers of their tests before xdist kills them, 10 s later.

    A second Ctrl-C does not wait.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._running = set[object]()

    def pytest_testnodeready(self, node: object) -> None:
        self._running.add(node)

    def pytest_testnodedown(self, node: object) -> None:
        self._running.discard(node)

    def pytest_keyboard_interrupt(self) -> None:
        session: Any = self._config.pluginmanager.getplugin("dsession")
        end = time.monotonic() + END_LIMIT_S
        while self._running and time.monotonic() < end:
            try:
                name, about = session.queue.get(timeout=1)
            except queue.Empty:
                continue
            if name in ("workerfinished", "errordown"):
                self._running.discard(about["node"])
