"""Hours of token readings, written as readings arrive, so that a month of a large fleet is read in seconds.

A roll-up contains the first and the last reading of an engine's hour and the tokens between them. Sums over roll-ups
equal sums over the raw readings exactly.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, islice, pairwise
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    case,
    func,
    or_,
    select,
    type_coerce,
)

from gpufleet.ledger.counters import MAX_GAP, Tokens, step
from gpufleet.ledger.facts import MergeRule, TokenReading, lock_writers, merge
from gpufleet.ledger.tables import COUNTERS, EPOCH, PROCESSES, READINGS, TOKEN_HOURS

HOUR: Final = timedelta(hours=1)
_ENGINE: Final = ("environment", "instance_id", "engine", "model")
_FEW: Final = 200
_STREAM: Final = 5_000


@dataclass(frozen=True, slots=True)
class ReadingSpan:
    """Readings of one engine from `first` to `last`, and the tokens between them."""

    first: TokenReading
    last: TokenReading
    inner: Tokens


def floor_hour(at: datetime) -> datetime:
    """The start of the hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def roll_up(connection: Connection, added: Iterable[TokenReading]) -> None:
    """Write the hours and processes that new readings touch. Call in the transaction that added them."""
    lock_writers(connection)
    readings = list(added)
    merge(connection, PROCESSES, _processes(readings), {"first_at": MergeRule.SHRINK})
    touched = {(*engine_of(reading), floor_hour(reading.at)) for reading in readings}
    moves = {column.name: MergeRule.REPLACE for column in TOKEN_HOURS.columns if not column.primary_key}
    hours = _hours(connection, touched)
    while rows := [hour_row(hour, span) for hour, span in islice(hours, _STREAM)]:
        merge(connection, TOKEN_HOURS, rows, moves)


def engine_of(reading: TokenReading) -> tuple[str, str, str, str]:
    """The key of the reading's engine."""
    return reading.environment, reading.instance_id, reading.engine, reading.model


def condense(readings: Sequence[TokenReading]) -> ReadingSpan:
    """Readings of one engine, in the order of time, as one span."""
    inner = Tokens()
    for before, after in pairwise(readings):
        inner += step(before, after)
    return ReadingSpan(readings[0], readings[-1], inner)


def reading_spans(
    connection: Connection, environment: str, since: datetime, until: datetime
) -> Iterator[list[ReadingSpan]]:
    """The reading spans of each engine from its last reading before `since` until `until` (exclusive).

    The first span may be before `since`: it is the base of the differences. Whole hours are read from roll-ups, the
    edges from raw readings.
    """
    begin, end = floor_hour(since), floor_hour(until)
    whole = _rolled(connection, environment, begin if begin == since else begin + HOUR, end)
    edges: list[Iterator[tuple[tuple[str, ...], list[ReadingSpan]]]] = []
    if begin != since:
        edges.append(_raw(connection, environment, begin, min(begin + HOUR, until)))
    if end != until and not (begin == end and begin != since):
        edges.append(_raw(connection, environment, end, until))
    sources = [edges[0], whole, *edges[1:]] if begin != since else [whole, *edges]
    by_engine: dict[tuple[str, ...], list[ReadingSpan]] = {}
    for source in sources:
        for engine, found in source:
            by_engine.setdefault(engine, []).extend(found)
    near = _hour_before(connection, by_engine, begin)
    for engine in sorted(by_engine):
        mine = by_engine.pop(engine)
        base = near.get(engine) or _before(connection, engine, begin)
        yield [base, *mine] if base is not None else mine


def _raw(
    connection: Connection, environment: str, since: datetime, until: datetime
) -> Iterator[tuple[tuple[str, ...], list[ReadingSpan]]]:
    """Raw readings between two times, each as a span of its own."""
    statement = (
        select(READINGS)
        .where(READINGS.c.environment == environment, READINGS.c.at >= since, READINGS.c.at < until)
        .order_by(*(READINGS.c[name] for name in (*_ENGINE, "at")))
    )
    rows = connection.execution_options(yield_per=_STREAM).execute(statement)
    for engine, mine in groupby(rows, key=engine_of_row):
        yield engine, [ReadingSpan(reading, reading, Tokens()) for reading in map(reading_of, mine)]


