"""Zones that a pool asks again and again while it waits for spot: a refusal changes nothing but when it asks next."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import numpy.typing as npt

from replay.rows import EPOCH
from watchdogs.spot import zones

_TICK: Final = timedelta(microseconds=1)
_MOST_KNOWN: Final = 100_000
"""Patterns of refusals that are kept: a history with even ticks has a few hundred."""


class Asks(Protocol):
    """Which zones are asked again, and when. An ask that is granted is the rule's own: it is asked to decide then."""

    @property
    def places(self) -> Iterable[int]: ...

    def due(self, place: int) -> int:
        """The microsecond of the history from which the zone is asked again."""
        ...

    def refuse(self, place: int, at: int) -> None:
        """The zone was asked in that microsecond, and had no room."""
        ...


@dataclass(slots=True)
class Pauses:
    """The pauses of `zones`, of a pool that misses spot and asks each zone that it may until one gives.

    Counts in whole microseconds, as `datetime` does: a market that is dry for years refuses a million times.
    """

    backoff: timedelta
    now: datetime
    refused: Mapping[int, Sequence[datetime]]
    """When each zone has refused and given nothing since, newest first."""
    known: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])
    """How long the pause is after a refusal, by how long ago those before it were: kept from one look to the next."""
    _left: dict[int, list[int]] = field(init=False)
    _ends: dict[int, int] = field(init=False)
    _told: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _span: int = field(init=False)

    def __post_init__(self) -> None:
        self._span = self.backoff // _TICK
        self._left = {place: [_count(then) for then in refused] for place, refused in self.refused.items()}
        self._ends = {
            place: _count(zones.pause_ends(refused, self.backoff, self.now))
            for place, refused in self.refused.items()
        }

    @property
    def places(self) -> Iterable[int]:
        return self.refused

    def due(self, place: int) -> int:
        return self._ends[place]

    def refuse(self, place: int, at: int) -> None:
        self._told.append((place, at))
        self._left[place] = left = [at, *[then for then in self._left[place] if at - then < self._span]]
        pattern = tuple([at - then for then in left])
        pause = self.known.get(pattern)
        if pause is None:
            pause = self._pause(left)
            if len(self.known) < _MOST_KNOWN:
                self.known[pattern] = pause
        self._ends[place] = at + pause

    def last(self) -> Mapping[int, datetime]:
        """When each zone refused last, of those that did."""
        return {place: _moment(at) for place, at in dict(self._told).items()}

    def told(self, since: datetime) -> Iterator[tuple[int, datetime]]:
        """What was refused after that time, in the order of time."""
        first = _count(since)
        return ((place, _moment(at)) for place, at in self._told if at > first)

    def _pause(self, left: Sequence[int]) -> int:
        now = _moment(left[0])
        return (zones.pause_ends([_moment(then) for then in left], self.backoff, now) - now) // _TICK


def _count(moment: datetime) -> int:
    return (moment - EPOCH) // _TICK


def _moment(count: int) -> datetime:
    return EPOCH + count * _TICK


def refused_until(asks: Asks, times: Sequence[float], room: npt.NDArray[Any]) -> int:
    """The first of the ticks at which a zone that is asked has room (by tick and zone); their number without one.

    Up to there each ask is refused. Zones of one tick are asked together: where one gives, nobody has been asked.
    """
    if not times:
        return 0
    moments = [timedelta(seconds=at) // _TICK for at in times]
    columns = {place: room[:, place].tolist() for place in asks.places}
    due = {place: bisect_left(moments, asks.due(place)) for place in columns}
    while due:
        tick = min(due.values())
        if tick >= len(moments):
            break
        asked = [place for place, at in due.items() if at == tick]
        if any(columns[place][tick] for place in asked):
            return tick
        for place in asked:
            asks.refuse(place, moments[tick])
            due[place] = bisect_left(moments, asks.due(place), tick + 1)
    return len(moments)
