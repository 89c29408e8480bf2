"""How rules size a pool, look by look: ours, which is the scale watchdog's own `decide`, and simple ones."""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil, sqrt
from typing import Final, Protocol

from gpufleet.domain.decisions import Action
from gpufleet.domain.policies import ScalePolicy
from replay.rows import EPOCH
from watchdogs.scale.decide import decide
from watchdogs.scale.view import Demand, Pressure, ScalePool

TIMERS: Final = {"timer-15m": 900.0, "timer-30m": 1800.0, "timer-60m": 3600.0}
NAMES: Final = ("own", *TIMERS, "peak-root", "queue-threshold")
MOST: Final = 1_000_000
ROOT: Final = 0.75
"""Replicas that the peak-root rule has above the highest demand of an hour, for each root of it."""
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


def sizer(name: str, scale: ScalePolicy, cold_start: float, begins: datetime = EPOCH) -> Sizer:
    """A rule by its name, one of `NAMES`. `begins`: the moment from which it counts."""
    if name == "own":
        return OwnSizer(policy=scale, cold_start=cold_start, begins=begins)
    if name == "peak-root":
        return PeakRoot()
    return Threshold() if name == "queue-threshold" else HighestOf(span=TIMERS[name])


def needed(demand: float) -> int:
    """The replicas that a demand needs."""
    return ceil(demand - ROUNDING)


@dataclass(slots=True)
class Peak:
    """The highest demand over a span that ends now."""

    span: float
    """Seconds."""
    _tops: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]])

    def saw(self, at: float, demand: float) -> float:
        """The peak, this moment included. Moments come in order."""
        while self._tops and self._tops[-1][1] <= demand:
            self._tops.pop()
        self._tops.append((at, demand))
        while at - self._tops[0][0] > self.span:
            self._tops.popleft()
        return self._tops[0][1]


@dataclass(slots=True)
class OwnSizer:
    """Production's `decide` of the scale watchdog."""

    policy: ScalePolicy
    cold_start: float
    begins: datetime = EPOCH
    """The moment from which `at` counts: schedules hold by the clock."""
    grain: float | None = None
    """Share of a replica that a piece of work takes: production counts whole requests. None: it is unknown."""
    _target: int | None = None
    _peak: Peak = field(init=False)

    def __post_init__(self) -> None:
        self._peak = Peak(span=self.policy.down_after.total_seconds())

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        work = demand if self.grain is None else needed(demand / self.grain) * self.grain
        view = ScalePool(
            name="replay",
            policy=self.policy,
            target=running if self._target is None else self._target,
            min=1,
            max=MOST,
            ready=ready,
            demand=Demand(now=work, peak=self._peak.saw(at, work)),
            pressure=Pressure(reporting=ready, waiting=queue.requests, backlog_s=queue.replica_s),
            cold_start=timedelta(seconds=self.cold_start),
        )
        decision = decide([view], self.begins + timedelta(seconds=at)).decisions[0]
        size = decision.to_size if decision.action is Action.RETARGET else None
        self._target = view.target if size is None else size
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
class PeakRoot:
    """As many as the highest demand of an hour needed, and a spare that grows as its root."""

    _peak: Peak = field(default_factory=lambda: Peak(span=3600.0))

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        peak = self._peak.saw(at, demand)
        return max(1, needed(peak + ROOT * sqrt(peak)))


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
