"""Calls of AWS whose answer may be "it is not there" or "it is still in use"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from localcloud.provider.session import Cloud

_GONE = ("NotFound", "NoSuch", "NonExistent", "DoesNotExist", "404", "ResourceNotFoundException", "NoSuchEntity")
_IN_USE = ("DependencyViolation", "VolumeInUse", "InUse", "DeleteConflict")


def error_code(error: ClientError) -> str:
    """AWS's code of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def is_gone(error: ClientError) -> bool:
    """Whether AWS says that the thing is not there."""
    return any(word in error_code(error) for word in _GONE) or "not found" in str(error)


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


def delete_when_free(cloud: Cloud, what: str, call: Callable[..., Any], **arguments: Any) -> None:
    """Delete something, waiting while other things still use it."""

    def done() -> bool:
        try:
            or_none(call, **arguments)
        except ClientError as error:
            if any(word in error_code(error) for word in _IN_USE):
                return False
            raise
        return True

    cloud.wait(f"{what} to be free of what uses it", done)


def present(**arguments: Any) -> dict[str, Any]:
    """Arguments without those that are not given."""
    return {k: v for k, v in arguments.items() if v is not None}
