"""The capacity of the emulated Google Cloud per zone and machine type, and GPU quotas."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpufleet.domain.catalogue import AcceleratorKind, UnknownMachineError, machine
from gpufleet.domain.model import Cloud
from gpufleet.settings.quotas import GOOGLE_METRICS
from localcloud.capacity_kind import Kind
from localcloud.gcp.locations import PROJECT, REGION, ZONES
from localcloud.gcp.operations import OperationFailure

QUOTA = 64
"""The default quota: GPUs of each model and kind. The admin API changes it."""
_HELP = "https://cloud.google.com/compute/docs/resource-error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The capacity that one instance uses, or would use."""

    zone: str
    machine_type: str
    kind: Kind
    quota: Kind
    """The kind of quota that it uses: flex-start is not spot, but uses the preemptible quota."""


@dataclass(slots=True, kw_only=True)
class Capacity:
    """Limits set through the admin API; without a limit, capacity is limited only by the quota."""

    limits: dict[tuple[str, str, Kind], int] = field(default_factory=dict[tuple[str, str, Kind], int])
    quotas: dict[Kind, int] = field(default_factory=dict[Kind, int])
    all_regions: int | None = None
    """Limit for GPUs of all models, kinds and regions; None: only the quotas of the region apply."""
    spot_lost: set[str] = field(default_factory=set[str])
    """Machine types without spot capacity in any zone, until `restore`."""

    def restore(self) -> None:
        """Remove all limits and restore the default quotas."""
        self.limits.clear()
        self.quotas.clear()
        self.all_regions = None
        self.spot_lost.clear()

    def quota(self, kind: Kind) -> int:
        return self.quotas.get(kind, QUOTA)

    def refusal(self, wanted: Use, present_uses: Iterable[Use]) -> OperationFailure | None:
        """The error of this launch given the present instances, or None. The quota is checked first."""
        present = list(present_uses)
        if (over := self._over_quota(wanted, present)) is not None:
            return over
        if self._is_available(wanted, present):
            return None
        elsewhere = [zone for zone in ZONES if self._is_available(replace(wanted, zone=zone), present)]
        return zone_exhausted(wanted, elsewhere)

    def _over_quota(self, wanted: Use, present: Sequence[Use]) -> OperationFailure | None:
        model, count = gpus(wanted.machine_type)
        if not count:
            return None
        have = [(use, *gpus(use.machine_type)) for use in present]
        if self.all_regions is not None and sum(n for _, _, n in have) + count > self.all_regions:
            return over_quota("GPUS_ALL_REGIONS", self.all_regions, None)
        used = sum(n for use, found, n in have if use.quota is wanted.quota and found == model)
        if used + count > self.quota(wanted.quota):
            return over_quota(metric(model, wanted.quota), self.quota(wanted.quota), REGION)
        return None

    def _is_available(self, wanted: Use, present: Sequence[Use]) -> bool:
        if wanted.kind is Kind.SPOT and wanted.machine_type in self.spot_lost:
            return False
        place = (wanted.zone, wanted.machine_type, wanted.kind)
        limit = self.limits.get(place)
        return limit is None or sum((u.zone, u.machine_type, u.kind) == place for u in present) < limit

    def as_json(self) -> Mapping[str, object]:
        """The limits in force."""
        return {
            "limits": [
                {"zone": zone, "type": machine_type, "kind": kind, "count": count}
                for (zone, machine_type, kind), count in sorted(self.limits.items())
            ],
            "gpu_quotas": {str(kind): self.quota(kind) for kind in Kind},
            "gpus_all_regions": self.all_regions,
            "spot_lost": sorted(self.spot_lost),
        }


def gpus(machine_type: str) -> tuple[str, int]:
    """Model and number of GPUs of a machine type; none for small machines and for TPUs, which have other quotas."""
    try:
        found = machine(Cloud.GCP, machine_type)
    except UnknownMachineError:
        return "", 0
    return (found.gpu, found.gpu_count) if found.accelerator is AcceleratorKind.NVIDIA else ("", 0)


def metric(model: str, kind: Kind) -> str:
    """The quota's name: `NVIDIA_L4_GPUS`, `PREEMPTIBLE_NVIDIA_L4_GPUS`."""
    name = GOOGLE_METRICS.get(model) or f"NVIDIA_{model.upper().replace('-', '_').replace(' ', '_')}_GPUS"
    return f"PREEMPTIBLE_{name}" if kind is Kind.SPOT else name


def zone_exhausted(wanted: Use, elsewhere: Sequence[str]) -> OperationFailure:
    """The error for a zone without capacity, with Google's message. `elsewhere`: zones with capacity."""
    zone, model, count = wanted.zone, *gpus(wanted.machine_type)
    code, reason = "ZONE_RESOURCE_POOL_EXHAUSTED", "  Try a different zone, or try again later."
    if count:
        code, reason = f"{code}_WITH_DETAILS", "  '(resource type:compute)'."
    message = (
        f"The zone 'projects/{PROJECT}/zones/{zone}' does not have enough resources available to fulfill the request."
    )
    named = f" Consider trying your request in the {', '.join(elsewhere)} zone(s), which currently has capacity to"
    hint = f"{named} accommodate your request. Alternatively, you" if elsewhere else " You"
    sentence = (
        f"A {wanted.machine_type} VM instance is currently unavailable in the {zone} zone.{hint} can try your request"
        " again with a different VM hardware configuration or at a later time. For more information, see the"
        " troubleshooting documentation."
    )
    fields = {"vmType": wanted.machine_type, "zone": zone}
    if elsewhere:
        fields["zonesAvailable"] = ",".join(elsewhere)
    if count:
        fields["attachment"] = f"nvidia-{model.lower()}:{count}"
    info = {"reason": "resource_availability", "domain": "compute.googleapis.com", "metadatas": fields}
    return OperationFailure(
        code=code,
        message=f"{message}{reason}",
        status=503,
        status_message="SERVICE UNAVAILABLE",
        details=(
            {"help": {"links": [{"description": "Troubleshooting documentation", "url": _HELP}]}},
            {"localizedMessage": {"locale": "en-US", "message": sentence}},
            {"errorInfo": info},
        ),
    )


def over_quota(name: str, limit: int, region: str | None) -> OperationFailure:
    """The error for an exhausted quota of the region, or of all regions."""
    where = f"in region {region}" if region else "globally"
    slug = name.replace("_", "-")
    quota = {
        "metricName": f"compute.googleapis.com/{name.lower()}",
        "limitName": f"{slug}-per-project-region" if region else f"{slug}-per-project",
        "dimensions": {"region": region} if region else {"global": "global"},
        "limit": float(limit),
    }
    return OperationFailure(
        code="QUOTA_EXCEEDED",
        message=f"Quota '{name}' exceeded.  Limit: {limit:.1f} {where}.",
        status=403,
        status_message="FORBIDDEN",
        details=({"quotaInfo": quota},),
    )
