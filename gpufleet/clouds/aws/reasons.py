"""Why an EC2 instance stopped or terminated, from its StateReason, else from its StateTransitionReason."""

import re
from collections.abc import Mapping
from typing import Any, Final

from gpufleet.domain.activity import ActivityKind

_ALIVE: Final = frozenset({"pending", "running"})
"""In these states, a reason refers to an earlier stop or has no meaning ("pending: pending")."""

_CODES: Final = (
    # EC2 API reference, StateReason. `Server.SpotInstanceShutdown`: a spot instance was stopped
    (re.compile(r"Server\.Spot\w+"), ActivityKind.PREEMPTED),
    # stop, hibernation or termination through the API. Our own groups cause it too, so callers check the ledger first
    (re.compile(r"Client\.UserInitiated\w+"), ActivityKind.ENDED_BY_PERSON),
    # terminated or restarted while a user created an image of it
    (re.compile(r"Client\.InstanceTerminated"), ActivityKind.ENDED_BY_PERSON),
    # the operating system powered it off. EC2 does not report the cause: a program, a person, or a failed boot
    (re.compile(r"Client\.InstanceInitiatedShutdown"), ActivityKind.ENDED_UNSTATED),
    (re.compile(r"Server\.Insufficient\w*Capacity"), ActivityKind.NO_CAPACITY),
    # a failure of EC2 or its hardware, or the retirement of hardware
    (re.compile(r"Server\.(InternalError|ScheduledStop)"), ActivityKind.UNHEALTHY),
    # an account limit, for example for volumes
    (re.compile(r"Client\.\w*LimitExceeded"), ActivityKind.QUOTA),
    # Auto Scaling user guide: the role has no permission for the key of an encrypted volume
    (re.compile(r"Client\.InternalError"), ActivityKind.PERMISSION),
    # recorded: Client.InvalidKMSKey.InvalidState; documented: Client.InvalidSnapshot.NotFound
    (re.compile(r"Client\.Invalid\w+"), ActivityKind.CONFIGURATION),
)
"""Patterns of StateReason codes and their meaning; the first match counts."""
_BY_USER: Final = re.compile(r"User initiated \(")
"""With a time in parentheses: an API call of the account. Stops by AWS itself were seen with the text only."""


def kind_of_code(code: str) -> ActivityKind | None:
    """Meaning of a StateReason code; None: unknown code."""
    return next((kind for pattern, kind in _CODES if pattern.match(code)), None)


def end_reason(raw: Mapping[str, Any]) -> ActivityKind | None:
    """Why an instance of DescribeInstances stopped or terminated; None: it runs, or the cause is unknown."""
    if raw["State"]["Name"] in _ALIVE:
        return None
    stated: Mapping[str, Any] = raw.get("StateReason") or {}
    transition = raw.get("StateTransitionReason") or ""
    found = kind_of_code(stated.get("Code") or "") or kind_of_code(transition)
    if found is None and _BY_USER.match(transition):
        return ActivityKind.ENDED_BY_PERSON
    return found
