"""Rules that size a pool at each tick: the scale watchdog's own `decide`, and simple reference rules."""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil, sqrt
from typing import Final, Protocol

from gpufleet.domain.decisions import Action
from gpufleet.domain.policies import ScalePolicy
from replay.rows import EPOCH
from watchdogs.scale.decide import decide
from watchdogs.scale.view import Demand, Pressure, ScalePoolView

TIMERS: Final = {"timer-15m": 900.0, "timer-30m": 1800.0, "timer-60m": 3600.0}
NAMES: Final = ("own", *TIMERS, "peak-root", "queue-threshold")
MAX_REPLICAS: Final = 1_000_000
ROOT: Final = 0.75
"""Spare replicas of the peak-root rule, per square root of the highest demand of an hour."""
STABLE_AFTER: Final = 300.0
"""Seconds without queueing before a queue-threshold rule removes a replica."""
ROUNDING: Final = 5e-7
"""Tolerance of a demand in replicas: demand is a sum of fractions with a resolution of one millionth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The queue of waiting work."""

    requests: float = 0.0
    replica_s: float = 0.0
    """Seconds that one replica needs to serve it."""


EMPTY: Final = Queue()


class Sizer(Protocol):
    """Decides the size of a pool. It is called for each tick of a history, in order."""

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        """Return the number of replicas. `at` is in seconds, and `demand` in replicas. `running` includes booting
        replicas.
        """
        ...


def sizer(name: str, scale: ScalePolicy, cold_start: float, begins: datetime = EPOCH) -> Sizer:
    """Return the rule with that name, one of `NAMES`. `begins` is the start of the history."""
    if name == "own":
        return ProductionSizer(policy=scale, cold_start=cold_start, begins=begins)
    if name == "peak-root":
        return PeakRoot()
    return Threshold() if name == "queue-threshold" else HighestOf(span=TIMERS[name])


def needed(demand: float) -> int:
    """Return the number of replicas that a demand needs."""
    return ceil(demand - ROUNDING)


@dataclass(slots=True)
class Peak:
    """The highest demand in a sliding window that ends now."""

    span: float
    """In seconds."""
    _tops: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]])

    def saw(self, at: float, demand: float) -> float:
        """Add a demand and return the highest in the window. Calls must be in order of time."""
        while self._tops and self._tops[-1][1] <= demand:
            self._tops.pop()
        self._tops.append((at, demand))
        while at - self._tops[0][0] > self.span:
            self._tops.popleft()
        return self._tops[0][1]


@dataclass(slots=True)
class ProductionSizer:
    """The scale watchdog's `decide` from production."""

    policy: ScalePolicy
    cold_start: float
    begins: datetime = EPOCH
    """Time at which `at` is 0. Schedules depend on the time of day."""
    grain: float | None = None
    """Fraction of a replica per unit of work: production counts whole requests. None: unknown."""
    _target: int | None = None
    _peak: Peak = field(init=False)

    def __post_init__(self) -> None:
        self._peak = Peak(span=self.policy.down_after.total_seconds())

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        work = demand if self.grain is None else needed(demand / self.grain) * self.grain
        view = ScalePoolView(
            name="replay",
            policy=self.policy,
            target=running if self._target is None else self._target,
            min=1,
            max=MAX_REPLICAS,
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
    """Provides the replicas that the highest demand of a window needs."""

    span: float
    _peak: Peak = field(init=False)

    def __post_init__(self) -> None:
        self._peak = Peak(span=self.span)

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        return max(1, needed(self._peak.saw(at, demand)))


@dataclass(slots=True)
class PeakRoot:
    """Provides the replicas that the highest demand of an hour needs, plus a spare proportional to its square
    root.
    """

    _peak: Peak = field(default_factory=lambda: Peak(span=3600.0))

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        peak = self._peak.saw(at, demand)
        return max(1, needed(peak + ROOT * sqrt(peak)))


@dataclass(slots=True)
class Threshold:
    """Adds a replica while work queues. Removes one when the others could serve all work for five minutes."""

    stable_since: float | None = None

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        demand -= ROUNDING
        if demand > ready or queue.requests > 0:
            self.stable_since = None
            return running + 1
        if running <= 1 or demand > running - 1:
            self.stable_since = None
            return running
        self.stable_since = at if self.stable_since is None else self.stable_since
        if at - self.stable_since < STABLE_AFTER:
            return running
        self.stable_since = at
        return running - 1
