"""Structured logs of the agent: a JSON line per event on stderr, for the journal. Fields: docs/contracts.md."""

import json
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from gpufleet.domain.secrets import redacted
from hosts.node.ports import StoppedError

HIDDEN: Final = "(secret)"
_LONGEST: Final = 500
"""Characters of a field: what a client or a program wrote must not fill the journal."""


def _to_stderr(line: str) -> None:
    # a log that cannot be written must not keep the instance from serving or draining
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class NodeLog:
    """Lines with the fields of one instance. Safe to use from many threads."""

    def __init__(
        self, *, now: Callable[[], datetime], write: Callable[[str], None] = _to_stderr, **instance: str
    ) -> None:
        self._now, self._write, self._instance = now, write, instance
        self._secrets: set[str] = set()
        self._lock = threading.Lock()

    def hide(self, *secrets: str) -> None:
        """Keep these out of every line from now on."""
        with self._lock:
            self._secrets |= {secret for secret in secrets if secret}

    def info(self, event: str, **fields: Any) -> None:
        self._line("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._line("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._line("error", event, fields)

    @contextmanager
    def timed(self, event: str, **fields: Any) -> Generator[dict[str, Any]]:
        """One line when the block ends: how long it took, and whether it is done, stopped by a drain or failed.

        More fields can be added to what it gives.
        """
        began = time.monotonic()
        try:
            yield fields
        except Exception as error:
            stopped = isinstance(error, StoppedError)
            write, outcome = (self.info, "stopped") if stopped else (self.error, "failed")
            why = None if stopped else str(error) or repr(error)
            write(event, **fields, duration_s=_since(began), outcome=outcome, error=why)
            raise
        self.info(event, **fields, duration_s=_since(began), outcome="done")

    def _line(self, level: str, event: str, fields: dict[str, Any]) -> None:
        at = self._now().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        with self._lock:
            # the longest first: one secret may be a part of another
            secrets = sorted(self._secrets, key=len, reverse=True)
            given = {key: _clean(value, secrets) for key, value in (self._instance | fields).items()}
            line = {"at": at, "level": level, "event": event} | {k: v for k, v in given.items() if v is not None}
            self._write(json.dumps(line))


def _clean(value: Any, secrets: list[str]) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value.astimezone(UTC).isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return redacted(text)[:_LONGEST]


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
