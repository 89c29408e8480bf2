"""One pass of the cost watchdog: what the clouds and the metrics store tell becomes facts of the ledger.

All of a pass is written in one transaction, so a pass that dies leaves nothing; one that runs twice leaves the same.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from sqlalchemy import Connection, Engine

from gpufleet.costs.closing import is_closed, outside
from gpufleet.costs.commitments import DeclaredCosts
from gpufleet.costs.declarations import content_of
from gpufleet.costs.samples import MetricNames, RawSeries, activity, readings, team_readings
from gpufleet.costs.slots import Measure
from gpufleet.domain import garbage
from gpufleet.domain.instance_history import InstanceEnd, InstanceHistory, InstanceRecord, PaidCapacity
from gpufleet.domain.model import InstanceState
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts, history
from gpufleet.ledger.closed_periods import closed_spans
from gpufleet.ledger.database import writing
from gpufleet.ledger.declared import note_declared
from gpufleet.ledger.reservations import note_reservations
from gpufleet.ledger.rollups import roll_up
from gpufleet.ledger.teams import TeamReading, add_team_readings

LOOKBACK: Final = timedelta(hours=6)
"""How far back a first pass (or one after a long gap) asks the metrics store."""

OVERLAP: Final = timedelta(minutes=2)
"""Asked again by the next pass: a difference needs the sample before it."""

PIECE: Final = timedelta(minutes=30)
"""Span of one query of raw samples."""


class HistorySource(Protocol):
    """The instances of a fleet, those included that ended not long ago."""

    def history(self) -> InstanceHistory:
        """All of them, every page; a failed page raises OSError. What is malformed fails alone."""
        ...

    def endings(self, zones: Collection[str]) -> Sequence[InstanceEnd]:
        """Recorded ends in these zones of instances that `history` no longer lists. Raises OSError."""
        ...


class PaidCapacitySource(Protocol):
    """Capacity that is paid for."""

    def paid(self) -> Sequence[PaidCapacity]: ...

    def used_by(self, reservation: str) -> Mapping[str, int] | None:
        """Account to how many instances it runs in a reservation; None: not reported. Raises OSError."""
        ...


class CloudPrices(Protocol):
    """Prices that a cloud tells."""

    def prices(self, machine_types: Sequence[str], since: datetime, until: datetime) -> Sequence[Price]:
        """What came into force in the span, and what was in force at its start."""
        ...


class SampleSource(Protocol):
    """Raw samples of a metrics store."""

    def samples(self, selector: str, since: datetime, until: datetime) -> Sequence[RawSeries]:
        """Every sample of the span. Raises OSError when the store cannot answer whole."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSources:
    """Where a pass looks."""

    history: HistorySource
    paid: PaidCapacitySource
    market: CloudPrices
    samples: SampleSource
    names: MetricNames


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """What the fleet document says of a pool."""

    model: str
    owner: str
    reservations: Mapping[str, int] = field(default_factory=dict[str, int])
    """Reservation to how many of its instances the pool declares."""
    gpu_active_below: float = Measure().gpu_active_below
    """At or above it a GPU works: the noise floor by which the idle watchdog judges the pool, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    """What a pass must know of its fleet."""

    name: str
    """The fleet's name in the ledger: cloud/environment/region."""
    environment: str
    """Label of its metrics."""
    pools: Mapping[str, PoolFacts]
    machine_types: tuple[str, ...]
    measure: Measure
    host: str
    account: str = ""
    """The account (AWS) or project (Google Cloud) that its instances run in."""
    declared: DeclaredCosts | None = None
    """What the ledger is to keep with the time at which it was seen; None: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a pass wrote."""

    at: datetime
    instances: int
    ended: int
    readings: int
    active_hours: int
    prices: int
    reservations: int
    metrics_from: datetime
    notes: tuple[str, ...]


