"""The rules that size recorded pools: ours, which is production's `decide` of the scale watchdog, and others."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import ceil, isfinite
from typing import Final

import numpy as np

from gpufleet.domain.decisions import Action
from gpufleet.domain.policies import IdlePolicy, ScalePolicy
from replay import idle_rules, series
from replay.activity import Activity, Ints
from replay.bounds import Bounds, Point
from replay.pools import FIRST_LOOK, LONGEST_LOOK, PoolRule
from replay.rests import Ticks
from replay.rows import EPOCH, Floats, origin, widening
from watchdogs.scale.decide import decide
from watchdogs.scale.forecast import LEARNED_FROM, Level, Pattern, Peak, Rises, Swings
from watchdogs.scale.hours import active
from watchdogs.scale.view import LEVEL_SPAN, Demand, PoolView, Pressure

TIMERS: Final = {"timer-15m": 900.0, "timer-30m": 1800.0, "timer-60m": 3600.0}
NAMES: Final = ("own", *TIMERS, "queue-threshold")
MOST: Final = 1_000_000
GRAIN: Final = 1.0
CALM: Final = 300.0
"""Seconds for which a queue-threshold rule waits before it gives a replica up."""

ROUNDING: Final = 5e-7
"""Replicas that a demand may be off, as a sum of fractions: it counts in millionths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What waits."""

    requests: float = 0.0
    replica_s: float = 0.0
    """Seconds that one replica would need for it."""


EMPTY: Final = Queue()


def needed(demand: float) -> int:
    """The replicas that a demand needs."""
    return ceil(demand - ROUNDING)


def sizer(name: str, scale: ScalePolicy, cold_start: float, step: float, begins: datetime = EPOCH) -> "Sizer":
    """How a rule sizes a pool, look by look; a rule by its name, one of `NAMES`. `begins`: its first moment."""
    if name == "own":
        return OwnSizer(policy=scale, cold_start=cold_start, step=step, begins=begins)
    return Threshold() if name == "queue-threshold" else HighestOf(span=TIMERS[name])


def rule(name: str, activity: Activity, idle: IdlePolicy, scale: ScalePolicy, cold_start: float) -> PoolRule:
    """A rule by its name, one of `NAMES`."""
    if name == "own":
        return OwnPoolRule(scale=scale, idle=idle, cold_start=cold_start, step=activity.step)
    return ThresholdRule() if name == "queue-threshold" else HighestRule(name=name, span=TIMERS[name])


def wanted(view: PoolView, at: float, since: datetime = EPOCH) -> int:
    """The target after `decide` has looked, so many seconds after a moment."""
    decision = decide([view], since + timedelta(seconds=at)).decisions[0]
    if decision.action is Action.RETARGET and decision.to_size is not None:
        return decision.to_size
    return view.target


@dataclass(slots=True)
class OwnSizer:
    """Production's `decide` of the scale watchdog, where nobody knows how large a piece of work is."""

    policy: ScalePolicy
    cold_start: float
    step: float
    begins: datetime = EPOCH
    """When the history does, on the clock."""
    _target: int | None = None
    _rises: Rises = field(init=False)
    _peak: Peak = field(init=False)
    _pattern: Pattern = field(init=False)
    _level: Level = field(init=False)
    _swings: Swings = field(init=False)
    _began: float | None = None

    def __post_init__(self) -> None:
        ahead = self.cold_start + self.step
        self._rises = Rises(horizon=ahead)
        self._swings = Swings(horizon=ahead, grain=GRAIN)
        self._peak = Peak(span=self.policy.down_after.total_seconds())
        self._pattern = Pattern(ahead=ahead)
        self._level = Level(span=LEVEL_SPAN.total_seconds())

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        self._rises.saw(at, demand)
        self._pattern.saw(at, demand)
        peak = self._peak.saw(at, demand)
        level = self._level.saw(at, demand)
        self._swings.saw(at, demand, level)
        self._began = at if self._began is None else self._began
        before = running if self._target is None else self._target
        view = PoolView(
            name="replay",
            policy=self.policy,
            target=before,
            min=1,
            max=MOST,
            ready=ready,
            demand=Demand(
                now=demand,
                peak=peak,
                rise=self._rises.expected(),
                level=level,
                swing=self._swings.expected() if at - self._began >= LEARNED_FROM else None,
                expected=self._pattern.expected(at),
            ),
            pressure=Pressure(reporting=ready, waiting=queue.requests, backlog_s=queue.replica_s),
            cold_start=timedelta(seconds=self.cold_start),
        )
        self._target = wanted(view, at, self.begins)
        return self._target


