"""Calls of AWS whose answer may be "it is not there"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

_GONE = ("NotFound", "NoSuch", "NonExistent", "DoesNotExist", "404", "ResourceNotFoundException", "NoSuchEntity")


def is_gone(error: ClientError) -> bool:
    """Whether AWS says that the thing is not there."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    return any(word in code for word in _GONE) or "not found" in str(error)


def or_none(call: Callable[..., Any], **arguments: Any) -> Any:
    """The answer, or None where the thing is not there."""
    try:
        return call(**arguments)
    except ClientError as error:
        if is_gone(error):
            return None
        raise


def first(call: Callable[..., Any], key: str, **arguments: Any) -> Any:
    """The first item of a list in the answer, or None."""
    answer = or_none(call, **arguments)
    items = answer[key] if answer else []
    return items[0] if items else None


def present(**arguments: Any) -> dict[str, Any]:
    """Arguments without those that are not given."""
    return {k: v for k, v in arguments.items() if v is not None}
