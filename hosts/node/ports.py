"""What the agent needs of the world, so that tests can give it another one."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from serving.cache.store import ObjectStore


class UnitState(StrEnum):
    """systemd's ActiveState."""

    ACTIVE = "active"
    RELOADING = "reloading"
    ACTIVATING = "activating"
    DEACTIVATING = "deactivating"
    INACTIVE = "inactive"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Units(Protocol):
    """systemd, as far as the agent uses it. Every call is idempotent; failures raise StepError."""

    def install(self, name: str, text: str) -> bool:
        """Write a unit. True when its text is new."""
        ...

    def start(self, name: str) -> None:
        """Start it, also after it failed; does not wait for a service to be ready."""
        ...

    def stop(self, name: str) -> None:
        """Ask it to stop and return at once."""
        ...

    def kill(self, name: str) -> None:
        """End every process of it now."""
        ...

    def state(self, name: str) -> UnitState: ...


class Disks(Protocol):
    """Local NVMe disks."""

    def prepare(self, mount_point: str) -> int:
        """Have the local disks mounted there; how many there are. Raises StepError."""
        ...


class Notice(StrEnum):
    """What the cloud says about the instance's future."""

    PREEMPTION = "preempted by its cloud"
    TERMINATION = "ended by its group"
    REBALANCE = "rebalance recommended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudNotice:
    """A notice, with the time at which the instance goes where the cloud tells it."""

    kind: Notice
    at: datetime | None = None


class CloudSide(Protocol):
    """The cloud as an instance sees it."""

    instance_id: str
    address: str
    """Private address: where everything listens."""
    machine_type: str

    def notices(self) -> list[CloudNotice]:
        """What holds now. Raises OSError."""
        ...

    def secret(self, where: str) -> str:
        """`ssm:/name`. Raises OSError."""
        ...

    def store(self, bucket: str) -> ObjectStore:
        """The models' bucket."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What the engine says of itself."""

    running: float
    waiting: float


class EngineClient(Protocol):
    """The engine's HTTP side."""

    def healthy(self) -> bool: ...

    def load(self) -> EngineLoad | None:
        """None: cannot be known."""
        ...

    def warm_up(self, key: str) -> None:
        """One small request with the engine's API key. Raises StepError."""
        ...


class StepError(RuntimeError):
    """A step of the boot did not work; it is tried again within its limit."""


class HopelessError(StepError):
    """A step that no further try can mend."""


class StoppedError(RuntimeError):
    """A drain came in the middle of a step."""
