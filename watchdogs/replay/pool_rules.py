"""The rules that size recorded pools: ours, which is production's `decide` of the scale watchdog, and others."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Final

from fleet.policies import IdlePolicy, ScalePolicy
from watchdogs.plan import Action
from watchdogs.replay import idle_rules
from watchdogs.replay.activity import Activity
from watchdogs.replay.fleet import PoolRule
from watchdogs.scale.decide import decide
from watchdogs.scale.forecast import Level, Pattern, Peak, Rises, Swings
from watchdogs.scale.view import LEVEL_SPAN, Demand, PoolView, Pressure

TIMERS: Final = {"timer-15m": 900.0, "timer-30m": 1800.0, "timer-60m": 3600.0}
NAMES: Final = ("own", *TIMERS, "queue-threshold")
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
MOST: Final = 1_000_000
CALM: Final = 300.0
"""Seconds for which a queue-threshold rule waits before it gives a replica up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What waits."""

    requests: float = 0.0
    replica_s: float = 0.0
    """Seconds that one replica would need for it."""


EMPTY: Final = Queue()


def sizer(name: str, scale: ScalePolicy, cold_start: float, step: float) -> "Sizer":
    """How a rule sizes a pool; a rule by its name, one of `NAMES`."""
    if name == "own":
        return OwnSizer(policy=scale, cold_start=cold_start, step=step)
    return Threshold() if name == "queue-threshold" else HighestOf(span=TIMERS[name])


def rule(name: str, activity: Activity, idle: IdlePolicy, scale: ScalePolicy, cold_start: float) -> PoolRule:
    """A rule by its name, one of `NAMES`."""
    if name == "own":
        # the work of one recorded replica is one piece: it came from one, and fits into one
        own = OwnSizer(policy=scale, cold_start=cold_start, step=activity.step, grain=1.0)
        return OwnPoolRule(sizer=own, activity=activity, idle=idle)
    if name == "queue-threshold":
        return SizedRule(name=name, sizer=Threshold(), activity=activity)
    return SizedRule(name=name, sizer=HighestOf(span=TIMERS[name]), activity=activity)


@dataclass(slots=True)
class OwnSizer:
    """Production's `decide` of the scale watchdog."""

    policy: ScalePolicy
    cold_start: float
    step: float
    grain: float | None = None
    """Share of a replica that one piece of work takes; None: not known."""
    _target: int | None = None
    _rises: Rises = field(init=False)
    _peak: Peak = field(init=False)
    _pattern: Pattern = field(init=False)
    _level: Level = field(init=False)
    _swings: Swings | None = field(init=False)

    def __post_init__(self) -> None:
        ahead = self.cold_start + self.step
        self._swings = None if self.grain is None else Swings(horizon=ahead, grain=self.grain)
        self._rises = Rises(horizon=ahead)
        self._peak = Peak(span=self.policy.down_after.total_seconds())
        self._pattern = Pattern(ahead=ahead)
        self._level = Level(span=LEVEL_SPAN.total_seconds())

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        self._rises.saw(at, demand)
        self._pattern.saw(at, demand)
        peak = self._peak.saw(at, demand)
        level = self._level.saw(at, demand)
        if self._swings is not None:
            self._swings.saw(at, demand, level)
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
                grain=self.grain,
                swing=None if self._swings is None else self._swings.expected(),
                expected=self._pattern.expected(at),
            ),
            pressure=Pressure(reporting=ready, waiting=queue.requests, backlog_s=queue.replica_s),
            cold_start=timedelta(seconds=self.cold_start),
        )
        decision = decide([view], EPOCH + timedelta(seconds=at)).decisions[0]
        self._target = before
        if decision.action is Action.RETARGET and decision.to_size is not None:
            self._target = decision.to_size
        return self._target


@dataclass(slots=True)
class HighestOf:
    """As many as the highest demand of a span needed."""

    span: float
    _peak: Peak = field(init=False)

    def __post_init__(self) -> None:
        self._peak = Peak(span=self.span)

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        return max(1, ceil(self._peak.saw(at, demand)))


@dataclass(slots=True)
class Threshold:
    """One more while work queues; one fewer when the rest has carried the work for some minutes."""

    _calm_since: float | None = None

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        if demand > ready or queue.requests > 0:
            self._calm_since = None
            return running + 1
        if running <= 1 or demand > running - 1:
            self._calm_since = None
            return running
        self._calm_since = at if self._calm_since is None else self._calm_since
        if at - self._calm_since < CALM:
            return running
        self._calm_since = at
        return running - 1


Sizer = OwnSizer | HighestOf | Threshold


@dataclass(slots=True)
class SizedRule:
    """A sizer, and the longest quiet first."""

    name: str
    sizer: Sizer
    activity: Activity

    def target(self, tick: int, demand: float, ready: int, running: int) -> int:
        return self.sizer.target(float(self.activity.times[tick]), demand, ready, running)

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]:
        return candidates[:count]


@dataclass(slots=True)
class OwnPoolRule:
    """Ours: the scale watchdog says how many, the idle watchdog who."""

    sizer: OwnSizer
    activity: Activity
    idle: IdlePolicy
    name: str = "own"
    _judge: idle_rules.OwnRule = field(init=False)

    def __post_init__(self) -> None:
        # that one is to go is decided by the load of all; who goes needs no more than to be at rest, now and before
        step = timedelta(seconds=self.activity.step)
        rest = replace(
            self.idle, window=2 * step, grace=timedelta(0), min_age=timedelta(0), coverage=0.0, max_stops_per_day=None
        )
        self._judge = idle_rules.OwnRule(activity=self.activity, policy=rest)

    def target(self, tick: int, demand: float, ready: int, running: int) -> int:
        return self.sizer.target(float(self.activity.times[tick]), demand, ready, running)

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]:
        return self._judge.victims(tick, candidates, count)
