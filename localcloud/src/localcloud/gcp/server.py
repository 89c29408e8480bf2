"""The HTTP server of the emulated Google Cloud: one address for all services, which differ by path.

Requests of web pages of other sites, and those without a valid token, are refused.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final
from urllib.parse import parse_qsl

from gpufleet.http_server import Answer, HttpRequest, HttpServer
from localcloud.api_faults import ApiFaults
from localcloud.callers import CallerCheck, RefusedError, log_refusal
from localcloud.gcp.compute import Compute
from localcloud.gcp.discovery import PREFIX
from localcloud.gcp.errors import ApiError
from localcloud.gcp.exchange import Request, json_reply
from localcloud.gcp.projects import Projects
from localcloud.gcp.state import GoogleState
from localcloud.gcp.storage import Storage
from localcloud.same_user import LIMITS

_CHUNK_LINE: Final = 1024
_MAX_BYTES: Final = 1 << 36


class Front:
    """Routes requests to services."""

    def __init__(self, state: GoogleState, faults: ApiFaults) -> None:
        self._state = state
        self._faults = faults
        self._compute = Compute(state)
        self._storage = Storage(state)
        self._projects = Projects(state)

    def answer(self, request: Request) -> Answer:
        """The response, also for errors."""
        try:
            return self._route(request)
        except ApiError as error:
            return json_reply(error.as_json(of_compute=request.path.startswith(PREFIX)), int(error.status))
        except Exception as error:  # noqa: BLE001 - one failed call must not look like a cloud that does not answer
            message = f"{type(error).__name__}: {error}"
            print(f"{request.method} {request.path} failed: {message}", file=sys.stderr, flush=True)
            return json_reply(ApiError(500, "internalError", f"The embedded cloud failed: {message}").as_json(), 500)

    def _route(self, request: Request) -> Answer:
        if request.path.startswith(PREFIX):
            path = request.path.removeprefix(PREFIX)
            self._record(request, "compute", self._compute.method_of(request.method, path) or path)
            return json_reply(self._compute.answer(request.method, path, request.query, request.json()))
        for service in (self._storage, self._projects):
            method_id = service.method_of(request)
            if method_id:
                name, _, operation = method_id.partition(":")
                self._record(request, name, operation)
                with nullcontext() if name == "storage" else self._state.lock:
                    return service.answer(request)
        raise ApiError(404, "notFound", f"The requested URL {request.path} was not found on this server.")

    def _record(self, request: Request, service: str, operation: str) -> None:
        self._state.calls.record(service, operation, request.caller)
        fault = self._faults.take(service, operation)
        if fault is not None:
            raise ApiError(fault.status, fault.code, f"{fault.code}: requested through the admin API")


class Endpoint:
    """A threaded server on one loopback address. Raises OSError when the port is taken."""

    def __init__(self, host: str, port: int, front: Callable[[Request], Answer], check: CallerCheck) -> None:
        self._front = front
        self._check = check
        self._server = HttpServer((host, port), self._answer, limits=LIMITS)

    def start(self) -> None:
        """Serve in a separate thread."""
        self._server.start("google-endpoint")

    def stop(self) -> None:
        """Stop serving."""
        self._server.stop()

    def _answer(self, asked: HttpRequest) -> Answer:
        try:
            caller = self._check.principal(asked.header)
        except RefusedError as error:
            log_refusal("Google API", asked.method, asked.path, error.refusal)
            return json_reply(ApiError(403, "forbidden", str(error)).as_json(), 403)
        request = Request(
            method=asked.method,
            path=asked.path,
            query=dict(parse_qsl(asked.query, keep_blank_values=True)),
            headers=asked.headers,
            body=_body(asked),
            caller=caller,
        )
        return self._front(request)


def _body(asked: HttpRequest) -> bytes:
    """Also one that is sent in chunks: clients of storage do so with what they do not know the length of."""
    if (asked.header("Transfer-Encoding") or "").lower() != "chunked":
        return asked.body(_MAX_BYTES)
    found = bytearray()
    while size := int(asked.incoming.readline(_CHUNK_LINE).split(b";")[0], 16):
        found += asked.incoming.read(size)
        asked.incoming.readline(_CHUNK_LINE)
    asked.incoming.readline(_CHUNK_LINE)
    asked.is_read = True
    return bytes(found)
