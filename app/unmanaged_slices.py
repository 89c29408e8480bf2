"""Cost and use by slice of GPU instances that no fleet owns, from raw samples of a metrics store.

The rule is that of a fleet's report (`gpufleet.costs.slices`), over the window in which the instances are judged. A
slice is in use if it worked at least once in the window, and idle if evidence of rest covers the window. All others
are unknown.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import reduce
from typing import Final

from app.cost_sources import METRIC_NAMES, PrometheusSampleSource
from app.unit_names import UNIT_NAMES
from gpufleet.clouds.samples import PrometheusSamples
from gpufleet.costs.samples import RawSeries
from gpufleet.costs.slice_bills import SliceCost, SliceReport, by_slice, shape_of
from gpufleet.costs.slice_use import SliceUse, Use, in_order
from gpufleet.costs.slice_view import user
from gpufleet.costs.slices import BilledSpan, NodeBill, allocate
from gpufleet.costs.slot_parts import PartState, UnitName
from gpufleet.costs.slots import Measure
from gpufleet.costs.unit_samples import unit_activity
from gpufleet.domain import catalogue, money
from gpufleet.domain.model import Instance
from gpufleet.ledger.slots import SLOT_US
from gpufleet.ledger.units import Sighting, UnitHour
from serving.accelerators.metrics import PREFIX
from serving.accelerators.queries import DEVICE_LABEL, SLICE_LABEL, TENANT_LABEL
from watchdogs.orphans.watchdog import AT_ONCE, of_instances

NAMES: Final = tuple(
    dict.fromkeys((*UNIT_NAMES.all(), *METRIC_NAMES.requests, METRIC_NAMES.prompt, METRIC_NAMES.generation))
)
"""The metrics that it reads."""
COVERAGE: Final = 0.9
"""The share of the window that evidence of rest must cover, as in the idle watchdog's default policy."""
_SLOT: Final = timedelta(microseconds=SLOT_US)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmanagedSlices:
    """The slices and shared devices of instances."""

    costs: SliceReport = field(default_factory=SliceReport)
    uses: Sequence[SliceUse] = ()
    """The idle ones first."""


def read(store: PrometheusSamples, ids: Sequence[str], window: timedelta, now: datetime) -> list[RawSeries]:
    """Raw samples of accelerators and engines in the window. Raises OSError."""
    source, names = PrometheusSampleSource(store), "|".join(NAMES)
    found: list[RawSeries] = []
    for start in range(0, len(ids), AT_ONCE):
        selector = f'{{__name__=~"{names}",{of_instances(ids[start : start + AT_ONCE])}}}'
        found += source.samples(selector, now - window, now)
    return found


def divided_query(labels: str) -> str:
    """Query for the instances whose exporter reports slices, shared devices or several programs on a device."""

    def series(matcher: str) -> str:
        return f'{{__name__=~"{PREFIX}.+",{labels},{matcher}!=""}}'

    unit = f"instance_id, {DEVICE_LABEL}, {SLICE_LABEL}"
    sharing = dict.fromkeys(label for kind in UNIT_NAMES.kinds.values() for label in kind.sharing)
    users = f"count by ({unit}) (group by ({unit}, {TENANT_LABEL}) ({series(TENANT_LABEL)})) > 1"
    parts = [*map(series, (SLICE_LABEL, *sharing)), users]
    return " or ".join(f"group by (instance_id) ({part})" for part in parts)


def find(
    instances: Sequence[Instance],
    series: Iterable[RawSeries],
    usd_per_hour: Mapping[str, Decimal],
    window: timedelta,
    now: datetime,
) -> UnmanagedSlices:
    """Divide the list price of each instance with slices or shared devices over the window that ends now, and judge
    its slices. Pure.

    `usd_per_hour`: by instance id; absent: unknown. Nothing is known about an id that two instances have.
    """
    limits = catalogue.working_watts_of(instances)
    rows = unit_activity("", METRIC_NAMES, UNIT_NAMES, series, Measure(), working_watts=limits)
    rows.sort(key=lambda row: (row.hour, row.instance_id))
    divided = {row.instance_id for row in rows}
    named = Counter(one.id for one in instances)
    chosen = {one.id: one for one in instances if one.id in divided and named[one.id] == 1 and one.launched_at < now}
    bills = {
        name: NodeBill(
            instance_id=name,
            shape=shape_of(one.cloud, one.machine_type),
            spans=[
                BilledSpan(start=max(now - window, one.launched_at), end=now, usd_per_hour=usd_per_hour.get(name))
            ],
        )
        for name, one in chosen.items()
    }
    costs = by_slice(allocate(bills, rows, _sightings(rows)))
    return UnmanagedSlices(
        costs=costs, uses=in_order(_uses(costs, [row for row in rows if row.instance_id in chosen], window))
    )


