"""Closed periods: spans whose costs a bill has confirmed, so that they are final."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection, select, update

from gpufleet.ledger.facts import merge
from gpufleet.ledger.tables import CLOSED_PERIODS
from gpufleet.ledger.teams import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class BillConfirmation:
    """The confirmation of a span's costs by a bill."""

    fleet: str
    since: datetime
    until: datetime
    digest: str
    """SHA-256 of the bill."""
    form: str
    billed_usd: Decimal
    computed_usd: Decimal
    at: datetime
    prices: str | None = None
    """The prices of the computation, as JSON; None: of a release that did not keep them."""
    facts: str | None = None
    """The facts of the span, as JSON (`gpufleet.costs.closing`); None: of a release that did not keep them."""


def add_closed_period(connection: Connection, final: BillConfirmation) -> None:
    """Write a confirmation, once per bill and span. A row of a release that did not store prices and facts gets them
    now.
    """
    values = {column.name: getattr(final, column.name) for column in CLOSED_PERIODS.columns}
    merge(connection, CLOSED_PERIODS, [values])
    same = [column == values[column.name] for column in CLOSED_PERIODS.primary_key.columns]
    closing = {name: values[name] for name in ("prices", "facts", "computed_usd", "at")}
    connection.execute(update(CLOSED_PERIODS).where(*same, CLOSED_PERIODS.c.facts.is_(None)).values(closing))


def closed_periods(connection: Connection, fleet: str, since: datetime, until: datetime) -> list[BillConfirmation]:
    """Confirmations that overlap a span, oldest span first, then oldest bill first."""
    statement = (
        select(CLOSED_PERIODS)
        .where(CLOSED_PERIODS.c.fleet == fleet, CLOSED_PERIODS.c.since < until, CLOSED_PERIODS.c.until > since)
        .order_by(CLOSED_PERIODS.c.since, CLOSED_PERIODS.c.until, CLOSED_PERIODS.c.at)
    )
    names = [column.name for column in CLOSED_PERIODS.columns]
    return [BillConfirmation(**{name: getattr(row, name) for name in names}) for row in connection.execute(statement)]


def closed_spans(connection: Connection, fleet: str) -> list[Interval]:
    """Spans whose facts no longer change, oldest first. They do not overlap."""
    statement = (
        select(CLOSED_PERIODS.c.since, CLOSED_PERIODS.c.until)
        .where(CLOSED_PERIODS.c.fleet == fleet, CLOSED_PERIODS.c.facts.is_not(None))
        .order_by(CLOSED_PERIODS.c.since)
    )
    return [(row.since, row.until) for row in connection.execute(statement)]
