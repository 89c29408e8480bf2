"""Why an EC2 instance ended, as its description states: StateReason first, then StateTransitionReason."""

import re
from collections.abc import Mapping
from typing import Any, Final

from gpufleet.domain.activity import ActivityKind

_ALIVE: Final = frozenset({"pending", "running"})
"""In these states a reason speaks of an earlier stop, or of nothing ("pending: pending")."""

_CODES: Final = (
    # EC2 API reference, StateReason; `Server.SpotInstanceShutdown` is the stop of a spot instance
    (re.compile(r"Server\.Spot\w+"), ActivityKind.PREEMPTED),
    # a stop, hibernation or end through the API, one by our own group as well: whoever reads it asks the ledger first
    (re.compile(r"Client\.UserInitiated\w+"), ActivityKind.ENDED_BY_PERSON),
    # ended or restarted while somebody made an image of it
    (re.compile(r"Client\.InstanceTerminated"), ActivityKind.ENDED_BY_PERSON),
    # its own operating system powered it off. EC2 cannot tell who: a program, a person, a boot that gave up
    (re.compile(r"Client\.InstanceInitiatedShutdown"), ActivityKind.ENDED_UNSTATED),
    (re.compile(r"Server\.Insufficient\w*Capacity"), ActivityKind.NO_CAPACITY),
    # a failure of EC2 or of its hardware, and the retirement of that
    (re.compile(r"Server\.(InternalError|ScheduledStop)"), ActivityKind.UNHEALTHY),
    # volumes: one of the account's limits
    (re.compile(r"Client\.\w*LimitExceeded"), ActivityKind.QUOTA),
    # Auto Scaling user guide: its role may not use the key of an encrypted volume
    (re.compile(r"Client\.InternalError"), ActivityKind.PERMISSION),
    # recorded: Client.InvalidKMSKey.InvalidState; documented: Client.InvalidSnapshot.NotFound
    (re.compile(r"Client\.Invalid\w+"), ActivityKind.CONFIGURATION),
)
"""Codes of StateReason by what they say, the first match counts."""
_BY_USER: Final = re.compile(r"User initiated \(")
"""With a time: by a call of the account. AWS's own stops were seen with the words alone."""


def stated_by(code: str) -> ActivityKind | None:
    """What the code of a StateReason says; None: nothing that we know."""
    return next((kind for pattern, kind in _CODES if pattern.match(code)), None)


def end_reason(raw: Mapping[str, Any]) -> ActivityKind | None:
    """Why an instance of DescribeInstances ends or ended; None: it lives, or no cause that we know is stated."""
    if raw["State"]["Name"] in _ALIVE:
        return None
    stated: Mapping[str, Any] = raw.get("StateReason") or {}
    transition = raw.get("StateTransitionReason") or ""
    found = stated_by(stated.get("Code") or "") or stated_by(transition)
    if found is None and _BY_USER.match(transition):
        return ActivityKind.ENDED_BY_PERSON
    return found
