"""Pools of recorded replicas played to a rule that sizes them.

Only ticks at which something can change are looked at.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from replay.activity import Activity, Bools
from replay.fleet import Score, begin
from replay.rows import Floats, widening
from replay.series import rounded

FIRST_LOOK: Final = 16
LONGEST_LOOK: Final = 1 << 14
_AT_ONCE: Final = 1 << 16


class PoolRule(Protocol):
    """Says how many replicas a pool is to have now, and which of the ready ones may go."""

    name: str

    def begin(self, pool: Activity, demand: Floats) -> None:
        """The history to come. `demand`: by tick, in replicas' worth."""
        ...

    def target(self, tick: int, ready: int, running: int) -> int: ...

    def rest(self, tick: int, end: int, ready: int, running: int) -> tuple[int, int]:
        """The first tick after this one, `end` at the latest, at which it is to be asked, and its target until then.

        So many are ready and running in between.
        """
        ...

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]: ...

    def refuses(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int] | None:
        """Of candidates of whom it ends none: on whose reports it waits. None: it may end one at the next tick.

        It refuses as long as the candidates are the same and nothing is heard of these.
        """
        ...


def play_pools(activity: Activity, rules: Sequence[PoolRule], cold_start: float, capacity: float) -> Score:
    """Replicas of a pool take each other's work: what is over the capacity of the ready ones is unserved."""
    score, boot = begin(activity, rules[0].name, cold_start)
    assert activity.pools is not None
    shape = (score.ticks, len(activity.pool_names))
    demands, ready = np.zeros(shape), np.zeros(shape, dtype=np.int32)
    for pool, rule in enumerate(rules):
        own = np.flatnonzero(activity.pools == pool)
        # in single precision 0.4 + 0.4 is more than 0.8, and a replica more than is needed would be asked for
        demand = rounded(activity.active[:, own].sum(axis=1, dtype=np.float64))
        demands[:, pool] = demand
        if len(own) == 1:  # no rule gives up the last one
            ready[:, pool] = 1
            continue
        members = activity.of(own)
        rule.begin(members, rounded(demand / capacity))
        _Pool(activity=members, rule=rule, score=score, boot=boot, counts=ready[:, pool]).play()
    score.unserved = _unserved(demands, ready, capacity, activity.step)
    return score