def _rolled(
    connection: Connection, environment: str, since: datetime, until: datetime
) -> Iterator[tuple[tuple[str, ...], list[ReadingSpan]]]:
    """Roll-ups of whole hours, condensed into one span per engine, mostly by the database.

    The tokens from the first to the last reading are the sums of the hours plus the steps between them. Steps at
    which a counter decreased or a process restarted, and engines that reported a counter only in some hours are rare:
    `gpufleet.ledger.counters.step` counts these.
    """
    if since >= until:
        return
    within = _within(TOKEN_HOURS, environment, since, until)
    ends: dict[tuple[str, ...], list[ReadingSpan]] = {}
    for row in connection.execute(_edges(within)):
        ends.setdefault(engine_of_row(row), []).append(_span_of(row))
    breaks: dict[tuple[str, ...], list[tuple[datetime, int]]] = {}
    for row in connection.execute(_breaks(connection.dialect.name, environment, since, until)):
        breaks.setdefault(engine_of_row(row), []).append((row.hour, row.kind))
    for row in connection.execute(_sums(within)).all():
        engine = engine_of_row(row)
        mine = sorted(ends[engine], key=lambda span: span.first.at)
        if any(row_counts not in (0, row.hours) for row_counts in _counts(row)):
            whole = [_span_of(hour) for hour in connection.execute(_of_engine(engine, within))]
            yield engine, [_joined(whole)]
            continue
        broken = breaks.get(engine, [])
        served = _telescoped(row, mine[0].first, mine[-1].last)
        for hour in (at for at, kind in broken if kind & _RESTARTED):
            before, after = connection.execute(_of_engine(engine, (*within, TOKEN_HOURS.c.hour <= hour), 2)).all()[
                ::-1
            ]
            last, first = _span_of(before).last, _span_of(after).first
            served += _difference(step(last, first), first, last)
        late = int(row.late) + sum(kind & _LATE for _, kind in broken)
        yield engine, [ReadingSpan(mine[0].first, mine[-1].last, replace(served, late=late))]


_LATE: Final = 1
_RESTARTED: Final = 2


def _within(hours: Any, environment: str, since: datetime, until: datetime) -> tuple[ColumnElement[bool], ...]:
    return hours.c.environment == environment, hours.c.hour >= since, hours.c.hour < until


def _edges(within: Sequence[ColumnElement[bool]]) -> Select[Any]:
    """The first and the last hour of each engine."""
    engine = [TOKEN_HOURS.c[name] for name in _ENGINE]
    low, high = func.min(TOKEN_HOURS.c.hour).label("low"), func.max(TOKEN_HOURS.c.hour).label("high")
    edge = select(*engine, low, high).where(*within).group_by(*engine).subquery()
    same = [TOKEN_HOURS.c[name] == edge.c[name] for name in _ENGINE]
    either = TOKEN_HOURS.c.hour.in_([edge.c.low, edge.c.high])
    return select(TOKEN_HOURS).select_from(edge).join(TOKEN_HOURS, and_(*same, either))


def _sums(within: Sequence[ColumnElement[bool]]) -> Select[Any]:
    """Per engine: the sums of the tokens of its hours, and of the differences from first to last readings."""
    column = TOKEN_HOURS.c
    engine: list[ColumnElement[Any]] = [column[name] for name in _ENGINE]
    sums: list[ColumnElement[Any]] = [func.count().label("hours"), func.sum(column.resets).label("resets")]
    sums.append(func.sum(column.late).label("late"))
    for name in COUNTERS:
        first, last = column[f"first_{name}"], column[f"last_{name}"]
        sums.append(func.sum(column[f"inner_{name}"]).label(f"inner_{name}"))
        sums.append(func.sum(last - first).label(f"within_{name}"))
        sums += [func.count(first).label(f"first_{name}"), func.count(last).label(f"last_{name}")]
    summed: Select[Any] = select(*engine, *sums)  # pyright: ignore[reportAssignmentType]
    return summed.where(*within).group_by(*engine).order_by(*engine)


