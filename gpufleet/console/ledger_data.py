"""Reads data for screens from the ledger: targets, actions and their reasons, costs."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine, and_, func, or_, select

from gpufleet.console.view import CostView, UnitCost
from gpufleet.domain.decisions import LedgerEntry, OutcomeKind, Reason
from gpufleet.ledger import decisions, history, operations
from gpufleet.ledger.facts import EndCause
from gpufleet.ledger.sums import CostSum, Span, read_sums
from gpufleet.ledger.tables import DECISIONS, ENDS, OUTCOMES, RUNS

BEHIND: Final = timedelta(minutes=15)
"""A pass writes its facts first and their sums afterwards. Sums that are further behind the facts are from an older
pass.
"""
_AT_ONCE: Final = 500
"""Number of names in one query."""


def targets(engine: Engine, fleet: str) -> Mapping[str, int]:
    """Pool to target."""
    return {row.pool: row.value for row in operations.targets(engine, fleet)}


def about(engine: Engine, fleet: str, resource: str) -> Sequence[LedgerEntry]:
    """Every decision and outcome about one resource, newest first."""
    return decisions.history(engine, fleet, resource)[::-1]


def reasons(engine: Engine, fleet: str, instances: Sequence[str]) -> Mapping[str, str]:
    """Watchdog and reason of the last outcome for each of these instances; instances without an outcome
    are absent.
    """
    found: dict[str, str] = {}
    with engine.connect() as connection:
        for start in range(0, len(instances), _AT_ONCE):
            asked = (OUTCOMES.c.fleet == fleet, OUTCOMES.c.resource.in_(instances[start : start + _AT_ONCE]))
            rows = connection.execute(select(OUTCOMES).where(*asked).order_by(OUTCOMES.c.id))
            found |= {row.resource: f"{row.watchdog}: {Reason(row.reason).sentence}" for row in rows}
    return found


def last_seen(engine: Engine, fleet: str) -> Mapping[str, datetime]:
    """Watchdog to the time of its last record. A pass that changes nothing writes nothing."""
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
    """Pool to the number of preempted runs so far, including runs that were drained and ended before
    the preemption.
    """
    ours = select(OUTCOMES.c.resource).where(
        OUTCOMES.c.fleet == fleet, OUTCOMES.c.kind == OutcomeKind.DONE, OUTCOMES.c.reason == Reason.PREEMPTED
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


def stored_costs(engine: Engine, fleet: str, now: datetime) -> tuple[CostView, CostView | None] | None:
    """The costs of the hour and of today as the cost watchdog's last pass stored them; None if it stored none.

    Today's costs are absent if the day began after that pass: yesterday's sum does not apply.
    """
    with engine.connect() as connection:
        sums, last = read_sums(connection, fleet), history.last_pass(connection, fleet)
    hour, today = cost(sums, Span.HOUR), cost(sums, Span.TODAY)
    if hour is None or hour.known_until is None or last is None or last.at - hour.known_until > BEHIND:
        return None
    return hour, today if today is not None and today.since.date() == now.date() else None


def cost(sums: Iterable[CostSum], span: Span) -> CostView | None:
    """The costs of a span for a screen; None if they were not computed."""
    of_span = {one.pool: one for one in sums if one.span is span}
    whole = of_span.pop(None, None)
    if whole is None:
        return None
    return CostView(
        since=whole.since,
        known_until=whole.known_until,
        usd=whole.usd,
        idle_usd=whole.idle_usd,
        unit=_unit(whole),
        by_pool={pool: (one.usd, _unit(one)) for pool, one in of_span.items() if pool is not None},
        unpriced=whole.unpriced,
    )


def _unit(one: CostSum) -> UnitCost:
    return UnitCost(input=one.input_usd, output=one.output_usd, blended=one.blended_usd)
