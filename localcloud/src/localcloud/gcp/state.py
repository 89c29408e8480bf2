"""The state of the emulated Google Cloud."""

import ipaddress
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from localcloud.addresses import Places
from localcloud.billing_log import BillingLog
from localcloud.calls import Calls
from localcloud.gcp.capacity import Capacity
from localcloud.gcp.errors import ApiError
from localcloud.gcp.operations import Operations
from localcloud.gcp.store import Row, Store
from localcloud.time_scale import TimeScale, utc_now

if TYPE_CHECKING:
    from localcloud.gcp.groups import ManagedGroup
    from localcloud.gcp.machine import Machine


class MachineBackend(Protocol):
    """Runs the machines (`localcloud.gcp.hardware`); tests use a fake."""

    def start(self, machine: "Machine") -> None:
        """Start to boot. Raises OSError."""
        ...

    def is_alive(self, name: str) -> bool:
        """Whether any process of the machine may still run."""
        ...

    def end(self, name: str) -> None:
        """Shut down; returns at once."""
        ...

    def changed(self, name: str) -> None:
        """Its metadata changed: notify waiting requests."""
        ...

    def forget(self, name: str, uid: str) -> None:
        """Delete the machine's disk: the instance is deleted."""
        ...


@dataclass(slots=True, kw_only=True)
class GoogleState:
    """The state that all parts of the emulated Google Cloud share."""

    places: Places
    hardware: MachineBackend
    store: Store
    operations: Operations
    calls: Calls
    capacity: Capacity = field(default_factory=Capacity)
    billing_log: BillingLog = field(default_factory=BillingLog)
    time_scale: TimeScale = TimeScale()
    now: Callable[[], datetime] = utc_now
    lock: threading.RLock = field(default_factory=threading.RLock)
    machines: dict[str, "Machine"] = field(default_factory=dict[str, "Machine"])
    """By instance name. Names are unique per zone in Google Cloud, per project here (folders have these names)."""
    groups: dict[tuple[str, str], "ManagedGroup"] = field(default_factory=dict[tuple[str, str], "ManagedGroup"])
    """By scope and name."""
    _addresses: dict[str, int] = field(default_factory=dict[str, int])

    def give_address(self, subnetwork: Row) -> str:
        """The next free address of a subnetwork, in turn: reused only after all others. Raises ApiError."""
        network = ipaddress.ip_network(subnetwork["ipCidrRange"])
        taken = {machine.address for machine in self.machines.values()}
        size = network.num_addresses - 4
        start = self._addresses.get(subnetwork["selfLink"], 0)
        for step in range(size):
            number = (start + step) % size
            address = str(network[number + 2])
            if address not in taken:
                self._addresses[subnetwork["selfLink"]] = number + 1
                return address
        raise ApiError(400, "ipSpaceExhausted", f"IP space of '{subnetwork['selfLink']}' is exhausted.")


def make_state(
    places: Places,
    hardware: MachineBackend,
    calls: Calls,
    now: Callable[[], datetime] = utc_now,
    time_scale: TimeScale = TimeScale(),
) -> GoogleState:
    """An empty project."""
    store = Store(base_url=places.google_url)
    return GoogleState(
        places=places,
        hardware=hardware,
        store=store,
        operations=Operations(store=store, now=now),
        calls=calls,
        now=now,
        time_scale=time_scale,
    )
