"""Google's own description of its requests, in the form in which botocore describes AWS's.

The discovery documents ship inside google-api-python-client. So a field that the API does not know is refused, and
numbers become texts where the API wants texts (64-bit numbers travel so).
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

_KINDS = {"string": "string", "integer": "integer", "boolean": "boolean", "number": "double", "any": "any"}


class RestShape:
    """A schema of a discovery document; has what `localcloud.provider.translate` asks of a shape."""

    def __init__(self, schemas: Mapping[str, Any], raw: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._raw: Mapping[str, Any] = schemas[raw["$ref"]] if "$ref" in raw else raw

    @property
    def type_name(self) -> str:
        """structure, list, map, or the kind of a single value."""
        if "properties" in self._raw:
            return "structure"
        if "additionalProperties" in self._raw:
            return "map"
        if self._raw.get("type") == "array":
            return "list"
        return _KINDS.get(str(self._raw.get("type")), "any")

    @property
    def members(self) -> dict[str, RestShape]:
        """Fields of a structure."""
        return {name: RestShape(self._schemas, raw) for name, raw in self._raw["properties"].items()}

    @property
    def member(self) -> RestShape:
        """Items of a list."""
        return RestShape(self._schemas, self._raw["items"])

    @property
    def value(self) -> RestShape:
        """Values of a map."""
        return RestShape(self._schemas, self._raw["additionalProperties"])

    @property
    def choices(self) -> frozenset[str]:
        """Values of an enumeration; empty where any text will do."""
        return frozenset(self._raw.get("enum", ()))


def shape(service: str, name: str) -> RestShape:
    """The schema `name` of a service such as `compute.v1`."""
    schemas = _schemas(service)
    return RestShape(schemas, schemas[name])


@functools.cache
def _schemas(service: str) -> Mapping[str, Any]:
    folder = importlib.resources.files("googleapiclient.discovery_cache") / "documents"
    document: dict[str, Any] = json.loads((folder / f"{service}.json").read_text(encoding="utf-8"))
    return document["schemas"]
