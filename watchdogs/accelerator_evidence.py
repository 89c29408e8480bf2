"""Evidence of accelerators: the query for all instances of a selector, and what its answer proves.

The answer is judged by the contract of each kind (`serving.accelerators`), for each schedulable unit. It never proves
more than `serving.accelerators.evidence.judge` proves on the same samples.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.evidence import GpuEvidence
from serving.accelerators import CONTRACTS, metrics
from serving.accelerators.contract import AcceleratorContract, Scope, UnknownCode
from serving.accelerators.evidence import CLOCK_RATES, LARGEST_STEP
from serving.accelerators.queries import (
    DOUBT_LABEL,
    KIND_LABEL,
)
from watchdogs.accelerator_queries import CLOCKS, COUNTERS, accelerator_query
from watchdogs.ports import Metrics
from watchdogs.promql import (
    STAT,
    SeriesSelector,
    Stats,
    age_of,
    coverage_of,
    unless_nan,
    whole_number,
)

_LONGEST_S: Final = 1e9


@dataclass(slots=True)
class AcceleratorStats:
    """The answer for one instance."""

    stats: dict[str, float] = field(default_factory=dict[str, float])
    kinds: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Numbers of each kind of accelerator."""
    doubts: set[str] = field(default_factory=set[str])
    cores: set[float] = field(default_factory=set[float])
    """Slices of a device, as its page reports them."""


def ask_accelerators(
    store: Metrics, series: SeriesSelector, window: timedelta, interval: timedelta, now: datetime
) -> dict[str, AcceleratorStats]:
    """The numbers of each instance whose accelerators report. Raises OSError."""
    found: dict[str, AcceleratorStats] = {}
    for labels, value in store.query(accelerator_query(series, window, interval), now):
        if "instance_id" not in labels:
            continue
        one = found.setdefault(labels["instance_id"], AcceleratorStats())
        stat = labels[STAT]
        if stat == "doubt":
            one.doubts.add(labels[DOUBT_LABEL])
        elif stat.startswith("cores:"):
            one.cores.add(_count(labels.get(stat.partition(":")[2], "")))
        elif KIND_LABEL in labels:
            one.kinds.setdefault(labels[KIND_LABEL], {})[stat] = value
        else:
            one.stats[stat] = value
    for one in found.values():
        one.kinds = {kind: numbers for kind, numbers in one.kinds.items() if _reports(kind, numbers, one.stats)}
    return {instance: one for instance, one in found.items() if one.kinds}


def _reports(kind: str, numbers: Stats, stats: Stats) -> bool:
    """Whether a kind has samples in the window, or its exporter answers and its series ended with their program."""
    if "kind" in numbers:
        return True
    contract = CONTRACTS.get(kind)
    carriers = () if contract is None else contract.carriers(metrics.ACTIVE)
    return stats.get("answers") == 1 and any(one.absent is UnknownCode.NO_WORKLOAD for one in carriers)


def _count(text: str) -> float:
    """A number of slices; NaN for other texts."""
    return float(text) if text.isdigit() and int(text) > 0 else math.nan


