"""The core types of a fleet: clouds, instances, groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpufleet.domain import tags
from gpufleet.domain.activity import ActivityKind, CloudError


class Cloud(StrEnum):
    """The cloud that provides the instances."""

    AWS = "aws"
    GCP = "gcp"


def fleet_name(cloud: str, environment: str, region: str) -> str:
    """Return the name of a fleet in ledger, console and logs."""
    return f"{cloud}/{environment}/{region}"


class CapacityType(StrEnum):
    """How an instance is bought."""

    RESERVED = "reserved"
    SPOT = "spot"
    ON_DEMAND = "on-demand"
    FLEX_START = "flex-start"
    """Google Cloud: queued requests; cheaper than on-demand for large machines; terminated after a fixed time."""


class InstanceState(StrEnum):
    """The state of a machine as the cloud reports it, in terms common to both clouds."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    """Becomes stopped or terminated."""
    STOPPED = "stopped"
    TERMINATED = "terminated"


class Phase(StrEnum):
    """The phase that the node agent reports, in the order of a healthy run."""

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
    """A virtual machine, as its cloud describes it."""

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
    """The pool of its group; None if it belongs to no group of a pool (an orphan), whatever its tags contain."""
    group: str | None = None
    """The scaling group to which it belongs, as the cloud reports it."""
    private_address: str | None = None
    reservation: str | None = None
    ends_at: datetime | None = None
    """When its cloud will terminate it in any case; None if no such time is set."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    end_reason: ActivityKind | None = None
    """Why it ends or ended, as its description states; None if it is alive or no cause is stated."""

    @property
    def is_infrastructure(self) -> bool:
        """Whether it is a control host or a router: in no pool by design; its cost counts as `shared`."""
        return self.pool is None and self.group is None and tags.POOL not in self.tags and tags.ROLE in self.tags

    @property
    def claimed_pool(self) -> str | None:
        """The pool in its tags although it belongs to no group of a pool; None if its tags name no pool."""
        return self.tags.get(tags.POOL) if self.pool is None else None

    @property
    def idle_since(self) -> datetime | None:
        """When a watchdog marked it; None if it is not marked or the tag is invalid."""
        return tags.read_time(self.tags.get(tags.IDLE_SINCE))

    @property
    def keep_until(self) -> datetime | None:
        """Until when users requested to keep it; None without a valid tag."""
        return tags.read_time(self.tags.get(tags.KEEP_UNTIL))

    def keep_tags(self, until: datetime) -> dict[str, str]:
        """Return the tags to write so that it is kept until `until`; empty if its tag already keeps it that long.

        A tag with an invalid value also keeps it, and stays unchanged.
        """
        there = self.keep_until
        if tags.KEEP_UNTIL in self.tags and (there is None or there >= until):
            return {}
        return {tags.KEEP_UNTIL: tags.write_time(until)}

    @property
    def alive(self) -> bool:
        """Whether it exists and can serve or cause compute costs."""
        return self.state in (InstanceState.PENDING, InstanceState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedProcess:
    """A process that a group has suspended: launches, terminations, health checks."""

    process: str
    """The cloud's name of the process."""
    reason: str
    """The cloud's message."""
    by_cloud: bool
    """Whether the cloud suspended it (for example after a day of failed launches). We resume only such processes."""


READY_HOOK: Final = "ready"
"""The lifecycle hook of AWS groups that keeps an instance out of service until it is ready."""
DRAIN_HOOK: Final = "drain"
"""The lifecycle hook of AWS groups that delays a termination until the instance has drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A scaling group of the cloud: an Auto Scaling group or a managed instance group."""

    name: str
    pool: str
    capacity_type: CapacityType
    zone: str | None
    """None for a group over all zones (on-demand)."""
    desired: int
    min: int
    max: int
    instance_ids: tuple[str, ...] = ()
    """Instances that count towards `desired`."""
    leaving: frozenset[str] = frozenset()
    """Instances that the group is terminating, while alive. They no longer count, and need no other termination."""
    waiting_to_serve: frozenset[str] = frozenset()
    """Launched instances whose lifecycle hook waits for the confirmation that they serve."""
    waiting_to_end: frozenset[str] = frozenset()
    """Terminating instances whose lifecycle hook waits for the confirmation that they have drained."""
    suspended: tuple[SuspendedProcess, ...] = ()
    """Suspended processes, except those that the project's own stack suspends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceList:
    """The instances of all pages, and an error for each that could not be read."""

    instances: Sequence[Instance]
    errors: Mapping[str, str] = field(default_factory=dict[str, str])
    """Instance id -> why it could not be read. The instance may be alive."""

    def whole(self) -> Sequence[Instance]:
        """Return the instances. Raises CloudError for the first instance that could not be read."""
        for error in self.errors.values():
            raise CloudError(error)
        return self.instances


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """The result of reading several groups."""

    groups: Mapping[str, Group]
    """Name -> group."""
    errors: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name -> why the group could not be read."""
