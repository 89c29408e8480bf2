"""What the list of operations tells of instances: Compute Engine shows nothing else of one that is gone."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gpufleet.domain.lives import Ending

PREEMPTED: Final = "compute.instances.preempted"
ENDS: Final = frozenset(
    {
        "delete",
        "stop",
        "compute.instances.guestTerminate",
        "compute.instances.repair.recreateInstance",
        PREEMPTED,
    }
)
"""Kinds of operations that end an instance: asked for by people, by its group, by itself, or the cloud took it.

A host error is none of them: the cloud restarts the instance."""
_INSTANCES: Final = "instances"


def instance_of(operation: Any) -> str | None:
    """Name of the instance that an operation is about; None: it is about something else (a disk is deleted, too)."""
    collection, _, name = str(operation.target_link).rpartition("/")
    return name if collection.endswith(f"/{_INSTANCES}") else None


def began(operation: Any) -> datetime:
    return datetime.fromisoformat(operation.insert_time).astimezone(UTC)


def ending(instance_id: str, told: Sequence[Any]) -> Ending:
    """One end from all operations that tell of it.

    A preemption is announced, then carried out by somebody: its own time counts only where nothing came after it.
    """
    carried_out = [operation for operation in told if operation.operation_type != PREEMPTED]
    return Ending(
        instance_id=instance_id,
        ended_at=min(began(operation) for operation in carried_out or told),
        preempted=len(carried_out) < len(told),
    )
