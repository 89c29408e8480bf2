"""The rule on templates: a group may start instances only from a template of the plan, which the other rules
check.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.context import Context
from policies.plan import PlanIndex
from policies.resource import (
    AWS_GROUP,
    AWS_INSTANCE,
    FLEETS,
    GCP_COPIES,
    GCP_GROUPS,
    GCP_TEMPLATES,
    LAUNCH_CONFIGURATION,
    LAUNCH_TEMPLATE,
    UNKNOWN,
    Resource,
    is_true,
    number,
)
from policies.rule import PropertyProblem, Rule, Violation

_SPOT_REQUEST: Final = "aws:ec2/spotInstanceRequest:SpotInstanceRequest"
_TEMPLATES: Final = frozenset({LAUNCH_TEMPLATE, LAUNCH_CONFIGURATION, *GCP_TEMPLATES}) - GCP_COPIES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """A reference to the template of instances."""

    path: str
    value: Any
    """Id, name or link."""
    version: Any = None
    sources: int = 1
    """Number of references of this property that a preview does not know. At least this number of templates must be
    among its sources.
    """


def _unlisted_templates(resources: Sequence[Resource], _: Context) -> Iterator[Violation]:
    templates = PlanIndex(resource for resource in resources if resource.type in _TEMPLATES)
    for resource in resources:
        for reference in _references(resource):
            key = reference.path.split(".")[0].split("[")[0]
            if wrong := _wrong(reference, templates, resource.depends.get(key, ())):
                yield PropertyProblem(path=reference.path, value=reference.value, message=wrong).on(resource)


def _wrong(reference: _Reference, templates: PlanIndex, sources: Sequence[str]) -> str:
    """Return the error of a reference. Empty: none. `sources` are the URNs from which its property takes its
    value.
    """
    found = templates.named(reference.value)
    if not found and len(behind := templates.behind(sources)) >= reference.sources:
        # If a value is known, its template already exists and has a known identifier. A plan with inputs alone is
        # different: it shows the source of a value, but not the value
        found = [t for t in behind if reference.value is UNKNOWN or t.at("arn") is t.at("selfLink") is None]
    if not found:
        return "must be a template of this plan, because the rules do not check others"
    version = reference.version
    if version == "$Default" and not any(is_true(template.at("updateDefaultVersion")) for template in found):
        return "uses the default version, which may differ from the checked version; use the latest"
    if isinstance(version, str) and version.isdecimal():
        latest = [number(template.at("latestVersion")) for template in found]
        if all(one is not None and one != float(version) for one in latest):
            return f"uses version {version}, which is not the checked version; use the latest"
    return ""


def _references(resource: Resource) -> Iterator[_Reference]:
    kind = resource.type
    if kind == AWS_GROUP:
        yield from _of_group(resource)
    elif kind in FLEETS:
        for index, config in enumerate(resource.each("launchTemplateConfigs")):
            path = f"launchTemplateConfigs[{index}].launchTemplateSpecification"
            yield from _specified(config.get("launchTemplateSpecification"), path, sources=index + 1)
        if resource.at("launchTemplateConfigs") is UNKNOWN and "launchTemplateConfigs" in resource.depends:
            yield _Reference(path="launchTemplateConfigs", value=UNKNOWN)
    elif kind in (AWS_INSTANCE, _SPOT_REQUEST):
        yield from _of_property(resource, "launchTemplate")
    elif kind in GCP_GROUPS:
        yield from _of_google_group(resource)
    elif kind in GCP_COPIES:
        for key in ("sourceInstanceTemplate", "sourceMachineImage"):
            value = resource.at(key)
            if value is not None and (value is not UNKNOWN or key in resource.depends):
                yield _Reference(path=key, value=value)


def _of_group(group: Resource) -> Iterator[_Reference]:
    yield from _of_property(group, "launchTemplate")
    configuration = group.at("launchConfiguration")
    if configuration not in (None, "") and (configuration is not UNKNOWN or "launchConfiguration" in group.depends):
        yield _Reference(path="launchConfiguration", value=configuration)
    mixed = group.at("mixedInstancesPolicy", "launchTemplate")
    if is_map(mixed):
        path = "mixedInstancesPolicy.launchTemplate"
        yield from _specified(mixed.get("launchTemplateSpecification"), f"{path}.launchTemplateSpecification")
        overrides = mixed.get("overrides")
        for index, override in enumerate(overrides if is_list(overrides) else ()):
            own = override.get("launchTemplateSpecification") if is_map(override) else UNKNOWN
            place = f"{path}.overrides[{index}].launchTemplateSpecification"
            # the dependencies of the whole property do not show which source belongs to which reference
            yield from _specified(own, place, sources=index + 2)
    elif mixed is UNKNOWN and "mixedInstancesPolicy" in group.depends:
        yield _Reference(path="mixedInstancesPolicy", value=UNKNOWN, sources=2)


def _of_property(resource: Resource, key: str) -> Iterator[_Reference]:
    value = resource.at(key)
    # providers leave unset properties unknown
    if value is not UNKNOWN or key in resource.depends:
        yield from _specified(value, key)


def _specified(specification: Any, path: str, sources: int = 1) -> Iterator[_Reference]:
    """Yield the references of a launch template specification, by id or by name."""
    if specification is UNKNOWN:
        yield _Reference(path=path, value=UNKNOWN, sources=sources)
    elif is_map(specification):
        named = [specification.get(key) for key in ("id", "launchTemplateId", "launchTemplateName", "name")]
        found = [value for value in named if value not in (None, "")]
        # the state contains id and name, whichever of them the program set
        value = next((value for value in found if value is not UNKNOWN), UNKNOWN)
        yield _Reference(path=path, value=value, version=specification.get("version"), sources=sources)


def _of_google_group(group: Resource) -> Iterator[_Reference]:
    versions = group.at("versions")
    if is_list(versions):
        found = [version.get("instanceTemplate") if is_map(version) else UNKNOWN for version in versions]
        unknown = sum(value is UNKNOWN for value in found)
        for index, value in enumerate(found):
            sources = unknown if value is UNKNOWN else len(found)
            yield _Reference(path=f"versions[{index}].instanceTemplate", value=value, sources=sources)
    elif versions is UNKNOWN and "versions" in group.depends:
        yield _Reference(path="versions", value=UNKNOWN)


RULES: Final = (
    Rule(
        id="templates-in-plan",
        reason="A template sets addresses, disks and permissions, and the rules check only templates of the plan.",
        remedy="Create the template in the same program, and use its latest version.",
        check_plan=_unlisted_templates,
        judges="templates, and their versions, of groups, fleets and instances, including overrides",
    ),
)
