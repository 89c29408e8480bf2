"""The inputs and results of the checks of `make chaos`. This module contains no decision code of the product."""

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tests.fixtures.local_token import BEARER

REGION: Final = "us-east-1"
TAKEN_BY_CLOUD: Final = "Server.SpotInstanceTermination"
ENDED_BY_US: Final = "Client.UserInitiatedShutdown"
Span = tuple[float, float]
"""Start and end, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one check, with every violation."""

    what: str
    seen: str
    """Counts, for the output."""
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The URLs and paths that the checks read."""

    cloud: str
    """URL of the emulator's API."""
    slack: str
    prometheus: str
    ledger: Path
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenGpu:
    """A fault that reports an XID error and then removes the GPUs of an instance."""

    instance: str
    error: Span
    """While the XID error was readable."""
    missing: Span
    """While the exporter responded without any GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What the run itself records: the faults that it injected and what its clients observed."""

    answered: int
    failures: Sequence[tuple[float, float, str]]
    """Start and end (seconds since 1970), and the error message."""
    kills: Sequence[Span]
    """While a process that carries requests was being killed."""
    taken: frozenset[str]
    """Instances that a fault interrupted or broke."""
    broken: Sequence[BrokenGpu] = ()
    notices: Sequence[float] = ()
    """When the cloud gave notice to a spot instance of chat."""
    dry: Sequence[Span] = ()
    """While no zone had spot capacity."""
    blind: Sequence[Span] = ()
    """While Prometheus was down: alerts of that time are unknown."""


def read(url: str) -> Any:
    """The JSON response of a URL."""
    request = urllib.request.Request(url, headers=BEARER)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def epoch(text: str) -> float:
    """A time in the format of the cloud as seconds since 1970."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def key(message: Mapping[str, Any]) -> str:
    """The deduplication key of a Slack message."""
    payload = message.get("metadata", {}).get("event_payload", {})
    return str(payload.get("key", f"without a key: {message.get('text')}"))
