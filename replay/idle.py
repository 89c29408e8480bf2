"""Recorded replicas, each alone, played to a rule that stops them: the idle watchdog's own `decide`, or plain timers.

At each tick work wakes the replicas that were stopped for it; what they would have done is unserved until they have
booted. Then the rule says which ones to stop.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from gpufleet.domain import tags
from gpufleet.domain.decisions import Action, ChangeBudget
from gpufleet.domain.evidence import AgentStatus, EngineEvidence, Evidence, GpuEvidence
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState, Phase
from gpufleet.domain.policies import IdlePolicy
from replay.histories import ActivityHistory, Bools, Ints
from replay.rows import CLOCKS, EPOCH
from watchdogs import budgets
from watchdogs.idle.decide import UNSCALED, IdleObservation, IdlePool, decide

TIMERS: Final = {f"timer-{minutes}m": 60.0 * minutes for minutes in (15, 30, 45, 60, 75, 90)}
NAMES: Final = ("own", *TIMERS)
DAY: Final = timedelta(days=1)
NEVER: Final = -(1 << 40)
LONG_AGO: Final = EPOCH - timedelta(days=365)
MACHINE: Final = "replica"
"""Type of all machines of the replay: one GPU each."""
READY: Final = AgentStatus(phase=Phase.READY, ready=True, draining=False, drained=False, requests_running=0)


@dataclass(slots=True)
class Replicas:
    """Where each replica stands at a tick."""

    running: Bools
    ready_at: Ints
    """Tick from which it serves."""
    launched: Ints
    """Tick of its last launch; far in the past for those that were there from the beginning."""

    def ready(self, tick: int) -> Bools:
        return self.running & (self.ready_at <= tick)


@dataclass(slots=True)
class IdleScore:
    """What came of it."""

    rule: str
    replicas: int
    hours: float
    ticks: int
    step: float
    idle_rows: int = 0
    """Reported, and without work: what nobody reported is not known to be idle."""
    saved_rows: int = 0
    stops: int = 0
    wrong_stops: int = 0
    wakes: int = 0
    unserved: float = 0.0
    work: float = 0.0

    def answer(self) -> dict[str, str | int | float]:
        """The fields that the command prints."""
        gpu_hours = self.replicas * self.hours
        hour = self.step / 3600
        days = self.replicas * self.hours / 24
        return {
            "rule": self.rule,
            "replicas": self.replicas,
            "gpu_hours": round(gpu_hours, 6),
            "gpu_hours_idle": round(self.idle_rows * hour, 6),
            "gpu_hours_saved": round(self.saved_rows * hour, 6),
            "saved_percent": round(100 * self.saved_rows * hour / gpu_hours, 6),
            "stops": self.stops,
            "stops_per_replica_day": round(self.stops / days, 6),
            "wrong_stops": self.wrong_stops,
            "wakes": self.wakes,
            "unserved_percent": round(100 * self.unserved / self.work, 6) if self.work else 0.0,
        }


class IdleRule(Protocol):
    """Says which replicas to stop now."""

    name: str

    def stop(self, tick: int, replicas: Replicas) -> Mapping[int, int]:
        """By replica to stop: the tick since which the rule believes it idle; its own marks, where it has such."""
        ...


def rule(name: str, activity: ActivityHistory, policy: IdlePolicy, cold_start: float = 0.0) -> IdleRule:
    """A rule by its name, one of `NAMES`. `cold_start`: seconds that ours adds to the price of a stop."""
    if name == "own":
        return LiveIdleRule(activity=activity, policy=policy, cold_start=timedelta(seconds=cold_start))
    return FixedTimerRule(activity=activity, name=name, after=TIMERS[name])


def play(activity: ActivityHistory, rule: IdleRule, cold_start: float) -> IdleScore:
    """The whole history. `cold_start`: seconds."""
    score, boot = begin(activity, rule.name, cold_start)
    never: Ints = np.full(score.replicas, NEVER, dtype=np.int64)
    replicas = Replicas(running=np.ones(score.replicas, dtype=np.bool_), ready_at=never, launched=never.copy())
    for tick in range(score.ticks):
        woken = activity.work[tick] & ~replicas.running
        replicas.running[woken] = True
        replicas.ready_at[woken] = tick + boot
        replicas.launched[woken] = tick
        score.wakes += int(woken.sum())
        booting = replicas.running & (replicas.ready_at > tick)
        score.unserved += float(activity.active[tick][booting].sum()) * activity.step
        # a stop saves from the next tick on
        score.saved_rows += score.replicas - int(replicas.running.sum())
        for replica, since in rule.stop(tick, replicas).items():
            replicas.running[replica] = False
            score.stops += 1
            score.wrong_stops += _worked(activity, replica, since, tick)
    return score


def begin(activity: ActivityHistory, rule: str, cold_start: float) -> tuple[IdleScore, int]:
    """What is counted from the history alone, and the ticks that a boot takes."""
    ticks, count = int(activity.work.shape[0]), int(activity.work.shape[1])
    score = IdleScore(rule=rule, replicas=count, hours=activity.hours, ticks=ticks, step=activity.step)
    score.idle_rows = int(np.count_nonzero(activity.reported & ~activity.work))
    score.work = float(activity.active.sum(dtype=np.float64)) * activity.step
    return score, math.ceil(cold_start / activity.step)


def _worked(activity: ActivityHistory, replica: int, since: int, tick: int) -> bool:
    """Whether a replica had work since its mark, or has in one of its two newest rows: its end would be wrong.

    Ticks without a sample are skipped.
    """
    work = activity.work[: tick + 1, replica]
    return bool(work[since:].any() or work[activity.reported[: tick + 1, replica] | work][-2:].any())


def last_work(work: Bools, before: int) -> Ints:
    """By tick and replica: the tick of its last work so far; `before` without one."""
    ticks = np.arange(len(work), dtype=np.int64)[:, None]
    return np.maximum.accumulate(np.where(work, ticks, before), axis=0)


@dataclass(slots=True)
class FixedTimerRule:
    """Stops a replica that has not worked for a fixed time. Its coverage is not looked at."""

    activity: ActivityHistory
    name: str
    after: float
    """Seconds."""
    _last: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._last = last_work(self.activity.work, before=-1)

    def stop(self, tick: int, replicas: Replicas) -> Mapping[int, int]:
        # of one that became ready only after its work was over the time counts from then
        since = np.maximum(self._last[tick] + 1, replicas.ready_at)
        waited = (tick + 1 - since) * self.activity.step
        return dict.fromkeys(np.flatnonzero(replicas.ready(tick) & (waited >= self.after)).tolist(), tick)


@dataclass(slots=True)
class LiveIdleRule:
    """Production's `decide`, shown what production's watchdog would see.

    As in production only those are judged whose metrics are quiet over the whole window, or that are marked.
    """

    activity: ActivityHistory
    policy: IdlePolicy
    cold_start: timedelta
    name: str = "own"
    _last: Ints = field(init=False)
    """What the history begins with may have rested for a window before."""
    _marked: dict[int, int] = field(default_factory=dict[int, int])
    """By replica: the tick of its mark."""
    _stopped: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """By replica: ticks of its stops, ascending."""

    def __post_init__(self) -> None:
        self._last = last_work(self.activity.work, before=-_rows(self.activity, self.policy))

    def stop(self, tick: int, replicas: Replicas) -> Mapping[int, int]:
        first = self._first(tick)
        asked = self._last[tick] < first
        asked[list(self._marked)] = True
        asked &= replicas.ready(tick)
        which = np.flatnonzero(asked).tolist()
        if not which:
            return {}
        listed = {replica: self._listed(replica, int(replicas.launched[replica])) for replica in which}
        seen = observed(self.activity, self.policy, listed, slice(first, tick + 1))
        pools = {
            name: self._with_stops(pool, n, tick) for n, (name, pool) in zip(which, seen.pools.items(), strict=True)
        }
        ended = dict[int, int]()
        for replica, decision in zip(
            which, decide(replace(seen, pools=pools), moment(self.activity, tick)).decisions, strict=True
        ):
            if decision.action is Action.MARK:
                self._marked[replica] = tick
            elif decision.action is Action.UNMARK:
                del self._marked[replica]
            elif decision.action is Action.END:
                ended[replica] = self._marked.pop(replica)
                self._stopped.setdefault(replica, []).append(tick)
        return ended

    def _listed(self, replica: int, launched: int) -> "Listed":
        marked = moment(self.activity, self._marked[replica]) if replica in self._marked else None
        return Listed(marked=marked) if launched < 0 else Listed(moment(self.activity, launched), marked)

    def _first(self, tick: int) -> int:
        """The first tick of the window, as a store of metrics looks back: by the clock."""
        begins = float(self.activity.times[tick]) - self.policy.window.total_seconds() + CLOCKS
        return int(np.searchsorted(self.activity.times, begins, side="right"))

    def _with_stops(self, pool: IdlePool, replica: int, tick: int) -> IdlePool:
        """A replica alone is a pool of its own, with budgets of its own."""
        day = self.policy.max_stops_per_day
        return replace(
            pool,
            cold_start=self.cold_start,
            ended_this_hour=self._stops(replica, tick, budgets.HOUR),
            left_today=None if day is None else math.ceil(day) - self._stops(replica, tick, DAY),
        )

    def _stops(self, replica: int, tick: int, within: timedelta) -> int:
        """Its stops so far within a time."""
        ticks = self._stopped.get(replica, ())
        begins = float(self.activity.times[tick]) - within.total_seconds()
        return len(ticks) - bisect_right(ticks, begins, key=lambda then: float(self.activity.times[then]))


def moment(activity: ActivityHistory, tick: int) -> datetime:
    """When a tick is."""
    return EPOCH + timedelta(seconds=float(activity.times[tick]))


@dataclass(frozen=True, slots=True)
class Listed:
    """What the cloud's list says of a replica."""

    launched: datetime = LONG_AGO
    marked: datetime | None = None
    """Since when it is marked idle."""


