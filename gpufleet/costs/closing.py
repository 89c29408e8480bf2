"""The facts of a closed span, as known when a bill closed it. Later facts do not change its reports. Pure.

Activity and tokens are not copied, because they are larger than memory. Instead, passes do not write them into
closed spans.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Final

from pydantic import TypeAdapter

from gpufleet.ledger.closed_periods import BillConfirmation
from gpufleet.ledger.facts import ActivityHour, CostPass, Reservation, Run
from gpufleet.ledger.slots import SLOTS
from gpufleet.ledger.teams import Interval
from gpufleet.ledger.units import UnitHour, keep_slots

_SLOT: Final = timedelta(seconds=10)
_ALL: Final = (1 << SLOTS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The facts of a span at the time when it was closed."""

    since: datetime
    until: datetime
    at: datetime
    """The time of the closing."""
    begun: datetime | None
    """The first complete pass."""
    last: CostPass | None
    gaps: Sequence[Interval]
    runs: Sequence[Run]
    reservations: Sequence[Reservation]


def content_of(closing: Closing) -> str:
    """The JSON text that the ledger stores."""
    return _closing().dump_json(closing).decode()


def read(confirmed: Iterable[BillConfirmation]) -> list[Closing]:
    """The closed spans among them, oldest first. Raises ValueError for malformed content."""
    found = [_closing().validate_json(one.facts) for one in confirmed if one.facts is not None]
    return sorted(found, key=lambda one: one.since)


def cover(closings: Sequence[Closing], since: datetime, until: datetime) -> bool:
    """Whether the closed spans, in the order of time, cover the whole window."""
    if not closings or closings[0].since > since or closings[-1].until < until:
        return False
    return all(one.until == following.since for one, following in pairwise(closings))


def is_closed(at: datetime, spans: Iterable[Interval]) -> bool:
    """Whether a time is in a closed span."""
    return any(since <= at < until for since, until in spans)


def outside(hours: Iterable[ActivityHour], spans: Sequence[Interval]) -> list[ActivityHour]:
    """The activity of instances, without the slots that overlap a closed span."""
    found: list[ActivityHour] = []
    for hour in hours:
        slots = open_slots(hour.hour, spans)
        if slots == _ALL:
            found.append(hour)
        elif slots:
            found.append(hour._replace(busy=hour.busy & slots, idle=hour.idle & slots))
    return found


def units_outside(hours: Iterable[UnitHour], spans: Sequence[Interval]) -> list[UnitHour]:
    """The activity of units, without the slots that overlap a closed span."""
    return [keep_slots(hour, slots) for hour in hours if (slots := open_slots(hour.hour, spans))]


def open_slots(hour: datetime, spans: Sequence[Interval]) -> int:
    """The slots of an hour that do not overlap a closed span."""

    def touch(start: datetime, end: datetime) -> bool:
        return any(since < end and start < until for since, until in spans)

    if not touch(hour, hour + _SLOT * SLOTS):
        return _ALL
    starts = [hour + n * _SLOT for n in range(SLOTS)]
    return sum(1 << n for n, start in enumerate(starts) if not touch(start, start + _SLOT))


@cache
def _closing() -> TypeAdapter[Closing]:
    return TypeAdapter(Closing)
