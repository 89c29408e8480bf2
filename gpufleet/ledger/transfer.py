"""Exports a whole ledger as lines of JSON, and imports it: to move between databases or to replace a broken file.

The first line identifies the format; the last one contains the number of rows of each table, so that a truncated
file is refused. Times are microseconds since 1970, amounts are text. Not exported: leases, which belong to running
hosts; sums, which the next pass of the cost watchdog recomputes; hours of energy, which the import recomputes; group
activities, which the next pass of the spot watchdog reads again.

Columns that an older export lacks become NULL. Sentences of release 0.1 are converted to codes. Unknown tables and
columns of a newer export are skipped, if the export declares that this release can read it.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from typing import Any, Final, cast

from sqlalchemy import Column, Connection, Integer, Row, Table, func, select

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger.energy import EnergyReading, add_energy_readings, roll_up_energy
from gpufleet.ledger.facts import ActivityHour, EndCause, MergeRule, activity_hour, add_activity, merge
from gpufleet.ledger.outbox import MessageState
from gpufleet.ledger.rollups import reading_of, roll_up
from gpufleet.ledger.schema import HEAD, OLDEST_READER, LedgerError
from gpufleet.ledger.tables import (
    ACTIVITY,
    CLOSED_PERIODS,
    DECISIONS,
    DECLARED,
    ENDS,
    ENERGY_HOURS,
    ENERGY_READINGS,
    GROUP_ACTIVITIES,
    GROUP_READS,
    INTENTS,
    LAST_LISTS,
    METADATA,
    OUTBOX,
    PRICES,
    PROCESSES,
    READINGS,
    RESERVATION_READS,
    RESERVATIONS,
    RUNS,
    SUMS,
    UNIT_ACTIVITY,
    Exact,
    UtcMicroseconds,
    microseconds,
    moment,
)
from gpufleet.ledger.units import add_unit_hours, unit_hour

KIND: Final = "gpu-fleet ledger"
VERSION: Final = 1
_NOT_EXPORTED: Final = frozenset(
    {"leases", SUMS.name, ENERGY_HOURS.name, GROUP_READS.name, GROUP_ACTIVITIES.name, LAST_LISTS.name}
)
_STREAM: Final = 2_000

_MERGE_RULES: Final[Mapping[str, Mapping[str, MergeRule]]] = {
    RUNS.name: {"last_seen_at": MergeRule.GROW},
    ENDS.name: {"ended_at": MergeRule.SHRINK, "exact": MergeRule.GROW},
    PRICES.name: {"observed_at": MergeRule.GROW},
    RESERVATIONS.name: {"last_seen_at": MergeRule.GROW},
    RESERVATION_READS.name: {"last_seen_at": MergeRule.GROW},
    PROCESSES.name: {"first_at": MergeRule.SHRINK},
}


_CODES: Final[Mapping[Column[Any], type[StrEnum]]] = {
    RUNS.c.cloud: Cloud,
    RUNS.c.capacity_type: CapacityType,
    ENDS.c.cloud: Cloud,
    ENDS.c.cause: EndCause,
    RESERVATIONS.c.cloud: Cloud,
    RESERVATION_READS.c.cloud: Cloud,
    OUTBOX.c.state: MessageState,
}
_JSON: Final = frozenset(
    (
        DECISIONS.c.evidence,
        INTENTS.c.decision,
        OUTBOX.c.detail,
        DECLARED.c.content,
        CLOSED_PERIODS.c.prices,
        CLOSED_PERIODS.c.facts,
    )
)


def tables() -> list[Table]:
    """Every exported table, in a stable order."""
    return [table for table in METADATA.sorted_tables if table.name not in _NOT_EXPORTED]


def export(connection: Connection, now: datetime) -> Iterator[str]:
    """The lines of the whole ledger. Call it in one transaction, for a consistent copy."""
    head = {"kind": KIND, "version": VERSION, "schema": HEAD, "oldest_reader": OLDEST_READER}
    yield _line(head | {"made_at": microseconds(now)})
    counts: Counter[str] = Counter()
    for table in tables():
        statement = select(table).order_by(*table.primary_key.columns)
        for row in connection.execution_options(yield_per=_STREAM).execute(statement):
            counts[table.name] += 1
            yield _line({"table": table.name, "row": {name: _plain(value) for name, value in named(row).items()}})
    yield _line({"end": dict(counts)})


def import_rows(connection: Connection, lines: Iterable[str], source: str) -> dict[str, int]:
    """Write the rows of an export; existing rows stay. Returns the number of rows read by table.

    Raises LedgerError for a file that is not an export, newer, incomplete, or in conflict with rows of this ledger.
    """
    numbered = enumerate(lines, 1)
    schema = _schema(next(numbered, (1, ""))[1], source)
    counts: Counter[str] = Counter()
    known = {table.name: table for table in tables()}
    pending: list[dict[str, Any]] = []
    current: Table | None = None
    ended: dict[str, int] | None = None
    for number, line in numbered:
        value = _parsed(line, source, number)
        if "end" in value:
            ended = value["end"]
            break
        name = value.get("table")
        if not isinstance(name, str) or not isinstance(value.get("row"), dict):
            raise LedgerError(
                f"{source}: line {number}: expected an object with `table` and `row`; nothing was imported"
            )
        counts[name] += 1
        if (table := known.get(name)) is None:
            if schema > HEAD:
                continue
            raise LedgerError(f"{source}: line {number}: this gpufleet has no table {name!r}; nothing was imported")
        if current is not None and (table is not current or len(pending) >= _STREAM):
            _write(connection, current, pending, source)
            pending = []
        current = table
        pending.append(_row(table, value["row"], schema, f"{source}: line {number}"))
    if ended is None or ended != dict(counts):
        raise LedgerError(
            f"{source}: is incomplete: its last line is missing or states other numbers of rows; nothing was"
            " imported; export it again"
        )
    if current is not None:
        _write(connection, current, pending, source)
    return dict(counts)


def _schema(line: str, source: str) -> str:
    """The schema of the release that made the export."""
    head = _parsed(line, source, 1)
    if head.get("kind") != KIND:
        raise LedgerError(f"{source}: is not an export of a ledger; write one with `gpufleet ledger export`")
    schema = str(head.get("schema"))
    if head.get("version") != VERSION or (schema > HEAD and str(head.get("oldest_reader", schema)) > HEAD):
        found = f"version {head.get('version')}, schema {head.get('schema')}"
        raise LedgerError(
            f"{source}: {found} is newer than this gpufleet reads ({VERSION}, {HEAD}): upgrade gpufleet"
        )
    return schema


def _parsed(line: str, source: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{source}: line {number}: expected JSON; nothing was imported") from error
    if not isinstance(value, dict):
        raise LedgerError(f"{source}: line {number}: expected a JSON object; nothing was imported")
    return cast(dict[str, Any], value)


def _row(table: Table, raw: Mapping[str, Any], schema: str, where: str) -> dict[str, Any]:
    known = {column.name for column in table.columns}
    later = {column.name for column in table.columns if column.nullable} if schema < HEAD else frozenset[str]()
    if not known - later <= set(raw) or (schema <= HEAD and not set(raw) <= known):
        raise LedgerError(f"{where}: the columns differ from those of the table {table.name}; nothing was imported")
    try:
        row = _with_codes(table, raw) if schema < "0006" else raw
        return {column.name: _typed(column, row.get(column.name)) for column in table.columns}
    except (ArithmeticError, ValueError, TypeError, OverflowError, OSError, RecursionError) as error:
        raise LedgerError(f"{where}: {error}; nothing was imported") from error


def _with_codes(table: Table, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    from gpufleet.ledger.migrations.versions.v0006_codes import coded

    return coded(table.name, raw)


def _write(connection: Connection, table: Table, rows: Sequence[dict[str, Any]], source: str) -> None:
    special: dict[str, Callable[[], None]] = {
        ACTIVITY.name: lambda: _add_activity(connection, rows),
        READINGS.name: lambda: _add_readings(connection, rows),
        ENERGY_READINGS.name: lambda: _add_energy(connection, rows),
        UNIT_ACTIVITY.name: lambda: add_unit_hours(connection, [unit_hour(_attributes(row)) for row in rows]),
    }
    if table.name in special:
        try:
            special[table.name]()
        except ValueError as error:
            raise LedgerError(f"{source}: {table.name}: {error}; nothing was imported") from error
    elif [column.name for column in table.primary_key] == ["id"]:
        _write_numbered(connection, table, rows, source)
    else:
        merge(connection, table, rows, _MERGE_RULES.get(table.name))


def _add_readings(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    merge(connection, READINGS, rows)
    # if the ledger has other readings of the same hour, the hour is rolled up from both
    as_rows = iter(rows)
    while some := list(islice(as_rows, _STREAM)):
        roll_up(connection, [reading_of(_Mapped(row)) for row in some])


def _add_activity(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    hours = [_activity(row) for row in rows]
    add_activity(connection, hours)
    roll_up_energy(connection, (), hours)


def _add_energy(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    readings = [EnergyReading(**row) for row in rows]
    add_energy_readings(connection, readings)
    roll_up_energy(connection, readings)


class _Mapped:
    """A row as the database returns it."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._mapping = row


