"""What ran, times what it cost: charges that add up. Pure.

A charge is the cost of one run (or of unused paid capacity) over one price in force and one state. States: *starting*
(launch to first reading of an engine), *idle* and *used* by the measured slots, *unmeasured* where nothing is known
(it counts as used), *unused* (reserved capacity that no instance ran on).

Billing rules, as rows of their own at fixed instants, so that sums over any partition of a window are equal:
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
from gpufleet.costs.cost_owners import held, held_at
from gpufleet.costs.pricing import EVER, FOREVER, PricingOverTime, PricingPeriod
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import FREE_IF_INTERRUPTED, Price
from gpufleet.ledger.facts import ActivityHour, EndCause, Reservation, Run
from gpufleet.prices.book import PriceBook, Sku

MINIMUM: Final = timedelta(seconds=60)


class UseState(StrEnum):
    """What an instance did while it cost money."""

    USED = "used"
    UNMEASURED = "unmeasured"
    IDLE = "idle"
    STARTING = "starting"
    UNUSED = "unused"
    SHARED = "shared"


class ChargeKind(StrEnum):
    """Why there is a charge."""

    TIME = "time"
    MINIMUM = "minimum charge"
    INTERRUPTED = "interrupted by the cloud"
    RESERVATION = "reserved, not used"
    SHARED = "shared"
    COMMITTED = "committed, not used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One line of the bill as we compute it."""

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
    """Exclusive. The state may hold only `duration` of this span."""
    duration: timedelta
    price: Price | None
    """None: unknown (only where unpriced rows are allowed)."""
    amount: Decimal | None
    """In dollar-seconds; see gpufleet.domain.money. None: unknown."""
    on_demand: Decimal | None = None
    """What the same time costs on demand, in dollar-seconds; spot only. None: unknown."""

    @property
    def priced_as(self) -> str:
        """What has a price, for people: machine type, how it is bought and where."""
        return f"{self.machine_type} {self.capacity_type} in {self.zone or self.region}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """What the ledger knows of a window."""

    runs: Sequence[Run]
    activity: Mapping[str, Sequence[ActivityHour]] = field(default_factory=dict[str, Sequence[ActivityHour]])
    first_signs: Mapping[str, Sequence[datetime]] = field(default_factory=dict[str, Sequence[datetime]])
    reservations: Sequence[Reservation] = ()
    declared: DeclaredCosts = DeclaredCosts()
    """At the end of the window."""
    coverage: Coverage = field(default_factory=lambda: Coverage(DeclaredCosts(), ()))
    """Of all runs of the window, also where `runs` are fewer."""
    known: tuple[datetime, datetime] | None = None
    """First and last complete look: what is shared is known to have been there between them."""
    gaps: Sequence[tuple[datetime, datetime]] = ()
    """Spans of the window without a look, long enough for others to use what is shared and to leave it again."""
    eras: Sequence[PricingPeriod] = ()
    """What was declared when; none: `declared` and `coverage` hold at all times."""
    whose: Sequence[PricingPeriod] = ()
    """What was declared of models and owners when; none: that of `eras`."""
    closed: Sequence["ClosedFacts"] = ()
    """Spans of the window that have facts of their own, in the order of time."""

    def over_time(self, book: PriceBook) -> Sequence[PricingPeriod]:
        """What was declared when. `book`: that of facts without eras."""
        always = PricingPeriod(since=EVER, until=FOREVER, declared=self.declared, coverage=self.coverage, book=book)
        return self.eras or (always,)

    def over(self, since: datetime, until: datetime) -> Iterator[tuple["LedgerFacts", datetime, datetime]]:
        """The window cut at closed spans, each part with its facts. Charges of the parts are those of the window."""
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
    """What was known of a span when it was closed, which holds for it."""

    since: datetime
    until: datetime
    facts: LedgerFacts


def charges(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, *, allow_unpriced: bool = False
) -> Iterator[Charge]:
    """Every charge of the window, run by run. Raises MissingPriceError unless unpriced rows are allowed."""
    # the difference of two times of one zone is that of its clocks, which is wrong in a DST night
    for part, start, end in facts.over(since.astimezone(UTC), until.astimezone(UTC)):
        yield from _of_runs(part, book, start, end, allow_unpriced=allow_unpriced)
        yield from _standing(part, book, start, end, allow_unpriced=allow_unpriced)


def _of_runs(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, *, allow_unpriced: bool
) -> Iterator[Charge]:
    eras = facts.over_time(book)
    covered = PricingOverTime(eras, allow_unpriced)
    plain = PricingOverTime(eras, allow_unpriced, covered=False)
    with_each = [span for span in declared_spans(eras, since, until) if span.shared.per_instance]
    for run in facts.runs:
        life = _RunHistory(
            run=run,
            hours=slots.ActivityTotals(facts.activity.get(run.instance_id, ())),
            ready=_ready(run, facts.first_signs.get(run.instance_id, ())),
            eras=facts.whose or facts.eras,
        )
        yield from _of_run(life, covered, since, until)
        yield from _with_instance(run, life.eras, with_each, plain)


def standing(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, *, allow_unpriced: bool = True
) -> Iterator[Charge]:
    """What costs money whether instances run or not: unused paid capacity, and what all pools share."""
    for part, start, end in facts.over(since, until):
        yield from _standing(part, book, start, end, allow_unpriced=allow_unpriced)


def _standing(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, *, allow_unpriced: bool
) -> Iterator[Charge]:
    yield from unused(facts, book, since, until, allow_unpriced=allow_unpriced)
    eras = facts.over_time(book)
    yield from _not_spent(facts, eras, since, until)
    if facts.known is None:
        return
    plain = PricingOverTime(eras, allow_unpriced, covered=False)
    for span in declared_spans(eras, max(since, facts.known[0]), min(until, facts.known[1])):
        if not span.shared.per_instance:
            yield from _environment(span, book.region, plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSpan:
    """A shared resource, as long as it and its split stayed the same."""

    shared: SharedCost
    declared: DeclaredCosts
    start: datetime
    end: datetime

    def goes_on(self, shared: SharedCost, declared: DeclaredCosts, start: datetime) -> bool:
        """Whether nothing changes for it with the era that begins then."""
        mine, other = self.declared, declared
        same_split = (mine.weights, mine.models, mine.owners) == (other.weights, other.models, other.owners)
        return self.end == start and self.shared == shared and (shared.per_instance or same_split)


def declared_spans(eras: Iterable[PricingPeriod], since: datetime, until: datetime) -> list[DeclaredSpan]:
    """What is shared and until when, in the order in which it is declared."""
    found: list[DeclaredSpan] = []
    for era in eras:
        start, end = max(era.since, since), min(era.until, until)
        if start >= end:
            continue
        for one in era.declared.shared:
            at = next((n for n, span in enumerate(found) if span.goes_on(one, era.declared, start)), None)
            if at is None:
                found.append(DeclaredSpan(shared=one, declared=era.declared, start=start, end=end))
            else:
                found[at] = replace(found[at], end=end)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunHistory:
    """A run and what it did."""

    run: Run
    hours: slots.ActivityTotals
    ready: datetime | None
    eras: Sequence[PricingPeriod] = ()


def _ready(run: Run, signs: Iterable[datetime]) -> datetime | None:
    inside = [at for at in signs if run.started_at <= at <= end_of(run)]
    return min(inside) if inside else None


def _of_run(life: _RunHistory, pricing: PricingOverTime, since: datetime, until: datetime) -> Iterator[Charge]:
    run, end = life.run, end_of(life.run)
    start, stop = max(run.started_at, since), min(end, until)
    if start < stop:
        yield from _time(life, pricing, start, stop)
    if run.ended_at is not None and since <= end < until:
        yield from _at_the_end(life, pricing)


def _time(life: _RunHistory, pricing: PricingOverTime, start: datetime, stop: datetime) -> Iterator[Charge]:
    for run, begin, finish in held(life.run, life.eras, start, stop):
        yield from _time_of(run, life, pricing, begin, finish)


def _time_of(
    run: Run, life: _RunHistory, pricing: PricingOverTime, start: datetime, stop: datetime
) -> Iterator[Charge]:
    """A part of its time in which the run had one model and owner."""
    for price, begin, finish in pricing.of_run(run, start, stop):
        for on_demand, first, last in pricing.on_demand(run, begin, finish):
            for state, since, until, duration in _states(life, first, last):
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
    life: _RunHistory, start: datetime, stop: datetime
) -> Iterator[tuple[UseState, datetime, datetime, timedelta]]:
    """The span by state; durations add up to it exactly."""
    served_from = start
    if life.ready is not None and life.ready > start:
        served_from = min(life.ready, stop)
        yield UseState.STARTING, start, served_from, served_from - start
    if served_from >= stop:
        return
    busy, idle = life.hours.measured(served_from, stop)
    unknown = stop - served_from - busy - idle
    for state, duration in ((UseState.USED, busy), (UseState.IDLE, idle), (UseState.UNMEASURED, unknown)):
        if duration:
            yield state, served_from, stop, duration


def _at_the_end(life: _RunHistory, pricing: PricingOverTime) -> Iterator[Charge]:
    """Rows that only the end of a run brings, at the instant of its end."""
    run, end = life.run, end_of(life.run)
    length = end - run.started_at
    interrupted = run.end_cause is EndCause.PREEMPTED and run.capacity_type is CapacityType.SPOT
    if interrupted and length < FREE_IF_INTERRUPTED[run.cloud]:
        for charge in _time(life, pricing, run.started_at, end):
            yield replace(
                charge,
                kind=ChargeKind.INTERRUPTED,
                start=end,
                end=end,
                amount=None if charge.amount is None else -charge.amount,
                on_demand=None if charge.on_demand is None else -charge.on_demand,
            )
    elif length < MINIMUM and run.capacity_type is not CapacityType.RESERVED:
        begin = end - (MINIMUM - length)
        # whose it was at its start: the time before it is made up
        rest = _RunHistory(run=held_at(run, life.eras, run.started_at), hours=slots.ActivityTotals(()), ready=end)
        for charge in _time(rest, pricing, begin, end):
            yield replace(charge, kind=ChargeKind.MINIMUM, start=end, end=end)


def unused(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime, *, allow_unpriced: bool = True
) -> Iterator[Charge]:
    """Paid capacity that was unused: neither instances of this fleet nor, as its cloud reports, others ran on it.

    A fleet that declares some of the seats of a reservation is charged that part of the unused ones, whoever left
    them empty: every fleet can compute it alone, and the parts of all add up where their seats add up to the whole.
    """
    pricing = PricingOverTime(facts.over_time(book), allow_unpriced)
    for paid in facts.reservations:
        start = max(paid.started_at, since)
        stop = min(paid.last_seen_at, paid.ends_at or paid.last_seen_at, until)
        if start >= stop:
            continue
        takers = [run for run in facts.runs if _takes(run, paid)]
        for begin, finish in _stretches(takers, start, stop):
            used = sum(run.started_at <= begin < end_of(run) for run in takers)
            free = paid.instances - paid.elsewhere - used
            if free <= 0:
                continue
            for own, since_then, until_then in held(paid, facts.whose or facts.eras, begin, finish):
                for price, first, last in pricing.of_reservation(own, since_then, until_then):
                    yield _idle_seats(own, free, _of_seats(own, price), first, last)


def _of_seats(paid: Reservation, price: Price | None) -> Price | None:
    """The part of a price that the fleet's declared seats are of all."""
    if price is None or paid.seats is None or paid.seats >= paid.instances:
        return price
    weights = [Decimal(paid.seats), Decimal(paid.instances - paid.seats)]
    usd, _ = money.split(price.usd_per_hour, weights)
    return _rated(price, usd, f"{paid.seats} of {paid.instances} seats")


