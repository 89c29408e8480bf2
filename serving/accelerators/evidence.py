"""What several pages prove about each unit: it worked, it was idle, or neither. Standard library only.

It is the reference for queries over a metrics store: on the same samples, a query must not find more idle units.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Final

from serving.accelerators import metrics
from serving.accelerators.contract import AcceleratorContract, Scope, UnknownCode
from serving.accelerators.reading import HOST_KEY, AcceleratorReading, UnitKey
from serving.metrics import Metric, MetricKind

LARGEST_STEP: Final = 30.0
"""Power between two samples differs from the power in the samples by less than this factor. A unit that is wrong by
1,000 differs by more, even if a device goes from idle to full power (about 12 times) in between."""
CLOCK_RATES: Final = (0.5, 2.0)
"""A clock of the time since a unit last computed advances at rest by about a second per second. Outside these limits
it is frozen or has another unit."""


class ProvedActivity(StrEnum):
    """What the samples of a window prove."""

    WORKING = "working"
    IDLE = "idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is proved about a unit, and what prevents a proof."""

    activity: ProvedActivity
    unknown: tuple[UnknownCode, ...] = ()
    """Sorted; only of unknown units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedReading:
    """A page and when it was read."""

    at: timedelta
    """Since any fixed moment."""
    reading: AcceleratorReading


def judge(
    contract: AcceleratorContract, pages: Sequence[TimedReading], floor: float = 0.0
) -> Mapping[UnitKey, Judgement]:
    """Return what the pages prove about each unit that at least one of them reports.

    The pages are in the order of time. Whether they are frequent enough is for the caller to check.

    `floor`: activity up to this share counts as none (noise of a device that computes nothing).
    """
    keys = {key for page in pages for key in page.reading.units}
    return {key: _judge(contract, pages, key, floor) for key in sorted(keys)}


def _judge(contract: AcceleratorContract, pages: Sequence[TimedReading], key: UnitKey, floor: float) -> Judgement:
    rule = contract.evidence
    readings = [page.reading for page in pages]
    shared = any(key in reading.units and reading.units[key].shared for reading in readings)
    active = any(_above(reading, key, metrics.ACTIVE, floor) for reading in readings)
    alive = active if rule.program is None else _is_alive(readings, key, rule.work, floor)
    window = pages[-1].at - pages[0].at
    scopes = {scope for metric in rule.work for scope in _work(readings, key, metric, floor)}
    codes = set(_unknown(contract, readings, key, window))
    if rule.clock is not None:
        clock = _times(pages, key, rule.clock)
        if _worked_by_clock(clock, pages[0].at):
            scopes.add(Scope.UNIT)
        codes |= set(_clock_doubts(clock, pages, rule.window))
    if rule.pulse is not None and len(readings) > 1:
        codes |= set(_without_pulse(_times(pages, key, rule.pulse), pages, rule.window))
    if scopes and not shared:
        if Scope.UNIT in scopes or alive:
            return Judgement(activity=ProvedActivity.WORKING)
        codes.add(UnknownCode.SHARED)  # another unit of the device or the host may have worked
    if active and not (scopes and alive):
        codes.add(UnknownCode.KEPT_VALUE)
    if codes:
        return Judgement(activity=ProvedActivity.UNKNOWN, unknown=tuple(sorted(codes)))
    return Judgement(activity=ProvedActivity.IDLE)


def _above(reading: AcceleratorReading, key: UnitKey, metric: Metric, floor: float) -> bool:
    value = reading.evidence(key, metric)
    return value is not None and value[0] is Scope.UNIT and value[1] > floor


def _is_alive(readings: Sequence[AcceleratorReading], key: UnitKey, work: Sequence[Metric], floor: float) -> bool:
    """Whether the unit's activity is of a program that worked. A program without a name may be any."""
    counts = [[reading.by_program.get((HOST_KEY, metric), {}) for reading in readings] for metric in work]
    pairs = [pair for one in counts for pair in pairwise(one)]
    moved = {name for old, new in pairs for name in new if new[name] != old.get(name, 0.0)}
    shares = [reading.by_program.get((key, metrics.ACTIVE), {}) for reading in readings]
    active = {name for share in shares for name, value in share.items() if value > floor}
    return bool(active & moved) or (bool(active and moved) and "" in active | moved)


