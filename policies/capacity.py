"""Rules on GPU capacity: owners, limits, machine types, spread of spot, ends of reservations, space for models."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, Final

from gpufleet.domain import catalogue, tags
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.parsed import is_list, is_map
from policies.context import Context
from policies.resource import (
    AWS_GROUP,
    FLEETS,
    GCP_GROUPS,
    GCP_TEMPLATES,
    RUNS_INSTANCES,
    UNKNOWN,
    Resource,
    known,
    number,
)
from policies.rule import PropertyProblem, Rule, Violation

GCP_REGIONAL_GROUP: Final = "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager"
RESERVATIONS: Final = frozenset(
    {"aws:ec2/capacityReservation:CapacityReservation", "gcp:compute/reservation:Reservation"}
)
GIB: Final = 1024**3
UNSAFE_SUFFIXES: Final = (
    *(".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".gguf", ".h5", ".msgpack"),
    *(".onnx", ".npz", ".npy", ".joblib", ".tar", ".gz", ".tgz", ".zip"),
)
"""Suffixes of weight files in formats other than safetensors. Most of these formats can execute code when loaded."""


def tags_of(resource: Resource) -> Mapping[str, Any]:
    """Return the tags (AWS) or labels (Google Cloud) that instances receive, by tag key."""
    if resource.type == AWS_GROUP:
        carried = (tag for tag in resource.each("tags") if tag.get("propagateAtLaunch") is not False)
        return {tag["key"]: tag.get("value") for tag in carried if isinstance(tag.get("key"), str)}
    if resource.type.startswith("gcp:"):
        labels = resource.at("labels")
        if not is_map(labels):
            return {}
        return {key: labels[tags.label(key)] for key in (*tags.REQUIRED, tags.REVIEW_BY) if tags.label(key) in labels}
    found = resource.at("tags")
    return found if is_map(found) else {}


def machine_types_of(resource: Resource) -> Iterator[str]:
    """Yield every machine type that a resource may start and that the preview knows."""
    found: list[Any]
    if resource.type in RUNS_INSTANCES:
        found = [resource.at("instanceType")]
    elif resource.type == AWS_GROUP or resource.type in FLEETS:
        found = [override.get("instanceType") for override in _overrides(resource)]
    elif resource.type in GCP_TEMPLATES:
        found = [resource.at("machineType")]
    elif resource.type in GCP_GROUPS:
        selections = resource.each("instanceFlexibilityPolicy", "instanceSelections")
        found = [machine for selection in selections for machine in _machines(selection)]
    elif resource.type in RESERVATIONS:
        found = [resource.at("instanceType"), resource.at("specificReservation", "instanceProperties", "machineType")]
    else:
        found = []
    # Google Cloud also accepts a link instead of a name: zones/us-central1-a/machineTypes/g2-standard-4
    yield from (str(machine).rpartition("/")[2] for machine in found if known(machine))


def _overrides(resource: Resource) -> Iterator[Mapping[str, Any]]:
    """Yield the overrides by machine type of an Auto Scaling group or a fleet."""
    yield from resource.each("mixedInstancesPolicy", "launchTemplate", "overrides")
    for config in resource.each("launchTemplateConfigs"):
        overrides = config.get("overrides")
        yield from (one for one in overrides if is_map(one)) if is_list(overrides) else ()


def _machines(selection: Mapping[str, Any]) -> list[Any]:
    names = selection.get("machineTypes")
    return names if is_list(names) else []


def has_gpu(resource: Resource, machine_type: str) -> bool:
    """Return whether the machine has GPUs, according to the catalogue, the family's name, or added GPUs."""
    cloud = Cloud.GCP if resource.type.startswith("gcp:") else Cloud.AWS
    try:
        catalogue.machine(cloud, machine_type)
    except catalogue.UnknownMachineError:
        added = (resource.each(*place, "guestAccelerators") for place in _WITH_ADDED_GPUS)
        return bool(_FAMILIES[cloud].match(machine_type)) or any(any(gpus) for gpus in added)
    return True


_WITH_ADDED_GPUS: Final = ((), ("specificReservation", "instanceProperties"))


_FAMILIES: Final = {
    Cloud.AWS: re.compile(r"(?:p|g|gr)\d|inf\d|trn\d|dl\d"),
    Cloud.GCP: re.compile(r"a[2-9]x?-|g[24]-|ct\d|tpu\d"),
}
"""Families with accelerators, including families that the catalogue does not contain."""


