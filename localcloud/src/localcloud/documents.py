"""Typed access to JSON documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

Document = dict[str, Any]
"""A JSON object. Its values are unchecked: code that reads a value must check or declare its type."""


def is_document(value: object) -> TypeGuard[Document]:
    """Whether `value` is a JSON object."""
    return isinstance(value, dict)


def inner(document: Mapping[str, Any] | None, *names: str) -> Mapping[str, Any]:
    """The nested object at the path `names`; empty if a part is absent or null."""
    found = document
    for name in names:
        found = (found or {}).get(name)
    return found or {}


def items(document: Mapping[str, Any] | None, name: str) -> list[Any]:
    """The array `name`; empty if it is absent or null."""
    found: list[Any] = (document or {}).get(name) or []
    return found
