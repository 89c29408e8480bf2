"""What the ledger tells a person: targets, brakes, what was done, what it cost."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Engine, and_, func, or_, select

from console.view import ActView, BrakeView, CostView, UnitCost
from costs.allocation import State
from costs.figures import Figure
from costs.report import By, Report
from fleet import money
from ledger import decisions, history, operations
from ledger.decisions import DECISIONS, OUTCOMES
from ledger.facts import EndCause
from ledger.tables import ENDS, RUNS

DRAINED_IN_TIME: Final = "preempted, drained"
"""The reason of the spot watchdog's end of an instance that its cloud had given notice to."""
_AT_ONCE: Final = 500
"""Names in one query."""


def targets(engine: Engine, fleet: str) -> Mapping[str, int]:
    """Pool to target."""
    return {row.pool: row.value for row in operations.targets(engine, fleet)}


def brakes(engine: Engine, fleet: str, now: datetime) -> Sequence[BrakeView]:
    """The hand brakes that hold."""
    return [
        BrakeView(kind=row.kind, scope=row.scope, owner=row.owner, reason=row.reason, until=row.until)
        for row in operations.brakes(engine, fleet, now)
    ]


def acts(engine: Engine, fleet: str, most: int, since: datetime | None = None) -> Sequence[ActView]:
    """The last outcomes, newest first."""
    statement = select(OUTCOMES).where(OUTCOMES.c.fleet == fleet).order_by(OUTCOMES.c.id.desc()).limit(most)
    if since is not None:
        statement = statement.where(OUTCOMES.c.at >= since)
    with engine.connect() as connection:
        return [
            ActView(
                at=row.at,
                watchdog=row.watchdog,
                resource=row.resource,
                pool=row.pool,
                action=row.action,
                reason=row.reason,
                outcome=row.kind,
                detail=row.error or row.detail,
            )
            for row in connection.execute(statement)
        ]


def about(engine: Engine, fleet: str, resource: str) -> Sequence[ActView]:
    """Every decision and outcome about one resource, newest first."""
    found = [
        ActView(
            at=past.at,
            watchdog=past.watchdog,
            resource=past.decision.resource,
            pool=past.decision.pool,
            action=past.decision.action,
            reason=past.decision.reason,
            outcome=past.outcome.kind if past.outcome else None,
            detail=(past.outcome.error or past.outcome.detail) if past.outcome else past.decision.detail,
        )
        for past in decisions.history(engine, fleet, resource)
    ]
    return found[::-1]


def reasons(engine: Engine, fleet: str, instances: Sequence[str]) -> Mapping[str, str]:
    """Watchdog and reason of what was done last about each of these instances; absent where nothing was done."""
    found: dict[str, str] = {}
    with engine.connect() as connection:
        for start in range(0, len(instances), _AT_ONCE):
            asked = (OUTCOMES.c.fleet == fleet, OUTCOMES.c.resource.in_(instances[start : start + _AT_ONCE]))
            rows = connection.execute(select(OUTCOMES).where(*asked).order_by(OUTCOMES.c.id))
            found |= {row.resource: f"{row.watchdog}: {row.reason}" for row in rows}
    return found


def last_seen(engine: Engine, fleet: str) -> Mapping[str, datetime]:
    """Watchdog to when it last wrote something down (a pass that changed nothing writes nothing)."""
    found: dict[str, datetime] = {}
    with engine.connect() as connection:
        for table in (DECISIONS, OUTCOMES):
            rows = connection.execute(
                select(table.c.watchdog, func.max(table.c.at))
                .where(table.c.fleet == fleet)
                .group_by(table.c.watchdog)
            )
            for name, at in rows:
                found[name] = max(at, found.get(name, at))
        done = history.last_pass(connection, fleet)
    return found | ({"cost": done.at} if done is not None else {})


def preemptions(engine: Engine, fleet: str) -> Mapping[str, int]:
    """Pool to runs that the cloud took, ever, with those that were drained in time and ended before it came."""
    ours = select(OUTCOMES.c.resource).where(
        OUTCOMES.c.fleet == fleet, OUTCOMES.c.kind == "done", OUTCOMES.c.reason == DRAINED_IN_TIME
    )
    taken = or_(ENDS.c.cause == EndCause.PREEMPTED.value, RUNS.c.instance_id.in_(ours))
    same = (ENDS.c.cloud == RUNS.c.cloud, ENDS.c.instance_id == RUNS.c.instance_id)
    statement = (
        select(RUNS.c.pool, func.count(RUNS.c.instance_id.distinct()))
        .join(ENDS, and_(*same, ENDS.c.started_at == RUNS.c.started_at))
        .where(RUNS.c.environment == fleet, RUNS.c.pool.is_not(None), taken)
        .group_by(RUNS.c.pool)
    )
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(statement)}


def cost(report: Report) -> CostView:
    """A cost report, cut down to what a screen shows."""
    total = report.total
    return CostView(
        since=report.scope.since,
        known_until=report.known_until,
        usd=money.usd(total.allocation),
        idle_usd=money.usd(total.amounts[State.IDLE]),
        unit=_unit(total),
        by_pool={
            pool: (money.usd(figure.allocation), _unit(figure)) for pool, figure in report.groups[By.POOL].items()
        },
        unpriced=total.unpriced,
    )


def _unit(figure: Figure) -> UnitCost:
    costs = figure.unit_costs()
    return UnitCost(input=costs.input, output=costs.output, blended=costs.blended)
