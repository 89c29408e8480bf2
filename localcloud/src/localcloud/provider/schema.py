"""The schema of resource types, read from the Python package of Pulumi's provider.

The wheel's argument classes name every input with its type and whether it is required, nested ones too. Reading
them by introspection keeps the local provider in step with the pinned package; only what no wheel says (what
forces a replacement, enumerations, conflicts) is written by hand, with each type.
"""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import json
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The type of a property. `kind`: string, integer, number, boolean, any, asset, list, map or object."""

    kind: str
    item: Shape | None = None
    object: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """An input of a resource or of a nested object."""

    shape: Shape
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSchema:
    """Inputs and output names of one resource type."""

    inputs: Mapping[str, Property]
    outputs: frozenset[str]

    @property
    def computed(self) -> frozenset[str]:
        """Outputs that the cloud alone sets."""
        return self.outputs - self.inputs.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """All types that the provider models, with the nested objects that they share."""

    resources: Mapping[str, ResourceSchema]
    objects: Mapping[str, Mapping[str, Property]]

    def save(self, path: Path) -> None:
        """Write the schema as JSON, so that a plugin starts without importing the whole wheel."""
        path.write_text(json.dumps(asdict(self), default=sorted, indent=1, sort_keys=True), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Schema:
        """Read what `save` wrote."""
        raw = json.loads(path.read_text(encoding="utf-8"))
        resources = {
            token: ResourceSchema(inputs=_properties(r["inputs"]), outputs=frozenset(r["outputs"]))
            for token, r in raw["resources"].items()
        }
        return Schema(resources=resources, objects={n: _properties(o) for n, o in raw["objects"].items()})


def _properties(raw: Mapping[str, Any]) -> dict[str, Property]:
    return {n: Property(shape=_shape(p["shape"]), required=p["required"]) for n, p in raw.items()}


def _shape(raw: Mapping[str, Any]) -> Shape:
    item = raw["item"]
    return Shape(kind=raw["kind"], item=_shape(item) if item else None, object=raw["object"])


def read_wheel(tokens: Iterable[str]) -> Schema:
    """The schema of the named types, from the installed package.

    Args:
        tokens: such as `aws:ec2/launchTemplate:LaunchTemplate`.

    Raises:
        LookupError: the installed package has no such type.
    """
    objects: dict[str, Mapping[str, Property]] = {}
    resources = {token: _read_resource(token, objects) for token in tokens}
    return Schema(resources=resources, objects=objects)


def _read_resource(token: str, objects: dict[str, Mapping[str, Property]]) -> ResourceSchema:
    from pulumi import _types  # pyright: ignore[reportPrivateUsage] - it has no public interface

    package, path, name = token.split(":")
    module = importlib.import_module(f"pulumi_{package}.{path.split('/')[0]}")
    resource = getattr(module, name, None)
    if resource is None or resource.pulumi_type != token:
        raise LookupError(f"{token}: not in the installed pulumi_{package}")
    # where a nested type has the plain name, the resource's arguments are called InitArgs
    own = sys.modules[resource.__module__]
    arguments = getattr(own, f"{name}InitArgs", None) or getattr(own, f"{name}Args")
    outputs = frozenset(_types.resource_types(resource))
    return ResourceSchema(inputs=_read_object(arguments, objects), outputs=outputs)


def _read_object(cls: type, objects: dict[str, Mapping[str, Property]]) -> dict[str, Property]:
    from pulumi import _types  # pyright: ignore[reportPrivateUsage] - it has no public interface

    names = _types.input_type_py_to_pulumi_names(cls)
    parameters = inspect.signature(cls.__init__).parameters
    required = {names[p.name] for p in parameters.values() if p.name in names and p.default is p.empty}
    return {
        name: Property(shape=_shape_of(annotation, objects), required=name in required)
        for name, annotation in _types.input_type_types(cls).items()
    }


_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _shape_of(annotation: Any, objects: dict[str, Mapping[str, Property]]) -> Shape:
    candidates = list(_members(annotation))
    names = {getattr(c, "__name__", "") for c in candidates}
    if names & {"Asset", "Archive"}:
        return Shape(kind="asset")
    for candidate in candidates:
        origin = typing.get_origin(candidate)
        if origin is collections.abc.Sequence:
            return Shape(kind="list", item=_shape_of(typing.get_args(candidate)[0], objects))
        if origin is collections.abc.Mapping:
            return Shape(kind="map", item=_shape_of(typing.get_args(candidate)[1], objects))
        if candidate in _SCALARS:
            return Shape(kind=_SCALARS[candidate])
        if isinstance(candidate, type) and issubclass(candidate, Enum):
            return Shape(kind="string")
        if isinstance(candidate, type) and candidate.__name__.endswith("Args"):
            return _object_shape(candidate, objects)
    return Shape(kind="any")


def _object_shape(cls: type, objects: dict[str, Mapping[str, Property]]) -> Shape:
    name = f"{cls.__module__}.{cls.__name__}"
    if name not in objects:
        objects[name] = {}  # taken first: nested types may refer to themselves
        objects[name] = _read_object(cls, objects)
    return Shape(kind="object", object=name)


def _members(annotation: Any) -> Iterator[Any]:
    """The alternatives of an annotation without the wrappers that Pulumi adds to each input."""
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        for member in typing.get_args(annotation):
            yield from _members(member)
        return
    wrapper = typing.get_origin(annotation)
    if (
        annotation is type(None)
        or wrapper is collections.abc.Awaitable
        or getattr(wrapper, "__name__", "") == "Output"
    ):
        return
    yield annotation
