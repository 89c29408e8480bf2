"""When each recorded replica worked last, and when something can change: in most ticks of a history nothing does."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from replay.activity import Bools, Ints
from replay.rows import CLOCKS, Floats


class Span(Protocol):
    """How far back a look goes."""

    def first(self, ticks: Ints) -> Ints:
        """The first tick that is looked at from each of these."""
        ...

    def whole(self, begins: Ints) -> Ints:
        """From which tick on a look sees nothing of what was before each of these."""
        ...


@dataclass(frozen=True, slots=True)
class Ticks:
    """So many ticks, at least one, however long they are."""

    count: int

    def first(self, ticks: Ints) -> Ints:
        return np.maximum(0, ticks - self.count + 1)

    def whole(self, begins: Ints) -> Ints:
        return begins + self.count - 1


@dataclass(frozen=True, slots=True)
class Clock:
    """So many seconds, as a store of metrics looks back: what nobody recorded is not made up for by older rows."""

    times: Floats
    seconds: float

    def first(self, ticks: Ints) -> Ints:
        return np.searchsorted(self.times, self.times[ticks] - self.seconds + CLOCKS, side="right")

    def whole(self, begins: Ints) -> Ints:
        last = self.times[np.maximum(0, begins - 1)]
        return np.where(begins == 0, 0, np.searchsorted(self.times, last + self.seconds - CLOCKS))


@dataclass(slots=True)
class Rests:
    """The rests of all replicas, each of which counts as long when a look back sees no work."""

    work: Bools
    """By tick and replica."""
    span: Span
    before: int
    """The tick before the first one that counts as everybody's last work."""
    last: Ints = field(init=False)
    """Tick of each one's last work, of the ticks looked at."""
    _seen: int = -1
    _events: Ints = field(init=False)
    """Ticks at which a rest has become long, or a long one has ended, ascending."""

    def __post_init__(self) -> None:
        self.last = np.full(self.work.shape[1], self.before, dtype=np.int64)
        found = [_events(self.work[:, replica], self.span) for replica in range(self.work.shape[1])]
        self._events = np.unique(np.concatenate(found))

    def look(self, tick: int) -> None:
        """Take in everything up to this tick."""
        if tick <= self._seen:
            return
        new = self.work[self._seen + 1 : tick + 1]
        self._seen = tick
        if len(new) == 1:
            self.last[new[0]] = tick
            return
        worked = new.any(axis=0)
        self.last[worked] = tick - new[::-1, worked].argmax(axis=0)

    def quiet(self, tick: int) -> Bools:
        """Who has rested for long at a tick that was looked at."""
        return self.last < self.span.first(np.array([tick]))

    def change(self, tick: int) -> int:
        """The first tick after this one at which a rest has become long, or a long one has ended."""
        at = int(np.searchsorted(self._events, tick, side="right"))
        return int(self._events[at]) if at < len(self._events) else len(self.work)


def _events(column: Bools, span: Span) -> Ints:
    """Of one replica."""
    padded = np.concatenate(([True], column, [True]))
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    begins, ends = edges[::2], edges[1::2]
    whole = span.whole(begins)
    # one that the history begins with may have begun before
    long = (whole < ends) | (begins == 0)
    return np.concatenate((whole[long], ends[long]))


def next_work(work: Bools, replica: int, tick: int) -> int:
    """The first tick after this one at which a replica works; the history's end without one."""
    first, span = tick + 1, 1024
    while first < len(work):
        part = work[first : first + span, replica]
        at = int(part.argmax())
        if part[at]:
            return first + at
        first, span = first + span, 2 * span
    return len(work)
