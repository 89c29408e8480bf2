"""The tables of the money facts, with their natural keys."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from sqlalchemy import BigInteger, Column, Dialect, Index, Integer, String, Table, TypeDecorator

from ledger.database import METADATA

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

COUNTERS: Final = ("prompt", "cached", "generation", "prefill_ms", "decode_ms")
"""What an engine counts, as columns and fields are named everywhere."""


class Moment(TypeDecorator[datetime]):
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
        raise ValueError(f"{value} has no time zone; the ledger keeps aware times only")
    delta = value - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def moment(value: int) -> datetime:
    """The aware UTC time of microseconds since 1970."""
    seconds, micros = divmod(value, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)


def _engine() -> tuple[Column[str], ...]:
    """What tells one engine from another."""
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
    Column("started_at", Moment, primary_key=True),
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
    Column("last_seen_at", Moment, nullable=False),
    Index("runs_last_seen", "environment", "last_seen_at"),
)
"""One row per run of an instance: from its launch (or restart) on. `last_seen_at` only grows."""

ENDS: Final = Table(
    "run_ends",
    METADATA,
    Column("cloud", String(8), primary_key=True),
    Column("instance_id", String(128), primary_key=True),
    Column("started_at", Moment, primary_key=True),
    Column("cause", String(16), primary_key=True),
    Column("ended_at", Moment, nullable=False),
    Column("exact", Integer, nullable=False),
)
"""How runs ended, by who says so. `exact` 1: the cloud told the time; 0: the end lies before `ended_at`."""

READINGS: Final = Table(
    "token_readings",
    METADATA,
    *_engine(),
    Column("at", Moment, primary_key=True),
    Column("created_at", Moment),
    *(Column(name, BigInteger) for name in COUNTERS),
    Index("token_readings_at", "environment", "at"),
    sqlite_with_rowid=False,
)
"""Raw counters of one engine as they were read. A counter that falls was reset. NULL: not read, which is not zero."""

TOKEN_HOURS: Final = Table(
    "token_hours",
    METADATA,
    *_engine(),
    Column("hour", Moment, primary_key=True),
    Column("first_at", Moment, nullable=False),
    Column("first_created_at", Moment),
    Column("last_at", Moment, nullable=False),
    Column("last_created_at", Moment),
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
    Column("created_at", Moment, primary_key=True),
    Column("first_at", Moment, nullable=False),
    sqlite_with_rowid=False,
)
"""When each engine process was first read. `created_at` 1970: it did not say. `first_at` only shrinks."""

ACTIVITY: Final = Table(
    "activity_hours",
    METADATA,
    Column("environment", String(128), primary_key=True),
    Column("instance_id", String(128), primary_key=True),
    Column("hour", Moment, primary_key=True),
    Column("busy", String(90), nullable=False),
    Column("idle", String(90), nullable=False),
    sqlite_with_rowid=False,
)
"""360 slots of ten seconds as hexadecimal bit sets: known busy, known idle. Bits are only ever added; busy wins."""

PRICES: Final = Table(
    "price_observations",
    METADATA,
    Column("sku", String(128), primary_key=True),
    Column("region", String(64), primary_key=True),
    Column("zone", String(64), primary_key=True),
    Column("effective_at", Moment, primary_key=True),
    Column("source", String(64), primary_key=True),
    Column("usd_per_hour", Exact(40), nullable=False),
    Column("observed_at", Moment, nullable=False),
)
"""Prices that a cloud told us. `zone` is '' where the price is that of the region. `observed_at` only grows."""

RESERVATIONS: Final = Table(
    "reservations",
    METADATA,
    Column("cloud", String(8), primary_key=True),
    Column("reservation", String(128), primary_key=True),
    Column("started_at", Moment, primary_key=True),
    Column("instances", Integer, primary_key=True),
    Column("environment", String(128), nullable=False),
    Column("region", String(64), nullable=False),
    Column("zone", String(64), nullable=False),
    Column("machine_type", String(64), nullable=False),
    Column("pool", String(64)),
    Column("model", String(256)),
    Column("owner", String(128)),
    Column("ends_at", Moment),
    Column("last_seen_at", Moment, nullable=False),
)
"""Capacity that is paid for, used or not, from `started_at` to `last_seen_at` (or `ends_at` if that is earlier)."""

PASSES: Final = Table(
    "passes",
    METADATA,
    Column("environment", String(128), primary_key=True),
    Column("at", Moment, primary_key=True),
    Column("host", String(128), primary_key=True),
    Column("metrics_from", Moment),
    Column("metrics_until", Moment),
    Column("notes", String(2000), nullable=False),
)
"""Each complete look of the cost watchdog, for coverage."""
