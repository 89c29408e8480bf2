"""Writes results to a file or to stdout."""

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from app.errors import AppError, ErrorCode
from cli.output import ANSWER_BEGUN
from gpufleet.domain.printable import in_json, printable


def write_text(text: str, out: Path | None) -> None:
    """Write to stdout, or to a file atomically. Raises AppError."""
    write_lines((text,), out)


def write_lines(lines: Iterable[str], out: Path | None) -> None:
    """Like `write_text`, for more text than fits in memory. If the iterator raises an error, no file is left.

    A file that is replaced keeps its mode and its links.
    """
    if out is None:
        ANSWER_BEGUN.set()
        sys.stdout.writelines(map(printable, lines))
        return
    try:
        _replace(lines, out)
    except IsADirectoryError as error:
        raise AppError(f"{out} is a folder; name a file in it", ErrorCode.WRONG_USE) from error
    except OSError as error:
        raise AppError(f"{out}: cannot be written: {error.strerror or error}") from error


def _replace(lines: Iterable[str], out: Path) -> None:
    is_file = out.is_file()
    if out.exists() and not is_file:
        # a device or a pipe: a new file in its place would not reach the reader
        with out.open("w", encoding="utf-8") as file:
            file.writelines(lines)
        return
    place = Path(os.path.realpath(out)) if is_file else out
    mode = stat.S_IMODE(place.stat().st_mode) if is_file else None
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8", opener=partial(_opened, mode=mode)) as file:
            file.writelines(lines)
        part.replace(place)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _opened(path: str, flags: int, mode: int | None) -> int:
    """`mode`: of a file that is replaced, from the first byte on: a private one stays private."""
    if mode is None:
        return os.open(path, flags, 0o666)
    file = os.open(path, flags, 0o600)
    os.fchmod(file, mode)
    return file


def write_json(value: Any, out: Path | None) -> None:
    """Write one JSON document."""
    write_text(in_json(json.dumps(value, indent=2, default=str, ensure_ascii=False)) + "\n", out)
