"""Predicts names that only `up` knows, from the resources of the plan that determine them.

So a preview checks a binding by the account that it is for, not by the name of the binding.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from policies.context import Context
from policies.iam import aws, google, runs_as
from policies.iam.names import Names, names_of
from policies.resource import ACCOUNT, AWS_INSTANCE, LAUNCH_TEMPLATE, PROFILE, ROLE, UNKNOWN, Resource
from policies.rule import PropertyProblem, Violation

_SUFFIX: Final = "0000000"
"""Replaces the suffix that Pulumi appends to a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DependentProperty:
    """A property that the program takes from another resource of the plan."""

    key: str
    of: str
    """Type of the other resource."""
    path: tuple[str, ...]


_OF_AWS: Final[Mapping[str, tuple[_DependentProperty, ...]]] = {
    "aws:iam/rolePolicy:RolePolicy": (_DependentProperty(key="role", of=ROLE, path=("role",)),),
    PROFILE: (_DependentProperty(key="role", of=ROLE, path=("role",)),),
    AWS_INSTANCE: (_DependentProperty(key="iamInstanceProfile", of=PROFILE, path=("iamInstanceProfile",)),),
    LAUNCH_TEMPLATE: (
        _DependentProperty(key="iamInstanceProfile", of=PROFILE, path=("iamInstanceProfile", "arn")),
        _DependentProperty(key="iamInstanceProfile", of=PROFILE, path=("iamInstanceProfile", "name")),
    ),
}
_OF_BINDINGS: Final = (
    _DependentProperty(key="role", of=google.CUSTOM_ROLE, path=("role",)),
    _DependentProperty(key="member", of=ACCOUNT, path=("member",)),
)


def judged(resources: Sequence[Resource], context: Context) -> Iterator[Violation]:
    """Yield what a plan allows beyond the list when its unknown names are predicted. Yield nothing if all names are
    known, or without settings.
    """
    names = names_of(context)
    made = {resource.urn: resource for resource in resources}
    for resource in resources if names.named("account") is not None else ():
        taken = _OF_BINDINGS if google.place(resource.type) is not None else _OF_AWS.get(resource.type, ())
        unknown = [one for one in taken if resource.at(*one.path) is UNKNOWN and _is_set(one, resource)]
        for wrong in _with_predicted_names(resource, unknown, made, context, names) if unknown else ():
            yield wrong.on(resource)


def _is_set(one: _DependentProperty, resource: Resource) -> bool:
    """Return whether the program set the property. A provider may report the profile of a machine as unknown although
    the program did not set one.
    """
    return one.of != PROFILE or bool(resource.depends.get(one.key))


def _with_predicted_names(
    resource: Resource,
    unknown: Sequence[_DependentProperty],
    made: Mapping[str, Resource],
    context: Context,
    names: Names,
) -> Iterator[PropertyProblem]:
    props: dict[str, Any] = {**resource.props}
    for one in unknown:
        found = {urn for urn in resource.depends.get(one.key, ()) if urn in made and made[urn].type == one.of}
        if len(found) != 1:
            yield PropertyProblem(
                path=".".join(one.path), value=UNKNOWN, message=f"must come from one {one.of} of this plan"
            )
            return
        props[one.key] = _nested(one.path[1:], _name(made[found.pop()], names))
    known = replace(resource, props=props)
    if resource.type.startswith("gcp:"):
        yield from google.judged(known, names)
    else:
        yield from aws.judged(known, names)
        yield from runs_as.judged(known, context, names)


def _nested(path: tuple[str, ...], value: str) -> Any:
    return {path[0]: value} if path else value


def _name(source: Resource, names: Names) -> str:
    """Return the name that a resource will have."""
    project = source.at("project")
    if not isinstance(project, str):
        project = min(names.named("project") or ("",))
    if source.type == ACCOUNT:
        return f"serviceAccount:{source.at('accountId')}@{project}.iam.gserviceaccount.com"
    if source.type == google.CUSTOM_ROLE:
        return f"projects/{project}/roles/{source.at('roleId')}"
    own = source.at("name")
    return own if isinstance(own, str) else f"{source.name}-{_SUFFIX}"
