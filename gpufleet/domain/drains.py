"""The owners of drains. No I/O."""

from gpufleet.domain.codes import Code


class DrainOwner(Code):
    """Who requested a drain. The first requester owns it until it ends, and alone decides what follows."""

    IDLE = "idle", "the idle watchdog"
    SPOT = "spot", "the spot watchdog"
    PERSON = "person", "a person"
    CLOUD = "cloud", "its cloud"
    """The cloud preempts the instance, or its group terminates it."""
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
    """Return the owner of a drain without `by`, and whether the cloud preempts the instance, from its reason.

    Only release 0.1 (its agent, state file or control host) omits `by`. None if the reason names no owner.
    Delete this function after the next release: all supported releases send `by` then.
    """
    found = next((owner for beginning, owner in _BEGINNINGS.items() if reason.startswith(beginning)), None)
    return found, reason.startswith("preempted")
