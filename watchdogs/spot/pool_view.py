"""Facts about a pool for the spot watchdog. Pure types."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from gpufleet.domain.activity import Activity
from gpufleet.domain.boots import BOOT_LIMIT, Boot
from gpufleet.domain.decisions import Objection
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType
from gpufleet.domain.policies import SpotPolicy
from watchdogs.boots import DEFAULT_BOOT
from watchdogs.spot import risk


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMember:
    """One instance of a group."""

    id: str
    group: str
    launched_at: datetime
    ready_since: datetime | None = None
    """None: it is not ready."""
    not_ready_since: datetime | None = None
    """Start of the present time without readiness, as the agent or the ledger states it; of a draining instance, the
    start of its drain. None: it is ready, or only the end of its expected boot is known."""
    agent_unreachable: bool = False
    """Its agent does not answer, so it cannot be drained."""
    asked: bool = False
    """Whether this watchdog asked it to drain recently, and its end was not observed."""
    late: bool = False
    """It has not been ready for so long that it does not count (`lifecycle.with_late`)."""
    leaving: bool = False
    """It drains or is under notice: it does not count any more."""
    drain_by: DrainOwner | None = None
    """Who asked for its drain."""
    under_notice: bool = False
    """The cloud has announced that it reclaims it, whoever asked for its drain."""
    left_to_its_cloud: bool = False
    """Its cloud reclaims it without a charge, unless a watchdog ends it first."""
    leaving_because: str = ""
    """The reason of its agent, for people."""
    drained: bool = False
    """Nothing runs there any more."""
    failed: bool = False
    """Its agent reports a failure: it serves no more, or never did."""
    crashed_at: datetime | None = None
    """If it failed after it had served: since when it does not serve. None: if it failed, its boot failed."""
    progresses: bool = False
    """Its agent reports boot progress."""
    boot_expected: timedelta | None = None
    """Expected boot duration of its machine type in this pool; None: unknown."""
    error: str = ""
    """The error that its agent reports."""
    requests_in_flight: float = 0
    """Of two candidates, the one with fewer is ended."""
    usd_per_hour: Decimal | None = None
    is_marked: bool = False
    """The idle watchdog has marked it. A marked candidate is ended first."""
    kept_by: str | None = None
    """Who asked to keep it, by a brake or a tag: it is not ended for others."""
    ends_at: datetime | None = None
    """When the cloud ends it in any case (flex-start)."""
    frozen: Objection | None = None
    """Why nothing is decided about it: too little is known. It counts as present."""

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
    awaited: bool = False
    """This pass has requested instances of it and waits for its answer."""
    unseen: int = 0
    """Instances that it lists but that are not observed alive: ended ones not yet replaced, or very new ones."""
    taken: tuple[str, ...] = ()
    """Instances of `unseen` that the cloud reclaimed: each still counts in the desired size."""
    usd_per_hour: Decimal | None = None
    """Current price of its cheapest allowed machine type; None: unknown."""
    max_usd_per_hour: Decimal | None = None
    """List price of its most expensive allowed machine type; None: a price is unknown."""
    losses_per_hour: float = 0.1
    """Expected losses per hour in its zone (`risk.ZoneHistory`)."""
    opens: datetime | None = None
    """Start of the purchased period: nothing can be started before."""
    closes: datetime | None = None
    """When the cloud starts to end what runs there."""
    suspended: str = ""
    """Suspended processes, for people."""
    closed: Objection | None = None
    """Why no more instances are requested of it."""
    frozen: Objection | None = None
    """Why nothing is decided about it. Nothing is requested of it either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """An engine that served and then failed."""

    at: datetime
    replaced: bool = False
    """Its group has launched a replacement by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPoolView:
    """One pool, at one observation of a pass."""

    name: str
    target: int
    spare: int
    max: int
    policy: SpotPolicy
    groups: Sequence[GroupView]
    members: Sequence[PoolMember]
    events: Sequence[Activity]
    """Activities of its groups, oldest first."""
    pass_started: datetime
    """A zone that refused since then is not asked again in this pass."""
    asked_since: datetime | None = None
    """Since when this pass waits for answers of its groups; None: it does not."""
    boots: Sequence[Boot] = ()
    """Boots of its instances, oldest launch first: of existing instances, and of those that ended recently."""
    crashes: Sequence[Crash] = ()
    """Crashes for which instances were ended, oldest first."""
    min_target: int = 0
    """The idle watchdog does not lower the target further: min of the pool, or the target that a person holds."""
    retry_requested_at: datetime | None = None
    """When a person requested that boots are tried again."""
    on_demand_usd: Decimal | None = None
    boot_expected: timedelta = DEFAULT_BOOT
    boot_limit: timedelta = BOOT_LIMIT
    """Longest duration of a boot: the agent ends it then, even if it makes progress."""
    drain_deadline: timedelta = timedelta(minutes=5)
    idle_ends: bool = True
    """Whether an idle watchdog ends what it has drained."""
    paused_by: str | None = None
    policy_seen: bool = True
    ended_this_hour: int = 0
    """Ends by the choice of this watchdog."""
    started_this_hour: int = 0
    """Starts in all its groups, ended instances included."""
    uncertain: Objection | None = None
    """Why no instance of it is ended by choice: a part of it could not be read."""
    incomplete: Objection | None = None
    """Why nothing of it is ended or made smaller: a list of all pools could not be read, so an old one is used."""

    def members_of(self, group: str) -> Sequence[PoolMember]:
        return [member for member in self.members if member.group == group]

    def events_of(self, group: str) -> Sequence[Activity]:
        """Oldest first."""
        return [event for event in self.events if event.group == group]

    def groups_of(self, capacity_type: CapacityType) -> Sequence[GroupView]:
        return [group for group in self.groups if group.capacity_type is capacity_type]

    def spot_placements(self) -> Sequence[risk.ZonePlacement]:
        """Its spot groups, the cheapest first."""
        return sorted(map(_place, self.groups_of(CapacityType.SPOT)), key=lambda place: place.usd_per_hour)

    def fallback(self) -> GroupView | None:
        """The group that replaces missing spot: on-demand, or flex-start if the pool has that instead."""
        found = [*self.groups_of(CapacityType.ON_DEMAND), *self.groups_of(CapacityType.FLEX_START)]
        return found[0] if found else None


def _place(group: GroupView) -> risk.ZonePlacement:
    return risk.ZonePlacement(
        name=group.name,
        region=risk.region_of(group.zone or group.name),
        losses_per_hour=group.losses_per_hour,
        usd_per_hour=risk.UNKNOWN_PRICE if group.usd_per_hour is None else group.usd_per_hour,
    )
