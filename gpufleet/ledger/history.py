"""Reads facts for costs from the ledger."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    String,
    and_,
    bindparam,
    exists,
    false,
    func,
    or_,
    select,
    type_coerce,
)

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.ledger.decisions import is_completed_end
from gpufleet.ledger.facts import ActivityHour, CostPass, EndCause, Run
from gpufleet.ledger.tables import ACTIVITY, ENDS, OUTCOMES, PASSES, PRICES, RUNS, UtcMicroseconds, moment

_HOUR: Final = timedelta(hours=1)
_PER_STATEMENT: Final = 500
"""Instances per statement: below SQLite's limit of bound values."""
_BATCH: Final = 100
"""Instances whose activity is read together. A number of instances, so that longer spans need no more queries."""


def runs(
    connection: Connection, environment: str, since: datetime, until: datetime, *, unended: bool = False
) -> list[Run]:
    """Runs that overlap the span from `since` to `until` (exclusive), oldest first.

    `unended`: also runs without a known end, however long ago they were last seen.
    """
    in_span = and_(RUNS.c.environment == environment, RUNS.c.started_at < until)
    key = (RUNS.c.cloud, RUNS.c.instance_id, RUNS.c.started_at)
    ends: dict[tuple[str, str, datetime], list[Any]] = defaultdict(list)
    same_run = and_(*(ENDS.c[column.name] == column for column in key))
    for row in connection.execute(select(ENDS).join(RUNS, same_run).where(in_span)):
        ends[row.cloud, row.instance_id, row.started_at].append(row)
    found = [
        _ended(_run(row), ends.get((row.cloud, row.instance_id, row.started_at), []))
        for row in connection.execute(select(RUNS).where(in_span).order_by(RUNS.c.started_at, RUNS.c.instance_id))
    ]
    return [
        run
        for run in found
        if (run.ended_at or run.last_seen_at) > since or run.started_at >= since or (unended and run.ended_at is None)
    ]


class ActivitySlots(Mapping[str, Sequence[ActivityHour]]):
    """Known slots of a span, read when they are needed: a month of a large fleet does not fit in memory.

    Callers that request `names` in their order cause one query per `_BATCH` instances.
    """

    def __init__(
        self, engine: Engine, environment: str, since: datetime, until: datetime, names: Sequence[str] = ()
    ) -> None:
        self._engine = engine
        self._span = (ACTIVITY.c.environment == environment, ACTIVITY.c.hour > since - _HOUR, ACTIVITY.c.hour < until)
        hour = type_coerce(ACTIVITY.c.hour, BigInteger)
        self._statement = (
            select(ACTIVITY.c.instance_id, hour, ACTIVITY.c.busy, ACTIVITY.c.idle)
            .where(*self._span, ACTIVITY.c.instance_id.in_(bindparam("instances", expanding=True)))
            .order_by(ACTIVITY.c.instance_id, ACTIVITY.c.hour)
        )
        self._environment = environment
        self._hours: dict[int, datetime] = {}
        self._names = tuple(dict.fromkeys(names))
        self._places = {name: place for place, name in enumerate(self._names)}
        self._next = 0
        self._newest: dict[str, list[ActivityHour]] = {}

    def __getitem__(self, instance_id: str) -> Sequence[ActivityHour]:
        if instance_id not in self._newest:
            self._newest = self._read(self._batch_of(instance_id))
        if not self._newest[instance_id]:
            raise KeyError(instance_id)
        return self._newest[instance_id]

    def __iter__(self) -> Iterator[str]:
        names = select(ACTIVITY.c.instance_id).where(*self._span).distinct().order_by(ACTIVITY.c.instance_id)
        with self._engine.connect() as connection:
            yield from connection.execute(names).scalars().all()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _batch_of(self, instance_id: str) -> Sequence[str]:
        """The instance, and the following ones of `names` if it is the next one in their order."""
        if self._places.get(instance_id) != self._next:
            return (instance_id,)
        some = self._names[self._next : self._next + _BATCH]
        self._next += len(some)
        return some

    def _read(self, instances: Sequence[str]) -> dict[str, list[ActivityHour]]:
        fleet, hours = self._environment, self._hours
        found: dict[str, list[ActivityHour]] = {name: [] for name in instances}
        with self._engine.connect() as connection:
            for name, at, busy, idle in connection.execute(self._statement, {"instances": instances}):
                hour = hours.get(at) or hours.setdefault(at, moment(at))
                found[name].append(ActivityHour(fleet, name, hour, int(busy, 16), int(idle, 16)))
        return found


