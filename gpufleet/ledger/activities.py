"""Activities of scaling groups, as passes read them. A new process continues where the previous one stopped."""

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Engine, delete, select

from gpufleet.domain.activity import Activity, ActivityKind, GroupActivities
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import MergeRule, merge
from gpufleet.ledger.tables import GROUP_ACTIVITIES, GROUP_READS

_READ_RULES: Final[Mapping[str, MergeRule]] = dict.fromkeys(
    ("desired", "members", "leaving", "read_at", "silent_at"), MergeRule.REPLACE
)
_EVENT_RULES: Final[Mapping[str, MergeRule]] = dict.fromkeys(
    ("at", "kind", "instance_id", "detail", "zones", "account_wide"), MergeRule.REPLACE
)
"""An activity that was in progress when it was read may end later."""


def note_activities(engine: Engine, fleet: str, read: Collection[GroupActivities], since: datetime) -> None:
    """Write these groups and add their events. Events before `since` are dropped."""
    if not read:
        return
    events = [_event_row(fleet, event) for one in read for event in one.events]
    with writing(engine) as connection:
        merge(connection, GROUP_READS, [_read_row(fleet, one) for one in read], _READ_RULES)
        if events:
            merge(connection, GROUP_ACTIVITIES, events, _EVENT_RULES)
            old = (GROUP_ACTIVITIES.c.fleet == fleet, GROUP_ACTIVITIES.c.at < since)
            connection.execute(delete(GROUP_ACTIVITIES).where(*old))


def read_activities(engine: Engine, fleet: str, since: datetime) -> tuple[GroupActivities, ...]:
    """Every recorded group, with its events since then, oldest first."""
    events: dict[str, list[Activity]] = {}
    table = GROUP_ACTIVITIES
    newer = select(table).where(table.c.fleet == fleet, table.c.at >= since).order_by(table.c.at, table.c.id)
    with engine.connect() as connection:
        for row in connection.execute(newer):
            event = Activity(
                id=row.id,
                group=row.group_name,
                kind=ActivityKind(row.kind),
                at=row.at,
                instance_id=row.instance_id,
                detail=row.detail,
                zones_available=tuple(json.loads(row.zones)),
                account_wide=bool(row.account_wide),
            )
            events.setdefault(event.group, []).append(event)
        rows = connection.execute(select(GROUP_READS).where(GROUP_READS.c.fleet == fleet))
        return tuple(
            GroupActivities(
                group=row.group_name,
                desired=row.desired,
                members=frozenset(json.loads(row.members)),
                leaving=frozenset(json.loads(row.leaving)),
                read_at=row.read_at,
                silent_at=row.silent_at,
                events=tuple(events.get(row.group_name, ())),
            )
            for row in rows
        )


def _read_row(fleet: str, one: GroupActivities) -> dict[str, Any]:
    return {
        "fleet": fleet,
        "group_name": one.group,
        "desired": one.desired,
        "members": json.dumps(sorted(one.members)),
        "leaving": json.dumps(sorted(one.leaving)),
        "read_at": one.read_at,
        "silent_at": one.silent_at,
    }


def _event_row(fleet: str, event: Activity) -> dict[str, Any]:
    return {
        "fleet": fleet,
        "group_name": event.group,
        "id": event.id,
        "at": event.at,
        "kind": event.kind.value,
        "instance_id": event.instance_id,
        "detail": event.detail,
        "zones": json.dumps(event.zones_available),
        "account_wide": int(event.account_wide),
    }
