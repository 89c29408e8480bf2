"""The HTTP server of the embedded Google Cloud: one address, the paths tell the services apart.

What comes from a page of another site, or without a token that is known, reaches none.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from gpufleet.domain.loopback import header_of
from localcloud.aws.api_faults import ApiFaults
from localcloud.callers import OWNER, CallerCheck, RefusedError, say_refused
from localcloud.gcp.admin_api import GoogleAdminApi
from localcloud.gcp.compute import Compute
from localcloud.gcp.discovery import PREFIX
from localcloud.gcp.errors import ApiError
from localcloud.gcp.exchange import Reply, Request, json_reply
from localcloud.gcp.projects import Projects
from localcloud.gcp.state import GoogleState
from localcloud.gcp.storage import Storage

CONTROL_PREFIX: Final = "/_localcloud/"
_CHUNK_LINE: Final = 1024


class Front:
    """Which service answers."""

    def __init__(self, state: GoogleState, control: GoogleAdminApi, faults: ApiFaults) -> None:
        self._state = state
        self._control = control
        self._faults = faults
        self._compute = Compute(state)
        self._storage = Storage(state)
        self._projects = Projects(state)

    def answer(self, request: Request) -> Reply:
        """The answer, errors included."""
        try:
            return self._route(request)
        except ApiError as error:
            return json_reply(error.as_json(of_compute=request.path.startswith(PREFIX)), int(error.status))
        except Exception as error:  # noqa: BLE001 - one bad call must not look like a cloud that is gone
            said = f"{type(error).__name__}: {error}"
            print(f"{request.method} {request.path} failed: {said}", file=sys.stderr, flush=True)
            return json_reply(ApiError(500, "internalError", f"The embedded cloud failed: {said}").as_json(), 500)

    def _route(self, request: Request) -> Reply:
        if request.path.startswith(CONTROL_PREFIX):
            return self._control.answer(request)
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
            raise ApiError(fault.status, fault.code, f"{fault.code}: asked for by the control API")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    front: Callable[[Request], Reply]
    door: CallerCheck

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        try:
            caller = self._caller(parts.path)
        except RefusedError as error:
            self._refuse(error, parts.path)
            return
        request = Request(
            method=self.command,
            path=parts.path,
            query=dict(parse_qsl(parts.query, keep_blank_values=True)),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=self._read(),
            caller=caller,
        )
        self._reply(type(self).front(request))

    def _caller(self, path: str) -> str:
        """Who asks. Raises RefusedError."""
        if path.startswith(CONTROL_PREFIX):
            type(self).door.check_control(self._header, self.command, path)
            return OWNER
        return type(self).door.principal(self._header)

    def _header(self, name: str) -> str | None:
        return header_of(self.headers, name)

    def _refuse(self, error: RefusedError, path: str) -> None:
        say_refused("Google API", self.command, path, error.refusal)
        # the body is not read: what would follow it on this connection is of the same sender
        self.close_connection = True
        if path.startswith(CONTROL_PREFIX):
            self._reply(json_reply({"error": str(error)}, 403))
        else:
            self._reply(json_reply(ApiError(403, "forbidden", str(error)).as_json(), 403))

    def _reply(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = bytearray()
        while size := int(self.rfile.readline(_CHUNK_LINE).split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline(_CHUNK_LINE)
        self.rfile.readline(_CHUNK_LINE)
        return bytes(found)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _serve  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """No line per request: the calls are counted instead."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Endpoint:
    """A threaded server on one loopback address. Raises OSError when the port is taken."""

    def __init__(self, host: str, port: int, front: Callable[[Request], Reply], door: CallerCheck) -> None:
        # staticmethod: a plain function in a class would become a method
        handler = type("Handler", (_Handler,), {"front": staticmethod(front), "door": door})
        self._server = _Server((host, port), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, name="google-endpoint", daemon=True
        )

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
