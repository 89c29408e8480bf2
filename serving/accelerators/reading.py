"""Reads a page by an accelerator's contract: values of each schedulable unit in SI units. Standard library only.

Values that the exporter could not measure are left out, with the reason as a code: they are never 0 by default.
Copies of one number, for several pods or jobs, are counted once.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from serving.accelerators import metrics
from serving.accelerators.contract import (
    AcceleratorContract,
    AcceleratorSeries,
    Scope,
    SeriesUnit,
    UnknownCode,
    matches,
)
from serving.exposition import Sample
from serving.metrics import Metric

_LOWEST: Final = (metrics.HEALTHY,)
"""Of copies and alternative names the lowest counts. Of other metrics, the highest copy and the first name count."""


@dataclass(frozen=True, slots=True, order=True)
class UnitKey:
    """A schedulable unit: a slice of a device, or a device without slices (an empty slice)."""

    device: str
    slice: str = ""


HOST_KEY: Final = UnitKey("")
"""The key of the whole host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitReading:
    """What a page reports about a unit."""

    values: Mapping[Metric, float]
    """In SI units. A slice has no power and no energy: they are of its device."""
    highest: float | None
    """Highest activity of any name, also of one whose 0 proves nothing: it can veto. None: no activity."""
    unknown: tuple[UnknownCode, ...]
    """Why the page cannot show that the unit is idle, sorted. Empty: it can."""
    rejected: Mapping[Metric, UnknownCode]
    """Numbers of the unit or its device on the page that were not measured."""
    profile: str = ""
    """Size of the slice, as the exporter names it."""
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorReading:
    """One page in canonical metrics."""

    units: Mapping[UnitKey, UnitReading]
    devices: Mapping[str, Mapping[Metric, float]]
    """Numbers of whole devices."""
    host: Mapping[Metric, float]
    unknown: tuple[UnknownCode, ...] = ()
    """Why the page has no unit. An absent unit is unknown, not idle."""
    by_program: Mapping[tuple[UnitKey, Metric], Mapping[str, float]] = field(
        default_factory=dict[tuple[UnitKey, Metric], Mapping[str, float]]
    )
    """Numbers by program, of kinds whose activity can outlast its program. Those of the host have an empty key."""

    def evidence(self, key: UnitKey, metric: Metric) -> tuple[Scope, float] | None:
        """Return the value of the smallest part of the hardware that contains the unit; None: not reported."""
        unit = self.units.get(key)
        if unit is not None and metric is metrics.ACTIVE and unit.highest is not None:
            return Scope.UNIT, unit.highest
        if unit is not None and metric in unit.values:
            return Scope.UNIT, unit.values[metric]
        if metric in self.devices.get(key.device, {}):
            return Scope.DEVICE, self.devices[key.device][metric]
        return (Scope.HOST, self.host[metric]) if metric in self.host else None


@dataclass(slots=True)
class _Part:
    """Numbers of a unit, a device or the host while the page is read."""

    found: dict[str, dict[tuple[str, ...], float]] = field(default_factory=dict[str, dict[tuple[str, ...], float]])
    """By series, by the labels that divide its number."""
    rejected: dict[Metric, UnknownCode] = field(default_factory=dict[Metric, UnknownCode])
    tenants: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    shared: bool = False
    profile: str = ""
    values: dict[Metric, float] = field(default_factory=dict[Metric, float])
    highest: float | None = None
    proving: set[Metric] = field(default_factory=set[Metric])
    """Metrics with a value from a series whose 0 is a proof."""

    def add(self, series: AcceleratorSeries, labels: Mapping[str, str], value: float) -> None:
        """Add a number; of two copies one counts."""
        copies = self.found.setdefault(series.name, {})
        part = tuple(labels.get(label, "") for label in series.parts)
        choose = min if series.measures in _LOWEST else max
        copies[part] = choose(copies.get(part, value), value)


_Parts = dict[tuple[Scope, UnitKey], _Part]


