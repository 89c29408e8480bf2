"""Turns raw samples of a metrics store into the activity of slices and shared devices. Pure.

Names and labels of metrics are arguments: this package does not depend on an accelerator. The proofs are those of
`serving.accelerators.evidence`, slot by slot: work needs a number that proves it, idleness needs all numbers at 0 and
an exporter that measures. Copies of a series (per pod, of a second exporter or store) are one number.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import Final

from gpufleet.costs.samples import MetricNames, RawSeries, is_blank, model_of, port_of, shares
from gpufleet.costs.slots import ActivitySample, Measure, mark
from gpufleet.ledger.slots import HOUR_US, SLOT_US
from gpufleet.ledger.tables import microseconds, moment
from gpufleet.ledger.units import UnitHour

_Bits = dict[int, int]
"""Hours since 1970 to slots."""
_UnitName = tuple[str, str, str]
"""Device, slice and profile: a slice with another profile is another slice."""
_CLIPPED: Final = (("device", 128), ("slice", 128), ("profile", 64), ("tenant", 400), ("engine", 64), ("model", 256))
"""Lengths of the ledger's columns."""
_LARGEST_ACTIVITY: Final = 100_000.0
"""A percentage that is too high by a factor of 1,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitKind:
    """What the numbers of one kind of accelerators prove about its units."""

    tenants: tuple[str, ...]
    """Labels of the program that a series is attributed to."""
    sharing: tuple[str, ...]
    """Labels that exist only on shared units."""
    profile: str
    """Label of a slice's size; empty: there is none."""
    work: tuple[str, ...]
    """Each of them proves work."""
    idle: tuple[str, ...]
    """All of them together prove idleness."""
    counters: frozenset[str]
    """Those of `work` and `idle` that are counters."""
    program: str = ""
    """Label of the program of a number, where activity can stay above 0 after its program ended; empty: it cannot."""
    pulse: str = ""
    """A number that changes while the exporter measures; empty: there is none."""
    clock: str = ""
    """Time in seconds since the unit last computed; empty: there is none."""
    window: timedelta = timedelta(seconds=60)
    """Time within which the pulse changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitNames:
    """Metrics and labels of accelerator units."""

    kinds: Mapping[str, UnitKind]
    active: str
    """Gauge of activity."""
    scales: Mapping[str, float]
    """Unit of an activity to the factor to a share of time."""
    kind: str
    """Label of the kind of accelerator, and so on."""
    device: str
    slice: str
    unit: str
    scope: str
    device_scopes: tuple[str, ...]
    """Values of `scope` of numbers that are not of one unit: of a device, and of the host."""
    coarse: tuple[str, str]
    """A label and its value on numbers that can be 0 while the unit computes."""
    joules: Mapping[str, float]
    """Unit of an energy to the factor to joules."""
    clock_rates: tuple[float, float]
    """Lowest and highest advance of a clock per second at rest."""
    doubt: str = ""
    """A label of units whose 0 is not a measurement; empty: there is none."""

    def all(self) -> tuple[str, ...]:
        """Every name, for a selector."""
        kinds = self.kinds.values()
        return tuple(
            dict.fromkeys(
                name
                for one in kinds
                for name in (self.active, *one.work, *one.idle, one.pulse, one.clock)
                if name
            )
        )  # fmt: skip


@dataclass(slots=True)
class _Unit:
    """A unit while its series are read."""

    users: dict[str, _Bits] = field(default_factory=lambda: defaultdict(dict))
    """Tenant to the slots in which it was reported."""
    busy: _Bits = field(default_factory=dict[int, int])
    above: dict[str, _Bits] = field(default_factory=lambda: defaultdict(dict))
    """Program to the slots with activity at or above the floor; one empty name where no activity is kept."""
    zeros: dict[str, _Bits] = field(default_factory=lambda: defaultdict(dict))
    """Metric to the slots in which it is measured and shows no work."""
    works: dict[tuple[str, str], _Bits] = field(default_factory=lambda: defaultdict(dict))
    """Metric and program to the slots in which it shows work."""
    pulse: _Bits = field(default_factory=dict[int, int])
    doubted: bool = False

    def working(self, metric: str, hour: int, program: str = "") -> int:
        """The slots of an hour in which a metric shows work: of this program, or of one without a name."""
        return _any(
            bits.get(hour, 0)
            for (name, of), bits in self.works.items()
            if name == metric and (not program or of in ("", program))
        )


@dataclass(slots=True)
class _Engine:
    """An engine whose series show the unit or the tenant that it belongs to."""

    model: str = ""
    covered: _Bits = field(default_factory=dict[int, int])
    busy: _Bits = field(default_factory=dict[int, int])
    requests: list[_Bits] = field(default_factory=list[_Bits])
    """Known slots of each gauge of requests."""


_EngineName = tuple[str, str, tuple[str, str] | None]
"""Port, tenant, and the device and slice that its labels name."""


def unit_activity(  # noqa: PLR0913 - the arguments of `activity`, and the names of units
    fleet: str,
    names: MetricNames,
    units: UnitNames,
    series: Iterable[RawSeries],
    measure: Measure,
    floors: Mapping[str, float] = MappingProxyType({}),
    working_watts: Mapping[str, float] = MappingProxyType({}),
) -> list[UnitHour]:
    """The hours of slices and shared devices. Instances whose devices are whole and have one user have none.

    `floors`: activity below which a unit counts as inactive, of instances whose pool sets it. `working_watts`: power
    that an idle device of an instance never draws; absent: unknown.
    """
    of_units: dict[str, list[RawSeries]] = defaultdict(list)
    engines: dict[str, list[RawSeries]] = defaultdict(list)
    wanted = frozenset(units.all())
    for one in series:
        instance_id = one.labels.get("instance_id", "")
        if instance_id and one.name in wanted and one.labels.get(units.kind) in units.kinds:
            of_units[instance_id].append(one)
        elif instance_id and one.name in (*names.requests, names.prompt, names.generation):
            engines[instance_id].append(one)
    found: list[UnitHour] = []
    for instance_id in sorted(of_units):
        own = of_units[instance_id]
        ports = {port_of(one.labels) for one in engines[instance_id] if one.name in names.requests}
        if _is_divided(units, own, len(ports)):
            floor = floors.get(instance_id, measure.gpu_active_below)
            reader = _Reader(units=units, measure=measure, floor=floor, limit=working_watts.get(instance_id))
            reader.read(own)
            reader.read_engines(names, engines[instance_id])
            found += _clipped(reader.hours(fleet, instance_id))
    return found


def _is_divided(names: UnitNames, series: Sequence[RawSeries], ports: int) -> bool:
    """Whether an instance has slices, or a device with several users."""
    tenants: dict[str, set[str]] = defaultdict(set)
    for one in series:
        kind = names.kinds[one.labels[names.kind]]
        if one.labels.get(names.slice) or any(one.labels.get(label) for label in kind.sharing):
            return True
        if one.name == names.active:
            tenants[one.labels.get(names.device, "")].add(_tenant(kind.tenants, one.labels))
    return any(len(own - {""}) > 1 for own in tenants.values()) or (len(tenants) == 1 and ports > 1)


def _tenant(labels: Iterable[str], values: Mapping[str, str]) -> str:
    """The program that a series names. A store that scraped the exporter in a pod of its own renames the labels."""
    parts = [values.get(f"exported_{label}") or values.get(label, "") for label in labels]
    return "/".join(part for part in parts if part)


@dataclass(slots=True, kw_only=True)
class _Reader:
    """The units and engines of one instance."""

    units: UnitNames
    measure: Measure
    floor: float
    limit: float | None = None
    """Power in W that an idle device never draws."""
    drawing: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Devices and hours with a mean power of at least `limit`."""
    found: dict[_UnitName, _Unit] = field(default_factory=lambda: defaultdict(_Unit))
    wider: dict[str, _Unit] = field(default_factory=lambda: defaultdict(_Unit))
    """Numbers of whole devices; those of the host have an empty name."""
    engines: dict[_EngineName, _Engine] = field(default_factory=lambda: defaultdict(_Engine))
    kind: UnitKind | None = None

    def read(self, series: Iterable[RawSeries]) -> None:
        """Read the series of units, devices and the host."""
        for one in series:
            kind = self.kind = self.units.kinds[one.labels[self.units.kind]]
            part = one.labels.get(self.units.slice, "")
            name = one.labels.get(self.units.device, ""), part, one.labels.get(kind.profile, "") if part else ""
            samples = self._measured(one)
            if one.name == kind.pulse:
                self._add_power(name[0], self.units.joules.get(one.labels.get(self.units.unit, "")), samples)
            scope = one.labels.get(self.units.scope, "")
            if scope in self.units.device_scopes:
                self._add(kind, self.wider[name[0] if scope == self.units.device_scopes[0] else ""], one, samples)
                if not name[1]:
                    continue
            elif not any(name):
                continue
            unit = self.found[name]
            seen = unit.users[_tenant(kind.tenants, one.labels)]
            _join(seen, self._judge([ActivitySample(at, 0.0) for at, _ in one.samples], {}, lambda a, b: False))
            if scope not in self.units.device_scopes:
                self._add(kind, unit, one, samples)

    def _add_power(self, device: str, joules: float | None, samples: Sequence[ActivitySample]) -> None:
        """Note the hours in which the device drew the power of work."""
        if joules is None or self.limit is None:
            return
        for hour, own in groupby(samples, key=lambda sample: microseconds(sample.at) // HOUR_US):
            first, *more = own
            seconds = (more[-1].at - first.at).total_seconds() if more else 0.0
            if seconds and joules * (more[-1].value - first.value) >= self.limit * seconds:
                self.drawing.add((device, hour))

    def _measured(self, one: RawSeries) -> Sequence[ActivitySample]:
        if one.name != self.units.active:
            return [sample for sample in one.samples if not is_blank(sample.value)]
        factor = self.units.scales.get(one.labels.get(self.units.unit, ""))
        if factor is None:
            return ()
        label, value = self.units.coarse
        return shares(one.samples, factor, coarse=one.labels.get(label) == value)

    def _judge(
        self,
        samples: Sequence[ActivitySample],
        busy: _Bits,
        works: Callable[[ActivitySample, ActivitySample], bool],
    ) -> _Bits:
        return mark(samples, self.measure.reach, busy, works)

    def _add(self, kind: UnitKind, unit: _Unit, one: RawSeries, samples: Sequence[ActivitySample]) -> None:
        """Add the evidence of one series to a unit, a device or the host."""
        label, value = self.units.coarse
        unit.doubted |= bool(self.units.doubt and one.labels.get(self.units.doubt))
        if one.name == self.units.active:
            unit.doubted |= _has_other_unit(one.samples, samples)
        if one.name == kind.pulse:
            _join(unit.pulse, mark(_changes(samples), max(kind.window, self.measure.reach), {}, lambda a, b: False))
        if one.name == kind.clock:
            _join(unit.busy, _by_clock(samples))
            unit.doubted |= not _runs(samples, self.units.clock_rates)
        if one.name not in (*kind.work, *kind.idle):
            return
        busy: _Bits = {}
        if one.name in kind.counters:
            known = self._judge(samples, busy, lambda a, b: a.value != b.value)
        else:
            below = self.floor if one.name == self.units.active else 0.0
            at_least = below or 5e-324  # without a floor: above 0
            known = self._judge(samples, busy, lambda a, b: a.value >= at_least or b.value >= at_least)
        program = one.labels.get(kind.program, "") if kind.program else ""
        if one.name == self.units.active:
            _join(unit.above[program], busy)
        _join(unit.works[one.name, program], busy)
        if one.labels.get(label) != value:
            _join(unit.zeros[one.name], known)

    def read_engines(self, names: MetricNames, series: Iterable[RawSeries]) -> None:
        """Read the engines of the instance."""
        labels = self.kind.tenants if self.kind is not None else ()
        for one in series:
            clean = [sample for sample in one.samples if not is_blank(sample.value)]
            device = one.labels.get(self.units.device, "")
            unit = (device, one.labels.get(self.units.slice, "")) if device else None
            engine = self.engines[port_of(one.labels), _tenant(labels, one.labels), unit]
            engine.model = model_of(one.labels, names) or engine.model
            if one.name not in names.requests:
                self._judge(clean, engine.busy, lambda a, b: a.value != b.value)
            elif not names.no_evidence[0] or one.labels.get(names.no_evidence[0]) != names.no_evidence[1]:
                known = self._judge(clean, engine.busy, lambda a, b: a.value > 0 or b.value > 0)
                engine.requests.append(known)
                _join(engine.covered, known)

    def hours(self, fleet: str, instance_id: str) -> Iterator[UnitHour]:
        """The rows of the instance."""
        divided = {device for device, number, _ in self.found if number}
        units = {name: unit for name, unit in self.found.items() if name[1] or name[0] not in divided}
        evidence = {
            name: {
                hour: self._evidence(name[0], unit, hour)
                for hour in sorted({hour for bits in unit.users.values() for hour in bits})
            }
            for name, unit in units.items()
        }
        worked = {(name[0], hour) for name, own in evidence.items() for hour, (busy, _) in own.items() if busy}
        # the device draws the power of work, although no unit of it shows work
        contradicted = self.drawing - worked
        for (device, number, profile), unit in sorted(units.items(), key=lambda item: item[0]):
            engines = self._engines_of((device, number), unit, len(units))
            for hour, (busy, proved) in evidence[device, number, profile].items():
                idle = 0 if (device, hour) in contradicted else proved
                for tenant, engine, model, seen, works, inactive in _users_of(unit, engines, hour):
                    yield UnitHour(
                        environment=fleet,
                        instance_id=instance_id,
                        hour=moment(hour * HOUR_US),
                        device=device,
                        slice=number,
                        tenant=tenant,
                        engine=engine,
                        model=model,
                        profile=profile,
                        seen=seen,
                        busy=busy & seen,
                        idle=idle & seen,
                        engine_busy=works & seen,
                        engine_idle=inactive & seen & ~works,
                    )

    def _evidence(self, device: str, unit: _Unit, hour: int) -> tuple[int, int]:
        """The slots of an hour in which the unit worked, and those in which it was idle."""
        kind = self.kind
        if kind is None:
            return 0, 0
        wider = [self.wider[name] for name in {device, ""} if name in self.wider]
        busy = unit.busy.get(hour, 0)
        elsewhere = 0
        for name in kind.work:
            busy |= unit.working(name, hour)
            elsewhere |= _any(part.working(name, hour) for part in wider)
            for program, above in unit.above.items():
                busy |= above.get(hour, 0) & _any(part.working(name, hour, program) for part in wider)
        idle = -1
        for name in kind.idle:
            measured = [part for part in (unit, *wider) if name in part.zeros]
            working = _any(part.working(name, hour) for part in (unit, *wider))
            idle &= measured[0].zeros[name].get(hour, 0) & ~working if measured else 0
        if kind.pulse:
            idle &= _any(part.pulse.get(hour, 0) for part in (unit, *wider))
        together = _several([bits.get(hour, 0) for tenant, bits in unit.users.items() if tenant])
        doubted = unit.doubted or any(part.doubted for part in wider)
        return busy, 0 if doubted else idle & ~busy & ~elsewhere & ~together

    def _engines_of(self, name: tuple[str, str], unit: _Unit, units: int) -> dict[str, dict[str, _Engine]]:
        """Tenant to its engines on the unit, by port."""
        found: dict[str, dict[str, _Engine]] = defaultdict(dict)
        tenants = set(unit.users) - {""}
        only = next(iter(tenants)) if len(tenants) == 1 else ""
        for (port, tenant, of), engine in self.engines.items():
            if of is not None and of != name:
                continue
            if tenant in tenants:
                found[tenant][port] = engine
            elif not tenant and (of is not None or units == 1) and (only or not tenants):
                found[only][port] = engine
        return found


def _users_of(
    unit: _Unit, engines: Mapping[str, Mapping[str, _Engine]], hour: int
) -> Iterator[tuple[str, str, str, int, int, int]]:
    """Tenant, engine, model and slots of each user of a unit: seen, engine busy, engine idle."""
    named = _any(bits.get(hour, 0) for tenant, bits in unit.users.items() if tenant)
    for tenant in sorted(unit.users):
        seen = unit.users[tenant].get(hour, 0)
        if not tenant:
            seen &= ~named  # numbers of the device that its exporter also reports by tenant
        alone = seen
        for port, engine in sorted(engines.get(tenant, {}).items()):
            covered = seen & engine.covered.get(hour, 0)
            if covered:
                known = covered
                for bits in engine.requests:
                    known &= bits.get(hour, 0)
                yield tenant, port, engine.model, covered, engine.busy.get(hour, 0), known
                alone &= ~covered
        if alone:
            yield tenant, "", "", alone, 0, 0


def _any(sets: Iterable[int]) -> int:
    found = 0
    for bits in sets:
        found |= bits
    return found


def _several(sets: Sequence[int]) -> int:
    """The slots that are in more than one of the sets."""
    once = twice = 0
    for bits in sets:
        twice |= once & bits
        once |= bits
    return twice


def _join(into: _Bits, more: Mapping[int, int]) -> None:
    for hour, bits in more.items():
        into[hour] = into.get(hour, 0) | bits


def _has_other_unit(raw: Sequence[ActivitySample], measured: Sequence[ActivitySample]) -> bool:
    """Whether an activity is not a share of time and too low for a value that means "no measurement"."""
    return any(
        math.isnan(share.value) and 0 < sample.value <= _LARGEST_ACTIVITY
        for sample, share in zip(raw, measured, strict=False)
    )


def _changes(samples: Sequence[ActivitySample]) -> list[ActivitySample]:
    """The samples before and after each change."""
    sides = {id(side): side for pair in pairwise(samples) if pair[0].value != pair[1].value for side in pair}
    return list(sides.values())


def _by_clock(samples: Sequence[ActivitySample]) -> _Bits:
    """The slots at which a unit last computed, as a clock shows that was read soon enough."""
    busy: _Bits = {}
    for before, after in pairwise(samples):
        worked = after.at - timedelta(seconds=min(after.value, 1e9))
        if worked > before.at or after.value < before.value:
            worked = max(worked, before.at)
            hour, inside = divmod(microseconds(worked), HOUR_US)
            busy[hour] = busy.get(hour, 0) | 1 << inside // SLOT_US
    return busy


def _runs(samples: Sequence[ActivitySample], rates: tuple[float, float]) -> bool:
    """Whether a clock advances by about a second per second while its unit does not compute."""
    rising = [(before, after) for before, after in pairwise(samples) if after.value >= before.value]
    elapsed = sum((after.at - before.at).total_seconds() for before, after in rising)
    advanced = sum(after.value - before.value for before, after in rising)
    lowest, highest = rates
    return not rising or lowest * elapsed <= advanced <= highest * elapsed


def _clipped(hours: Iterable[UnitHour]) -> Iterator[UnitHour]:
    for one in hours:
        long = {name: getattr(one, name)[:most] for name, most in _CLIPPED if len(getattr(one, name)) > most}
        yield one._replace(**long) if long else one
