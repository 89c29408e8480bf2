"""Results into a file or onto stdout."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from cli.output import UserError


def write_text(text: str, out: Path | None) -> None:
    """Write to stdout, or into a file: whole or not at all. Raises UserError."""
    if out is None:
        sys.stdout.write(text)
        return
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error


def write_json(value: Any, out: Path | None) -> None:
    """One JSON document."""
    write_text(json.dumps(value, indent=2, default=str, ensure_ascii=False) + "\n", out)
