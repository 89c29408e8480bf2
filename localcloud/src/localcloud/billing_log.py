"""The billing log of an emulated cloud: each run of an instance with its time, place and capacity type.

Tests compare cost reports with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(slots=True, kw_only=True)
class BilledRun:
    """One run of an instance, from launch (or start) to end (or stop)."""

    instance: str
    machine_type: str
    zone: str
    capacity_type: str
    """spot, on-demand or reserved (in a capacity reservation)."""
    group: str | None
    pool: str | None
    reservation: str | None
    launched: datetime
    ended: datetime | None = None
    """When billing stopped: the moment of shutting-down. None: the instance runs."""
    why: str | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "instance": self.instance,
            "machine_type": self.machine_type,
            "zone": self.zone,
            "capacity_type": self.capacity_type,
            "group": self.group,
            "pool": self.pool,
            "reservation": self.reservation,
            "launched": self.launched.isoformat(),
            "ended": self.ended.isoformat() if self.ended else None,
            "why": self.why,
        }


@dataclass(slots=True)
class BillingLog:
    """All runs, in order of launch."""

    stays: list[BilledRun] = field(default_factory=list[BilledRun])

    def open(self, stay: BilledRun) -> None:
        """Add a run: an instance was launched, or started again."""
        self.stays.append(stay)

    def close(self, instance: str, at: datetime, why: str) -> None:
        """End the run of an instance; no effect if it has ended."""
        for stay in self.stays:
            if stay.instance == instance and stay.ended is None:
                stay.ended, stay.why = at, why

    def as_json(self) -> Sequence[Mapping[str, object]]:
        return [stay.as_json() for stay in self.stays]
