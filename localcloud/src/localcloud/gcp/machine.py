"""What the embedded Compute Engine keeps of one instance."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpufleet.domain.catalogue import UnknownMachineError, machine
from gpufleet.domain.model import Cloud
from localcloud.capacity_kind import Kind
from localcloud.gcp.capacity import Use
from localcloud.gcp.store import Key, Row, last

OCCUPIES: Final = ("PROVISIONING", "STAGING", "RUNNING", "STOPPING")


@dataclass(slots=True, kw_only=True)
class Machine:
    """An instance and what it waits for."""

    row: Row
    zone: str
    address: str
    group: tuple[str, str] | None = None
    """Scope and name of its managed group."""
    preempted_at: datetime | None = None
    """When a preempted instance is ended."""
    is_preempted: bool = False
    maintenance_until: datetime | None = None
    deleting: bool = False
    why: str = ""
    """Why it ends, for the books."""
    reservation: str | None = None

    @property
    def name(self) -> str:
        return str(self.row["name"])

    @property
    def uid(self) -> str:
        return str(self.row["id"])

    @property
    def status(self) -> str:
        return str(self.row["status"])

    @property
    def machine_type(self) -> str:
        return last(self.row["machineType"])

    @property
    def kind(self) -> Kind:
        return Kind.SPOT if is_spot(self.row) else Kind.ON_DEMAND

    @property
    def key(self) -> Key:
        return Key(f"zones/{self.zone}", "instances", self.name)

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.row.get("labels", {}))

    @property
    def local_ssds(self) -> int | None:
        """Local SSDs asked for; None where the machine type brings them along."""
        try:
            if not machine(Cloud.GCP, self.machine_type).nvme_optional:
                return None
        except UnknownMachineError:
            return 0
        return sum(disk.get("type") == "SCRATCH" for disk in self.row.get("disks", ()))

    @property
    def use(self) -> Use:
        return use_of(self.zone, self.machine_type, self.row)

    @property
    def bought_as(self) -> str:
        """In the books' words."""
        if self.reservation:
            return "reserved"
        return "flex-start" if is_flex_start(self.row) else str(self.kind)

    @property
    def ends_at(self) -> datetime | None:
        """When its stated time to run is over; None: it has none, or has not begun to run."""
        timestamp = self.row.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp")
        return datetime.fromisoformat(timestamp) if timestamp else None


def use_of(zone: str, machine_type: str, properties: Row) -> Use:
    """What an instance takes of the zone's room and of the quotas."""
    kind = Kind.SPOT if is_spot(properties) else Kind.ON_DEMAND
    quota = Kind.SPOT if is_flex_start(properties) else kind
    return Use(zone=zone, machine_type=machine_type, kind=kind, quota=quota)


def is_flex_start(properties: Row) -> bool:
    return properties.get("scheduling", {}).get("provisioningModel") == "FLEX_START"


def is_spot(properties: Row) -> bool:
    scheduling = properties.get("scheduling", {})
    return scheduling.get("provisioningModel") == "SPOT" or bool(scheduling.get("preemptible"))
