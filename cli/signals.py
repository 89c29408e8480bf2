"""Handles stop signals for commands that run until they are stopped."""

import os
import signal
import threading
from types import FrameType


def on_signals(*, second_ends: bool = False) -> threading.Event:
    """An event that SIGTERM or SIGINT sets. With `second_ends`, a second signal ends the process immediately."""
    stop = threading.Event()

    def received(number: int, frame: FrameType | None) -> None:
        if second_ends and stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, received)
    return stop
