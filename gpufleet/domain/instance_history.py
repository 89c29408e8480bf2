"""What clouds report about ended instances and about reserved capacity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpufleet.domain.activity import ActivityKind
from gpufleet.domain.model import Cloud, Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRecord:
    """An instance that is alive or ended recently."""

    instance: Instance
    ended_at: datetime | None = None
    """When it began to terminate or stop, as the cloud reports it; None if alive, or if the time is not reported."""

    @property
    def preempted(self) -> bool:
        """Whether the cloud preempted it."""
        return self.instance.end_reason is ActivityKind.PREEMPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceHistory:
    """A complete list of instances, including those that ended recently."""

    records: Sequence[InstanceRecord]
    errors: Mapping[str, str] = field(default_factory=dict[str, str])
    """Instance id -> why it could not be read. The instance may be alive or ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceEnd:
    """The end of an instance that the cloud no longer lists."""

    instance_id: str
    ended_at: datetime
    """When it began to terminate, as the cloud reports it."""
    preempted: bool
    """Whether the cloud preempted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidCapacity:
    """A reservation or a Capacity Block."""

    cloud: Cloud
    reservation: str
    region: str
    zone: str
    machine_type: str
    instances: int
    started_at: datetime
    ends_at: datetime | None = None
    available: int | None = None
    """Number of its instances that no fleet or account uses; None if the cloud does not report it."""
    owner: str | None = None
    """Account that pays for it; None if the cloud lists only those of the account itself."""
    is_block: bool = False
    """Whether it is a Capacity Block: paid in advance, and not cancelled before its end."""
