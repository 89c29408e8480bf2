"""JSON documents as clouds and engines write them: what is looked for inside them, typed where it is taken out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

Document = dict[str, Any]
"""A JSON object. Its values are what the wire brought: code that reads one says what it takes it for."""


def is_document(value: object) -> TypeGuard[Document]:
    """Whether `value` is a JSON object, whose keys are always texts."""
    return isinstance(value, dict)


def inner(document: Mapping[str, Any] | None, *names: str) -> Mapping[str, Any]:
    """The object that lies under `names`, one inside the other; empty where one of them is absent or null."""
    found = document
    for name in names:
        found = (found or {}).get(name)
    return found or {}


def items(document: Mapping[str, Any] | None, name: str) -> list[Any]:
    """The array under `name`; empty where it is absent or null."""
    found: list[Any] = (document or {}).get(name) or []
    return found
