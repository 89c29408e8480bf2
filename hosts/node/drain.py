"""Decides about a drain: its owner, its deadline and the next step. No I/O."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gpufleet.domain.drains import DrainOwner
from hosts.node.ports import EngineLoad, UnitState


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A requested drain."""

    by: DrainOwner
    reason: str
    """Text for people."""
    asked_at: datetime
    deadline: datetime
    """When the instance is terminated, or when the owner of the drain stops waiting."""
    notice_at: datetime | None = None
    """When the cloud announced that it preempts the instance."""


def merge(held: Order | None, new: Order) -> Order:
    """Merge two drains: keep the first owner and reason, the earlier deadline, and the cloud's notice if any."""
    if held is None:
        return new
    return replace(held, deadline=min(held.deadline, new.deadline), notice_at=held.notice_at or new.notice_at)


class DrainStep(StrEnum):
    """What the agent does next in a drain."""

    WAIT = "wait"
    STOP = "stop the engine"
    KILL = "kill the engine"
    FINISH = "report drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainFacts:
    """The facts known at one moment of a drain."""

    now: datetime
    engine: UnitState
    load: EngineLoad | None
    """None if unknown."""
    quiet_since: datetime | None
    """Start of the idle period: no request runs or waits and no router can send one, as observed in this drain."""
    stopping_since: datetime | None
    """When the agent asked systemd to stop the engine."""


def next_step(order: Order, facts: DrainFacts, *, margin: timedelta, quiet_time: timedelta) -> DrainStep:
    """Return the next step of the drain.

    `margin`: time before the deadline that is reserved for stopping the engine; the last quarter of it is reserved
    for killing an engine that hangs. `quiet_time`: how long the engine must be idle before it is stopped;
    requests that a router sent before it was notified arrive in that time.
    """
    if facts.engine in (UnitState.INACTIVE, UnitState.FAILED):
        return DrainStep.FINISH
    if facts.stopping_since is not None:
        kill_at = min(order.deadline - margin / 4, facts.stopping_since + margin)
        # An engine stopped early, with no requests, gets the whole margin to stop; one stopped late gets less.
        return DrainStep.KILL if facts.now >= max(kill_at, facts.stopping_since + margin / 4) else DrainStep.WAIT
    if facts.now >= _latest_stop(order, margin=margin, quiet_time=quiet_time):
        return DrainStep.STOP
    if facts.quiet_since is not None and facts.now - facts.quiet_since >= quiet_time:
        return DrainStep.STOP
    return DrainStep.WAIT


def _latest_stop(order: Order, *, margin: timedelta, quiet_time: timedelta) -> datetime:
    """Return when the engine is stopped even if requests run: `margin` before the deadline.

    If the notice arrives later than that, routers are notified first, within the margin: an engine that is stopping
    answers requests with status 500.
    """
    notified = min(order.asked_at + quiet_time, order.deadline - margin / 4)
    return max(order.deadline - margin, notified)


def is_quiet(load: EngineLoad | None) -> bool:
    """Return whether the load is known and no request runs or waits."""
    return load is not None and load.running == 0 and load.waiting == 0
