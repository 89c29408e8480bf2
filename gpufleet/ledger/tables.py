"""Every table of the ledger. Facts for costs have natural keys, so that a pass may run twice."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from sqlalchemy import BigInteger, Column, Dialect, Index, Integer, MetaData, String, Table, Text, TypeDecorator

METADATA: Final = MetaData()
"""Every table of the ledger."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_SERIAL: Final = BigInteger().with_variant(Integer, "sqlite")
"""A number that the database assigns. SQLite assigns numbers only to INTEGER columns."""

COUNTERS: Final = ("prompt", "cached", "generation", "prefill_ms", "decode_ms")
"""The counters of an engine: the names of columns and fields everywhere."""


class UtcMicroseconds(TypeDecorator[datetime]):
    """A time in UTC as whole microseconds since 1970: the same on every database, and ordered."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else microseconds(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else moment(value)


class Exact(TypeDecorator[Decimal]):
    """A decimal as text: SQLite has no exact number type."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> str | None:
        return None if value is None else format(value, "f")

    def process_result_value(self, value: str | None, dialect: Dialect) -> Decimal | None:
        return None if value is None else Decimal(value)


def microseconds(value: datetime) -> int:
    """Whole microseconds since 1970. Raises ValueError for a time without a zone."""
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone; the ledger stores only times with a time zone")
    delta = value - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def moment(value: int) -> datetime:
    """The aware UTC time of microseconds since 1970."""
    seconds, micros = divmod(value, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)


def _engine() -> tuple[Column[str], ...]:
    """The columns that identify an engine."""
    return (
        Column("environment", String(128), primary_key=True),
        Column("instance_id", String(128), primary_key=True),
        Column("engine", String(64), primary_key=True),
        Column("model", String(256), primary_key=True),
    )


RUNS: Final = Table(
    "runs",
    METADATA,
    Column("cloud", String(8), primary_key=True),
    Column("instance_id", String(128), primary_key=True),
    Column("started_at", UtcMicroseconds, primary_key=True),
    Column("environment", String(128), nullable=False),
    Column("region", String(64), nullable=False),
    Column("zone", String(64), nullable=False),
    Column("machine_type", String(64), nullable=False),
    Column("capacity_type", String(16), nullable=False),
    Column("pool", String(64)),
    Column("model", String(256)),
    Column("owner", String(128)),
    Column("group_name", String(128)),
    Column("reservation", String(128)),
    Column("last_seen_at", UtcMicroseconds, nullable=False),
    Index("runs_last_seen", "environment", "last_seen_at"),
)
"""One row per run of an instance, from its launch or restart. `last_seen_at` only grows."""

ENDS: Final = Table(
    "run_ends",
    METADATA,
    Column("cloud", String(8), primary_key=True),
    Column("instance_id", String(128), primary_key=True),
    Column("started_at", UtcMicroseconds, primary_key=True),
    Column("cause", String(16), primary_key=True),
    Column("ended_at", UtcMicroseconds, nullable=False),
    Column("exact", Integer, nullable=False),
)
"""Ends of runs, by source. `exact` 1: the cloud reported the time; 0: the run ended before `ended_at`."""

READINGS: Final = Table(
    "token_readings",
    METADATA,
    *_engine(),
    Column("at", UtcMicroseconds, primary_key=True),
    Column("created_at", UtcMicroseconds),
    *(Column(name, BigInteger) for name in COUNTERS),
    Index("token_readings_at", "environment", "at"),
    sqlite_with_rowid=False,
)
"""Raw counters of one engine. A counter that decreases was reset. NULL: not read, which is not zero."""

TOKEN_HOURS: Final = Table(
    "token_hours",
    METADATA,
    *_engine(),
    Column("hour", UtcMicroseconds, primary_key=True),
    Column("first_at", UtcMicroseconds, nullable=False),
    Column("first_created_at", UtcMicroseconds),
    Column("last_at", UtcMicroseconds, nullable=False),
    Column("last_created_at", UtcMicroseconds),
    Column("resets", Integer, nullable=False),
    Column("late", Integer, nullable=False),
    *(Column(f"{which}_{name}", BigInteger) for which in ("first", "last", "inner") for name in COUNTERS),
    sqlite_with_rowid=False,
)
"""The readings of one engine's hour, rolled up: first, last and what was served between them."""

PROCESSES: Final = Table(
    "engine_processes",
    METADATA,
    *_engine(),
    Column("created_at", UtcMicroseconds, primary_key=True),
    Column("first_at", UtcMicroseconds, nullable=False),
    sqlite_with_rowid=False,
)
"""When each engine process was first read. `created_at` 1970: not reported. `first_at` only shrinks."""

