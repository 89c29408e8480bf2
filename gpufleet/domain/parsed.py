"""What a parser of JSON or YAML gave, looked at before it is used. Pure."""

from collections.abc import Mapping
from typing import Any, TypeGuard


def is_map(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is an object (JSON) or a map (YAML)."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether it is an array (JSON) or a sequence (YAML)."""
    return isinstance(value, list)
