"""Raw counters of the router by key, as they were read: engine time, tokens, answers without usage."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, select

from gpufleet.ledger.facts import merge
from gpufleet.ledger.tables import TEAM_READINGS

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
    """Use of one pool in a window."""

    replica_ms: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    unmetered: int = 0

    def include(self, other: "TeamUse") -> None:
        """Add another use."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


Interval = tuple[datetime, datetime]
"""Start and end; the end is exclusive."""
Uses = Mapping[tuple[str, str, str], TeamUse]
"""Maps (pool, team, requested model) to its use."""

_COUNTERS: Final = ("replica_ms", "tokens_in", "tokens_out", "unmetered")


def by_team(uses: Uses, pool: str) -> dict[str, TeamUse]:
    """Return a pool's use by team."""
    return _summed((team, use) for (of, team, _), use in uses.items() if of == pool)


def by_model(uses: Uses, pool: str) -> dict[str, TeamUse]:
    """Return a pool's use by the model name of the requests; "" if the router did not know the name."""
    return _summed((model, use) for (of, _, model), use in uses.items() if of == pool)


def _summed(parts: Iterable[tuple[str, TeamUse]]) -> dict[str, TeamUse]:
    found: dict[str, TeamUse] = {}
    for name, use in parts:
        found.setdefault(name, TeamUse()).include(use)
    return found


def add_team_readings(connection: Connection, readings: Sequence[TeamReading]) -> None:
    """Write readings; existing ones stay."""
    names = [column.name for column in TEAM_READINGS.columns]
    merge(connection, TEAM_READINGS, [{name: getattr(one, name) for name in names} for one in readings])


def team_uses(connection: Connection, fleet: str, intervals: Sequence[Interval]) -> dict[Interval, Uses]:
    """The use in each interval, with one query for all intervals."""
    since, until = min(start for start, _ in intervals) - BASE, max(end for _, end in intervals)
    statement = (
        select(TEAM_READINGS)
        .where(TEAM_READINGS.c.fleet == fleet, TEAM_READINGS.c.at >= since, TEAM_READINGS.c.at < until)
        .order_by(TEAM_READINGS.c.at)
    )
    names = [column.name for column in TEAM_READINGS.columns]
    waiting = sorted({interval: TeamTotals(interval[0]) for interval in intervals}.items(), reverse=True)
    done: dict[Interval, Uses] = {interval: counted.uses for interval, counted in waiting}
    active: list[tuple[Interval, TeamTotals]] = []
    for row in connection.execute(statement):
        reading = TeamReading(**{name: getattr(row, name) for name in names})
        while waiting and waiting[-1][0][0] - BASE <= reading.at:
            active.append(waiting.pop())
        active = [(interval, counted) for interval, counted in active if reading.at < interval[1]]
        for _, counted in active:
            counted.take(reading)
    return done


class TeamTotals:
    """Sums of differences, each counted at its later reading.

    A counter that decreases was reset. A key that a known router reports for the first time counts from zero; the
    first reading of a router counts nothing.
    """

    def __init__(self, since: datetime) -> None:
        self.uses: dict[tuple[str, str, str], TeamUse] = defaultdict(TeamUse)
        self._since = since
        self._before: dict[tuple[str, str, str, str], TeamReading] = {}
        self._first: dict[str, datetime] = {}

    def take(self, reading: TeamReading) -> None:
        """Count a reading. Call it in the order of time."""
        key = (reading.router, reading.team, reading.model, reading.pool)
        last = self._before.get(key)
        is_new = last is None and self._first.setdefault(reading.router, reading.at) < reading.at
        self._before[key] = reading
        if reading.at < self._since or (last is None and not is_new):
            return
        use = self.uses[reading.pool, reading.team, reading.model]
        for name in _COUNTERS:
            now, then = getattr(reading, name), getattr(last, name) if last is not None else 0
            if now is not None and then is not None:
                setattr(use, name, getattr(use, name) + (now - then if now >= then else now))
