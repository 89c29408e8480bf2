"""What passes saw of an instance from its launch until it left its group. Pure types."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.activity import ActivityKind

BOOT_LIMIT: Final = timedelta(minutes=48)
"""How long the steps of a boot may take together by default: `BootLimits` of an instance's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """One life of an instance in a group. The instance and its launch identify it: a machine may start again."""

    instance_id: str
    pool: str
    group: str
    machine_type: str
    launched_at: datetime
    first_seen_at: datetime
    """The first look at which it was alive in its group."""
    last_seen_at: datetime
    """The last look at which it was alive there and not ready; it does not move after `ready_at`."""
    ready_at: datetime | None = None
    """When its agent was ready first; None: no look has seen it ready."""
    left_at: datetime | None = None
    """The first look at which it was not alive in its group any more: it ended between that and the look before."""
    ended_why: ActivityKind | None = None
    """Why it ended; None: it is there, or nobody has stated why yet."""

    @property
    def key(self) -> tuple[str, datetime]:
        """What identifies it within a fleet."""
        return self.instance_id, self.launched_at

    @property
    def took(self) -> timedelta | None:
        """From launch to ready; None: no look has seen it ready."""
        return None if self.ready_at is None else self.ready_at - self.launched_at
