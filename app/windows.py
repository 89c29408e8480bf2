"""The time windows of reports."""

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A span of time in UTC, end exclusive, and the time zone for display."""

    since: datetime
    until: datetime
    now: datetime
    timezone: str


def last_day(at: time, timezone: str, now: datetime) -> Window:
    """The last day that ended at local time `at`. It has 23 or 25 hours if the clocks changed in it."""
    zone = ZoneInfo(timezone)
    today = now.astimezone(zone).date()
    ends = datetime.combine(today, at, zone)
    if ends.astimezone(UTC) > now:
        ends = datetime.combine(today - timedelta(days=1), at, zone)
    since = datetime.combine(ends.date() - timedelta(days=1), at, zone)
    return Window(since=since.astimezone(UTC), until=ends.astimezone(UTC), now=now, timezone=timezone)


def up_to(now: datetime, length: timedelta) -> Window:
    """The window of that length that ends now."""
    return Window(since=now - length, until=now, now=now, timezone="UTC")
