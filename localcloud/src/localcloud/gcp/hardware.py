"""Runs the instances of the emulated Google Cloud: a machine and a metadata server for each."""

from collections.abc import Iterator
from typing import Final

from gpufleet.domain.model import Cloud
from localcloud.callers import Callers
from localcloud.faults import Faults
from localcloud.gcp.disks import attached
from localcloud.gcp.locations import METADATA_PORT, PROJECT, REGION
from localcloud.gcp.machine import Machine
from localcloud.gcp.metadata import GoogleMetadataServer, InstanceFacts
from localcloud.gcp.state import GoogleState
from localcloud.machines.manager import MachineManager
from localcloud.machines.spec import Order
from localcloud.machines.volumes import Volume

STARTUP: Final = "startup-script"


class GoogleMachines:
    """Machines of the machine manager, each with a metadata server (a `localcloud.gcp.state.MachineBackend`)."""

    def __init__(self, manager: MachineManager, callers: Callers, faults: Faults) -> None:
        self._manager = manager
        self._faults = faults
        self._callers = callers
        self._metadata: dict[str, GoogleMetadataServer] = {}
        self.state: GoogleState | None = None

    def start(self, machine: Machine) -> None:
        """Start the metadata server, then the machine: its script may read metadata at once. Raises OSError."""
        if machine.name not in self._metadata:
            self._metadata[machine.name] = GoogleMetadataServer(
                machine.address,
                lambda: self._facts(machine),
                self._callers.hand_out_token,
                lambda: self._faults.has(machine.name, "metadata"),
            )
        self._manager.start(self._order(machine))

    def is_alive(self, name: str) -> bool:
        alive = self._manager.is_alive(name)
        if not alive:
            server = self._metadata.pop(name, None)
            if server is not None:
                server.close()
        return alive

    def end(self, name: str) -> None:
        self._manager.end(name)

    def changed(self, name: str) -> None:
        server = self._metadata.get(name)
        if server is not None:
            server.wake()

    def forget(self, name: str, uid: str) -> None:
        self._manager.set_aside(name, uid)

    def close(self) -> None:
        """Close all metadata servers."""
        for server in self._metadata.values():
            server.close()
        self._metadata.clear()

    def _facts(self, machine: Machine) -> InstanceFacts:
        state = self._state()
        return InstanceFacts(
            row=machine.row,
            zone=machine.zone,
            preempted=machine.is_preempted,
            maintenance=machine.maintenance_until is not None,
            now=state.now(),
        )

    def _state(self) -> GoogleState:
        if self.state is None:
            raise RuntimeError("the hardware is not connected to a state: set GoogleMachines.state first")
        return self.state

    def _order(self, machine: Machine) -> Order:
        url = self._state().places.google_url
        items = {item["key"]: item.get("value", "") for item in machine.row["metadata"].get("items", ())}
        return Order(
            instance=machine.name,
            uid=machine.uid,
            address=machine.address,
            zone=machine.zone,
            region=REGION,
            machine_type=machine.machine_type,
            cloud=Cloud.GCP,
            variables={
                "GCE_METADATA_HOST": f"{machine.address}:{METADATA_PORT}",
                "GCE_METADATA_IP": f"{machine.address}:{METADATA_PORT}",
                "GPUFLEET_COMPUTE_ENDPOINT": url,
                "STORAGE_EMULATOR_HOST": url,
                "GPUFLEET_SECRETMANAGER_ENDPOINT": url,
                "GOOGLE_CLOUD_PROJECT": PROJECT,
            },
            script=str(items[STARTUP]).encode() if STARTUP in items else None,
            nvme_disks=machine.local_ssds,
            volumes=tuple(self._volumes(machine)),
        )

    def _volumes(self, machine: Machine) -> Iterator[Volume]:
        for disk, name in attached(self._state(), machine.row):
            yield Volume(id=f"disk-{disk['id']}", device=f"google-{name}")
