"""Checks before a resource is created: types, unknown and missing properties, enumerations, conflicts, names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpufleet.domain.parsed import is_list
from localcloud.documents import is_document
from localcloud.provider.errors import Failure
from localcloud.provider.resource import Resource, Rule
from localcloud.provider.schema import Property, ResourceSchema, Schema, Shape
from localcloud.provider.wire import UNKNOWN, Properties, is_asset

_NAME = re.compile(r"[.\[]")
"""Ends a name in a pattern."""
BOOKKEEPING = "__defaults"
"""Names of inputs that the provider filled in, stored with the inputs, as the real provider does."""


def check(resource: Resource, schema: Schema, inputs: Properties) -> list[Failure]:
    """All errors of `inputs`; empty when they are valid."""
    own = schema.resources[resource.token]
    given = {k: v for k, v in inputs.items() if k != BOOKKEEPING}
    failures = list(_Types(schema).object(given, own.inputs, ""))
    failures += _not_modelled(resource, own, given)
    if failures:
        return failures
    failures += _enums(resource.enums, given)
    for rule in resource.rules:
        failures += rule(given)
    return failures


def _not_modelled(resource: Resource, own: ResourceSchema, given: Properties) -> list[Failure]:
    return [
        Failure(
            path=name, reason="this property is not modelled by the local provider; leave it out for local stacks"
        )
        for name in sorted(given)
        if name in own.inputs and name not in resource.modelled
    ]


class _Types:
    """Compares values with the shapes of a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def object(self, value: Properties, expected: Mapping[str, Property], path: str) -> Iterator[Failure]:
        for name, prop in expected.items():
            if prop.required and name not in value:
                yield Failure(path=_join(path, name), reason=f"missing required property {name!r}")
        for name, item in value.items():
            if name in expected:
                yield from self.value(item, expected[name].shape, _join(path, name))
            else:
                near = difflib.get_close_matches(name, expected, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                yield Failure(path=_join(path, name), reason=f"unexpected property {name!r}{hint}")

    def value(self, value: Any, shape: Shape, path: str) -> Iterator[Failure]:
        if value == UNKNOWN or shape.kind == "any":
            return
        if not _is_kind(value, shape.kind):
            yield Failure(path=path, reason=f"expected {_kind_name(shape)}, got {_kind(value)} {_shown(value)}")
        elif shape.kind == "list" and shape.item is not None:
            for index, item in enumerate(value):
                yield from self.value(item, shape.item, f"{path}[{index}]")
        elif shape.kind == "map" and shape.item is not None:
            for key, item in value.items():
                yield from self.value(item, shape.item, _join(path, key))
        elif shape.kind == "object":
            yield from self.object(value, self._schema.objects[shape.object or ""], path)


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "asset":
        return is_asset(value)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    python = {"string": str, "boolean": bool, "list": list, "map": dict, "object": dict}[kind]
    return isinstance(value, python)


def _kind_name(shape: Shape) -> str:
    return {"integer": "a whole number", "asset": "an asset", "object": "an object"}.get(
        shape.kind, f"a {shape.kind}"
    )


_KINDS: Final = {"str": "string", "dict": "object"}
"""JSON's names of Python types."""


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    name = type(value).__name__
    return _KINDS.get(name, name)


def _shown(value: Any) -> str:
    """The value as the message shows it; texts and nested values are omitted, since they may be secrets."""
    return repr(value) if isinstance(value, bool | int | float) else ""


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _enums(enums: Mapping[str, frozenset[str]], given: Properties) -> list[Failure]:
    failures: list[Failure] = []
    for pattern, allowed in enums.items():
        for path, value in values_at(given, pattern):
            if value != UNKNOWN and value not in allowed:
                wanted = ", ".join(sorted(allowed))
                failures.append(Failure(path=path, reason=f"expected one of {wanted}, got {value!r}"))
    return failures


def values_at(value: Any, pattern: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that a pattern such as `overrides[*].instanceType` names, with its real path."""
    if not pattern:
        yield path, value
        return
    if pattern.startswith("[*]"):
        if is_list(value):
            for index, item in enumerate(value):
                yield from values_at(item, pattern[3:].lstrip("."), f"{path}[{index}]")
        return
    name = _NAME.split(pattern, maxsplit=1)[0]
    if is_document(value) and name in value:
        yield from values_at(value[name], pattern.removeprefix(name).lstrip("."), _join(path, name))


def conflicts(*names: str) -> Rule:
    """At most one of the named properties."""

    def rule(given: Properties) -> list[Failure]:
        present = [n for n in names if n in given]
        if len(present) < 2:
            return []
        return [Failure(path=present[1], reason=f"{present[1]!r} conflicts with {present[0]!r}; give one of them")]

    return rule


def one_of(*names: str) -> Rule:
    """Exactly one of the named properties."""

    def rule(given: Properties) -> list[Failure]:
        present = [n for n in names if n in given]
        if len(present) == 1:
            return []
        listed = ", ".join(repr(n) for n in names)
        if not present:
            return [Failure(path=names[0], reason=f"one of {listed} is required")]
        return [Failure(path=present[1], reason=f"only one of {listed} may be given")]

    return rule


def matches(pattern: str, regex: str, meaning: str) -> Rule:
    """Texts at `pattern` must match a regular expression as a whole."""
    compiled = re.compile(regex)

    def rule(given: Properties) -> list[Failure]:
        return [
            Failure(path=path, reason=f"{value!r} is not {meaning}")
            for path, value in values_at(given, pattern)
            if value != UNKNOWN and isinstance(value, str) and not compiled.fullmatch(value)
        ]

    return rule


def between(pattern: str, low: float, high: float) -> Rule:
    """Numbers at `pattern` must be in a closed range."""

    def rule(given: Properties) -> list[Failure]:
        return [
            Failure(path=path, reason=f"expected a number from {low:g} to {high:g}, got {value!r}")
            for path, value in values_at(given, pattern)
            if isinstance(value, int | float) and not low <= value <= high
        ]

    return rule
