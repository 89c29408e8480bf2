"""The rules that stop replicas which are each alone: ours, which is production's `decide`, and plain timers."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from fleet import tags
from fleet.model import CapacityType, Cloud, Instance, InstanceState, Phase
from fleet.policies import IdlePolicy
from watchdogs.evidence import AgentStatus, EngineEvidence, Evidence, GpuEvidence
from watchdogs.idle.decide import Observed, PoolView, decide
from watchdogs.idle.patience import Patience
from watchdogs.plan import Action, Budget, Reason
from watchdogs.replay.activity import Activity, Bools
from watchdogs.replay.fleet import NEVER, AloneRule, Ints, Replicas
from watchdogs.replay.rows import Floats

TIMERS: Final = {"timer-15m": 900.0, "timer-30m": 1800.0, "timer-60m": 3600.0}
NAMES: Final = ("own", *TIMERS)
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
LONG_AGO: Final = EPOCH - timedelta(days=365)
HOUR: Final = timedelta(hours=1)
DAY_S: Final = 86400.0
LEARN_EVERY: Final = 1800.0
FIRST_DAY: Final = 0.9
"""Share of the first day's stops that may be made at any time of it; a history may end before its day."""
READY: Final = AgentStatus(phase=Phase.READY, ready=True, draining=False, drained=False)


def rule(name: str, activity: Activity, policy: IdlePolicy) -> AloneRule:
    """A rule by its name, one of `NAMES`."""
    if name == "own":
        return OwnRule(activity=activity, policy=policy)
    return Timer(activity=activity, name=name, after=TIMERS[name])


@dataclass(slots=True)
class Timer:
    """Stops a replica that has not worked for a fixed time. Its coverage is not looked at."""

    activity: Activity
    name: str
    after: float
    _since: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._since = np.zeros(len(self.activity.replicas), dtype=np.int64)

    def stop(self, tick: int, replicas: Replicas) -> Sequence[int]:
        self._since[self.activity.work[tick]] = tick + 1
        since = np.maximum(self._since, replicas.ready_at)
        waited = (tick + 1 - since) * self.activity.step
        return np.flatnonzero(replicas.ready(tick) & (waited >= self.after)).tolist()


