"""Files for their owner's eyes alone."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file whole; nobody else may read the new one, not for a moment either. Raises OSError."""
    half_done = path.with_name(f".{path.name}.part")
    half_done.unlink(missing_ok=True)
    with os.fdopen(os.open(half_done, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    half_done.replace(path)
