"""The state of the emulated AWS: lock, capacity, machines, billing log and clock."""

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
    """Runs the machines (`localcloud.aws.hardware`); tests use a fake."""

    def start(self, instance: Any) -> None:
        """Start to boot. Raises OSError when the machine cannot be started."""
        ...

    def is_alive(self, instance_id: str) -> bool:
        """Whether any process of the machine may still run."""
        ...

    def end(self, instance_id: str) -> None:
        """Shut down: units get their stop signal, and after a timeout all processes are killed. Returns at once."""
        ...

    def attach(self, instance_id: str, volume_id: str) -> None:
        """Attach a volume to a machine. Raises OSError."""
        ...

    def detach(self, instance_id: str, volume_id: str) -> None:
        """Detach it even if it is in use; no effect if it is not attached. Raises OSError."""
        ...

    def is_mounted(self, instance_id: str, volume_id: str) -> bool:
        """Whether the machine runs and has the volume mounted."""
        ...

    def discard(self, volume_id: str) -> None:
        """Delete the volume's data."""
        ...


@dataclass(slots=True, kw_only=True)
class AwsState:
    """The state that all parts of the emulated AWS share."""

    places: Places
    hardware: MachineBackend
    capacity: Capacity = field(default_factory=Capacity)
    billing_log: BillingLog = field(default_factory=BillingLog)
    time_scale: TimeScale = TimeScale()
    now: Callable[[], datetime] = utc_now
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by every call to EC2 and Auto Scaling and by each round of the loop: moto has no lock of its own."""
