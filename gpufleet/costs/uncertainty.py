"""Unknown costs of a window: costs that may be higher or lower than what is charged. Pure.

A run is charged until it was last observed. Its later cost is a span with bounds:
- *undated*: it ended between the pass that last saw it and the first one that missed it;
- *not observed*: nothing observed it since, so it may still run.
The unused part of a reservation is a separate span in three cases: in a gap, where its use by others is unknown;
between two passes that counted different numbers of its instances; and between the pass that last saw it and the
first one that missed it.
The charged amount is within the bounds. They apply to resources in the ledger: an instance that started and ended
between two passes is not included.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import pairwise
from typing import Final

from gpufleet.costs.allocation import Charge, ChargeKind, LedgerFacts, charges, fixed_charges, unused
from gpufleet.costs.commitments import Coverage, DeclaredCosts, end_of
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType
from gpufleet.domain.prices import FREE_IF_PREEMPTED
from gpufleet.ledger.facts import NOT_MISSED, EndCause, Recount, Reservation, Run
from gpufleet.prices.book import PriceBook

_INSTANT: Final = timedelta(microseconds=1)


class UnknownCause(StrEnum):
    """Why costs are unknown. The values are stable codes."""

    UNDATED = "undated_end"
    NOT_OBSERVED = "not_observed"
    OTHERS = "others_not_observed"
    RECOUNTED = "count_not_dated"

    @property
    def as_text(self) -> str:
        """The reason as text for people."""
        return {
            UnknownCause.UNDATED: "its end has no time",
            UnknownCause.NOT_OBSERVED: "not observed since",
            UnknownCause.OTHERS: "use by others was not collected",
            UnknownCause.RECOUNTED: "its count changed between two passes",
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownSpan:
    """The cost of one resource since `start`, in dollar-seconds."""

    like: Charge
    """One of its charges, with its pool, model and owner."""
    start: datetime
    end: datetime
    """The first pass that missed it, or the end of the window or the time of the report."""
    why: UnknownCause
    charged: Decimal
    """The amount in the report. Below zero where the cloud credits the first hour of a preempted spot instance."""
    least: Decimal
    most: Decimal | None
    """None: its price is unknown."""


_Key = tuple[str, str | None, str | None, str | None]
"""Resource, pool, model and owner."""
_Bill = dict[_Key, tuple[Charge, Decimal | None]]


def unknown_spans(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, now: datetime
) -> Iterator[UnknownSpan]:
    """Every span of the window, run by run, then the spans of charges that do not depend on running instances."""
    for part, start, end in facts.over(since, until):
        yield from _unknown_spans(part, book, start, end, now)


def _unknown_spans(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, now: datetime
) -> Iterator[UnknownSpan]:
    horizon = min(until, now)
    alone = _alone(facts)
    for run in facts.runs:
        if run.end_exact and run.ended_at is not None:
            continue
        stop, why = (
            (horizon, UnknownCause.NOT_OBSERVED) if run.ended_at is None else (run.ended_at, UnknownCause.UNDATED)
        )
        start = max(end_of(run), since)
        if start < min(stop, until):
            yield from _except_paid(run, facts, alone, book, ((start, stop, until), why))
    for paid in facts.reservations:
        yield from _of_paid(paid, facts, book, (since, until), horizon)
    if facts.known is not None:
        yield from _fixed_charges(facts, book, max(since, facts.known[1]), horizon)


def known_until(paid: Reservation) -> datetime:
    """The latest time at which paid capacity may have existed, from the ledger."""
    return paid.last_seen_at if paid.missed_at is None else paid.missed_at


def _of_paid(
    paid: Reservation, facts: LedgerFacts, book: PriceBook, span: tuple[datetime, datetime], horizon: datetime
) -> Iterator[UnknownSpan]:
    """Unused paid capacity while its count or its use by others is unknown, and after it was last seen.

    Between two passes with different counts, it had one count or the other. In a gap, others may have used all or
    nothing of it: other instances of its account can use any reservation.
    """
    since, until = span
    start, stop = max(paid.started_at, since), min(paid.last_seen_at, paid.ends_at or paid.last_seen_at, until)
    changed = stop if paid.recount is None else paid.recount.after
    edges = {start, stop, changed, *(at for gap in facts.gaps for at in gap)}
    for begin, end in pairwise(sorted(at for at in edges if start <= at <= stop)):
        is_unobserved = any(first <= begin < last for first, last in facts.gaps)
        least = most = paid
        if paid.recount is not None and changed <= begin:
            least, most = _fewest(paid, paid.recount), _most(paid, paid.recount)
            why = UnknownCause.RECOUNTED
        elif is_unobserved:
            why = UnknownCause.OTHERS
        else:
            continue
        bounds = (None, replace(most, elsewhere=0)) if is_unobserved else (least, most)
        yield from _unused_part(paid, bounds, (facts, facts), book, (begin, end, why))
    if paid.missed_at is not None and facts.known is not None and paid.last_seen_at < facts.known[1]:
        start = max(paid.last_seen_at, since)
        stop = min(paid.missed_at, paid.ends_at or paid.missed_at, horizon)
        # runs that may have continued have their own spans, which include their use of it
        later = replace(facts, runs=[_longest(run, paid, stop) for run in facts.runs])
        whole = replace(paid, last_seen_at=stop, elsewhere=0)
        why = UnknownCause.NOT_OBSERVED if paid.missed_at == NOT_MISSED else UnknownCause.UNDATED
        yield from _unused_part(paid, (None, whole), (facts, later), book, (start, stop, why))


def _unused_part(
    paid: Reservation,
    bounds: tuple[Reservation | None, Reservation],
    facts: tuple[LedgerFacts, LedgerFacts],
    book: PriceBook,
    span: tuple[datetime, datetime, UnknownCause],
) -> Iterator[UnknownSpan]:
    """The unused part of a reservation as charged, and its bounds. `bounds`: least (None: nothing unused) and most.

    `facts`: those of the charge and the lower bound, then those of the upper bound.
    """
    start, end, why = span
    if start >= end:
        return
    known, later = facts
    charged, most = _unused(paid, known, book, start, end), _unused(bounds[1], later, book, start, end)
    least = {} if bounds[0] is None else _unused(bounds[0], known, book, start, end)
    for key, (like, at_most) in most.items():
        taken = (charged[key][1] if key in charged else None) or money.ZERO
        at_least = (least[key][1] if key in least else None) or money.ZERO
        if not at_least == taken == at_most:
            yield UnknownSpan(like=like, start=start, end=end, why=why, charged=taken, least=at_least, most=at_most)


def _unused(paid: Reservation, facts: LedgerFacts, book: PriceBook, start: datetime, end: datetime) -> _Bill:
    found: _Bill = {}
    for charge in unused(replace(facts, reservations=[paid]), book, start, end):
        _add(found, charge)
    return found


def _fewest(paid: Reservation, then: Recount) -> Reservation:
    """The reservation with the fewest unused declared instances that two passes allow for the time between them."""
    declared = min((one.seats for one in (paid, then) if one.seats is not None), default=None)
    return replace(
        paid,
        instances=min(paid.instances, then.instances),
        elsewhere=max(paid.elsewhere, then.elsewhere),
        seats=declared,
    )


def _most(paid: Reservation, then: Recount) -> Reservation:
    """The reservation with the most unused declared instances that two passes allow for the time between them."""
    declared = None if paid.seats is None or then.seats is None else max(paid.seats, then.seats)
    return replace(
        paid,
        instances=max(paid.instances, then.instances),
        elsewhere=min(paid.elsewhere, then.elsewhere),
        seats=declared,
    )


def _longest(run: Run, paid: Reservation, stop: datetime) -> Run:
    """The run with the latest possible end, if it belongs to the pool that pays for the reservation."""
    if run.pool != paid.pool or (run.ended_at is not None and run.end_exact):
        return run
    return replace(run, last_seen_at=max(run.last_seen_at, run.ended_at or stop))


def _alone(facts: LedgerFacts) -> LedgerFacts:
    """Facts without runs, with only the declarations that apply to single runs."""

    def each(declared: DeclaredCosts) -> DeclaredCosts:
        shared = tuple(one for one in declared.shared if one.per_instance)
        return DeclaredCosts(shared=shared, models=declared.models, owners=declared.owners)

    periods = [replace(period, declared=each(period.declared)) for period in facts.periods]
    return LedgerFacts(runs=[], declared=each(facts.declared), coverage=facts.coverage, periods=periods)


def _of_run(
    run: Run, facts: LedgerFacts, book: PriceBook, span: tuple[datetime, datetime, datetime], why: UnknownCause
) -> Iterator[UnknownSpan]:
    """`span`: the start of the unknown time, the latest possible end, and the end of the window."""
    start, stop, until = span
    charged = _bill(run, facts, book, start, until)
    bills = [charged, *(_bill(one, facts, book, start, until) for one in _possible(run, start, stop, until))]
    for key in dict.fromkeys(key for bill in bills for key in bill):
        like = next(bill[key][0] for bill in bills if key in bill)
        amounts = [bill[key][1] if key in bill else money.ZERO for bill in bills]
        priced = [amount for amount in amounts if amount is not None]
        most = max(priced) if len(priced) == len(amounts) else None
        taken = amounts[0] or money.ZERO
        if why is UnknownCause.UNDATED or most is None or not min(priced) == taken == most:
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
    """The run with each end at which its cost in the window may be lowest or highest.

    Between these ends, the cost grows linearly, or stays 0 where the cloud credits all of it.
    """
    known, free = end_of(run), run.started_at + FREE_IF_PREEMPTED[run.cloud]
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


def _bill(run: Run, facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime) -> _Bill:
    found: _Bill = {}
    for charge in charges(replace(facts, runs=[run]), book, since, until, allow_unpriced=True):
        _add(found, charge)
    return found


def _add(bill: _Bill, charge: Charge) -> None:
    key = (charge.resource, charge.pool, charge.model, charge.owner)
    like, amount = bill.get(key, (charge, money.ZERO))
    whole = None if amount is None or charge.amount is None else money.EXACT.add(amount, charge.amount)
    bill[key] = like, whole


def _except_paid(
    run: Run,
    facts: LedgerFacts,
    alone: LedgerFacts,
    book: PriceBook,
    span: tuple[tuple[datetime, datetime, datetime], UnknownCause],
) -> Iterator[UnknownSpan]:
    """The unknown cost of a run, without time that a reservation pays for whether or not the run continued.

    Resources that belong to the instance are never part of a reservation.
    """
    (start, stop, until), why = span
    paid_from = _paid_from(run, facts, min(stop, until))
    for one in _of_run(run, alone, book, (start, stop, until), why):
        if paid_from is None or one.like.kind is ChargeKind.SHARED:
            yield one
    if paid_from is not None and start < paid_from:
        for one in _of_run(run, alone, book, (start, paid_from, until), why):
            if one.like.kind is not ChargeKind.SHARED:
                yield one


def _paid_from(run: Run, facts: LedgerFacts, until: datetime) -> datetime | None:
    """The time from which a reservation pays until `until`, with or without the run; None: it does not pay."""
    if run.capacity_type is not CapacityType.RESERVED:
        return None
    spans = [
        (paid.started_at, min(paid.last_seen_at, paid.ends_at or paid.last_seen_at))
        for paid in facts.reservations
        if run.reservation in (None, paid.reservation)
        # if only some instances are declared, an unused instance costs less than a used one
        and (paid.seats is None or paid.seats >= paid.instances)
        and (run.cloud, run.machine_type, run.zone) == (paid.cloud, paid.machine_type, paid.zone)
    ]
    at = until
    while earlier := [start for start, end in spans if start < at <= end]:
        at = min(earlier)
    return at if at < until else None


def _fixed_charges(facts: LedgerFacts, book: PriceBook, start: datetime, horizon: datetime) -> Iterator[UnknownSpan]:
    """Charges after the last pass that need no running instance: at most as if all resources still existed."""
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
        periods=[replace(period, coverage=Coverage(period.declared, runs)) for period in facts.periods],
    )
    bill: _Bill = {}
    for charge in fixed_charges(later, book, start, horizon):
        _add(bill, charge)
    for like, amount in bill.values():
        yield UnknownSpan(
            like=like,
            start=start,
            end=horizon,
            why=UnknownCause.NOT_OBSERVED,
            charged=money.ZERO,
            least=money.ZERO,
            most=amount,
        )
