"""How much the embedded cloud has to give: spot and on-demand capacity per zone and machine type, and quotas."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpufleet.domain.catalogue import UnknownMachineError, machine
from gpufleet.domain.model import Cloud


class Kind(StrEnum):
    """What is rented: a spot instance or a full-price one (reserved capacity is of this kind, too)."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


class Shortage(StrEnum):
    """Why a launch was refused, by EC2's error code."""

    UNFULFILLABLE = "UnfulfillableCapacity"
    INSUFFICIENT = "InsufficientInstanceCapacity"
    VCPU_LIMIT = "VcpuLimitExceeded"
    SPOT_LIMIT = "MaxSpotInstanceCountExceeded"
    RESERVATION = "ReservationCapacityExceeded"
    ADDRESSES = "InsufficientFreeAddressesInSubnet"
    INVALID_RESERVATION = "InvalidCapacityReservationId.NotFound"
    NO_EFA = "UnsupportedOperation"
    INTERFACES = "AttachmentLimitExceeded"
    MARKET = "InvalidParameterCombination"
    NO_PLACEMENT = "InvalidPlacementGroup.Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One living instance, as far as capacity is concerned."""

    zone: str
    machine_type: str
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A launch that the cloud could not do: EC2's error code and message."""

    code: Shortage
    message: str


@dataclass(slots=True, kw_only=True)
class Capacity:
    """Limits that people set through the control API; without one there is always room."""

    limits: dict[tuple[str, str, Kind], int] = field(default_factory=dict[tuple[str, str, Kind], int])
    """(zone, machine type, kind) -> instances that may live there."""
    vcpu_limits: dict[Kind, int] = field(default_factory=dict[Kind, int])
    gone: set[str] = field(default_factory=set[str])
    """Machine types with no new spot instance in any zone, until `restore`."""

    def take_away(self, machine_types: Iterable[str]) -> None:
        """No new spot instance of these types, in any zone."""
        self.gone.update(machine_types)

    def restore(self) -> None:
        """Everything can be had again: limits, quotas and what was taken away are forgotten."""
        self.gone.clear()
        self.limits.clear()
        self.vcpu_limits.clear()

    def refusal(self, wanted: Use, living: Iterable[Use]) -> Refusal | None:
        """Why this launch cannot be done beside what lives; None when it can. Quota comes first, as in EC2."""
        present = list(living)
        limit = self.vcpu_limits.get(wanted.kind)
        if limit is not None:
            used = sum(vcpus(use.machine_type) for use in present if use.kind is wanted.kind)
            if used + vcpus(wanted.machine_type) > limit:
                return _over_quota(wanted.kind, limit)
        room = self.limits.get((wanted.zone, wanted.machine_type, wanted.kind))
        taken = Counter((use.zone, use.machine_type, use.kind) for use in present)
        full = room is not None and taken[wanted.zone, wanted.machine_type, wanted.kind] >= room
        if full or (wanted.kind is Kind.SPOT and wanted.machine_type in self.gone):
            return _no_room(wanted)
        return None

    def as_json(self) -> Mapping[str, object]:
        """For people: the limits in force."""
        return {
            "limits": [
                {"zone": zone, "type": machine_type, "kind": kind, "count": count}
                for (zone, machine_type, kind), count in sorted(self.limits.items())
            ],
            "vcpu_limits": {str(kind): limit for kind, limit in sorted(self.vcpu_limits.items())},
            "spot_gone": sorted(self.gone),
        }


def vcpus(machine_type: str) -> int:
    """Virtual CPUs of a type; small machines that are not in the GPU catalogue count as two."""
    try:
        return machine(Cloud.AWS, machine_type).vcpus
    except UnknownMachineError:
        return 2


def _over_quota(kind: Kind, limit: int) -> Refusal:
    if kind is Kind.SPOT:
        return Refusal(code=Shortage.SPOT_LIMIT, message="Max spot instance count exceeded")
    message = (
        f"You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the instance"
        " bucket that the specified instance type belongs to. Please visit"
        " http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
    )
    return Refusal(code=Shortage.VCPU_LIMIT, message=message)


def _no_room(wanted: Use) -> Refusal:
    if wanted.kind is Kind.SPOT:
        message = (
            "Unable to fulfill capacity due to your request configuration. Please adjust your request and try again."
        )
        return Refusal(code=Shortage.UNFULFILLABLE, message=message)
    message = (
        f"We currently do not have sufficient {wanted.machine_type} capacity in the Availability Zone you requested"
        f" ({wanted.zone}). Our system will be working on provisioning additional capacity."
    )
    return Refusal(code=Shortage.INSUFFICIENT, message=message)
