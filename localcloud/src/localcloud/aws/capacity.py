"""The capacity of the emulated AWS: spot and on-demand capacity per zone and machine type, and quotas."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpufleet.domain.catalogue import UnknownMachineError, machine
from gpufleet.domain.model import Cloud
from localcloud.addresses import ZONES
from localcloud.aws import refusals
from localcloud.aws.refusals import Refusal
from localcloud.capacity_kind import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The capacity that one instance uses, or would use."""

    zone: str
    machine_type: str
    kind: Kind


@dataclass(slots=True, kw_only=True)
class Capacity:
    """Limits set through the admin API; without a limit, capacity is unlimited."""

    limits: dict[tuple[str, str, Kind], int] = field(default_factory=dict[tuple[str, str, Kind], int])
    """(zone, machine type, kind) -> the number of instances that may run there."""
    vcpu_limits: dict[Kind, int] = field(default_factory=dict[Kind, int])
    spot_lost: set[str] = field(default_factory=set[str])
    """Machine types without spot capacity in any zone, until `restore`."""
    chosen: dict[tuple[str | None, str | None, Kind | None], str] = field(
        default_factory=dict[tuple[str | None, str | None, Kind | None], str]
    )
    """(zone, machine type, kind) -> name of the error that launches there get; None matches any value."""

    def remove_spot(self, machine_types: Iterable[str]) -> None:
        """Remove the spot capacity of these types in all zones."""
        self.spot_lost.update(machine_types)

    def restore(self) -> None:
        """Remove all limits, quotas and refusals."""
        self.chosen.clear()
        self.spot_lost.clear()
        self.limits.clear()
        self.vcpu_limits.clear()

    def refusal(self, wanted: Use, present_uses: Iterable[Use]) -> Refusal | None:
        """The error of this launch given the present instances, or None. The quota is checked first, as in EC2."""
        present = list(present_uses)
        found = self.chosen_for(wanted) or self._over_quota(wanted, present)
        if found is None and self._is_full(wanted, present):
            spot = wanted.kind is Kind.SPOT
            others = [
                zone for zone in _other_zones(wanted.zone) if not self._is_full(replace(wanted, zone=zone), present)
            ]
            found = refusals.UNFULFILLABLE if spot else refusals.no_on_demand(others)
            return _named(found, wanted, others)
        return found

    def chosen_for(self, wanted: Use) -> Refusal | None:
        """The error that the admin API has set for such a launch."""
        launch = (wanted.zone, wanted.machine_type, wanted.kind)
        for rule, name in self.chosen.items():
            if all(one is None or one == other for one, other in zip(rule, launch, strict=True)):
                return _named(refusals.CHOSEN[name], wanted, _other_zones(wanted.zone))
        return None

    def _over_quota(self, wanted: Use, present: Iterable[Use]) -> Refusal | None:
        limit = self.vcpu_limits.get(wanted.kind)
        used = sum(vcpus(use.machine_type) for use in present if use.kind is wanted.kind)
        if limit is None or used + vcpus(wanted.machine_type) <= limit:
            return None
        return refusals.SPOT_COUNT if wanted.kind is Kind.SPOT else refusals.over_vcpus(limit)

    def _is_full(self, wanted: Use, present: Iterable[Use]) -> bool:
        if wanted.kind is Kind.SPOT and wanted.machine_type in self.spot_lost:
            return True
        limit = self.limits.get((wanted.zone, wanted.machine_type, wanted.kind))
        return limit is not None and sum(use == wanted for use in present) >= limit

    def as_json(self) -> Mapping[str, object]:
        """The limits in force."""
        return {
            "limits": [
                {"zone": zone, "type": machine_type, "kind": kind, "count": count}
                for (zone, machine_type, kind), count in sorted(self.limits.items())
            ],
            "vcpu_limits": {str(kind): limit for kind, limit in sorted(self.vcpu_limits.items())},
            "spot_lost": sorted(self.spot_lost),
            "refusals": [
                {"zone": zone, "type": machine_type, "kind": kind, "refuse": name}
                for (zone, machine_type, kind), name in self.chosen.items()
            ],
        }


def vcpus(machine_type: str) -> int:
    """Virtual CPUs of a type; small machines that are not in the GPU catalogue count as two."""
    try:
        return machine(Cloud.AWS, machine_type).vcpus
    except UnknownMachineError:
        return 2


def _other_zones(zone: str) -> Sequence[str]:
    return [other for other in ZONES if other != zone]


def _named(refusal: Refusal, wanted: Use, others: Sequence[str]) -> Refusal:
    return refusal.for_launch(zone=wanted.zone, type=wanted.machine_type, others=", ".join(others))
