"""Zones that a pool asks again and again while it waits for spot: a refusal changes nothing but when it asks next."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import numpy.typing as npt

from watchdogs.replay.rows import EPOCH
from watchdogs.spot import zones

CLOCKS: Final = 0.001
"""Seconds that a history's clock and ours, which counts whole microseconds, may differ."""


class Asks(Protocol):
    """Which zones are asked again, and when. An ask that is granted is the rule's own: it is asked to decide then."""

    @property
    def places(self) -> Iterable[int]: ...

    def due(self, place: int) -> float:
        """The second from which the zone is asked again, or little before it."""
        ...

    def is_due(self, place: int, at: float) -> bool: ...

    def refuse(self, place: int, at: float) -> None:
        """The zone was asked then, and had no room."""
        ...


@dataclass(slots=True)
class Pauses:
    """The pauses of `zones`, of a pool that misses spot and asks each zone that it may until one gives."""

    backoff: timedelta
    now: datetime
    refused: Mapping[int, Sequence[datetime]]
    """When each zone has refused and given nothing since, newest first."""
    _left: dict[int, list[datetime]] = field(init=False)
    _ends: dict[int, datetime] = field(init=False)
    _told: list[tuple[int, datetime]] = field(default_factory=list[tuple[int, datetime]])

    def __post_init__(self) -> None:
        self._left = {place: list(refused) for place, refused in self.refused.items()}
        self._ends = {place: self._end(place, self.now) for place in self.refused}

    @property
    def places(self) -> Iterable[int]:
        return self.refused

    def due(self, place: int) -> float:
        return (self._ends[place] - EPOCH).total_seconds() - CLOCKS

    def is_due(self, place: int, at: float) -> bool:
        return EPOCH + timedelta(seconds=at) >= self._ends[place]

    def refuse(self, place: int, at: float) -> None:
        now = EPOCH + timedelta(seconds=at)
        self._told.append((place, now))
        self._left[place] = [now, *(then for then in self._left[place] if now - then < self.backoff)]
        self._ends[place] = self._end(place, now)

    def told(self) -> Sequence[tuple[int, datetime]]:
        """All that was refused, in the order of time."""
        return self._told

    def _end(self, place: int, now: datetime) -> datetime:
        return zones.pause_ends(self._left[place], self.backoff, now)


def refused_until(asks: Asks, times: Sequence[float], room: npt.NDArray[Any]) -> int:
    """The first of the ticks at which a zone that is asked has room (by tick and zone); their number without one.

    Up to there each ask is refused. Zones of one tick are asked together: where one gives, nobody has been asked.
    """
    if not times:
        return 0
    columns = {place: room[:, place].tolist() for place in asks.places}
    due = {place: _tick(asks, place, times, 0) for place in columns}
    while due:
        tick = min(due.values())
        if tick >= len(times):
            break
        asked = [place for place, at in due.items() if at == tick]
        if any(columns[place][tick] for place in asked):
            return tick
        for place in asked:
            asks.refuse(place, times[tick])
            due[place] = _tick(asks, place, times, tick + 1)
    return len(times)


def _tick(asks: Asks, place: int, times: Sequence[float], first: int) -> int:
    """The first tick from this one on at which the zone is asked."""
    tick = max(first, bisect_left(times, asks.due(place), first))
    while tick < len(times) and not asks.is_due(place, times[tick]):
        tick += 1
    return tick