def collect(engine: Engine, sources: CollectorSources, fleet: FleetFacts, now: datetime) -> Collected:
    """One pass. Raises OSError when the instances cannot be listed whole; prices or metrics that fail are noted."""
    with engine.connect() as connection:
        last = history.last_pass(connection, fleet.name)
        priced = history.last_priced_pass(connection, fleet.name)
        known = history.open_runs(connection, fleet.name)
    # the control host and routers are `shared` of the fleet document: as runs, too, they would be paid twice
    listed = sources.history.history()
    seen = [life for life in listed.records if not life.instance.is_of_the_house]
    ours = _ours(engine, fleet, known, [life for life in seen if not life.instance.alive and life.ended_at is None])
    notes: list[str] = []
    # of one that cannot be read nothing is written: it has not ended, and its run goes on once it can be read
    unread = [run for run in known if run.instance_id in listed.errors]
    if listed.errors:
        notes.append(
            f"{len(listed.errors)} instances: {next(iter(listed.errors.values()))}; the next pass asks again"
        )
    since = _metrics_since(last, now)
    with garbage.not_looked_for():
        series = _samples(sources, fleet, since, now, notes)
        counters = readings(fleet.name, sources.names, series or ())
        floors = {
            key: fleet.pools[pool].gpu_active_below
            for key, pool in (
                *((life.instance.id, life.instance.pool) for life in seen),
                *((run.instance_id, run.pool) for run in unread),
            )
            if pool is not None and pool in fleet.pools
        }
        hours = activity(fleet.name, sources.names, series or (), fleet.measure, floors)
    types = sorted({*fleet.machine_types, *(life.instance.machine_type for life in seen)})
    market = _market(sources, types, _market_since(seen, priced, now), now, notes)
    own = _in_reservations(seen, unread)
    unknown = len(listed.errors.keys() - {run.instance_id for run in unread})
    shown = _paid(sources, fleet, notes)
    paid = _certain(shown or (), own, unknown, notes)
    reserved = [_with_accounts(_reservation(p, fleet, own, now), sources, fleet, notes) for p in paid]
    begun = {(run.instance_id, run.started_at) for run in known}
    runs = [_run(life, fleet, now) for life in seen if _has_run(life, begun)]
    over = [life for life in seen if not life.instance.alive and _has_run(life, begun)]
    ends = [_end(life, ours.of(life), now) for life in over if ours.can_date(life, begun, now)]
    ends += [
        _gone_end(run, told, ours.after(run.instance_id, run.last_seen_at), now)
        for run, told in _gone(sources, [run for run in known if run not in unread], seen, now, notes)
    ]
    done = Collected(
        at=now,
        instances=len(runs),
        ended=len(ends),
        readings=len(counters),
        active_hours=len(hours),
        prices=len(market or ()),
        reservations=len(paid),
        metrics_from=since,
        notes=tuple(notes),
    )
    with writing(engine) as connection:
        facts.add_runs(connection, runs)
        facts.add_ends(connection, ends)
        _write_metrics(connection, fleet, counters, hours, team_readings(fleet.name, sources.names, series or ()))
        facts.add_prices(connection, market or ())
        note_reservations(connection, reserved)
        if fleet.declared is not None:
            note_declared(connection, fleet.name, now, content_of(fleet.declared))
        whole = shown is not None and len(paid) == len(shown)
        read = _pass(done, fleet, read_metrics=series is not None, priced=market is not None, paid=whole)
        facts.add_pass(connection, read)
    return done


def _write_metrics(
    connection: Connection,
    fleet: FleetFacts,
    counters: Sequence[facts.Reading],
    hours: Sequence[facts.ActivityHour],
    by_team: Sequence[TeamReading],
) -> None:
    """What instances did and served, but for spans that a bill has closed: they stay as they were."""
    closed = closed_spans(connection, fleet.name)
    still_open = [one for one in counters if not is_closed(one.at, closed)]
    facts.add_readings(connection, still_open)
    roll_up(connection, still_open)
    facts.add_activity(connection, outside(hours, closed))
    add_team_readings(connection, [one for one in by_team if not is_closed(one.at, closed)])


