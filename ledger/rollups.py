"""Hours of token readings, written as readings arrive, so that a month of a large fleet is read in seconds.

A roll-up holds the first and the last reading of an engine's hour and what was served between them. Differences
telescope, so sums over roll-ups equal sums over the raw readings, to the token.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
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
    not_,
    or_,
    select,
    type_coerce,
)

from ledger.counters import MAX_GAP, Tokens, step
from ledger.facts import Move, Reading, merge, one_writer
from ledger.tables import PROCESSES, READINGS, TOKEN_HOURS

HOUR: Final = timedelta(hours=1)
_COUNTERS: Final = ("prompt", "cached", "generation", "prefill_ms", "decode_ms")
_ENGINE: Final = ("environment", "instance_id", "engine", "model")
_FEW: Final = 200
_STREAM: Final = 5_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """Readings of one engine from `first` to `last` and what was served between them."""

    first: Reading
    last: Reading
    inner: Tokens


def floor_hour(at: datetime) -> datetime:
    """The start of the hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def roll_up(connection: Connection, added: Iterable[Reading]) -> None:
    """Write the hours and processes that new readings touch. Call in the transaction that added them."""
    one_writer(connection)
    readings = list(added)
    merge(connection, PROCESSES, _processes(readings), {"first_at": Move.SHRINK})
    touched = sorted({(*engine_of(reading), floor_hour(reading.at)) for reading in readings})
    for start in range(0, len(touched), _FEW):
        some = touched[start : start + _FEW]
        rows = [hour_row(hour, stretch) for hour, stretch in _hours(connection, some)]
        moves = {column.name: Move.REPLACE for column in TOKEN_HOURS.columns if not column.primary_key}
        merge(connection, TOKEN_HOURS, rows, moves)


def engine_of(reading: Reading) -> tuple[str, str, str, str]:
    """What tells one engine from another."""
    return reading.environment, reading.instance_id, reading.engine, reading.model


def condense(readings: Sequence[Reading]) -> Stretch:
    """Readings of one engine, in the order of time, as one stretch."""
    inner = Tokens()
    for before, after in zip(readings, readings[1:], strict=False):
        inner += step(before, after)
    return Stretch(readings[0], readings[-1], inner)


def stretches(connection: Connection, environment: str, since: datetime, until: datetime) -> Iterator[list[Stretch]]:
    """Per engine: what is known from its last reading before `since` until `until` (exclusive).

    The first stretch may lie before `since`: it is the base. Whole hours come from roll-ups, the edges from readings.
    """
    begin, end = floor_hour(since), floor_hour(until)
    whole = _rolled(connection, environment, begin if begin == since else begin + HOUR, end)
    edges: list[Iterator[tuple[tuple[str, ...], list[Stretch]]]] = []
    if begin != since:
        edges.append(_raw(connection, environment, begin, min(begin + HOUR, until)))
    if end != until and not (begin == end and begin != since):
        edges.append(_raw(connection, environment, end, until))
    sources = [edges[0], whole, *edges[1:]] if begin != since else [whole, *edges]
    by_engine: dict[tuple[str, ...], list[Stretch]] = {}
    for source in sources:
        for engine, found in source:
            by_engine.setdefault(engine, []).extend(found)
    for engine in sorted(by_engine):
        mine = by_engine.pop(engine)
        base = _before(connection, engine, begin)
        yield [base, *mine] if base is not None else mine


def _raw(
    connection: Connection, environment: str, since: datetime, until: datetime
) -> Iterator[tuple[tuple[str, ...], list[Stretch]]]:
    """Raw readings of a span, each its own stretch."""
    statement = (
        select(READINGS)
        .where(READINGS.c.environment == environment, READINGS.c.at >= since, READINGS.c.at < until)
        .order_by(*(READINGS.c[name] for name in (*_ENGINE, "at")))
    )
    rows = connection.execution_options(yield_per=_STREAM).execute(statement)
    for engine, mine in groupby(rows, key=engine_of_row):
        yield engine, [Stretch(reading, reading, Tokens()) for reading in map(reading_of, mine)]


