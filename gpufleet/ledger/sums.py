"""What the last pass of the cost watchdog added up: the hour before it and its day, of a whole fleet and by pool.

Made of the facts, never the other way round: a screen reads it instead of adding up the day of a large fleet again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection, delete, select

from gpufleet.ledger.facts import MergeRule, merge
from gpufleet.ledger.tables import SUMS


class Span(StrEnum):
    """What is added up."""

    HOUR = "hour"
    """The hour before the look."""
    TODAY = "today"
    """The UTC day of the look, as far as it had come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSum:
    """One sum."""

    span: Span
    pool: str | None
    """None: the whole fleet."""
    since: datetime
    known_until: datetime
    """The look that it was made of."""
    usd: Decimal
    idle_usd: Decimal
    input_usd: Decimal | None
    """Per million tokens, as the next two. None: no tokens."""
    output_usd: Decimal | None
    blended_usd: Decimal | None
    unpriced: int
    """Charges without a price: amounts are lower bounds then."""


_NAMES: Final = tuple(name for name in SUMS.columns.keys() if name not in ("fleet", "span", "pool"))  # noqa: SIM118


def write_sums(connection: Connection, fleet: str, sums: Iterable[CostSum]) -> None:
    """Store these sums for the fleet. They replace those of earlier looks."""
    rows = [
        {"fleet": fleet, "span": one.span.value, "pool": one.pool or ""}
        | {name: getattr(one, name) for name in _NAMES}
        for one in sums
    ]
    merge(connection, SUMS, rows, dict.fromkeys(_NAMES, MergeRule.REPLACE))
    if rows:
        newest = max(row["known_until"] for row in rows)
        connection.execute(delete(SUMS).where(SUMS.c.fleet == fleet, SUMS.c.known_until < newest))


def read_sums(connection: Connection, fleet: str) -> list[CostSum]:
    """All of a fleet; none before its first pass."""
    return [
        CostSum(span=Span(row.span), pool=row.pool or None, **{name: getattr(row, name) for name in _NAMES})
        for row in connection.execute(select(SUMS).where(SUMS.c.fleet == fleet).order_by(SUMS.c.span, SUMS.c.pool))
    ]
