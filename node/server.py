"""The agent's faces: its HTTP API on port 9500 and HAProxy's agent check on port 9501."""

import hmac
import json
import socketserver
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast

from gpufleet.domain.drains import DrainOwner, owner_of_reason
from node import page
from node.drain import Order
from node.life import Life
from node.switch import BusyError
from serving.cache.manifest import ManifestError, check_digest
from serving.exposition import CONTENT_TYPE

HTTP_PORT: Final = 9500
CHECK_PORT: Final = 9501
_LARGEST_BODY: Final = 16 * 1024
_LONGEST_NUMBER: Final = 20
_KNOWN: Final = "there is GET /status, /metrics, /healthz and POST /drain, /switch"
_LONGEST_REASON: Final = 200
_LONGEST_DRAIN: Final = timedelta(hours=24)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        life: Life,
        token: Callable[[], str | None],
        ask: Callable[[DrainOwner, str, timedelta], Order],
        switch: Callable[[str], object],
    ) -> None:
        self.life, self.token, self.ask, self.switch = life, token, ask, switch
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "gpufleet-node"
    sys_version = ""
    timeout = 30

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: watchdogs and Prometheus ask every few seconds."""

    @property
    def _http(self) -> _Http:
        assert isinstance(self.server, _Http)
        return self.server

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/status":
            self._json(HTTPStatus.OK, self._http.life.status())
        elif path == "/metrics":
            self._answer(HTTPStatus.OK, page.render(self._http.life).encode(), CONTENT_TYPE)
        elif path == "/healthz":
            self._answer(HTTPStatus.OK, b"ok\n", "text/plain")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, _KNOWN)

    def do_POST(self) -> None:
        said = self.headers.get("Content-Length", "0").strip()
        length = int(said) if said.isascii() and said.isdigit() and len(said) < _LONGEST_NUMBER else None
        if length is None or "Transfer-Encoding" in self.headers:
            # where its body ends cannot be known, so neither where the next request begins
            self.close_connection = True
            self._refuse(HTTPStatus.LENGTH_REQUIRED, f"Content-Length: is {said!r}, must say the body's bytes")
            return
        if length > _LARGEST_BODY:
            self.close_connection = True
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a drain order has at most {_LARGEST_BODY} bytes")
            return
        body = self.rfile.read(length)
        actions = {"/drain": self._drain, "/switch": self._switch}
        action = actions.get(self.path.split("?")[0])
        if action is None:
            self._refuse(HTTPStatus.NOT_FOUND, _KNOWN)
        elif self._authorised():
            action(body)

    def _authorised(self) -> bool:
        token = self._http.token()
        if token is None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "the agent has not read its token yet; try again")
            return False
        given = self.headers.get("Authorization", "").encode()
        if hmac.compare_digest(given, f"Bearer {token}".encode()):
            return True
        self._refuse(HTTPStatus.UNAUTHORIZED, "give the environment's agent token as `Authorization: Bearer …`")
        return False

    def _drain(self, body: bytes) -> None:
        try:
            by, reason, deadline = _read_order(body)
        except ValueError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        self._http.ask(by, reason, deadline)
        self._json(HTTPStatus.ACCEPTED, self._http.life.status())

    def _switch(self, body: bytes) -> None:
        try:
            found = json.loads(body)
            digest = check_digest(found["digest"])
        except (ManifestError, ValueError, KeyError, TypeError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"digest: the revision's 64 characters are needed: {error}")
            return
        try:
            self._http.switch(digest)
        except BusyError as error:
            self._refuse(HTTPStatus.CONFLICT, str(error))
            return
        self._json(HTTPStatus.ACCEPTED, self._http.life.status())

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        path = self.path.split("?")[0]
        event = "drain" if (self.command, path) == ("POST", "/drain") else "request"
        self._http.life.log.warning(
            event, outcome="refused", method=self.command, path=path, status=int(status), error=message
        )
        self._json(status, {"error": message})

    def _json(self, status: HTTPStatus, value: Any) -> None:
        self._answer(status, json.dumps(value, indent=1).encode() + b"\n", "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _read_order(body: bytes) -> tuple[DrainOwner, str, timedelta]:
    """Owner, reason and deadline of a drain order. Raises ValueError."""
    try:
        found = json.loads(body)
    except ValueError as error:
        raise ValueError(f"the body is no JSON: {error}") from error
    order = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    reason, seconds = order.get("reason"), order.get("deadline_s")
    if not isinstance(reason, str) or not reason.strip() or not reason.isprintable():
        raise ValueError("reason: say in a line of text why")
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int)
        or not 0 <= seconds <= _LONGEST_DRAIN.total_seconds()
    ):
        raise ValueError(f"deadline_s: is {seconds!r}, must be whole seconds, a day at most")
    return _owner(order, reason), reason[:_LONGEST_REASON], timedelta(seconds=seconds)


def _owner(order: Mapping[str, Any], reason: str) -> DrainOwner:
    """Who asks. A control host of release 0.1 sends no `by`. Raises ValueError."""
    found = order["by"] if "by" in order else owner_of_reason(reason)[0]
    if not isinstance(found, str) or found not in list(DrainOwner):
        raise ValueError(f"by: is {found!r}, must be one of {', '.join(DrainOwner)}")
    return DrainOwner(found)


class _Check(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], life: Life) -> None:
        self.life = life
        super().__init__(address, _CheckHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _CheckHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Check)
        self.request.sendall(self.server.life.agent_check().encode() + b"\n")


def serve(  # noqa: PLR0913 - what its faces reach
    life: Life,
    *,
    address: str,
    token: Callable[[], str | None],
    ask: Callable[[DrainOwner, str, timedelta], Order],
    switch: Callable[[str], object],
    ports: tuple[int, int] = (HTTP_PORT, CHECK_PORT),
) -> tuple[_Http, _Check]:
    """Serve from threads of their own. Raises OSError when a port is taken."""
    http = _Http((address, ports[0]), life, token, ask, switch)
    check = _Check((address, ports[1]), life)
    for server in (http, check):
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True).start()
    return http, check
