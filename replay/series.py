"""What the scale watchdog is told of a pool's demand, of all ticks at once: number by number what `forecast` says.

`forecast` takes one look after the other; a history is known whole. Sums are added in the same order, so that not
even their rounding differs (tests/replay/test_series.py).
"""

import math
from typing import Final

import numpy as np

from replay.activity import Bools, Ints
from replay.rows import Floats
from watchdogs.scale.forecast import BINS, LEARNED_FROM, PER_UNIT, Swings

DAY_S: Final = 86400.0
DAYS: Final = (1, 2, 7)
MILLIONTH: Final = 1e6
_NEAR: Final = 1e-3
"""A number this near to a rounding's edge is rounded by Python itself: numpy may differ in the last bit."""

_AT_ONCE: Final = 1 << 18
"""Looks: what is made on the way takes memory."""


def rounded(numbers: Floats) -> Floats:
    """Each as `round(number, 6)` gives it."""
    scaled = numbers * MILLIONTH
    whole = np.rint(scaled)
    found: Floats = whole / MILLIONTH
    # large ones have no such digits, or lose them when they are scaled
    doubtful = (np.abs(scaled - np.floor(scaled) - 0.5) < _NEAR) | (np.abs(scaled) > 1e12)
    for place in np.flatnonzero(doubtful).tolist():
        found[place] = round(float(numbers[place]), 6)
    return found


def first_within(times: Floats, span: float, inclusive: bool = True) -> Ints:
    """By moment the first one that is no further back than a span; not `inclusive`: nearer than that."""

    def gone(first: Ints) -> Bools:
        back = times - times[first]
        return back > span if inclusive else back >= span

    # seconds have fractions: the difference decides, as it does look by look, and the search only comes near
    found = np.searchsorted(times, times - span, side="left").astype(np.int64)
    np.minimum(found, np.arange(len(times)), out=found)
    while (early := (found > 0) & ~gone(np.maximum(found - 1, 0))).any():
        found[early] -= 1
    while (late := gone(found)).any():
        found[late] += 1
    return found


def highest(numbers: Floats, first: Ints, last: Ints) -> Floats:
    """The highest of each stretch, both ends included; NaN where `last` is before `first`."""
    found: Floats = np.full(len(first), np.nan)
    lengths = last - first + 1
    tops, size = numbers, 1  # the highest of as many from each place on
    longest = int(lengths.max(initial=0))
    while size <= longest:
        which = np.flatnonzero((lengths >= size) & (lengths < 2 * size))
        if len(which):
            found[which] = np.maximum(tops[first[which]], tops[last[which] - size + 1])
        if 2 * size <= longest:
            tops = np.maximum(tops[:-size], tops[size:])
        size *= 2
    return found


def peaks(times: Floats, demand: Floats, span: float) -> Floats:
    """`forecast.Peak`."""
    return highest(demand, first_within(times, span), np.arange(len(times)))


def levels(times: Floats, demand: Floats, span: float) -> Floats:
    """`forecast.Level`: each moment's demand is added, then those that are over are taken off, one by one."""
    first, count = first_within(times, span), len(times)
    places = np.arange(count)
    before = np.concatenate(([0], first[:-1]))
    steps = np.zeros(count + int(first[-1]))
    steps[places + before] = demand
    over = np.arange(int(first[-1]))
    steps[over + 1 + np.repeat(places, first - before)] = -demand[: len(over)]
    np.cumsum(steps, out=steps)
    found: Floats = np.maximum(0.0, steps[places + first] / (places - first + 1))
    return found


def expected(times: Floats, demand: Floats, ahead: float) -> Floats:
    """`forecast.Pattern`; minus infinity where it has nothing to say."""
    found: Floats = np.full(len(times), -np.inf)
    begin = int(np.searchsorted(times - times[0] >= 2 * DAY_S, True))
    for first in range(begin, len(times), _AT_ONCE):
        own = np.arange(first, min(first + _AT_ONCE, len(times)))
        tops = np.stack([_earlier(times, demand, own, days * DAY_S, ahead) for days in DAYS], axis=1)
        tops.sort(axis=1)  # what is not there comes last
        there = len(DAYS) - np.count_nonzero(np.isnan(tops), axis=1)
        middle = tops[np.arange(len(own)), np.maximum(there - 1, 0) // 2]
        found[own] = np.where(there > 0, middle, -np.inf)
    return found


def _earlier(times: Floats, demand: Floats, own: Ints, back: float, ahead: float) -> Floats:
    """The highest demand from so many seconds before on, of some moments in a row; NaN where nothing is known."""
    then = times[own] - back
    first = np.searchsorted(times, then, side="left")
    last = np.minimum(np.searchsorted(times, then + ahead, side="right") - 1, own)
    whole = slice(int(first[0]), int(last[-1]) + 1)
    return np.where(times[0] <= then, highest(demand[whole], first - whole.start, last - whole.start), np.nan)


def swings(times: Floats, demand: Floats, level: Floats, horizon: float, grain: float) -> Floats:
    """`forecast.Swings`, asked after each look."""
    learned = Swings(horizon=horizon, grain=grain)
    before = first_within(times, horizon, inclusive=False) - 1
    usual = level[np.maximum(before, 0)]
    looks = np.flatnonzero((before >= 0) & (usual > 0) & (times - times[0] >= LEARNED_FROM))
    found: Floats = np.full(len(times), learned.expected())
    if len(looks):
        quantiles: Floats = np.empty(len(looks))
        for first in range(0, len(looks), _AT_ONCE):
            some = looks[first : first + _AT_ONCE]
            beyond = np.maximum(0.0, (demand[some] - usual[some]) / np.sqrt(usual[some] * grain))
            steps, which = np.unique(times[some] - times[some - 1], return_inverse=True)
            quantiles[first : first + len(some)] = learned.learn(_places(beyond), steps.tolist(), which.tolist())
        found[looks[0] :] = np.repeat(quantiles, np.diff(np.append(looks, len(times))))
    return found


def _places(numbers: Floats) -> list[int]:
    """The bins of `forecast.Faded`."""
    scaled = np.log1p(numbers) * PER_UNIT
    places = np.minimum(BINS - 1, scaled.astype(np.int64))
    doubtful = (np.abs(scaled - np.rint(scaled)) < _NEAR) & (numbers > 0)
    for place in np.flatnonzero(doubtful).tolist():
        places[place] = min(BINS - 1, int(math.log1p(float(numbers[place])) * PER_UNIT))
    return places.tolist()
