"""Prometheus' file of targets, written while a test runs."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app.targets import TargetsFile
from gpufleet.domain.model import InstanceList
from hosts.monitoring.prometheus import TARGETS_FILE


@contextmanager
def written(folder: Path, listed: Callable[[], InstanceList], environment: str) -> Iterator[None]:
    """Keep `targets.json` in the folder as the inventory is."""
    stop, file = threading.Event(), TargetsFile(folder / TARGETS_FILE)

    def keep() -> None:
        while not stop.wait(0.5):
            with contextlib.suppress(OSError):
                file.write(listed(), environment)

    thread = threading.Thread(target=keep, name="targets", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
