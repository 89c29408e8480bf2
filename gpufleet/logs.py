"""Log lines: one event per line, as JSON for programs or as text for a terminal.

Uses only the standard library, because the node agent contains this module. The control plane's logs
(`app/logs.py`) use it too, so that all processes write the same fields, hide the same secrets and handle hostile
values. `gpufleet/log_fields.py` and `docs/logs.md` describe the fields.
"""

import json
import math
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from enum import Enum, StrEnum
from types import TracebackType
from typing import Any, Final, Protocol, TextIO, TypeGuard
from urllib.parse import quote

from gpufleet.domain.clocks import rfc3339
from gpufleet.domain.parsed import is_map
from gpufleet.domain.printable import in_json, printable
from gpufleet.domain.secrets import names_secret, redacted

FORM_VARIABLE: Final = "GPUFLEET_LOG"
LEVEL_VARIABLE: Final = "GPUFLEET_LOG_LEVEL"
HIDDEN: Final = "(secret)"
LONGEST_TEXT: Final = 2000
"""Maximum characters of one value. Text from a client or a cloud must not fill a disk."""
LONGEST_LINE: Final = 24_000
"""Maximum characters of a line. journald splits lines of 48 KiB."""
_MARGIN: Final = 4000
"""Characters beyond the limit that are searched too: a secret can start before the limit and end after it."""
_SHORTEST_SECRET: Final = 4
_MAX_ITEMS: Final = 20
_DEPTH: Final = 3
_FRAMES: Final = 8
"""Number of innermost frames of a traceback."""
_HEAD: Final = ("time", "level", "component", "event")
_FIRST: Final = (*_HEAD, "fleet", "watchdog", "pass_id", "pool", "resource")


class LogFormat(StrEnum):
    """The format of lines."""

    JSON = "json"
    TEXT = "text"


class Level(StrEnum):
    """The importance of a line, in ascending order."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Log(Protocol):
    """Writes log lines. `event` is a code; the other fields describe it. Never raises."""

    def debug(self, event: str, **fields: Any) -> Any: ...

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...

    def error(self, event: str, **fields: Any) -> Any: ...


class _Silent:
    """Writes nothing."""

    def info(self, event: str, **fields: Any) -> None:
        pass

    debug = warning = error = info


SILENT: Final = _Silent()


class WrongSettingError(ValueError):
    """An environment variable has an invalid value. The message names it."""


def wanted_form(environ: Mapping[str, str], stream: TextIO, *, service: bool) -> LogFormat | None:
    """Return the format for logs to `stream`; None for no logs. `service`: False for an interactive command.

    Raises WrongSettingError.
    """
    if given := environ.get(FORM_VARIABLE, ""):
        if given not in (*LogFormat,):
            raise WrongSettingError(f"`{FORM_VARIABLE}`: expected json or text, got {given!r}")
        return LogFormat(given)
    if is_journal(stream, environ):
        return LogFormat.JSON
    if not service:
        return None
    return LogFormat.TEXT if _is_terminal(stream) else LogFormat.JSON


def wanted_level(environ: Mapping[str, str]) -> Level:
    """Return the lowest level that is written. Raises WrongSettingError."""
    given = environ.get(LEVEL_VARIABLE, "") or Level.INFO
    if given not in (*Level,):
        raise WrongSettingError(f"`{LEVEL_VARIABLE}`: expected one of {', '.join(Level)}, got {given!r}")
    return Level(given)


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether `stream` is systemd's journal. JOURNAL_STREAM alone proves nothing: children inherit it."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # the stream is closed
        return False


# Secrets, hidden by value.


class _Hidden:
    """The known secrets of this process, longest first, because one can be part of another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.values: tuple[str, ...] = ()

    def add(self, secrets: Iterable[str]) -> None:
        with self._lock:
            found = {form for secret in secrets for form in _forms_of(secret)} | {*self.values}
            self.values = tuple(sorted(found, key=len, reverse=True))

    def clear(self) -> None:
        with self._lock:
            self.values = ()


_HIDDEN: Final = _Hidden()


def hide(*secrets: str) -> None:
    """Hide these values in all later lines of this process."""
    _HIDDEN.add(secrets)


def hide_variables(environ: Mapping[str, str]) -> None:
    """Hide the values of environment variables with a name for secrets. File paths are not secret."""
    found = [value for name, value in environ.items() if _VARIABLE.search(name) and not value.startswith("/")]
    _HIDDEN.add(value for value in found if len(value) >= 8)


