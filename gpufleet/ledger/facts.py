"""Facts for costs: runs, token readings, activity, prices, paid capacity and cost passes.

Every table has a natural key, so that a pass that runs twice, late, out of order or on two hosts at once leaves
the same rows. Rows are added and never changed, except columns that only grow (`last_seen_at`, the busy slots), for
which the order of writers does not matter either.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Table, case, select, text

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.ledger.database import insert_into
from gpufleet.ledger.tables import ACTIVITY, ENDS, PASSES, PRICES, READINGS, RESERVATIONS, RUNS


class EndCause(StrEnum):
    """How a run ended."""

    PREEMPTED = "preempted"
    """The cloud reclaimed it."""
    ENDED = "ended"
    """A watchdog or a user ended it."""
    ABSENT = "absent"
    """A complete inventory no longer listed it: it ended before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An instance from launch to its known end."""

    cloud: Cloud
    instance_id: str
    started_at: datetime
    environment: str
    region: str
    zone: str
    machine_type: str
    capacity_type: CapacityType
    last_seen_at: datetime
    pool: str | None = None
    model: str | None = None
    owner: str | None = None
    group: str | None = None
    reservation: str | None = None
    ended_at: datetime | None = None
    """None: no known end."""
    end_cause: EndCause | None = None
    end_exact: bool = False
    """Whether the time is known; else it is between `last_seen_at` (until which it is charged) and `ended_at`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The end of a run, as the cloud or the ledger reports it."""

    cloud: Cloud
    instance_id: str
    started_at: datetime
    ended_at: datetime
    cause: EndCause
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReading:
    """The counters of one engine at one time. None: not read."""

    environment: str
    instance_id: str
    engine: str
    model: str
    at: datetime
    prompt: int | None = None
    """Input tokens, those from a prefix cache included."""
    cached: int | None = None
    """Input tokens that a prefix cache answered."""
    generation: int | None = None
    prefill_ms: int | None = None
    decode_ms: int | None = None
    created_at: datetime | None = None
    """When the engine's process began to count."""


class ActivityHour(NamedTuple):
    """Slots of ten seconds of one instance's hour, as bit sets; bit 0 is the first slot.

    A tuple, since a month of a large fleet has millions of them.
    """

    environment: str
    instance_id: str
    hour: datetime
    busy: int
    idle: int


NOT_MISSED: Final = datetime.max.replace(tzinfo=UTC)
"""The value of `Reservation.missed_at` if no pass missed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    """The next pass' reading of a reservation whose `instances` changed."""

    after: datetime
    """The last pass before the change."""
    instances: int
    seats: int | None
    elsewhere: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Capacity that is paid for, used or not, and how it was used elsewhere from `started_at` to `last_seen_at`."""

    cloud: Cloud
    reservation: str
    started_at: datetime
    instances: int
    environment: str
    region: str
    zone: str
    machine_type: str
    last_seen_at: datetime
    pool: str | None = None
    model: str | None = None
    owner: str | None = None
    ends_at: datetime | None = None
    elsewhere: int = 0
    """Instances in it that do not belong to this fleet: of other fleets, of other accounts, or of no fleet."""
    accounts: Mapping[str, int] | None = None
    """Maps accounts to their share of `elsewhere`; None: unknown."""
    seats: int | None = None
    """How many of its instances this fleet declares; None: all of them."""
    recount: Recount | None = None
    """The count of the pass at `last_seen_at`, if it differs from `instances`; it changed before that pass."""
    missed_at: datetime | None = None
    """The first pass that no longer listed it, or `NOT_MISSED`; None: a later row continues it, or it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPass:
    """One complete pass of the cost watchdog."""

    environment: str
    at: datetime
    host: str
    metrics_from: datetime | None
    metrics_until: datetime | None
    notes: str = ""
    priced: bool = True
    """Whether it read prices."""
    paid: bool = True
    """Whether it read all paid capacity that the fleet names."""


_BATCH: Final = 500
"""Rows per statement: below SQLite's limit of bound values."""


def add_runs(connection: Connection, runs: Iterable[Run]) -> None:
    """Write runs. For a known run, `last_seen_at` grows."""
    rows = [
        {
            "cloud": run.cloud.value,
            "instance_id": run.instance_id,
            "started_at": run.started_at,
            "environment": run.environment,
            "region": run.region,
            "zone": run.zone,
            "machine_type": run.machine_type,
            "capacity_type": run.capacity_type.value,
            "pool": run.pool,
            "model": run.model,
            "owner": run.owner,
            "group_name": run.group,
            "reservation": run.reservation,
            "last_seen_at": run.last_seen_at,
        }
        for run in runs
    ]
    merge(connection, RUNS, rows, {"last_seen_at": MergeRule.GROW})


def add_ends(connection: Connection, ends: Iterable[RunEnd]) -> None:
    """Write ends. The earliest time of each cause is kept."""
    rows = [
        {
            "cloud": end.cloud.value,
            "instance_id": end.instance_id,
            "started_at": end.started_at,
            "cause": end.cause.value,
            "ended_at": end.ended_at,
            "exact": int(end.exact),
        }
        for end in ends
    ]
    merge(connection, ENDS, rows, {"ended_at": MergeRule.SHRINK, "exact": MergeRule.GROW})


