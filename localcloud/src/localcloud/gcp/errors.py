"""Errors as Google's REST APIs answer them."""

from http import HTTPStatus
from typing import Any, Final

_STATUS_NAMES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}


class ApiError(Exception):
    """A call that is refused."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = HTTPStatus(status)
        self.reason = reason
        """Google's word: `invalid`, `required`, `notFound`, `alreadyExists`, …"""
        self.message = message

    def as_json(self, *, of_compute: bool = False) -> dict[str, Any]:
        """The body of the answer. Compute Engine gives no `status` where it finds nothing; other APIs always do."""
        detail = {"message": self.message, "domain": "global", "reason": self.reason}
        error: dict[str, Any] = {"code": int(self.status), "message": self.message, "errors": [detail]}
        if not of_compute or self.status is not HTTPStatus.NOT_FOUND:
            error["status"] = _STATUS_NAMES.get(int(self.status), "UNKNOWN")
        return {"error": error}


def invalid(field: str, value: object, why: str) -> ApiError:
    """A value that Google does not take."""
    return ApiError(400, "invalid", f"Invalid value for field '{field}': '{value}'. {why}")


def required(field: str) -> ApiError:
    """A field that is missing."""
    return ApiError(400, "required", f"Required field '{field}' not specified")


def not_found(path: str) -> ApiError:
    """A resource that is not there."""
    return ApiError(404, "notFound", f"The resource '{path}' was not found")


def already_exists(path: str) -> ApiError:
    """A resource that is there."""
    return ApiError(409, "alreadyExists", f"The resource '{path}' already exists")


def in_use(path: str, by: str) -> ApiError:
    """A resource that another one needs."""
    message = f"The resource '{path}' is already being used by '{by}'"
    return ApiError(400, "resourceInUseByAnotherResource", message)


def stale() -> ApiError:
    """A fingerprint that is not the one of now."""
    return ApiError(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
