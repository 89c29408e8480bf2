"""Charges: the time of each run and reservation, multiplied by its price. Pure.

A charge is the cost of one run (or of unused paid capacity) over one price in force and one state. States: *starting*
(launch to first reading of an engine), *idle* and *used* by the measured slots, *unmeasured* where nothing is known
(it counts as used), *unused* (reserved capacity that no instance ran on).

Billing rules, as separate rows at fixed instants, so that sums over any partition of a window are equal:
the minimum charge (60 s; AWS and Google), at the end of a run that was shorter; the first hour of a spot instance
that AWS interrupted, and the first minute of one that Google did, credited at its end.
Sources: AWS EC2 User Guide, "Billing for interrupted Spot Instances"; Google Compute Engine, "VM instance pricing".
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

from gpufleet.costs import slots
from gpufleet.costs.commitments import Coverage, DeclaredCosts, SharedCost, end_of, shares
from gpufleet.costs.cost_owners import parts_by_owner, with_owner_at
from gpufleet.costs.pricing import EVER, FOREVER, PricingOverTime, PricingPeriod
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import FREE_IF_PREEMPTED, Price
from gpufleet.ledger.facts import ActivityHour, EndCause, Reservation, Run
from gpufleet.prices.book import PriceBook, Sku

MINIMUM: Final = timedelta(seconds=60)


class UseState(StrEnum):
    """The use of an instance or resource while it is charged."""

    USED = "used"
    UNMEASURED = "unmeasured"
    IDLE = "idle"
    STARTING = "starting"
    UNUSED = "unused"
    SHARED = "shared"


class ChargeKind(StrEnum):
    """The reason of a charge."""

    TIME = "time"
    MINIMUM = "minimum charge"
    PREEMPTED = "interrupted by the cloud"
    RESERVATION = "reserved, not used"
    SHARED = "shared"
    COMMITTED = "committed, not used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One line of the computed bill."""

    kind: ChargeKind
    state: UseState
    resource: str
    """Instance or reservation id."""
    cloud: Cloud
    region: str
    zone: str
    machine_type: str
    capacity_type: CapacityType
    pool: str | None
    model: str | None
    owner: str | None
    reservation: str | None
    start: datetime
    end: datetime
    """Exclusive. The state may cover only `duration` of this span."""
    duration: timedelta
    price: Price | None
    """None: unknown (only where unpriced rows are allowed)."""
    amount: Decimal | None
    """In dollar-seconds; see gpufleet.domain.money. None: unknown."""
    on_demand: Decimal | None = None
    """The on-demand cost of the same time, in dollar-seconds; spot only. None: unknown."""

    @property
    def priced_as(self) -> str:
        """The priced item, for people: machine type, capacity type and place."""
        return f"{self.machine_type} {self.capacity_type} in {self.zone or self.region}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """The facts of a window in the ledger."""

    runs: Sequence[Run]
    activity: Mapping[str, Sequence[ActivityHour]] = field(default_factory=dict[str, Sequence[ActivityHour]])
    first_readings: Mapping[str, Sequence[datetime]] = field(default_factory=dict[str, Sequence[datetime]])
    reservations: Sequence[Reservation] = ()
    declared: DeclaredCosts = DeclaredCosts()
    """The declared costs at the end of the window."""
    coverage: Coverage = field(default_factory=lambda: Coverage(DeclaredCosts(), ()))
    """The coverage of all runs of the window, even if `runs` contains fewer."""
    known: tuple[datetime, datetime] | None = None
    """First and last complete pass. Shared resources are charged between these two times."""
    gaps: Sequence[tuple[datetime, datetime]] = ()
    """Spans of the window without a pass, long enough for others to use a shared reservation unobserved."""
    periods: Sequence[PricingPeriod] = ()
    """Pricing periods, oldest first; empty: `declared` and `coverage` apply at all times."""
    whose: Sequence[PricingPeriod] = ()
    """Pricing periods whose models and owners apply; empty: those of `periods`."""
    closed: Sequence["ClosedFacts"] = ()
    """Closed spans of the window, which have their own facts, in the order of time."""

    def over_time(self, book: PriceBook) -> Sequence[PricingPeriod]:
        """The pricing periods; if there are none, one that covers all of time, with prices from `book`."""
        always = PricingPeriod(since=EVER, until=FOREVER, declared=self.declared, coverage=self.coverage, book=book)
        return self.periods or (always,)

    def over(self, since: datetime, until: datetime) -> Iterator[tuple["LedgerFacts", datetime, datetime]]:
        """Yield the window in parts, cut at closed spans: facts, start and end of each part.

        The charges of all parts add up to the charges of the window.
        """
        at, rest = since, replace(self, closed=()) if self.closed else self
        for one in self.closed:
            start, stop = max(one.since, at), min(one.until, until)
            if start < stop:
                if at < start:
                    yield rest, at, start
                yield one.facts, start, stop
                at = stop
        if at < until:
            yield rest, at, until


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedFacts:
    """The facts of a closed span, as they were known when it was closed. Later facts do not change them."""

    since: datetime
    until: datetime
    facts: LedgerFacts


def charges(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, *, allow_unpriced: bool = False
) -> Iterator[Charge]:
    """Every charge of the window, run by run. Raises MissingPriceError unless unpriced rows are allowed."""
    # Python subtracts times of one zone by their wall clocks, which is wrong in a DST night: use UTC
    for part, start, end in facts.over(since.astimezone(UTC), until.astimezone(UTC)):
        yield from _of_runs(part, book, start, end, allow_unpriced=allow_unpriced)
        yield from _fixed_charges(part, book, start, end, allow_unpriced=allow_unpriced)


def _of_runs(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, *, allow_unpriced: bool
) -> Iterator[Charge]:
    periods = facts.over_time(book)
    covered = PricingOverTime(periods, allow_unpriced)
    plain = PricingOverTime(periods, allow_unpriced, covered=False)
    with_each = [span for span in declared_spans(periods, since, until) if span.shared.per_instance]
    for run in facts.runs:
        history = _RunHistory(
            run=run,
            hours=slots.ActivityTotals(facts.activity.get(run.instance_id, ())),
            ready=_ready(run, facts.first_readings.get(run.instance_id, ())),
            periods=facts.whose or facts.periods,
        )
        yield from _of_run(history, covered, since, until)
        yield from _with_instance(run, history.periods, with_each, plain)


def fixed_charges(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, *, allow_unpriced: bool = True
) -> Iterator[Charge]:
    """Charges that do not depend on running instances: unused paid capacity and shared resources."""
    for part, start, end in facts.over(since, until):
        yield from _fixed_charges(part, book, start, end, allow_unpriced=allow_unpriced)


def _fixed_charges(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, *, allow_unpriced: bool
) -> Iterator[Charge]:
    yield from unused(facts, book, since, until, allow_unpriced=allow_unpriced)
    periods = facts.over_time(book)
    yield from _not_spent(facts, periods, since, until)
    if facts.known is None:
        return
    plain = PricingOverTime(periods, allow_unpriced, covered=False)
    for span in declared_spans(periods, max(since, facts.known[0]), min(until, facts.known[1])):
        if not span.shared.per_instance:
            yield from _environment(span, book.region, plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSpan:
    """A span in which a shared resource and its split over the pools stayed the same."""

    shared: SharedCost
    declared: DeclaredCosts
    start: datetime
    end: datetime

    def continues(self, shared: SharedCost, declared: DeclaredCosts, start: datetime) -> bool:
        """Whether the pricing period that begins at `start` changes neither the resource nor its split."""
        mine, other = self.declared, declared
        same_split = (mine.weights, mine.models, mine.owners) == (other.weights, other.models, other.owners)
        return self.end == start and self.shared == shared and (shared.per_instance or same_split)


def declared_spans(periods: Iterable[PricingPeriod], since: datetime, until: datetime) -> list[DeclaredSpan]:
    """The spans of all shared resources in the window, in the order of their declaration."""
    found: list[DeclaredSpan] = []
    for period in periods:
        start, end = max(period.since, since), min(period.until, until)
        if start >= end:
            continue
        for one in period.declared.shared:
            at = next((n for n, span in enumerate(found) if span.continues(one, period.declared, start)), None)
            if at is None:
                found.append(DeclaredSpan(shared=one, declared=period.declared, start=start, end=end))
            else:
                found[at] = replace(found[at], end=end)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunHistory:
    """A run with its activity."""

    run: Run
    hours: slots.ActivityTotals
    ready: datetime | None
    periods: Sequence[PricingPeriod] = ()


def _ready(run: Run, signs: Iterable[datetime]) -> datetime | None:
    inside = [at for at in signs if run.started_at <= at <= end_of(run)]
    return min(inside) if inside else None


def _of_run(history: _RunHistory, pricing: PricingOverTime, since: datetime, until: datetime) -> Iterator[Charge]:
    run, end = history.run, end_of(history.run)
    start, stop = max(run.started_at, since), min(end, until)
    if start < stop:
        yield from _time(history, pricing, start, stop)
    if run.ended_at is not None and since <= end < until:
        yield from _at_the_end(history, pricing)


def _time(history: _RunHistory, pricing: PricingOverTime, start: datetime, stop: datetime) -> Iterator[Charge]:
    for run, begin, finish in parts_by_owner(history.run, history.periods, start, stop):
        yield from _time_of(run, history, pricing, begin, finish)


def _time_of(
    run: Run, history: _RunHistory, pricing: PricingOverTime, start: datetime, stop: datetime
) -> Iterator[Charge]:
    """A part of its time in which the run had one model and owner."""
    for price, begin, finish in pricing.of_run(run, start, stop):
        for on_demand, first, last in pricing.on_demand(run, begin, finish):
            for state, since, until, duration in _states(history, first, last):
                yield Charge(
                    kind=ChargeKind.TIME,
                    state=state,
                    resource=run.instance_id,
                    cloud=run.cloud,
                    region=run.region,
                    zone=run.zone,
                    machine_type=run.machine_type,
                    capacity_type=run.capacity_type,
                    pool=run.pool,
                    model=run.model,
                    owner=run.owner,
                    reservation=run.reservation,
                    start=since,
                    end=until,
                    duration=duration,
                    price=price,
                    amount=None if price is None else money.dollar_seconds(price.usd_per_hour, duration),
                    on_demand=None if on_demand is None else money.dollar_seconds(on_demand.usd_per_hour, duration),
                )


def _states(
    history: _RunHistory, start: datetime, stop: datetime
) -> Iterator[tuple[UseState, datetime, datetime, timedelta]]:
    """The span by state; durations add up to it exactly."""
    served_from = start
    if history.ready is not None and history.ready > start:
        served_from = min(history.ready, stop)
        yield UseState.STARTING, start, served_from, served_from - start
    if served_from >= stop:
        return
    busy, idle = history.hours.measured(served_from, stop)
    unknown = stop - served_from - busy - idle
    for state, duration in ((UseState.USED, busy), (UseState.IDLE, idle), (UseState.UNMEASURED, unknown)):
        if duration:
            yield state, served_from, stop, duration


def _at_the_end(history: _RunHistory, pricing: PricingOverTime) -> Iterator[Charge]:
    """Charges that the end of a run causes (minimum charge, credit), dated at its end."""
    run, end = history.run, end_of(history.run)
    length = end - run.started_at
    preempted = run.end_cause is EndCause.PREEMPTED and run.capacity_type is CapacityType.SPOT
    if preempted and length < FREE_IF_PREEMPTED[run.cloud]:
        for charge in _time(history, pricing, run.started_at, end):
            yield replace(
                charge,
                kind=ChargeKind.PREEMPTED,
                start=end,
                end=end,
                amount=None if charge.amount is None else -charge.amount,
                on_demand=None if charge.on_demand is None else -charge.on_demand,
            )
    elif length < MINIMUM and run.capacity_type is not CapacityType.RESERVED:
        begin = end - (MINIMUM - length)
        # the model and owner at its start: the time before the start is hypothetical
        rest = _RunHistory(
            run=with_owner_at(run, history.periods, run.started_at), hours=slots.ActivityTotals(()), ready=end
        )
        for charge in _time(rest, pricing, begin, end):
            yield replace(charge, kind=ChargeKind.MINIMUM, start=end, end=end)


def unused(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, *, allow_unpriced: bool = True
) -> Iterator[Charge]:
    """Paid capacity on which no instance ran: none of this fleet and, as the cloud reports, none of others.

    A fleet that declares only some instances of a reservation is charged that share of all unused ones. So each
    fleet computes its share alone, and the shares of all fleets add up to the whole.
    """
    pricing = PricingOverTime(facts.over_time(book), allow_unpriced)
    for paid in facts.reservations:
        start = max(paid.started_at, since)
        stop = min(paid.last_seen_at, paid.ends_at or paid.last_seen_at, until)
        if start >= stop:
            continue
        takers = [run for run in facts.runs if _takes(run, paid)]
        for begin, finish in _constant_spans(takers, start, stop):
            used = sum(run.started_at <= begin < end_of(run) for run in takers)
            free = paid.instances - paid.elsewhere - used
            if free <= 0:
                continue
            for own, since_then, until_then in parts_by_owner(paid, facts.whose or facts.periods, begin, finish):
                for price, first, last in pricing.of_reservation(own, since_then, until_then):
                    yield _unused_charge(own, free, _declared_share(own, price), first, last)


def _declared_share(paid: Reservation, price: Price | None) -> Price | None:
    """The fleet's share of the price: its declared instances divided by all instances of the reservation."""
    if price is None or paid.seats is None or paid.seats >= paid.instances:
        return price
    weights = [Decimal(paid.seats), Decimal(paid.instances - paid.seats)]
    usd, _ = money.split(price.usd_per_hour, weights)
    return _rated(price, usd, f"{paid.seats} of {paid.instances} instances declared")


