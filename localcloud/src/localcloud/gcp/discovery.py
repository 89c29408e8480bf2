"""The compute v1 discovery document, as data: its calls, and the schemas of their bodies.

The document ships with google-api-python-client; shapes, enums, patterns and required fields are Google's.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from gpufleet.domain.parsed import is_list
from localcloud.documents import is_document
from localcloud.gcp.errors import ApiError, invalid, required

PREFIX: Final = "/compute/v1/"
_FREE_NAMES: Final = re.compile(r"\{\+?(\w+)\}")
_INTEGERS: Final = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1), "int64": (-(2**63), 2**63 - 1)}

_ALWAYS_KNOWN: Final = frozenset(
    # Google's client sends the last one with lists; the discovery document of this release lacks it
    {"alt", "key", "prettyPrint", "$alt", "fields", "quotaUser", "returnPartialSuccess"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of the API."""

    method_id: str
    """Without the API's name: `instances.insert`."""
    pattern: re.Pattern[str]
    body_schema: str | None
    query: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A request that is one of the API's calls."""

    route: Route
    parameters: Mapping[str, str]


class Discovery:
    """The document, indexed."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._schemas: Mapping[str, Any] = document["schemas"]
        self._routes: dict[tuple[str, int], list[Route]] = {}
        for name, resource in document["resources"].items():
            for verb, method in resource.get("methods", {}).items():
                self._add(f"{name}.{verb}", method)

    def _add(self, method_id: str, method: Mapping[str, Any]) -> None:
        path = method.get("flatPath", method["path"])
        pattern = _FREE_NAMES.sub(lambda found: f"(?P<{found[1]}>[^/]+)", path)
        route = Route(
            method_id=method_id,
            pattern=re.compile(pattern),
            body_schema=method.get("request", {}).get("$ref"),
            query={k: v for k, v in method.get("parameters", {}).items() if v.get("location") == "query"},
        )
        self._routes.setdefault((method["httpMethod"], path.count("/")), []).append(route)

    def match(self, http_method: str, path: str) -> Match | None:
        """The call of a path (without the API's prefix); None for an unknown path."""
        for route in self._routes.get((http_method, path.count("/")), ()):
            found = route.pattern.fullmatch(path)
            if found is not None:
                return Match(route=route, parameters=found.groupdict())
        return None

    def check_query(self, route: Route, query: Mapping[str, str]) -> None:
        """Raises ApiError for an unknown or missing parameter."""
        for name in query:
            if name not in route.query and name not in _ALWAYS_KNOWN:
                raise ApiError(
                    400,
                    "badRequest",
                    f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter.',
                )
        for name, known in route.query.items():
            if known.get("required") and name not in query:
                raise required(name)

    def clean(self, route: Route, body: Any) -> dict[str, Any]:
        """The body without output-only fields, which Google ignores. Raises ApiError with Google's message."""
        if route.body_schema is None:
            return {}
        if not is_document(body):
            raise required("resource")
        found = self._object(route.body_schema, body, "resource", route.method_id)
        return found if is_document(found) else {}

    def _object(self, schema_name: str, body: Any, where: str, method_id: str) -> Any:
        schema = self._schemas[schema_name]
        properties: Mapping[str, Any] = schema.get("properties", {})
        if schema.get("type") != "object" or not is_document(body):
            return self._value(schema, body, where, method_id)
        if "additionalProperties" in schema:
            return {
                k: self._value(schema["additionalProperties"], v, f"{where}.{k}", method_id) for k, v in body.items()
            }
        found: dict[str, Any] = {}
        for name, value in body.items():
            known = properties.get(name)
            if known is None:
                raise _unknown(name, where)
            if _output_only(known):
                continue
            if value is None:
                # in a patch, null removes a field; elsewhere it means that the field is absent
                if method_id.endswith(".patch"):
                    found[name] = None
                continue
            found[name] = self._value(known, value, f"{where}.{name}", method_id)
        for name, known in properties.items():
            wanted = known.get("annotations", {}).get("required", ())
            if f"compute.{method_id}" in wanted and where == "resource" and name not in found:
                raise required(f"{where}.{name}")
        return found

    def _value(self, known: Mapping[str, Any], value: Any, where: str, method_id: str) -> Any:
        if "$ref" in known:
            return self._object(known["$ref"], value, where, method_id)
        match known.get("type"):
            case "object":
                if not is_document(value):
                    raise _wrong_type(where, value, "object")
                inner = known.get("additionalProperties", {})
                return {k: self._value(inner, v, f"{where}.{k}", method_id) for k, v in value.items()}
            case "array":
                if not is_list(value):
                    raise _wrong_type(where, value, "list")
                return [self._value(known["items"], v, f"{where}[{i}]", method_id) for i, v in enumerate(value)]
            case kind:
                plain = _PLAIN.get(str(kind))
                return value if plain is None else plain(known, value, where)


def _output_only(known: Mapping[str, Any]) -> bool:
    description = str(known.get("description", ""))
    return bool(known.get("readOnly")) or description.startswith(("[Output Only]", "Output only. [Output Only]"))


def _unknown(name: str, where: str) -> ApiError:
    message = f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field."
    return ApiError(400, "badRequest", message)


def _wrong_type(where: str, value: object, wanted: str) -> ApiError:
    return ApiError(400, "badRequest", f"Invalid value at '{where}' ({wanted}), {json.dumps(value, default=str)}")


def _string(known: Mapping[str, Any], value: Any, where: str) -> str:
    whole_number = isinstance(value, int) and not isinstance(value, bool) and "64" in str(known.get("format", ""))
    if not isinstance(value, str) and not whole_number:
        raise _wrong_type(where, value, "TYPE_STRING")
    text = str(value)
    if "64" in str(known.get("format", "")) and not re.fullmatch(r"-?\d+", text):
        raise _wrong_type(where, value, f"TYPE_{known['format'].upper()}")
    choices = known.get("enum")
    if choices and text not in choices:
        raise invalid(where, text, f"Must be one of: {', '.join(choices)}.")
    pattern = known.get("pattern")
    if pattern and not re.fullmatch(pattern, text):
        raise invalid(where, text, f"Must be a match of regex '{pattern}'")
    return text


def _integer(known: Mapping[str, Any], value: Any, where: str) -> int:
    kind = known.get("format", "int32")
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(where, value, f"TYPE_{kind.upper()}")
    low, high = _INTEGERS.get(kind, (-(2**63), 2**63 - 1))
    if not low <= value <= high:
        raise _wrong_type(where, value, f"TYPE_{kind.upper()}")
    return value


def _boolean(known: Mapping[str, Any], value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong_type(where, value, "TYPE_BOOL")
    return value


def _number(known: Mapping[str, Any], value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type(where, value, "TYPE_DOUBLE")
    return value


_PLAIN: Final[Mapping[str, Callable[[Mapping[str, Any], Any, str], Any]]] = {
    "string": _string,
    "integer": _integer,
    "boolean": _boolean,
    "number": _number,
}


@cache
def compute() -> Discovery:
    """The document of compute v1, read once (5 MB)."""
    folder = resources.files("googleapiclient.discovery_cache") / "documents"
    return Discovery(json.loads((folder / "compute.v1.json").read_text(encoding="utf-8")))
