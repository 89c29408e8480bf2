"""How much the embedded Google Cloud has to give: room per zone and machine type, GPU quotas, reservations."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpufleet.domain.catalogue import UnknownMachineError, machine
from gpufleet.domain.model import Cloud
from localcloud.aws.capacity import Kind
from localcloud.gcp.operations import Failure
from localcloud.gcp.places import PROJECT, REGION

QUOTA = 64
"""GPUs of each model and kind, unless the control API says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One living instance, as far as capacity is concerned."""

    zone: str
    machine_type: str
    kind: Kind
    quota: Kind
    """Whose quota it takes: flex-start is no spot, and counts as preemptible."""


@dataclass(slots=True, kw_only=True)
class Capacity:
    """Limits that people set through the control API; without one there is room up to the quota."""

    limits: dict[tuple[str, str, Kind], int] = field(default_factory=dict[tuple[str, str, Kind], int])
    quotas: dict[Kind, int] = field(default_factory=dict[Kind, int])
    gone: set[str] = field(default_factory=set[str])
    """Machine types with no new spot instance in any zone, until `restore`."""

    def restore(self) -> None:
        """Everything can be had again."""
        self.limits.clear()
        self.quotas.clear()
        self.gone.clear()

    def quota(self, kind: Kind) -> int:
        return self.quotas.get(kind, QUOTA)

    def refusal(self, wanted: Use, living: Iterable[Use]) -> Failure | None:
        """Why this launch cannot be done beside what lives; None when it can. Quota comes first."""
        present = list(living)
        model, count = gpus(wanted.machine_type)
        if count:
            used = sum(
                n for use in present if use.quota is wanted.quota for m, n in [gpus(use.machine_type)] if m == model
            )
            if used + count > self.quota(wanted.quota):
                return _over_quota(metric(model, wanted.quota), self.quota(wanted.quota))
        place = (wanted.zone, wanted.machine_type, wanted.kind)
        room = self.limits.get(place)
        full = room is not None and sum((u.zone, u.machine_type, u.kind) == place for u in present) >= room
        if full or (wanted.kind is Kind.SPOT and wanted.machine_type in self.gone):
            return no_room(wanted.zone)
        return None

    def as_json(self) -> Mapping[str, object]:
        """For people: the limits in force."""
        return {
            "limits": [
                {"zone": zone, "type": machine_type, "kind": kind, "count": count}
                for (zone, machine_type, kind), count in sorted(self.limits.items())
            ],
            "gpu_quotas": {str(kind): self.quota(kind) for kind in Kind},
            "spot_gone": sorted(self.gone),
        }


def gpus(machine_type: str) -> tuple[str, int]:
    """Model and number of GPUs of a machine type; none for small machines."""
    try:
        found = machine(Cloud.GCP, machine_type)
    except UnknownMachineError:
        return "", 0
    return found.gpu, found.gpu_count


def metric(model: str, kind: Kind) -> str:
    """The quota's name: `NVIDIA_L4_GPUS`, `PREEMPTIBLE_NVIDIA_L4_GPUS`."""
    name = f"NVIDIA_{model.upper().replace('-', '_').replace(' ', '_')}_GPUS"
    return f"PREEMPTIBLE_{name}" if kind is Kind.SPOT else name


def no_room(zone: str) -> Failure:
    """The zone has no such machine left."""
    message = (
        f"The zone 'projects/{PROJECT}/zones/{zone}' does not have enough resources available to fulfill the request."
        "  Try a different zone, or try again later."
    )
    return Failure(
        code="ZONE_RESOURCE_POOL_EXHAUSTED", message=message, status=503, status_message="SERVICE UNAVAILABLE"
    )


def _over_quota(name: str, limit: int) -> Failure:
    message = f"Quota '{name}' exceeded.  Limit: {limit:.1f} in region {REGION}."
    return Failure(code="QUOTA_EXCEEDED", message=message, status=403, status_message="FORBIDDEN")
