"""Which AWS operations were called, and by whom: for least privilege and for rates."""

import threading
from collections import Counter
from typing import Any
from urllib.parse import parse_qs

from moto.core.request import Request
from moto.core.routing import get_service_router
from werkzeug.exceptions import NotFound


class Calls:
    """Counts per service, operation and caller. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def record(self, service: str, operation: str, principal: str) -> None:
        """One call."""
        with self._lock:
            self._counts[service, operation, principal] += 1

    def as_json(self) -> list[dict[str, object]]:
        with self._lock:
            return [
                {"service": service, "operation": operation, "principal": principal, "count": count}
                for (service, operation, principal), count in sorted(self._counts.items())
            ]


def operation(environ: dict[str, Any], service: str, body: bytes) -> str:
    """The operation of a request: from its target header, its Action, or its path."""
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        return target.rpartition(".")[2]
    if b"Action=" in body[:4096]:
        action = parse_qs(body.decode("utf-8", "replace")).get("Action")
        if action:
            return action[0]
    return _by_path(environ, service)


def _by_path(environ: dict[str, Any], service: str) -> str:
    router: Any = get_service_router(service)  # moto's models of operations are botocore's, which have no types
    try:
        found, _ = router.match(Request(dict(environ)))
    except (NotFound, NotImplementedError, KeyError, LookupError, ValueError):
        return f"{environ.get('REQUEST_METHOD')} {environ.get('PATH_INFO')}"
    return str(found.name)
