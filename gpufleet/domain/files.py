"""Atomic file writes: a concurrent reader gets either the old content or the complete new one."""

import os
from pathlib import Path


def write_atomically(path: Path, body: bytes) -> None:
    """Replace or create a file. Raises OSError."""
    half_done = _half_done(path)
    half_done.write_bytes(body)
    half_done.replace(path)


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace or create a file that only its owner can read, from the first moment; at the end it gets `mode`.

    Raises OSError.
    """
    half_done = _half_done(path)
    half_done.unlink(missing_ok=True)
    with os.fdopen(os.open(half_done, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
    half_done.replace(path)


def _half_done(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