def _rolled(
    connection: Connection, environment: str, since: datetime, until: datetime
) -> Iterator[tuple[tuple[str, ...], list[Stretch]]]:
    """Roll-ups of whole hours, condensed into one stretch per engine by the database itself.

    The statement says what `ledger.counters.step` says; a test holds the two against each other.
    """
    if since >= until:
        return
    within = (TOKEN_HOURS.c.environment == environment, TOKEN_HOURS.c.hour >= since, TOKEN_HOURS.c.hour < until)
    sums = _sums(within)
    ends: dict[tuple[str, ...], list[Row[Any]]] = {}
    engine = [TOKEN_HOURS.c[name] for name in _ENGINE]
    edge = (
        select(*engine, func.min(TOKEN_HOURS.c.hour).label("low"), func.max(TOKEN_HOURS.c.hour).label("high"))
        .where(*within)
        .group_by(*engine)
        .subquery()
    )
    same = and_(
        *(TOKEN_HOURS.c[name] == edge.c[name] for name in _ENGINE), TOKEN_HOURS.c.hour.in_([edge.c.low, edge.c.high])
    )
    rows = connection.execute(select(TOKEN_HOURS).select_from(edge).join(TOKEN_HOURS, same))
    for row in sorted(rows, key=lambda row: row.hour):
        ends.setdefault(engine_of_row(row), []).append(row)
    for row in connection.execution_options(yield_per=_STREAM).execute(sums):
        engine_name = engine_of_row(row)
        first, last = _stretch(ends[engine_name][0]).first, _stretch(ends[engine_name][-1]).last
        served = _tokens(row, "inner") + _tokens(row, "between")
        inner = replace(served, resets=int(row.resets), late=int(row.late))
        yield engine_name, [Stretch(first, last, inner)]


def _sums(within: Sequence[ColumnElement[bool]]) -> Select[Any]:
    """What each engine served from its first to its last reading of those hours."""
    hours = TOKEN_HOURS
    order: dict[str, Any] = {"partition_by": [hours.c[name] for name in _ENGINE], "order_by": hours.c.hour}
    before = [
        func.lag(hours.c[f"last_{name}"]).over(**order).label(f"before_{name}")
        for name in (*_COUNTERS, "at", "created_at")
    ]
    each = select(hours, *before).where(*within).subquery()
    column = each.c
    # a comparison with what was not read is neither true nor false, and counts as false
    began_anew = or_(
        column.first_created_at > column.before_created_at,
        *(column[f"first_{name}"] < column[f"before_{name}"] for name in _COUNTERS),
    )
    follows = column.before_at.is_not(None)
    gap = type_coerce(column.first_at, BigInteger) - type_coerce(column.before_at, BigInteger)
    late = gap > MAX_GAP // timedelta(microseconds=1)

    def between(name: str) -> ColumnElement[Any]:
        now, then = column[f"first_{name}"], column[f"before_{name}"]
        unread = case((and_(now.is_not(None), then.is_(None)), 0), else_=now - then)
        return case((not_(follows), None), (began_anew, now), else_=unread)

    def counted(flag: ColumnElement[bool]) -> ColumnElement[Any]:
        return func.coalesce(func.sum(case((and_(follows, flag), 1), else_=0)), 0)

    # summed apart and added by us: a database works a term out again wherever it is named
    totals = [func.sum(column[f"inner_{name}"]).label(f"inner_{name}") for name in _COUNTERS]
    totals += [func.sum(between(name)).label(f"between_{name}") for name in _COUNTERS]
    return (
        select(
            *(column[name] for name in _ENGINE),
            *totals,
            (func.sum(column.resets) + counted(began_anew)).label("resets"),
            (func.sum(column.late) + counted(late)).label("late"),
        )
        .group_by(*(column[name] for name in _ENGINE))
        .order_by(*(column[name] for name in _ENGINE))
    )


