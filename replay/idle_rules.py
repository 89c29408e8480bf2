"""The rules that stop replicas which are each alone: ours, which is production's `decide`, and plain timers."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Final

import numpy as np

from gpufleet.domain import tags
from gpufleet.domain.decisions import Action, Budget, Reason
from gpufleet.domain.evidence import AgentStatus, EngineEvidence, Evidence, GpuEvidence
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState, Phase
from gpufleet.domain.policies import IdlePolicy
from replay.activity import Activity, Ints
from replay.coverage import Window, covered_from
from replay.fleet import NEVER, AloneRule, Replicas
from replay.rests import Clock, Rests, Span, Ticks
from replay.rows import CLOCKS, EPOCH, Floats
from watchdogs import budgets
from watchdogs.idle.decide import Observed, PoolView, decide
from watchdogs.idle.patience import Matrix, Patience

TIMERS: Final = {"timer-15m": 900.0, "timer-30m": 1800.0, "timer-60m": 3600.0}
NAMES: Final = ("own", *TIMERS)
LONG_AGO: Final = EPOCH - timedelta(days=365)
DAY_S: Final = 86400.0
LEARN_EVERY: Final = 1800.0
FIRST_DAY: Final = 0.9
"""Share of the first day's stops that may be made at any time of it; a history may end before its day."""
_UNHEARD: Final = frozenset({Reason.METRICS_MISSING, Reason.METRICS_STALE})
READY: Final = AgentStatus(phase=Phase.READY, ready=True, draining=False, drained=False, requests_running=0)


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
    _least: int = field(init=False)
    """Ticks without work."""
    _rests: Rests = field(init=False)

    def __post_init__(self) -> None:
        step = self.activity.step
        self._least = next(ticks for ticks in count(max(1, int(self.after / step) - 1)) if ticks * step >= self.after)
        self._rests = Rests(work=self.activity.work, span=Ticks(self._least), before=-1)

    def stop(self, tick: int, replicas: Replicas) -> Sequence[int]:
        self._rests.look(tick)
        waited = (tick + 1 - self._since(replicas)) * self.activity.step
        return np.flatnonzero(replicas.ready(tick) & (waited >= self.after)).tolist()

    def rest(self, tick: int, replicas: Replicas) -> int:
        # of one that became ready only after its work was over the time counts from then
        late = replicas.running & (replicas.ready_at > self._rests.last + 1)
        due = (replicas.ready_at[late] + self._least - 1).tolist()
        return min((self._rests.change(tick), *(at for at in due if at > tick)))

    def _since(self, replicas: Replicas) -> Ints:
        return np.maximum(self._rests.last + 1, replicas.ready_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What the timers are reckoned from."""

    patience: Patience
    days: float
    idle: Matrix
    """Seconds for which each has been idle by then."""
    stops: int

    def timers(self) -> Matrix:
        """Seconds of idleness after which each may be ended."""
        return self.patience.timers(self.days, self.idle, self.stops)


@dataclass(slots=True)
class OwnRule:
    """Production's `decide`, shown what production's watchdog would see.

    As in production only those are judged whose metrics are quiet over the whole window, or that are marked.
    """

    activity: Activity
    policy: IdlePolicy
    name: str = "own"
    span: Span | None = None
    """What a look sees; None: the policy's window, by the clock."""
    _window: Window = field(init=False)
    _rests: Rests = field(init=False)
    _marked: dict[int, datetime] = field(default_factory=dict[int, datetime])
    _look: Ints = field(init=False)
    """Tick before which a quiet replica needs no look: its grace is not over, or too little was heard of it."""
    _patience: Patience | None = field(init=False)
    _timers: Floats = field(init=False)
    """Seconds of idleness after which each replica may be ended, as learned when last reckoned."""
    _every: int = field(init=False)
    """Ticks from one reckoning of the timers to the next."""
    _learned: int = -1
    """Tick of the newest one that is noted."""
    _lesson: "Lesson | None" = None
    """Its inputs, until somebody asks for the timers: of most lessons nobody does."""
    _stopped: list[int] = field(default_factory=list[int])
    """Ticks of all stops, ascending."""
    _ended: deque[datetime] = field(default_factory=deque[datetime])

    def __post_init__(self) -> None:
        self._look = np.zeros(len(self.activity.replicas), dtype=np.int64)
        window = self.policy.window.total_seconds()
        self._window = Window(
            span=self.span or Clock(self.activity.times, window),
            rows=max(1, round(window / self.activity.step)),
            share=self.policy.coverage,
        )
        budget, count = self.policy.max_stops_per_day, len(self.activity.replicas)
        least = (self.policy.window + self.policy.grace).total_seconds()
        self._patience = None if budget is None else Patience(instances=count, stops_per_day=budget, least=least)
        self._timers = np.zeros(count)
        self._every = max(1, round(LEARN_EVERY / self.activity.step))
        self._rests = Rests(work=self.activity.work, span=self._window.span, before=-self._window.rows)

    def stop(self, tick: int, replicas: Replicas) -> Sequence[int]:
        now, first = self._time(tick), self._first(tick)
        self._learn(tick)
        self._rests.look(tick)
        quiet = self._rests.quiet(tick)
        marked = np.zeros_like(quiet)
        marked[list(self._marked)] = True
        asked = np.flatnonzero(replicas.ready(tick) & ((quiet & (self._look <= tick)) | (marked & ~quiet)))
        if not len(asked):
            return ()
        while self._ended and now - self._ended[0] >= budgets.HOUR:
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
            elif decision.reason is Reason.DAY_BUDGET:
                self._look[replica] = self._allowed(tick)
            elif decision.reason in _UNHEARD:
                self._look[replica] = covered_from(self.activity, replica, tick, self._window)
        return ended

    def rest(self, tick: int, replicas: Replicas) -> int:
        quiet = self._rests.quiet(tick)
        if not all(quiet[replica] for replica in self._marked):
            return tick + 1
        looks = self._look[quiet & replicas.running].tolist()
        return min(self._rests.change(tick), max(tick + 1, min(looks, default=len(self.activity.times))))

    def _due(self, replica: int, tick: int) -> int:
        """Tick of the next look at a marked one that stays quiet: its grace is over, or it was learned anew."""
        self._reckon()
        waits = max(self.policy.grace, timedelta(seconds=self._timers[replica]) - self.policy.window)
        over = (self._marked[replica] + waits - EPOCH).total_seconds()
        # a mark is written in whole seconds: the look before the last one may be late enough
        due = max(tick + 1, int(np.searchsorted(self.activity.times, over - CLOCKS)) - 1)
        return due if self._patience is None else min(due, max(tick + 1, self._learned + self._every))

    def _allowed(self, tick: int) -> int:
        """No sooner than this tick the day's budget allows one more stop."""
        if self._patience is None:
            return tick + 1
        most = int(self._patience.stops_per_day * len(self._timers) + 1e-9)
        if most < 1:
            return len(self.activity.times)
        if len(self._stopped) < most:  # on the first day, whose budget grows
            return tick + 1
        # a day after this one of the stops there is room for one more
        return max(tick + 1, self._stopped[-most] + int(DAY_S / self.activity.step))

    def _learn(self, tick: int) -> None:
        """Take in the gaps that end at this tick, and note every half an hour what the timers are to be made of."""
        if self._patience is None:
            return
        due = tick - tick % self._every
        if self._learned < due < tick:  # at a tick that was left out: nobody was stopped, no long gap ended
            self._note(due, self._patience)
        self._rests.look(tick - 1)
        gaps = (tick - 1 - np.maximum(self._rests.last, -1)) * self.activity.step
        for replica in np.flatnonzero(self.activity.work[tick] & (gaps > self._patience.least)).tolist():
            if self._lesson is not None and self._lesson.patience is self._patience:
                self._lesson = replace(self._lesson, patience=deepcopy(self._patience))
            self._patience.saw(replica, float(gaps[replica]))
        if due == tick:
            self._note(due, self._patience)

    def _note(self, tick: int, patience: Patience) -> None:
        self._rests.look(tick)
        self._lesson = Lesson(
            patience=patience,
            days=max(1, tick) * self.activity.step / DAY_S,
            idle=(tick - np.maximum(self._rests.last, -1)) * self.activity.step,
            stops=len(self._stopped),
        )
        self._learned = tick

    def _reckon(self) -> None:
        if self._lesson is not None:
            self._timers, self._lesson = self._lesson.timers(), None

    def _left_today(self, tick: int) -> int | None:
        """Stops that are left of the day's; half of a first day's at once, then in proportion."""
        if self._patience is None:
            return None
        days = tick * self.activity.step / DAY_S
        first = tick - DAY_S / self.activity.step
        lately = len(self._stopped) - bisect_right(self._stopped, first)
        return int(self._patience.stops_per_day * min(1.0, max(FIRST_DAY, days)) * len(self._timers) - lately)

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]:
        """Those of the candidates that `decide` would end: as many as are surplus, the longest idle first."""
        self._rests.look(tick)
        if count <= 0:
            return ()
        now, first = self._time(tick), self._first(tick)
        asked = self._longest(candidates, count)
        self._marked = {replica: self._time(max(0, int(self._rests.last[replica]))) for replica in asked}
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

    def unheard(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int] | None:
        """Those of the candidates whom `victims` has just asked for, if nothing is heard of any of them.

        As long as nothing is, and they are the same, `decide` keeps them. None: one has reported.
        """
        asked = self._longest(candidates, count)
        heard = self.activity.reported[self._first(tick) : tick + 1, asked]
        return None if heard.any() else asked

    def _longest(self, candidates: Sequence[int], count: int) -> Sequence[int]:
        """Twice as many as are to go: the longest idle ones."""
        return sorted(candidates, key=lambda replica: (self._rests.last[replica], replica))[: 2 * count]

    def _first(self, tick: int) -> int:
        return int(self._window.span.first(np.array([tick]))[0])

    def _time(self, tick: int) -> datetime:
        return EPOCH + timedelta(seconds=float(self.activity.times[tick]))

    def _observed(self, asked: Sequence[int], tick: int, first: int, now: datetime, replicas: Replicas) -> Observed:
        count = len(self.activity.replicas)
        instances = [self._instance(replica, now, replicas) for replica in asked]
        return Observed(
            instances=instances,
            evidence={i.id: self._evidence(r, tick, first) for i, r in zip(instances, asked, strict=True)},
            agents={i.id: READY for i in instances},
            pools={i.id: PoolView(name=i.id, policy=self.policy, floor=0, target=1) for i in instances},
            budget=budgets.in_all([budgets.of(self.policy)], count, len(self._ended), self._left_today(tick)),
            gpus_expected={"replica": 1},
            patience=self._waits(asked, tick),
        )

    def _waits(self, asked: Sequence[int], tick: int) -> dict[str, timedelta]:
        """The patience with those that are marked and quiet: nobody asks for others', and it is dear to reckon."""
        quiet = self._rests.quiet(tick)
        waiting = [replica for replica in asked if replica in self._marked and quiet[replica]]
        if self._patience is None or not waiting:
            return {}
        self._reckon()
        return {self.activity.replicas[r]: timedelta(seconds=self._timers[r]) for r in waiting}

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
        coverage = len(there) / self._window.rows
        age = self._time(tick) - self._time(first + int(there[-1])) if len(there) else None
        return Evidence(
            window=self.policy.window,
            interval=step,
            reached=True,
            engine=EngineEvidence(
                coverage=coverage,
                missed=0.0,
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
                metered=1,
                coverage=coverage,
                missed=0.0,
                newest_age=age,
                active_max=float(self.activity.active[rows, replica].max()),
                active_min=float(self.activity.active[rows, replica].min()),
                energy_changes=1.0,
            ),
        )