def _sightings(rows: Iterable[UnitHour]) -> dict[str, Sequence[Sighting]]:
    hours: dict[tuple[str, str, str, str], list[datetime]] = defaultdict(list)
    for row in rows:
        hours[row.instance_id, row.device, row.slice, row.profile].append(row.hour)
    found: dict[str, list[Sighting]] = defaultdict(list)
    for (instance_id, device, part, profile), seen in hours.items():
        found[instance_id].append(Sighting(device, part, profile, min(seen), max(seen)))
    return dict(found)


def _uses(costs: SliceReport, hours: Iterable[UnitHour], window: timedelta) -> Iterable[SliceUse]:
    """Each reported unit, and the other parts of the instances."""
    units: dict[tuple[str, UnitName], list[UnitHour]] = defaultdict(list)
    for row in hours:
        units[row.instance_id, (row.device, row.slice, row.profile)].append(row)
    of_unit: dict[tuple[str, UnitName], list[SliceCost]] = defaultdict(list)
    for cost in costs.rows:
        key = cost.instance_id, (cost.key.device, cost.key.slice, cost.key.profile)
        if cost.kind is PartState.USED and key in units:
            of_unit[key].append(cost)
        elif cost.figure.time > (1 - COVERAGE) * window:  # not the seconds before the first sample of the window
            stranded = cost.kind is PartState.STRANDED
            yield SliceUse(
                instance_id=cost.instance_id,
                device=cost.key.device,
                slice=cost.key.slice,
                profile=cost.key.profile,
                share=cost.key.size,
                use=Use.STRANDED if stranded else Use.UNKNOWN,
                users={},
                note=user(cost) if stranded or not cost.key.device else "(slices of unknown size)",
                usd_per_hour=cost.figure.usd_per_hour,
            )
    for (name, unit), rows in units.items():
        device, part, profile = unit
        own = of_unit.get((name, unit), [])
        use, users = _judged(rows, window)
        yield SliceUse(
            instance_id=name,
            device=device,
            slice=part,
            profile=profile,
            share=own[0].key.size if own else None,
            use=use,
            users=users,
            usd_per_hour=_usd_per_hour(own),
        )


def _usd_per_hour(own: Sequence[SliceCost]) -> Decimal | None:
    """The price of a unit while it existed: its users together."""
    if any(cost.figure.unpriced for cost in own):
        return None
    time = sum((cost.figure.time for cost in own), timedelta(0))
    return money.per_hour(money.total(cost.figure.amount for cost in own), time)


def _judged(rows: Sequence[UnitHour], window: timedelta) -> tuple[Use, dict[str, Use]]:
    """The use of a unit, and of each of its users."""
    by_name: dict[str, list[UnitHour]] = defaultdict(list)
    for row in rows:
        if row.tenant or row.engine:
            by_name[row.tenant or row.engine].append(row)
    whole = Use.IN_USE if any(row.busy or row.engine_busy for row in rows) else _at_rest(rows, window)
    if len(by_name) <= 1:
        return whole, dict.fromkeys(by_name, whole)
    users = {
        name: Use.IN_USE if any(row.engine_busy for row in own) else _at_rest(own, window, is_shared=True)
        for name, own in sorted(by_name.items())
    }
    if whole is Use.UNKNOWN and set(users.values()) == {Use.IDLE}:
        whole = Use.IDLE
    return whole, users


def _at_rest(rows: Iterable[UnitHour], window: timedelta, *, is_shared: bool = False) -> Use:
    """Whether evidence of rest covers the window. `is_shared`: the rows are of one of several users, whose engine
    shows its rest also while others work.
    """
    hours: dict[datetime, list[UnitHour]] = defaultdict(list)
    for row in rows:
        hours[row.hour].append(row)
    slots = 0
    for own in hours.values():
        rest = reduce(int.__or__, (row.engine_idle if is_shared and row.engine else row.idle for row in own), 0)
        unproved = reduce(int.__or__, (row.seen & ~row.engine_idle for row in own if row.engine), 0)
        slots += (rest & ~unproved).bit_count()
    return Use.IDLE if slots * _SLOT >= COVERAGE * window else Use.UNKNOWN
