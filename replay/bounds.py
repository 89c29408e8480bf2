"""Between which demands a target stays as it is, found by asking `decide`: at most ticks it need not be asked again.

More demand never asks for fewer replicas (tests/watchdogs/test_scale_monotone.py). So what asks for no more at one
demand asks for no more at any lower one, and what gives nothing up at one gives nothing up at any higher one.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from replay.activity import Bools
from replay.rows import Floats, widening

Point = tuple[float, ...]
"""Demand at one tick, part by part; each part asks for more the higher it is."""
Ask = Callable[[Point], int]
"""The target that `decide` would set at a demand, everything else as it is."""

LEARN_AFTER: Final = 32
"""Asked in vain as often as this, a limit is worth looking for: it takes some dozens of questions."""
HALVINGS: Final = 16
"""A limit is found within 1/65536 of what the history has."""
MOST: Final = 8
"""Limits that are kept for one state; the oldest one goes."""
FIRST_LOOK: Final = 32
LONGEST_LOOK: Final = 1 << 16


@dataclass(slots=True)
class _Known:
    """What is known of one state."""

    asked: int = 0
    ceilings: list[Point] = field(default_factory=list[Point])
    """At none of these, nor below, more is asked for."""
    floors: list[Point] = field(default_factory=list[Point])
    """At none of these, nor above, something is given up."""


@dataclass(slots=True)
class Bounds:
    """Of one pool's history."""

    demand: Floats
    """By part and tick."""
    _least: Point = field(init=False)
    _most: Point = field(init=False)
    _known: dict[Hashable, _Known] = field(default_factory=dict[Hashable, _Known])

    def __post_init__(self) -> None:
        self._least = tuple(self.demand.min(axis=1).tolist())
        self._most = tuple(self.demand.max(axis=1).tolist())

    def at(self, tick: int) -> Point:
        """The demand of a tick."""
        return tuple(self.demand[:, tick].tolist())

    def stayed(self, state: Hashable, tick: int, target: int, ask: Ask) -> None:
        """`decide` was asked at a tick and left the target as it is.

        `state`: all that it was told beside the demand, the target included.
        """
        known = self._known.setdefault(state, _Known())
        point = self.at(tick)
        under = any(all(x <= limit for x, limit in zip(point, box, strict=True)) for box in known.ceilings)
        over = any(all(x >= limit for x, limit in zip(point, box, strict=True)) for box in known.floors)
        if under and over:
            return
        known.asked += 1
        if known.asked < LEARN_AFTER:
            return
        known.asked = 0
        if not under:
            box = _reach(point, self._most, lambda p: ask(p) <= target, range(len(point)))
            known.ceilings = [box, *known.ceilings][:MOST]
        if not over:
            # any part may keep what there is: the last one goes first, and the first one stays where it must
            box = _reach(point, self._least, lambda p: ask(p) >= target, reversed(range(len(point))))
            known.floors = [box, *known.floors][:MOST]

    def leaves(self, state: Hashable, tick: int, end: int) -> int:
        """The first tick after this one, or `end`, of which it is not known that the target stays."""
        known = self._known.get(state)
        if known is None or not known.ceilings or not known.floors:
            return min(tick + 1, end)
        for part in widening(tick + 1, end, FIRST_LOOK, LONGEST_LOOK):
            stays = _within(self.demand[:, part], known)
            out = int(stays.argmin())
            if not stays[out]:
                return part.start + out
        return end


def _within(part: Floats, known: _Known) -> Bools:
    """At which of some ticks the target is known to stay."""
    under: Bools = _in_one(part <= np.array(known.ceilings)[:, :, None])
    over: Bools = _in_one(part >= np.array(known.floors)[:, :, None])
    return np.logical_and(under, over)


def _in_one(limits: Bools) -> Bools:
    """Where every part keeps to one of the limits; by limit, part and tick."""
    return np.logical_or.reduce(np.logical_and.reduce(limits, axis=1), axis=0)


def _reach(start: Point, ends: Point, holds: Callable[[Point], bool], order: Iterable[int]) -> Point:
    """As far from a point towards the ends as something holds, part by part."""
    found = list(start)
    for part in order:
        near, far = found[part], ends[part]
        found[part] = far
        if near == far or holds(tuple(found)):
            continue
        if not np.isfinite(near):  # nothing was said: there are no halves of that
            found[part] = 0.0
            if not holds(tuple(found)):
                found[part] = near
                continue
            near = 0.0
        if not np.isfinite(far):
            found[part] = far = 0.0
            if holds(tuple(found)):
                continue
        for _ in range(HALVINGS):
            found[part] = (near + far) / 2
            near, far = (found[part], far) if holds(tuple(found)) else (near, found[part])
        found[part] = near
    return tuple(found)