def _idle_seats(paid: Reservation, free: int, price: Price | None, start: datetime, end: datetime) -> Charge:
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
    run: Run, eras: Sequence[PricingPeriod], spans: Iterable[DeclaredSpan], pricing: PricingOverTime
) -> Iterator[Charge]:
    """What every instance brings along, its disks say: a row of its own, as long as the instance lives."""
    for span in spans:
        one, start, stop = span.shared, max(run.started_at, span.start), min(end_of(run), span.end)
        if start >= stop:
            continue
        sku = Sku(name=one.sku, region=run.region)
        for own, since, until in held(run, eras, start, stop):
            for price, begin, finish in pricing.parts(sku, since, until):
                usd = None if price is None else money.EXACT.multiply(price.usd_per_hour, one.units)
                words = f"{one.units} units of {price.usd_per_hour} USD/h" if price is not None else ""
                place = (own.cloud, own.region, own.zone)
                names = (f"{own.instance_id}/{one.name}", own.pool, own.model, own.owner)
                yield _shared(one.sku, place, names, (begin, finish), _rated(price, usd, words))


def _environment(span: DeclaredSpan, region: str, pricing: PricingOverTime) -> Iterator[Charge]:
    """A shared resource, split over the pools by their weights."""
    one, declared = span.shared, span.declared
    for price, begin, finish in pricing.parts(Sku(name=one.sku, region=region), span.start, span.end):
        place = (Cloud(one.sku.partition(":")[0]), region, "")
        if price is None:
            yield _shared(one.sku, place, (one.name, None, None, None), (begin, finish), None)
            continue
        for pool, (usd, words) in shares(
            money.EXACT.multiply(price.usd_per_hour, one.units), declared.weights
        ).items():
            names = (one.name, pool, declared.models.get(pool or ""), declared.owners.get(pool or ""))
            yield _shared(one.sku, place, names, (begin, finish), _rated(price, usd, words))