def _unserved(demands: Floats, ready: npt.NDArray[np.int32], capacity: float, step: float) -> float:
    """Replica-seconds over the capacity, added up tick by tick."""
    found = 0.0
    for first in range(0, len(demands), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        over = np.maximum(0.0, demands[part] - capacity * ready[part]) * step
        found = float(np.cumsum(np.concatenate(([found], over.ravel())))[-1])
    return found


def at_rest(activity: Activity) -> Bools:
    """By tick and replica: without work in its newest row and in the one before; not reported is not at rest."""
    quiet = ~activity.work
    quiet[1:] &= ~activity.work[:-1]
    if not activity.reported.all():
        for replica in np.flatnonzero(~activity.reported.all(axis=0)).tolist():
            quiet[:, replica] = _rests(activity.reported[:, replica], activity.work[:, replica])
    return quiet


def _rests(reported: Bools, work: Bools) -> Bools:
    """Of one replica, of which rows are missing. A row that says that it works says so without its other fields."""
    heard = np.flatnonzero(reported | work)
    rests = ~work[heard]
    rests[1:] &= ~work[heard[:-1]]
    if len(heard) and heard[0] > 0:
        rests[0] = False  # one row only; what the history begins with rested before
    found: Bools = np.zeros(len(work), dtype=np.bool_)
    if len(heard):
        found[heard[0] :] = np.repeat(rests, np.diff(np.append(heard, len(work))))
    return found


@dataclass(slots=True)
class _Pool:
    """One pool, as it goes through its history."""

    activity: Activity
    rule: PoolRule
    score: Score
    boot: int
    """Ticks."""
    counts: npt.NDArray[np.int32]
    """How many were ready at each tick: filled as it goes."""
    _running: Bools = field(init=False)
    _ready: Bools = field(init=False)
    _booting: deque[tuple[int, npt.NDArray[np.intp]]] = field(default_factory=deque[tuple[int, npt.NDArray[np.intp]]])
    """Who is ready from which tick on, in order."""
    _up: int = field(init=False)
    _serving: int = field(init=False)
    """How many are ready."""
    _quiet: Bools = field(init=False)
    """By tick and replica: `at_rest`."""

    def __post_init__(self) -> None:
        self._up = self._serving = len(self.activity.replicas)
        self._running: Bools = np.ones(self._up, dtype=np.bool_)
        self._ready = self._running.copy()
        self._quiet = at_rest(self.activity)

    def play(self) -> None:
        """The whole history."""
        tick, ticks, size = 0, self.score.ticks, len(self.activity.replicas)
        while tick < ticks:
            self._booted(tick)
            self.counts[tick] = self._serving
            target = min(self.rule.target(tick, self._serving, self._up), size)
            refused: Sequence[int] = ()
            if target > self._up:
                self._launch(tick, target - self._up)
                self._booted(tick)  # without a cold start
                self.counts[tick] = self._serving
            # a cold start counts from the tick of the launch, and a stop from the next one
            self.score.saved_rows += size - self._up
            if (spare := min(self._up, self._serving) - target) > 0:
                refused = self._stop(tick, spare)
            self._booted(tick + 1)
            following = self._following(tick, refused)
            self.counts[tick + 1 : following] = self._serving
            self.score.saved_rows += (following - tick - 1) * (size - self._up)
            tick = following

    def _following(self, tick: int, refused: Sequence[int]) -> int:
        """The next tick at which something can change. `refused`: candidates of whom none was ended just now."""
        end = min(self._booting[0][0], self.score.ticks) if self._booting else self.score.ticks
        until, target = self.rule.rest(tick, end, self._serving, self._up)
        spare = min(self._up, self._serving) - target
        if spare <= 0 or until == tick + 1:
            return until
        waits = self.rule.refuses(tick, refused, spare) if refused else ()
        if waits is None:
            return tick + 1
        usual = np.zeros_like(self._ready)
        usual[list(refused)] = True
        return self._first(tick + 1, until, usual, waits)

    def _first(self, first: int, end: int, usual: Bools, waits: Sequence[int]) -> int:
        """The first tick whose candidates are others than the usual ones, or at which one of `waits` is heard of."""
        for rows in widening(first, end, FIRST_LOOK, LONGEST_LOOK):
            quiet = self._quiet[rows] & self._ready
            new = (quiet != usual).any(axis=1) | self.activity.reported[rows, waits].any(axis=1)
            at = int(new.argmax())
            if new[at]:
                return rows.start + at
        return end

    def _booted(self, tick: int) -> None:
        while self._booting and self._booting[0][0] <= tick:
            new = self._booting.popleft()[1]
            self._ready[new] = True
            self._serving += len(new)

    def _launch(self, tick: int, count: int) -> None:
        woken = np.flatnonzero(~self._running)[:count]
        self._running[woken] = True
        self._booting.append((tick + self.boot, woken))
        self._up += len(woken)
        self.score.wakes += len(woken)

    def _stop(self, tick: int, spare: int) -> Sequence[int]:
        """End as many; returns the candidates where none of them was ended."""
        candidates = np.flatnonzero(self._ready & self._quiet[tick]).tolist()
        ended = self.rule.victims(tick, candidates, spare) if candidates else ()
        for replica in ended:
            self._running[replica] = self._ready[replica] = False
            self._up, self._serving = self._up - 1, self._serving - 1
            self.score.stops += 1
            # the candidates were quiet: this counts what a rule ends beside them
            self.score.wrong_stops += not self._quiet[tick, replica]
        return () if ended else candidates
