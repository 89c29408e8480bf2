"""The rule on references: a plan may refer only to firewalls, networks, routes, targets and disks that it creates.

The rules do not check resources outside the plan. Settings may name an existing network and bucket.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from gpufleet.domain.catalogue import AcceleratorKind
from gpufleet.domain.parsed import is_list, is_map
from gpufleet.settings import KEY
from policies.context import Context, written
from policies.plan import PlanIndex
from policies.reference_table import IMAGES, NOTHING, REFERENCES, ResourceReference
from policies.resource import UNKNOWN, Resource, is_false
from policies.resource_types import CREATED_TYPES, is_excepted
from policies.rule import PropertyProblem, Rule, Violation


@dataclass(frozen=True, slots=True)
class _NamedValue:
    """One value that refers to a resource."""

    path: str
    value: Any
    count: int = 1
    """Number of values in the same list that a preview does not know."""


_NO_LIST: Final = 1_000_000
"""Assumed number of values in a list of which a preview knows nothing."""


def _unlisted_references(resources: Sequence[Resource], context: Context) -> Iterator[Violation]:
    given = _given(context)

    @cache
    def made(of: frozenset[str], is_given: bool) -> PlanIndex:
        return PlanIndex((one for one in resources if one.type in of), given if is_given else ())

    for resource, reference in _references(resources, context):
        if reference.of == NOTHING:
            continue  # the check of the single resource reports it
        for path, value in _outside_plan(resource, reference, made(reference.of, reference.given)):
            yield PropertyProblem(path=path, value=value, message=_message(reference, value)).on(resource)


def _references(resources: Sequence[Resource], context: Context) -> Iterator[tuple[Resource, ResourceReference]]:
    """Yield properties that may refer to a resource, except those that an exception names."""
    for resource in resources:
        if (found := REFERENCES.get(resource.type)) and not is_excepted(resource, context):
            yield from ((resource, reference) for reference in found)


def _outside_plan(resource: Resource, reference: ResourceReference, made: PlanIndex) -> Iterator[tuple[str, Any]]:
    """Yield path and value of references to resources outside the plan."""
    sources = resource.depends.get(reference.key, ())
    # providers leave unset properties unknown
    is_set = resource.at(reference.key) is not UNKNOWN or bool(sources)
    for named_value in _named_values(resource, reference) if is_set else [_NamedValue(reference.key, None)]:
        if (named_value.value is not None or reference.must) and not made.has(
            named_value.value, sources, named_value.count
        ):
            yield named_value.path, named_value.value


def _named_values(resource: Resource, reference: ResourceReference) -> Iterator[_NamedValue]:
    """Yield the values of a resource at a reference's path."""
    first, *remaining_path = reference.path
    return _values(resource.at(reference.key), tuple(remaining_path), reference.key, is_listed=first.endswith("[]"))


def _values(value: Any, remaining_path: tuple[str, ...], at: str, *, is_listed: bool) -> Iterator[_NamedValue]:
    """Yield the values at the end of a path, or None where a part of the path is not set."""
    if is_listed and is_list(value):
        unknown = sum(one is UNKNOWN for one in value)
        for index, one in enumerate(value):
            for named_value in _values(one, remaining_path, f"{at}[{index}]", is_listed=False):
                yield _NamedValue(named_value.path, named_value.value, max(named_value.count, unknown))
        if value:
            return
    if value in (None, "", []):
        yield _NamedValue(at, None)
    elif value is UNKNOWN and is_listed:
        yield _NamedValue(at, value, _NO_LIST)
    elif is_map(value) and remaining_path:
        key = remaining_path[0].removesuffix("[]")
        yield from _values(
            value.get(key), remaining_path[1:], f"{at}.{key}", is_listed=remaining_path[0].endswith("[]")
        )
    else:
        yield _NamedValue(at, value)


def _message(reference: ResourceReference, value: Any) -> str:
    kinds = " or ".join(sorted(kind.rpartition(":")[2] for kind in reference.of))
    if value is None:
        return f"must name a {kinds} of this plan, because the rules do not check the default"
    named = " or of the settings" if reference.given else ""
    return f"must be a {kinds} of this plan{named}, because the rules do not check others"


def _settings(context: Context) -> Resource:
    return Resource(type=KEY, name=KEY, props=written(context.fleet))