def _breaks(dialect: str, environment: str, since: datetime, until: datetime) -> Select[Any]:
    """Hours whose first reading is late or of a restarted counter, compared with the hour before.

    SQLite finds the row before faster by its key than with a window function; PostgreSQL is the reverse.
    """
    hours = TOKEN_HOURS.alias("hours")
    names = [hours.c[name] for name in (*_ENGINE, "hour")]
    if dialect == "sqlite":
        earlier = TOKEN_HOURS.alias("earlier")
        same = [earlier.c[name] == hours.c[name] for name in _ENGINE]
        newest = (
            select(_kind(hours.c, {name: earlier.c[f"last_{name}"] for name in _COMPARED}))
            .where(*same, earlier.c.hour >= since, earlier.c.hour < hours.c.hour)
            .order_by(earlier.c.hour.desc())
            .limit(1)
            .scalar_subquery()
        )
        each = select(*names, newest.label("kind")).where(*_within(hours, environment, since, until)).subquery()
    else:
        order: dict[str, Any] = {"partition_by": [hours.c[name] for name in _ENGINE], "order_by": hours.c.hour}
        before = [func.lag(hours.c[f"last_{name}"]).over(**order).label(f"before_{name}") for name in _COMPARED]
        first = [hours.c[f"first_{name}"] for name in _COMPARED]
        pairs = select(*names, *first, *before).where(*_within(hours, environment, since, until)).subquery()
        kind = _kind(pairs.c, {name: pairs.c[f"before_{name}"] for name in _COMPARED})
        each = select(*(pairs.c[name.name] for name in names), kind.label("kind")).subquery()
    return select(each).where(each.c.kind > 0)


_COMPARED: Final = (*COUNTERS, "at", "created_at")


