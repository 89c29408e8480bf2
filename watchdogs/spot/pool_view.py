"""What the spot watchdog knows of a pool. Pure types."""

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
from watchdogs.boots import BOOT_DEFAULT
from watchdogs.spot import risk


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMember:
    """One instance of a group."""

    id: str
    group: str
    launched_at: datetime
    ready_since: datetime | None = None
    """None: not ready (yet)."""
    missed_since: datetime | None = None
    """Of one that is not ready: since when that is known; None: since its boot should be over."""
    silent: bool = False
    """Its agent does not answer: it cannot be asked to drain."""
    asked: bool = False
    """Whether this watchdog asked it to drain a short while ago, and its end was not seen."""
    late: bool = False
    """It has not been ready for so long that it counts no more (`presence`)."""
    leaving: bool = False
    """It drains, or a notice was given: it does not count any more."""
    drain_by: DrainOwner | None = None
    """Who asked for its drain."""
    under_notice: bool = False
    """The cloud has said that it takes it, whoever asked for its drain."""
    left_to_its_cloud: bool = False
    """Its cloud takes it and charges nothing for it, unless we end it first."""
    leaving_because: str = ""
    """Its agent's reason, for people."""
    drained: bool = False
    """Nothing runs there any more."""
    failed: bool = False
    """Its agent gave up: it serves no more, or never did."""
    crashed_at: datetime | None = None
    """Of one that failed and had served before: since when it serves no more. None: its boot failed, if anything."""
    progresses: bool = False
    """Its agent answers, and boots."""
    boot_expected: timedelta | None = None
    """What boots of its machine type took in this pool; None: none is remembered."""
    error: str = ""
    """What its agent says is wrong."""
    busy: float = 0
    """Requests in flight: of two that may go, the less busy one goes."""
    usd_per_hour: Decimal | None = None
    idle: bool = False
    """The idle watchdog has marked it: of two that may go, this one goes."""
    kept_by: str | None = None
    """Who asked to keep it, by a brake or a tag: it is not given up for others."""
    ends_at: datetime | None = None
    """When the cloud ends it, whatever it does (flex-start)."""
    held: Objection | None = None
    """Why nothing is decided about it: too little is known of it. It counts as present."""

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
    """This pass has asked it for instances and waits for its answer."""
    unseen: int = 0
    """Instances that it lists and nobody sees alive: dead ones, before it looks for others, or very new ones."""
    taken: tuple[str, ...] = ()
    """Of these the ones that the cloud took: each still has its place in the desired size."""
    usd_per_hour: Decimal | None = None
    """Of its cheapest allowed machine type now; None: unknown."""
    most_usd_per_hour: Decimal | None = None
    """Of its dearest one; None: unknown of one of them."""
    losses_per_hour: float = 0.1
    """How often the zone is expected to lose us (`memory`)."""
    opens: datetime | None = None
    """Of capacity bought for a time: nothing can be started there before."""
    closes: datetime | None = None
    """From when on the cloud ends what runs there."""
    suspended: str = ""
    """What it does not do for now, for people."""
    closed: Objection | None = None
    """Why it is not asked for more."""
    frozen: Objection | None = None
    """Why nothing is decided about it; it is not asked either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """An engine that served and then failed."""

    at: datetime
    replaced: bool = False
    """Its group has launched another one by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPool:
    """One pool, at one look of one pass."""

    name: str
    target: int
    spare: int
    max: int
    policy: SpotPolicy
    groups: Sequence[GroupView]
    members: Sequence[PoolMember]
    events: Sequence[Activity]
    """What happened to its groups, oldest first."""
    pass_started: datetime
    """A zone that refused since then is not asked again in this pass."""
    asked_since: datetime | None = None
    """Since when this pass waits for answers of its groups; None: it has asked none."""
    boots: Sequence[Boot] = ()
    """How its instances booted and left, oldest launch first: those that are there, and those that left lately."""
    crashes: Sequence[Crash] = ()
    """Of instances that were ended for it, oldest first."""
    least_target: int = 0
    """Idle lowers the target no further: the pool's min, or what a person holds it at."""
    fixed_at: datetime | None = None
    """When a person said that boots are to be tried again."""
    on_demand_usd: Decimal | None = None
    boot_expected: timedelta = BOOT_DEFAULT
    boot_limit: timedelta = BOOT_LIMIT
    """After this long an agent has ended a boot that it still reports progress of."""
    drain_deadline: timedelta = timedelta(minutes=5)
    idle_ends: bool = True
    """Whether an idle watchdog ends what it has drained."""
    paused_by: str | None = None
    policy_seen: bool = True
    ended_this_hour: int = 0
    """By this watchdog's own choice."""
    started_this_hour: int = 0
    """Instances of all its groups, also those that are gone."""
    uncertain: Objection | None = None
    """Why nothing of it is ended by choice: a part of it could not be read."""
    incomplete: Objection | None = None
    """Why nothing of it is ended or made smaller: a list of all pools could not be read, and an old one is used."""

    def members_of(self, group: str) -> Sequence[PoolMember]:
        return [member for member in self.members if member.group == group]

    def events_of(self, group: str) -> Sequence[Activity]:
        """Oldest first."""
        return [event for event in self.events if event.group == group]

    def groups_of(self, capacity_type: CapacityType) -> Sequence[GroupView]:
        return [group for group in self.groups if group.capacity_type is capacity_type]

    def spot_places(self) -> Sequence[risk.ZonePlacement]:
        """Its spot groups, the cheaper first."""
        return sorted(map(_place, self.groups_of(CapacityType.SPOT)), key=lambda place: place.usd_per_hour)

    def fallback(self) -> GroupView | None:
        """What stands in for missing spot: on-demand, or flex-start where a pool has that instead."""
        found = [*self.groups_of(CapacityType.ON_DEMAND), *self.groups_of(CapacityType.FLEX_START)]
        return found[0] if found else None


def _place(group: GroupView) -> risk.ZonePlacement:
    return risk.ZonePlacement(
        name=group.name,
        region=risk.region_of(group.zone or group.name),
        losses_per_hour=group.losses_per_hour,
        usd_per_hour=risk.UNKNOWN_PRICE if group.usd_per_hour is None else group.usd_per_hour,
    )
