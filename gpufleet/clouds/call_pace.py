"""A limit of API calls per second for several threads."""

import threading
import time
from collections.abc import Callable
from typing import Final

CALLS_PER_SECOND: Final = 10.0
"""Maximum rate of API calls to one account or project: far below the limits, which its other programs share."""


class CallPace:
    """Delays calls of several threads so that at most `rate` begin per second."""

    def __init__(
        self,
        rate: float = CALLS_PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step = 1 / rate
        self._clock, self._sleep = clock, sleep
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait until the next call may begin."""
        with self._lock:
            now = self._clock()
            turn = max(now, self._next)
            self._next = turn + self._step
        if turn > now:
            self._sleep(turn - now)
