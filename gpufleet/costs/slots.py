"""The activity of an instance in ten-second slots, from samples of its engines and GPUs. Pure.

A slot is *busy* if work was measured in it, *idle* if its engines had no requests and every GPU was inactive, and
unknown otherwise. Unknown time is not idle: it counts as used and is shown as unmeasured.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from gpufleet.ledger.facts import ActivityHour
from gpufleet.ledger.slots import HOUR_US, SLOT_US, SLOTS, overlap
from gpufleet.ledger.tables import microseconds, moment

_ALL: Final = (1 << SLOTS) - 1


class ActivitySample(NamedTuple):
    """One value of one series. A tuple, since a pass over a large fleet reads millions of them."""

    at: datetime
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitySignals:
    """The measurements of one instance, as separate series in the order of time."""

    requests: Sequence[Sequence[ActivitySample]] = ()
    """Requests in flight or queued, one series per engine."""
    tokens: Sequence[Sequence[ActivitySample]] = ()
    """Token counters, one series per engine and counter."""
    gpus: Sequence[Sequence[ActivitySample]] = ()
    """`gpu_active`, 0 to 1, one series per GPU or slice."""
    coarse_gpus: Sequence[Sequence[ActivitySample]] = ()
    """The same, by numbers that can be 0 while the GPU computes: they show work only."""
    kept_gpus: Sequence[Sequence[ActivitySample]] = ()
    """The same, by numbers that can keep their last value at rest: above the noise floor they show nothing."""
    executions: Sequence[Sequence[ActivitySample]] = ()
    """Counters of the GPUs' executions: a change shows work."""
    all_gpus_proved: bool = True
    """Whether `gpus` and `kept_gpus` have each GPU and slice. Otherwise no slot is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How samples are interpreted."""

    reach: timedelta = timedelta(seconds=75)
    """The time between two samples further apart than this is unknown."""
    gpu_active_below: float = 0.01
    """Noise floor, as in the idle watchdog."""


def slots(environment: str, instance_id: str, signals: ActivitySignals, measure: Measure) -> list[ActivityHour]:
    """The hours of known slots of one instance."""
    busy: dict[int, int] = {}
    known: list[dict[int, int]] = []
    for series in signals.requests:
        known.append(_judge(series, measure, busy, lambda a, b: a.value > 0 or b.value > 0))
    for series in signals.gpus:
        below = measure.gpu_active_below
        known.append(_judge(series, measure, busy, lambda a, b, x=below: a.value >= x or b.value >= x))
    for series in signals.coarse_gpus:
        below = measure.gpu_active_below
        _judge(series, measure, busy, lambda a, b, x=below: a.value >= x or b.value >= x)
    for series in signals.kept_gpus:
        below, above = measure.gpu_active_below, dict[int, int]()
        seen = _judge(series, measure, above, lambda a, b, x=below: a.value >= x or b.value >= x)
        known.append({hour: bits & ~above.get(hour, 0) for hour, bits in seen.items()})
    for series in (*signals.tokens, *signals.executions):
        _judge(series, measure, busy, lambda a, b: a.value != b.value)
    hours = set(busy).union(*known)
    gpus = bool(signals.gpus or signals.kept_gpus) and signals.all_gpus_proved
    whole = bool(signals.requests) and gpus
    found: list[ActivityHour] = []
    for hour in sorted(hours):
        idle = _ALL if whole else 0
        for bits in known:
            idle &= bits.get(hour, 0)
        works = busy.get(hour, 0)
        if works or idle:
            at = moment(hour * HOUR_US)
            found.append(
                ActivityHour(
                    environment=environment, instance_id=instance_id, hour=at, busy=works, idle=idle & ~works
                )
            )
    return found


class ActivityTotals:
    """Sums over the hours of one instance, so that a long span is not counted slot by slot."""

    def __init__(self, hours: Iterable[ActivityHour]) -> None:
        self._hours = {_number(hour.hour): hour for hour in hours}
        self._numbers = sorted(self._hours)
        ordered = [self._hours[number] for number in self._numbers]
        self._busy = list(accumulate((hour.busy.bit_count() for hour in ordered), initial=0))
        self._idle = list(accumulate((hour.idle.bit_count() for hour in ordered), initial=0))

    def measured(self, start: datetime, end: datetime) -> tuple[timedelta, timedelta]:
        """The known busy and the known idle time of a span."""
        first, last = microseconds(start), microseconds(end)
        begin, stop = -(-first // HOUR_US), last // HOUR_US
        busy = idle = 0
        if begin < stop:  # whole hours
            low, high = bisect_left(self._numbers, begin), bisect_left(self._numbers, stop)
            busy = (self._busy[high] - self._busy[low]) * SLOT_US
            idle = (self._idle[high] - self._idle[low]) * SLOT_US
        edges = [(first, min(begin * HOUR_US, last)), (max(stop * HOUR_US, first), last)]
        for since, until in edges if begin <= stop else [(first, last)]:
            known = self._hours.get(since // HOUR_US)
            if known is not None and since < until:
                at = since // HOUR_US * HOUR_US
                busy += overlap(known.busy, since - at, until - at)
                idle += overlap(known.idle, since - at, until - at)
        return timedelta(microseconds=busy), timedelta(microseconds=idle)


@lru_cache(maxsize=8_192)
def _number(hour: datetime) -> int:
    """Hours since 1970. Cached: instances share their hours."""
    return microseconds(hour) // HOUR_US


def _judge(
    series: Sequence[ActivitySample],
    measure: Measure,
    busy: dict[int, int],
    works: Callable[[ActivitySample, ActivitySample], bool],
) -> dict[int, int]:
    """Slots that the series covers; those in which it `works` are added to `busy`."""
    known: dict[int, int] = {}
    nothing, reach = timedelta(0), measure.reach
    # spans, not slots: most samples continue the span of the one before
    since: datetime | None = None
    works_since: datetime | None = None
    for before, after in pairwise(series):
        # NaN, which is not equal to itself, is not a measurement: the time on both sides of it is unknown
        measured = before.value == before.value and after.value == after.value
        near = measured and nothing < after.at - before.at <= reach
        if near and since is None:
            since = before.at
        if near and works(before, after):
            works_since = works_since or before.at
        elif works_since is not None:
            _fill_span(busy, works_since, before.at)
            works_since = None
        if not near and since is not None:
            _fill_span(known, since, before.at)
            since = None
    if since is not None:
        _fill_span(known, since, series[-1].at)
    if works_since is not None:
        _fill_span(busy, works_since, series[-1].at)
    return known


def mark(
    series: Sequence[ActivitySample],
    reach: timedelta,
    busy: dict[int, int],
    works: Callable[[ActivitySample, ActivitySample], bool],
) -> dict[int, int]:
    """Hours since 1970 to the slots that the series covers; those in which it `works` are added to `busy`."""
    return _judge(series, Measure(reach=reach), busy, works)


def _fill_span(hours: dict[int, int], start: datetime, end: datetime) -> None:
    """Set every slot that the span touches."""
    _fill(hours, microseconds(start) // SLOT_US, (microseconds(end) - 1) // SLOT_US + 1)


def _fill(hours: dict[int, int], first: int, end: int) -> None:
    """Set the slots from `first` to `end` (exclusive), numbered since 1970."""
    while first < end:
        hour, begin = divmod(first, SLOTS)
        stop = min(SLOTS, begin + end - first)
        hours[hour] = hours.get(hour, 0) | (((1 << (stop - begin)) - 1) << begin)
        first += stop - begin
