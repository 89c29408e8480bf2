"""The types of a scan: scopes, instances with a verdict, unused capacity, failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final, NamedTuple

from gpufleet.costs.slice_use import SliceUse, in_order
from gpufleet.domain.model import CapacityType, Instance

INSTANCES: Final = "instances"
"""The part without which a scope has no result."""
SLICE_WINDOW: Final = timedelta(hours=1)
"""Time for which the use of slices is read: it needs raw samples, which are too many for a whole day."""


class Verdict(StrEnum):
    """What the scan knows about the use of an instance."""

    IN_USE = "in use"
    IDLE = "idle"
    """Certain: a GPU metric covers the whole idle window, and no GPU worked in it."""
    LIKELY_IDLE = "likely idle"
    """Power, or the engine's own metrics, show no work. A GPU metric is missing."""
    UNKNOWN = "unknown"
    STOPPED = "stopped"
    """It is not charged for its machine type, but its disks are."""


class VerdictReason(StrEnum):
    """Why an instance has its verdict. The values are stable codes."""

    GPU_WORKED = "gpu_worked"
    GPU_IDLE = "gpu_idle"
    POWER_IDLE = "power_idle"
    ENGINE_IDLE = "engine_idle"
    ENGINE_WORKED = "engine_worked"
    NO_METRIC = "no_metric"
    """No GPU metric, no power and no engine metric. CPU and network prove nothing about a GPU."""
    METRIC_INCOMPLETE = "metric_incomplete"
    """The metrics do not cover the idle window, or not all GPUs."""
    METRICS_CONTRADICT = "metrics_contradict"
    """The utilization is 0, but the GPUs draw more power than at rest."""
    METRICS_FAILED = "metrics_failed"
    """The metrics store did not answer."""
    TOO_YOUNG = "too_young"
    """It runs for less than the complete hours of the idle window."""
    NOT_RUNNING = "not_running"


class FailureCode(StrEnum):
    """Why a scope is missing or incomplete. The values are stable codes."""

    CREDENTIALS = "credentials"
    DENIED = "denied"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    NOT_USABLE = "metrics_not_usable"
    """A metrics store has accelerator metrics under names or labels that prove nothing."""
    FAILED = "failed"


class ScanScope(NamedTuple):
    """A part of the scan that fails alone."""

    cloud: str
    """`aws`, `gcp`, or `prometheus` for a metrics store of the user."""
    account: str
    """Account id (AWS), project (Google Cloud), address of a store, or the name of a profile whose id is unknown."""
    region: str = ""
    """Empty: the whole account. A Google project is one scope, because each list has all regions."""

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


def key_of(instance: Instance) -> str:
    """A name that is unique in its account: on Google Cloud, an id is unique in its zone only."""
    return f"{instance.zone}/{instance.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFailure:
    """What a scope did not report."""

    scope: ScanScope
    code: FailureCode
    what: str
    """The missing part, as `instances`, `metrics`, `reservations`."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedInstance:
    """An instance with its price and its verdict."""

    instance: Instance
    account: str
    owner: str | None
    usd_per_hour: Decimal | None
    """None: no price is known, or it is stopped."""
    verdict: Verdict
    reason: VerdictReason
    idle_hours: int = 0
    """Whole hours of the window in which a GPU metric proves that no GPU worked."""
    measured_hours: int = 0
    """Whole hours of the window in which it is known whether a GPU worked."""
    spot_usd_per_hour: Decimal | None = None
    """Lowest current spot price in its zone's region; only of on-demand instances."""
    slices: Sequence[SliceUse] = ()
    """The use of its slices and shared devices within SLICE_WINDOW, from a metrics store. Empty: none is known."""

    @property
    def is_prepaid(self) -> bool:
        """Whether a reservation or a Capacity Block pays for it: stopping it saves nothing."""
        return self.instance.capacity_type is CapacityType.RESERVED

    @property
    def waste(self) -> Decimal:
        """USD of the idle hours at the current price; 0 without a price, or if it is prepaid."""
        return Decimal(0) if self.is_prepaid else self._usd_of_idle_hours

    @property
    def unused_prepaid(self) -> Decimal:
        """USD of the idle hours in prepaid capacity at the current price; 0 if it is not prepaid."""
        return self._usd_of_idle_hours if self.is_prepaid else Decimal(0)

    @property
    def _usd_of_idle_hours(self) -> Decimal:
        return self.idle_hours * self.usd_per_hour if self.idle_hours and self.usd_per_hour else Decimal(0)


class CapacityKind(StrEnum):
    """Capacity that is paid for, used or not."""

    CAPACITY_RESERVATION = "capacity reservation"
    CAPACITY_BLOCK = "capacity block"
    """It is paid in advance, and nothing cancels it before its end."""
    RESERVED_INSTANCES = "reserved instances"
    RESERVATION = "reservation"
    COMMITMENT = "commitment"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedCapacity:
    """A reservation or a commitment."""

    kind: CapacityKind
    scope: ScanScope
    id: str
    place: str
    """Its zone or region."""
    machine_type: str
    total: int
    unused: int | None
    """None: unknown."""
    usd_per_hour: Decimal | None
    """On-demand price of the unused part; None: unknown."""

    @property
    def region(self) -> str:
        """Its region. A Google project is one scope, so its capacity has the region of its place."""
        if self.scope.region:
            return self.scope.region
        return self.place.rpartition("-")[0] if self.place.count("-") > 1 else self.place


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeResult:
    """What one region of one account reported."""

    scope: ScanScope
    instances: Sequence[ScannedInstance] = ()
    capacity: Sequence[ScannedCapacity] = ()
    failures: Sequence[ScopeFailure] = ()
    api_calls: Mapping[str, int] = field(default_factory=dict[str, int])
    metered_series: int = 0
    """Series for which CloudWatch charges a fee."""

    @property
    def is_read(self) -> bool:
        """Whether its instances are known."""
        return all(one.what != INSTANCES for one in self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The result of all scopes, in a stable order."""

    at: datetime
    window: timedelta
    idle_window: timedelta
    results: Sequence[ScopeResult]
    failures: Sequence[ScopeFailure]
    """Of accounts and stores; those of regions are in `results`."""
    duplicates: Mapping[str, str] = field(default_factory=dict[str, str])
    """Names of accounts that another profile or role names, too, and its name. They are counted once."""
    is_interrupted: bool = False
    """The user interrupted it: what was not read is in the failures."""

    @property
    def instances(self) -> list[ScannedInstance]:
        """All instances: highest waste first, then highest price."""
        found = [one for result in self.results for one in result.instances]
        return sorted(found, key=lambda one: (-one.waste, -(one.usd_per_hour or 0), one.instance.id))

    @property
    def slices(self) -> list[SliceUse]:
        """The slices of all instances, the idle ones first."""
        return in_order(use for one in self.instances for use in one.slices)

    @property
    def capacity(self) -> list[ScannedCapacity]:
        """All reservations and commitments: most expensive unused part first."""
        found = [one for result in self.results for one in result.capacity]
        return sorted(found, key=lambda one: (-(one.usd_per_hour or 0), one.id))

    @property
    def all_failures(self) -> list[ScopeFailure]:
        """Failures of accounts and regions."""
        return [*self.failures, *(one for result in self.results for one in result.failures)]
