"""Replays pools of recorded replicas against a sizing rule. The scale watchdog decides how many replicas run; the
idle watchdog chooses which to stop.

At each tick, booted replicas become ready, and the rule sets the pool's target. Then replicas are launched, or idle
replicas are stopped. Replicas of a pool share all work; work above the capacity of ready replicas is unserved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, Protocol

import numpy as np

from gpufleet.domain.decisions import Action, ChangeBudget
from gpufleet.domain.policies import IdlePolicy, ScalePolicy
from replay.histories import ActivityHistory, Bools, Ints
from replay.idle import IdleScore, ListedReplica, begin, last_work, moment, observed
from replay.rows import origin
from replay.sizers import ProductionSizer, Sizer, sizer
from watchdogs.idle.decide import decide

GRAIN: Final = 1.0
"""Size of a unit of work, in replicas. The recorded work of one replica is one unit: it fits into one replica."""


class PoolRule(Protocol):
    """Decides the size of a pool, and which idle replicas to stop."""

    name: str
    sizer: Sizer

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]: ...


def rule(name: str, pool: ActivityHistory, idle: IdlePolicy, scale: ScalePolicy, cold_start: float) -> PoolRule:
    """Return the rule with that name, one of `NAMES`."""
    if name != "own":
        return SimpleRule(name, sizer(name, scale, cold_start))
    begins = origin(float(pool.times[0]))
    own = ProductionSizer(policy=scale, cold_start=cold_start, begins=begins, grain=GRAIN)
    return ProductionPoolRule(sizer=own, pool=pool, idle=idle)


@dataclass(slots=True)
class SimpleRule:
    """Stops the first candidates."""

    name: str
    sizer: Sizer

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]:
        return candidates[:count]


@dataclass(slots=True)
class ProductionPoolRule:
    """The production rule: `decide` of the scale watchdog and `decide` of the idle watchdog."""

    sizer: Sizer
    pool: ActivityHistory
    idle: IdlePolicy
    name: str = "own"
    _last: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._last = last_work(self.pool.work, before=-1)
        # the total load decides that a replica stops; the replica itself needs to be idle only in this tick and the
        # last
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
        """Return up to `count` surplus replicas, the longest idle first. It evaluates twice as many, because some may
        not be confirmed as idle.
        """
        last = self._last[tick]
        asked = sorted(candidates, key=lambda replica: (last[replica], replica))[: 2 * count]
        listed = {n: ListedReplica(marked=moment(self.pool, max(0, int(last[n])))) for n in asked}
        seen = observed(self.pool, self.idle, listed, slice(max(0, tick - 1), tick + 1))
        seen = replace(seen, budget=ChangeBudget(per_run=count, per_hour=count))
        decisions = zip(asked, decide(seen, moment(self.pool, tick)).decisions, strict=True)
        return [replica for replica, decision in decisions if decision.action is Action.END]


def play(
    activity: ActivityHistory, rules: Callable[[ActivityHistory], PoolRule], cold_start: float, capacity: float
) -> IdleScore:
    """Replay the whole history. `rules` creates the rule of one pool. `capacity` is the `gpu_active` that one replica
    can serve.
    """
    assert activity.pools is not None
    members = [activity.of(np.flatnonzero(activity.pools == pool)) for pool in range(len(activity.pool_names))]
    playing = [_Pool(activity=own, rule=rules(own), capacity=capacity) for own in members]
    score, boot = begin(activity, playing[0].rule.name, cold_start)
    for tick in range(score.ticks):
        for pool in playing:
            pool.step(tick, boot, score)
    return score


def idle_by_tick(activity: ActivityHistory) -> Bools:
    """Return by tick and replica whether its newest row and the row before show no work. A replica without a report
    is not idle.
    """
    found: Bools = np.zeros_like(activity.work)
    known: Bools = activity.reported | activity.work  # a row that shows work is valid without its other fields
    now = np.zeros(len(activity.replicas), dtype=np.bool_)
    newest = now.copy()
    for tick, there in enumerate(known):
        idle = ~activity.work[tick]
        # before the history starts, replicas are assumed idle
        now[there] = (idle & (newest | (tick == 0)))[there]
        newest[there] = idle[there]
        found[tick] = now
    return found


@dataclass(slots=True)
class _Pool:
    """The state of one pool during the replay."""

    activity: ActivityHistory
    rule: PoolRule
    capacity: float
    _demand: list[float] = field(init=False)
    """By tick."""
    _running: Bools = field(init=False)
    _ready_at: Ints = field(init=False)
    """First tick in which each replica is ready."""
    _idle: Bools = field(init=False)

    def __post_init__(self) -> None:
        # in single precision 0.4 + 0.4 exceeds 0.8, and the rule would request one replica too many
        self._demand = [round(work, 6) for work in self.activity.active.sum(axis=1, dtype=np.float64).tolist()]
        self._running = np.ones(len(self.activity.replicas), dtype=np.bool_)
        self._ready_at = np.zeros(len(self.activity.replicas), dtype=np.int64)
        self._idle = idle_by_tick(self.activity)

    def step(self, tick: int, boot: int, score: IdleScore) -> None:
        """Replay one tick. `boot` is the number of ticks from launch to ready."""
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
        # a launch costs from its own tick; a stop saves from the next tick
        score.saved_rows += size - int(self._running.sum())
        candidates = np.flatnonzero(serves & self._idle[tick]).tolist()
        spare = min(up, ready) - target
        if spare > 0 and candidates:
            self._stop(tick, self.rule.victims(tick, candidates, spare), score)

    def _ready(self, tick: int) -> Bools:
        return self._running & (self._ready_at <= tick)

    def _stop(self, tick: int, ended: Sequence[int], score: IdleScore) -> None:
        for replica in ended:
            self._running[replica] = False
            score.stops += 1
            # all candidates are idle: this counts stops of replicas that are not candidates
            score.wrong_stops += not self._idle[tick, replica]
