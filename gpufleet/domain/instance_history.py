"""What clouds tell of the past and of what is paid for: how instances ended, reserved capacity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpufleet.domain.activity import ActivityKind
from gpufleet.domain.model import Cloud, Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRecord:
    """An instance, alive or ended not long ago."""

    instance: Instance
    ended_at: datetime | None = None
    """When it began to end or stop, in the cloud's words; None: it lives, or the cloud does not say when."""

    @property
    def preempted(self) -> bool:
        """Whether the cloud took it."""
        return self.instance.end_reason is ActivityKind.PREEMPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceHistory:
    """What was read of a list of instances that came whole, those included that ended not long ago."""

    records: Sequence[InstanceRecord]
    errors: Mapping[str, str] = field(default_factory=dict[str, str])
    """By instance: why it could not be read. It may live, and may have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceEnd:
    """The end of an instance that its cloud lists no more."""

    instance_id: str
    ended_at: datetime
    """When it began to end, in the cloud's words."""
    preempted: bool
    """The cloud took it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidCapacity:
    """A reservation or Capacity Block."""

    cloud: Cloud
    reservation: str
    region: str
    zone: str
    machine_type: str
    instances: int
    started_at: datetime
    ends_at: datetime | None = None
    available: int | None = None
    """Of its instances, those that no fleet or account uses; None: the cloud does not report it."""
