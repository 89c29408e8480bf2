"""One pass of the cost watchdog: writes what the clouds and the metrics store report to the ledger.

A pass writes in one transaction, so an interrupted pass writes nothing. A repeated pass writes the same facts.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from sqlalchemy import Connection, Engine

from gpufleet.costs.closing import is_closed, outside, units_outside
from gpufleet.costs.commitments import DeclaredCosts
from gpufleet.costs.declarations import content_of
from gpufleet.costs.energy_samples import EnergyNames, energy_readings
from gpufleet.costs.samples import MetricNames, RawSeries, activity, readings, team_readings
from gpufleet.costs.slots import Measure
from gpufleet.costs.unit_samples import UnitNames, unit_activity
from gpufleet.domain import catalogue, garbage
from gpufleet.domain.instance_history import InstanceEnd, InstanceHistory, InstanceRecord, PaidCapacity
from gpufleet.domain.model import InstanceState
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts, history
from gpufleet.ledger.closed_periods import closed_spans
from gpufleet.ledger.database import writing
from gpufleet.ledger.declared import note_declared
from gpufleet.ledger.energy import EnergyReading, add_energy_readings, roll_up_energy
from gpufleet.ledger.reservations import note_reservations
from gpufleet.ledger.rollups import roll_up
from gpufleet.ledger.teams import TeamReading, add_team_readings
from gpufleet.ledger.units import UnitHour, add_unit_hours

LOOKBACK: Final = timedelta(hours=6)
"""How far back a first pass (or one after a long gap) asks the metrics store."""

OVERLAP: Final = timedelta(minutes=2)
"""The end of a pass's span that the next pass reads again: a difference needs the sample before it."""

PIECE: Final = timedelta(minutes=30)
"""Span of one query of raw samples."""


class HistorySource(Protocol):
    """The instances of a fleet, including those that ended recently."""

    def history(self) -> InstanceHistory:
        """Every page of the list. Raises OSError if a page fails. A malformed instance is reported in `errors`."""
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
    """Prices that a cloud reports."""

    def prices(self, machine_types: Sequence[str], since: datetime, until: datetime) -> Sequence[Price]:
        """Prices that came into force in the span, and those in force at its start."""
        ...


