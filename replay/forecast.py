"""What a history says of a pool's demand, look by look: its rises, swings, peak, level and daily pattern. Pure.

Production asks its metrics store the same questions (`watchdogs/scale/pressure.py`).
"""

import bisect
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from watchdogs.scale.decide import CHANCE
from watchdogs.scale.pressure import RISE_QUANTILE, SWING_QUANTILE, usual

HALF_LIFE: Final = 12 * 3600.0
"""Seconds after which a rise counts half."""
HEAVY: Final = 1e12
"""The weight of a number from which on all are counted anew: floats end somewhere."""
BINS: Final = 800
PER_UNIT: Final = 50
"""Bins per unit of log(1 + rise): two percent each, up to some millions of replicas."""
PRIOR: Final = 1.0
"""The rise that is expected of a pool nobody knows."""
PRIOR_WEIGHT: Final = 30.0
"""Moments that the prior counts as much as."""
USUAL_SWING: Final = 0.5
SWING_PRIOR: Final = 180.0
"""Moments that are taken to have been usual, before any was seen; some more were as far out as chance goes
(`CHANCE`), and decide as long."""
LEARNED_FROM: Final = 3600.0
"""Seconds of history before which its level says nothing."""


@dataclass(slots=True)
class Faded:
    """Numbers seen so far, of which the older count less, and their quantiles."""

    share: float
    """Of the quantile that is asked for."""
    _counts: list[float] = field(default_factory=lambda: [0.0] * BINS)
    _weight: float = 1.0
    _total: float = 0.0
    _bin: int = 0
    """Where the last answer was found: the next one is near."""
    _below: float = 0.0
    """Weight in all bins before it."""

    def put(self, number: float, weight: float = 1.0) -> None:
        """A number not below 0, with as much weight as so many others of now."""
        place = min(BINS - 1, int(math.log1p(number) * PER_UNIT))
        self._counts[place] += self._weight * weight
        self._total += self._weight * weight
        if place < self._bin:
            self._below += self._weight * weight
        if self._weight > HEAVY:
            self._counts = [count / self._weight for count in self._counts]
            self._total, self._weight = self._total / self._weight, 1.0
            self._bin, self._below = 0, 0.0

    def passed(self, seconds: float) -> None:
        """Time went by: a newer number weighs more, the same as if all older ones faded."""
        self._weight *= _fade(seconds)

    def quantile(self) -> float:
        """The upper edge of its bin."""
        wanted = self.share * self._total
        while self._bin > 0 and self._below >= wanted:
            self._bin -= 1
            self._below -= self._counts[self._bin]
        while self._bin < BINS - 1 and self._below + self._counts[self._bin] < wanted:
            self._below += self._counts[self._bin]
            self._bin += 1
        return math.expm1((self._bin + 1) / PER_UNIT)


@dataclass(slots=True)
class Rises:
    """The rises seen so far; one `saw` per look."""

    horizon: float
    """Seconds from the decision to a ready replica."""
    _seen: Faded = field(default_factory=lambda: Faded(share=RISE_QUANTILE))
    _open: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]])
    """Moments whose horizon is not over, with the demand then."""
    _tops: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]])
    """Demand since, falling: the first is the highest of the horizon."""

    def __post_init__(self) -> None:
        self._seen.put(PRIOR, PRIOR_WEIGHT)

    def saw(self, at: float, demand: float) -> None:
        """Demand at a moment, in seconds; moments come in order."""
        while self._tops and self._tops[-1][1] <= demand:
            self._tops.pop()
        self._tops.append((at, demand))
        self._open.append((at, demand))
        while self._open and at - self._open[0][0] >= self.horizon:
            began, then = self._open.popleft()
            while self._tops[0][0] < began:
                self._tops.popleft()
            if len(self._open) > 0:
                self._seen.passed(self._open[0][0] - began)
            self._seen.put(max(0.0, self._tops[0][1] - then))

    def expected(self) -> float:
        """What to be ready for."""
        return self._seen.quantile()


@dataclass(slots=True)
class Swings:
    """How far demand went beyond its level of a start before, in roots of that level's pieces; one `saw` per look."""

    horizon: float
    """Seconds from the decision to a ready replica."""
    grain: float
    """Share of a replica that one piece of work takes."""
    _seen: Faded = field(default_factory=lambda: Faded(share=SWING_QUANTILE))
    _levels: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]])
    """Of the moments whose horizon is not over."""
    _before: tuple[float, float] | None = None
    """Moment and level a horizon ago."""
    _began: float | None = None

    def __post_init__(self) -> None:
        self._seen.put(USUAL_SWING, SWING_PRIOR)
        # twice as many as decide the quantile: it takes as many moments again until they no longer do
        self._seen.put(CHANCE, 2 * SWING_PRIOR * (1 - SWING_QUANTILE))

    def saw(self, at: float, demand: float, level: float) -> None:
        """Demand and its level at a moment, in seconds; moments come in order."""
        began = self._began = at if self._began is None else self._began
        last = self._levels[-1][0] if self._levels else at
        while self._levels and at - self._levels[0][0] >= self.horizon:
            self._before = self._levels.popleft()
        self._levels.append((at, level))
        if self._before is None or self._before[1] <= 0 or at - began < LEARNED_FROM:
            return
        self._seen.passed(at - last)
        self._seen.put(max(0.0, (demand - self._before[1]) / math.sqrt(self._before[1] * self.grain)))

    def expected(self) -> float:
        """What to be ready for."""
        return self._seen.quantile()


@dataclass(slots=True)
class Peak:
    """The highest demand over a span that ends now."""

    span: float
    _tops: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]])

    def saw(self, at: float, demand: float) -> float:
        """The peak, this moment included."""
        while self._tops and self._tops[-1][1] <= demand:
            self._tops.pop()
        self._tops.append((at, demand))
        while at - self._tops[0][0] > self.span:
            self._tops.popleft()
        return self._tops[0][1]


@dataclass(slots=True)
class Level:
    """The mean demand over a span that ends now."""

    span: float
    _seen: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]])
    _sum: float = 0.0

    def saw(self, at: float, demand: float) -> float:
        """The mean, this moment included."""
        self._seen.append((at, demand))
        self._sum += demand
        while at - self._seen[0][0] > self.span:
            self._sum -= self._seen.popleft()[1]
        return max(0.0, self._sum / len(self._seen))


@dataclass(slots=True)
class Pattern:
    """Demand at the same time of the day before, and its week's same day where there is one."""

    ahead: float
    _at: list[float] = field(default_factory=list[float])
    _demand: list[float] = field(default_factory=list[float])

    def saw(self, at: float, demand: float) -> None:
        self._at.append(at)
        self._demand.append(demand)

    def expected(self, now: float) -> float | None:
        """The median of what earlier days had within `ahead` of this time; None before two whole days."""
        if not self._at or now - self._at[0] < 2 * 86400:
            return None
        found: list[float] = []
        for days in (1, 2, 7):
            first = bisect.bisect_left(self._at, now - days * 86400)
            last = bisect.bisect_right(self._at, now - days * 86400 + self.ahead)
            if first < last and self._at[0] <= now - days * 86400:
                found.append(max(self._demand[first:last]))
        return usual(found)


def _fade(seconds: float) -> float:
    return 2 ** (seconds / HALF_LIFE)