def read(contract: AcceleratorContract, samples: Iterable[Sample], *, shared: bool = False) -> AcceleratorReading:
    """Return the values of a page in SI units.

    `shared`: the host shares each device between programs without labels that show it (time-slicing or MPS).
    """
    page = tuple(samples)
    cores = _cores_per_device(contract, page)
    parts = _collect(contract, page, cores)
    for part in parts.values():
        _combine(contract, part)
    units = {key: part for (scope, key), part in parts.items() if scope is Scope.UNIT}
    divided = {key.device for key in units if key.slice}
    devices = {key.device: dict(part.values) for (scope, key), part in parts.items() if scope is Scope.DEVICE}
    for key in [key for key in units if not key.slice and key.device in divided]:
        # numbers of a device that is divided are of no schedulable unit
        devices[key.device] = {**units.pop(key).values, **devices.get(key.device, {})}
    host = parts.get((Scope.HOST, HOST_KEY), _Part())
    readings = {key: _unit(contract, key, parts, shared=shared) for key in sorted(units)}
    absent = () if readings else _absent(contract)
    return AcceleratorReading(
        units=readings,
        devices=devices,
        host=dict(host.values),
        unknown=absent,
        by_program=_by_program(contract, page, cores),
    )


def _by_program(
    contract: AcceleratorContract, page: Iterable[Sample], cores: int | None
) -> dict[tuple[UnitKey, Metric], dict[str, float]]:
    """Return the activity of units and the work of the host by program. Empty: no activity outlasts its program."""
    label, found = contract.evidence.program, dict[tuple[UnitKey, Metric], dict[str, float]]()
    if label is None:
        return found
    for program, own in _grouped(page, label):
        for (scope, key), part in _collect(contract, own, cores).items():
            _combine(contract, part)
            for metric in (metrics.ACTIVE, *contract.evidence.work):
                if metric in part.values and scope is not Scope.DEVICE:
                    found.setdefault((key, metric), {})[program] = part.values[metric]
    return found


def _grouped(page: Iterable[Sample], label: str) -> Iterator[tuple[str, list[Sample]]]:
    groups: dict[str, list[Sample]] = {}
    for sample in page:
        groups.setdefault(sample.labels.get(label, ""), []).append(sample)
    yield from sorted(groups.items())


