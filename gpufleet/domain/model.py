"""What a fleet is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpufleet.domain import tags
from gpufleet.domain.activity import ActivityKind, CloudError


class Cloud(StrEnum):
    """Where instances are rented."""

    AWS = "aws"
    GCP = "gcp"


def fleet_name(cloud: str, environment: str, region: str) -> str:
    """The name of a fleet in ledger, console and logs."""
    return f"{cloud}/{environment}/{region}"


class CapacityType(StrEnum):
    """How an instance is bought."""

    RESERVED = "reserved"
    SPOT = "spot"
    ON_DEMAND = "on-demand"
    FLEX_START = "flex-start"
    """Google Cloud: waited for, cheaper than on-demand for large machines, and ended after a stated time."""


class InstanceState(StrEnum):
    """What the cloud says of a machine, in words that both clouds share."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    """On its way to stopped or terminated."""
    STOPPED = "stopped"
    TERMINATED = "terminated"


class Phase(StrEnum):
    """What the node agent says of itself, in the order of a healthy life."""

    BOOTING = "booting"
    DISKS = "disks"
    CACHE = "cache"
    ENGINE = "engine"
    WARM_UP = "warm-up"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One virtual machine, as its cloud described it."""

    id: str
    cloud: Cloud
    region: str
    zone: str
    machine_type: str
    capacity_type: CapacityType
    state: InstanceState
    launched_at: datetime
    environment: str | None = None
    pool: str | None = None
    """The pool whose group it is of; None: none (an orphan), whatever its tags say."""
    group: str | None = None
    """The scaling group that its cloud says it is of."""
    private_address: str | None = None
    reservation: str | None = None
    ends_at: datetime | None = None
    """When its cloud ends it, whatever it does; None: nobody said so."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    end_reason: ActivityKind | None = None
    """Why it ends or ended, as its own description states; None: it lives, or no cause is stated."""

    @property
    def is_of_the_house(self) -> bool:
        """Whether it is a control host or a router: in no pool by design, and paid for as `shared`."""
        return self.pool is None and self.group is None and tags.POOL not in self.tags and tags.ROLE in self.tags

    @property
    def claimed_pool(self) -> str | None:
        """The pool that its tags name though it is in no group of one; None: it claims nothing."""
        return self.tags.get(tags.POOL) if self.pool is None else None

    @property
    def idle_since(self) -> datetime | None:
        """When a watchdog marked it; None when it is not marked or somebody wrote nonsense there."""
        return tags.read_time(self.tags.get(tags.IDLE_SINCE))

    @property
    def keep_until(self) -> datetime | None:
        """Until when people asked to keep it."""
        return tags.read_time(self.tags.get(tags.KEEP_UNTIL))

    def keep_tags(self, until: datetime) -> dict[str, str]:
        """What to write so that it is kept until then; nothing where its tag keeps it as long already.

        A tag that cannot be read keeps, and is left as somebody wrote it.
        """
        there = self.keep_until
        if tags.KEEP_UNTIL in self.tags and (there is None or there >= until):
            return {}
        return {tags.KEEP_UNTIL: tags.write_time(until)}

    @property
    def alive(self) -> bool:
        """Whether it exists and may serve or cost money for computing."""
        return self.state in (InstanceState.PENDING, InstanceState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedProcess:
    """Something that a group does not do for now: launch, terminate, check its instances."""

    process: str
    """The cloud's name of it."""
    reason: str
    """The cloud's own words."""
    by_cloud: bool
    """The cloud suspended it, as where launches fail for a day. What a person suspended is not ours to resume."""


READY_HOOK: Final = "ready"
"""The lifecycle hook of AWS's groups that holds an instance back until it serves."""
DRAIN_HOOK: Final = "drain"
"""The one that keeps an instance until it has drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A scaling group of the cloud: Auto Scaling group or managed instance group."""

    name: str
    pool: str
    capacity_type: CapacityType
    zone: str | None
    """None: over all zones (on-demand)."""
    desired: int
    min: int
    max: int
    instance_ids: tuple[str, ...] = ()
    """Those that count towards `desired`."""
    leaving: frozenset[str] = frozenset()
    """Those that it is ending already, for as long as they live: they count no more, and need not be ended again."""
    waiting_to_serve: frozenset[str] = frozenset()
    """Those that it holds back after their launch until somebody confirms that they serve (a lifecycle hook)."""
    waiting_to_end: frozenset[str] = frozenset()
    """Those that it keeps before their end until somebody confirms that they have drained (a lifecycle hook)."""
    suspended: tuple[SuspendedProcess, ...] = ()
    """What it does not do for now; what our own stack suspends is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceList:
    """What was read of a list of instances that came whole."""

    instances: Sequence[Instance]
    errors: Mapping[str, str] = field(default_factory=dict[str, str])
    """By instance: why it could not be read. It may live."""

    def whole(self) -> Sequence[Instance]:
        """The instances. Raises CloudError that names the first one that could not be read."""
        for error in self.errors.values():
            raise CloudError(error)
        return self.instances


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """What was read of several groups at once."""

    groups: Mapping[str, Group]
    """By name."""
    errors: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name: why a group could not be read."""
