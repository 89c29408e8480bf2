"""Paid capacity and its use elsewhere, as one fleet saw it over time.

A row applies from the pass that first observed it until the next pass that observed a change. The first row of a
reservation applies from the reservation's start.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, ScalarSelect, case, func, or_, select

from gpufleet.domain.model import Cloud
from gpufleet.ledger.facts import NOT_MISSED, MergeRule, Recount, Reservation, merge
from gpufleet.ledger.tables import PASSES, RESERVATION_READS, RESERVATIONS, UtcMicroseconds

_SEEN: Final = tuple(
    column.name
    for column in RESERVATION_READS.columns
    if column.name not in ("environment", "cloud", "at", "last_seen_at")
)
_Key: TypeAlias = tuple[str, str, datetime]
"""Cloud, name and start: a new reservation may have the name of a deleted one."""
_ONE: Final = (RESERVATION_READS.c.cloud, RESERVATION_READS.c.reservation, RESERVATION_READS.c.started_at)


def note_reservations(connection: Connection, seen: Iterable[Reservation]) -> None:
    """Write the readings of one pass, at the `last_seen_at` of each. Call inside `writing`."""
    readings = list(seen)
    if not readings:
        return
    fleet = readings[0].environment
    newest = _newest(connection, fleet, readings[0].last_seen_at)
    before = _older(connection, fleet)
    rows: list[dict[str, Any]] = []
    for reading in readings:
        row: dict[str, Any] = asdict(reading) | {"cloud": reading.cloud.value, "accounts": _text(reading.accounts)}
        del row["recount"], row["missed_at"]
        key = row["cloud"], reading.reservation, reading.started_at
        known = newest.get(key)
        if known is not None and all(getattr(known, name) == row[name] for name in _SEEN):
            at = known.at
        elif known is not None:
            at = reading.last_seen_at
        else:
            at = before.get(key, reading.started_at)
        rows.append(row | {"at": min(at, reading.last_seen_at)})
    merge(connection, RESERVATION_READS, rows, {"last_seen_at": MergeRule.GROW})


def _text(accounts: Mapping[str, int] | None) -> str | None:
    """The stored form, which is equal for equal accounts."""
    return None if accounts is None else json.dumps(accounts, sort_keys=True)


def _newest(connection: Connection, fleet: str, until: datetime) -> dict[_Key, Any]:
    """The newest row of each reservation."""
    mine = RESERVATION_READS.c.environment == fleet, RESERVATION_READS.c.at <= until
    order = func.row_number().over(partition_by=_ONE, order_by=RESERVATION_READS.c.at.desc()).label("age")
    rows = select(RESERVATION_READS, order).where(*mine).subquery()
    found = connection.execute(select(rows).where(rows.c.age == 1))
    return {(row.cloud, row.reservation, row.started_at): row for row in found}


def _older(connection: Connection, fleet: str) -> dict[_Key, datetime]:
    """The time until which rows of an older release contain the paid capacity."""
    key = RESERVATIONS.c.cloud, RESERVATIONS.c.reservation, RESERVATIONS.c.started_at
    statement = (
        select(*key, func.max(RESERVATIONS.c.last_seen_at, type_=UtcMicroseconds()).label("at"))
        .where(RESERVATIONS.c.environment == fleet)
        .group_by(*key)
    )
    return {(row.cloud, row.reservation, row.started_at): row.at for row in connection.execute(statement)}


def reservations(connection: Connection, environment: str, since: datetime, until: datetime) -> list[Reservation]:
    """Paid capacity that overlaps the span, oldest first: one entry for each interval without a change.

    The last interval ends at the pass that no longer listed it, because it may have existed until then.
    """
    following = (
        func.lead(RESERVATION_READS.c.at, type_=UtcMicroseconds())
        .over(partition_by=_ONE, order_by=RESERVATION_READS.c.at)
        .label("following")
    )
    first = func.min(RESERVATION_READS.c.at, type_=UtcMicroseconds()).over(partition_by=_ONE).label("first")
    then = [
        func.lead(RESERVATION_READS.c[name])
        .over(partition_by=_ONE, order_by=RESERVATION_READS.c.at)
        .label(f"then_{name}")
        for name in ("instances", "seats", "elsewhere")
    ]
    rows = (
        select(RESERVATION_READS, following, first, *then)
        .where(RESERVATION_READS.c.environment == environment)
        .subquery()
    )
    missed = case((rows.c.following.is_(None), _missed_at(environment, rows.c.last_seen_at)))
    dated = select(rows, missed.label("missed")).where(rows.c.at < until).subquery()
    end = func.coalesce(dated.c.following, dated.c.missed, type_=UtcMicroseconds())
    found: list[Reservation] = []
    begun: dict[_Key, datetime] = {}
    names = [name for name in _SEEN if name not in ("started_at", "accounts")]
    for row in connection.execute(select(dated).where(or_(end.is_(None), end > since))):
        cloud = Cloud(row.cloud)
        begun[row.cloud, row.reservation, row.started_at] = row.first
        recount = None
        if row.following is not None and row.then_instances != row.instances:
            recount = Recount(
                after=row.last_seen_at,
                instances=row.then_instances,
                seats=row.then_seats,
                elsewhere=row.then_elsewhere,
            )
        found.append(
            Reservation(
                cloud=cloud,
                environment=environment,
                started_at=row.at,
                last_seen_at=row.following or row.last_seen_at,
                accounts=None if row.accounts is None else json.loads(row.accounts),
                recount=recount,
                missed_at=None if row.following is not None else row.missed or NOT_MISSED,
                **{name: getattr(row, name) for name in names},
            )
        )
    for old in _of_older_releases(connection, environment, since, until):
        stop = min(old.last_seen_at, begun.get((old.cloud.value, old.reservation, old.started_at), old.last_seen_at))
        if old.started_at < stop:
            found.append(replace(old, last_seen_at=stop))
    return sorted(found, key=lambda one: (one.started_at, one.reservation))


def _missed_at(environment: str, last_seen_at: Any) -> ScalarSelect[Any]:
    """The first pass after a time that read all paid capacity. Passes of older releases count, too."""
    read = func.coalesce(PASSES.c.paid, 1) == 1
    return (
        select(func.min(PASSES.c.at, type_=UtcMicroseconds()))
        .where(PASSES.c.environment == environment, PASSES.c.at > last_seen_at, read)
        .scalar_subquery()
    )


def _of_older_releases(
    connection: Connection, environment: str, since: datetime, until: datetime
) -> list[Reservation]:
    """Rows of release 0.1. Their ends are unknown: they are charged until they were last seen."""
    statement = select(RESERVATIONS).where(
        RESERVATIONS.c.environment == environment,
        RESERVATIONS.c.started_at < until,
        RESERVATIONS.c.last_seen_at > since,
    )
    names = [column.name for column in RESERVATIONS.columns if column.name != "cloud"]
    return [
        Reservation(cloud=Cloud(row.cloud), **{name: getattr(row, name) for name in names})
        for row in connection.execute(statement)
    ]
