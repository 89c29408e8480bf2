"""What a group tried and what became of it, in words that both clouds share."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpufleet.domain.codes import Code


class ActivityKind(Code):
    """What happened to a group."""

    LAUNCHED = "launched", "launched"
    NO_CAPACITY = "no_capacity", "no capacity"
    """The zone has none of the wanted machines now."""
    QUOTA = "quota", "quota"
    """The account's limit is reached: waiting or another zone does not help."""
    PRICE = "price", "price"
    """The market asks more than the group's highest price."""
    LAUNCH_FAILED = "launch_failed", "launch failed"
    """For another reason: a broken template, a missing permission."""
    PREEMPTED = "preempted", "preempted"
    """The cloud took a spot instance."""
    UNHEALTHY = "unhealthy", "unhealthy"
    """The group ended an instance that failed its health check or its boot."""
    ENDED = "ended", "ended"
    """Ended on request."""

    @property
    def refuses(self) -> bool:
        """Whether the cloud refused what a group asked for. An unknown kind is not capacity, so it counts as one."""
        return self in _REFUSALS or not self.known


_REFUSALS: Final = frozenset(
    {ActivityKind.NO_CAPACITY, ActivityKind.QUOTA, ActivityKind.PRICE, ActivityKind.LAUNCH_FAILED}
)


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


class CloudError(OSError):
    """A cloud, a metrics store or an agent could not be read or refused. `code` is its own word for why."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class ConflictError(CloudError):
    """What we saw has changed since; look again."""