def _tokens(row: Row[Any], part: str) -> Tokens:
    """Sums as the database gives them (PostgreSQL: as Decimal); None where nothing was read."""
    sums = {name: getattr(row, f"{part}_{name}") for name in _COUNTERS}
    counted: dict[str, Any] = {name: None if total is None else int(total) for name, total in sums.items()}
    return Tokens(**counted)


def _before(connection: Connection, engine: tuple[str, ...], hour: datetime) -> Stretch | None:
    """The newest roll-up before an hour."""
    same = [TOKEN_HOURS.c[name] == value for name, value in zip(_ENGINE, engine, strict=True)]
    statement = (
        select(TOKEN_HOURS).where(*same, TOKEN_HOURS.c.hour < hour).order_by(TOKEN_HOURS.c.hour.desc()).limit(1)
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else _stretch(row)


def _hours(
    connection: Connection, touched: Sequence[tuple[str, str, str, str, datetime]]
) -> Iterator[tuple[datetime, Stretch]]:
    """The hours of those engines as the raw readings tell them."""
    wanted = or_(
        *(
            and_(
                *(READINGS.c[name] == value for name, value in zip(_ENGINE, engine, strict=True)),
                READINGS.c.at >= hour,
                READINGS.c.at < hour + HOUR,
            )
            for *engine, hour in touched
        )
    )
    statement = select(READINGS).where(wanted).order_by(*(READINGS.c[name] for name in (*_ENGINE, "at")))
    yield from rolled_hours(map(reading_of, connection.execute(statement)))


def rolled_hours(readings: Iterable[Reading]) -> Iterator[tuple[datetime, Stretch]]:
    """Readings in the order of engine and time, hour by hour."""
    for (*_, hour), mine in groupby(readings, key=lambda r: (*engine_of(r), floor_hour(r.at))):
        yield hour, condense(list(mine))


def _processes(readings: Iterable[Reading]) -> list[dict[str, Any]]:
    first: dict[tuple[Any, ...], datetime] = {}
    for reading in readings:
        key = (*engine_of(reading), reading.created_at)
        first[key] = min(reading.at, first.get(key, reading.at))
    names = [*_ENGINE, "created_at"]
    unknown = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return [
        {**dict(zip(names, key, strict=True)), "created_at": key[-1] or unknown, "first_at": at}
        for key, at in first.items()
    ]


def hour_row(hour: datetime, stretch: Stretch) -> dict[str, Any]:
    """A row of TOKEN_HOURS."""
    first, last, inner = stretch.first, stretch.last, stretch.inner
    row: dict[str, Any] = dict(zip(_ENGINE, engine_of(first), strict=True))
    row |= {"hour": hour, "first_at": first.at, "first_created_at": first.created_at}
    row |= {"last_at": last.at, "last_created_at": last.created_at, "resets": inner.resets, "late": inner.late}
    for name in _COUNTERS:
        row |= {f"first_{name}": getattr(first, name), f"last_{name}": getattr(last, name)}
        row[f"inner_{name}"] = getattr(inner, name)
    return row


def _stretch(row: Row[Any]) -> Stretch:
    known = row._mapping  # pyright: ignore[reportPrivateUsage]

    def end(which: str) -> Reading:
        return Reading(
            environment=known["environment"],
            instance_id=known["instance_id"],
            engine=known["engine"],
            model=known["model"],
            at=known[f"{which}_at"],
            created_at=known[f"{which}_created_at"],
            **{name: known[f"{which}_{name}"] for name in _COUNTERS},
        )

    inner = Tokens(**{name: known[f"inner_{name}"] for name in _COUNTERS}, resets=known["resets"], late=known["late"])
    return Stretch(end("first"), end("last"), inner)


def reading_of(row: Any) -> Reading:
    """The fact of a row of READINGS."""
    return Reading(**row._mapping)


def engine_of_row(row: Any) -> tuple[str, ...]:
    """What tells one engine from another."""
    return row.environment, row.instance_id, row.engine, row.model


def first_signs(connection: Connection, environment: str) -> dict[str, list[datetime]]:
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
