"""When enough of a replica's rows are there again: until then nobody can call it idle."""

from typing import Final

import numpy as np

from watchdogs.evidence import STALE_AFTER
from watchdogs.replay.activity import Activity, Bools, Ints
from watchdogs.replay.rows import widening

CLOCKS: Final = 1e-4
"""Seconds that a history's clock and ours, which counts whole microseconds, may differ."""
FIRST_LOOK: Final = 64
LONGEST_LOOK: Final = 1 << 16


def covered_from(activity: Activity, replica: int, tick: int, window: int, share: float) -> int:
    """The first tick after this one at which a window's rows may be enough and new; the history's end without one.

    `window`: in ticks. `share`: of them that must have been reported.
    """
    end = len(activity.times)
    for part in widening(tick + 1, end, FIRST_LOOK, LONGEST_LOOK):
        enough = _covered(activity, replica, part, window, share)
        at = int(enough.argmax())
        if enough[at]:
            return part.start + at
    return end


def _covered(activity: Activity, replica: int, part: slice, window: int, share: float) -> Bools:
    """Whether what was reported up to each of some ticks is enough, and the newest of it new."""
    begin = max(0, part.start - window)
    there = activity.reported[begin : part.stop, replica]
    places: Ints = np.arange(begin, part.stop, dtype=np.int64)
    newest: Ints = np.maximum.accumulate(np.where(there, places, begin))
    count = np.concatenate(([0], np.cumsum(there)))
    own: Ints = places[part.start - begin :] + 1 - begin
    held = count[own] - count[np.maximum(0, own - window)]
    age = activity.times[part] - activity.times[newest[part.start - begin :]]
    return (held > 0) & (held / window >= share) & (age <= STALE_AFTER * activity.step + CLOCKS)
