"""Times of a wall clock, which users and NTP can set. No I/O."""

from datetime import UTC, datetime, timedelta


def is_over(since: datetime | None, span: timedelta, now: datetime) -> bool:
    """Return whether `span` has passed since `since`. True if `since` is missing: there is nothing to wait for.

    Also true if the clock was set back, because the elapsed time is unknown then. Otherwise nothing would happen
    until the clock reaches the old time again.
    """
    return since is None or not timedelta(0) <= now - since < span


def rfc3339(at: datetime) -> str:
    """Format a time as RFC 3339 in UTC, with milliseconds and the suffix Z."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
