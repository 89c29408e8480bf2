"""Pools of recorded replicas played to a rule that sizes them: the scale watchdog says how many, the idle one who.

At each tick those that booted are ready; the rule sets the pool's target; replicas are launched, or replicas at rest
are ended. Replicas of a pool take each other's work: what is over the capacity of the ready ones is unserved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, Protocol

import numpy as np

from gpufleet.domain.decisions import Action, ChangeBudget
from gpufleet.domain.policies import IdlePolicy, ScalePolicy
from replay.histories import ActivityHistory, Bools, Ints
from replay.idle import IdleScore, Listed, begin, last_work, moment, observed
from replay.rows import origin
from replay.sizers import OwnSizer, Sizer, sizer
from watchdogs.idle.decide import decide

GRAIN: Final = 1.0
"""The work of one recorded replica is one piece: it came from one, and fits into one."""


class PoolRule(Protocol):
    """Says how many replicas a pool is to have now, and which of those at rest go."""

    name: str
    sizer: Sizer

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]: ...


def rule(name: str, pool: ActivityHistory, idle: IdlePolicy, scale: ScalePolicy, cold_start: float) -> PoolRule:
    """A rule by its name, one of `NAMES`."""
    if name != "own":
        return SimpleRule(name, sizer(name, scale, cold_start))
    begins = origin(float(pool.times[0]))
    own = OwnSizer(policy=scale, cold_start=cold_start, begins=begins, grain=GRAIN)
    return LivePoolRule(sizer=own, pool=pool, idle=idle)


@dataclass(slots=True)
class SimpleRule:
    """Ends the first ones that may go."""

    name: str
    sizer: Sizer

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]:
        return candidates[:count]


@dataclass(slots=True)
class LivePoolRule:
    """Ours: `decide` of the scale watchdog and `decide` of the idle watchdog."""

    sizer: Sizer
    pool: ActivityHistory
    idle: IdlePolicy
    name: str = "own"
    _last: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._last = last_work(self.pool.work, before=-1)
        # that one is to go is decided by the load of all; who goes needs no more than to be at rest, now and before
        self.idle = replace(
            self.idle,
            window=2 * timedelta(seconds=self.pool.step),
            grace=timedelta(0),
            min_age=timedelta(0),
            coverage=0.0,
            max_stops_per_day=None,
            stop_price=None,
        )

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]:
        """As many as are surplus, the longest idle first. Twice as many are judged: some may not be known to rest."""
        last = self._last[tick]
        asked = sorted(candidates, key=lambda replica: (last[replica], replica))[: 2 * count]
        listed = {n: Listed(marked=moment(self.pool, max(0, int(last[n])))) for n in asked}
        seen = observed(self.pool, self.idle, listed, slice(max(0, tick - 1), tick + 1))
        seen = replace(seen, budget=ChangeBudget(per_run=count, per_hour=count))
        decisions = zip(asked, decide(seen, moment(self.pool, tick)).decisions, strict=True)
        return [replica for replica, decision in decisions if decision.action is Action.END]


def play(
    activity: ActivityHistory, rules: Callable[[ActivityHistory], PoolRule], cold_start: float, capacity: float
) -> IdleScore:
    """The whole history. `rules`: makes the rule of one pool. `capacity`: `gpu_active` that one replica carries."""
    assert activity.pools is not None
    members = [activity.of(np.flatnonzero(activity.pools == pool)) for pool in range(len(activity.pool_names))]
    playing = [_Pool(activity=own, rule=rules(own), capacity=capacity) for own in members]
    score, boot = begin(activity, playing[0].rule.name, cold_start)
    for tick in range(score.ticks):
        for pool in playing:
            pool.step(tick, boot, score)
    return score


def at_rest(activity: ActivityHistory) -> Bools:
    """By tick and replica: without work in its newest row and in the one before; not reported is not at rest."""
    found: Bools = np.zeros_like(activity.work)
    heard: Bools = activity.reported | activity.work  # a row that says that it works says so without its other fields
    now = np.zeros(len(activity.replicas), dtype=np.bool_)
    newest = now.copy()
    for tick, there in enumerate(heard):
        idle = ~activity.work[tick]
        # what the history begins with rested before
        now[there] = (idle & (newest | (tick == 0)))[there]
        newest[there] = idle[there]
        found[tick] = now
    return found


@dataclass(slots=True)
class _Pool:
    """One pool, as it goes through its history."""

    activity: ActivityHistory
    rule: PoolRule
    capacity: float
    _demand: list[float] = field(init=False)
    """By tick."""
    _running: Bools = field(init=False)
    _ready_at: Ints = field(init=False)
    """Tick from which each serves."""
    _rests: Bools = field(init=False)

    def __post_init__(self) -> None:
        # in single precision 0.4 + 0.4 is more than 0.8, and a replica more than is needed would be asked for
        self._demand = [round(work, 6) for work in self.activity.active.sum(axis=1, dtype=np.float64).tolist()]
        self._running = np.ones(len(self.activity.replicas), dtype=np.bool_)
        self._ready_at = np.zeros(len(self.activity.replicas), dtype=np.int64)
        self._rests = at_rest(self.activity)

    def step(self, tick: int, boot: int, score: IdleScore) -> None:
        """One tick. `boot`: ticks until a launched replica serves."""
        size, demand = len(self._running), self._demand[tick]
        up = int(self._running.sum())
        ready = int(self._ready(tick).sum())
        at = float(self.activity.times[tick])
        target = min(self.rule.sizer.target(at, round(demand / self.capacity, 6), ready, up), size)
        woken = np.flatnonzero(~self._running)[: max(0, target - up)]
        self._running[woken], self._ready_at[woken] = True, tick + boot
        score.wakes += len(woken)
        serves = self._ready(tick)
        score.unserved += max(0.0, demand - self.capacity * int(serves.sum())) * self.activity.step
        # a cold start counts from the tick of the launch, and a stop from the next one
        score.saved_rows += size - int(self._running.sum())
        candidates = np.flatnonzero(serves & self._rests[tick]).tolist()
        spare = min(up, ready) - target
        if spare > 0 and candidates:
            self._stop(tick, self.rule.victims(tick, candidates, spare), score)

    def _ready(self, tick: int) -> Bools:
        return self._running & (self._ready_at <= tick)

    def _stop(self, tick: int, ended: Sequence[int], score: IdleScore) -> None:
        for replica in ended:
            self._running[replica] = False
            score.stops += 1
            # the candidates are at rest: this counts what a rule ends beside them
            score.wrong_stops += not self._rests[tick, replica]