def observed(
    activity: ActivityHistory, policy: IdlePolicy, listed: Mapping[int, Listed], window: slice
) -> IdleObservation:
    """What production's watchdog would see of some replicas, each its own pool. `window`: the ticks looked at."""
    names = {replica: activity.replicas[replica] for replica in listed}
    return IdleObservation(
        instances=[_instance(names[replica], one) for replica, one in listed.items()],
        evidence={name: _evidence(activity, replica, window, policy) for replica, name in names.items()},
        agents=dict.fromkeys(names.values(), READY),
        pools={
            name: IdlePool(name=name, policy=policy, floor=0, target=1, needed=UNSCALED) for name in names.values()
        },
        budget=ChangeBudget(per_run=len(names), per_hour=len(names)),
        gpus_expected={MACHINE: 1},
    )


def _instance(name: str, listed: Listed) -> Instance:
    return Instance(
        id=name,
        cloud=Cloud.AWS,
        region="",
        zone="",
        machine_type=MACHINE,
        capacity_type=CapacityType.ON_DEMAND,
        state=InstanceState.RUNNING,
        launched_at=listed.launched,
        environment="replay",
        pool=name,
        group=name,
        tags={} if listed.marked is None else {tags.IDLE_SINCE: tags.write_time(listed.marked)},
    )


