"""What the judges of `make chaos` read and what they say. Nothing of the product is imported here."""

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
"""From when until when, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One thing that must hold, and what was found where it does not."""

    what: str
    seen: str
    """Numbers, for people."""
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where to look."""

    cloud: str
    """URL of the emulator's API."""
    slack: str
    prometheus: str
    ledger: Path
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenGpu:
    """A fault that reported an XID and then took the GPUs of an instance away."""

    instance: str
    error: Span
    """While the XID could be read."""
    gone: Span
    """While the exporter answered and knew no GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What the run itself knows: the list of its faults and what its clients saw."""

    answered: int
    failures: Sequence[tuple[float, float, str]]
    """Began, ended (seconds since 1970), in words."""
    kills: Sequence[Span]
    """While a process died that carries requests."""
    taken: frozenset[str]
    """Instances that a fault took or broke."""
    broken: Sequence[BrokenGpu] = ()
    notices: Sequence[float] = ()
    """When the cloud gave notice to a spot instance of chat."""
    dry: Sequence[Span] = ()
    """While no zone had spot."""
    blind: Sequence[Span] = ()
    """While Prometheus was down: what fired then, nobody can know."""


def read(url: str) -> Any:
    """JSON of a URL."""
    wish = urllib.request.Request(url, headers=BEARER)
    with urllib.request.urlopen(wish, timeout=30) as answer:
        return json.loads(answer.read())


def epoch(text: str) -> float:
    """Seconds since 1970 of a time as the cloud writes it."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def key(message: Mapping[str, Any]) -> str:
    """What a message of Slack calls itself."""
    payload = message.get("metadata", {}).get("event_payload", {})
    return str(payload.get("key", f"without a key: {message.get('text')}"))
