"""Failed terminations: the order of retries, and instances that are stuck. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from gpufleet.domain.decisions import OpenAttempts

ATTEMPTS_KEPT: Final = timedelta(days=7)
"""How far back failed attempts are read: passes may run once a day only."""
STUCK: Final = timedelta(hours=1)
"""An instance whose first attempt failed longer ago no longer blocks the terminations of others."""
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def tried_last(attempts: Mapping[str, OpenAttempts], resource: str) -> datetime:
    """When the last attempt failed, as a sort key: instances without a failed attempt sort first."""
    return attempts[resource].last if resource in attempts else _NEVER


def is_stuck(attempts: Mapping[str, OpenAttempts], resource: str, now: datetime) -> bool:
    """Whether attempts have failed for `STUCK` or longer."""
    return resource in attempts and now - attempts[resource].first >= STUCK
