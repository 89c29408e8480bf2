"""Recorded replicas played to a rule that stops them; what a stopped one would do is unserved until it has booted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from replay.activity import Activity, Bools, Ints
from replay.rests import next_work

NEVER: Final = -(1 << 40)


@dataclass(slots=True)
class Replicas:
    """Where each replica stands at a tick."""

    running: Bools
    ready_at: Ints
    """Tick from which it serves."""
    launched: Ints
    """Tick of its last launch; far in the past for those that were there from the beginning."""

    def ready(self, tick: int, which: npt.NDArray[np.intp] | slice = slice(None)) -> Bools:
        return self.running[which] & (self.ready_at[which] <= tick)


@dataclass(slots=True)
class Score:
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


class AloneRule(Protocol):
    """Says which replicas to stop now, and when it is to be asked again."""

    name: str

    def stop(self, tick: int, replicas: Replicas) -> Sequence[int]: ...

    def rest(self, tick: int, replicas: Replicas) -> int:
        """The first tick after this one at which it may want something, or must see what happens."""
        ...


def play_alone(activity: Activity, rule: AloneRule, cold_start: float) -> Score:
    """Each replica is alone: work wakes it, and goes unserved until it has booted."""
    score, boot = begin(activity, rule.name, cold_start)
    never: Ints = np.full(score.replicas, NEVER, dtype=np.int64)
    replicas = Replicas(running=np.ones(score.replicas, dtype=np.bool_), ready_at=never, launched=never.copy())
    wakes: Ints = np.full(score.replicas, score.ticks, dtype=np.int64)  # of those that are stopped: their next work
    tick = 0
    while tick < score.ticks:
        work = activity.work[tick]
        woken = work & ~replicas.running
        if woken.any():
            _launch(replicas, np.flatnonzero(woken), tick, boot)
            score.wakes += int(woken.sum())
            wakes[woken] = score.ticks
        booting = replicas.running & (replicas.ready_at > tick)
        if booting.any():
            score.unserved += float(activity.active[tick][booting].sum()) * activity.step
        score.saved_rows += len(work) - int(replicas.running.sum())
        stopped = rule.stop(tick, replicas)
        _stop(activity, replicas, score, tick, stopped)
        for replica in stopped:
            wakes[replica] = next_work(activity.work, replica, tick)
        following = tick + 1 if booting.any() else min(rule.rest(tick, replicas), int(wakes.min()))
        score.saved_rows += (following - tick - 1) * (len(work) - int(replicas.running.sum()))
        tick = following
    return score


def begin(activity: Activity, rule: str, cold_start: float) -> tuple[Score, int]:
    """What is counted from the history alone, and the ticks that a boot takes."""
    ticks, count = int(activity.work.shape[0]), int(activity.work.shape[1])
    score = Score(rule=rule, replicas=count, hours=activity.hours, ticks=ticks, step=activity.step)
    score.idle_rows = int(np.count_nonzero(activity.reported & ~activity.work))
    score.work = float(activity.active.sum(dtype=np.float64)) * activity.step
    return score, math.ceil(cold_start / activity.step)


def _launch(replicas: Replicas, which: npt.NDArray[np.intp], tick: int, boot: int) -> None:
    replicas.running[which] = True
    replicas.ready_at[which] = tick + boot
    replicas.launched[which] = tick


def _stop(activity: Activity, replicas: Replicas, score: Score, tick: int, which: Sequence[int]) -> None:
    for replica in which:
        replicas.running[replica] = False
        score.stops += 1
        score.wrong_stops += _worked(activity, replica, tick)


def _worked(activity: Activity, replica: int, tick: int) -> bool:
    """Whether a replica has work in one of its two newest rows; ticks at which nobody heard of it are looked past."""
    end, span = tick + 1, 2
    while True:
        first = max(0, end - span)
        work = activity.work[first:end, replica]
        heard = work[activity.reported[first:end, replica] | work]
        if len(heard) >= 2 or first == 0:
            return bool(heard[-2:].any())
        span *= 4
