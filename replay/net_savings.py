"""What rules for lone replicas are worth: GPU-hours saved, less a price in GPU time for each stop.

Our rule knows the price, fixed timers do not. The best fixed timer is chosen afterwards; foresight knows how long
each idle time will be, and stops at once those that are longer than the price.
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
"""Of one stop, its cold start included."""
MINUTES: Final = np.arange(5, 241)
"""Fixed timers of which the best is looked for."""
_HOUR: Final = timedelta(hours=1)


def of(score: idle.IdleScore, price: timedelta) -> float:
    """Net GPU-hours."""
    return score.saved_rows * score.step / 3600 - score.stops * (price / _HOUR)


def compared(activity: ActivityHistory, policy: IdlePolicy, cold_start: float) -> dict[str, dict[str, float | int]]:
    """By price (`30m`): net GPU-hours by rule, of the best fixed timer with its minutes, and of foresight."""
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
    """GPU-hours saved and stops by fixed timer (`MINUTES`), as `idle.Timer` makes them, for all timers at once."""
    boot = math.ceil(cold_start / activity.step)
    least = np.ceil(MINUTES * 60.0 / activity.step).astype(np.int64)
    saved, stops = np.zeros_like(least), np.zeros_like(least)
    ticks, last, ready = len(activity.times), -1, np.zeros_like(least)
    for replica, begin, end in _idle_times(activity):
        ready = ready if replica == last else np.zeros_like(least)
        last = replica
        # of one that became ready only after its work was over the time counts from then
        over = end - np.maximum(begin, ready) - least
        stopped = over >= 0
        saved += np.maximum(over, 0)
        stops += stopped
        if end < ticks:
            ready = np.where(stopped, end + boot, ready)
    return saved * (activity.step / 3600), stops


def foresight(activity: ActivityHistory, price: timedelta) -> float:
    """Net GPU-hours of who ends each idle time that is longer than the price, from its first moment on."""
    worth = (((end - begin) * activity.step / 3600 - price / _HOUR) for _, begin, end in _idle_times(activity))
    return sum(hours for hours in worth if hours > 0)


def _idle_times(activity: ActivityHistory) -> Iterator[tuple[int, int, int]]:
    """Replica, first tick without work, first tick with work again; replica by replica, in the order of time."""
    edges = np.diff(np.pad(activity.work, ((1, 1), (0, 0)), constant_values=True).astype(np.int8), axis=0).T
    replicas, begins = np.nonzero(edges == -1)
    _, ends = np.nonzero(edges == 1)
    yield from zip(replicas.tolist(), begins.tolist(), ends.tolist(), strict=True)