class SampleSource(Protocol):
    """Raw samples of a metrics store."""

    def samples(self, selector: str, since: datetime, until: datetime) -> Sequence[RawSeries]:
        """Every sample of the span. Raises OSError if the store does not return all of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSources:
    """The sources that a pass reads."""

    history: HistorySource
    paid: PaidCapacitySource
    market: CloudPrices
    samples: SampleSource
    names: MetricNames
    energy: EnergyNames | None = None
    """None: energy is not read."""
    units: UnitNames | None = None
    """None: slices and shared devices are not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """The settings of a pool that a pass needs, from the fleet document."""

    model: str
    owner: str
    reservations: Mapping[str, int] = field(default_factory=dict[str, int])
    """Reservation to how many of its instances the pool declares."""
    gpu_active_below: float = Measure().gpu_active_below
    """Noise floor: a GPU at or above this activity counts as working, as for the idle watchdog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    """The properties of a fleet that a pass needs."""

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
    """The declaration to store with the time of the pass; None: none is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a pass wrote."""

    at: datetime
    instances: int
    ended: int
    readings: int
    energy_readings: int
    active_hours: int
    prices: int
    reservations: int
    metrics_from: datetime
    notes: tuple[str, ...]


def collect(engine: Engine, sources: CollectorSources, fleet: FleetFacts, now: datetime) -> Collected:
    """Run one pass. Raises OSError if the instance list is incomplete; failed prices or metrics become notes."""
    with engine.connect() as connection:
        last = history.last_pass(connection, fleet.name)
        priced = history.last_priced_pass(connection, fleet.name)
        known = history.open_runs(connection, fleet.name)
    # the control host and routers are `shared` in the fleet document: as runs, they would be charged twice
    listed = sources.history.history()
    seen = [record for record in listed.records if not record.instance.is_infrastructure]
    ours = _ours(
        engine, fleet, known, [record for record in seen if not record.instance.alive and record.ended_at is None]
    )
    notes: list[str] = []
    # nothing is written of an unreadable instance: it has not ended, and its run continues when it is readable again
    unread = [run for run in known if run.instance_id in listed.errors]
    if listed.errors:
        notes.append(f"{len(listed.errors)} instances: {next(iter(listed.errors.values()))}; the next pass retries")
    since = _metrics_since(last, now)
    with garbage.collector_paused():
        series = _samples(sources, fleet, since, now, notes)
        counters = readings(fleet.name, sources.names, series or ())
        energy = _energy(sources, fleet, series or (), notes)
        floors = {
            key: fleet.pools[pool].gpu_active_below
            for key, pool in (
                *((record.instance.id, record.instance.pool) for record in seen),
                *((run.instance_id, run.pool) for run in unread),
            )
            if pool is not None and pool in fleet.pools
        }
        hours = activity(fleet.name, sources.names, series or (), fleet.measure, floors)
        units = _units(sources, fleet, series or (), floors, seen)
    types = sorted({*fleet.machine_types, *(record.instance.machine_type for record in seen)})
    market = _market(sources, types, _market_since(seen, priced, now), now, notes)
    own = _in_reservations(seen, unread)
    unknown = len(listed.errors.keys() - {run.instance_id for run in unread})
    shown = _paid(sources, fleet, notes)
    paid = _certain(shown or (), own, unknown, notes)
    reserved = [_with_accounts(_reservation(p, fleet, own, now), sources, fleet, notes) for p in paid]
    begun = {(run.instance_id, run.started_at) for run in known}
    runs = [_run(record, fleet, now) for record in seen if _has_run(record, begun)]
    over = [record for record in seen if not record.instance.alive and _has_run(record, begun)]
    ends = [_end(record, ours.of(record), now) for record in over if ours.can_date(record, begun, now)]
    ends += [
        _end_of_missing(run, reported, ours.after(run.instance_id, run.last_seen_at), now)
        for run, reported in _missing(sources, [run for run in known if run not in unread], seen, now, notes)
    ]
    done = Collected(
        at=now,
        instances=len(runs),
        ended=len(ends),
        readings=len(counters),
        energy_readings=len(energy),
        active_hours=len(hours),
        prices=len(market or ()),
        reservations=len(paid),
        metrics_from=since,
        notes=tuple(notes),
    )
    with writing(engine) as connection:
        facts.add_runs(connection, runs)
        facts.add_ends(connection, ends)
        by_team = team_readings(fleet.name, sources.names, series or ())
        # closed spans stay unchanged
        closed = closed_spans(connection, fleet.name)
        open_hours = outside(hours, closed)
        _write_metrics(
            connection,
            [one for one in counters if not is_closed(one.at, closed)],
            open_hours,
            [one for one in by_team if not is_closed(one.at, closed)],
        )
        _write_energy(connection, [one for one in energy if not is_closed(one.at, closed)], open_hours)
        add_unit_hours(connection, units_outside(units, closed))
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
    counters: Sequence[facts.TokenReading],
    hours: Sequence[facts.ActivityHour],
    by_team: Sequence[TeamReading],
) -> None:
    facts.add_readings(connection, counters)
    roll_up(connection, counters)
    facts.add_activity(connection, hours)
    add_team_readings(connection, by_team)


def _energy(
    sources: CollectorSources, fleet: FleetFacts, series: Sequence[RawSeries], notes: list[str]
) -> list[EnergyReading]:
    if sources.energy is None:
        return []
    found, rejected = energy_readings(fleet.name, sources.energy, series)
    notes += rejected
    return found


def _units(
    sources: CollectorSources,
    fleet: FleetFacts,
    series: Sequence[RawSeries],
    floors: Mapping[str, float],
    seen: Iterable[InstanceRecord],
) -> list[UnitHour]:
    if sources.units is None:
        return []
    limits = catalogue.working_watts_of(record.instance for record in seen)
    return unit_activity(fleet.name, sources.names, sources.units, series, fleet.measure, floors, limits)


def _write_energy(
    connection: Connection, energy: Sequence[EnergyReading], hours: Sequence[facts.ActivityHour]
) -> None:
    """Write energy. The activity of the pass, which splits it, is already written."""
    add_energy_readings(connection, energy)
    roll_up_energy(connection, energy, hours)


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
    """Raw samples, each series in one piece; None if the store did not answer."""
    energy = () if sources.energy is None else sources.energy.all()
    units = () if sources.units is None else sources.units.all()
    chosen = "|".join(dict.fromkeys((*sources.names.all(), *energy, *units)))
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
        notes.append(f"metrics: {error}; the next pass retries")
        return None
    return list(whole.values())


def _market_since(seen: Sequence[InstanceRecord], priced: datetime | None, now: datetime) -> datetime:
    """The time of the last pass that read prices; for the first pass, the launch of the oldest instance."""
    return min((record.instance.launched_at for record in seen), default=now) if priced is None else priced - OVERLAP


def _market(
    sources: CollectorSources, types: Sequence[str], since: datetime, now: datetime, notes: list[str]
) -> Sequence[Price] | None:
    """Prices since then; None if they cannot be read."""
    try:
        return sources.market.prices(types, since, now) if types else ()
    except OSError as error:
        notes.append(f"prices: {error}; older prices stay in force; the next pass retries")
        return None


def _paid(sources: CollectorSources, fleet: FleetFacts, notes: list[str]) -> list[PaidCapacity] | None:
    """Paid capacity that the fleet declares; None if it cannot be read."""
    ours = {name for pool in fleet.pools.values() for name in pool.reservations}
    if not ours:
        return []
    try:
        return [paid for paid in sources.paid.paid() if paid.reservation in ours]
    except OSError as error:
        notes.append(f"reservations: {error}; the next pass retries")
        return None


def _has_run(record: InstanceRecord, begun: Collection[tuple[str, datetime]]) -> bool:
    """Whether an instance has a run. One that is stopped may be so for weeks: it has a run only if its end is dated,
    or if the ledger has an open run of it.
    """
    instance = record.instance
    if record.ended_at is not None or instance.state is not InstanceState.STOPPED:
        return True
    return (instance.id, instance.launched_at) in begun


def _run(record: InstanceRecord, fleet: FleetFacts, now: datetime) -> facts.Run:
    instance = record.instance
    pool = fleet.pools.get(instance.pool or "")
    last_seen = now if instance.alive else record.ended_at or instance.launched_at
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
    """Terminations and stops by the watchdogs, from the ledger."""

    at: Mapping[str, datetime]
    """Instance to the last time at which a watchdog ended or stopped it."""
    last_seen: Mapping[tuple[str, datetime], datetime]
    """Maps instance and launch to the last pass that saw it alive."""

    def after(self, instance_id: str, last_seen: datetime) -> datetime | None:
        """When a watchdog ended the instance; None if a later pass saw it alive, since its end was only requested."""
        ended = self.at.get(instance_id)
        return ended if ended is not None and ended >= last_seen else None

    def of(self, record: InstanceRecord) -> datetime | None:
        """When a watchdog ended an instance that the cloud still lists."""
        return self.after(record.instance.id, self._seen(record))

    def can_date(self, record: InstanceRecord, begun: Collection[tuple[str, datetime]], now: datetime) -> bool:
        """Whether a pass at `now` can date the end better than the ledger. `begun`: runs without an end.

        A pass whose clock was set back would move a known end to before its instance was seen alive.
        """
        is_open = (record.instance.id, record.instance.launched_at) in begun
        return record.ended_at is not None or is_open or self._seen(record) <= now

    def _seen(self, record: InstanceRecord) -> datetime:
        """The last pass that saw it alive."""
        launched = record.instance.launched_at
        return self.last_seen.get((record.instance.id, launched), launched)


def _ours(
    engine: Engine, fleet: FleetFacts, known: Sequence[facts.Run], undated: Sequence[InstanceRecord]
) -> _OwnEnds:
    """The watchdogs' terminations of open runs and of instances whose end the cloud does not date."""
    with engine.connect() as connection:
        last_seen = history.last_seen(connection, fleet.name, [record.instance.id for record in undated])
        since = [*(run.last_seen_at for run in known), *(record.instance.launched_at for record in undated)]
        at = history.ended_by_watchdogs(connection, fleet.name, min(since)) if since else {}
    return _OwnEnds(at, last_seen)


