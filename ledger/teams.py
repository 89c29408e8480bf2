"""What the router counted by key: engine time, tokens, answers without usage. Raw counters, as they were read."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, select

from ledger.facts import merge
from ledger.tables import TEAM_READINGS

BASE: Final = timedelta(hours=6)
"""How far before a window its first difference may begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamReading:
    """The counters of one key, model and pool of one router at a time."""

    fleet: str
    router: str
    team: str
    """The key's name; empty: no key."""
    model: str
    pool: str
    at: datetime
    replica_ms: int | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    unmetered: int | None = None


@dataclass(slots=True, kw_only=True)
class TeamUse:
    """What one team used of one pool in a window."""

    replica_ms: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    unmetered: int = 0


_COUNTERS: Final = ("replica_ms", "tokens_in", "tokens_out", "unmetered")


def add_team_readings(connection: Connection, readings: Sequence[TeamReading]) -> None:
    """Write readings; those that are there already stay."""
    names = [column.name for column in TEAM_READINGS.columns]
    merge(connection, TEAM_READINGS, [{name: getattr(one, name) for name in names} for one in readings])


def team_use(connection: Connection, fleet: str, since: datetime, until: datetime) -> dict[tuple[str, str], TeamUse]:
    """(pool, team) to what was used in the window."""
    statement = (
        select(TEAM_READINGS)
        .where(TEAM_READINGS.c.fleet == fleet, TEAM_READINGS.c.at >= since - BASE, TEAM_READINGS.c.at < until)
        .order_by(TEAM_READINGS.c.at)
    )
    names = [column.name for column in TEAM_READINGS.columns]
    return used((TeamReading(**{n: getattr(row, n) for n in names}) for row in connection.execute(statement)), since)


def used(readings: Iterable[TeamReading], since: datetime) -> dict[tuple[str, str], TeamUse]:
    """Sums of differences, each counted at its later reading; `readings` in the order of time.

    A counter that falls was reset. A key that a known router shows for the first time counts from zero; the first
    look at a router says nothing of what was before.
    """
    before: dict[tuple[str, str, str, str], TeamReading] = {}
    first: dict[str, datetime] = {}
    found: dict[tuple[str, str], TeamUse] = defaultdict(TeamUse)
    for reading in readings:
        key = (reading.router, reading.team, reading.model, reading.pool)
        last = before.get(key)
        is_new = last is None and first.setdefault(reading.router, reading.at) < reading.at
        before[key] = reading
        if reading.at < since or (last is None and not is_new):
            continue
        use = found[reading.pool, reading.team]
        for name in _COUNTERS:
            now, then = getattr(reading, name), getattr(last, name) if last is not None else 0
            if now is not None and then is not None:
                setattr(use, name, getattr(use, name) + (now - then if now >= then else now))
    return dict(found)
