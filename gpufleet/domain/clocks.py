"""The time of the wall clock, which users and NTP can set."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """The current time in UTC, and waiting. Tests replace it with a clock that they advance."""

    def now(self) -> datetime: ...

    def sleep(self, seconds: float) -> None: ...


class WallClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def is_over(since: datetime | None, span: timedelta, now: datetime) -> bool:
    """Return whether `span` has passed since `since`. True if `since` is missing: there is nothing to wait for.

    Also true if the clock was set back, because the elapsed time is unknown then. Otherwise nothing would happen
    until the clock reaches the old time again.
    """
    return since is None or not timedelta(0) <= now - since < span


def rfc3339(at: datetime) -> str:
    """Format a time as RFC 3339 in UTC, with milliseconds and the suffix Z."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
