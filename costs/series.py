"""Cost and instances over time, for pictures. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from costs.allocation import Facts, Kind, State, charges, end_of
from fleet import money
from fleet.model import CapacityType
from ledger.facts import EndCause
from prices.book import PriceBook


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A part of the window."""

    start: datetime
    end: datetime
    usd: dict[CapacityType, Decimal]
    """Cost by capacity type; unused reservations count as reserved."""
    idle_usd: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One pool's instances over time."""

    pool: str
    bars: Sequence["Bar"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One run, clipped to the window."""

    instance_id: str
    capacity_type: CapacityType
    start: datetime
    end: datetime
    end_cause: EndCause | None
    """None: it goes on."""


def edges(since: datetime, until: datetime, most: int = 60) -> list[datetime]:
    """Cuts of a window into at most `most` equal buckets of a round length where that is possible."""
    span = until - since
    for seconds in (1, 5, 10, 30, 60, 300, 900, 1800, 3600, 4 * 3600, 12 * 3600, 86_400, 7 * 86_400):
        step = timedelta(seconds=seconds)
        if span <= step * most:
            break
    else:
        step = span / most
    cuts = [since]
    while cuts[-1] + step < until:
        cuts.append(cuts[-1] + step)
    return [*cuts, until]


def buckets(facts: Facts, book: PriceBook, cuts: Sequence[datetime]) -> list[Bucket]:
    """Cost by bucket; the buckets' sums are the window's."""
    found: list[Bucket] = []
    for start, end in zip(cuts, cuts[1:], strict=False):
        sums = dict.fromkeys(CapacityType, money.ZERO)
        idle = money.ZERO
        for charge in charges(facts, book, start, end, allow_unpriced=True):
            if charge.amount is None:
                continue
            sums[charge.capacity_type] = money.EXACT.add(sums[charge.capacity_type], charge.amount)
            if charge.state is State.IDLE and charge.kind is Kind.TIME:
                idle = money.EXACT.add(idle, charge.amount)
        usd = {kind: money.usd(amount) for kind, amount in sums.items()}
        found.append(Bucket(start=start, end=end, usd=usd, idle_usd=money.usd(idle)))
    return found


def lanes(facts: Facts, since: datetime, until: datetime, most: int = 40) -> list[Lane]:
    """Each pool's runs in the window, at most `most` of a pool (the longest)."""
    by_pool: dict[str, list[Bar]] = {}
    for run in facts.runs:
        start, end = max(run.started_at, since), min(end_of(run), until)
        if start >= end:
            continue
        ended_inside = run.ended_at is not None and run.ended_at <= until
        by_pool.setdefault(run.pool or "(none)", []).append(
            Bar(
                instance_id=run.instance_id,
                capacity_type=run.capacity_type,
                start=start,
                end=end,
                end_cause=run.end_cause if ended_inside else None,
            )
        )
    return [
        Lane(
            pool=pool,
            bars=sorted(
                sorted(bars, key=lambda bar: bar.end - bar.start, reverse=True)[:most],
                key=lambda bar: (bar.capacity_type, bar.start),
            ),
        )
        for pool, bars in sorted(by_pool.items())
    ]
