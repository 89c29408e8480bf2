"""Structured logs on stderr: a line per decision that acts, per outcome, per failure, per pass with nothing to do.

The daemon and the functions write them always. A command writes them when `$GPUFLEET_LOG` asks for it: what it prints
says the same to people. The fields are in `docs/run-modes.md` ("Logs"); the node agent writes the same ones.
"""

import os
import sys
import uuid
from collections.abc import MutableMapping
from typing import Any, Final

from app.errors import AppError, ErrorCode
from gpufleet.domain.printable import printable
from gpufleet.domain.secrets import redacted
from watchdogs.ports import SILENT, Log

VARIABLE: Final = "GPUFLEET_LOG"
FORMS: Final = ("json", "text")
_FIRST: Final = ("at", "level", "event")
"""Fields that begin a line."""


def configure(*, always: bool = False) -> None:
    """Set up the logs of this process. Raises AppError when `$GPUFLEET_LOG` is neither `json` nor `text`.

    Without the variable: JSON, or text at a terminal, if `always`; else nothing is logged.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted and wanted not in FORMS:
        raise AppError(f"{VARIABLE}={wanted}: write one of {', '.join(FORMS)}", ErrorCode.WRONG_USE)
    if not wanted and not always:
        return
    import structlog  # commands that log nothing do not wait for it

    text = wanted == "text" or (not wanted and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            _in_order,
            structlog.dev.ConsoleRenderer(timestamp_key="at", colors=sys.stderr.isatty(), sort_keys=False)
            if text
            else structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ],
        logger_factory=_Lines,
    )


def of_pass(environment: str, watchdog: str) -> Log:
    """The log of one pass, with an id of its own; silent where `configure` set up none."""
    structlog = sys.modules.get("structlog")
    if structlog is None or not structlog.is_configured():
        return SILENT
    return structlog.get_logger().bind(pass_id=uuid.uuid4().hex[:12], environment=environment, watchdog=watchdog)


def _in_order(_: Any, __: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Time, level and event first. A field without a value is left out; none holds a secret or steers a terminal."""
    first = {name: fields.pop(name) for name in _FIRST if name in fields}
    found = {name: value for name, value in {**first, **fields}.items() if value is not None}
    return {name: printable(redacted(value)) if isinstance(value, str) else value for name, value in found.items()}


class _Lines:
    """Writes to stderr. A log that cannot be written fails no pass: the ledger has what was done."""

    def __init__(self, *_: Any) -> None:
        pass

    def msg(self, line: str) -> None:
        try:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # a full disk; a stream that is closed
            pass

    info = warning = error = msg
