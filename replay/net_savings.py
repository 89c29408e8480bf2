"""Compares rules for single replicas by net savings: GPU-hours saved minus a cost in GPU time for each stop.

The production rule knows this cost; fixed timers do not. The best fixed timer is chosen in hindsight. Foresight knows
the length of each idle period, and stops a replica immediately if the period is longer than the cost.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Final

import numpy as np

from gpufleet.domain import durations
from gpufleet.domain.policies import IdlePolicy
from replay import idle
from replay.histories import ActivityHistory, Ints
from replay.rows import Floats

PRICES: Final = (timedelta(minutes=30), timedelta(minutes=60))
"""Costs of one stop, including its cold start."""
MINUTES: Final = np.arange(5, 241)
"""Fixed timers in minutes, from which the best is chosen."""
_HOUR: Final = timedelta(hours=1)


def of(score: idle.IdleScore, price: timedelta) -> float:
    """Return net GPU-hours."""
    return score.saved_rows * score.step / 3600 - score.stops * (price / _HOUR)


def compared(activity: ActivityHistory, policy: IdlePolicy, cold_start: float) -> dict[str, dict[str, float | int]]:
    """Return net GPU-hours by cost (`30m`) and rule. The result includes the best fixed timer with its minutes, and
    foresight.
    """
    saved, stops = fixed_timers(activity, cold_start)
    found: dict[str, dict[str, float | int]] = {}
    for price in PRICES:
        priced = replace(policy, stop_price=price)
        own = idle.play(activity, idle.rule("own", activity, priced), cold_start)
        fixed = saved - stops * (price / _HOUR)
        nets = {
            "own": of(own, price),
            **{name: float(fixed[round(after / 60) - MINUTES[0]]) for name, after in idle.TIMERS.items()},
            "best_timer": float(fixed.max()),
            "foresight": foresight(activity, price),
        }
        shown = {name: round(net, 6) for name, net in nets.items()}
        best = int(MINUTES[fixed.argmax()])
        found[durations.render(price)] = {**shown, "best_timer_minutes": best, "own_wrong_stops": own.wrong_stops}
    return found


def fixed_timers(activity: ActivityHistory, cold_start: float) -> tuple[Floats, Ints]:
    """Return GPU-hours saved and stops by fixed timer (`MINUTES`). The results equal those of `FixedTimerRule`, but
    all timers are computed at once.
    """
    boot = math.ceil(cold_start / activity.step)
    least = np.ceil(MINUTES * 60.0 / activity.step).astype(np.int64)
    saved, stops = np.zeros_like(least), np.zeros_like(least)
    ticks, last, ready = len(activity.times), -1, np.zeros_like(least)
    for replica, begin, end in _idle_times(activity):
        ready = ready if replica == last else np.zeros_like(least)
        last = replica
        # if a replica becomes ready only after its work ended, the idle time starts when it is ready
        over = end - np.maximum(begin, ready) - least
        stopped = over >= 0
        saved += np.maximum(over, 0)
        stops += stopped
        if end < ticks:
            ready = np.where(stopped, end + boot, ready)
    return saved * (activity.step / 3600), stops


def foresight(activity: ActivityHistory, price: timedelta) -> float:
    """Return the net GPU-hours of a rule that stops at the start of each idle period that is longer than the cost."""
    worth = (((end - begin) * activity.step / 3600 - price / _HOUR) for _, begin, end in _idle_times(activity))
    return sum(hours for hours in worth if hours > 0)


def _idle_times(activity: ActivityHistory) -> Iterator[tuple[int, int, int]]:
    """Yield replica, first tick without work and first tick with work again, in the order of replicas, then time."""
    edges = np.diff(np.pad(activity.work, ((1, 1), (0, 0)), constant_values=True).astype(np.int8), axis=0).T
    replicas, begins = np.nonzero(edges == -1)
    _, ends = np.nonzero(edges == 1)
    yield from zip(replicas.tolist(), begins.tolist(), ends.tolist(), strict=True)
