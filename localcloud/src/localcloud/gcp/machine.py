"""The state of one Compute Engine instance."""

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
    """An instance with its lifecycle."""

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
    """Why it ends, for the billing log."""
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
        """The requested local SSDs; None if the machine type includes them."""
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
        """The capacity type in the billing log."""
        if self.reservation:
            return "reserved"
        return "flex-start" if is_flex_start(self.row) else str(self.kind)

    @property
    def ends_at(self) -> datetime | None:
        """The end of its limited run; None: without a limit, or not running yet."""
        timestamp = self.row.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp")
        return datetime.fromisoformat(timestamp) if timestamp else None


def use_of(zone: str, machine_type: str, properties: Row) -> Use:
    """The zone capacity and the quota that an instance uses."""
    kind = Kind.SPOT if is_spot(properties) else Kind.ON_DEMAND
    quota = Kind.SPOT if is_flex_start(properties) else kind
    return Use(zone=zone, machine_type=machine_type, kind=kind, quota=quota)


def is_flex_start(properties: Row) -> bool:
    return properties.get("scheduling", {}).get("provisioningModel") == "FLEX_START"


def is_spot(properties: Row) -> bool:
    scheduling = properties.get("scheduling", {})
    return scheduling.get("provisioningModel") == "SPOT" or bool(scheduling.get("preemptible"))