@dataclass(slots=True)
class HighestOf:
    """As many as the highest demand of a span needed."""

    span: float
    _peak: Peak = field(init=False)

    def __post_init__(self) -> None:
        self._peak = Peak(span=self.span)

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        return max(1, needed(self._peak.saw(at, demand)))


@dataclass(slots=True)
class Threshold:
    """One more while work queues; one fewer when the rest has carried the work for some minutes."""

    calm_since: float | None = None

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        demand -= ROUNDING
        if demand > ready or queue.requests > 0:
            self.calm_since = None
            return running + 1
        if running <= 1 or demand > running - 1:
            self.calm_since = None
            return running
        self.calm_since = at if self.calm_since is None else self.calm_since
        if at - self.calm_since < CALM:
            return running
        self.calm_since = at
        return running - 1


Sizer = OwnSizer | HighestOf | Threshold


class _Obeying:
    """Ends the first ones that may go."""

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]:
        return candidates[:count]

    def refuses(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int] | None:
        return None


@dataclass(slots=True)
class HighestRule(_Obeying):
    """`HighestOf`, which asks for nothing but the past demand."""

    name: str
    span: float
    _targets: Ints = field(init=False)
    _changes: Ints = field(init=False)
    """Ticks at which the target is another one than before."""

    def begin(self, pool: Activity, demand: Floats) -> None:
        highest = series.peaks(pool.times, demand, self.span)
        # more than there are makes no difference
        self._targets = np.clip(np.ceil(highest), 1, len(pool.replicas)).astype(np.int64)
        self._changes = np.flatnonzero(np.diff(self._targets)) + 1

    def target(self, tick: int, ready: int, running: int) -> int:
        return int(self._targets[tick])

    def rest(self, tick: int, end: int, ready: int, running: int) -> tuple[int, int]:
        at = int(np.searchsorted(self._changes, tick, side="right"))
        change = int(self._changes[at]) if at < len(self._changes) else end
        return min(change, end), int(self._targets[tick])


@dataclass(slots=True)
class ThresholdRule(_Obeying):
    """`Threshold`, whose calm times are gone through without asking."""

    name: str = "queue-threshold"
    _sizer: Threshold = field(default_factory=Threshold)
    _times: Floats = field(init=False)
    _demand: Floats = field(init=False)

    def begin(self, pool: Activity, demand: Floats) -> None:
        self._times, self._demand = pool.times, demand

    def target(self, tick: int, ready: int, running: int) -> int:
        return self._sizer.target(float(self._times[tick]), float(self._demand[tick]), ready, running)

    def rest(self, tick: int, end: int, ready: int, running: int) -> tuple[int, int]:
        for rows in widening(tick + 1, end, FIRST_LOOK, LONGEST_LOOK):
            looks = zip(self._times[rows].tolist(), self._demand[rows].tolist(), strict=True)
            for number, (at, demand) in enumerate(looks, rows.start):
                before = self._sizer.calm_since
                if self._sizer.target(at, demand, ready, running) != running:
                    self._sizer.calm_since = before  # it is asked again at that tick, as if for the first time
                    return number, running
        return end, running


