"""Type guards for parsed JSON or YAML. No I/O."""

from collections.abc import Mapping
from typing import Any, TypeGuard


def is_map(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the value is an object (JSON) or a map (YAML)."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether the value is an array (JSON) or a sequence (YAML)."""
    return isinstance(value, list)
