"""Turns raw samples of a metrics store into energy readings of accelerators. Pure.

Names and units of metrics are arguments: this package does not depend on an accelerator. A device whose counter
contradicts its power, or has an implausible mean power, is left out and named: one of
the two is in a wrong unit of measurement.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from gpufleet.costs.samples import KEEP_EVERY, RawSeries
from gpufleet.ledger.energy import PLAUSIBLE_WATTS, EnergyReading, microseconds_of, plausible

_Device = tuple[str, str]
"""Instance id and device."""
_Counter = Sequence[tuple[datetime, int]]
"""Times and millijoules."""
_WATTS: Final = 1_000
"""Watts of one millijoule per microsecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyNames:
    """The metrics of accelerators from which energy follows."""

    counter: str
    """Counter of a device's energy."""
    power: str
    """Gauge of a device's power: it shows a counter with another unit."""
    device: str
    """Label of the device."""
    copies: AbstractSet[str]
    """Labels that mark copies of one number on one page."""
    millijoules: Callable[[Mapping[str, str], float], int | None]
    """Labels and value of a counter to millijoules; None: not a measurement."""
    watts: Callable[[Mapping[str, str], float], float | None]
    largest_step: float
    """A counter whose mean power differs from all power samples by more than this factor has another unit."""

    def all(self) -> tuple[str, ...]:
        """Every name, for a selector."""
        return self.counter, self.power


def energy_readings(
    fleet: str, names: EnergyNames, series: Iterable[RawSeries]
) -> tuple[list[EnergyReading], list[str]]:
    """Readings, thinned, by device and time, and notes about rejected devices.

    Of each device the first reading of a value, the first, the last, both sides of a reset and one every five minutes
    are kept. Power alone gives no reading: its error between two samples has no bound.
    """
    counters: dict[_Device, list[RawSeries]] = defaultdict(list)
    powers: dict[_Device, list[float]] = defaultdict(list)
    for one in series:
        device = one.labels.get("instance_id", ""), one.labels.get(names.device, "")
        if one.name == names.counter and all(device):
            counters[device].append(one)
        elif one.name == names.power and all(device):
            powers[device] += [w for _, value in one.samples if (w := names.watts(one.labels, value)) is not None]
    found: list[EnergyReading] = []
    rejected: list[str] = []
    for device in sorted(counters):
        kept = _thin(_changes(_once(_by_source(names, counters[device]))))
        error = _why_rejected(kept, powers.get(device, ()), names.largest_step)
        if error is not None:
            rejected.append(f"{device[0]} {device[1]}: {error}")
            continue
        found += [
            EnergyReading(environment=fleet, instance_id=device[0], device=device[1], at=at, millijoules=value)
            for at, value in kept
        ]
    return found, list(_notes(rejected))


def _notes(rejected: Sequence[str]) -> Iterable[str]:
    if rejected:
        yield (
            f"energy of {len(rejected)} devices was rejected: {rejected[0]}; the unit of its energy or its power is"
            " wrong: compare the exporter's page with `gpufleet accelerators check`"
        )


def _by_source(names: EnergyNames, copies: Iterable[RawSeries]) -> list[_Counter]:
    """The counter as each page and store reported it; the one with the most samples is the first.

    Copies on one page have the same times: of each time the highest value counts.
    """
    sources: dict[tuple[tuple[str, str], ...], dict[datetime, int]] = defaultdict(dict)
    for one in copies:
        values = sources[tuple(sorted(item for item in one.labels.items() if item[0] not in names.copies))]
        for at, value in one.samples:
            millijoules = names.millijoules(one.labels, value)
            if millijoules is not None:
                values[at] = max(millijoules, values.get(at, 0))
    ranked = sorted(sources.items(), key=lambda source: (-len(source[1]), source[0]))
    return [sorted(values.items()) for _, values in ranked if values]


def _once(sources: Sequence[_Counter]) -> _Counter:
    """All of the first source, and what others reported before or after it: their clocks may differ."""
    kept: list[tuple[datetime, int]] = []
    for source in sources:
        before = [one for one in source if kept and one[0] < kept[0][0]]
        kept = [*before, *kept, *(one for one in source if not kept or one[0] > kept[-1][0])]
    return kept


def _changes(counter: _Counter) -> _Counter:
    """The first reading of each value: a repeated value is not a new measurement."""
    return [one for index, one in enumerate(counter) if index == 0 or one[1] != counter[index - 1][1]]


def _thin(counter: _Counter) -> _Counter:
    kept: list[tuple[datetime, int]] = []
    for index, (at, value) in enumerate(counter):
        following = counter[index + 1][1] if index + 1 < len(counter) else None
        ends = index == 0 or following is None or following < value or value < counter[index - 1][1]
        if ends or at - kept[-1][0] >= KEEP_EVERY:
            kept.append((at, value))
    return kept


def _why_rejected(counter: _Counter, powers: Sequence[float], largest_step: float) -> str | None:
    """Why a counter has another unit than it states, or its device's power has; None: nothing shows that."""
    energy = time = 0
    for (start, before), (end, after) in pairwise(counter):
        if after < before:
            continue
        if not plausible(after - before, end - start):
            mean = (after - before) * _WATTS / microseconds_of(end - start)
            return f"a mean power of {mean:,.1f} W is outside {PLAUSIBLE_WATTS[0]} to {PLAUSIBLE_WATTS[1]:,} W"
        energy, time = energy + after - before, time + microseconds_of(end - start)
    if not time or not powers:
        return None
    mean, low, high = energy * _WATTS / time, min(powers), max(powers)
    if mean > largest_step * high or mean < low / largest_step:
        return f"its counter shows {mean:,.1f} W, its power {low:,.1f} to {high:,.1f} W"
    return None