def _rated(price: Price | None, usd_per_hour: Decimal | None, words: str) -> Price | None:
    """The same price for some units or a share of them."""
    if price is None or usd_per_hour is None:
        return None
    return replace(
        price,
        usd_per_hour=usd_per_hour,
        source=f"{price.source}; {words}",
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
    facts: LedgerFacts, eras: Iterable[PricingPeriod], since: datetime, until: datetime
) -> Iterator[Charge]:
    """What nobody used of a spend commitment, between the first and the last look."""
    if facts.known is None:
        return
    for era in eras:
        first, last = max(since, facts.known[0], era.since), min(until, facts.known[1], era.until)
        for spend, stretches in era.coverage.spends:
            for stretch in stretches:
                start, stop = max(stretch.start, first), min(stretch.end, last)
                if start >= stop or not stretch.free:
                    continue
                words = f"not used of {spend.usd_per_hour} USD/h"
                price = spend.price(f"commitment:{spend.name}", "", stretch.free, words)
                row = _shared(price.sku, (spend.cloud, "", ""), (spend.name, None, None, None), (start, stop), price)
                yield replace(
                    row, kind=ChargeKind.COMMITTED, state=UseState.UNUSED, capacity_type=CapacityType.RESERVED
                )


def _takes(run: Run, paid: Reservation) -> bool:
    if run.reservation is not None:
        return run.reservation == paid.reservation
    alike = (run.cloud, run.machine_type, run.zone) == (paid.cloud, paid.machine_type, paid.zone)
    return alike and run.capacity_type is CapacityType.RESERVED


def _stretches(runs: Sequence[Run], start: datetime, stop: datetime) -> Iterator[tuple[datetime, datetime]]:
    """The span cut wherever a run begins or ends."""
    cuts = {start, stop}
    for run in runs:
        cuts |= {at for at in (run.started_at, end_of(run)) if start < at < stop}
    ordered = sorted(cuts)
    yield from zip(ordered, ordered[1:], strict=False)
