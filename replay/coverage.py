"""When enough of a replica's rows are there again: until then nobody can call it idle."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gpufleet.domain.evidence import STALE_AFTER
from replay.activity import Activity, Bools, Ints
from replay.rests import Span
from replay.rows import CLOCKS, widening

FIRST_LOOK: Final = 64
LONGEST_LOOK: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a look sees of a replica."""

    span: Span
    rows: int
    """That are expected of it."""
    share: float
    """Of them that must have been reported."""


def covered_from(activity: Activity, replica: int, tick: int, window: Window) -> int:
    """The first tick after this one at which a window's rows may be enough and new; the history's end without one."""
    end = len(activity.times)
    for part in widening(tick + 1, end, FIRST_LOOK, LONGEST_LOOK):
        enough = _covered(activity, replica, part, window)
        at = int(enough.argmax())
        if enough[at]:
            return part.start + at
    return end


def _covered(activity: Activity, replica: int, part: slice, window: Window) -> Bools:
    """Whether what was reported up to each of some ticks is enough, and the newest of it new."""
    ticks: Ints = np.arange(part.start, part.stop, dtype=np.int64)
    first = window.span.first(ticks)
    begin = int(first[0])
    there = activity.reported[begin : part.stop, replica]
    places: Ints = np.arange(begin, part.stop, dtype=np.int64)
    newest: Ints = np.maximum.accumulate(np.where(there, places, begin))
    count = np.concatenate(([0], np.cumsum(there)))
    held = count[ticks + 1 - begin] - count[first - begin]
    age = activity.times[part] - activity.times[newest[part.start - begin :]]
    return (held > 0) & (held / window.rows >= window.share) & (age <= STALE_AFTER * activity.step + CLOCKS)
