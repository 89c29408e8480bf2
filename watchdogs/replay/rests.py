"""When each recorded replica worked last, and when something can change: in most ticks of a history nothing does."""

from dataclasses import dataclass, field

import numpy as np

from watchdogs.replay.activity import Bools, Ints


@dataclass(slots=True)
class Rests:
    """The rests of all replicas, each of which counts as long from so many ticks without work."""

    work: Bools
    """By tick and replica."""
    least: int
    """Ticks, at least one."""
    before: int
    """The tick before the first one that counts as everybody's last work."""
    last: Ints = field(init=False)
    """Tick of each one's last work, of the ticks looked at."""
    _seen: int = -1
    _events: Ints = field(init=False)
    """Ticks at which a rest has become long, or a long one has ended, ascending."""

    def __post_init__(self) -> None:
        self.last = np.full(self.work.shape[1], self.before, dtype=np.int64)
        found = [_events(self.work[:, replica], self.least) for replica in range(self.work.shape[1])]
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
        return tick - self.last >= self.least

    def change(self, tick: int) -> int:
        """The first tick after this one at which a rest has become long, or a long one has ended."""
        at = int(np.searchsorted(self._events, tick, side="right"))
        return int(self._events[at]) if at < len(self._events) else len(self.work)


def _events(column: Bools, least: int) -> Ints:
    """Of one replica."""
    padded = np.concatenate(([True], column, [True]))
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    begins, ends = edges[::2], edges[1::2]
    # one that the history begins with may have begun before
    long = (ends - begins >= least) | (begins == 0)
    return np.concatenate((begins[long] + least - 1, ends[long]))


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
