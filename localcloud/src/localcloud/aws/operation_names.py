"""The name of the AWS operation that a request calls, in any of AWS's protocols."""

from typing import Any
from urllib.parse import parse_qs

from moto.core.request import Request
from moto.core.routing import get_service_router
from werkzeug.exceptions import NotFound


def operation_name(environ: dict[str, Any], service: str, body: bytes) -> str:
    """From the target header, the `Action` field of the body, or else the path."""
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