def _collect(contract: AcceleratorContract, page: Iterable[Sample], cores: int | None) -> _Parts:
    names = {prefix + series.name: series for prefix in contract.prefixes for series in contract.series}
    identity = contract.identity
    parts: _Parts = {}
    for sample in page:
        series = names.get(sample.name)
        if series is None or not matches(series.where, sample.labels):
            continue
        key = UnitKey(identity.device_of(sample.labels), identity.slice_of(sample.labels))
        if cores is not None and not key.device and key.slice.isdigit():
            key = UnitKey(str(int(key.slice) // cores), key.slice)
        if series.scope is Scope.HOST:
            key = HOST_KEY
        elif not key.device and not key.slice:
            continue  # nothing identifies the unit
        if series.scope is Scope.UNIT or (series.scope is Scope.DEVICE and key.slice):
            unit = parts.setdefault((Scope.UNIT, key), _Part())
            _describe(contract, unit, sample.labels)
        elif series.scope is Scope.DEVICE and not identity.cores:
            parts.setdefault((Scope.UNIT, key), _Part())
        place = key if series.scope is Scope.UNIT else UnitKey(key.device)
        part = parts.setdefault((series.scope, place), _Part())
        code = _rejected(contract, series, sample)
        if code is None:
            part.add(series, sample.labels, series.unit.convert(sample.value))
        elif code is not UnknownCode.BLANK or not series.zero_while_busy:
            part.rejected[series.measures] = code
    return parts


def _describe(contract: AcceleratorContract, unit: _Part, labels: Mapping[str, str]) -> None:
    identity = contract.identity
    tenant = identity.tenant_of(labels)
    if any(tenant):
        unit.tenants.add(tenant)
    unit.shared = unit.shared or any(labels.get(label) for label in identity.sharing)
    unit.profile = labels.get(identity.profile or "", "") or unit.profile


def _cores_per_device(contract: AcceleratorContract, page: Iterable[Sample]) -> int | None:
    """Return how many slices a device has; None: the slices are not numbered through the host, or not reported."""
    rule = contract.identity.cores
    if rule is not None:
        for sample in page:
            count = sample.labels.get(rule.label, "")
            if sample.name == rule.series and matches(rule.where, sample.labels) and count.isdigit() and int(count):
                return int(count)
    return None


def _rejected(contract: AcceleratorContract, series: AcceleratorSeries, sample: Sample) -> UnknownCode | None:
    """Return why a number was not measured; None: it was."""
    if not math.isfinite(sample.value) or contract.is_blank(sample.value):
        return UnknownCode.BLANK
    for spot in contract.blind_spots:
        if sample.value == 0 and series.measures in spot.metrics and matches(spot.labels, sample.labels):
            return spot.code
    if series.measures is metrics.POWER and sample.value == 0:
        return UnknownCode.BLANK  # device-metrics-exporter before 1.4 writes 0 for power that it cannot read
    if series.unit is SeriesUnit.PERCENT and not series.fractions and 0 < sample.value < 1:
        return UnknownCode.IMPLAUSIBLE  # a share under the name of a percentage
    lowest, highest = metrics.RANGES.get(series.measures, (0.0, math.inf))
    if not lowest <= series.unit.convert(sample.value) <= highest:
        return UnknownCode.IMPLAUSIBLE
    return None


def _combine(contract: AcceleratorContract, part: _Part) -> None:
    """Combine the names of each metric to one value."""
    for metric in dict.fromkeys(series.measures for series in contract.series):
        carriers = contract.carriers(metric)
        numbers = {one.name: sum(part.found[one.name].values()) for one in carriers if one.name in part.found}
        if not numbers or (carriers[0].adds and (len(numbers) < len(carriers) or metric in part.rejected)):
            continue  # a total of some of its parts would be too low
        values = list(numbers.values())
        if carriers[0].adds:
            part.values[metric] = sum(values)
        else:
            part.values[metric] = min(values) if metric in _LOWEST else values[0]
        if any(one.name in numbers and not one.zero_while_busy for one in carriers):
            part.proving.add(metric)
        if metric is metrics.ACTIVE:
            part.highest = max(values)
    _add_total_memory(part)
    if not _is_memory_plausible(part.values):
        for metric in (metrics.MEMORY_USED, metrics.MEMORY_FREE, metrics.MEMORY_RESERVED, metrics.MEMORY_TOTAL):
            if part.values.pop(metric, None) is not None:
                part.rejected[metric] = UnknownCode.IMPLAUSIBLE


def _add_total_memory(part: _Part) -> None:
    used, free = part.values.get(metrics.MEMORY_USED), part.values.get(metrics.MEMORY_FREE)
    if metrics.MEMORY_TOTAL not in part.values and used is not None and free is not None:
        part.values[metrics.MEMORY_TOTAL] = used + free + part.values.get(metrics.MEMORY_RESERVED, 0.0)


def _is_memory_plausible(values: Mapping[Metric, float]) -> bool:
    """Whether the numbers of memory can have their units. Which one is wrong is not known."""
    used, total = values.get(metrics.MEMORY_USED, 0.0), values.get(metrics.MEMORY_TOTAL)
    if total is None:
        return True
    lowest, highest = metrics.RANGES[metrics.MEMORY_TOTAL]
    return lowest <= total <= highest and (used == 0 or metrics.MIN_USED <= used <= total)


def _unit(
    contract: AcceleratorContract,
    key: UnitKey,
    parts: _Parts,
    *,
    shared: bool,
) -> UnitReading:
    part = parts[Scope.UNIT, key]
    device = parts.get((Scope.DEVICE, UnitKey(key.device)), _Part())
    around = [part, device, parts.get((Scope.HOST, HOST_KEY), _Part())]
    is_shared = shared or part.shared or len(part.tenants) > 1
    codes = {UnknownCode.SHARED} if is_shared else set[UnknownCode]()
    codes |= set(_doubts(contract, around))
    own = dict(part.values) if key.slice else {**device.values, **part.values}
    known = {**device.values, **part.values}
    rejected = {
        metric: code
        for metric, code in (device.rejected | part.rejected).items()
        if code is not UnknownCode.BLANK or metric not in known  # another name gives the number
    }
    codes |= {UnknownCode.IMPLAUSIBLE} & set(rejected.values())
    return UnitReading(
        values=own,
        highest=part.highest,
        unknown=tuple(sorted(codes)),
        rejected=rejected,
        profile=part.profile,
        shared=is_shared,
    )


def _doubts(contract: AcceleratorContract, around: list[_Part]) -> Iterator[UnknownCode]:
    """Yield why the numbers of a unit, its device and its host cannot prove idleness."""
    for metric in contract.evidence.idle:
        rejected = [part.rejected[metric] for part in around if metric in part.rejected]
        if rejected:
            yield rejected[0]
        elif not any(metric in part.proving for part in around):
            yield next(series.absent for series in contract.carriers(metric) if not series.zero_while_busy)


def _absent(contract: AcceleratorContract) -> tuple[UnknownCode, ...]:
    return tuple(sorted(set(_doubts(contract, []))))