def forget() -> None:
    """Clear the hidden values. Only for tests: a process hides its secrets until it ends."""
    _HIDDEN.clear()


_VARIABLE: Final = re.compile(r"(?i)(?:token|secret|passw(?:or)?d|credentials?|(?<!public_)key|webhook(?:_url)?)$")


def _forms_of(secret: str) -> set[str]:
    """Return the forms of a secret in text: URL-quoted, escaped for Python or JSON, and lines of a long secret."""
    stripped = secret.strip()
    if len(stripped) < _SHORTEST_SECRET:
        return set()
    lines = [line.strip() for line in stripped.splitlines()]
    found = {secret, stripped, quote(stripped, safe=""), repr(stripped)[1:-1], json.dumps(stripped)[1:-1]}
    # Exclude the header and footer of a PEM file: they are needed to detect other private keys.
    return found | {line for line in lines if len(line) >= 16 and not line.startswith("-----")}


# Values.


def clean(text: str, longest: int = LONGEST_TEXT) -> str:
    """Remove secrets, invalid characters and terminal control characters; return at most `longest` characters."""
    cut = text[: longest + _MARGIN]
    for secret in _HIDDEN.values:
        cut = cut.replace(secret, HIDDEN)
    cut = printable(redacted(_SURROGATES.sub("\ufffd", cut)))
    return cut if len(cut) <= longest else f"{cut[: longest - 1]}…"


_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_LINE_ENDS: Final = re.compile("[\x85\u2028\u2029]")