def _unused_charge(paid: Reservation, free: int, price: Price | None, start: datetime, end: datetime) -> Charge:
    duration = (end - start) * free
    return Charge(
        kind=ChargeKind.RESERVATION,
        state=UseState.UNUSED,
        resource=paid.reservation,
        cloud=paid.cloud,
        region=paid.region,
        zone=paid.zone,
        machine_type=paid.machine_type,
        capacity_type=CapacityType.RESERVED,
        pool=paid.pool,
        model=paid.model,
        owner=paid.owner,
        reservation=paid.reservation,
        start=start,
        end=end,
        duration=duration,
        price=price,
        amount=None if price is None else money.dollar_seconds(price.usd_per_hour, duration),
    )


def _with_instance(
    run: Run, periods: Sequence[PricingPeriod], spans: Iterable[DeclaredSpan], pricing: PricingOverTime
) -> Iterator[Charge]:
    """Resources that belong to each instance, such as its disks: one charge each, while the instance runs."""
    for span in spans:
        one, start, stop = span.shared, max(run.started_at, span.start), min(end_of(run), span.end)
        if start >= stop:
            continue
        sku = Sku(name=one.sku, region=run.region)
        for own, since, until in parts_by_owner(run, periods, start, stop):
            for price, begin, finish in pricing.parts(sku, since, until):
                usd = None if price is None else money.EXACT.multiply(price.usd_per_hour, one.units)
                description = f"{one.units} units of {price.usd_per_hour} USD/h" if price is not None else ""
                place = (own.cloud, own.region, own.zone)
                names = (f"{own.instance_id}/{one.name}", own.pool, own.model, own.owner)
                yield _shared(one.sku, place, names, (begin, finish), _rated(price, usd, description))


