"""Errors that users can request from the AWS APIs: throttling, a page that fails, a service that is down."""

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class ApiFault:
    """The next `times` calls of an operation fail, after the first `skip` ones."""

    service: str
    operation: str
    """`*`: any."""

    code: str
    status: int
    times: int
    skip: int = 0
    message: str = ""
    """Empty: AWS's words for the code, as far as they are known."""

    def as_json(self) -> dict[str, object]:
        return {
            "service": self.service,
            "operation": self.operation,
            "code": self.code,
            "status": self.status,
            "times": self.times,
            "skip": self.skip,
            "message": self.message,
        }


@dataclass(slots=True)
class ApiFaults:
    """All that are on. Safe to use from many threads."""

    _faults: list[ApiFault] = field(default_factory=list[ApiFault])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: ApiFault) -> None:
        """Switch one on."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def take(self, service: str, operation: str) -> ApiFault | None:
        """The fault of this call, if any. Counts it down."""
        with self._lock:
            for fault in self._faults:
                if fault.service != service or fault.operation not in ("*", operation):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                elif fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def as_json(self) -> list[dict[str, object]]:
        with self._lock:
            return [fault.as_json() for fault in self._faults if fault.times > 0]


def read(body: dict[str, Any]) -> ApiFault:
    """Parse the JSON body of the admin API. Raises ValueError with the field and the expected value."""
    service, operation = body.get("service"), body.get("operation", "*")
    code, status = body.get("code", "RequestLimitExceeded"), body.get("status", 503)
    times, skip = body.get("times", 1), body.get("skip", 0)
    if not isinstance(service, str) or not service:
        raise ValueError(
            'service: not set; send for example {"service": "ec2", "operation": "DescribeInstances", "times": 1}'
        )
    message = body.get("message", "")
    if not isinstance(operation, str) or not isinstance(code, str) or not isinstance(message, str):
        raise ValueError("operation, code, message: expected texts")
    if not isinstance(status, int) or not 400 <= status <= 599:
        raise ValueError(f"status: expected a number from 400 to 599, got {status!r}")
    if not isinstance(times, int) or not isinstance(skip, int) or times < 1 or skip < 0:
        raise ValueError(f"times, skip: expected whole numbers from 1 and from 0, got {times!r} and {skip!r}")
    return ApiFault(
        service=service, operation=operation, code=code, status=status, times=times, skip=skip, message=message
    )
