"""What the ledger does not know of a window: costs that may be more or less than what is charged. Pure.

A run is charged until it is known to have lived. Its cost from then on is a span with bounds:
- *undated*: it ended between the look that saw it last and the first one that missed it;
- *unseen*: it was not observed since, so it may still run.
What nobody used of a shared reservation is a span of its own where no look counted what others used.
What is charged of it lies within the bounds. They hold for resources that the ledger knows: those that came and went
between two looks are not in them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

from costs.allocation import Charge, Facts, charges, standing, unused
from costs.commitments import Coverage, Declared, end_of
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType
from gpufleet.domain.prices import FREE_IF_INTERRUPTED
from ledger.facts import EndCause, Reservation, Run
from prices.book import PriceBook

_INSTANT: Final = timedelta(microseconds=1)


class Why(StrEnum):
    """Why costs are unknown: codes that never change."""

    UNDATED = "undated_end"
    UNSEEN = "not_observed"
    OTHERS = "others_not_observed"

    @property
    def words(self) -> str:
        """The same for people."""
        return {
            Why.UNDATED: "its end has no time",
            Why.UNSEEN: "not observed since",
            Why.OTHERS: "use by others was not collected",
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownSpan:
    """What one resource cost from `start` on, in dollar-seconds."""

    like: Charge
    """One of its charges, for what it belongs to."""
    start: datetime
    end: datetime
    """The first look that missed it, or the end of the window or the time of the report."""
    why: Why
    charged: Decimal
    """What the report takes. Below zero where the cloud gives back the first hour of a spot instance that it took."""
    least: Decimal
    most: Decimal | None
    """None: its price is unknown."""


_Key = tuple[str, str | None, str | None, str | None]
"""Resource, pool, model and owner."""
_Bill = dict[_Key, tuple[Charge, Decimal | None]]


def unknown_spans(
    facts: Facts, book: PriceBook, since: datetime, until: datetime, now: datetime
) -> Iterator[UnknownSpan]:
    """Every span of the window, run by run, then what is paid whether instances run or not."""
    for part, start, end in facts.over(since, until):
        yield from _unknown_spans(part, book, start, end, now)


def _unknown_spans(
    facts: Facts, book: PriceBook, since: datetime, until: datetime, now: datetime
) -> Iterator[UnknownSpan]:
    horizon = min(until, now)
    alone = _alone(facts)
    for run in facts.runs:
        if run.end_exact and run.ended_at is not None:
            continue
        stop, why = (horizon, Why.UNSEEN) if run.ended_at is None else (run.ended_at, Why.UNDATED)
        start = max(end_of(run), since)
        if start < min(stop, until) and not _is_paid_either_way(run, facts, min(stop, until)):
            yield from _of_run(run, alone, book, (start, stop, until), why)
    for paid in facts.reservations:
        for begin, end in facts.gaps:
            yield from _of_others(paid, facts, book, max(begin, since), min(end, until))
    if facts.known is not None:
        yield from _standing(facts, book, max(since, facts.known[1]), horizon)


def _of_others(
    paid: Reservation, facts: Facts, book: PriceBook, start: datetime, end: datetime
) -> Iterator[UnknownSpan]:
    """What a shared reservation cost while nobody looked: others may have used all of it, or nothing."""
    if start >= end or not _is_shared(paid):
        return
    charged: _Bill = {}
    for charge in unused(replace(facts, reservations=[paid]), book, start, end):
        _add(charged, charge)
    most: _Bill = {}
    for charge in unused(replace(facts, reservations=[replace(paid, elsewhere=0)]), book, start, end):
        _add(most, charge)
    for key, (like, amount) in most.items():
        yield UnknownSpan(
            like=like,
            start=max(start, paid.started_at),
            end=min(end, paid.last_seen_at),
            why=Why.OTHERS,
            charged=(charged[key][1] if key in charged else None) or money.ZERO,
            least=money.ZERO,
            most=amount,
        )


def _is_shared(paid: Reservation) -> bool:
    """Whether others may take its seats, or pay a part of them."""
    return bool(paid.elsewhere) or (paid.seats is not None and paid.seats < paid.instances)


def _alone(facts: Facts) -> Facts:
    """What is declared of single runs: what goes with each instance, and whose it is."""

    def each(declared: Declared) -> Declared:
        shared = tuple(one for one in declared.shared if one.per_instance)
        return Declared(shared=shared, models=declared.models, owners=declared.owners)

    eras = [replace(era, declared=each(era.declared)) for era in facts.eras]
    return Facts(runs=[], declared=each(facts.declared), coverage=facts.coverage, eras=eras)


def _of_run(
    run: Run, facts: Facts, book: PriceBook, span: tuple[datetime, datetime, datetime], why: Why
) -> Iterator[UnknownSpan]:
    """`span`: since when it is unknown, when it had ended at the latest, and the end of the window."""
    start, stop, until = span
    charged = _bill(run, facts, book, start, until)
    bills = [charged, *(_bill(one, facts, book, start, until) for one in _possible(run, start, stop, until))]
    for key in dict.fromkeys(key for bill in bills for key in bill):
        like = next(bill[key][0] for bill in bills if key in bill)
        amounts = [bill[key][1] if key in bill else money.ZERO for bill in bills]
        priced = [amount for amount in amounts if amount is not None]
        most = max(priced) if len(priced) == len(amounts) else None
        taken = amounts[0] or money.ZERO
        if why is Why.UNDATED or most is None or not min(priced) == taken == most:
            yield UnknownSpan(
                like=like,
                start=start,
                end=min(stop, until),
                why=why,
                charged=taken,
                least=min([*priced, taken]),
                most=most,
            )


def _possible(run: Run, start: datetime, stop: datetime, until: datetime) -> Iterator[Run]:
    """The run with every end at which its cost in the window may be least or most.

    Between them it grows evenly, or not at all where all of it is given back.
    """
    known, free = end_of(run), run.started_at + FREE_IF_INTERRUPTED[run.cloud]
    if run.end_cause in (EndCause.ENDED, EndCause.PREEMPTED):
        causes = [run.end_cause]
    elif run.capacity_type is CapacityType.SPOT and known < free:
        causes = [EndCause.ENDED, EndCause.PREEMPTED]
    else:
        causes = [EndCause.ENDED]
    ends = dict.fromkeys(end for end in (known, start, until - _INSTANT, stop) if known <= end <= stop)
    for cause in causes:
        for end in ends:
            yield replace(run, ended_at=end, end_exact=True, end_cause=cause)


def _bill(run: Run, facts: Facts, book: PriceBook, since: datetime, until: datetime) -> _Bill:
    found: _Bill = {}
    for charge in charges(replace(facts, runs=[run]), book, since, until, allow_unpriced=True):
        _add(found, charge)
    return found


def _add(bill: _Bill, charge: Charge) -> None:
    key = (charge.resource, charge.pool, charge.model, charge.owner)
    like, amount = bill.get(key, (charge, money.ZERO))
    whole = None if amount is None or charge.amount is None else money.EXACT.add(amount, charge.amount)
    bill[key] = like, whole


def _is_paid_either_way(run: Run, facts: Facts, until: datetime) -> bool:
    """Whether a reservation is paid for all of that time, with the run on it or without."""
    return run.capacity_type is CapacityType.RESERVED and any(
        run.reservation in (None, paid.reservation)
        and not _is_shared(paid)
        and (run.cloud, run.machine_type, run.zone) == (paid.cloud, paid.machine_type, paid.zone)
        and until <= min(paid.last_seen_at, paid.ends_at or paid.last_seen_at)
        for paid in facts.reservations
    )


def _standing(facts: Facts, book: PriceBook, start: datetime, horizon: datetime) -> Iterator[UnknownSpan]:
    """What is paid anyway, after the last look: at most as if all that it saw were still there."""
    if facts.known is None or start >= horizon:
        return
    begun, last = facts.known
    runs: Sequence[Run] = [run if run.ended_at else replace(run, last_seen_at=horizon) for run in facts.runs]
    paid = [replace(one, last_seen_at=horizon, elsewhere=0) for one in facts.reservations if one.last_seen_at >= last]
    later = replace(
        facts,
        runs=runs,
        reservations=paid,
        coverage=Coverage(facts.declared, runs),
        known=(begun, horizon),
        eras=[replace(era, coverage=Coverage(era.declared, runs)) for era in facts.eras],
    )
    bill: _Bill = {}
    for charge in standing(later, book, start, horizon):
        _add(bill, charge)
    for like, amount in bill.values():
        yield UnknownSpan(
            like=like,
            start=start,
            end=horizon,
            why=Why.UNSEEN,
            charged=money.ZERO,
            least=money.ZERO,
            most=amount,
        )