def _evidence(activity: ActivityHistory, replica: int, window: slice, policy: IdlePolicy) -> Evidence:
    """What metrics say of a replica."""
    there = np.flatnonzero(activity.reported[window, replica])
    coverage = len(there) / _rows(activity, policy)
    active: npt.NDArray[np.float32] = activity.active[window, replica]
    now, newest = moment(activity, window.stop - 1), window.start + int(there[-1]) if len(there) else None
    age = None if newest is None else now - moment(activity, newest)
    return Evidence(
        window=policy.window,
        interval=timedelta(seconds=activity.step),
        reached=True,
        engine=EngineEvidence(
            coverage=coverage,
            missed=0.0,
            newest_age=age,
            running_max=float(activity.work[window, replica].any()),
            waiting_max=0.0,
            tokens=0.0,
            counter_changes=0.0,
            started_age=policy.window,
            pulse_changes=1.0,
        ),
        gpu=GpuEvidence(
            gpus=1,
            metered=1,
            coverage=coverage,
            missed=0.0,
            newest_age=age,
            active_max=float(active.max()),
            active_min=float(active.min()),
            energy_changes=1.0,
        ),
    )


def _rows(activity: ActivityHistory, policy: IdlePolicy) -> int:
    """That a window is expected to have of each replica."""
    return max(1, round(policy.window.total_seconds() / activity.step))
