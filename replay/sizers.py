"""How rules size a pool, look by look: ours, which is the scale watchdog's own `decide`, and simple ones."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Final, Protocol

from gpufleet.domain.decisions import Action
from gpufleet.domain.policies import ScalePolicy
from replay.forecast import LEARNED_FROM, Level, Pattern, Peak, Rises, Swings
from replay.rows import EPOCH
from watchdogs.scale.decide import decide
from watchdogs.scale.view import LEVEL_SPAN, Demand, PoolView, Pressure

TIMERS: Final = {"timer-15m": 900.0, "timer-30m": 1800.0, "timer-60m": 3600.0}
NAMES: Final = ("own", *TIMERS, "queue-threshold")
MOST: Final = 1_000_000
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


class Sizer(Protocol):
    """Says how many replicas a pool is to have. One that is asked at each tick of a history, in order."""

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        """`at`: seconds. `demand`: in replicas' worth. `running`: those that boot included."""
        ...


def sizer(name: str, scale: ScalePolicy, cold_start: float, step: float, begins: datetime = EPOCH) -> Sizer:
    """A rule by its name, one of `NAMES`, asked each `step` seconds. `begins`: the moment from which it counts."""
    if name == "own":
        return OwnSizer(policy=scale, cold_start=cold_start, step=step, begins=begins)
    return Threshold() if name == "queue-threshold" else HighestOf(span=TIMERS[name])


def needed(demand: float) -> int:
    """The replicas that a demand needs."""
    return ceil(demand - ROUNDING)


@dataclass(slots=True)
class OwnSizer:
    """Production's `decide` of the scale watchdog."""

    policy: ScalePolicy
    cold_start: float
    step: float
    begins: datetime = EPOCH
    """The moment from which `at` counts: schedules hold by the clock."""
    grain: float | None = None
    """Share of a replica that a piece of work takes; None: nobody knows how large one is."""
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
        self._swings = Swings(horizon=ahead, grain=self.grain or 1.0)
        self._peak = Peak(span=self.policy.down_after.total_seconds())
        self._pattern = Pattern(ahead=ahead)
        self._level = Level(span=LEVEL_SPAN.total_seconds())

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        view = PoolView(
            name="replay",
            policy=self.policy,
            target=running if self._target is None else self._target,
            min=1,
            max=MOST,
            ready=ready,
            demand=self._seen(at, demand),
            pressure=Pressure(reporting=ready, waiting=queue.requests, backlog_s=queue.replica_s),
            cold_start=timedelta(seconds=self.cold_start),
        )
        decision = decide([view], self.begins + timedelta(seconds=at)).decisions[0]
        size = decision.to_size if decision.action is Action.RETARGET else None
        self._target = view.target if size is None else size
        return self._target

    def _seen(self, at: float, demand: float) -> Demand:
        """What metrics say of the demand by now."""
        self._began = at if self._began is None else self._began
        self._pattern.saw(at, demand)
        peak, level = self._peak.saw(at, demand), self._level.saw(at, demand)
        self._swings.saw(at, demand, level)
        self._rises.saw(at, demand)
        swings_known = self.grain is not None or at - self._began >= LEARNED_FROM
        return Demand(
            now=demand,
            peak=peak,
            # swings of known pieces say more than rises do
            rise=self._rises.expected() if self.grain is None else None,
            level=level,
            grain=self.grain,
            swing=self._swings.expected() if swings_known else None,
            expected=self._pattern.expected(at),
        )


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