def accelerator_evidence(
    answer: AcceleratorStats, window: timedelta, interval: timedelta, now: datetime
) -> GpuEvidence:
    """What the numbers of an instance prove."""
    stats = answer.stats
    found = [_of_kind(kind, answer, window) for kind in sorted(answer.kinds)]
    executions = sum(stats.get(f"work:{metric}", 0.0) for metric in COUNTERS)
    kept = any(one.kept for one in found) and not executions > 0
    kept = kept and stats.get("active", 0.0) > 0
    unknown = {*answer.doubts, *(code for one in found for code in one.unknown)}
    blank = {UnknownCode.BLANK} if any(one.blank for one in found) else set[UnknownCode]()
    implausible = {UnknownCode.IMPLAUSIBLE} if _is_implausible(stats) else set[UnknownCode]()
    unknown |= {UnknownCode.REPEATED} if _is_clock_frozen(answer) else set[UnknownCode]()
    clocks = [stats[f"clock:{metric}"] for metric in CLOCKS if f"clock:{metric}" in stats]
    pulses = [one.pulse for one in found if one.needs_pulse]
    util = stats.get("util")
    return GpuEvidence(
        gpus=_total(one.devices for one in found),
        metered=_total(one.metered for one in found),
        units=_total(whole_number(numbers.get("units")) for numbers in answer.kinds.values()),
        coverage=coverage_of(stats, window, interval),
        missed=stats.get("missed"),
        newest_age=age_of(stats.get("newest"), now),
        interval=interval,
        # the last value of a program that ended is not a measurement
        active_max=None if kept else stats.get("active"),
        active_min=unless_nan(stats.get("lowest"), stats.get("sum")),
        util_max=None if util is None else _percent(100 * util),
        work_changes=executions + sum(stats.get(f"work:{metric}", 0.0) for metric in CLOCKS),
        computed_ago=_span(min(clocks, default=None)),
        without_pulse=not pulses,
        energy_changes=None if None in pulses else min((one for one in pulses if one is not None), default=None),
        watts_max=stats.get("watts"),
        unknown=tuple(sorted(unknown | ({UnknownCode.KEPT_VALUE} if kept else set()))),
        implausible=tuple(sorted(blank | implausible)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What the numbers of one kind of accelerator prove."""

    unknown: tuple[UnknownCode, ...] = ()
    devices: int | None = None
    metered: int | None = None
    needs_pulse: bool = True
    pulse: float | None = None
    blank: bool = False
    kept: bool = False
    """Whether its activity stays above 0 at rest."""


def _of_kind(kind: str, answer: AcceleratorStats, window: timedelta) -> _Kind:
    contract, numbers = CONTRACTS.get(kind), answer.kinds[kind]
    if contract is None:
        return _Kind(unknown=(UnknownCode.MISSING_SERIES,))
    devices = whole_number(numbers.get("gpus"))
    if contract.identity.cores is not None:
        # its slices are numbered through the host: a device counts when all its slices report
        cores = next(iter(answer.cores)) if len(answer.cores) == 1 else math.nan
        devices = whole_number(numbers.get("units", math.nan) // cores)
    pulse = contract.evidence.pulse
    of_host = pulse is not None and contract.carriers(pulse)[0].scope is Scope.HOST
    return _Kind(
        unknown=tuple(_unknown(contract, answer.stats, numbers, window)),
        devices=devices,
        metered=devices if pulse is None or of_host else whole_number(numbers.get(f"metered:{pulse}")),
        needs_pulse=pulse is not None,
        pulse=_lowest(numbers.get(f"pulse:{pulse}"), numbers.get(f"changes:{pulse}")),
        blank=contract.is_blank(numbers.get(f"top:{pulse}", 0.0)),
        kept=any(series.kept_at_rest for series in contract.carriers(metrics.ACTIVE)),
    )


def _unknown(contract: AcceleratorContract, stats: Stats, numbers: Stats, window: timedelta) -> Iterator[UnknownCode]:
    """Yield why the numbers cannot show that each unit is idle."""
    least = math.inf if contract.evidence.measurements is None else contract.evidence.measurements
    # a silent exporter has no number of devices, which is reason enough
    silent = "units" not in numbers and stats.get("answers") != 1
    pulse = numbers.get(f"pulse:{contract.evidence.pulse}", 0.0)
    if window < contract.evidence.window and not silent and not pulse >= least:
        yield UnknownCode.WINDOW_TOO_SHORT
    if numbers.get("shared", 0.0) > 0:
        yield UnknownCode.SHARED
    unproved = numbers.get("unproved_slices", 0.0)
    if contract.identity.cores is None:
        unproved += numbers.get("unproved_devices", 0.0)
    for metric in contract.evidence.idle:
        absent = next(one.absent for one in contract.carriers(metric) if not one.zero_while_busy)
        lacking = f"proof:{metric}" not in numbers or (metric is metrics.ACTIVE and unproved > 0)
        # the exporter answers, and its series have ended with their program
        ended = absent is UnknownCode.NO_WORKLOAD and "units" not in numbers and stats.get("answers") == 1
        if lacking or ended:
            yield absent


def _lowest(pulse: float | None, before: float | None) -> float | None:
    """The lower of the changes in the newest part of the window and in any part; None: none in the newest."""
    return pulse if pulse is None or before is None else min(pulse, before)


def _is_clock_frozen(answer: AcceleratorStats) -> bool:
    """Whether a clock does not advance: its exporter repeats old values."""
    frozen = any(numbers.get(f"changes:{metric}") == 0 for numbers in answer.kinds.values() for metric in CLOCKS)
    return frozen or any(answer.stats.get(f"min_rate:{metric}", 1.0) < CLOCK_RATES[0] for metric in CLOCKS)


def _is_implausible(stats: Stats) -> bool:
    """Whether a number has another unit: it is out of range, or energy and power contradict each other."""
    lowest, highest = metrics.RANGES[metrics.POWER]
    least, most = metrics.RANGES[metrics.MEMORY_TOTAL]
    return (
        not lowest <= stats.get("power_min", lowest)
        or not stats.get("power_max", highest) <= highest
        or not stats.get("watts", highest) <= highest
        or 0 < stats.get("drawn_min", lowest) < lowest
        or not stats.get("above_power", LARGEST_STEP) <= LARGEST_STEP
        or 0 < stats.get("below_power", 1.0) < 1 / LARGEST_STEP
        or not stats.get("memory_max", most) <= most
        or not least <= stats.get("memory_min", least)
        or "misnamed" in stats
        or any(not stats.get(f"max_rate:{metric}", 1.0) <= CLOCK_RATES[1] for metric in CLOCKS)
    )


def _total(numbers: Iterable[int | None]) -> int | None:
    """The sum; None if one of them is unknown, or without numbers."""
    known = list(numbers)
    return None if not known or None in known else sum(number for number in known if number is not None)


def _percent(util: float) -> float:
    """Utilization in percent.

    Percentages are whole numbers: a value below 1 is a ratio under the name of a percentage.
    """
    return 100 * util if 0 < util < 1 else util


def _span(seconds_: float | None) -> timedelta | None:
    """A time; None also for invalid numbers."""
    return None if seconds_ is None or not 0 <= seconds_ < _LONGEST_S else timedelta(seconds=seconds_)
