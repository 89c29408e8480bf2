"""Parses resources from the output of `pulumi preview --json`, so that rules run without the engine."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from gpufleet.prices.plan.preview import UNKNOWN as UNKNOWN_TEXT
from gpufleet.prices.plan.preview import PlannedResource, Preview, PreviewError
from policies.context import Context
from policies.resource import UNKNOWN, Resource
from policies.rule import PropertyProblem, Rule

SECRET_TEXT: Final = "[secret]"
"""Replacement by the engine for a value that the program marked as secret. A pack in the engine gets the value."""


def resources_of(preview: Preview) -> tuple[Resource, ...]:
    """Return the resources after the plan, as the engine passes them to the pack. They include the providers that a
    preview omits, and exclude resources that are deleted or only read. Raises PreviewError for a step without a
    resource.
    """
    if not preview.after:
        raise PreviewError("the preview has no resources; create it with `pulumi preview --json --show-sames`")
    found = [_resource(one) for one in preview.after if not one.is_read]
    shown = {one.urn for one in preview.after}
    providers = dict.fromkeys(one.provider for one in preview.after if one.provider not in ("", *shown))
    return (*found, *map(_provider, providers))


_MADE: Final = ("arn", "email", "selfLink", "latestVersion")


def _resource(one: PlannedResource) -> Resource:
    hidden: list[str] = []
    # plans refer to existing resources by these: a group to its template, a rule to its prefix list
    made = {key: one.outputs.get(key, UNKNOWN_TEXT) for key in _MADE}
    props = {key: _value(value, key, hidden) for key, value in (made | dict(one.inputs)).items() if key != "id"}
    depends = {key: tuple(urns) for key, urns in one.depends.items()}
    return Resource(
        type=one.type,
        name=one.name,
        props=props,
        urn=one.urn,
        depends=depends,
        outputs=one.outputs,
        hidden=tuple(hidden),
    )


def _provider(urn: str) -> Resource:
    *_, kind, name = urn.split("::")
    return Resource(type=kind.rpartition("$")[2], name=name, urn=urn)


def _value(value: Any, path: str, hidden: list[str]) -> Any:
    if value == UNKNOWN_TEXT:
        return UNKNOWN
    if value == SECRET_TEXT:
        hidden.append(path)
        return UNKNOWN
    if is_map(value):
        return {key: _value(item, f"{path}.{key}", hidden) for key, item in value.items()}
    if is_list(value):
        return [_value(item, f"{path}[{index}]", hidden) for index, item in enumerate(value)]
    return value


def _hidden_values(resource: Resource, _: Context) -> Iterator[PropertyProblem]:
    for path in resource.hidden:
        if path not in _ALWAYS_SECRET.get(resource.type, ()):
            yield PropertyProblem(path=path, value=UNKNOWN, message="must not be hidden as a secret")


_ALWAYS_SECRET: Final[Mapping[str, tuple[str, ...]]] = {"gcp:storage/bucketObject:BucketObject": ("content",)}
"""Properties that the provider always marks as secret in resources of the program. No rule reads them."""

RULES: Final = (
    Rule(
        id="no-hidden-value",
        reason="A value that a preview hides cannot be checked.",
        remedy="Do not mark it as secret. Pass names of secrets in SSM Parameter Store or Secret Manager.",
        check_resource=_hidden_values,
        judges="values that `pulumi preview --json` prints as [secret]; only `gpufleet policies check` sees them",
        parts=False,
    ),
)