@dataclass(slots=True)
class OwnRule:
    """Production's `decide`, shown what production's watchdog would see.

    As in production only those are judged whose metrics are quiet over the whole window, or that are marked.
    """

    activity: Activity
    policy: IdlePolicy
    name: str = "own"
    _window: int = field(init=False)
    """In ticks."""
    _last: Ints = field(init=False)
    """Tick of the last work of each replica."""
    _marked: dict[int, datetime] = field(default_factory=dict[int, datetime])
    _look: Ints = field(init=False)
    """Tick before which a marked replica needs no look, while it stays quiet."""
    _patience: Patience | None = field(init=False)
    _timers: Floats = field(init=False)
    """Seconds of idleness after which each replica may be ended, as learned when last reckoned."""
    _learn_at: int = 0
    _stopped: deque[int] = field(default_factory=deque[int])
    """Ticks of all stops."""
    _seen: int = 0
    """Ticks whose work is in `_last`."""
    _ended: deque[datetime] = field(default_factory=deque[datetime])

    def __post_init__(self) -> None:
        self._look = np.zeros(len(self.activity.replicas), dtype=np.int64)
        self._window = max(1, round(self.policy.window.total_seconds() / self.activity.step))
        budget, count = self.policy.max_stops_per_day, len(self.activity.replicas)
        least = (self.policy.window + self.policy.grace).total_seconds()
        self._patience = None if budget is None else Patience(instances=count, stops_per_day=budget, least=least)
        self._timers = np.zeros(count)
        self._last = np.full(len(self.activity.replicas), -self._window, dtype=np.int64)

    def stop(self, tick: int, replicas: Replicas) -> Sequence[int]:
        now = self._time(tick)
        first = max(0, tick + 1 - self._window)
        self._learn(tick)
        quiet = ~self._worked(tick)
        marked = np.zeros_like(quiet)
        marked[list(self._marked)] = True
        asked = np.flatnonzero(replicas.ready(tick) & ((quiet & (self._look <= tick)) | (marked & ~quiet)))
        if not len(asked):
            return ()
        while self._ended and now - self._ended[0] >= HOUR:
            self._ended.popleft()
        plan = decide(self._observed(asked.tolist(), tick, first, now, replicas), now)
        ended: list[int] = []
        for replica, decision in zip(asked.tolist(), plan.decisions, strict=True):
            if decision.action is Action.MARK:
                self._marked[replica] = now
            elif decision.action is Action.UNMARK:
                del self._marked[replica]
                self._look[replica] = 0
            elif decision.action is Action.END:
                ended.append(replica)
                self._marked.pop(replica, None)
                self._look[replica] = 0
                self._ended.append(now)
                self._stopped.append(tick)
            if decision.action is Action.MARK or decision.reason is Reason.MARKED_WAITING:
                self._look[replica] = self._due(replica, tick)
        return ended

    def _due(self, replica: int, tick: int) -> int:
        """Tick of the next look at a marked one that stays quiet: its grace is over, or it was learned anew."""
        waits = max(self.policy.grace, timedelta(seconds=self._timers[replica]) - self.policy.window)
        since = (self._time(tick) - self._marked[replica]).total_seconds()
        due = tick + max(1, int((waits.total_seconds() - since) // self.activity.step))
        return due if self._patience is None else min(due, max(tick + 1, self._learn_at))

    def _learn(self, tick: int) -> None:
        """Take in the gaps that end at this tick, and reckon the timers anew every half an hour."""
        if self._patience is None:
            return
        step, since = self.activity.step, np.maximum(self._last, -1)
        gaps = (tick - 1 - since) * step
        for replica in np.flatnonzero(self.activity.work[tick] & (gaps > self._patience.least)).tolist():
            self._patience.saw(replica, float(gaps[replica]))
        if tick < self._learn_at:
            return
        self._learn_at = tick + max(1, round(LEARN_EVERY / step))
        idle = np.where(self.activity.work[tick], 0.0, (tick - since) * step)
        self._timers = self._patience.timers(max(1, tick) * step / DAY_S, idle, len(self._stopped))

    def _left_today(self, tick: int) -> int | None:
        """Stops that are left of the day's; half of a first day's at once, then in proportion."""
        if self._patience is None:
            return None
        days = tick * self.activity.step / DAY_S
        first = tick - DAY_S / self.activity.step
        lately = sum(stop > first for stop in reversed(self._stopped))
        return int(self._patience.stops_per_day * min(1.0, max(FIRST_DAY, days)) * len(self._last) - lately)

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]:
        """Those of the candidates that `decide` would end: as many as are surplus, the longest idle first."""
        for row in range(self._seen, tick + 1):
            self._last[self.activity.work[row]] = row
        self._seen = tick + 1
        if count <= 0:
            return ()
        now, first = self._time(tick), max(0, tick + 1 - self._window)
        asked = sorted(candidates, key=lambda replica: (self._last[replica], replica))[: 2 * count]
        self._marked = {replica: self._time(max(0, int(self._last[replica]))) for replica in asked}
        instances = [self._instance(replica, now, None) for replica in asked]
        observed = Observed(
            instances=instances,
            evidence={i.id: self._evidence(r, tick, first) for i, r in zip(instances, asked, strict=True)},
            agents={i.id: READY for i in instances},
            pools={i.id: PoolView(name=i.id, policy=self.policy, floor=0, target=1) for i in instances},
            budget=Budget(per_run=count, per_hour=count),
            gpus_expected={"replica": 1},
        )
        decisions = zip(asked, decide(observed, now).decisions, strict=True)
        return [replica for replica, decision in decisions if decision.action is Action.END]

    def _worked(self, tick: int) -> Bools:
        """Whether there was work within the window."""
        self._last[self.activity.work[tick]] = tick
        return tick - self._last < self._window

    def _time(self, tick: int) -> datetime:
        return EPOCH + timedelta(seconds=float(self.activity.times[tick]))

    def _observed(self, asked: Sequence[int], tick: int, first: int, now: datetime, replicas: Replicas) -> Observed:
        count = len(self.activity.replicas)
        usual = IdlePolicy()
        instances = [self._instance(replica, now, replicas) for replica in asked]
        return Observed(
            instances=instances,
            evidence={i.id: self._evidence(r, tick, first) for i, r in zip(instances, asked, strict=True)},
            agents={i.id: READY for i in instances},
            pools={i.id: PoolView(name=i.id, policy=self.policy, floor=0, target=1) for i in instances},
            budget=Budget(
                per_run=max(usual.max_stops_per_run, count // 20),
                per_hour=max(usual.max_stops_per_hour, count // 5),
                used_this_hour=len(self._ended),
                left_today=self._left_today(tick),
            ),
            gpus_expected={"replica": 1},
            patience={}
            if self._patience is None
            else {i.id: timedelta(seconds=self._timers[r]) for i, r in zip(instances, asked, strict=True)},
        )

    def _instance(self, replica: int, now: datetime, replicas: Replicas | None) -> Instance:
        began = NEVER if replicas is None else int(replicas.launched[replica])
        name, marked = self.activity.replicas[replica], self._marked.get(replica)
        return Instance(
            id=name,
            cloud=Cloud.AWS,
            region="",
            zone="",
            machine_type="replica",
            capacity_type=CapacityType.ON_DEMAND,
            state=InstanceState.RUNNING,
            launched_at=LONG_AGO if began < 0 else self._time(began),
            environment="replay",
            pool=name,
            group=name,
            tags={tags.IDLE_SINCE: tags.write_time(marked)} if marked is not None else {},
        )

    def _evidence(self, replica: int, tick: int, first: int) -> Evidence:
        step = timedelta(seconds=self.activity.step)
        rows = slice(first, tick + 1)
        there = np.flatnonzero(self.activity.reported[rows, replica])
        work = bool(self.activity.work[rows, replica].any())
        coverage = len(there) / self._window
        age = self._time(tick) - self._time(first + int(there[-1])) if len(there) else None
        return Evidence(
            window=self.policy.window,
            interval=step,
            reached=True,
            engine=EngineEvidence(
                coverage=coverage,
                newest_age=age,
                running_max=float(work),
                waiting_max=0.0,
                tokens=0.0,
                counter_changes=0.0,
                started_age=self.policy.window,
                pulse_changes=1.0,
            ),
            gpu=GpuEvidence(
                gpus=1,
                coverage=coverage,
                newest_age=age,
                active_max=float(self.activity.active[rows, replica].max()),
                active_min=float(self.activity.active[rows, replica].min()),
                energy_changes=1.0,
            ),
        )
