"""Reading a lot at once without Python's search for cycles of dead objects."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def not_looked_for(*, kept: bool = False) -> Generator[None]:
    """While much is read that is kept until the end: looking for dead cycles in it takes longer than to read it.

    `kept`: all that there is now lives as long as the process, so that no later look goes through it either.
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
