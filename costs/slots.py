"""How busy an instance was: ten-second slots, filled from samples of its engines and GPUs. Pure.

A slot is *busy* when something certainly worked in it, *idle* when its engines had nothing to do and every GPU was
inactive, and unknown otherwise. Unknown is not idle: it costs as used and is shown as unmeasured.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from ledger.facts import ActivityHour
from ledger.tables import microseconds, moment

SLOT_US: Final = 10_000_000
HOUR_US: Final = 3_600_000_000
SLOTS: Final = HOUR_US // SLOT_US
_ALL: Final = (1 << SLOTS) - 1


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series."""

    at: datetime
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What was measured of one instance, each series apart and in the order of time."""

    requests: Sequence[Sequence[Sample]] = ()
    """Requests in flight or queued, one series per engine."""
    tokens: Sequence[Sequence[Sample]] = ()
    """Token counters, one series per engine and counter."""
    gpus: Sequence[Sequence[Sample]] = ()
    """`gpu_active`, 0 to 1, one series per GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How samples are read."""

    reach: timedelta = timedelta(seconds=75)
    """Two samples further apart say nothing of the time between them."""
    gpu_active_below: float = 0.01
    """Noise floor, as in the idle watchdog."""


def slots(environment: str, instance_id: str, signals: Signals, measure: Measure) -> list[ActivityHour]:
    """The hours of known slots of one instance."""
    busy: dict[int, int] = {}
    known: list[dict[int, int]] = []
    for series in signals.requests:
        known.append(_judge(series, measure, busy, lambda a, b: a.value > 0 or b.value > 0))
    for series in signals.gpus:
        below = measure.gpu_active_below
        known.append(_judge(series, measure, busy, lambda a, b, x=below: a.value >= x or b.value >= x))
    for series in signals.tokens:
        _judge(series, measure, busy, lambda a, b: a.value != b.value)
    hours = set(busy).union(*known)
    whole = bool(signals.requests) and bool(signals.gpus)
    found: list[ActivityHour] = []
    for hour in sorted(hours):
        calm = _ALL if whole else 0
        for bits in known:
            calm &= bits.get(hour, 0)
        works = busy.get(hour, 0)
        if works or calm:
            at = moment(hour * HOUR_US)
            found.append(
                ActivityHour(
                    environment=environment, instance_id=instance_id, hour=at, busy=works, idle=calm & ~works
                )
            )
    return found


def measured(hours: Mapping[int, ActivityHour], start: datetime, end: datetime) -> tuple[timedelta, timedelta]:
    """How much of a span is known busy and known idle. `hours` by hours since 1970."""
    first, last = microseconds(start), microseconds(end)
    busy = idle = 0
    for hour in range(first // HOUR_US, (last - 1) // HOUR_US + 1):
        known = hours.get(hour)
        if known is None:
            continue
        begin, stop = max(first - hour * HOUR_US, 0), min(last - hour * HOUR_US, HOUR_US)
        busy += _overlap(known.busy, begin, stop)
        idle += _overlap(known.idle, begin, stop)
    return timedelta(microseconds=busy), timedelta(microseconds=idle)


def by_hour(hours: Iterable[ActivityHour]) -> dict[int, ActivityHour]:
    """Hours of one instance under their number since 1970."""
    return {microseconds(hour.hour) // HOUR_US: hour for hour in hours}


def _judge(
    series: Sequence[Sample], measure: Measure, busy: dict[int, int], works: Callable[[Sample, Sample], bool]
) -> dict[int, int]:
    """Slots that the series knows of; those in which it `works` are added to `busy`."""
    known: dict[int, int] = {}
    for before, after in pairwise(series):
        if not timedelta(0) < after.at - before.at <= measure.reach:
            continue
        first, last = microseconds(before.at) // SLOT_US, (microseconds(after.at) - 1) // SLOT_US + 1
        _fill(known, first, last)
        if works(before, after):
            _fill(busy, first, last)
    return known


def _fill(hours: dict[int, int], first: int, end: int) -> None:
    """Set the slots from `first` to `end` (exclusive), numbered since 1970."""
    while first < end:
        hour, begin = divmod(first, SLOTS)
        stop = min(SLOTS, begin + end - first)
        hours[hour] = hours.get(hour, 0) | (((1 << (stop - begin)) - 1) << begin)
        first += stop - begin


def _overlap(bits: int, begin: int, stop: int) -> int:
    """Microseconds of set slots between two times of the hour."""
    if not bits:
        return 0
    if begin == 0 and stop == HOUR_US:
        return bits.bit_count() * SLOT_US
    first, last = begin // SLOT_US, (stop - 1) // SLOT_US
    inside = (bits >> first) & ((1 << (last - first + 1)) - 1)
    length = inside.bit_count() * SLOT_US
    if inside & 1:
        length -= begin - first * SLOT_US
    if inside >> (last - first) & 1:
        length -= (last + 1) * SLOT_US - stop
    return length
