"""Replays recorded single replicas against a rule that stops them: the idle watchdog's own `decide`, or fixed timers.

At each tick, work starts the stopped replicas that it was recorded for. The work is unserved until they have booted.
Then the rule decides which replicas to stop.
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
from watchdogs.idle.decide import UNSCALED, IdleObservation, IdlePoolView, decide

TIMERS: Final = {f"timer-{minutes}m": 60.0 * minutes for minutes in (15, 30, 45, 60, 75, 90)}
NAMES: Final = ("own", *TIMERS)
DAY: Final = timedelta(days=1)
NEVER: Final = -(1 << 40)
LONG_AGO: Final = EPOCH - timedelta(days=365)
MACHINE: Final = "replica"
"""Machine type of all replicas in the replay. It has one GPU."""
READY: Final = AgentStatus(phase=Phase.READY, ready=True, draining=False, drained=False, requests_running=0)


@dataclass(slots=True)
class Replicas:
    """The state of each replica at a tick."""

    running: Bools
    ready_at: Ints
    """First tick in which the replica is ready."""
    launched: Ints
    """Tick of the last launch. It is far in the past for replicas that exist from the start."""

    def ready(self, tick: int) -> Bools:
        return self.running & (self.ready_at <= tick)


@dataclass(slots=True)
class IdleScore:
    """The result of a replay."""

    rule: str
    replicas: int
    hours: float
    ticks: int
    step: float
    idle_rows: int = 0
    """Number of reported rows without work. A replica without a report is not known to be idle."""
    saved_rows: int = 0
    stops: int = 0
    wrong_stops: int = 0
    wakes: int = 0
    unserved: float = 0.0
    work: float = 0.0

    def answer(self) -> dict[str, str | int | float]:
        """Return the fields that the command prints."""
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
    """Decides which replicas to stop."""

    name: str

    def stop(self, tick: int, replicas: Replicas) -> Mapping[int, int]:
        """Return the replicas to stop, each with the tick since which the rule considers it idle: the tick of the
        rule's mark, if it uses marks.
        """
        ...


def rule(name: str, activity: ActivityHistory, policy: IdlePolicy, cold_start: float = 0.0) -> IdleRule:
    """Return the rule with that name, one of `NAMES`. `cold_start` is in seconds; the production rule adds it to the
    cost of a stop.
    """
    if name == "own":
        return ProductionIdleRule(activity=activity, policy=policy, cold_start=timedelta(seconds=cold_start))
    return FixedTimerRule(activity=activity, name=name, after=TIMERS[name])


def play(activity: ActivityHistory, rule: IdleRule, cold_start: float) -> IdleScore:
    """Replay the whole history. `cold_start` is in seconds."""
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
        # a stop saves cost from the next tick
        score.saved_rows += score.replicas - int(replicas.running.sum())
        for replica, since in rule.stop(tick, replicas).items():
            replicas.running[replica] = False
            score.stops += 1
            score.wrong_stops += _worked(activity, replica, since, tick)
    return score


def begin(activity: ActivityHistory, rule: str, cold_start: float) -> tuple[IdleScore, int]:
    """Return a score with the totals of the history, and the number of ticks that a boot takes."""
    ticks, count = int(activity.work.shape[0]), int(activity.work.shape[1])
    score = IdleScore(rule=rule, replicas=count, hours=activity.hours, ticks=ticks, step=activity.step)
    score.idle_rows = int(np.count_nonzero(activity.reported & ~activity.work))
    score.work = float(activity.active.sum(dtype=np.float64)) * activity.step
    return score, math.ceil(cold_start / activity.step)


def _worked(activity: ActivityHistory, replica: int, since: int, tick: int) -> bool:
    """Return whether a replica had work since its mark, or in one of its two newest rows. A stop would then be wrong.

    Ticks without a sample are skipped.
    """
    work = activity.work[: tick + 1, replica]
    return bool(work[since:].any() or work[activity.reported[: tick + 1, replica] | work][-2:].any())


def last_work(work: Bools, before: int) -> Ints:
    """Return by tick and replica the latest tick with work, or `before` if there is none."""
    ticks = np.arange(len(work), dtype=np.int64)[:, None]
    return np.maximum.accumulate(np.where(work, ticks, before), axis=0)


@dataclass(slots=True)
class FixedTimerRule:
    """Stops a replica without work for a fixed time. It ignores metric coverage."""

    activity: ActivityHistory
    name: str
    after: float
    """In seconds."""
    _last: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._last = last_work(self.activity.work, before=-1)

    def stop(self, tick: int, replicas: Replicas) -> Mapping[int, int]:
        # if a replica becomes ready only after its work ended, the idle time starts when it is ready
        since = np.maximum(self._last[tick] + 1, replicas.ready_at)
        waited = (tick + 1 - since) * self.activity.step
        return dict.fromkeys(np.flatnonzero(replicas.ready(tick) & (waited >= self.after)).tolist(), tick)


@dataclass(slots=True)
class ProductionIdleRule:
    """Runs production's `decide` on the data that production's watchdog would see.

    As in production, it evaluates only replicas that are marked or whose metrics are quiet over the whole window.
    """

    activity: ActivityHistory
    policy: IdlePolicy
    cold_start: timedelta
    name: str = "own"
    _last: Ints = field(init=False)
    """Before the history starts, replicas are assumed idle for one window."""
    _marked: dict[int, int] = field(default_factory=dict[int, int])
    """Tick of the mark, by replica."""
    _stopped: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Ticks of the stops in ascending order, by replica."""

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

    def _listed(self, replica: int, launched: int) -> "ListedReplica":
        marked = moment(self.activity, self._marked[replica]) if replica in self._marked else None
        return (
            ListedReplica(marked=marked) if launched < 0 else ListedReplica(moment(self.activity, launched), marked)
        )

    def _first(self, tick: int) -> int:
        """Return the first tick of the window, by time, as a metrics store selects it."""
        begins = float(self.activity.times[tick]) - self.policy.window.total_seconds() + CLOCKS
        return int(np.searchsorted(self.activity.times, begins, side="right"))

    def _with_stops(self, pool: IdlePoolView, replica: int, tick: int) -> IdlePoolView:
        """Return the pool with this replica's stops. Each replica is a separate pool with its own budgets."""
        day = self.policy.max_stops_per_day
        return replace(
            pool,
            cold_start=self.cold_start,
            ended_this_hour=self._stops(replica, tick, budgets.HOUR),
            left_today=None if day is None else math.ceil(day) - self._stops(replica, tick, DAY),
        )

    def _stops(self, replica: int, tick: int, within: timedelta) -> int:
        """Return the number of the replica's stops within a time span before the tick."""
        ticks = self._stopped.get(replica, ())
        begins = float(self.activity.times[tick]) - within.total_seconds()
        return len(ticks) - bisect_right(ticks, begins, key=lambda then: float(self.activity.times[then]))


