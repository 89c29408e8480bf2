"""Cost and instances over time, for pictures. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from gpufleet.costs.allocation import Charge, LedgerFacts, charges, end_of, fixed_charges
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType
from gpufleet.ledger.facts import ActivityHour, EndCause
from gpufleet.ledger.slots import SLOT_US, SLOTS
from gpufleet.prices.book import PriceBook

SLOT = timedelta(microseconds=SLOT_US)
FINE = timedelta(days=2)
"""The longest window in which idle time is drawn slot by slot; in longer ones, hour by hour."""


DRAWN: Final = 12
"""Pools whose instances are drawn, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBucket:
    """A part of the window."""

    start: datetime
    end: datetime
    usd: dict[CapacityType, Decimal]
    """Cost by capacity type. Unused reservations count as reserved, shared resources as on-demand."""


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
    """None: it continues."""
    idle: Sequence[tuple[datetime, datetime]] = ()
    """Idle spans; whole hours in a long window."""


def edges(since: datetime, until: datetime, most: int = 60) -> list[datetime]:
    """The edges of at most `most` equal buckets of a window, of a round length if possible."""
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


def buckets(facts: LedgerFacts, book: PriceBook, cuts: Sequence[datetime]) -> list[TimeBucket]:
    """Cost by bucket; the buckets' sums are the window's."""
    spans = list(zip(cuts, cuts[1:], strict=False))
    sums = [dict.fromkeys(CapacityType, money.ZERO) for _ in spans]
    for part, since, until in priced_alone(facts).over(cuts[0], cuts[-1]):
        inside = [(max(start, since), min(end, until)) for start, end in spans]
        for usd, (start, end) in zip(sums, inside, strict=True):
            for charge in _in_span(part, book, start, end) if start < end else ():
                if charge.amount is not None:
                    usd[charge.capacity_type] = money.EXACT.add(usd[charge.capacity_type], charge.amount)
    return [
        TimeBucket(start=start, end=end, usd={kind: money.usd(amount) for kind, amount in usd.items()})
        for usd, (start, end) in zip(sums, spans, strict=True)
    ]


def priced_alone(facts: LedgerFacts) -> LedgerFacts:
    """The facts without activity. Sums stay the same: activity only distinguishes states, and is slow to read."""
    closed = [replace(one, facts=priced_alone(one.facts)) for one in facts.closed]
    return replace(facts, activity={}, first_readings={}, closed=closed)


def _in_span(facts: LedgerFacts, book: PriceBook, start: datetime, end: datetime) -> Iterator[Charge]:
    """Charges of a span. Other runs are skipped, because a window may have many."""
    touching = [run for run in facts.runs if run.started_at < end and end_of(run) >= start]
    alone = replace(facts, runs=touching, reservations=(), known=None)
    yield from charges(alone, book, start, end, allow_unpriced=True)
    yield from fixed_charges(facts, book, start, end)


def lanes(facts: LedgerFacts, since: datetime, until: datetime, most: int = 40) -> list[Lane]:
    """The longest runs of each pool in the window, at most `most`, with idle times in drawn pools."""
    by_pool: dict[str, list[Bar]] = {}
    for run in facts.runs:
        start, end = max(run.started_at, since), min(end_of(run), until)
        if start >= end:
            continue
        ended_inside = run.ended_at is not None and run.ended_at <= until
        bar = Bar(
            instance_id=run.instance_id,
            capacity_type=run.capacity_type,
            start=start,
            end=end,
            end_cause=run.end_cause if ended_inside else None,
        )
        by_pool.setdefault(run.pool or "(none)", []).append(bar)

    def longest(bars: list[Bar]) -> list[Bar]:
        kept = sorted(bars, key=lambda bar: bar.end - bar.start, reverse=True)[:most]
        return sorted(kept, key=lambda bar: (bar.capacity_type, bar.start))

    def with_idle(bar: Bar) -> Bar:
        hours = facts.activity.get(bar.instance_id, ())
        return replace(bar, idle=_idle(hours, bar.start, bar.end, until - since > FINE))

    lanes = [Lane(pool=pool, bars=longest(bars)) for pool, bars in sorted(by_pool.items())]
    return [
        Lane(pool=lane.pool, bars=[with_idle(bar) for bar in lane.bars]) if number < DRAWN else lane
        for number, lane in enumerate(lanes)
    ]


def _idle(
    hours: Sequence[ActivityHour], start: datetime, end: datetime, coarse: bool
) -> list[tuple[datetime, datetime]]:
    """Idle spans of a run. In a coarse chart, an hour counts as idle if at least nine tenths of it were idle."""
    spans: list[tuple[datetime, datetime]] = []
    for hour in sorted(hours, key=lambda one: one.hour):
        for first, last in [(0, SLOTS)] if coarse else _ones(hour.idle):
            if coarse and hour.idle.bit_count() < SLOTS * 9 // 10:
                continue
            begin, finish = max(hour.hour + first * SLOT, start), min(hour.hour + last * SLOT, end)
            if begin >= finish:
                continue
            if spans and spans[-1][1] == begin:
                begin = spans.pop()[0]
            spans.append((begin, finish))
    return spans


def _ones(bits: int) -> list[tuple[int, int]]:
    """Spans of set bits, as the first index and the index after the last."""
    found: list[tuple[int, int]] = []
    at = 0
    while bits >> at:
        at += ((bits >> at) & -(bits >> at)).bit_length() - 1
        length = (~(bits >> at) & ((bits >> at) + 1)).bit_length() - 1
        found.append((at, at + length))
        at += length
    return found
