"""Interfaces to the services that the agent uses. Tests replace them with fakes."""

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
    """The systemd operations that the agent uses. All are idempotent; failures raise StepError."""

    def install(self, name: str, text: str) -> bool:
        """Write a unit. True if its text changed."""
        ...

    def start(self, name: str) -> None:
        """Start a unit, even after a failure. Does not wait until the service is ready."""
        ...

    def stop(self, name: str) -> None:
        """Request the stop of a unit and return immediately."""
        ...

    def kill(self, name: str) -> None:
        """Kill all processes of a unit now."""
        ...

    def state(self, name: str) -> UnitState: ...


class Disks(Protocol):
    """The local NVMe disks."""

    def prepare(self, mount_point: str) -> int:
        """Mount the local disks at `mount_point` and return their number. Raises StepError."""
        ...


class Notice(StrEnum):
    """What the cloud announces about the instance."""

    PREEMPTION = "preempted by its cloud"
    TERMINATION = "ended by its group"
    REBALANCE = "rebalance recommended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudNotice:
    """A notice. `at`: when the cloud terminates the instance; None if the notice contains no time."""

    kind: Notice
    at: datetime | None = None


class CloudServices(Protocol):
    """The cloud services that an instance uses."""

    instance_id: str
    address: str
    """Private address on which all services listen."""
    machine_type: str

    def notices(self) -> list[CloudNotice]:
        """Return the notices that apply now. Raises OSError."""
        ...

    def secret(self, where: str) -> str:
        """Read a secret, such as `ssm:/name`. Raises OSError."""
        ...

    def store(self, bucket: str) -> ObjectStore:
        """Open the models' bucket."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """The load that the engine reports: running and waiting requests."""

    running: float
    waiting: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequests:
    """What the gate in front of the engine counts."""

    opened: int
    """Requests that are open now."""
    passed: int
    """Requests passed to the engine since the gate started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTimes:
    """Times of a process."""

    started: float
    """Unix seconds."""
    cpu_s: float
    """User and system time of it and its children, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdentity:
    """Which engine runs."""

    kind: str
    version: str | None = None
    """As the engine reports it; for an engine that does not, as the settings state it; None: unknown."""
    missing: tuple[str, ...] = ()
    """Names that its contract needs and its page lacks."""
    process: ProcessTimes | None = None
    """Times of its main process; None: unknown."""


class EngineClient(Protocol):
    """The engine's HTTP interface."""

    def healthy(self) -> bool: ...

    def load(self) -> EngineLoad | None:
        """Return the load; None if unknown."""
        ...

    def gate_requests(self) -> GateRequests | None:
        """Return the requests that its gate counts; None without a gate or an answer."""
        ...

    def identity(self) -> EngineIdentity:
        """Return which engine answered the last `load`."""
        ...

    def warm_up(self, key: str) -> None:
        """Send one small request with the engine's API key. Raises StepError."""
        ...


class StepError(RuntimeError):
    """A step of the boot failed; the boot retries it within its limits."""


class PermanentError(StepError):
    """A step failed and a retry cannot succeed."""


class StoppedError(RuntimeError):
    """A drain interrupted a step."""
