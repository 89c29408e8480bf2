"""The rule on resource types: a plan may contain only types that the program creates, under the same parents."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from policies.context import Context
from policies.resource import Resource
from policies.rule import NOT_SHOWN, PropertyProblem, Rule

CREATED_TYPES: Final[Mapping[str, list[str]]] = json.loads(
    (Path(__file__).parent / "lists" / "resource_types.json").read_text("utf-8")
)
"""Each type that the program creates, with the types of its parent components. Empty: the parent is the stack.
`python -m scripts.policy_lists` writes the file.
"""


def _listed(resource: Resource, context: Context) -> Iterator[PropertyProblem]:
    within = CREATED_TYPES.get(resource.type)
    if within is None:
        yield PropertyProblem(message="the program creates no resource of this type, so no rule checks it")
        return
    if resource.type.startswith("pulumi:providers:"):
        if not _DEFAULT_PROVIDER.fullmatch(resource.name):
            yield PropertyProblem(
                message="a separate provider can access another account; use the provider of the stack"
            )
        yield from _configured_otherwise(resource, context)
        return
    found = parents(resource.urn)
    if found is not None and found not in within:
        places = " or ".join(place or "the stack itself" for place in within)
        yield PropertyProblem(
            message=f"the program creates this type only in {places}, and this resource is in {found or 'the stack'}"
        )


_DEFAULT_PROVIDER: Final = re.compile(r"default(_\d+_\d+_\d+)?")
"""The engine's name of the provider that the stack's configuration describes."""


def _configured_otherwise(provider: Resource, context: Context) -> Iterator[PropertyProblem]:
    """Report differences between a default provider and the stack's configuration. The name alone does not prove that
    they are the same.
    """
    package = provider.type.removeprefix("pulumi:providers:")
    for key, value in provider.props.items() if context.config else ():
        if key not in _OF_PLUGIN and _read(value) != _read(context.config.get(f"{package}:{key}")):
            # the value may be a credential
            yield PropertyProblem(
                path=key, value=NOT_SHOWN, message=f"must equal {package}:{key} in the stack's configuration"
            )


def _read(value: Any) -> Any:
    """Parse a configuration value: text that may contain JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


_OF_PLUGIN: Final = ("version", "pluginDownloadURL", "pluginChecksums", "id")


def parents(urn: str) -> str | None:
    """Return the types of a resource's parents, as its URN joins them. Empty: the stack. None if the text is not a
    URN.
    """
    parts = urn.split("::", 3)
    return parts[2].rpartition("$")[0] if len(parts) == 4 else None


LISTED: Final = Rule(
    id="resource-type-listed",
    reason="A list of forbidden types is never complete; the list of types that the program creates is complete.",
    remedy="Remove it, or create it in a component of this repository and run `python -m scripts.policy_lists`.",
    judges="every resource of a plan: its type and the component that creates it; names and properties of providers",
    check_resource=_listed,
    parts=False,
    named=True,
)


def is_excepted(resource: Resource, context: Context) -> bool:
    """Return whether an exception names this resource as one that the program does not create."""
    return LISTED.excepts(resource, context)


RULES: Final = (LISTED,)
