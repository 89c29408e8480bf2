"""The activity of accelerator units that share an instance: slices of a device, and devices with several tenants.

Instances whose devices are whole and have one user have no rows here: `activity_hours` holds their activity.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, func, select

from gpufleet.ledger.facts import MergeRule, lock_writers, merge
from gpufleet.ledger.tables import UNIT_ACTIVITY

_HOUR = timedelta(hours=1)
_BITS = ("seen", "busy", "idle", "engine_busy", "engine_idle")
_STREAM = 2_000


class UnitHour(NamedTuple):
    """Slots of ten seconds of one hour in which one user had a unit, as bit sets; bit 0 is the first slot.

    A user is a tenant, an engine of a tenant, or unnamed by the exporter. Users of one unit have the same
    `busy` and `idle`: they describe the unit. A tuple, since a month of a large fleet has millions of them.
    """

    environment: str
    instance_id: str
    hour: datetime
    device: str
    slice: str
    """Empty: the device is not divided."""
    tenant: str
    """The program or pod that the exporter names; empty: none."""
    engine: str
    """The engine's port and part, if its own series show that it runs on this unit; empty: not known."""
    model: str
    profile: str
    """Size of the slice, as the exporter names it."""
    seen: int
    """The exporter reported the unit with this user."""
    busy: int
    idle: int
    engine_busy: int
    engine_idle: int

    @property
    def key(self) -> tuple[Any, ...]:
        """The natural key."""
        return self[:9]


def add_unit_hours(connection: Connection, hours: Iterable[UnitHour]) -> None:
    """Add known slots to the stored ones; busy wins. Call inside `writing`: it reads the rows that it changes."""
    lock_writers(connection)
    merged: dict[tuple[Any, ...], UnitHour] = {}
    for hour in hours:
        merged[hour.key] = _with_slots(merged.get(hour.key), hour)
    for fleet, at, instance_id in sorted({(one.environment, one.hour, one.instance_id) for one in merged.values()}):
        mine = and_(
            UNIT_ACTIVITY.c.environment == fleet,
            UNIT_ACTIVITY.c.hour == at,
            UNIT_ACTIVITY.c.instance_id == instance_id,
        )
        for known in map(unit_hour, connection.execute(select(UNIT_ACTIVITY).where(mine))):
            if known.key in merged:
                merged[known.key] = _with_slots(known, merged[known.key])
    merge(
        connection, UNIT_ACTIVITY, [row_of(hour) for hour in merged.values()], dict.fromkeys(_BITS, MergeRule.REPLACE)
    )


def unit_hours(connection: Connection, environment: str, since: datetime, until: datetime) -> Iterator[UnitHour]:
    """The rows of hours that overlap the window, by hour and instance. Larger than memory: read them once."""
    table = UNIT_ACTIVITY.c
    statement = (
        select(UNIT_ACTIVITY)
        .where(table.environment == environment, table.hour > since - _HOUR, table.hour < until)
        .order_by(*UNIT_ACTIVITY.primary_key.columns)
    )
    yield from map(unit_hour, connection.execution_options(yield_per=_STREAM).execute(statement))


class Sighting(NamedTuple):
    """The first and the last hour of a window in which a unit was reported."""

    device: str
    slice: str
    profile: str
    first: datetime
    last: datetime


def sightings(
    connection: Connection, environment: str, since: datetime, until: datetime
) -> dict[str, list[Sighting]]:
    """The units of each instance with rows in the window."""
    table = UNIT_ACTIVITY.c
    unit = (table.instance_id, table.device, table.slice, table.profile)
    statement = (
        select(*unit, func.min(table.hour), func.max(table.hour))
        .where(table.environment == environment, table.hour > since - _HOUR, table.hour < until)
        .group_by(*unit)
        .order_by(*unit)
    )
    found: dict[str, list[Sighting]] = {}
    for instance_id, *unit_and_hours in connection.execute(statement):
        found.setdefault(instance_id, []).append(Sighting(*unit_and_hours))
    return found


def unit_hour(row: Any) -> UnitHour:
    """The fact of a row of UNIT_ACTIVITY. Raises ValueError for bits that are not hexadecimal."""
    bits = (int(getattr(row, name), 16) for name in _BITS)
    return UnitHour(
        row.environment, row.instance_id, row.hour, row.device, row.slice, row.tenant, row.engine, row.model,
        row.profile, *bits,
    )  # fmt: skip


def row_of(hour: UnitHour) -> dict[str, Any]:
    """The row of a fact."""
    return hour._asdict() | {name: f"{getattr(hour, name):x}" for name in _BITS}


def _with_slots(known: UnitHour | None, more: UnitHour) -> UnitHour:
    both = more if known is None else more._replace(**{n: getattr(known, n) | getattr(more, n) for n in _BITS})
    return both._replace(idle=both.idle & ~both.busy, engine_idle=both.engine_idle & ~both.engine_busy)


def keep_slots(hour: UnitHour, slots: int) -> UnitHour:
    """The hour with these slots only."""
    return hour._replace(**{name: getattr(hour, name) & slots for name in _BITS})
