"""A drain, decided: who asked, until when, and what to do now. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from node.ports import EngineLoad, UnitState


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A drain that was asked for."""

    reason: str
    asked_at: datetime
    deadline: datetime
    """When the instance, or the patience of who asked, ends."""


def merge(held: Order | None, new: Order) -> Order:
    """Asking twice is asking once; an earlier deadline wins, and with it its reason."""
    if held is None:
        return new
    if new.deadline < held.deadline:
        return Order(reason=new.reason, asked_at=held.asked_at, deadline=new.deadline)
    return held


class Move(StrEnum):
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
    """Since when nothing ran and nothing waited, as far as seen in this drain."""
    stopping_since: datetime | None
    """When the engine was asked to stop."""


def next_move(order: Order, scene: Scene, *, margin: timedelta, settle: timedelta) -> Move:
    """What to do at this moment.

    `margin`: time before the deadline that is kept for stopping the engine; a quarter of it for killing what hangs.
    `settle`: how long the engine must have been quiet: the router needs that long to see the `drain`.
    """
    if scene.engine in (UnitState.INACTIVE, UnitState.FAILED):
        return Move.FINISH
    if scene.stopping_since is not None:
        patience = min(order.deadline - margin / 4, scene.stopping_since + margin)
        # an engine that was told to stop in time, with nothing running, may take its margin; one that is late, less
        return Move.KILL if scene.now >= max(patience, scene.stopping_since + margin / 4) else Move.WAIT
    if scene.now >= order.deadline - margin:
        return Move.STOP
    if scene.quiet_since is not None and scene.now - scene.quiet_since >= settle:
        return Move.STOP
    return Move.WAIT


def is_quiet(load: EngineLoad | None) -> bool:
    """Nothing runs and nothing waits, and that is known."""
    return load is not None and load.running == 0 and load.waiting == 0
