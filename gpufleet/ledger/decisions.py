"""Decisions of the watchdogs, actions in progress (intents) and outcomes. Append-only, except heads and intents."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    and_,
    exists,
    func,
    or_,
    select,
    update,
)

from gpufleet.domain.decisions import (
    UNOBSERVED,
    Action,
    Decision,
    KeptUnobserved,
    LedgerEntry,
    OpenAttempts,
    Outcome,
    OutcomeKind,
    PastAction,
    Reason,
)
from gpufleet.ledger.database import writing
from gpufleet.ledger.tables import DECISIONS, HEADS, INTENTS, OUTCOMES

OPEN_KINDS: Final = frozenset({OutcomeKind.WAITING, OutcomeKind.FAILED})
"""Outcomes after which a later pass continues the action."""
_ENDS: Final = (Action.END, Action.STOP)


def record_decisions(engine: Engine, fleet: str, watchdog: str, made: Sequence[Decision], at: datetime) -> int:
    """Write the decisions whose action, reason or sizes changed. Returns their number."""
    with writing(engine) as connection:
        found = connection.execute(select(HEADS).where(HEADS.c.fleet == fleet, HEADS.c.watchdog == watchdog))
        heads = {row.resource: (row.action, row.reason, row.sizes) for row in found}
        changed = [row for row in made if heads.get(row.resource) != _head(row)]
        if not changed:
            return 0
        key = {"fleet": fleet, "watchdog": watchdog}
        connection.execute(DECISIONS.insert(), [key | {"at": at} | _values(row) for row in changed])
        fresh = [row for row in changed if row.resource not in heads]
        if fresh:
            connection.execute(HEADS.insert(), [key | _head_values(row) for row in fresh])
        for row in changed:
            if row.resource in heads:
                connection.execute(
                    update(HEADS)
                    .where(HEADS.c.fleet == fleet, HEADS.c.watchdog == watchdog, HEADS.c.resource == row.resource)
                    .values(_head_values(row))
                )
        return len(changed)


def has_decisions(engine: Engine, fleet: str) -> bool:
    """Whether a pass that acts has ever made a decision about the fleet."""
    with engine.connect() as connection:
        return connection.execute(select(HEADS.c.resource).where(HEADS.c.fleet == fleet).limit(1)).first() is not None


def record_outcome(engine: Engine, fleet: str, watchdog: str, outcome: Outcome, at: datetime) -> None:
    """Write the outcome of a decision. It removes the intent, unless the action waits or failed (`OPEN_KINDS`)."""
    decision = outcome.decision
    with writing(engine) as connection:
        connection.execute(
            OUTCOMES.insert().values(
                fleet=fleet,
                watchdog=watchdog,
                resource=decision.resource,
                pool=decision.pool,
                action=decision.action.value,
                reason=decision.reason.value,
                kind=outcome.kind.value,
                detail=outcome.detail,
                error=outcome.error,
                usd_per_hour=decision.usd_per_hour,
                at=at,
            )
        )
        if outcome.kind not in OPEN_KINDS:
            connection.execute(
                INTENTS.delete().where(
                    INTENTS.c.fleet == fleet,
                    INTENTS.c.watchdog == watchdog,
                    INTENTS.c.resource == decision.resource,
                )
            )


def intend(engine: Engine, fleet: str, watchdog: str, decision: Decision, at: datetime) -> None:
    """Record an action before it begins. An existing intent stays unchanged."""
    with writing(engine) as connection:
        there = connection.execute(
            select(INTENTS.c.at).where(
                INTENTS.c.fleet == fleet, INTENTS.c.watchdog == watchdog, INTENTS.c.resource == decision.resource
            )
        ).first()
        if there is None:
            connection.execute(
                INTENTS.insert().values(
                    fleet=fleet,
                    watchdog=watchdog,
                    resource=decision.resource,
                    decision=json.dumps(_values(decision), default=str),
                    at=at,
                )
            )


def unfinished(engine: Engine, fleet: str, watchdog: str) -> tuple[Decision, ...]:
    """Actions that began and have no final outcome, oldest first."""
    with engine.connect() as connection:
        rows = connection.execute(
            select(INTENTS)
            .where(INTENTS.c.fleet == fleet, INTENTS.c.watchdog == watchdog)
            .order_by(INTENTS.c.at, INTENTS.c.resource)
        )
        return tuple(_from_values(json.loads(row.decision)) for row in rows)


def is_completed_end() -> ColumnElement[bool]:
    """SQL: whether an outcome is a completed end or stop. A repeated end does not count: an instance ends once.

    Until November 2026, each pass recorded the end again while the instance was still shutting down.
    """
    earlier = OUTCOMES.alias()
    reported_before = exists().where(
        *(earlier.c[name] == OUTCOMES.c[name] for name in ("fleet", "watchdog", "resource", "action", "kind")),
        earlier.c.id < OUTCOMES.c.id,
    )
    stop = OUTCOMES.c.action == Action.STOP
    return and_(
        OUTCOMES.c.kind == OutcomeKind.DONE, or_(stop, and_(OUTCOMES.c.action == Action.END, ~reported_before))
    )


def _may_be_completed_end() -> ColumnElement[bool]:
    """SQL: whether a newer release wrote an outcome that may be an end. Limits of ends count it; savings do not."""
    ends = or_(OUTCOMES.c.action.in_(_ENDS), OUTCOMES.c.action.not_in(Action))
    done = or_(OUTCOMES.c.kind == OutcomeKind.DONE, OUTCOMES.c.kind.not_in(OutcomeKind))
    return and_(ends, done, or_(OUTCOMES.c.action.not_in(Action), OUTCOMES.c.kind.not_in(OutcomeKind)))


def ended_since(engine: Engine, fleet: str, watchdog: str, since: datetime) -> dict[str, int]:
    """Instances that a watchdog ended since then, by pool."""
    with engine.connect() as connection:
        rows = connection.execute(
            select(OUTCOMES.c.pool, func.count())
            .where(
                OUTCOMES.c.fleet == fleet,
                OUTCOMES.c.watchdog == watchdog,
                OUTCOMES.c.at >= since,
                or_(is_completed_end(), _may_be_completed_end()),
            )
            .group_by(OUTCOMES.c.pool)
        )
        return {row[0] or "": row[1] for row in rows}


def done_since(engine: Engine, fleet: str, watchdog: str, since: datetime) -> tuple[PastAction, ...]:
    """Everything that a watchdog did since then, oldest first."""
    names = ("resource", "pool", "action", "reason", "at", "detail")
    wanted = [OUTCOMES.c[name] for name in names]
    with engine.connect() as connection:
        rows = connection.execute(
            select(*wanted)
            .where(
                OUTCOMES.c.fleet == fleet,
                OUTCOMES.c.watchdog == watchdog,
                OUTCOMES.c.at >= since,
                or_(OUTCOMES.c.kind == OutcomeKind.DONE, _may_be_completed_end()),
            )
            .order_by(OUTCOMES.c.at, OUTCOMES.c.id)
        )
        return tuple(
            PastAction(
                resource=row.resource,
                pool=row.pool,
                action=Action(row.action),
                reason=Reason(row.reason),
                at=row.at,
                detail=row.detail,
            )
            for row in rows
        )


def open_attempts_since(engine: Engine, fleet: str, watchdog: str, since: datetime) -> dict[str, OpenAttempts]:
    """By resource: the first and the last end or stop since then that failed, or waits (`OPEN_KINDS`)."""
    with engine.connect() as connection:
        rows = connection.execute(
            select(OUTCOMES.c.resource, func.min(OUTCOMES.c.at), func.max(OUTCOMES.c.at))
            .where(
                OUTCOMES.c.fleet == fleet,
                OUTCOMES.c.watchdog == watchdog,
                OUTCOMES.c.at >= since,
                OUTCOMES.c.action.in_(_ENDS),
                OUTCOMES.c.kind.in_(sorted(OPEN_KINDS)),
            )
            .group_by(OUTCOMES.c.resource)
        )
        return {row[0]: OpenAttempts(first=row[1], last=row[2]) for row in rows}


def history(engine: Engine, fleet: str, resource: str) -> tuple[LedgerEntry, ...]:
    """Every decision about a resource and every outcome, oldest first. For a pool: of all its resources."""
    found: list[LedgerEntry] = []
    with engine.connect() as connection:
        for table in (DECISIONS, OUTCOMES):
            of = or_(table.c.resource == resource, table.c.pool == resource)
            rows = connection.execute(select(table).where(table.c.fleet == fleet, of).order_by(table.c.id))
            found += [_decided(row) if table is DECISIONS else _done(row) for row in rows]
    return tuple(sorted(found, key=lambda past: (past.at, past.outcome is not None)))


def kept_unobserved(connection: Connection, fleet: str, until: datetime) -> tuple[KeptUnobserved, ...]:
    """Every interval in which the idle watchdog kept an instance whose activity was unknown, oldest first."""
    unobserved = and_(DECISIONS.c.action == Action.KEEP.value, DECISIONS.c.reason.in_(sorted(UNOBSERVED)))
    mine = and_(DECISIONS.c.fleet == fleet, DECISIONS.c.watchdog == "idle", DECISIONS.c.at < until)
    once = select(DECISIONS.c.resource).where(mine, unobserved)
    rows = connection.execute(select(DECISIONS).where(mine, DECISIONS.c.resource.in_(once)).order_by(DECISIONS.c.id))
    open_: dict[str, KeptUnobserved] = {}
    found: list[KeptUnobserved] = []
    for row in rows:
        before, reason = open_.get(row.resource), Reason(row.reason)
        if Action(row.action) is Action.KEEP and reason in UNOBSERVED:
            since = row.at if before is None else before.since
            open_[row.resource] = KeptUnobserved(
                instance_id=row.resource, pool=row.pool, reason=reason, since=since, until=None
            )
        elif before is not None:
            found.append(replace(open_.pop(row.resource), until=row.at))
    return tuple(sorted([*found, *open_.values()], key=lambda one: (one.since, one.instance_id)))


def last_outcomes(engine: Engine, fleet: str, most: int, since: datetime | None = None) -> tuple[LedgerEntry, ...]:
    """The last outcomes of a fleet, newest first."""
    statement = select(OUTCOMES).where(OUTCOMES.c.fleet == fleet).order_by(OUTCOMES.c.id.desc()).limit(most)
    if since is not None:
        statement = statement.where(OUTCOMES.c.at >= since)
    with engine.connect() as connection:
        return tuple(_done(row) for row in connection.execute(statement))


def _decided(row: Any) -> LedgerEntry:
    values = {column.name: getattr(row, column.name) for column in DECISIONS.columns}
    return LedgerEntry(at=row.at, watchdog=row.watchdog, decision=_from_values(values), outcome=None)


def _done(row: Any) -> LedgerEntry:
    decision = Decision(
        resource=row.resource,
        pool=row.pool,
        action=Action(row.action),
        reason=Reason(row.reason),
        usd_per_hour=row.usd_per_hour,
    )
    outcome = Outcome(decision=decision, kind=OutcomeKind(row.kind), detail=row.detail, error=row.error)
    return LedgerEntry(at=row.at, watchdog=row.watchdog, decision=decision, outcome=outcome)


def _sizes(decision: Decision) -> str:
    return "" if decision.to_size is None else f"{decision.from_size}>{decision.to_size}"


def _head(decision: Decision) -> tuple[str, str, str]:
    return decision.action.value, decision.reason.value, _sizes(decision)


def _head_values(decision: Decision) -> dict[str, str]:
    return {
        "resource": decision.resource,
        "action": decision.action.value,
        "reason": decision.reason.value,
        "sizes": _sizes(decision),
    }


def _values(decision: Decision) -> dict[str, Any]:
    return {
        "resource": decision.resource,
        "pool": decision.pool,
        "action": decision.action.value,
        "reason": decision.reason.value,
        "detail": decision.detail,
        "evidence": json.dumps(dict(decision.evidence), sort_keys=True),
        "from_size": decision.from_size,
        "to_size": decision.to_size,
        "usd_per_hour": decision.usd_per_hour,
    }


def _from_values(values: Mapping[str, Any]) -> Decision:
    usd = values["usd_per_hour"]
    return Decision(
        **{name: values[name] for name in ("resource", "pool", "detail", "from_size", "to_size")},
        action=Action(values["action"]),
        reason=Reason(values["reason"]),
        evidence=json.loads(values["evidence"]),
        usd_per_hour=None if usd is None else Decimal(usd),
    )
