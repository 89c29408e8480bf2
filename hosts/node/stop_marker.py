"""The file that says that the engine is stopped: systemd writes it before it signals the engine."""

from contextlib import suppress
from pathlib import Path

from serving import engine as engines


def place(root: Path) -> Path:
    """Where it lies on a machine whose files begin at `root`."""
    return root / engines.STOPPING_FILE.relative_to("/")


def mark(root: Path) -> None:
    """Say that no router sends requests any more, so that the engine's unit does not wait for that once more."""
    # without the file the unit waits: later, and no harm
    with suppress(OSError):
        place(root).touch()
