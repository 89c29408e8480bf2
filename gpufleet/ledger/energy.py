"""Energy of accelerators: raw counters, and the energy of each instance's hour by state.

Rules. A step is the difference between two readings of a device that follow each other. It counts at its later
reading, so that the sums over any partition of a window are equal. It is measured if it spans at most `MAX_GAP`, the
counter increased, and its mean power is plausible. All other time is unknown: it has no energy, and is not zero.
- A counter that decreased was reset. The energy between both readings is unknown; so is the energy before a device's
  first reading, because a counter may have begun before the instance.
- A reading that repeats the value before it is not a new measurement: a step ends at the next other value.
- A step is split over the states of its instance (busy, idle, unknown) by their time in it, to the millijoule.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from itertools import groupby, islice
from typing import Any, Final

from sqlalchemy import Connection, func, select

from gpufleet.ledger.counters import MAX_GAP
from gpufleet.ledger.facts import ActivityHour, MergeRule, activity_hour, lock_writers, merge
from gpufleet.ledger.slots import HOUR_US, overlap
from gpufleet.ledger.tables import ACTIVITY, ENERGY_HOURS, ENERGY_READINGS, microseconds, moment

HOUR: Final = timedelta(hours=1)
LOOKBACK: Final = 2 * MAX_GAP
"""How far before a window its first step may depend on readings."""
PLAUSIBLE_WATTS: Final = (3, 2_900)
"""Lowest and highest plausible mean power of a device. A step outside of it has another unit, or is an error. The
range is narrower than a factor of 1,000, so that a unit that is wrong by it never stays inside.
"""
_PER_WATT: Final = 1_000
"""Watts of one millijoule per microsecond."""
_FEW: Final = 200
_STREAM: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyReading:
    """The energy counter of one device at one time."""

    environment: str
    instance_id: str
    device: str
    at: datetime
    millijoules: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyUse:
    """The measured energy of an instance, in millijoules."""

    devices: int = 0
    """Devices with a reading. Of a sum: the most of any part."""
    used_mj: int = 0
    idle_mj: int = 0
    other_mj: int = 0
    """While it is unknown whether the instance was busy or idle."""
    measured_us: int = 0
    """Measured time of all devices together."""
    resets: int = 0
    rejected: int = 0
    """Steps with an implausible mean power."""

    def __add__(self, other: "EnergyUse") -> "EnergyUse":
        sums = {name: getattr(self, name) + getattr(other, name) for name in _NAMES}
        return EnergyUse(**sums | {"devices": max(self.devices, other.devices)})

    @property
    def millijoules(self) -> int:
        """All of it."""
        return self.used_mj + self.idle_mj + self.other_mj


_NAMES: Final = tuple(field.name for field in fields(EnergyUse))
Slots = Mapping[datetime, ActivityHour]
"""The activity of one instance by hour."""


def plausible(millijoules: int, span: timedelta) -> bool:
    """Whether the energy of one device in a time longer than 0 is plausible."""
    low, high = (watts * microseconds_of(span) for watts in PLAUSIBLE_WATTS)
    return low <= millijoules * _PER_WATT <= high


def microseconds_of(span: timedelta) -> int:
    """Return whole microseconds."""
    return span // timedelta(microseconds=1)


def use_of(readings: Iterable[EnergyReading], slots: Slots, since: datetime, until: datetime) -> EnergyUse:
    """The energy of one instance in a part of one hour.

    `readings`: those of its devices from `LOOKBACK` before the start of the hour until `until`, in any order.
    """
    ordered = sorted(readings, key=lambda one: (one.device, one.at))
    found = EnergyUse()
    devices: set[str] = set()
    for device, mine in groupby(ordered, key=lambda one: one.device):
        last: EnergyReading | None = None
        for reading in mine:
            inside = since <= reading.at < until
            if inside:
                devices.add(device)
            if last is not None and reading.millijoules == last.millijoules:
                continue
            if last is not None and inside:
                found += _step(last, reading, slots)
            last = reading
    return found + EnergyUse(devices=len(devices))


def _step(before: EnergyReading, after: EnergyReading, slots: Slots) -> EnergyUse:
    energy, span = after.millijoules - before.millijoules, after.at - before.at
    if energy < 0:
        return EnergyUse(resets=1)
    if span > MAX_GAP:
        return EnergyUse()
    if not plausible(energy, span):
        return EnergyUse(rejected=1)
    busy, idle, whole = *_states(slots, before.at, after.at), microseconds_of(span)
    used, known = energy * busy // whole, energy * (busy + idle) // whole
    return EnergyUse(used_mj=used, idle_mj=known - used, other_mj=energy - known, measured_us=whole)


def _states(slots: Slots, start: datetime, end: datetime) -> tuple[int, int]:
    """The busy and the idle microseconds of a span."""
    first, last = microseconds(start), microseconds(end)
    busy = idle = 0
    for hour in range(first // HOUR_US, (last - 1) // HOUR_US + 1):
        known = slots.get(moment(hour * HOUR_US))
        if known is not None:
            at = hour * HOUR_US
            span = max(first - at, 0), min(last - at, HOUR_US)
            busy += overlap(known.busy, *span)
            idle += overlap(known.idle, *span)
    return busy, idle


def add_energy_readings(connection: Connection, readings: Iterable[EnergyReading]) -> None:
    """Write readings; existing ones stay. Call `roll_up_energy` in the same transaction."""
    names = [column.name for column in ENERGY_READINGS.columns]
    merge(connection, ENERGY_READINGS, [{name: getattr(one, name) for name in names} for one in readings])


def roll_up_energy(
    connection: Connection, readings: Iterable[EnergyReading], activity: Iterable[ActivityHour] = ()
) -> None:
    """Write the hours that new readings and new activity touch. Call in the transaction that added them."""
    lock_writers(connection)
    touched: dict[tuple[str, datetime], set[str]] = {}
    for one in readings:
        for at in {floor_hour(one.at), floor_hour(one.at + LOOKBACK)}:
            touched.setdefault((one.environment, at), set()).add(one.instance_id)
    for hour in activity:
        for at in (hour.hour, hour.hour + HOUR):
            touched.setdefault((hour.environment, at), set()).add(hour.instance_id)
    moves = {column.name: MergeRule.REPLACE for column in ENERGY_HOURS.columns if not column.primary_key}
    rows = _hour_rows(connection, touched)
    while some := list(islice(rows, _STREAM)):
        merge(connection, ENERGY_HOURS, some, moves)


def floor_hour(at: datetime) -> datetime:
    """The start of the hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def _hour_rows(
    connection: Connection, touched: Mapping[tuple[str, datetime], Collection[str]]
) -> Iterator[dict[str, Any]]:
    for (environment, hour), instances in sorted(touched.items()):
        for instance_id, use in _uses_in_hour(connection, environment, instances, hour, hour + HOUR):
            if use.devices:
                yield hour_row(environment, hour, instance_id, use)