def add_readings(connection: Connection, readings: Iterable[TokenReading]) -> None:
    """Write counter readings; existing ones stay. Call `gpufleet.ledger.rollups.roll_up` in the same transaction."""
    columns = [column.name for column in READINGS.columns]
    merge(connection, READINGS, [{name: getattr(r, name) for name in columns} for r in readings])


def add_prices(connection: Connection, prices: Iterable[Price]) -> None:
    """Write observed prices. For a known price, `observed_at` grows."""
    rows = [
        {
            "sku": price.sku,
            "region": price.region,
            "zone": price.zone or "",
            "effective_at": price.valid_from,
            "source": price.source,
            "usd_per_hour": price.usd_per_hour,
            "observed_at": price.as_of,
        }
        for price in prices
    ]
    merge(connection, PRICES, rows, {"observed_at": MergeRule.GROW})


def add_reservations(connection: Connection, reservations: Iterable[Reservation]) -> None:
    """Write paid capacity as release 0.1 did, without its use elsewhere; `last_seen_at` grows."""
    columns = [column.name for column in RESERVATIONS.columns]
    rows = [{**{name: getattr(r, name) for name in columns}, "cloud": r.cloud.value} for r in reservations]
    merge(connection, RESERVATIONS, rows, {"last_seen_at": MergeRule.GROW})


def add_pass(connection: Connection, done: CostPass) -> None:
    """Record a complete pass."""
    merge(connection, PASSES, [asdict(done) | {"priced": int(done.priced), "paid": int(done.paid)}])


def add_activity(connection: Connection, hours: Iterable[ActivityHour]) -> None:
    """Add known slots to the stored ones. Call inside `writing`, because it reads the rows that it changes."""
    lock_writers(connection)
    merged: dict[tuple[str, str, datetime], ActivityHour] = {}
    for hour in hours:
        merged[hour[:3]] = _with_slots(merged.get(hour[:3]), hour)
    alike: dict[tuple[str, datetime], list[str]] = {}
    for fleet, instance_id, at in merged:
        alike.setdefault((fleet, at), []).append(instance_id)
    for (fleet, at), instances in alike.items():
        for start in range(0, len(instances), _BATCH):
            # one column in a list: SQLite reads a whole table for rows in a list of tuples
            mine = ACTIVITY.c.instance_id.in_(instances[start : start + _BATCH])
            statement = select(ACTIVITY).where(ACTIVITY.c.environment == fleet, ACTIVITY.c.hour == at, mine)
            for known in map(activity_hour, connection.execute(statement)):
                merged[known[:3]] = _with_slots(known, merged[known[:3]])
    rows = [
        {
            "instance_id": hour.instance_id,
            "hour": hour.hour,
            "environment": hour.environment,
            "busy": f"{hour.busy:x}",
            "idle": f"{hour.idle:x}",
        }
        for hour in merged.values()
    ]
    merge(connection, ACTIVITY, rows, {"busy": MergeRule.REPLACE, "idle": MergeRule.REPLACE})


def activity_hour(row: Any) -> ActivityHour:
    """The fact of a row of ACTIVITY."""
    return ActivityHour(
        environment=row.environment,
        instance_id=row.instance_id,
        hour=row.hour,
        busy=int(row.busy, 16),
        idle=int(row.idle, 16),
    )


def _with_slots(known: ActivityHour | None, more: ActivityHour) -> ActivityHour:
    if known is None:
        return ActivityHour(
            environment=more.environment,
            instance_id=more.instance_id,
            hour=more.hour,
            busy=more.busy,
            idle=more.idle & ~more.busy,
        )
    busy = known.busy | more.busy
    return ActivityHour(
        environment=more.environment,
        instance_id=more.instance_id,
        hour=more.hour,
        busy=busy,
        idle=(known.idle | more.idle) & ~busy,
    )


def lock_writers(connection: Connection) -> None:
    """Wait until no other transaction derives rows. SQLite has only one writer at a time."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"select pg_advisory_xact_lock({_DERIVING})"))


_DERIVING: Final = 7_202_611_211


class MergeRule(StrEnum):
    """How a column of an existing row may change."""

    GROW = "grow"
    SHRINK = "shrink"
    REPLACE = "replace"


def merge(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    rules: Mapping[str, MergeRule] | None = None,
) -> None:
    """Insert rows by natural key. In existing rows, only the columns with a rule change."""
    statement = insert_into(connection, table)
    new, keys = statement.excluded, [column.name for column in table.primary_key.columns]
    values: dict[str, Any] = {}
    for name, rule in (rules or {}).items():
        old = table.c[name]
        is_wanted = new[name] > old if rule is MergeRule.GROW else new[name] < old
        values[name] = new[name] if rule is MergeRule.REPLACE else case((is_wanted, new[name]), else_=old)
    if values:
        statement = statement.on_conflict_do_update(index_elements=keys, set_=values)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    for start in range(0, len(rows), _BATCH):
        connection.execute(statement, list(rows[start : start + _BATCH]))
