"""Disables Python's cyclic garbage collector during bulk reads."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_paused(*, kept: bool = False) -> Generator[None]:
    """Disable the collector while many long-lived objects are read: collections would take longer than the read.

    `kept`: all current objects live as long as the process, so freeze them: later collections skip them too.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if kept:
            gc.freeze()
        if was_on:
            gc.enable()
