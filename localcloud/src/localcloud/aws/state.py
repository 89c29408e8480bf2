"""What the parts of the embedded cloud share: one lock, capacity, machines, books, the clock."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from localcloud.addresses import Places
from localcloud.aws.capacity import Capacity
from localcloud.billing_log import BillingLog
from localcloud.time_scale import TimeScale, utc_now


class MachineBackend(Protocol):
    """Where machines really run (`localcloud.machines.manager`); tests give a fake."""

    def start(self, instance: Any) -> None:
        """Begin to boot. Raises OSError when the machine cannot be had."""
        ...

    def is_alive(self, instance_id: str) -> bool:
        """Whether any process of the machine may still run."""
        ...

    def end(self, instance_id: str) -> None:
        """Shut down: units get their stop signal, after a while everything is killed. Returns at once."""
        ...

    def attach(self, instance_id: str, volume_id: str) -> None:
        """Bring a volume into a machine. Raises OSError."""
        ...

    def detach(self, instance_id: str, volume_id: str) -> None:
        """Take it out, whatever the machine does with it; nothing when it is not there. Raises OSError."""
        ...

    def is_mounted(self, instance_id: str, volume_id: str) -> bool:
        """Whether the machine runs and uses it."""
        ...

    def discard(self, volume_id: str) -> None:
        """The volume was deleted."""
        ...


@dataclass(slots=True, kw_only=True)
class AwsState:
    """The one embedded cloud of this process."""

    places: Places
    hardware: MachineBackend
    capacity: Capacity = field(default_factory=Capacity)
    billing_log: BillingLog = field(default_factory=BillingLog)
    time_scale: TimeScale = TimeScale()
    now: Callable[[], datetime] = utc_now
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by every call to EC2 and Auto Scaling and by each round of the loop: moto has no lock of its own."""