def _given(context: Context) -> frozenset[str]:
    """Return the names of the network, its subnets and the bucket in the settings."""
    settings = _settings(context)
    subnets = settings.at("network", "subnets")
    named = [
        settings.at("network", "id"),
        settings.at("bucket", "name"),
        *(subnets.values() if is_map(subnets) else ()),
    ]
    texts = [one for one in named if isinstance(one, str) and one]
    project = f"projects/{settings.at('account')}"
    # the state on Google Cloud has links, whatever the program set
    links = [
        f"{project}/{place}/{one}"
        for one in texts
        if "/" not in one
        for place in ("global/networks", f"regions/{context.region}/subnetworks")
    ]
    return frozenset((*texts, *links))


def _fixed_references(resource: Resource, context: Context) -> Iterator[PropertyProblem]:
    """Check one resource alone: references that no other rule checks, images and locations."""
    if is_excepted(resource, context):
        return
    for reference in REFERENCES.get(resource.type, ()):
        for named_value in _named_values(resource, reference) if reference.of == NOTHING else ():
            if named_value.value is not None:
                yield PropertyProblem(
                    path=named_value.path,
                    value=named_value.value,
                    message="must be left out, because the rules do not check what it names",
                )
    yield from _images(resource, context)
    yield from _places(resource, context)
    if resource.type == _ENDPOINT:
        service = resource.at("serviceName")
        if not (isinstance(service, str) and _OF_AWS.fullmatch(service)):
            yield PropertyProblem(
                path="serviceName",
                value=service,
                message="must be a service of AWS, for example com.amazonaws.us-east-1.s3",
            )
    elif resource.type == _NETWORK and not is_false(value := resource.at("autoCreateSubnetworks")):
        yield PropertyProblem(
            path="autoCreateSubnetworks",
            value=value,
            message="must be false, because the rules do not check such subnets",
        )


def _images(resource: Resource, context: Context) -> Iterator[PropertyProblem]:
    settings = _settings(context)
    places = [("machines",), ("control",), *(("machines", "accelerators", kind) for kind in AcceleratorKind)]
    named = [one for place in places if (one := settings.at(*place, "image")) is not None]
    image = IMAGES.get(resource.type)
    # without settings there is no list of images
    for named_value in _named_values(resource, image) if image is not None and named else ():
        if named_value.value is not None and named_value.value not in named:
            yield PropertyProblem(
                path=named_value.path,
                value=named_value.value,
                message="must be machines.image, machines.accelerators.….image or control.image of the settings",
            )


def _places(resource: Resource, context: Context) -> Iterator[PropertyProblem]:
    """A resource's own project or region overrides the provider's."""
    if resource.type not in CREATED_TYPES or resource.type.startswith("pulumi:"):
        return
    allowed = {
        "gcp": ("project", (context.config.get("gcp:project"), _settings(context).at("account"))),
        "aws": ("region", (context.region or None,)),
    }
    key, places = allowed.get(resource.type.partition(":")[0], ("", ()))
    value = resource.at(key) if any(places) else None
    if value not in (None, "", *places):
        yield PropertyProblem(path=key, value=value, message=f"must be the {key} of the settings, or left out")


_ENDPOINT: Final = "aws:ec2/vpcEndpoint:VpcEndpoint"
_NETWORK: Final = "gcp:compute/network:Network"
_OF_AWS: Final = re.compile(r"com\.amazonaws\.(?!vpce\.)[a-z]{2}-[a-z-]+-[0-9]\.(?!vpce-svc)[a-z0-9.-]+")
"""Names of AWS services. Endpoint services of other accounts have names like
`com.amazonaws.vpce.<region>.vpce-svc-…`.
"""

RULES: Final = (
    Rule(
        id="references-in-plan",
        reason="The rules check only resources of the plan; others may have any rules, routes or contents.",
        remedy="Use resources that this program creates, or the network, subnets, bucket and images of the settings.",
        check_resource=_fixed_references,
        check_plan=_unlisted_references,
        judges=(
            "references to security groups, networks, subnets, routes, targets, addresses of DNS records, disks, "
            "queues, accounts, keys and images; a resource with an exception of resource-type-listed may refer to all"
        ),
    ),
)