def _pass(done: Collected, fleet: FleetFacts, *, read_metrics: bool, priced: bool, paid: bool) -> facts.CostPass:
    return facts.CostPass(
        environment=fleet.name,
        at=done.at,
        host=fleet.host,
        metrics_from=done.metrics_from if read_metrics else None,
        metrics_until=done.at if read_metrics else None,
        notes="; ".join(done.notes)[:2000],
        priced=priced,
        paid=paid,
    )


def _metrics_since(last: facts.CostPass | None, now: datetime) -> datetime:
    oldest = now - LOOKBACK
    if last is None or last.metrics_until is None:
        return oldest
    return max(oldest, last.metrics_until - OVERLAP)


def _samples(
    sources: CollectorSources, fleet: FleetFacts, since: datetime, now: datetime, notes: list[str]
) -> list[RawSeries] | None:
    """Raw samples, each series whole; None when the store did not answer."""
    chosen = "|".join(sources.names.all())
    selector = f'{{__name__=~"{chosen}",environment="{fleet.environment}"}}'
    whole: dict[tuple[tuple[str, str], ...], RawSeries] = {}
    begin = since
    try:
        while begin < now:
            end = min(begin + PIECE, now)
            for part in sources.samples.samples(selector, begin, end):
                key = tuple(sorted(part.labels.items()))
                before = whole.get(key)
                after = [s for s in part.samples if before is None or s.at > before.samples[-1].at]
                if after:
                    whole[key] = RawSeries(part.labels, [*(before.samples if before else ()), *after])
            begin = end
    except OSError as error:
        notes.append(f"metrics: {error}; the next pass asks again")
        return None
    return list(whole.values())


def _market_since(seen: Sequence[InstanceRecord], priced: datetime | None, now: datetime) -> datetime:
    """Since the last pass that was told prices; at first since the oldest instance's launch."""
    return min((life.instance.launched_at for life in seen), default=now) if priced is None else priced - OVERLAP


def _market(
    sources: CollectorSources, types: Sequence[str], since: datetime, now: datetime, notes: list[str]
) -> Sequence[Price] | None:
    """Prices since then; None when they could not be read."""
    try:
        return sources.market.prices(types, since, now) if types else ()
    except OSError as error:
        notes.append(f"prices: {error}; older ones stay in force, the next pass asks again")
        return None


def _paid(sources: CollectorSources, fleet: FleetFacts, notes: list[str]) -> list[PaidCapacity] | None:
    """What the fleet names; None when it could not be read."""
    ours = {name for pool in fleet.pools.values() for name in pool.reservations}
    if not ours:
        return []
    try:
        return [paid for paid in sources.paid.paid() if paid.reservation in ours]
    except OSError as error:
        notes.append(f"reservations: {error}; the next pass asks again")
        return None


def _has_run(life: InstanceRecord, begun: Collection[tuple[str, datetime]]) -> bool:
    """A machine that is stopped may have been so for weeks: it has a run where its end is dated, or ours is open."""
    instance = life.instance
    if life.ended_at is not None or instance.state is not InstanceState.STOPPED:
        return True
    return (instance.id, instance.launched_at) in begun


def _run(life: InstanceRecord, fleet: FleetFacts, now: datetime) -> facts.Run:
    instance = life.instance
    pool = fleet.pools.get(instance.pool or "")
    last_seen = now if instance.alive else life.ended_at or instance.launched_at
    return facts.Run(
        cloud=instance.cloud,
        instance_id=instance.id,
        started_at=instance.launched_at,
        environment=fleet.name,
        region=instance.region,
        zone=instance.zone,
        machine_type=instance.machine_type,
        capacity_type=instance.capacity_type,
        pool=instance.pool,
        model=None if pool is None else pool.model,
        owner=None if pool is None else pool.owner,
        group=instance.group,
        reservation=instance.reservation,
        last_seen_at=max(last_seen, instance.launched_at),
    )


