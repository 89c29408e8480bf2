"""How long each instance is to be left alone, by what the watchdog itself saw of its pool's past rests. Pure.

Each mark that was taken away because work was back is a rest that ended; each end by the watchdog is a rest that was
cut off. Where less than a day of it is known nothing is said, and the policy's window and grace decide.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from gpufleet.domain.decisions import Action, PastAction, Reason
from gpufleet.domain.model import Instance
from gpufleet.domain.policies import IdlePolicy
from watchdogs.idle.patience import DAY, Patience

HISTORY: Final = timedelta(days=7)
"""How far back rests are looked at: a whole week has its week-end."""
LEAST_HISTORY: Final = timedelta(days=1)
"""Shorter ones have not seen a whole day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A time without work, as long as the watchdog saw it."""

    instance: str
    seconds: float
    cut: bool
    """Whether it was cut off by an end: how long it would have been, nobody knows."""


def patience(
    instances: Sequence[Instance], actions: Sequence[PastAction], policies: Mapping[str, IdlePolicy], now: datetime
) -> dict[str, timedelta]:
    """By instance: idle time after which its end is worth a stop. Absent: not known, or stops are not limited.

    `actions` of the last `HISTORY`, oldest first; `policies` by pool. Never shorter than window and grace together.
    """
    by_pool: dict[str | None, list[PastAction]] = {}
    for past in actions:
        by_pool.setdefault(past.pool, []).append(past)
    members: dict[str | None, list[Instance]] = {}
    for instance in instances:
        if instance.alive:
            members.setdefault(instance.pool, []).append(instance)
    found: dict[str, timedelta] = {}
    for pool, policy in policies.items():
        mine, there = by_pool.get(pool, []), members.get(pool, [])
        if policy.max_stops_per_day is not None and there and mine and now - mine[0].at >= LEAST_HISTORY:
            found |= _of_pool(there, mine, policy, policy.max_stops_per_day, now)
    return found


def _of_pool(
    members: Sequence[Instance], actions: Sequence[PastAction], policy: IdlePolicy, budget: float, now: datetime
) -> dict[str, timedelta]:
    rows = {instance.id: row for row, instance in enumerate(members)}
    past = rests(actions, policy.window)
    # what instances did that are gone is the pool's past: together they are one more row
    gone = len(members)
    count = gone + any(rest.instance not in rows for rest in past)
    least = (policy.window + policy.grace).total_seconds()
    known = Patience(instances=count, stops_per_day=budget, least=least)
    for rest in past:
        (known.cut if rest.cut else known.saw)(rows.get(rest.instance, gone), rest.seconds)
    idle = np.zeros(count)
    for instance in members:
        if instance.idle_since is not None:
            idle[rows[instance.id]] = (now - instance.idle_since + policy.window).total_seconds()
    # what a day did not spend is not there on the next one: the budget is a day's
    timers = known.timers((now - actions[0].at).total_seconds() / DAY, idle, done=None)
    return {instance.id: timedelta(seconds=float(timers[rows[instance.id]])) for instance in members}


def rests(actions: Iterable[PastAction], window: timedelta) -> list[Rest]:
    """The rests that the actions show. A mark came after a whole window without work.

    A mark that people or a restart took away says nothing of when work would have come.
    """
    marks: dict[str, datetime] = {}
    found: list[Rest] = []
    for past in actions:
        if past.action is Action.MARK:
            marks[past.resource] = past.at
            continue
        marked = marks.pop(past.resource, None)
        cut = past.action in (Action.END, Action.STOP)
        if marked is not None and (cut or past.reason is Reason.WORK_IS_BACK):
            seconds = (past.at - marked + window).total_seconds()
            found.append(Rest(instance=past.resource, seconds=seconds, cut=cut))
    return found