ACTIVITY: Final = Table(
    "activity_hours",
    METADATA,
    Column("environment", String(128), primary_key=True),
    Column("instance_id", String(128), primary_key=True),
    Column("hour", UtcMicroseconds, primary_key=True),
    Column("busy", String(90), nullable=False),
    Column("idle", String(90), nullable=False),
    sqlite_with_rowid=False,
)
"""360 slots of ten seconds as hexadecimal bit sets: known busy, known idle. Bits are only ever added; busy wins."""

ENERGY_READINGS: Final = Table(
    "energy_readings",
    METADATA,
    Column("environment", String(128), primary_key=True),
    Column("instance_id", String(128), primary_key=True),
    Column("at", UtcMicroseconds, primary_key=True),
    Column("device", String(128), primary_key=True),
    Column("millijoules", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Raw energy counters of accelerators. A counter that decreases was reset."""

ENERGY_HOURS: Final = Table(
    "energy_hours",
    METADATA,
    Column("environment", String(128), primary_key=True),
    Column("hour", UtcMicroseconds, primary_key=True),
    Column("instance_id", String(128), primary_key=True),
    Column("devices", Integer, nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in ("used_mj", "idle_mj", "other_mj", "measured_us")),
    *(Column(name, Integer, nullable=False) for name in ("resets", "rejected")),
    sqlite_with_rowid=False,
)
"""The energy of one instance's hour by state, from ENERGY_READINGS and ACTIVITY. `measured_us` is the measured time
of all its devices together; time that was not measured has no energy here, and is not zero.
"""

UNIT_ACTIVITY: Final = Table(
    "unit_hours",
    METADATA,
    Column("environment", String(128), primary_key=True),
    Column("hour", UtcMicroseconds, primary_key=True),
    Column("instance_id", String(128), primary_key=True),
    Column("device", String(128), primary_key=True),
    Column("slice", String(128), primary_key=True),
    Column("profile", String(64), primary_key=True),
    Column("tenant", String(400), primary_key=True),
    Column("engine", String(64), primary_key=True),
    Column("model", String(256), primary_key=True),
    *(Column(name, String(90), nullable=False) for name in ("seen", "busy", "idle", "engine_busy", "engine_idle")),
    sqlite_with_rowid=False,
)
"""As ACTIVITY, for each user of a slice or of a shared device. By hour first: reports read all instances of an hour.
`seen`: reported with this user; `engine_busy` and `engine_idle`: by the user's own engine.
"""

PRICES: Final = Table(
    "price_observations",
    METADATA,
    Column("sku", String(128), primary_key=True),
    Column("region", String(64), primary_key=True),
    Column("zone", String(64), primary_key=True),
    Column("effective_at", UtcMicroseconds, primary_key=True),
    Column("source", String(64), primary_key=True),
    Column("usd_per_hour", Exact(40), nullable=False),
    Column("observed_at", UtcMicroseconds, nullable=False),
)
"""Prices that a cloud reported. `zone` is '' if the price is that of the region. `observed_at` only grows."""

RESERVATIONS: Final = Table(
    "reservations",
    METADATA,
    Column("cloud", String(8), primary_key=True),
    Column("reservation", String(128), primary_key=True),
    Column("started_at", UtcMicroseconds, primary_key=True),
    Column("instances", Integer, primary_key=True),
    Column("environment", String(128), nullable=False),
    Column("region", String(64), nullable=False),
    Column("zone", String(64), nullable=False),
    Column("machine_type", String(64), nullable=False),
    Column("pool", String(64)),
    Column("model", String(256)),
    Column("owner", String(128)),
    Column("ends_at", UtcMicroseconds),
    Column("last_seen_at", UtcMicroseconds, nullable=False),
)
"""Capacity that is paid for, used or not, from `started_at` to `last_seen_at` (or `ends_at` if that is earlier)."""

RESERVATION_READS: Final = Table(
    "reservation_seats",
    METADATA,
    Column("environment", String(128), primary_key=True),
    Column("cloud", String(8), primary_key=True),
    Column("reservation", String(128), primary_key=True),
    Column("at", UtcMicroseconds, primary_key=True),
    Column("started_at", UtcMicroseconds, nullable=False),
    Column("instances", Integer, nullable=False),
    Column("region", String(64), nullable=False),
    Column("zone", String(64), nullable=False),
    Column("machine_type", String(64), nullable=False),
    Column("pool", String(64)),
    Column("model", String(256)),
    Column("owner", String(128)),
    Column("ends_at", UtcMicroseconds),
    Column("elsewhere", Integer, nullable=False),
    Column("seats", Integer),
    Column("last_seen_at", UtcMicroseconds, nullable=False),
    Column("accounts", Text),
)
"""A reservation as one fleet observed it, from `at` until its next row, the last one until `last_seen_at`.
`elsewhere`: instances in it that are not of this fleet; `accounts`: their owners (JSON, account to instances), NULL:
unknown; `seats`: the number of instances that the fleet declares, NULL: all. Ledgers of older releases have only
RESERVATIONS, without the use by others.
"""

DECLARED: Final = Table(
    "declared_facts",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("at", UtcMicroseconds, primary_key=True),
    Column("content", Text, nullable=False),
)
"""The cost declarations of a fleet's document from `at` (JSON), until the next row. Written only after a change."""

PASSES: Final = Table(
    "passes",
    METADATA,
    Column("environment", String(128), primary_key=True),
    Column("at", UtcMicroseconds, primary_key=True),
    Column("host", String(128), primary_key=True),
    Column("metrics_from", UtcMicroseconds),
    Column("metrics_until", UtcMicroseconds),
    Column("notes", String(2000), nullable=False),
    Column("priced", Integer),
    Column("paid", Integer),
)
"""Each complete pass of the cost watchdog, for coverage. `priced` 1: it read prices; 0: they could not be read.
`paid`: the same for all paid capacity that the fleet names; NULL: written by an older release.
"""

DECISIONS: Final = Table(
    "decisions",
    METADATA,
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("fleet", String(128), nullable=False),
    Column("watchdog", String(16), nullable=False),
    Column("resource", String(200), nullable=False),
    Column("pool", String(64)),
    Column("action", String(16), nullable=False),
    Column("reason", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    Column("evidence", Text, nullable=False),
    Column("from_size", Integer),
    Column("to_size", Integer),
    Column("usd_per_hour", Exact(40)),
    Column("at", UtcMicroseconds, nullable=False),
    Index("decisions_resource", "fleet", "resource", "id"),
    sqlite_autoincrement=True,
)

HEADS: Final = Table(
    "decision_heads",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("watchdog", String(16), primary_key=True),
    Column("resource", String(200), primary_key=True),
    Column("action", String(16), nullable=False),
    Column("reason", String(64), nullable=False),
    Column("sizes", String(32), nullable=False),
)
"""The last decision about each resource, so that a pass writes only what changed."""

OUTCOMES: Final = Table(
    "outcomes",
    METADATA,
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("fleet", String(128), nullable=False),
    Column("watchdog", String(16), nullable=False),
    Column("resource", String(200), nullable=False),
    Column("pool", String(64)),
    Column("action", String(16), nullable=False),
    Column("reason", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("detail", Text, nullable=False),
    Column("error", Text),
    Column("usd_per_hour", Exact(40)),
    Column("at", UtcMicroseconds, nullable=False),
    Index("outcomes_resource", "fleet", "resource", "id"),
    Index("outcomes_at", "fleet", "watchdog", "at"),
    sqlite_autoincrement=True,
)

INTENTS: Final = Table(
    "intents",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("watchdog", String(16), primary_key=True),
    Column("resource", String(200), primary_key=True),
    Column("decision", Text, nullable=False),
    Column("at", UtcMicroseconds, nullable=False),
)
"""Actions that began and have no outcome yet. After a killed run, the next one continues them."""

TARGETS: Final = Table(
    "targets",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("pool", String(64), primary_key=True),
    Column("value", Integer, nullable=False),
    Column("version", Integer, nullable=False),
)
"""The target of ready replicas of each pool, changed by compare-and-set."""

TARGET_MOVES: Final = Table(
    "target_moves",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("pool", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("value", Integer, nullable=False),
    Column("changed_by", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("because", String(200)),
    Column("at", UtcMicroseconds, nullable=False),
    Index("target_moves_because", "fleet", "pool", "because", unique=True),
)
"""Every change of a target. `because` identifies a change that must happen only once."""

LEASES: Final = Table(
    "leases",
    METADATA,
    Column("name", String(200), primary_key=True),
    Column("holder", String(200), nullable=False),
    Column("until", UtcMicroseconds, nullable=False),
)

BRAKES: Final = Table(
    "brakes",
    METADATA,
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("fleet", String(128), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("scope", String(128), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("since", UtcMicroseconds, nullable=False),
    Column("until", UtcMicroseconds),
    Column("released_at", UtcMicroseconds),
    Column("released_by", String(128)),
    Index("brakes_open", "fleet", "released_at"),
    sqlite_autoincrement=True,
)

POLICIES: Final = Table(
    "policies_seen",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("watchdog", String(16), primary_key=True),
    Column("pool", String(64), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("seen_by", String(128), nullable=False),
    Column("at", UtcMicroseconds, nullable=False),
)
"""Policies whose dry run was printed, or that a user accepted."""

OUTBOX: Final = Table(
    "outbox",
    METADATA,
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("key", String(200), nullable=False, unique=True),
    Column("channel", String(128), nullable=False),
    Column("text", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("created_at", UtcMicroseconds, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("not_before", UtcMicroseconds, nullable=False),
    Column("token", String(64)),
    Column("taken_at", UtcMicroseconds),
    Column("sent_at", UtcMicroseconds),
    Column("receipt", String(128)),
    Column("error", Text),
    Index("outbox_open", "state", "channel", "id"),
    sqlite_autoincrement=True,
)

CLOSED_PERIODS: Final = Table(
    "finals",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("since", UtcMicroseconds, primary_key=True),
    Column("until", UtcMicroseconds, primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("form", String(64), nullable=False),
    Column("billed_usd", Exact(60), nullable=False),
    Column("computed_usd", Exact(60), nullable=False),
    Column("at", UtcMicroseconds, nullable=False),
    Column("prices", Text),
    Column("facts", Text),
)
"""Closed periods: one row per bill and span. `prices`: the prices of the computation (JSON); `facts`: the facts about
its instances and reservations (JSON). Later facts change neither of them.
"""

TEAM_READINGS: Final = Table(
    "team_readings",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("router", String(64), primary_key=True),
    Column("team", String(64), primary_key=True),
    Column("model", String(256), primary_key=True),
    Column("pool", String(64), primary_key=True),
    Column("at", UtcMicroseconds, primary_key=True),
    *(Column(name, BigInteger) for name in ("replica_ms", "tokens_in", "tokens_out", "unmetered")),
    sqlite_with_rowid=False,
)
"""Counters of one key of one router. NULL: not read, which is not zero."""

NOTIFIED_HOURS: Final = Table(
    "told_hours",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("hour", UtcMicroseconds, primary_key=True),
)
"""Hours whose alerts are in the outbox; written in the transaction of the messages."""

SUMS: Final = Table(
    "cost_sums",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("span", String(16), primary_key=True),
    Column("pool", String(64), primary_key=True),
    Column("since", UtcMicroseconds, nullable=False),
    Column("known_until", UtcMicroseconds, nullable=False),
    Column("usd", Exact(60), nullable=False),
    Column("idle_usd", Exact(60), nullable=False),
    *(Column(f"{kind}_usd", Exact(60)) for kind in ("input", "output", "blended")),
    Column("unpriced", Integer, nullable=False),
)
"""One row per span and pool, of the newest pass only. `pool` is '' for the whole fleet; `input_usd` and its like are
USD per million tokens, NULL without tokens.
"""

BOOTS: Final = Table(
    "boots",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("instance_id", String(128), primary_key=True),
    Column("launched_at", UtcMicroseconds, primary_key=True),
    Column("pool", String(64), nullable=False),
    Column("group_name", String(128), nullable=False),
    Column("machine_type", String(64), nullable=False),
    Column("first_seen_at", UtcMicroseconds, nullable=False),
    Column("last_seen_at", UtcMicroseconds, nullable=False),
    Column("ready_at", UtcMicroseconds),
    Column("left_at", UtcMicroseconds),
    Column("ended_why", String(32)),
)
"""One row per launch of an instance in a group, as passes of the spot watchdog saw it. Old ones are dropped."""

GROUP_READS: Final = Table(
    "group_reads",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("group_name", String(128), primary_key=True),
    Column("desired", Integer, nullable=False),
    Column("members", Text, nullable=False),
    Column("leaving", Text, nullable=False),
    Column("read_at", UtcMicroseconds),
    Column("silent_at", UtcMicroseconds),
)
"""One row per group: the time until which its activities were read, and its state at that time. Names are JSON."""

LAST_LISTS: Final = Table(
    "last_lists",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("at", UtcMicroseconds, nullable=False),
    Column("lists", Text, nullable=False),
)
"""One row per fleet: the lists of groups, instances and agents' answers that a pass read last, as JSON."""

GROUP_ACTIVITIES: Final = Table(
    "group_activities",
    METADATA,
    Column("fleet", String(128), primary_key=True),
    Column("group_name", String(128), primary_key=True),
    Column("id", String(256), primary_key=True),
    Column("at", UtcMicroseconds, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("instance_id", String(128)),
    Column("detail", Text, nullable=False),
    Column("zones", Text, nullable=False),
    Column("account_wide", Integer, nullable=False),
    Index("group_activities_by_time", "fleet", "at"),
)
"""One row per activity that passes of the spot watchdog have read. Old ones are dropped."""
