"""Cost sums of the last pass of the cost watchdog: the hour before it and its day, of the whole fleet and by pool.

They are computed from the facts, so that a screen need not add up the day of a large fleet again.
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
    """The time that a sum covers."""

    HOUR = "hour"
    """The hour before the pass."""
    TODAY = "today"
    """The UTC day of the pass, until the pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSum:
    """One sum."""

    span: Span
    pool: str | None
    """None: the whole fleet."""
    since: datetime
    known_until: datetime
    """The time of the pass that computed it."""
    usd: Decimal
    idle_usd: Decimal
    input_usd: Decimal | None
    """Per million tokens, as the next two. None: no tokens."""
    output_usd: Decimal | None
    blended_usd: Decimal | None
    unpriced: int
    """Charges without a price. If there are any, the amounts are lower bounds."""


_NAMES: Final = tuple(name for name in SUMS.columns.keys() if name not in ("fleet", "span", "pool"))  # noqa: SIM118


def write_sums(connection: Connection, fleet: str, sums: Iterable[CostSum]) -> None:
    """Store these sums for the fleet. They replace those of earlier passes."""
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
    """All sums of a fleet; empty before its first pass."""
    return [
        CostSum(span=Span(row.span), pool=row.pool or None, **{name: getattr(row, name) for name in _NAMES})
        for row in connection.execute(select(SUMS).where(SUMS.c.fleet == fleet).order_by(SUMS.c.span, SUMS.c.pool))
    ]