def prices(
    connection: Connection,
    region: str,
    since: Mapping[CapacityType, datetime] | None = None,
    unreadable: list[str] | None = None,
) -> list[Price]:
    """The prices observed in a region; with `since`, those of machines that the cloud confirmed after that time.

    `since`: by capacity type, the last part of a machine's sku. Rows without a valid price are skipped and described
    in `unreadable`.
    """
    names = ("sku", "region", "zone", "source")
    # as stored: a type that fails on one row would fail the whole query
    raw = {"usd_per_hour": String, "effective_at": BigInteger, "observed_at": BigInteger}
    columns = [*(PRICES.c[name] for name in names), *(type_coerce(PRICES.c[n], kind) for n, kind in raw.items())]
    statement = select(*columns).where(PRICES.c.region == region)
    if since is not None:
        confirmed = (
            and_(PRICES.c.sku.endswith(f":{kind}", autoescape=True), PRICES.c.observed_at >= at)
            for kind, at in since.items()
        )
        statement = statement.where(or_(false(), *confirmed))
    found: list[Price] = []
    for row in connection.execute(statement):
        try:
            price = Price(
                sku=row.sku,
                region=row.region,
                zone=row.zone or None,
                usd_per_hour=Decimal(row.usd_per_hour),
                source=row.source,
                as_of=moment(row.observed_at),
                valid_from=moment(row.effective_at),
            )
        except (ArithmeticError, TypeError, ValueError):
            if unreadable is not None:
                where = f"{row.sku} in {row.zone or row.region} ({row.source})"
                unreadable.append(f"{where}: {row.usd_per_hour!r} from {row.effective_at!r}")
            continue
        found.append(price)
    return found


def ended_by_idle(
    connection: Connection, environment: str, since: datetime, until: datetime
) -> list[tuple[str, str | None, datetime]]:
    """Instance, pool and time of every end by the idle watchdog, oldest first."""
    statement = (
        select(OUTCOMES.c.resource, OUTCOMES.c.pool, OUTCOMES.c.at)
        .where(
            OUTCOMES.c.fleet == environment,
            OUTCOMES.c.watchdog == "idle",
            OUTCOMES.c.at >= since,
            OUTCOMES.c.at < until,
            is_completed_end(),
        )
        .order_by(OUTCOMES.c.at, OUTCOMES.c.resource)
    )
    return [(row.resource, row.pool, row.at) for row in connection.execute(statement)]


def ended_by_watchdogs(connection: Connection, environment: str, since: datetime) -> dict[str, datetime]:
    """By instance: when a watchdog last ended or stopped it, since then."""
    statement = (
        select(OUTCOMES.c.resource, func.max(OUTCOMES.c.at).label("at"))
        .where(OUTCOMES.c.fleet == environment, OUTCOMES.c.at >= since, is_completed_end())
        .group_by(OUTCOMES.c.resource)
    )
    return {row.resource: row.at for row in connection.execute(statement)}


def last_seen(
    connection: Connection, environment: str, instances: Sequence[str]
) -> dict[tuple[str, datetime], datetime]:
    """Maps instance and launch to the time when a pass last saw it alive."""
    statement = select(RUNS.c.instance_id, RUNS.c.started_at, RUNS.c.last_seen_at).where(
        RUNS.c.environment == environment, RUNS.c.instance_id.in_(bindparam("instances", expanding=True))
    )
    found: dict[tuple[str, datetime], datetime] = {}
    for start in range(0, len(instances), _PER_STATEMENT):
        for row in connection.execute(statement, {"instances": instances[start : start + _PER_STATEMENT]}):
            found[row.instance_id, row.started_at] = row.last_seen_at
    return found


