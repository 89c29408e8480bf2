"""Moments as AWS writes them."""

from contextlib import suppress
from datetime import datetime

from botocore.utils import parse_timestamp


def moment(said: str | float) -> datetime:
    """A moment as an answer of AWS says it; as botocore's own, which took half the time that a long list of instances
    takes to be read. Raises ValueError.
    """
    if isinstance(said, str) and "T" in said:
        with suppress(ValueError):
            found = datetime.fromisoformat(said)
            if found.tzinfo is not None:
                return found
    return parse_timestamp(said)