def _kind(column: Any, before: Mapping[str, ColumnElement[Any]]) -> ColumnElement[int]:
    """`_LATE` and `_RESTARTED`, added. A comparison with a counter that was not read is null, and counts as false."""
    gap = type_coerce(column.first_at, BigInteger) - type_coerce(before["at"], BigInteger)
    fell = [column[f"first_{name}"] < before[name] for name in COUNTERS]
    restarted = or_(column.first_created_at > before["created_at"], *fell)
    return case((gap > MAX_GAP // timedelta(microseconds=1), _LATE), else_=0) + case((restarted, _RESTARTED), else_=0)


def _of_engine(
    engine: tuple[str, ...], within: Sequence[ColumnElement[bool]], newest: int | None = None
) -> Select[Any]:
    """The hours of one engine, or its newest ones, newest first."""
    same = [TOKEN_HOURS.c[name] == value for name, value in zip(_ENGINE, engine, strict=True)]
    statement = select(TOKEN_HOURS).where(*within, *same)
    if newest is None:
        return statement.order_by(TOKEN_HOURS.c.hour)
    return statement.order_by(TOKEN_HOURS.c.hour.desc()).limit(newest)


def _counts(row: Row[Any]) -> Iterator[int]:
    """The number of hours in which each counter was reported."""
    for name in COUNTERS:
        yield getattr(row, f"first_{name}")
        yield getattr(row, f"last_{name}")


def _joined(parts: Sequence[ReadingSpan]) -> ReadingSpan:
    """Hours of one engine, in the order of time, as one span."""
    inner = parts[0].inner
    for before, after in pairwise(parts):
        inner += step(before.last, after.first) + after.inner
    return ReadingSpan(parts[0].first, parts[-1].last, inner)


def _telescoped(row: Row[Any], first: TokenReading, last: TokenReading) -> Tokens:
    """The tokens if no counter decreased between two hours. Sums may be Decimal; None: nothing was read."""
    counted: dict[str, Any] = {}
    for name in COUNTERS:
        inner: Any = getattr(row, f"inner_{name}")
        within: Any = getattr(row, f"within_{name}")
        if within is not None and row.hours > 1:
            between = getattr(last, name) - getattr(first, name) - int(within)
            counted[name] = int(inner or 0) + between
        else:
            counted[name] = None if inner is None else int(inner)
    return Tokens(**counted, resets=int(row.resets))


def _difference(counted: Tokens, first: TokenReading, last: TokenReading) -> Tokens:
    """The correction of `_telescoped` for a step at which counters decreased."""
    parts: dict[str, Any] = {}
    for name in COUNTERS:
        now, then, value = getattr(first, name), getattr(last, name), getattr(counted, name)
        parts[name] = None if now is None or then is None or value is None else value - (now - then)
    return Tokens(**parts, resets=counted.resets)


def _hour_before(
    connection: Connection, engines: Iterable[tuple[str, ...]], hour: datetime
) -> dict[tuple[str, ...], ReadingSpan]:
    """The roll-ups of the hour before an hour, in few queries. For nearly all engines, this is the newest roll-up."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for environment, instance_id, engine, model in engines:
        alike.setdefault((environment, engine, model), []).append(instance_id)
    found: dict[tuple[str, ...], ReadingSpan] = {}
    column = TOKEN_HOURS.c
    for (environment, engine, model), instances in alike.items():
        same = (column.environment == environment, column.engine == engine, column.model == model)
        for start in range(0, len(instances), _FEW):
            some = column.instance_id.in_(instances[start : start + _FEW])
            rows = connection.execute(select(TOKEN_HOURS).where(*same, some, column.hour == hour - HOUR))
            found |= {engine_of_row(row): _span_of(row) for row in rows}
    return found


def _before(connection: Connection, engine: tuple[str, ...], hour: datetime) -> ReadingSpan | None:
    """The newest roll-up before an hour."""
    same = [TOKEN_HOURS.c[name] == value for name, value in zip(_ENGINE, engine, strict=True)]
    statement = (
        select(TOKEN_HOURS).where(*same, TOKEN_HOURS.c.hour < hour).order_by(TOKEN_HOURS.c.hour.desc()).limit(1)
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else _span_of(row)


def _hours(
    connection: Connection, touched: Iterable[tuple[str, str, str, str, datetime]]
) -> Iterator[tuple[datetime, ReadingSpan]]:
    """The hours of those engines, computed from raw readings."""
    alike: dict[tuple[str, str, str, datetime], list[str]] = {}
    for environment, instance_id, engine, model, hour in sorted(touched):
        alike.setdefault((environment, engine, model, hour), []).append(instance_id)
    column = READINGS.c
    for (environment, engine, model, hour), instances in alike.items():
        same = (column.environment == environment, column.engine == engine, column.model == model)
        for start in range(0, len(instances), _FEW):
            some = column.instance_id.in_(instances[start : start + _FEW])
            within = (some, column.at >= hour, column.at < hour + HOUR)
            statement = select(READINGS).where(*same, *within).order_by(column.instance_id, column.at)
            yield from rolled_hours(map(reading_of, connection.execute(statement)))


def rolled_hours(readings: Iterable[TokenReading]) -> Iterator[tuple[datetime, ReadingSpan]]:
    """Readings in the order of engine and time, hour by hour."""
    for (*_, hour), mine in groupby(readings, key=lambda r: (*engine_of(r), floor_hour(r.at))):
        yield hour, condense(list(mine))


def _processes(readings: Iterable[TokenReading]) -> list[dict[str, Any]]:
    first: dict[tuple[Any, ...], datetime] = {}
    for reading in readings:
        key = (*engine_of(reading), reading.created_at)
        first[key] = min(reading.at, first.get(key, reading.at))
    names = [*_ENGINE, "created_at"]
    return [
        {**dict(zip(names, key, strict=True)), "created_at": key[-1] or EPOCH, "first_at": at}
        for key, at in first.items()
    ]


def hour_row(hour: datetime, span: ReadingSpan) -> dict[str, Any]:
    """A row of TOKEN_HOURS."""
    first, last, inner = span.first, span.last, span.inner
    row: dict[str, Any] = dict(zip(_ENGINE, engine_of(first), strict=True))
    row |= {"hour": hour, "first_at": first.at, "first_created_at": first.created_at}
    row |= {"last_at": last.at, "last_created_at": last.created_at, "resets": inner.resets, "late": inner.late}
    for name in COUNTERS:
        row |= {f"first_{name}": getattr(first, name), f"last_{name}": getattr(last, name)}
        row[f"inner_{name}"] = getattr(inner, name)
    return row


def _span_of(row: Row[Any]) -> ReadingSpan:
    known = row._mapping  # pyright: ignore[reportPrivateUsage]

    def end(which: str) -> TokenReading:
        return TokenReading(
            environment=known["environment"],
            instance_id=known["instance_id"],
            engine=known["engine"],
            model=known["model"],
            at=known[f"{which}_at"],
            created_at=known[f"{which}_created_at"],
            **{name: known[f"{which}_{name}"] for name in COUNTERS},
        )

    inner = Tokens(**{name: known[f"inner_{name}"] for name in COUNTERS}, resets=known["resets"], late=known["late"])
    return ReadingSpan(end("first"), end("last"), inner)


def reading_of(row: Any) -> TokenReading:
    """Convert a row of READINGS."""
    return TokenReading(**row._mapping)


def engine_of_row(row: Any) -> tuple[str, ...]:
    """The key of the row's engine."""
    return row.environment, row.instance_id, row.engine, row.model


def first_readings(connection: Connection, environment: str) -> dict[str, list[datetime]]:
    """When the engines of each instance were first read, one time per process."""
    found: dict[str, list[datetime]] = {}
    statement = (
        select(PROCESSES.c.instance_id, func.min(PROCESSES.c.first_at))
        .where(PROCESSES.c.environment == environment)
        .group_by(PROCESSES.c.instance_id, PROCESSES.c.created_at)
    )
    for instance_id, at in connection.execute(statement):
        found.setdefault(instance_id, []).append(at)
    return found