@dataclass(slots=True)
class OwnPoolRule:
    """Ours: the scale watchdog says how many, the idle watchdog who."""

    scale: ScalePolicy
    idle: IdlePolicy
    cold_start: float
    step: float
    name: str = "own"
    _target: int | None = None
    _times: Floats = field(init=False)
    _origin: datetime = EPOCH
    _bounds: Bounds = field(init=False)
    _hours: Ints = field(init=False)
    """By tick the number of the schedule's rule that holds."""
    _turns: Ints = field(init=False)
    """Ticks at which it is another one than before."""
    _judge: idle_rules.OwnRule = field(init=False)

    def begin(self, pool: Activity, demand: Floats) -> None:
        ahead, times = self.cold_start + self.step, pool.times
        # filled part by part: years of one tick a minute are millions
        parts = np.empty((5, len(times)))
        parts[0] = series.peaks(times, demand, self.scale.down_after.total_seconds())
        parts[1] = series.levels(times, demand, LEVEL_SPAN.total_seconds())
        parts[2] = demand
        parts[3] = series.expected(times, demand, ahead)
        # the work of one recorded replica is one piece: it came from one, and fits into one
        parts[4] = series.swings(times, demand, parts[1], ahead, GRAIN)
        self._times, self._bounds = times, Bounds(demand=parts)
        self._origin = origin(float(times[0]))
        self._hours = self._schedule(times)
        self._turns = np.flatnonzero(np.diff(self._hours)) + 1
        # that one is to go is decided by the load of all; who goes needs no more than to be at rest, now and before
        step = timedelta(seconds=self.step)
        rest = replace(
            self.idle, window=2 * step, grace=timedelta(0), min_age=timedelta(0), coverage=0.0, max_stops_per_day=None
        )
        self._judge = idle_rules.OwnRule(activity=pool, policy=rest, span=Ticks(2))

    def target(self, tick: int, ready: int, running: int) -> int:
        before = running if self._target is None else self._target

        def ask(point: Point) -> int:
            return wanted(self._view(point, before, ready), float(self._times[tick]), self._origin)

        self._target = ask(self._bounds.at(tick))
        if self._target == before:
            self._bounds.stayed(self._state(tick, before, ready), tick, before, ask)
        return self._target

    def rest(self, tick: int, end: int, ready: int, running: int) -> tuple[int, int]:
        assert self._target is not None
        at = int(np.searchsorted(self._turns, tick, side="right"))
        turn = int(self._turns[at]) if at < len(self._turns) else end
        state = self._state(tick, self._target, ready)
        return self._bounds.leaves(state, tick, min(turn, end)), self._target

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]:
        return self._judge.victims(tick, candidates, count)

    def refuses(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int] | None:
        return self._judge.unheard(tick, candidates, count)

    def _state(self, tick: int, target: int, ready: int) -> Hashable:
        """What `decide` is told beside the demand; `now` makes a difference by the schedule alone."""
        return target, ready, int(self._hours[tick])

    def _schedule(self, times: Floats) -> Ints:
        rules = self.scale.schedule
        if not rules:
            return np.zeros(len(times), dtype=np.int64)
        number = {id(rule): count for count, rule in enumerate(rules, 1)}
        holding = (active(rules, self._origin + timedelta(seconds=at)) for at in times.tolist())
        return np.fromiter((0 if r is None else number[id(r)] for r in holding), dtype=np.int64, count=len(times))

    def _view(self, point: Point, target: int, ready: int) -> PoolView:
        peak, level, now, expected, swing = point
        return PoolView(
            name="replay",
            policy=self.scale,
            target=target,
            min=1,
            max=MOST,
            ready=ready,
            demand=Demand(
                now=now,
                peak=peak,
                level=level,
                grain=GRAIN,
                swing=swing,
                expected=expected if isfinite(expected) else None,
            ),
            pressure=Pressure(reporting=ready, backlog_s=0.0),
            cold_start=timedelta(seconds=self.cold_start),
        )
