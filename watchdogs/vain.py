"""Ends and stops that came to nothing: whose turn it is next, and who is stuck. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from gpufleet.domain.decisions import FailedAttempts

REMEMBERED: Final = timedelta(days=7)
"""How far back such tries are looked for: passes may come once a day."""
STUCK: Final = timedelta(hours=1)
"""One that was first tried so long ago does not hold up each run any more: a drain takes no longer."""
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def tried_last(tries: Mapping[str, FailedAttempts], resource: str) -> datetime:
    """When it was tried in vain last, to be sorted by: those that were not come first, and then each has its turn."""
    return tries[resource].last if resource in tries else _NEVER


def is_stuck(tries: Mapping[str, FailedAttempts], resource: str, now: datetime) -> bool:
    """Whether it has been tried in vain for longer than a drain takes."""
    return resource in tries and now - tries[resource].first >= STUCK
