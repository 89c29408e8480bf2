"""What the spot watchdog knows of a pool. Pure types."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from fleet.activity import Activity
from fleet.model import CapacityType
from fleet.policies import SpotPolicy

NOTICE: Final = "preempted"
"""How the reason of a node agent begins that drains because its cloud takes the instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One instance of a group."""

    id: str
    group: str
    launched_at: datetime
    ready_since: datetime | None = None
    """None: not ready (yet)."""
    leaving: bool = False
    """It drains, or a notice was given: it does not count any more."""
    leaving_because: str = ""
    """Its agent's reason."""
    drained: bool = False
    """Nothing runs there any more."""
    failed: bool = False
    """Its boot failed; it will never be ready."""
    busy: float = 0
    """Requests in flight: of two that may go, the less busy one goes."""
    usd_per_hour: Decimal | None = None
    idle: bool = False
    """The idle watchdog has marked it: of two that may go, this one goes."""

    @property
    def under_notice(self) -> bool:
        """The cloud has said that it takes it."""
        return self.leaving and self.leaving_because.startswith(NOTICE)

    @property
    def ready(self) -> bool:
        return self.ready_since is not None and not self.leaving


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One scaling group."""

    name: str
    capacity_type: CapacityType
    zone: str | None
    desired: int
    max: int
    usd_per_hour: Decimal | None = None
    """Of its cheapest allowed machine type now; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """One pool, at one look of one pass."""

    name: str
    target: int
    spare: int
    max: int
    policy: SpotPolicy
    groups: Sequence[GroupView]
    members: Sequence[Member]
    events: Sequence[Activity]
    """What happened to its groups, oldest first."""
    pass_started: datetime
    """A zone that refused since then is not asked again in this pass."""
    on_demand_usd: Decimal | None = None
    boot_expected: timedelta = timedelta(minutes=6)
    paused_by: str | None = None
    policy_seen: bool = True

    def members_of(self, group: str) -> list[Member]:
        return [member for member in self.members if member.group == group]

    def groups_of(self, capacity_type: CapacityType) -> list[GroupView]:
        return [group for group in self.groups if group.capacity_type is capacity_type]