def _owned_and_bounded(resource: Resource, _: Context) -> Iterator[PropertyProblem]:
    if resource.type == AWS_GROUP:
        largest, least = resource.at("maxSize"), number(resource.at("minSize")) or 0
        if largest is None:
            yield PropertyProblem(path="maxSize", message="must be set")
        elif (most := number(largest)) is not None and most < least:
            yield PropertyProblem(path="maxSize", value=largest, message=f"must not be below minSize, {least:g}")
    elif resource.type not in GCP_TEMPLATES or not any(has_gpu(resource, m) for m in machine_types_of(resource)):
        return
    present = tags_of(resource)
    if missing := sorted(key for key in tags.REQUIRED if present.get(key) in (None, "")):
        yield PropertyProblem(
            path=_tags(resource), value=sorted(present), message=f"must contain {', '.join(missing)}"
        )
    kind = present.get(tags.CAPACITY_TYPE)
    if kind not in (None, "", UNKNOWN, *CapacityType):
        # without this tag, the other rules and the watchdogs would ignore the group
        path = f"{_tags(resource)}.{tags.CAPACITY_TYPE}"
        yield PropertyProblem(path=path, value=kind, message=f"must be one of {', '.join(CapacityType)}")


def _tags(resource: Resource) -> str:
    """Return the property that contains the tags."""
    return "labels" if resource.type.startswith("gcp:") else "tags"


def _allowed_machine_types(resource: Resource, context: Context) -> Iterator[PropertyProblem]:
    if context.allowed_machine_types is None:
        return
    # AWS accepts instance requirements here instead of a machine type
    for place in (resource.each(), _overrides(resource)):
        for wanted in filter(None, (one.get("instanceRequirements") for one in place)):
            yield PropertyProblem(
                path="instanceRequirements",
                value=wanted,
                message="selects machine types by attributes, so any type may start",
            )
    for machine in sorted(set(machine_types_of(resource)) - context.allowed_machine_types):
        if has_gpu(resource, machine):
            yield PropertyProblem(
                path=_place(resource),
                value=machine,
                message=f"may start {machine}, which is not one of the allowed machine types "
                f"({', '.join(sorted(context.allowed_machine_types)) or 'none'})",
            )


def _place(resource: Resource) -> str:
    """Return the property that contains the machine types."""
    if resource.type == AWS_GROUP:
        return "mixedInstancesPolicy.launchTemplate.overrides"
    if resource.type in FLEETS:
        return "launchTemplateConfigs"
    if resource.type in GCP_GROUPS:
        return "instanceFlexibilityPolicy.instanceSelections"
    if resource.type in RESERVATIONS and resource.type.startswith("gcp:"):
        return "specificReservation.instanceProperties.machineType"
    return "machineType" if resource.type.startswith("gcp:") else "instanceType"


def _of_capacity(resources: Sequence[Resource], kind: CapacityType) -> Iterator[tuple[Resource, str]]:
    by_urn = {resource.urn: resource for resource in resources}
    for resource in resources:
        present = _tags_of_group(resource, by_urn)
        pool = present.get(tags.POOL)
        if present.get(tags.CAPACITY_TYPE) == kind.value and isinstance(pool, str):
            yield resource, pool


def _tags_of_group(resource: Resource, by_urn: Mapping[str, Resource]) -> Mapping[str, Any]:
    """Return the tags that a group's instances receive. Empty if the resource is not a group."""
    if resource.type == AWS_GROUP:
        return tags_of(resource)
    if resource.type not in GCP_GROUPS:
        return {}
    # Google's groups have no labels, and a preview does not know the template's link, so follow the dependency
    sources = (by_urn.get(urn) for urn in resource.depends.get("versions", ()))
    return next((tags_of(one) for one in sources if one is not None and one.type in GCP_TEMPLATES), dict[str, Any]())


def _are_in_one_zone(groups: Sequence[Resource]) -> bool:
    zones: set[str] = set()
    for group in groups:
        several = group.at("distributionPolicyZones")
        if group.type == GCP_REGIONAL_GROUP and not is_list(several):
            return False  # Google spreads the group over the region
        # an AWS spot group covers one zone: the program creates one group per zone
        found = several if is_list(several) else [group.at("zone")]
        zones.update(str(zone) if known(zone) else group.name for zone in found)
    return len(zones) < 2


def _spread(resources: Sequence[Resource], context: Context) -> Iterator[Violation]:
    if not context.is_prod:
        return
    groups: dict[str, list[Resource]] = defaultdict(list)
    for resource, pool in _of_capacity(resources, CapacityType.SPOT):
        groups[pool].append(resource)
    for pool, of_pool in sorted(groups.items()):
        machines = {m for group in of_pool for m in machine_types_of(group)}
        if _are_in_one_zone(of_pool):
            wrong = f"spot capacity of pool {pool} is in one zone"
            yield Violation(resource=of_pool[0].name, type=of_pool[0].type, wrong=wrong)
        if len(machines) < 2 and of_pool[0].type == AWS_GROUP:
            yield Violation(
                resource=of_pool[0].name,
                type=of_pool[0].type,
                wrong=f"spot capacity of pool {pool} has only one machine type ({', '.join(machines) or 'none'})",
            )


