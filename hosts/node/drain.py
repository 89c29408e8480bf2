"""A drain, decided: who asked, until when, and what to do now. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gpufleet.domain.drains import DrainOwner
from hosts.node.ports import EngineLoad, UnitState


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A drain that was asked for."""

    by: DrainOwner
    reason: str
    """For people."""
    asked_at: datetime
    deadline: datetime
    """When the instance, or the patience of who asked, ends."""
    notice_at: datetime | None = None
    """When the cloud gave notice that it takes the instance."""


def merge(held: Order | None, new: Order) -> Order:
    """The first owner and reason stay; a later request brings the deadline forward, or adds the cloud's notice."""
    if held is None:
        return new
    return replace(held, deadline=min(held.deadline, new.deadline), notice_at=held.notice_at or new.notice_at)


class DrainStep(StrEnum):
    """What to do now."""

    WAIT = "wait"
    STOP = "stop the engine"
    KILL = "kill the engine"
    FINISH = "say drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is known at one moment of a drain."""

    now: datetime
    engine: UnitState
    load: EngineLoad | None
    """None: cannot be known."""
    quiet_since: datetime | None
    """Since when nothing ran, nothing waited and no router could send, as far as seen in this drain."""
    stopping_since: datetime | None
    """When the engine was asked to stop."""


def next_move(order: Order, scene: Scene, *, margin: timedelta, settle: timedelta) -> DrainStep:
    """What to do at this moment.

    `margin`: time before the deadline that is kept for stopping the engine; a quarter of it for killing what hangs.
    `settle`: how long the engine must have been quiet: what a router sent before it knew arrives in that time.
    """
    if scene.engine in (UnitState.INACTIVE, UnitState.FAILED):
        return DrainStep.FINISH
    if scene.stopping_since is not None:
        patience = min(order.deadline - margin / 4, scene.stopping_since + margin)
        # an engine that was told to stop in time, with nothing running, may take its margin; one that is late, less
        return DrainStep.KILL if scene.now >= max(patience, scene.stopping_since + margin / 4) else DrainStep.WAIT
    if scene.now >= _latest_stop(order, margin=margin, settle=settle):
        return DrainStep.STOP
    if scene.quiet_since is not None and scene.now - scene.quiet_since >= settle:
        return DrainStep.STOP
    return DrainStep.WAIT


def _latest_stop(order: Order, *, margin: timedelta, settle: timedelta) -> datetime:
    """When the engine is stopped, whatever runs: the margin before the deadline.

    After a notice that comes later than that, routers are notified first, within the margin: an engine
    that stops answers requests with 500.
    """
    notified = min(order.asked_at + settle, order.deadline - margin / 4)
    return max(order.deadline - margin, notified)


def is_quiet(load: EngineLoad | None) -> bool:
    """Nothing runs and nothing waits, and that is known."""
    return load is not None and load.running == 0 and load.waiting == 0
