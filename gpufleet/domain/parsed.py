"""Type guards and errors of parsed JSON or YAML. No I/O."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard


class DuplicateKeyError(ValueError):
    """A key occurs twice in one JSON object."""


def is_map(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the value is an object (JSON) or a map (YAML)."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether the value is an array (JSON) or a sequence (YAML)."""
    return isinstance(value, list)


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; `object_pairs_hook` of `json.loads`, which silently keeps the last of equal keys.
    Raises DuplicateKeyError.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise DuplicateKeyError(f"key {twice!r} occurs twice; remove one of them")
    return found


def json_problem(text: str | bytes, error: Exception) -> str:
    """Return why a text is not JSON: it is empty, is cut off, or is wrong at a place."""
    if not text.strip():
        return "is empty"
    if isinstance(error, DuplicateKeyError):
        return str(error)
    if not isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error}"
    where = f"line {error.lineno}, column {error.colno}"
    if error.pos >= len(error.doc.rstrip()):
        return f"is not complete: the JSON ends at {where}"
    return f"is not JSON: {error.msg[:1].lower()}{error.msg[1:]} at {where}"
