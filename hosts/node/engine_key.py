"""The file that passes the API key to the engine's container: in memory, readable by root only."""

from pathlib import Path

from gpufleet.domain.files import write_private
from hosts.node.ports import StepError
from serving import engine_container


def key_path(root: Path) -> Path:
    """Return the path of the key file below the path prefix `root`."""
    return root / engine_container.KEY_FILE.relative_to("/")


def read_key(root: Path) -> str | None:
    """Return the key that the engine was started with; None without a readable key file."""
    try:
        _, separator, key = key_path(root).read_text("utf-8").strip().partition("=")
    except (OSError, ValueError):
        return None
    return key if separator else None


def write_key(root: Path, kind: str, key: str) -> bool:
    """Write the key file atomically. True if its content changed. Raises StepError."""
    path = key_path(root)
    text = f"{engine_container.launch_of(kind).key_variable}={key}\n"
    try:
        if path.is_file() and path.read_text("utf-8") == text:
            return False
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, text)
    except OSError as error:
        raise StepError(f"the engine's key cannot be written to {path}: {error.strerror}") from error
    return True
