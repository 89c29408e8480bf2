"""How long an instance must have been idle before its end is worth a stop, learned from past gaps. Pure.

A stop costs a cold start, so people allow a few for each instance and day (`max_stops_per_day`), and they shall go to
the longest gaps. For every timer of a grid it is known what it would have saved and how often it would have stopped:
of each gap that ended, and of those that are open so far. Each instance gets the timer that is best for its own past,
filled up with its pool's, at the one price of a stop at which the pool as a whole keeps to its budget.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

TIMERS: Final[Matrix] = 60.0 * np.array(
    [
        5,
        10,
        15,
        20,
        25,
        30,
        35,
        40,
        45,
        50,
        55,
        60,
        65,
        70,
        80,
        90,
        105,
        120,
        140,
        160,
        190,
        220,
        260,
        300,
        360,
        480,
        600,
        720,
        1080,
        1440.0,
    ]
)
"""Seconds."""
START: Final = 3600.0
"""The timer of a pool nobody knows: what operators set most often."""
TAIL: Final = 1.4
"""Exponent of the gaps of such a pool, a Pareto tail."""
PRIOR_DAYS: Final = 10.0
"""Days of instances that this guess counts as much as."""
POOL_DAYS: Final = 1.0
"""Days of its pool's average that fill up an instance's own past."""
MARGIN: Final = 0.92
"""Share of the budget that is planned for: what will come is not what was."""
DAY: Final = 86400.0


@dataclass(slots=True)
class Patience:
    """The gaps of a pool's instances, by a number for each."""

    instances: int
    stops_per_day: float
    """Budget for each instance and day."""
    least: float
    """Seconds; sooner nothing is ended, whatever was learned."""
    _stops: Matrix = field(init=False)
    _saved: Matrix = field(init=False)
    """Days, by instance and timer."""

    def __post_init__(self) -> None:
        self._stops = np.zeros((self.instances, len(TIMERS)))
        self._saved = np.zeros((self.instances, len(TIMERS)))

    def saw(self, instance: int, gap: float) -> None:
        """A gap ended after so many seconds."""
        over = np.maximum(0.0, gap - TIMERS)
        self._stops[instance] += over > 0
        self._saved[instance] += over / DAY

    def cut(self, instance: int, gap: float) -> None:
        """A gap was cut off after so many seconds by an end: it is taken to have gone on as the prior's tail does."""
        reached = np.minimum(1.0, (gap / TIMERS) ** TAIL)
        rest = np.maximum(0.0, gap - TIMERS) + np.maximum(gap, TIMERS) / (TAIL - 1)
        self._stops[instance] += reached
        self._saved[instance] += reached * rest / DAY

    def timers(self, days: float, open_gaps: Matrix, done: float | None) -> Matrix:
        """Seconds of idleness after which each instance is to be ended.

        `days`: since the first gap could be seen. `open_gaps`: seconds for which each has been idle by now, 0 if it
        works. `done`: stops made in `days`, all instances: what was not spent is spent later; None: it lapses.
        """
        over = np.maximum(0.0, open_gaps[:, None] - TIMERS)
        stops, saved = self._stops + (over > 0), self._saved + over / DAY
        guess = self.stops_per_day * (START / TIMERS) ** TAIL
        whole = days * self.instances + PRIOR_DAYS
        usual_stops = (stops.sum(0) + PRIOR_DAYS * guess) / whole
        usual_saved = (saved.sum(0) + PRIOR_DAYS * guess * TIMERS / DAY / (TAIL - 1)) / whole
        own_stops, own_saved = stops + POOL_DAYS * usual_stops, saved + POOL_DAYS * usual_saved
        allowed = self.stops_per_day * MARGIN
        # what was spent beyond the plan is taken from what is left of it, over the day that comes
        spent = allowed * days if done is None else done / self.instances
        ahead = max(0.0, allowed + (allowed * days - spent))
        planned = (days + POOL_DAYS) * ahead * self.instances
        usable = np.greater_equal(TIMERS, self.least)
        low, high = 0.0, 2.0
        for _ in range(30):
            price = (low + high) / 2
            chosen = np.argmax(np.where(usable, own_saved - price * own_stops, -np.inf), axis=1)
            if own_stops[np.arange(self.instances), chosen].sum() > planned:
                low = price
            else:
                high = price
        best = np.argmax(np.where(usable, own_saved - high * own_stops, -np.inf), axis=1)
        return np.maximum(TIMERS[best], self.least)