def _plain(value: Any, longest: int, depth: int = _DEPTH) -> Any:
    """Convert a value to a type that JSON supports."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, longest, depth)
    if isinstance(value, int):
        return int(value) if abs(value) < 2**63 else f"(an integer of {value.bit_length()} bits)"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return clean(str.__str__(value), longest)
    return _plain_object(value, longest, depth)


def _plain_object(value: Any, longest: int, depth: int) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return round(value.total_seconds(), 3)
    if isinstance(value, bytes):
        return clean(value[: longest + _MARGIN].decode(errors="replace"), longest)
    if depth > 0 and is_map(value):
        return _plain_map(value, longest, depth)
    if depth > 0 and _is_sequence(value):
        some = [_plain(one, longest, depth - 1) for one, _ in zip(value, range(_MAX_ITEMS), strict=False)]
        return some if len(value) <= _MAX_ITEMS else [*some, f"… {len(value) - _MAX_ITEMS} more"]
    if isinstance(value, BaseException):
        return clean(str(value) or repr(value), longest)
    return clean(str(value), longest)


def _is_sequence(value: object) -> TypeGuard[Collection[Any]]:
    return isinstance(value, list | tuple | set | frozenset)


def _plain_map(value: Mapping[Any, Any], longest: int, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, one in value.items():
        key = clean(str(name), 100)
        if len(found) == _MAX_ITEMS:
            found["…"] = f"{len(value) - _MAX_ITEMS} more"
            break
        found[key] = HIDDEN if names_secret(key) else _plain(one, longest, depth - 1)
    return found


def _safely(value: Any, longest: int) -> Any:
    """Convert a value for a line. No object can prevent the line."""
    try:
        return _plain(value, longest)
    except Exception as error:  # noqa: BLE001 - a hostile or broken __str__ can raise anything
        return f"(a {type(value).__name__[:100]} that cannot be shown: {type(error).__name__[:100]})"


def elapsed_s(begun: float) -> float:
    """Return the seconds since `begun` on the monotonic clock, rounded for a line."""
    return round(time.monotonic() - begun, 3)


# Lines.


def line(fields: Mapping[str, Any], form: LogFormat) -> str:
    """Return one line without a line end. Fields without a value are omitted."""
    for longest in (LONGEST_TEXT, 200, 20):
        found = {name: _safely(value, longest) for name, value in _ordered(fields).items()}
        shown = _json(found) if form is LogFormat.JSON else _text(found)
        if len(shown) <= LONGEST_LINE:
            return shown
    found = {name: _safely(fields.get(name), 20) for name in _HEAD} | {"error": "the line was too long"}
    return _json(found) if form is LogFormat.JSON else _text(found)


def _ordered(fields: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if value is not None}
    return {name: given[name] for name in _FIRST if name in given} | {
        name: HIDDEN if names_secret(name) else value for name, value in given.items() if name not in _FIRST
    }


def _json(fields: Mapping[str, Any]) -> str:
    # ASCII: any stream encoding accepts it, and it contains no other line separators.
    return json.dumps(fields, allow_nan=False)


def _text(fields: Mapping[str, Any]) -> str:
    """Format `TIME LEVEL component event outcome: detail  name=value …`; an indented traceback follows."""
    rest = {name: value for name, value in fields.items() if name not in (*_HEAD, "outcome", "detail", "traceback")}
    head = f"{fields.get('time', '')} {str(fields.get('level', '')).upper():7}"
    what = " ".join(_one_line(str(fields[name])) for name in ("component", "event", "outcome") if name in fields)
    detail = f": {_one_line(str(fields['detail']))}" if "detail" in fields else ""
    shown = "".join(f" {name}={_quoted(value)}" for name, value in rest.items())
    first = f"{head} {what}{detail}{' ' if shown else ''}{shown}"
    return "\n    ".join([first, *(_one_line(one) for one in str(fields.get("traceback", "")).splitlines())])


def _one_line(text: str) -> str:
    return text if _BARE_DETAIL.fullmatch(text) else _in_quotes(text)


def _quoted(value: Any) -> str:
    if isinstance(value, str):
        return value if _BARE_VALUE.fullmatch(value) else _in_quotes(value)
    return _in_quotes(value)


def _in_quotes(value: Any) -> str:
    return _LINE_ENDS.sub(lambda found: f"\\u{ord(found[0]):04x}", in_json(json.dumps(value, ensure_ascii=False)))


_BARE_DETAIL: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*")
_BARE_VALUE: Final = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def to_stderr(text: str) -> None:
    """Write a line to stderr. Ignore errors such as a full disk or a closed stream; escape unsupported characters."""
    try:
        stream = sys.stderr
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError, AttributeError):
        pass


class LineLog:
    """A log that uses only the standard library. All lines contain its bound fields. Thread-safe."""

    def __init__(
        self,
        *,
        component: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        write: Callable[[str], None] = to_stderr,
        form: LogFormat = LogFormat.JSON,
        least: Level = Level.INFO,
        **bound: Any,
    ) -> None:
        self._now, self._write, self._form = now, write, form
        self._written = (*Level,)[(*Level,).index(least) :]
        self._bound = {"component": component, **bound}
        self._lock = threading.Lock()

    def debug(self, event: str, **fields: Any) -> None:
        self._add(Level.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._add(Level.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._add(Level.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._add(Level.ERROR, event, fields)

    def _add(self, level: Level, event: str, fields: dict[str, Any]) -> None:
        if level not in self._written:
            return
        shown = line({**self._bound, **fields, "time": self._now(), "level": level, "event": event}, self._form)
        with self._lock:
            self._write(shown)


def log_change(log: Log, part: str, before: str | None, now: str | None) -> None:
    """Log when a part's problem begins, changes or ends. None or empty text means that there is no problem."""
    if now and now != before:
        log.warning("problem", part=part, outcome="begun", error=now)
    elif before and not now:
        log.info("problem", part=part, outcome="over")


def log_crashes(log: Log) -> None:
    """Log each unhandled exception of any thread as one line."""

    def crashed(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt | SystemExit):
            return
        frames = "".join(traceback.format_exception(kind, error, trace, limit=-_FRAMES))
        log.error("crash", error=f"{kind.__name__}: {error}", traceback=frames)

    sys.excepthook = crashed
    threading.excepthook = lambda found: crashed(found.exc_type, found.exc_value, found.exc_traceback)


def from_environment(component: str, **more: Any) -> LineLog:
    """Return the log of a service without dependencies. Ignore an invalid setting: it must not stop the service."""
    hide_variables(os.environ)
    try:
        form = wanted_form(os.environ, sys.stderr, service=True) or LogFormat.JSON
        least = wanted_level(os.environ)
    except WrongSettingError as error:
        form, least = LogFormat.JSON, Level.INFO
        to_stderr(line({"time": datetime.now(UTC), "level": Level.WARNING, "component": component,
                        "event": "setting", "error": error}, form))  # fmt: skip
    return LineLog(component=component, form=form, least=least, **more)
