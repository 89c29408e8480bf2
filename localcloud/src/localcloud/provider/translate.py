"""Pulumi's property names and the cloud's request fields, each from the other.

The request's shape comes from botocore's own model of the service, so that a field the API does not know is
refused and texts such as "true" become what the API expects. Only names that differ by more than case are listed
by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.domain.parsed import is_list
from localcloud.aws.request_shapes import Operation, RequestShape
from localcloud.documents import is_document
from localcloud.provider.errors import ProviderError
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties

_NO_RENAMES: Mapping[str, str] = {}


def input_shape(cloud: Cloud, service: str, operation: str, *path: str) -> RequestShape:
    """botocore's model of an operation's request, or of a member inside it (lists are entered)."""
    model: Operation = cloud.client(service).meta.service_model.operation_model(operation)
    shape = model.input_shape
    if shape is None:
        raise ProviderError(f"{service}:{operation}: takes no arguments")
    for name in path:
        shape = shape.members[name]
        while shape.type_name == "list":
            shape = shape.member
    return shape


def to_request(value: Any, shape: RequestShape, renames: Mapping[str, str] = _NO_RENAMES, path: str = "") -> Any:
    """A property value as the field of a request.

    Args:
        renames: field name by property path (indices left out) where they differ by more than case.

    Raises:
        ProviderError: the API has no such field.
    """
    kind = shape.type_name
    if kind == "structure":
        return _structure(value, shape, renames, path)
    if kind == "list":
        items = value if is_list(value) else [value]  # Pulumi flattens lists of at most one
        return [to_request(item, shape.member, renames, path) for item in items]
    if kind == "map":
        return {k: to_request(v, shape.value, renames, path) for k, v in value.items()}
    return _scalar(value, kind)


def _structure(value: Properties, shape: RequestShape, renames: Mapping[str, str], path: str) -> Properties:
    fields = {name.lower(): name for name in shape.members}
    result: Properties = {}
    for name, item in value.items():
        place = f"{path}.{name}" if path else name
        field = renames.get(place) or fields.get(name.lower()) or fields.get(name.lower().removesuffix("s"))
        if field is None or field not in shape.members:
            raise ProviderError(f"{place}: not modelled by the local provider")
        result[field] = to_request(item, shape.members[field], renames, place)
    return result


def _scalar(value: Any, kind: str) -> Any:
    if kind == "boolean" and isinstance(value, str):
        return value == "true"
    if kind in {"integer", "long"} and isinstance(value, str):
        return int(value)
    if kind == "string" and isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return value


def from_answer(given: Any, answer: Any, renames: Mapping[str, str] = _NO_RENAMES, path: str = "") -> Any:
    """What the cloud answers, in the names and the form in which the program gave it.

    Only places that the program named are taken over: what it did not say has no owner there.
    """
    if is_document(given) and is_list(answer) and all("Key" in item for item in answer):
        return {item["Key"]: item["Value"] for item in answer}
    if is_document(given) and is_list(answer):
        return from_answer(given, answer[0], renames, path) if len(answer) == 1 else None
    if is_document(given) and is_document(answer):
        return _object(given, answer, renames, path)
    if is_list(given) and is_list(answer):
        sample = given[-1] if given else None
        samples = given + [sample] * max(0, len(answer) - len(given))
        return [from_answer(g, a, renames, path) for g, a in zip(samples, answer, strict=False)]
    if isinstance(given, str) and isinstance(answer, bool):
        return str(answer).lower()
    if isinstance(given, str) and isinstance(answer, int | float):
        return str(answer)
    if isinstance(given, bool) and isinstance(answer, str):
        return answer == "true"
    if isinstance(given, int) and isinstance(answer, str) and answer.lstrip("-").isdigit():
        return int(answer)  # Google writes 64-bit numbers as texts
    return answer


def _object(given: Properties, answer: Properties, renames: Mapping[str, str], path: str) -> Properties:
    fields = {name.lower(): name for name in answer}
    result: Properties = {}
    for name, item in given.items():
        place = f"{path}.{name}" if path else name
        field = renames.get(place) or fields.get(name.lower()) or fields.get(name.lower().removesuffix("s"))
        if field in answer:
            value = from_answer(item, answer[field], renames, place)
            if value is not None:
                result[name] = value
    return result