@dataclass(frozen=True, slots=True)
class _OwnEnds:
    """Ends that our watchdogs brought about."""

    at: Mapping[str, datetime]
    """Instance to when one of them ended or stopped it last."""
    last_seen: Mapping[tuple[str, datetime], datetime]
    """Instance and launch to when a look saw it alive last."""

    def after(self, instance_id: str, last_seen: datetime) -> datetime | None:
        """Our end of one that no look saw alive since: one that was, had only been asked to end."""
        ended = self.at.get(instance_id)
        return ended if ended is not None and ended >= last_seen else None

    def of(self, life: InstanceRecord) -> datetime | None:
        """Our end of one that its cloud still lists."""
        return self.after(life.instance.id, self._seen(life))

    def can_date(self, life: InstanceRecord, begun: Collection[tuple[str, datetime]], now: datetime) -> bool:
        """Whether a look at `now` says more of its end than is known. `begun`: runs without an end.

        A look whose clock was set back would move a known end to before its instance was seen alive.
        """
        is_open = (life.instance.id, life.instance.launched_at) in begun
        return life.ended_at is not None or is_open or self._seen(life) <= now

    def _seen(self, life: InstanceRecord) -> datetime:
        """When a look saw it alive last."""
        launched = life.instance.launched_at
        return self.last_seen.get((life.instance.id, launched), launched)


def _ours(
    engine: Engine, fleet: FleetFacts, known: Sequence[facts.Run], undated: Sequence[InstanceRecord]
) -> _OwnEnds:
    """Our own ends of the runs that are open and of instances whose cloud dates no end."""
    with engine.connect() as connection:
        last_seen = history.last_seen(connection, fleet.name, [life.instance.id for life in undated])
        since = [*(run.last_seen_at for run in known), *(life.instance.launched_at for life in undated)]
        at = history.ended_by_us(connection, fleet.name, min(since)) if since else {}
    return _OwnEnds(at, last_seen)


def _end(life: InstanceRecord, ours: datetime | None, now: datetime) -> facts.RunEnd:
    """The end of one that does not live: as its cloud dates it, else our own ledger, else before this look.

    One that its cloud took ended before we came to end it, at a time that nobody states.
    """
    instance = life.instance
    return facts.RunEnd(
        cloud=instance.cloud,
        instance_id=instance.id,
        started_at=instance.launched_at,
        ended_at=max(life.ended_at or min(ours or now, now), instance.launched_at),
        cause=facts.EndCause.PREEMPTED if life.preempted else facts.EndCause.ENDED,
        exact=life.ended_at is not None or (ours is not None and ours <= now and not life.preempted),
    )


def _gone(
    sources: CollectorSources,
    known: Sequence[facts.Run],
    seen: Sequence[InstanceRecord],
    now: datetime,
    notes: list[str],
) -> list[tuple[facts.Run, InstanceEnd | None]]:
    """Runs that a whole list no longer shows (gone, or begun anew under a later launch time), and what their cloud
    says of their ends.
    """
    shown = {(life.instance.id, life.instance.launched_at) for life in seen}
    gone = [run for run in known if (run.instance_id, run.started_at) not in shown and run.last_seen_at <= now]
    if not gone:
        return []
    try:
        told = sources.history.endings({run.zone for run in gone})
    except OSError as error:
        # they cost nothing after they were last seen, so the next pass is soon enough to say how they ended
        notes.append(f"ends of {len(gone)} instances: {error}; the next pass asks again")
        return []
    starts = sorted({(run.instance_id, run.started_at) for run in known} | shown)
    return [(run, _told_of(run, starts, told)) for run in gone]


def _told_of(
    run: facts.Run, starts: Sequence[tuple[str, datetime]], told: Sequence[InstanceEnd]
) -> InstanceEnd | None:
    """The first end of that instance after the run began, and before the next of its name did."""
    later = (at for name, at in starts if name == run.instance_id and at > run.started_at)
    until = next(later, None)
    its_own = (
        ending
        for ending in told
        if ending.instance_id == run.instance_id
        and ending.ended_at >= run.started_at
        and (until is None or ending.ended_at <= until)
    )
    return min(its_own, key=lambda ending: ending.ended_at, default=None)