def _work(readings: Sequence[AcceleratorReading], key: UnitKey, metric: Metric, floor: float) -> Iterator[Scope]:
    """Yield the parts of the hardware in which the metric shows work."""
    found = [value for reading in readings if (value := reading.evidence(key, metric)) is not None]
    if metric.kind is MetricKind.COUNTER:
        yield from (scope for (_, old), (scope, new) in pairwise(found) if new != old)
    else:
        lowest = floor if metric is metrics.ACTIVE else 0.0
        yield from (scope for scope, value in found if value > lowest)


_Times = Sequence[tuple[timedelta, float]]
"""When a number was read, and the number."""


def _times(pages: Sequence[TimedReading], key: UnitKey, metric: Metric) -> _Times:
    found = [(page.at, page.reading.evidence(key, metric)) for page in pages]
    return [(at, value[1]) for at, value in found if value is not None]


def _worked_by_clock(clock: _Times, start: timedelta) -> bool:
    """Whether the time since the unit last computed fell, or shows work after the start of the window."""
    fell = any(new < old for (_, old), (_, new) in pairwise(clock))
    return fell or any(value < (at - start).total_seconds() for at, value in clock)


def _clock_doubts(clock: _Times, pages: Sequence[TimedReading], least: timedelta) -> Iterator[UnknownCode]:
    """Yield why the clock does not show that it runs. Some exporters of a kind have no clock."""
    if not clock or len(pages) == 1:
        return
    yield from _without_pulse(clock, pages, least)
    lowest, highest = CLOCK_RATES
    elapsed = (clock[-1][0] - clock[0][0]).total_seconds()
    advanced = clock[-1][1] - clock[0][1]
    if advanced < lowest * elapsed:
        yield UnknownCode.REPEATED
    elif advanced > highest * elapsed:
        yield UnknownCode.IMPLAUSIBLE


def _without_pulse(pulse: _Times, pages: Sequence[TimedReading], least: timedelta) -> Iterator[UnknownCode]:
    """Yield why the pages do not show that the exporter measures: a number that changes at rest is missing on a page,
    or was the same for half the window or longer. Within `least` it may be the same.
    """
    if len(pulse) < len(pages):
        yield UnknownCode.MISSING_SERIES
        return
    same_since, last = pulse[0]
    longest = timedelta(0)
    for at, value in pulse[1:]:
        if value == last:
            longest = max(longest, at - same_since)
        else:
            same_since, last = at, value
    window = pages[-1].at - pages[0].at
    if longest == window or longest > max(least, window / 2):
        yield UnknownCode.REPEATED


def _unknown(
    contract: AcceleratorContract, readings: Sequence[AcceleratorReading], key: UnitKey, window: timedelta
) -> Iterator[UnknownCode]:
    if window < contract.evidence.window and not _is_measured(contract, readings, key):
        yield UnknownCode.WINDOW_TOO_SHORT
    for reading in readings:
        if key in reading.units:
            yield from reading.units[key].unknown
        else:
            yield from reading.unknown or (UnknownCode.MISSING_SERIES,)


def _is_measured(contract: AcceleratorContract, readings: Sequence[AcceleratorReading], key: UnitKey) -> bool:
    """Whether the number that changes at rest shows enough measurements."""
    pulse, least = contract.evidence.pulse, contract.evidence.measurements
    if pulse is None or least is None:
        return False
    found = [value for reading in readings if (value := reading.evidence(key, pulse)) is not None]
    return sum(old != new for (_, old), (_, new) in pairwise(found)) >= least


def contradicted_units(before: TimedReading, after: TimedReading) -> tuple[str, ...]:
    """Return the devices whose energy counter contradicts their power, sorted: one of the two is in a
    wrong unit of measurement.

    A device without power is compared with the power that accelerators can have. Devices whose counter did not
    increase (it restarted or stands still) are left out.
    """
    seconds = (after.at - before.at).total_seconds()
    found: list[str] = []
    for device in sorted(before.reading.devices.keys() & after.reading.devices.keys()):
        old, new = before.reading.devices[device], after.reading.devices[device]
        if metrics.ENERGY not in old or metrics.ENERGY not in new:
            continue
        energy = new[metrics.ENERGY] - old[metrics.ENERGY]
        if seconds <= 0 or energy <= 0:
            continue
        low, high = metrics.RANGES[metrics.POWER]
        if metrics.POWER in old and metrics.POWER in new:
            low, high = sorted((old[metrics.POWER], new[metrics.POWER]))
            low, high = low / LARGEST_STEP, high * LARGEST_STEP
        if not low <= energy / seconds <= high:
            found.append(device)
    return tuple(found)
