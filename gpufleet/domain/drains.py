"""Who asked an instance to drain. Pure."""

from gpufleet.domain.codes import Code


class DrainOwner(Code):
    """Who asked for a drain: the first to ask owns it until it ends, and alone decides what follows it."""

    IDLE = "idle", "the idle watchdog"
    SPOT = "spot", "the spot watchdog"
    PERSON = "person", "a person"
    CLOUD = "cloud", "its cloud"
    """The cloud takes the instance, or its group ends it."""
    ROLLOUT = "rollout", "a rollout"


_BEGINNINGS = {
    "idle:": DrainOwner.IDLE,
    "spot:": DrainOwner.SPOT,
    "by hand": DrainOwner.PERSON,
    "preempted": DrainOwner.CLOUD,
    "ended by its group": DrainOwner.CLOUD,
    "a newer template": DrainOwner.ROLLOUT,
}


def owner_of_reason(reason: str) -> tuple[DrainOwner | None, bool]:
    """Owner of a drain, and whether its cloud takes the instance, where release 0.1 gives a reason but no `by`.

    0.1 is the agent, its state file or the control host. None: the reason names no owner.
    Delete this function after the next release: from then on everything that runs sends `by`.
    """
    found = next((owner for beginning, owner in _BEGINNINGS.items() if reason.startswith(beginning)), None)
    return found, reason.startswith("preempted")