def _end(record: InstanceRecord, ours: datetime | None, now: datetime) -> facts.RunEnd:
    """The end of an instance that no longer runs: dated by the cloud, else by the ledger, else before this pass.

    A preempted instance without a date ended before any watchdog ended it, at an unknown time.
    """
    instance = record.instance
    return facts.RunEnd(
        cloud=instance.cloud,
        instance_id=instance.id,
        started_at=instance.launched_at,
        ended_at=max(record.ended_at or min(ours or now, now), instance.launched_at),
        cause=facts.EndCause.PREEMPTED if record.preempted else facts.EndCause.ENDED,
        exact=record.ended_at is not None or (ours is not None and ours <= now and not record.preempted),
    )


def _missing(
    sources: CollectorSources,
    known: Sequence[facts.Run],
    seen: Sequence[InstanceRecord],
    now: datetime,
    notes: list[str],
) -> list[tuple[facts.Run, InstanceEnd | None]]:
    """Runs that a complete list no longer shows, each with the end that the cloud reports.

    Either the instance was terminated, or a new instance has its name and a later launch time.
    """
    shown = {(record.instance.id, record.instance.launched_at) for record in seen}
    missing = [run for run in known if (run.instance_id, run.started_at) not in shown and run.last_seen_at <= now]
    if not missing:
        return []
    try:
        reported = sources.history.endings({run.zone for run in missing})
    except OSError as error:
        # no cost arises after they were last seen, so the next pass can still record how they ended
        notes.append(f"ends of {len(missing)} instances: {error}; the next pass retries")
        return []
    starts = sorted({(run.instance_id, run.started_at) for run in known} | shown)
    return [(run, _reported_end(run, starts, reported)) for run in missing]


