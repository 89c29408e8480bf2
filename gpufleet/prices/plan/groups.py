"""The groups and reservations of a plan, in a form common to both clouds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType
from gpufleet.prices.plan.preview import UNKNOWN, PlannedResource, as_list, as_map

AWS_GROUP: Final = "aws:autoscaling/group:Group"
AWS_RESERVATION: Final = "aws:ec2/capacityReservation:CapacityReservation"
GCP_RESERVATION: Final = "gcp:compute/reservation:Reservation"
GCP_GROUPS: Final = frozenset(
    {
        "gcp:compute/instanceGroupManager:InstanceGroupManager",
        "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """A group that a plan declares."""

    name: str
    pool: str
    capacity_type: CapacityType
    machine_types: tuple[str, ...]
    desired: int
    zone: str | None = None
    reservation: str | None = None
    """The id of its reservation, if that is bought outside of this program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReservation:
    """Prepaid capacity: it costs the same whether it is used or not."""

    name: str
    pool: str
    machine_type: str
    count: int
    zone: str | None = None


def groups(declared: Sequence[PlannedResource]) -> Iterator[PlannedGroup]:
    """Every group with the tags of a pool."""
    by_urn = {resource.urn: resource for resource in declared}
    for resource in declared:
        if resource.type == AWS_GROUP:
            found = _tags(resource.inputs.get("tags"))
            machines = _overrides(resource) or _from_template(resource, "launchTemplate", "instanceType", by_urn)
            size = _size(resource, "desiredCapacity")
        elif resource.type in GCP_GROUPS:
            template = _template(resource, "versions", by_urn)
            found = _labels(template.inputs.get("labels") if template else None)
            machines = _selections(resource) or _from_template(resource, "versions", "machineType", by_urn)
            size = _size(resource, "targetSize")
        else:
            continue
        if tags.POOL in found and tags.CAPACITY_TYPE in found:
            yield PlannedGroup(
                name=resource.name,
                pool=found[tags.POOL],
                capacity_type=CapacityType(found[tags.CAPACITY_TYPE]),
                machine_types=machines,
                desired=size,
                zone=resource.inputs.get("zone"),
                reservation=_target(resource, by_urn),
            )


def _target(group: PlannedResource, by_urn: Mapping[str, PlannedResource]) -> str | None:
    """The only reservation that a group's template may use, if the program names one."""
    template = _template(group, "launchTemplate", by_urn) or _template(group, "versions", by_urn)
    if template is None:
        return None
    aws = as_map(as_map(template.inputs.get("capacityReservationSpecification")).get("capacityReservationTarget"))
    google = as_map(as_map(template.inputs.get("reservationAffinity")).get("specificReservation"))
    found = aws.get("capacityReservationId") or next(iter(as_list(google.get("values"))), None)
    return str(found) if found and found != UNKNOWN else None


def reservations(declared: Iterable[PlannedResource]) -> Iterator[PlannedReservation]:
    """Every reservation with the tags of a pool."""
    for resource in declared:
        inputs = resource.inputs
        if resource.type == AWS_RESERVATION:
            yield PlannedReservation(
                name=resource.name,
                pool=_tags(inputs.get("tags")).get(tags.POOL, "(no pool)"),
                machine_type=str(inputs["instanceType"]),
                count=int(inputs["instanceCount"]),
                zone=inputs.get("availabilityZone"),
            )
        elif resource.type == GCP_RESERVATION:
            specific = as_map(inputs.get("specificReservation"))
            yield PlannedReservation(
                name=resource.name,
                pool=str(inputs.get("description") or "(no pool)"),
                machine_type=str(as_map(specific.get("instanceProperties")).get("machineType")),
                count=int(specific.get("count") or 0),
                zone=inputs.get("zone"),
            )


def _tags(raw: Any) -> dict[str, str]:
    if isinstance(raw, list):
        return {str(tag["key"]): str(tag["value"]) for tag in map(as_map, as_list(raw))}
    return {key: str(value) for key, value in as_map(raw).items()}


def _labels(raw: Any) -> dict[str, str]:
    labels = as_map(raw)
    return {key: str(labels[tags.label(key)]) for key in tags.REQUIRED if tags.label(key) in labels}


def _overrides(group: PlannedResource) -> tuple[str, ...]:
    template = as_map(as_map(group.inputs.get("mixedInstancesPolicy")).get("launchTemplate"))
    found = [as_map(override).get("instanceType") for override in as_list(template.get("overrides"))]
    return tuple(str(machine) for machine in found if machine)


def _selections(group: PlannedResource) -> tuple[str, ...]:
    policy = as_map(group.inputs.get("instanceFlexibilityPolicy"))
    chosen = map(as_map, as_list(policy.get("instanceSelections")))
    return tuple(str(machine) for selection in chosen for machine in as_list(selection.get("machineTypes")))


def _template(group: PlannedResource, key: str, by_urn: Mapping[str, PlannedResource]) -> PlannedResource | None:
    return next((by_urn[urn] for urn in group.depends.get(key, ()) if urn in by_urn), None)


def _from_template(
    group: PlannedResource, key: str, field: str, by_urn: Mapping[str, PlannedResource]
) -> tuple[str, ...]:
    template = _template(group, key, by_urn)
    machine = template.inputs.get(field) if template else None
    return (str(machine),) if machine and machine != UNKNOWN else ()


def _size(group: PlannedResource, key: str) -> int:
    # prefer the cloud's size: watchdogs manage sizes, and a plan does not change them
    for source in (group.outputs, group.inputs):
        value = source.get(key)
        if isinstance(value, int | float):
            return int(value)
    return 0