def _environment(span: DeclaredSpan, region: str, pricing: PricingOverTime) -> Iterator[Charge]:
    """A shared resource, split over the pools by their weights."""
    one, declared = span.shared, span.declared
    for price, begin, finish in pricing.parts(Sku(name=one.sku, region=region), span.start, span.end):
        place = (Cloud(one.sku.partition(":")[0]), region, "")
        if price is None:
            yield _shared(one.sku, place, (one.name, None, None, None), (begin, finish), None)
            continue
        for pool, (usd, description) in shares(
            money.EXACT.multiply(price.usd_per_hour, one.units), declared.weights
        ).items():
            names = (one.name, pool, declared.models.get(pool or ""), declared.owners.get(pool or ""))
            yield _shared(one.sku, place, names, (begin, finish), _rated(price, usd, description))


def _rated(price: Price | None, usd_per_hour: Decimal | None, description: str) -> Price | None:
    """The same price for some units or a share of them."""
    if price is None or usd_per_hour is None:
        return None
    return replace(
        price,
        usd_per_hour=usd_per_hour,
        source=f"{price.source}; {description}",
        list_usd_per_hour=price.usd_per_hour,
    )


def _shared(
    sku: str,
    place: tuple[Cloud, str, str],
    names: tuple[str, str | None, str | None, str | None],
    span: tuple[datetime, datetime],
    price: Price | None,
) -> Charge:
    """One row. `names`: resource, pool, model, owner; `place`: cloud, region, zone."""
    duration = span[1] - span[0]
    return Charge(
        kind=ChargeKind.SHARED,
        state=UseState.SHARED,
        resource=names[0],
        cloud=place[0],
        region=place[1],
        zone=place[2],
        machine_type=sku,
        capacity_type=CapacityType.ON_DEMAND,
        pool=names[1],
        model=names[2],
        owner=names[3],
        reservation=None,
        start=span[0],
        end=span[1],
        duration=duration,
        price=price,
        amount=None if price is None else money.dollar_seconds(price.usd_per_hour, duration),
    )


