"""Error responses of Google's REST APIs."""

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
    """A refused call."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = HTTPStatus(status)
        self.reason = reason
        """Google's reason: `invalid`, `required`, `notFound`, `alreadyExists`, …"""
        self.message = message

    def as_json(self, *, of_compute: bool = False) -> dict[str, Any]:
        """The body of the response. Compute Engine omits `status` in a 404; the other APIs never do."""
        detail = {"message": self.message, "domain": "global", "reason": self.reason}
        error: dict[str, Any] = {"code": int(self.status), "message": self.message, "errors": [detail]}
        if not of_compute or self.status is not HTTPStatus.NOT_FOUND:
            error["status"] = _STATUS_NAMES.get(int(self.status), "UNKNOWN")
        return {"error": error}


def invalid(field: str, value: object, why: str) -> ApiError:
    """An invalid value."""
    return ApiError(400, "invalid", f"Invalid value for field '{field}': '{value}'. {why}")


def required(field: str) -> ApiError:
    """A missing field."""
    return ApiError(400, "required", f"Required field '{field}' not specified")


def not_found(path: str) -> ApiError:
    """A resource that does not exist."""
    return ApiError(404, "notFound", f"The resource '{path}' was not found")


def already_exists(path: str) -> ApiError:
    """A resource that exists already."""
    return ApiError(409, "alreadyExists", f"The resource '{path}' already exists")


def in_use(path: str, by: str) -> ApiError:
    """A resource that another one uses."""
    message = f"The resource '{path}' is already being used by '{by}'"
    return ApiError(400, "resourceInUseByAnotherResource", message)


def stale() -> ApiError:
    """An outdated fingerprint."""
    return ApiError(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
