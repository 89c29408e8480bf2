"""The logs of the control plane's processes on stderr. structlog collects the fields, `gpufleet.logs` writes each
line.

Services (daemon, router, console, functions …) always log. A command logs under systemd, or when `$GPUFLEET_LOG`
requests it; otherwise it prints messages for people. The fields and events are in `docs/logs.md`.
"""

import logging
import os
import sys
import traceback
import uuid
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from app.errors import AppError, ErrorCode
from gpufleet import logs
from gpufleet.logs import SILENT, Level, Log, LogFormat, WrongSettingError

_LEVELS: Final = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
}


def configure(component: str, *, service: bool = False) -> None:
    """Set up the logs of this process, or leave them off. Raises AppError for a variable without a valid value."""
    try:
        form = logs.wanted_form(os.environ, sys.stderr, service=service)
        least = logs.wanted_level(os.environ)
    except WrongSettingError as error:
        raise AppError(str(error), ErrorCode.WRONG_USE) from error
    if form is None:
        return
    import structlog  # imported late, so that commands without logs do not wait for it

    logs.hide_variables(os.environ)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _Renderer(component, form),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[least]),
        logger_factory=_Stderr,
    )
    logs.log_crashes(get())
    logging.captureWarnings(True)
    logging.getLogger().handlers = [_Libraries(logging.WARNING)]


def reset() -> None:
    """Turn the logs off. For tests."""
    if (structlog := sys.modules.get("structlog")) is not None:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
    logging.captureWarnings(False)
    root = logging.getLogger()
    root.handlers = [one for one in root.handlers if not isinstance(one, _Libraries)]


def is_on() -> bool:
    """Whether this process logs."""
    structlog = sys.modules.get("structlog")
    return structlog is not None and structlog.is_configured()


def get(**bound: Any) -> Log:
    """The log of this process; silent if `configure` did not set up logs."""
    return sys.modules["structlog"].get_logger(**bound) if is_on() else SILENT


@contextmanager
def of_pass(fleet: str, watchdog: str) -> Generator[Log]:
    """The log of one pass over a fleet. All other lines of the same thread have the id of the pass, too."""
    if not is_on():
        yield SILENT
        return
    import structlog

    fields = {"fleet": fleet, "watchdog": watchdog, "pass_id": uuid.uuid4().hex[:12]}
    with structlog.contextvars.bound_contextvars(**fields):
        yield get(**fields)


class _Renderer:
    """The last processor of structlog."""

    def __init__(self, component: str, form: LogFormat) -> None:
        self._component, self._form = component, form

    def __call__(self, _: Any, __: str, fields: MutableMapping[str, Any]) -> str:
        return logs.line({"time": datetime.now(UTC), "component": self._component, **fields}, self._form)


class _Stderr:
    """The output of structlog."""

    def __init__(self, *_: Any) -> None:
        pass

    def msg(self, line: str) -> None:
        logs.to_stderr(line)

    debug = info = warning = error = msg


class _Libraries(logging.Handler):
    """Writes the log records of libraries at level warning or above: their debug lines may contain secrets."""

    def emit(self, record: logging.LogRecord) -> None:
        log = get()
        write = log.error if record.levelno >= logging.ERROR else log.warning
        found = record.exc_info or (None, None, None)
        frames = "".join(traceback.format_exception(*found)) if found[1] is not None else None
        write("library", logger=record.name, detail=_message(record), error=found[1], traceback=frames)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - wrong arguments must not lose the line
        return str(record.msg)
