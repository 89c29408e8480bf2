"""The embedded cloud's own books: what ran, when, where and how it was bought. Reports are checked against them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(slots=True, kw_only=True)
class BilledRun:
    """One instance from launch (or start) to end (or stop)."""

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
    """When billing stopped: the moment of shutting-down. None: it lives."""
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
    """All stays, in order of launch."""

    stays: list[BilledRun] = field(default_factory=list[BilledRun])

    def open(self, stay: BilledRun) -> None:
        """An instance was launched, or started again."""
        self.stays.append(stay)

    def close(self, instance: str, at: datetime, why: str) -> None:
        """It ended; a second end changes nothing."""
        for stay in self.stays:
            if stay.instance == instance and stay.ended is None:
                stay.ended, stay.why = at, why

    def as_json(self) -> Sequence[Mapping[str, object]]:
        return [stay.as_json() for stay in self.stays]
