"""Time spans on a wall clock, which users and NTP can set. No I/O."""

from datetime import datetime, timedelta


def is_over(since: datetime | None, span: timedelta, now: datetime) -> bool:
    """Return whether `span` has passed since `since`. True if `since` is missing: there is nothing to wait for.

    Also true if the clock was set back, because the elapsed time is unknown then. Otherwise nothing would happen
    until the clock reaches the old time again.
    """
    return since is None or not timedelta(0) <= now - since < span
