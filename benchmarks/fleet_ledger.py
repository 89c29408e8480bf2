"""Generates the ledger of a large fleet: instance runs, roll-ups of tokens, busy and idle slots, and prices. Whole
hours only.

It omits raw readings and writes only their roll-ups, because a report of whole hours reads nothing else.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Engine, Table

from gpufleet.domain.model import CapacityType
from gpufleet.ledger.database import writing
from gpufleet.ledger.tables import ACTIVITY, PASSES, PRICES, PROCESSES, RUNS, TOKEN_HOURS, microseconds

FLEET: Final = "aws/bench/us-east-1"
SINCE: Final = datetime(2026, 10, 1, tzinfo=UTC)
_HOUR: Final = 3_600_000_000
MACHINES: Final = ("g6.xlarge", "g6.12xlarge", "p5.48xlarge")
KINDS: Final = (CapacityType.SPOT, CapacityType.SPOT, CapacityType.ON_DEMAND, CapacityType.RESERVED)
_ALL: Final = (1 << 360) - 1


def write(engine: Engine, *, days: int, instances: int, models: int, since: datetime = SINCE) -> None:
    """Fill an empty ledger with `instances` concurrent instances, each of which runs all days."""
    begin = microseconds(since)
    hours = days * 24
    with writing(engine) as connection:
        for table, rows in (
            (RUNS, _runs(begin, hours, instances, models)),
            (PROCESSES, _processes(begin, instances, models)),
            (PRICES, _prices(begin, hours)),
            (
                PASSES,
                iter((FLEET, at, "h", None, None, "", 1, 1) for at in (begin - _HOUR, begin + hours * _HOUR)),
            ),
            (ACTIVITY, _activity(begin, hours, instances)),
            (TOKEN_HOURS, _token_hours(begin, hours, instances, models)),
        ):
            _insert(connection.connection.dbapi_connection, engine.dialect.name, table, rows)


def until(days: int) -> datetime:
    """Return the end of the generated days."""
    return SINCE + timedelta(days=days)


def _insert(raw: object, dialect: str, table: Table, rows: Iterator[tuple[object, ...]]) -> None:
    names = [column.name for column in table.columns]
    if dialect == "postgresql":
        with raw.cursor() as cursor, cursor.copy(f"COPY {table.name} ({', '.join(names)}) FROM STDIN") as copy:  # pyright: ignore[reportAttributeAccessIssue]
            for row in rows:
                copy.write_row(row)
        return
    marks = ", ".join("?" * len(names))
    raw.executemany(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})", rows)  # pyright: ignore[reportAttributeAccessIssue]


def name(number: int) -> str:
    return f"i-{number:017x}"


def _runs(begin: int, hours: int, instances: int, models: int) -> Iterator[tuple[object, ...]]:
    for n in range(instances):
        yield (
            "aws", name(n), begin, FLEET, "us-east-1", f"us-east-1{'abcd'[n % 4]}", MACHINES[n % 3],
            KINDS[n % 4].value, f"pool-{n % models:03}", f"models/m{n % models:03}", f"team-{n % 12}",
            None, None, begin + hours * _HOUR,
        )  # fmt: skip


def _processes(begin: int, instances: int, models: int) -> Iterator[tuple[object, ...]]:
    for n in range(instances):
        yield FLEET, name(n), "0", f"m{n % models:03}", begin + 120_000_000, begin + 180_000_000


def _prices(begin: int, hours: int) -> Iterator[tuple[object, ...]]:
    last = begin + hours * _HOUR
    for machine, usd in zip(MACHINES, (0.8, 4.6, 55.04), strict=True):
        yield f"aws:ec2:{machine}:on-demand", "us-east-1", "", begin - 30 * 24 * _HOUR, "bench", str(usd), last
        for zone in "abcd":
            for step in range(0, hours, 6):  # spot prices change four times a day
                price = round(usd * (0.35 + 0.01 * ((step // 6 + ord(zone)) % 9)), 4)
                at = begin + (step - 6) * _HOUR
                yield f"aws:ec2:{machine}:spot", "us-east-1", f"us-east-1{zone}", at, "bench", str(price), last


def _activity(begin: int, hours: int, instances: int) -> Iterator[tuple[object, ...]]:
    draw = random.Random(6)
    shapes = [draw.getrandbits(360) | draw.getrandbits(360) for _ in range(97)]
    for n in range(instances):
        for hour in range(hours):
            busy = shapes[(n * 31 + hour) % 97]
            yield FLEET, name(n), begin + hour * _HOUR, f"{busy:x}", f"{_ALL & ~busy:x}"


def _token_hours(begin: int, hours: int, instances: int, models: int) -> Iterator[tuple[object, ...]]:
    for n in range(instances):
        created = begin + 120_000_000
        at = {"prompt": 0, "cached": 0, "generation": 0, "prefill_ms": 0, "decode_ms": 0}
        for hour in range(hours):
            start = begin + hour * _HOUR
            first = tuple(value + 50 for value in at.values())
            rates = (90_000 + 13 * n % 7_919, 20_000, 30_000 + hour % 97, 400_000, 3_000_000)
            at = {name: value + 50 + rate for (name, value), rate in zip(at.items(), rates, strict=True)}
            edges = (start + (180_000_000 if hour == 0 else 0), created, start + _HOUR - 300_000_000, created)
            yield (
                FLEET, name(n), "0", f"m{n % models:03}", start, *edges, 0, 0, *first, *at.values(), *rates,
            )  # fmt: skip
