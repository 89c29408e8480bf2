"""Compares the clock of this machine with that of a server."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

SKEW_LIMIT_S: Final = 60.0
"""Maximum clock difference. With a larger one, old values would be read as current ones."""


def seconds_apart(date: str | None, asked: datetime, received: datetime) -> float | None:
    """Return the difference of the clocks if it is above the limit, in seconds; None: it is not, or is unknown.

    `date`: the header `Date` of an answer, set at some moment between `asked` and `received`.
    """
    try:
        theirs = parsedate_to_datetime(date or "")
    except ValueError:
        return None  # the answer has no date
    theirs = theirs if theirs.tzinfo is not None else theirs.replace(tzinfo=UTC)
    apart = max(asked - theirs, theirs - received).total_seconds()
    return apart if apart > SKEW_LIMIT_S else None
