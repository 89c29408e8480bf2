"""Calls of AWS that may fail because a resource does not exist or is still in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localcloud.aws.sdk import ClientError, error_code
from localcloud.documents import Document
from localcloud.provider.session import Cloud

_ABSENT = ("NotFound", "NoSuch", "NonExistent", "DoesNotExist", "404", "ResourceNotFoundException", "NoSuchEntity")
_IN_USE = ("DependencyViolation", "VolumeInUse", "InUse", "DeleteConflict")


def is_absent(error: ClientError) -> bool:
    """Whether the error means that the resource does not exist."""
    return any(word in error_code(error) for word in _ABSENT) or "not found" in str(error)


def or_none(call: Callable[..., Document], **arguments: Any) -> Document | None:
    """The answer, or None if the resource does not exist."""
    try:
        return call(**arguments)
    except ClientError as error:
        if is_absent(error):
            return None
        raise


def listed(call: Callable[..., Document], key: str, **arguments: Any) -> list[Document]:
    """A list in the answer; empty if the resource does not exist."""
    answer = or_none(call, **arguments)
    return answer[key] if answer else []


def first(call: Callable[..., Document], key: str, **arguments: Any) -> Document | None:
    """The first item of a list in the answer, or None."""
    return next(iter(listed(call, key, **arguments)), None)


def delete_when_free(cloud: Cloud, what: str, call: Callable[..., Document], **arguments: Any) -> None:
    """Delete a resource, and wait while other resources still use it."""

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
