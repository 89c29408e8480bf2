"""What a group tried and what became of it, in words that both clouds share."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpufleet.domain.codes import Code


class ActivityKind(Code):
    """What happened to a group or to an instance of it. Each cloud's adapter maps the cloud's sentences to these."""

    LAUNCHED = "launched", "launched"
    IN_PROGRESS = "in_progress", "in progress"
    """A launch or an end that is not over."""
    # launches that were refused
    NO_CAPACITY = "no_capacity", "no capacity"
    """The zone has none of the wanted machines now."""
    RESERVATION_FULL = "reservation_full", "reservation full"
    """The reservation that the group uses has no room now. It says nothing about the zone."""
    QUOTA = "quota", "quota"
    """The account's limit is reached: waiting or another zone does not help."""
    PRICE = "price", "price"
    """The market asks more than the group's highest price."""
    UNSUPPORTED = "unsupported", "unsupported here"
    """The zone or the account does not offer this machine type."""
    PERMISSION = "permission", "permission missing"
    CONFIGURATION = "configuration", "configuration"
    """What the group asks for is wrong: a subnet without addresses, an organization's policy, a broken template."""
    UNKNOWN = "unknown", "unknown"
    """A refusal or an end in a sentence that no rule matches. It never counts as missing capacity."""
    # launches that were not decided
    THROTTLED = "throttled", "throttled"
    """Too many calls: it says nothing about capacity or quota."""
    LATER = "later", "later"
    """The cloud asks to try again: something that the launch needs is not ready."""
    # ends
    FAILED_BOOT = "failed_boot", "failed boot"
    """It ended before it was in service, by its own doing or by its group's."""
    PREEMPTED = "preempted", "preempted"
    """The cloud took a spot instance."""
    UNHEALTHY = "unhealthy", "unhealthy"
    """Its group or its cloud ended it because a health check failed."""
    ENDED = "ended", "ended"
    """Ended through its group, on request."""
    ENDED_BY_PERSON = "ended_by_person", "ended by a person"
    """A person, or a program that is not ours, ended or stopped it."""
    ENDED_UNSTATED = "ended_unstated", "ended without a stated cause"
    """The group only noticed that it is gone. The instance itself, its notice or the ledger may know why."""

    @property
    def refuses(self) -> bool:
        """Whether the cloud refused what a group asked for. What a newer release wrote counts as a refusal."""
        return self in _REFUSALS or not self.known

    @property
    def lasts(self) -> bool:
        """Whether a refusal cannot pass by waiting: only other settings or another account change it."""
        return self in _LASTING


_LASTING: Final = frozenset({ActivityKind.UNSUPPORTED, ActivityKind.PERMISSION, ActivityKind.CONFIGURATION})
_REFUSALS: Final = _LASTING | {
    ActivityKind.NO_CAPACITY,
    ActivityKind.RESERVATION_FULL,
    ActivityKind.QUOTA,
    ActivityKind.PRICE,
    ActivityKind.UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One thing that happened to a group."""

    id: str
    group: str
    kind: ActivityKind
    at: datetime
    instance_id: str | None = None
    detail: str = ""
    """The cloud's own words."""
    zones_available: tuple[str, ...] = ()
    """Zones that have what was refused here, where the refusal names any."""
    account_wide: bool = False
    """A quota of all regions and ways of buying: no other group of the account helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupActivities:
    """What passes have read of what happened to one group."""

    group: str
    desired: int
    members: frozenset[str]
    leaving: frozenset[str]
    """These three as they were when it was last asked, or first seen."""
    read_at: datetime | None = None
    """When it was last asked; None: never."""
    silent_at: datetime | None = None
    """Until when somebody last waited for its answer in vain; None: never."""
    events: tuple[Activity, ...] = ()


class CloudError(OSError):
    """A cloud, a metrics store or an agent could not be read or refused. `code` is its own word for why."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class UnreadableError(CloudError):
    """One item of a list cannot be read, though the list itself came whole."""

    def __init__(self, item: str, message: str) -> None:
        super().__init__(message)
        self.item = item


class ConflictError(CloudError):
    """What we saw has changed since; look again."""
