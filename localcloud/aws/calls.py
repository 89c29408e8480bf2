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
        self._principals: dict[str, str] = {}

    def know(self, access_key: str, principal: str) -> None:
        """These credentials were handed out to this principal (an instance's role)."""
        with self._lock:
            self._principals[access_key] = principal

    def record(self, service: str, operation: str, access_key: str) -> None:
        """One call."""
        with self._lock:
            self._counts[service, operation, self._principals.get(access_key, access_key)] += 1

    def as_json(self) -> list[dict[str, object]]:
        with self._lock:
            return [
                {"service": service, "operation": operation, "principal": principal, "count": count}
                for (service, operation, principal), count in sorted(self._counts.items())
            ]


def credential(environ: dict[str, Any]) -> tuple[str, str]:
    """Access key and service of a signed request; ("anonymous", "") without a signature."""
    found = environ.get("HTTP_AUTHORIZATION", "")
    if not found:
        query = parse_qs(environ.get("QUERY_STRING", ""))
        found = f"Credential={query['X-Amz-Credential'][0]}" if "X-Amz-Credential" in query else ""
    _, _, scope = found.partition("Credential=")
    parts = scope.split(",")[0].split("/")
    return (parts[0], parts[-2]) if len(parts) >= 5 else ("anonymous", "")


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