def _reported_end(
    run: facts.Run, starts: Sequence[tuple[str, datetime]], reported: Sequence[InstanceEnd]
) -> InstanceEnd | None:
    """The instance's first reported end after the run began and before the next run of its name began."""
    later = (at for name, at in starts if name == run.instance_id and at > run.started_at)
    until = next(later, None)
    its_own = (
        ending
        for ending in reported
        if ending.instance_id == run.instance_id
        and ending.ended_at >= run.started_at
        and (until is None or ending.ended_at <= until)
    )
    return min(its_own, key=lambda ending: ending.ended_at, default=None)


def _end_of_missing(
    run: facts.Run, reported: InstanceEnd | None, ours: datetime | None, now: datetime
) -> facts.RunEnd:
    """The end of a missing run: from the cloud, else from the ledger, else at an unknown time before this pass."""
    exact = True
    if reported is not None:
        # the end was announced while a pass still saw it alive: it ran at least until that pass
        ended_at = max(reported.ended_at, run.last_seen_at)
        cause = facts.EndCause.PREEMPTED if reported.preempted else facts.EndCause.ENDED
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
    """Reservation to the number of its instances of this fleet, including those that cannot be read now."""
    living = [record.instance.reservation for record in seen if record.instance.alive]
    return Counter([*living, *(run.reservation for run in unread)])


def _certain(
    paid: Sequence[PaidCapacity], own: Mapping[str | None, int], unknown: int, notes: list[str]
) -> Sequence[PaidCapacity]:
    """Paid capacity whose use by others is known. An unreadable instance may belong to this fleet or to others."""
    unclear = [one.reservation for one in paid if unknown and _elsewhere(one, own) > 0]
    if unclear:
        notes.append(f"reservations {', '.join(unclear)}: their users are unknown; the next pass retries")
    return [one for one in paid if one.reservation not in unclear]


def _elsewhere(paid: PaidCapacity, own: Mapping[str | None, int]) -> int:
    """The number of its instances that others use."""
    # an instance of this fleet that starts or ends may be in only one of the two answers: never below 0
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
    """The reservation with the accounts that use it, other than this fleet, where the cloud reports them."""
    if not one.elsewhere:
        return one
    try:
        used = sources.paid.used_by(one.reservation)
    except OSError as error:
        notes.append(f"use of reservation {one.reservation} by account: {error}; the next pass retries")
        return one
    if used is None:
        return one
    others = {account: count for account, count in used.items() if account != fleet.account and count}
    # the remainder is used by this account: by its other fleets, or by no fleet
    rest = one.elsewhere - sum(others.values())
    if rest < 0:  # the two answers are from different times
        return one
    return replace(one, accounts=others | ({fleet.account: rest} if rest else {}))