def _not_spent(
    facts: LedgerFacts, periods: Iterable[PricingPeriod], since: datetime, until: datetime
) -> Iterator[Charge]:
    """The unused part of each spend commitment, between the first and the last pass."""
    if facts.known is None:
        return
    for period in periods:
        first, last = max(since, facts.known[0], period.since), min(until, facts.known[1], period.until)
        for spend, intervals in period.coverage.spends:
            for interval in intervals:
                start, stop = max(interval.start, first), min(interval.end, last)
                if start >= stop or not interval.free:
                    continue
                description = f"not used of {spend.usd_per_hour} USD/h"
                price = spend.price(f"commitment:{spend.name}", "", interval.free, description)
                row = _shared(price.sku, (spend.cloud, "", ""), (spend.name, None, None, None), (start, stop), price)
                yield replace(
                    row, kind=ChargeKind.COMMITTED, state=UseState.UNUSED, capacity_type=CapacityType.RESERVED
                )


def _takes(run: Run, paid: Reservation) -> bool:
    if run.reservation is not None:
        return run.reservation == paid.reservation
    alike = (run.cloud, run.machine_type, run.zone) == (paid.cloud, paid.machine_type, paid.zone)
    return alike and run.capacity_type is CapacityType.RESERVED


def _constant_spans(runs: Sequence[Run], start: datetime, stop: datetime) -> Iterator[tuple[datetime, datetime]]:
    """The span, cut wherever a run begins or ends."""
    cuts = {start, stop}
    for run in runs:
        cuts |= {at for at in (run.started_at, end_of(run)) if start < at < stop}
    ordered = sorted(cuts)
    yield from zip(ordered, ordered[1:], strict=False)