def _gone_end(run: facts.Run, told: InstanceEnd | None, ours: datetime | None, now: datetime) -> facts.RunEnd:
    """How it ended: as its cloud says, else as our own ledger says, else at an unknown time before this look."""
    exact = True
    if told is not None:
        # announced while it was still seen alive: it lived on until then at least
        ended_at = max(told.ended_at, run.last_seen_at)
        cause = facts.EndCause.PREEMPTED if told.preempted else facts.EndCause.ENDED
    elif ours is not None and ours <= now:
        ended_at, cause = ours, facts.EndCause.ENDED
    else:
        ended_at, cause, exact = now, facts.EndCause.ABSENT, False
    return facts.RunEnd(
        cloud=run.cloud,
        instance_id=run.instance_id,
        started_at=run.started_at,
        ended_at=ended_at,
        cause=cause,
        exact=exact,
    )


def _in_reservations(seen: Sequence[InstanceRecord], unread: Sequence[facts.Run]) -> Counter[str | None]:
    """How many instances of ours each reservation holds; those count on that cannot be read now."""
    living = [life.instance.reservation for life in seen if life.instance.alive]
    return Counter([*living, *(run.reservation for run in unread)])


def _certain(
    paid: Sequence[PaidCapacity], own: Mapping[str | None, int], unknown: int, notes: list[str]
) -> Sequence[PaidCapacity]:
    """Those of which it is known how much others use: an instance of which nothing is known may be ours, or not."""
    doubtful = [one.reservation for one in paid if unknown and _elsewhere(one, own) > 0]
    if doubtful:
        notes.append(f"reservations {', '.join(doubtful)}: who uses them is not known; the next pass asks again")
    return [one for one in paid if one.reservation not in doubtful]


def _elsewhere(paid: PaidCapacity, own: Mapping[str | None, int]) -> int:
    """How many of its instances others use."""
    # an instance of ours that begins or ends is in one answer and not in the other: not less than none
    ours = own.get(paid.reservation, 0)
    return 0 if paid.available is None else max(0, paid.instances - paid.available - ours)


def _reservation(
    paid: PaidCapacity, fleet: FleetFacts, own: Mapping[str | None, int], now: datetime
) -> facts.Reservation:
    pool = next((name for name, known in fleet.pools.items() if paid.reservation in known.reservations), None)
    known = fleet.pools.get(pool or "")
    return facts.Reservation(
        cloud=paid.cloud,
        reservation=paid.reservation,
        started_at=paid.started_at,
        instances=paid.instances,
        environment=fleet.name,
        region=paid.region,
        zone=paid.zone,
        machine_type=paid.machine_type,
        last_seen_at=now,
        pool=pool,
        model=None if known is None else known.model,
        owner=None if known is None else known.owner,
        ends_at=paid.ends_at,
        elsewhere=_elsewhere(paid, own),
        seats=None if known is None else known.reservations[paid.reservation],
    )


def _with_accounts(
    one: facts.Reservation, sources: CollectorSources, fleet: FleetFacts, notes: list[str]
) -> facts.Reservation:
    """Whose instances run in it that are not of this fleet, where its cloud tells."""
    if not one.elsewhere:
        return one
    try:
        used = sources.paid.used_by(one.reservation)
    except OSError as error:
        notes.append(f"use of reservation {one.reservation} by account: {error}; the next pass asks again")
        return one
    if used is None:
        return one
    others = {account: count for account, count in used.items() if account != fleet.account and count}
    # what the others do not use is of this account: of its other fleets, or of no fleet
    rest = one.elsewhere - sum(others.values())
    if rest < 0:  # the two answers are of different moments
        return one
    return replace(one, accounts=others | ({fleet.account: rest} if rest else {}))
