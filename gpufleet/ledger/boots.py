"""Boots and ends of instances, as passes of the spot watchdog observed them. One row for each launch."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Engine, and_, delete, func, select

from gpufleet.domain.activity import ActivityKind
from gpufleet.domain.boots import Boot
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import MergeRule, merge
from gpufleet.ledger.tables import BOOTS

KEPT_FOR: Final = timedelta(days=3)
"""How long an instance is kept after it left."""
NEWEST_KEPT: Final = 10
"""The number of newest successful boots that are kept longer, per pool and machine type."""
_MERGE_RULES: Final = {
    "last_seen_at": MergeRule.GROW,
    "ready_at": MergeRule.REPLACE,
    "left_at": MergeRule.REPLACE,
    "ended_why": MergeRule.REPLACE,
}


def note_boots(engine: Engine, fleet: str, seen: Collection[Boot], now: datetime) -> None:
    """Write the current state of these boots, and delete old ones."""
    if not seen:
        return
    with writing(engine) as connection:
        merge(connection, BOOTS, [_row(fleet, boot) for boot in seen], _MERGE_RULES)
        if any(boot.left_at is not None for boot in seen):
            _forget(connection, fleet, now - KEPT_FOR)


def read_boots(engine: Engine, fleet: str) -> tuple[Boot, ...]:
    """All kept boots, by launch: of present and of recently ended instances, and the newest successful ones."""
    order = (BOOTS.c.launched_at, BOOTS.c.instance_id)
    with engine.connect() as connection:
        rows = connection.execute(select(BOOTS).where(BOOTS.c.fleet == fleet).order_by(*order))
        return tuple(
            Boot(
                instance_id=row.instance_id,
                pool=row.pool,
                group=row.group_name,
                machine_type=row.machine_type,
                launched_at=row.launched_at,
                first_seen_at=row.first_seen_at,
                last_seen_at=row.last_seen_at,
                ready_at=row.ready_at,
                left_at=row.left_at,
                ended_why=None if row.ended_why is None else ActivityKind(row.ended_why),
            )
            for row in rows
        )


def _row(fleet: str, boot: Boot) -> dict[str, object]:
    return {
        "fleet": fleet,
        "instance_id": boot.instance_id,
        "launched_at": boot.launched_at,
        "pool": boot.pool,
        "group_name": boot.group,
        "machine_type": boot.machine_type,
        "first_seen_at": boot.first_seen_at,
        "last_seen_at": boot.last_seen_at,
        "ready_at": boot.ready_at,
        "left_at": boot.left_at,
        "ended_why": None if boot.ended_why is None else boot.ended_why.value,
    }


def _forget(connection: Connection, fleet: str, before: datetime) -> None:
    """Delete boots of instances that left before that time, except the newest successful ones."""
    place = func.row_number().over(
        partition_by=(BOOTS.c.pool, BOOTS.c.machine_type), order_by=BOOTS.c.ready_at.desc()
    )
    key = (BOOTS.c.instance_id, BOOTS.c.launched_at)
    ready = select(*key, place.label("place")).where(BOOTS.c.fleet == fleet, BOOTS.c.ready_at.is_not(None)).subquery()
    kept = (
        select(ready.c.place)
        .where(
            ready.c.instance_id == BOOTS.c.instance_id,
            ready.c.launched_at == BOOTS.c.launched_at,
            ready.c.place <= NEWEST_KEPT,
        )
        .exists()
    )
    connection.execute(delete(BOOTS).where(and_(BOOTS.c.fleet == fleet, BOOTS.c.left_at < before, ~kept)))