def moment(activity: ActivityHistory, tick: int) -> datetime:
    """Return the time of a tick."""
    return EPOCH + timedelta(seconds=float(activity.times[tick]))


@dataclass(frozen=True, slots=True)
class ListedReplica:
    """The data about a replica in the cloud's instance list."""

    launched: datetime = LONG_AGO
    marked: datetime | None = None
    """Time of the idle mark."""


def observed(
    activity: ActivityHistory, policy: IdlePolicy, listed: Mapping[int, ListedReplica], window: slice
) -> IdleObservation:
    """Return the data that production's watchdog would see of these replicas, each as a separate pool. `window`
    selects the evaluated ticks.
    """
    names = {replica: activity.replicas[replica] for replica in listed}
    return IdleObservation(
        instances=[_instance(names[replica], one) for replica, one in listed.items()],
        evidence={name: _evidence(activity, replica, window, policy) for replica, name in names.items()},
        agents=dict.fromkeys(names.values(), READY),
        pools={
            name: IdlePoolView(name=name, policy=policy, floor=0, target=1, needed=UNSCALED)
            for name in names.values()
        },
        budget=ChangeBudget(per_run=len(names), per_hour=len(names)),
        gpus_expected={MACHINE: 1},
    )


def _instance(name: str, listed: ListedReplica) -> Instance:
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
    """Return the evidence from a replica's metrics."""
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
    """Return the expected number of rows per replica in a window."""
    return max(1, round(policy.window.total_seconds() / activity.step))