def hour_row(environment: str, hour: datetime, instance_id: str, use: EnergyUse) -> dict[str, Any]:
    """A row of ENERGY_HOURS."""
    key = {"environment": environment, "hour": hour, "instance_id": instance_id}
    return key | {name: getattr(use, name) for name in _NAMES}


def _uses_in_hour(
    connection: Connection, environment: str, instances: Iterable[str], since: datetime, until: datetime
) -> Iterator[tuple[str, EnergyUse]]:
    """The energy of instances in a part of one hour, from raw readings."""
    hour, ordered = floor_hour(since), sorted(instances)
    for start in range(0, len(ordered), _FEW):
        some = ordered[start : start + _FEW]
        readings = _readings(connection, environment, some, hour - LOOKBACK, until)
        slots = _slots(connection, environment, list(readings), hour) if readings else {}
        for instance_id, mine in readings.items():
            yield instance_id, use_of(mine, slots.get(instance_id, {}), since, until)


def _readings(
    connection: Connection, environment: str, instances: Sequence[str], since: datetime, until: datetime
) -> dict[str, list[EnergyReading]]:
    column = ENERGY_READINGS.c
    statement = select(ENERGY_READINGS).where(
        column.environment == environment,
        column.instance_id.in_(instances),
        column.at >= since,
        column.at < until,
    )
    found: dict[str, list[EnergyReading]] = {}
    for row in connection.execute(statement):
        found.setdefault(row.instance_id, []).append(energy_reading(row))
    return found


