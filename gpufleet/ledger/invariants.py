"""Checks the invariants of a ledger (`gpufleet ledger verify`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Connection, and_, func, or_, select, text

from gpufleet.domain.money import NANO
from gpufleet.ledger.energy import stored_hours
from gpufleet.ledger.facts import activity_hour
from gpufleet.ledger.rollups import engine_of, engine_of_row, hour_row, reading_of, rolled_hours
from gpufleet.ledger.slots import SLOTS
from gpufleet.ledger.tables import (
    ACTIVITY,
    BOOTS,
    COUNTERS,
    ENDS,
    ENERGY_READINGS,
    PRICES,
    READINGS,
    RESERVATION_READS,
    RESERVATIONS,
    RUNS,
    SUMS,
    TOKEN_HOURS,
    UNIT_ACTIVITY,
)
from gpufleet.ledger.units import unit_hour

_STREAM: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """One violated invariant."""

    rule: str
    where: str
    found: str


def verify(connection: Connection) -> Iterator[Breach]:
    """Every breach; none: the ledger is sound. Reads every row once."""
    yield from _file(connection)
    yield from _runs(connection)
    yield from _ends(connection)
    yield from _readings(connection)
    yield from _roll_ups(connection)
    yield from _activity(connection)
    yield from _energy(connection)
    yield from _units(connection)
    yield from _prices(connection)
    yield from _reservations(connection)
    yield from _sums(connection)
    yield from _boots(connection)


def _file(connection: Connection) -> Iterator[Breach]:
    if connection.dialect.name != "sqlite":
        return
    for (problem,) in connection.execute(text("pragma integrity_check")):
        if problem != "ok":
            yield Breach(rule="the database file is intact", where="SQLite", found=problem)


def _runs(connection: Connection) -> Iterator[Breach]:
    for row in connection.execute(select(RUNS).where(RUNS.c.last_seen_at < RUNS.c.started_at)):
        yield Breach(
            rule="a run is last seen after its start", where=row.instance_id, found=f"seen {row.last_seen_at}"
        )
    ended = (
        select(ENDS.c.cloud, ENDS.c.instance_id, ENDS.c.started_at, func.min(ENDS.c.ended_at).label("ended_at"))
        .group_by(ENDS.c.cloud, ENDS.c.instance_id, ENDS.c.started_at)
        .subquery()
    )
    same = and_(*(RUNS.c[name] == ended.c[name] for name in ("cloud", "instance_id", "started_at")))
    spans = (
        select(RUNS.c.cloud, RUNS.c.instance_id, RUNS.c.started_at, ended.c.ended_at)
        .join(ended, same, isouter=True)
        .order_by(RUNS.c.cloud, RUNS.c.instance_id, RUNS.c.started_at)
    )
    for (_, instance_id), runs in groupby(connection.execute(spans), key=lambda row: (row.cloud, row.instance_id)):
        before: Any = None
        for run in runs:
            if before is not None and (before.ended_at is None or before.ended_at > run.started_at):
                found = f"the run from {before.started_at} overlaps the one from {run.started_at}"
                yield Breach(rule="runs of an instance follow each other", where=instance_id, found=found)
            before = run


def _ends(connection: Connection) -> Iterator[Breach]:
    same = and_(*(RUNS.c[name] == ENDS.c[name] for name in ("cloud", "instance_id", "started_at")))
    wrong = or_(RUNS.c.instance_id.is_(None), ENDS.c.ended_at < ENDS.c.started_at)
    statement = select(ENDS, RUNS.c.instance_id.label("known")).join(RUNS, same, isouter=True).where(wrong)
    for row in connection.execute(statement):
        if row.known is None:
            yield Breach(rule="an end belongs to a run", where=row.instance_id, found="no run begins at that time")
        else:
            yield Breach(rule="a run ends after its start", where=row.instance_id, found=f"ended {row.ended_at}")


def _readings(connection: Connection) -> Iterator[Breach]:
    negative = or_(*(READINGS.c[name] < 0 for name in COUNTERS), READINGS.c.cached > READINGS.c.prompt)
    for row in connection.execute(select(READINGS).where(negative)):
        where = f"{row.instance_id} {row.engine} {row.at}"
        yield Breach(rule="counters are 0 or more, cached at most prompt", where=where, found=str(tuple(row)[6:]))


def _roll_ups(connection: Connection) -> Iterator[Breach]:
    """Roll-ups of hours with raw readings must equal the readings. Hours without raw readings are not checked."""
    order = [TOKEN_HOURS.c[column.name] for column in TOKEN_HOURS.primary_key]
    rows = connection.execution_options(yield_per=_STREAM).execute(select(TOKEN_HOURS).order_by(*order))
    known = {(*engine_of_row(row), row.hour): hash(tuple(row)) for row in rows}
    names = [column.name for column in TOKEN_HOURS.columns]
    raw = select(READINGS).order_by(*(READINGS.c[column.name] for column in READINGS.primary_key))
    readings = connection.execution_options(yield_per=_STREAM).execute(raw)
    for hour, span in rolled_hours(map(reading_of, readings)):
        key = (*engine_of(span.first), hour)
        expected = hour_row(hour, span)
        if known.get(key) != hash(tuple(expected[name] for name in names)):
            found = "differs" if key in known else "missing"
            yield Breach(
                rule="hours equal the sums of their readings", where=" ".join(map(str, key[1:])), found=found
            )


def _activity(connection: Connection) -> Iterator[Breach]:
    for row in connection.execution_options(yield_per=_STREAM).execute(select(ACTIVITY)):
        hour = activity_hour(row)
        if hour.busy & hour.idle or (hour.busy | hour.idle) >> SLOTS:
            where = f"{hour.instance_id} {hour.hour}"
            yield Breach(
                rule="no slot of an hour is both busy and idle, and an hour has 360 slots",
                where=where,
                found=f"{row.busy} and {row.idle}",
            )


def _energy(connection: Connection) -> Iterator[Breach]:
    """Hours of energy must equal their readings, split by the activity."""
    for row in connection.execute(select(ENERGY_READINGS).where(ENERGY_READINGS.c.millijoules < 0)):
        where = f"{row.instance_id} {row.device} {row.at}"
        yield Breach(rule="energy counters are 0 or more", where=where, found=f"{row.millijoules} mJ")
    for expected, stored in stored_hours(connection):
        if stored != expected:
            where = f"{expected['instance_id']} {expected['hour']}"
            found = "missing" if stored is None else "differs"
            yield Breach(rule="hours of energy equal the sums of their readings", where=where, found=found)


def _units(connection: Connection) -> Iterator[Breach]:
    for row in connection.execution_options(yield_per=_STREAM).execute(select(UNIT_ACTIVITY)):
        hour = unit_hour(row)
        both = hour.busy & hour.idle | hour.engine_busy & hour.engine_idle
        every = hour.seen | hour.busy | hour.idle | hour.engine_busy | hour.engine_idle
        if both or every >> SLOTS:
            where = f"{hour.instance_id} {hour.device} {hour.slice} {hour.hour}"
            yield Breach(
                rule="no slot of a unit is both busy and idle, and an hour has 360 slots",
                where=where,
                found=f"{hour[9:]}",
            )


def _prices(connection: Connection) -> Iterator[Breach]:
    for row in connection.execution_options(yield_per=_STREAM).execute(select(PRICES)):
        if not row.usd_per_hour.is_finite() or row.usd_per_hour < 0:
            where = f"{row.sku} {row.zone or row.region} {row.effective_at}"
            yield Breach(rule="a price is 0 or more", where=where, found=str(row.usd_per_hour))


def _reservations(connection: Connection) -> Iterator[Breach]:
    wrong = or_(RESERVATIONS.c.instances < 0, RESERVATIONS.c.last_seen_at < RESERVATIONS.c.started_at)
    for row in connection.execute(select(RESERVATIONS).where(wrong)):
        found = f"{row.instances} instances, seen {row.last_seen_at}"
        yield Breach(rule="paid capacity is last seen after its start", where=row.reservation, found=found)
    wrong = or_(
        RESERVATION_READS.c.instances < 0,
        RESERVATION_READS.c.elsewhere < 0,
        RESERVATION_READS.c.seats < 0,
        RESERVATION_READS.c.last_seen_at < RESERVATION_READS.c.at,
    )
    for row in connection.execute(select(RESERVATION_READS).where(wrong)):
        found = f"{row.instances} instances, {row.elsewhere} elsewhere, {row.seats} declared, seen {row.last_seen_at}"
        yield Breach(
            rule="a reservation's counts are 0 or more, in order",
            where=row.reservation,
            found=found,
        )


def _sums(connection: Connection) -> Iterator[Breach]:
    """A fleet's cost equals the sum of its pools' costs, within the rounding of each."""
    statement = select(SUMS).order_by(SUMS.c.fleet, SUMS.c.span, SUMS.c.pool)
    for (fleet, span), rows in groupby(connection.execute(statement), key=lambda row: (row.fleet, row.span)):
        whole, *pools = rows
        apart = abs(whole.usd - sum((row.usd for row in pools), Decimal(0)))
        if whole.pool or apart > len(pools) * NANO:
            found = f"{whole.usd} USD, {apart} USD apart from its pools" if not whole.pool else "no sum of the fleet"
            yield Breach(rule="a fleet's sum equals the sum of its pools", where=f"{fleet} {span}", found=found)


def _boots(connection: Connection) -> Iterator[Breach]:
    wrong = or_(
        BOOTS.c.last_seen_at < BOOTS.c.first_seen_at,
        BOOTS.c.ready_at < BOOTS.c.launched_at,
        BOOTS.c.left_at < BOOTS.c.first_seen_at,
    )
    for row in connection.execute(select(BOOTS).where(wrong)):
        found = f"launched {row.launched_at}, ready {row.ready_at}, left {row.left_at}"
        yield Breach(rule="times of a boot are in order", where=row.instance_id, found=found)
