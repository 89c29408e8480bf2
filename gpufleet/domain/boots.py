"""What passes observed of an instance from its launch until it left its group. Types only, no I/O."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.activity import ActivityKind

BOOT_LIMIT: Final = timedelta(minutes=48)
"""Default limit for all steps of a boot together: `BootLimits` of an instance's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """One run of an instance in a group. Instance and launch time identify it: a machine can start more than once."""

    instance_id: str
    pool: str
    group: str
    machine_type: str
    launched_at: datetime
    first_seen_at: datetime
    """The first pass that found it alive in its group."""
    last_seen_at: datetime
    """The last pass that found it alive there and not ready; constant after `ready_at`."""
    ready_at: datetime | None = None
    """When its agent was first ready; None if no pass has observed it ready."""
    left_at: datetime | None = None
    """The first pass that did not find it alive in its group. It ended between the previous pass and this one."""
    ended_why: ActivityKind | None = None
    """Why it ended; None if it still runs, or if the cause is not known yet."""

    @property
    def key(self) -> tuple[str, datetime]:
        """The key of this run within a fleet."""
        return self.instance_id, self.launched_at

    @property
    def took(self) -> timedelta | None:
        """Time from launch to ready; None if no pass has observed it ready."""
        return None if self.ready_at is None else self.ready_at - self.launched_at
