"""Spans that a bill has confirmed: from estimated to final."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from sqlalchemy import Column, Connection, String, Table, select

from ledger.database import METADATA
from ledger.facts import merge
from ledger.tables import Exact, Moment

FINALS: Final = Table(
    "finals",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("since", Moment, primary_key=True),
    Column("until", Moment, primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("form", String(64), nullable=False),
    Column("billed_usd", Exact(60), nullable=False),
    Column("computed_usd", Exact(60), nullable=False),
    Column("at", Moment, nullable=False),
)
"""One row per bill and span. Facts stay as they were seen; this says what the bill made of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """What one bill said of one span."""

    fleet: str
    since: datetime
    until: datetime
    digest: str
    """SHA-256 of the bill."""
    form: str
    billed_usd: Decimal
    computed_usd: Decimal
    at: datetime


def add_final(connection: Connection, final: Confirmed) -> None:
    """Write what a bill said; the same bill of the same span once."""
    merge(connection, FINALS, [{column.name: getattr(final, column.name) for column in FINALS.columns}])


def finals(connection: Connection, fleet: str, since: datetime, until: datetime) -> list[Confirmed]:
    """Bills that touch a span, oldest span first; of one span the newest bill last."""
    statement = (
        select(FINALS)
        .where(FINALS.c.fleet == fleet, FINALS.c.since < until, FINALS.c.until > since)
        .order_by(FINALS.c.since, FINALS.c.until, FINALS.c.at)
    )
    names = [column.name for column in FINALS.columns]
    return [Confirmed(**{name: getattr(row, name) for name in names}) for row in connection.execute(statement)]