def gaps(
    connection: Connection, environment: str, since: datetime, until: datetime, longer: timedelta
) -> list[tuple[datetime, datetime]]:
    """Gaps between complete passes that overlap the window and are longer than `longer`, oldest first."""
    before = func.lag(PASSES.c.at, type_=UtcMicroseconds()).over(order_by=PASSES.c.at).label("before")
    passes = select(before, PASSES.c.at).where(PASSES.c.environment == environment).subquery()
    apart = type_coerce(passes.c.at, BigInteger) - type_coerce(passes.c.before, BigInteger)
    statement = (
        select(passes.c.before, passes.c.at)
        .where(apart > longer // timedelta(microseconds=1), passes.c.at > since, passes.c.before < until)
        .order_by(passes.c.at)
    )
    return [(row.before, row.at) for row in connection.execute(statement)]


def first_pass_at(connection: Connection, environment: str) -> datetime | None:
    """The first complete pass, since which the ledger records every run; None: there was none."""
    statement = select(PASSES.c.at).where(PASSES.c.environment == environment).order_by(PASSES.c.at).limit(1)
    return connection.execute(statement).scalar_one_or_none()


def last_pass(connection: Connection, environment: str) -> CostPass | None:
    """The newest complete pass; None: there was none."""
    statement = select(PASSES).where(PASSES.c.environment == environment).order_by(PASSES.c.at.desc()).limit(1)
    row = connection.execute(statement).one_or_none()
    if row is None:
        return None
    return CostPass(
        environment=row.environment,
        at=row.at,
        host=row.host,
        metrics_from=row.metrics_from,
        metrics_until=row.metrics_until,
        notes=row.notes,
        priced=bool(row.priced),
        paid=row.paid != 0,
    )


def last_priced_pass(connection: Connection, environment: str) -> datetime | None:
    """The newest complete pass that read prices; None: there was none."""
    found = select(PASSES.c.at).where(PASSES.c.environment == environment, PASSES.c.priced == 1)
    return connection.execute(found.order_by(PASSES.c.at.desc()).limit(1)).scalar_one_or_none()


def open_runs(connection: Connection, environment: str) -> list[Run]:
    """Runs without a known end."""
    ended = exists().where(*(ENDS.c[name] == RUNS.c[name] for name in ("cloud", "instance_id", "started_at")))
    return [_run(row) for row in connection.execute(select(RUNS).where(RUNS.c.environment == environment, ~ended))]


def _run(row: Any) -> Run:
    return Run(
        cloud=Cloud(row.cloud),
        instance_id=row.instance_id,
        started_at=row.started_at,
        environment=row.environment,
        region=row.region,
        zone=row.zone,
        machine_type=row.machine_type,
        capacity_type=CapacityType(row.capacity_type),
        pool=row.pool,
        model=row.model,
        owner=row.owner,
        group=row.group_name,
        reservation=row.reservation,
        last_seen_at=row.last_seen_at,
    )


def _ended(run: Run, ends: list[Any]) -> Run:
    """The run with the best known end: an exact time before an estimate, then the earliest.

    An absence before the last sighting was an error of the cloud's list and does not count. An end that the cloud
    stated counts even if a fast clock saw the instance later.
    """
    valid = [e for e in ends if e.exact or e.ended_at >= run.last_seen_at or EndCause(e.cause) is not EndCause.ABSENT]
    if not valid:
        return run
    best = min(valid, key=lambda end: (not end.exact, end.ended_at))
    causes = {EndCause(end.cause) for end in valid}
    cause = next(c for c in (EndCause.PREEMPTED, EndCause.ENDED, EndCause.ABSENT) if c in causes)
    return replace(run, ended_at=max(best.ended_at, run.started_at), end_cause=cause, end_exact=bool(best.exact))