def _activity(row: Mapping[str, Any]) -> ActivityHour:
    return activity_hour(_attributes(row))


def _attributes(row: Mapping[str, Any]) -> Any:
    return type("Row", (), dict(row))


def _write_numbered(connection: Connection, table: Table, rows: Sequence[dict[str, Any]], source: str) -> None:
    ids = [row["id"] for row in rows]
    found = connection.execute(select(table).where(table.c.id.between(min(ids), max(ids))))
    there = {row.id: named(row) for row in found}
    if any(row["id"] in there and there[row["id"]] != row for row in rows):
        raise LedgerError(
            f"{source}: this ledger has other rows with the same ids in {table.name}: import into an empty ledger"
        )
    new = [row for row in rows if row["id"] not in there]
    if new:
        connection.execute(table.insert(), new)
    if new and connection.dialect.name == "postgresql":
        last = select(func.max(table.c.id)).scalar_subquery()
        connection.execute(select(func.setval(func.pg_get_serial_sequence(table.name, "id"), last)))


def named(row: Row[Any]) -> dict[str, Any]:
    """A row by the names of its columns."""
    return dict(row._mapping)  # pyright: ignore[reportPrivateUsage]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return microseconds(value)
    return format(value, "f") if isinstance(value, Decimal) else value


def _typed(column: Column[Any], value: Any) -> Any:
    """A value as its column stores it. Raises ValueError, OverflowError or OSError for an invalid value.

    SQLite stores text in a number column without an error, and then every report of the ledger fails.
    """
    if value is None:
        return None
    kind = column.type
    if isinstance(kind, UtcMicroseconds | Integer):
        if type(value) is not int:
            raise ValueError(f"{column.name} is {value!r:.80}; expected a whole number")
        return moment(value) if isinstance(kind, UtcMicroseconds) else value
    if not isinstance(value, str):
        raise ValueError(f"{column.name} is {value!r:.80}; expected text")
    if isinstance(kind, Exact):
        return _amount(column, value)
    if column in _CODES:
        _CODES[column](value)
    if column in _JSON:
        json.loads(value)
    return value


def _amount(column: Column[Any], value: str) -> Decimal:
    try:
        amount = Decimal(value)
    except ArithmeticError as error:
        raise ValueError(f"{column.name} is {value!r:.80}; expected an amount") from error
    if not amount.is_finite() or (column is PRICES.c.usd_per_hour and amount < 0):
        raise ValueError(f"{column.name} is {value!r:.80}; expected an amount")
    return amount


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
