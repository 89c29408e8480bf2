"""The scaling activities of a group and their results, in terms common to both clouds."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpufleet.domain.codes import Code


class ActivityKind(Code):
    """What happened to a group or to one of its instances. Each cloud's adapter maps cloud messages to these."""

    LAUNCHED = "launched", "launched"
    IN_PROGRESS = "in_progress", "in progress"
    """A launch or a termination that has not finished."""
    # Refused launches.
    NO_CAPACITY = "no_capacity", "no capacity"
    """The zone currently has no capacity for the machine type."""
    RESERVATION_FULL = "reservation_full", "reservation full"
    """The group's reservation has no free slot now. This does not imply anything about the zone."""
    QUOTA = "quota", "quota"
    """The account's quota is reached: waiting or another zone does not help."""
    PRICE = "price", "price"
    """The market price is above the group's maximum price."""
    UNSUPPORTED = "unsupported", "unsupported here"
    """The zone or the account does not offer this machine type."""
    PERMISSION = "permission", "permission missing"
    CONFIGURATION = "configuration", "configuration"
    """The group's configuration is invalid: a subnet without addresses, an organization policy, a broken template."""
    UNKNOWN = "unknown", "unknown"
    """A refusal or a termination with a message that no rule matches. It never counts as missing capacity."""
    # Launches without a decision.
    THROTTLED = "throttled", "throttled"
    """The cloud throttled the call. This does not imply anything about capacity or quota."""
    LATER = "later", "later"
    """The cloud requests a retry: a resource for the launch is not ready."""
    # Terminations.
    FAILED_BOOT = "failed_boot", "failed boot"
    """The instance ended before it was in service, by itself or through its group."""
    PREEMPTED = "preempted", "preempted"
    """The cloud preempted a spot instance."""
    UNHEALTHY = "unhealthy", "unhealthy"
    """The group or the cloud terminated the instance because a health check failed."""
    ENDED = "ended", "ended"
    """Terminated through its group, on request."""
    ENDED_BY_PERSON = "ended_by_person", "ended by a person"
    """A user or an external program terminated or stopped the instance."""
    ENDED_UNSTATED = "ended_unstated", "ended without a stated cause"
    """The group only detected that the instance is missing. The instance, its notice or the ledger may know why."""

    @property
    def refuses(self) -> bool:
        """Whether the cloud refused a group's request. An unknown kind, from a newer release, counts as a refusal."""
        return self in _REFUSALS or not self.known

    @property
    def lasts(self) -> bool:
        """Whether a refusal is permanent: only other settings or another account change it."""
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
    """One activity of a group."""

    id: str
    group: str
    kind: ActivityKind
    at: datetime
    instance_id: str | None = None
    detail: str = ""
    """The cloud's message."""
    zones_available: tuple[str, ...] = ()
    """Zones with the refused capacity, if the refusal names any."""
    account_wide: bool = False
    """Whether the quota applies to all regions and capacity types: no other group of the account helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupActivities:
    """What passes have read about the activities of one group."""

    group: str
    desired: int
    members: frozenset[str]
    leaving: frozenset[str]
    """`desired`, `members` and `leaving` date from the last query of the group, or from its first sight."""
    read_at: datetime | None = None
    """Time of the last query; None if there was none."""
    silent_at: datetime | None = None
    """When the last wait for an answer ended without success; None if there was none."""
    events: tuple[Activity, ...] = ()


class CloudError(OSError):
    """A cloud, a metrics store or an agent could not be read, or refused a call. `code` is its error code."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class UnreadableError(CloudError):
    """One item of a list cannot be read, although the list is complete."""

    def __init__(self, item: str, message: str) -> None:
        super().__init__(message)
        self.item = item


class ConflictError(CloudError):
    """The state has changed since it was read: read it again."""
