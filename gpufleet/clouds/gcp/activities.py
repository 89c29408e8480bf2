"""Activities of groups, from the operations of their zones. One list per zone covers all groups."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.cloud import compute_v1

from gpufleet.clouds.gcp.operations import ENDS, LAUNCH, OperationHistory, began, cause, finished
from gpufleet.clouds.gcp.refusals import is_account_wide, kind_of, zones_available
from gpufleet.domain.activity import Activity, ActivityKind


def activities(history: OperationHistory, group_of: Callable[[str], str | None]) -> Iterator[Activity]:
    """Launches, refusals and terminations of group members, from the result of `operations.recent`."""
    for (instance, _), operations in history.items():
        group = group_of(instance)
        if group is None:
            continue
        for operation in operations:
            if operation.operation_type == LAUNCH:
                yield _launch(operation, group, instance)
        if ends := [operation for operation in operations if operation.operation_type in ENDS]:
            yield _end(ends, group, instance)


def refusal(group: str, instance: str | None, at: Any, error: Any, activity_id: str) -> Activity:
    """A failed launch. `error` has a code, a message, and optional details."""
    kind = kind_of(error.code, error.message)
    return Activity(
        id=activity_id,
        group=group,
        kind=kind,
        at=at,
        instance_id=instance,
        detail=f"{error.code}: {error.message}",
        zones_available=zones_available(error),
        account_wide=is_account_wide(kind, error.message),
    )


def _launch(operation: Any, group: str, instance: str) -> Activity:
    if operation.status != compute_v1.Operation.Status.DONE:
        kind, at = ActivityKind.IN_PROGRESS, began(operation)
    elif not operation.error.errors:
        kind, at = ActivityKind.LAUNCHED, finished(operation)
    else:
        refused = [
            refusal(group, instance, finished(operation), error, operation.name) for error in operation.error.errors
        ]
        return next((one for one in refused if one.kind is not ActivityKind.UNKNOWN), refused[0])
    return Activity(id=operation.name, group=group, kind=kind, at=at, instance_id=instance)


def _end(ends: Sequence[Any], group: str, instance: str) -> Activity:
    kind, detail = cause(ends)
    first = min(ends, key=began)
    return Activity(id=first.name, group=group, kind=kind, at=began(first), instance_id=instance, detail=detail)