def energy_reading(row: Any) -> EnergyReading:
    """Convert a row of ENERGY_READINGS."""
    return EnergyReading(
        environment=row.environment,
        instance_id=row.instance_id,
        device=row.device,
        at=row.at,
        millijoules=row.millijoules,
    )


def _slots(
    connection: Connection, environment: str, instances: Sequence[str], hour: datetime
) -> dict[str, dict[datetime, ActivityHour]]:
    """The activity of an hour and the one before it, by instance."""
    column = ACTIVITY.c
    statement = select(ACTIVITY).where(
        column.environment == environment,
        column.instance_id.in_(instances),
        column.hour >= hour - HOUR,
        column.hour <= hour,
    )
    found: dict[str, dict[datetime, ActivityHour]] = {}
    for known in map(activity_hour, connection.execute(statement)):
        found.setdefault(known.instance_id, {})[known.hour] = known
    return found


def energy_uses(connection: Connection, environment: str, since: datetime, until: datetime) -> dict[str, EnergyUse]:
    """The energy of each instance with readings in a window, by instance."""
    found: dict[str, EnergyUse] = {}
    begin, end = floor_hour(since), floor_hour(until)
    whole = begin if begin == since else begin + HOUR
    edges: list[tuple[datetime, datetime]] = []
    if begin != since:
        edges.append((since, min(whole, until)))
    if end != until and end >= whole:
        edges.append((end, until))
    for start, stop in edges:
        for name, use in _uses_in_hour(
            connection, environment, _read_in(connection, environment, start), start, stop
        ):
            found[name] = found.get(name, EnergyUse()) + use
    column = ENERGY_HOURS.c
    sums = [func.sum(column[name]).label(name) for name in _NAMES if name != "devices"]
    statement = (
        select(column.instance_id, func.max(column.devices).label("devices"), *sums)
        .where(column.environment == environment, column.hour >= whole, column.hour < end)
        .group_by(column.instance_id)
    )
    for row in connection.execute(statement):
        use = EnergyUse(**{name: int(getattr(row, name)) for name in _NAMES})  # PostgreSQL sums are Decimal
        found[row.instance_id] = found.get(row.instance_id, EnergyUse()) + use
    return {name: use for name, use in found.items() if use.devices}


def _read_in(connection: Connection, environment: str, at: datetime) -> list[str]:
    """The instances with readings in the hour of that time."""
    column = ENERGY_HOURS.c
    mine = (column.environment == environment, column.hour == floor_hour(at))
    return list(connection.execute(select(column.instance_id).where(*mine)).scalars())


def stored_hours(connection: Connection) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Each row of ENERGY_HOURS that readings and activity require, with the stored row; None: it is missing."""
    names = [column.name for column in ENERGY_HOURS.columns]
    instances = select(ENERGY_READINGS.c.environment, ENERGY_READINGS.c.instance_id).distinct()
    for environment, instance_id in connection.execute(instances).all():
        column = ENERGY_READINGS.c
        times = select(column.at).where(column.environment == environment, column.instance_id == instance_id)
        hours = {(environment, floor_hour(at)): [instance_id] for at in connection.execute(times).scalars()}
        same = (ENERGY_HOURS.c.environment == environment, ENERGY_HOURS.c.instance_id == instance_id)
        found = {row.hour: row for row in connection.execute(select(ENERGY_HOURS).where(*same))}
        for expected in _hour_rows(connection, hours):
            row = found.get(expected["hour"])
            yield expected, None if row is None else {name: getattr(row, name) for name in names}
