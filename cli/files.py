"""Writes results to a file or to stdout."""

import contextlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.errors import AppError
from cli.output import ANSWER_BEGUN
from gpufleet.domain.printable import in_json, printable


def write_text(text: str, out: Path | None) -> None:
    """Write to stdout, or to a file atomically. Raises AppError."""
    write_lines((text,), out)


def write_lines(lines: Iterable[str], out: Path | None) -> None:
    """Like `write_text`, for more text than fits in memory. If the iterator raises an error, no file is left."""
    if out is None:
        ANSWER_BEGUN.set()
        sys.stdout.writelines(map(printable, lines))
        return
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        if out.exists() and not out.is_file():
            part = out  # writes into a device or a pipe: a new file in its place would not reach the reader
        with part.open("w", encoding="utf-8") as file:
            file.writelines(lines)
        if part != out:
            part.replace(out)
    except OSError as error:
        raise AppError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        if part != out:
            with contextlib.suppress(OSError):
                part.unlink()


def write_json(value: Any, out: Path | None) -> None:
    """Write one JSON document."""
    write_text(in_json(json.dumps(value, indent=2, default=str, ensure_ascii=False)) + "\n", out)
