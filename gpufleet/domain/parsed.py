"""Type guards and errors of parsed JSON or YAML. No I/O."""

import json
from collections.abc import Mapping
from typing import Any, TypeGuard


def is_map(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the value is an object (JSON) or a map (YAML)."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether the value is an array (JSON) or a sequence (YAML)."""
    return isinstance(value, list)


def json_problem(text: str | bytes, error: Exception) -> str:
    """Return why a text is not JSON: it is empty, is cut off, or is wrong at a place."""
    if not text.strip():
        return "is empty"
    if not isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error}"
    where = f"line {error.lineno}, column {error.colno}"
    if error.pos >= len(error.doc.rstrip()):
        return f"is not complete: the JSON ends at {where}"
    return f"is not JSON: {error.msg[:1].lower()}{error.msg[1:]} at {where}"