def _fallback(resource: Resource, _: Context) -> Iterator[PropertyProblem]:
    if resource.type == AWS_GROUP and tags_of(resource).get(tags.CAPACITY_TYPE) == CapacityType.ON_DEMAND.value:
        largest = number(resource.at("maxSize"))
        if largest is not None and largest > MAX_ON_DEMAND:
            message = f"must be at most {MAX_ON_DEMAND}, because on-demand has the highest price"
            yield PropertyProblem(path="maxSize", value=resource.at("maxSize"), message=message)


MAX_ON_DEMAND: Final = 64
"""Upper limit of on-demand instances. No plan reaches it on purpose; the budget sets the finer limit."""


def _reservation_ends(resource: Resource, context: Context) -> Iterator[PropertyProblem]:
    if resource.type not in RESERVATIONS:
        return
    path = "deleteAtTime" if resource.at("deleteAtTime") else "endDate"
    end = resource.at(path)
    if isinstance(end, str) and _DAY.match(end) and end[:10] < context.today.isoformat():
        yield PropertyProblem(path=path, value=end, message="is in the past")
    if resource.at("endDateType") == "limited" or resource.at("deleteAtTime") is not None:
        return
    path, review = f"{_tags(resource)}.{tags.REVIEW_BY}", tags_of(resource).get(tags.REVIEW_BY)
    if review is UNKNOWN:
        return
    if review is None:
        yield PropertyProblem(path=path, message="must be a date, because the reservation has no end")
        return
    try:
        day = date.fromisoformat(str(review))
    except ValueError:
        yield PropertyProblem(path=path, value=review, message="must be a date, for example 2027-06-30")
        return
    if day < context.today:
        yield PropertyProblem(path=path, value=review, message="is in the past")


_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")


def _disk_space(resource: Resource, context: Context) -> Iterator[PropertyProblem]:
    present = tags_of(resource)
    weights = context.model_gib.get(str(present.get(tags.POOL)))
    if weights is None or resource.type in RESERVATIONS:
        return
    cloud = Cloud.GCP if resource.type.startswith("gcp:") else Cloud.AWS
    for name in machine_types_of(resource):
        try:
            machine = catalogue.machine(cloud, name)
        except catalogue.UnknownMachineError:
            continue
        disk_gib = Decimal(machine.nvme_bytes) / GIB
        if disk_gib < 2 * weights:
            yield PropertyProblem(
                path=_place(resource),
                value=name,
                message=f"has {disk_gib:.0f} GiB of local NVMe, and the model needs {2 * weights:.1f} GiB for the "
                "served revision and the next one",
            )


def _model_sources(resources: Sequence[Resource], context: Context) -> Iterator[Violation]:
    del resources
    for name, source in sorted(context.model_sources.items()):
        if source.lower().split("@")[0].endswith(UNSAFE_SUFFIXES):
            yield Violation(resource=name, wrong=f"the model's source {source} is not in the safetensors format")


RULES: Final = (
    Rule(
        id="gpu-group-owned-and-bounded",
        reason="Watchdogs ignore instances without tags, and the cost of a group without a limit is unbounded.",
        remedy="Set maxSize and the tags in gpufleet/domain/tags.py (labels on Google Cloud).",
        judges="maxSize and tags of Auto Scaling groups; labels of GPU templates and instances of Google Cloud",
        check_resource=_owned_and_bounded,
    ),
    Rule(
        id="machine-type-allowed",
        reason="One p5.48xlarge by mistake costs more in a day than a development environment in a month.",
        remedy="Choose an allowed machine type, or add this one to policies.machine_types in the settings.",
        judges="machine types with GPUs that templates, groups, fleets, instances and reservations may start,"
        " if the settings have policies.machine_types",
        check_resource=_allowed_machine_types,
    ),
    Rule(
        id="spot-spread",
        reason="All spot capacity of one zone or one machine type can be lost at the same time.",
        remedy="Use at least two zones and two machine types for the pool's spot capacity.",
        judges="zones and machine types of each pool's spot groups, in an environment with the name prod",
        check_plan=_spread,
    ),
    Rule(
        id="fallback-bounded",
        reason="When spot capacity is lost, on-demand replaces it at the full price.",
        remedy="Lower capacity.on_demand.max of the pool.",
        judges="maxSize of on-demand groups on AWS; groups on Google Cloud have no maximum size",
        check_resource=_fallback,
    ),
    Rule(
        id="reservation-ends-or-is-reviewed",
        reason="A reservation is paid for even if no instance uses it.",
        remedy="Set its end (ends) or the date of its next review (review_by).",
        judges="ends and review-by tags of reservations",
        check_resource=_reservation_ends,
    ),
    Rule(
        id="model-fits-local-disk",
        reason="Instances download the next revision while they serve the current one.",
        remedy="Choose a machine type with more local NVMe, or a smaller model.",
        judges="local disks of each pool's machine types, and the weights of its model",
        check_resource=_disk_space,
    ),
    Rule(
        id="safetensors-only",
        reason="Other formats can run code when they are loaded.",
        remedy="Convert the model to safetensors and add it with `gpufleet model add`.",
        judges="sources of the models in the settings",
        check_plan=_model_sources,
    ),
)
