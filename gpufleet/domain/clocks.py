"""Spans by a clock that people and NTP set. Pure."""

from datetime import datetime, timedelta


def is_over(since: datetime | None, span: timedelta, now: datetime) -> bool:
    """Whether so much time has passed; None: nothing began yet, so there is nothing to wait for.

    A clock that was set back says nothing of what has passed: then it is over. Else nothing would be looked at until
    the old time is reached again.
    """
    return since is None or not timedelta(0) <= now - since < span
