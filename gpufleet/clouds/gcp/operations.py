"""Information about instances from the list of operations, the only source for deleted instances."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.domain.activity import ActivityKind
from gpufleet.domain.instance_history import InstanceEnd

PAGE: Final = 500
OperationHistory = Mapping[tuple[str, int], Sequence[Any]]
"""Operations by instance name and numeric id. A group may recreate an instance with the same name but another id."""
LAUNCH: Final = "insert"
PREEMPTED: Final = "compute.instances.preempted"
RECREATED: Final = "compute.instances.repair.recreateInstance"
_ASKED_FOR: Final = frozenset({"delete", "stop"})
POWERED_OFF: Final = "compute.instances.guestTerminate"
ENDS: Final = frozenset({*_ASKED_FOR, POWERED_OFF, RECREATED, PREEMPTED})
"""Types of operations that end an instance: by a user, its group, the instance itself, or the cloud.

A host error is not one of them, because the cloud restarts the instance.
"""
END_OPERATIONS_SPAN: Final = timedelta(minutes=15)
"""Maximum time between the operations of one end: notice, stop, and repair by the group."""
_INSTANCES: Final = "instances"
_GROUP_AGENT: Final = re.compile(r"\d+@cloudservices\.gserviceaccount\.com")
"""Accounts with which managed instance groups create and delete instances."""
_OWN_AGENT: Final = re.compile(r"system(@google\.com)?|service-\d+@compute-system\.iam\.gserviceaccount\.com")
"""Accounts with which Compute Engine itself acts."""
_UNHEALTHY: Final = re.compile(r"unhealthy|health check|autoheal", re.IGNORECASE)


def instance_of(operation: Any) -> str | None:
    """Name of an operation's instance; None if the operation concerns another resource, such as a disk."""
    collection, _, name = str(operation.target_link).rpartition("/")
    return name if collection.endswith(f"/{_INSTANCES}") else None


def began(operation: Any) -> datetime:
    return datetime.fromisoformat(operation.insert_time).astimezone(UTC)


def finished(operation: Any) -> datetime:
    """When the operation finished; its start time if it is still in progress."""
    return datetime.fromisoformat(operation.end_time or operation.insert_time).astimezone(UTC)


def has_times(operation: Any) -> bool:
    """Whether the operation has valid times."""
    try:
        return began(operation) <= finished(operation)
    except ValueError:
        return False


def recent(calls: GoogleCalls, zone: str, since: datetime) -> OperationHistory:
    """Operations on instances of a zone since `since`, oldest first. Raises CloudError.

    Operations without valid times are omitted.
    """
    history: dict[tuple[str, int], list[Any]] = {}
    newest_key: dict[str, tuple[str, int]] = {}
    newest = calls.newest(
        "zone_operations",
        "list",
        lambda operation: has_times(operation) and began(operation) < since,
        zone=zone,
        max_results=PAGE,
    )
    for operation in filter(has_times, reversed(newest)):
        if instance := instance_of(operation):
            key = (instance, int(operation.target_id))
            if operation.operation_type == RECREATED and key not in history:
                # the group recreates a deleted instance, whose id is no longer known
                key = newest_key.get(instance, key)
            newest_key[instance] = key
            history.setdefault(key, []).append(operation)
    return history


def ending(instance_id: str, operations: Sequence[Any]) -> InstanceEnd:
    """The end of an instance, from all operations that report it.

    A preemption operation announces the end, and other operations carry it out. Its time counts only without them.
    """
    carried_out = [operation for operation in operations if operation.operation_type != PREEMPTED]
    return InstanceEnd(
        instance_id=instance_id,
        ended_at=min(began(operation) for operation in carried_out or operations),
        preempted=len(carried_out) < len(operations),
    )


def cause(ends: Sequence[Any]) -> tuple[ActivityKind, str]:
    """Why an instance ended, and the message of the operation that reports it, from all operations of its end."""
    kinds = [(_cause(operation), operation) for operation in ends]
    for kind in _BY_PRECISION:
        for found, operation in kinds:
            if found is kind:
                return kind, operation.status_message or operation.operation_type
    return ActivityKind.ENDED_UNSTATED, ends[0].status_message or ends[0].operation_type


_BY_PRECISION: Final = (
    ActivityKind.PREEMPTED,
    ActivityKind.ENDED_BY_PERSON,
    ActivityKind.UNHEALTHY,
    # before ENDED: a group deletes an instance that powered itself off or was found missing
    ActivityKind.ENDED_UNSTATED,
    ActivityKind.ENDED,
)


def _cause(operation: Any) -> ActivityKind:
    if operation.operation_type == PREEMPTED:
        return ActivityKind.PREEMPTED
    if operation.operation_type == RECREATED and _UNHEALTHY.search(operation.status_message):
        return ActivityKind.UNHEALTHY
    if operation.operation_type not in _ASKED_FOR or not operation.user:
        return ActivityKind.ENDED_UNSTATED
    by_cloud = _GROUP_AGENT.fullmatch(operation.user) or _OWN_AGENT.fullmatch(operation.user)
    return ActivityKind.ENDED if by_cloud else ActivityKind.ENDED_BY_PERSON
