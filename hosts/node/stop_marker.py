"""The marker file of an engine stop: systemd writes it before it signals the engine."""

from contextlib import suppress
from pathlib import Path

from serving import engine_container


def path_of(root: Path) -> Path:
    """Return the path of the marker file below the path prefix `root`."""
    return root / engine_container.STOPPING_FILE.relative_to("/")


def mark(root: Path) -> None:
    """Mark that no router sends requests any more, so that the engine's unit does not wait for that again."""
    # Without the file the unit waits: the stop takes longer, without other harm.
    with suppress(OSError):
        path_of(root).touch()
