"""The agent's faces: its HTTP API on port 9500 and HAProxy's agent check on port 9501."""

import json
import socketserver
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

from gpufleet.domain import orders
from gpufleet.domain.connections import Bounded, TimelyRequests
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.orders import AgentOrder, Drain, OrderRefusal, OrderRefusedError, Switch
from hosts.node import page
from hosts.node.drain import Order
from hosts.node.orders import Orders
from hosts.node.state import NodeState
from hosts.node.switch import SwitchBusyError
from serving.exposition import CONTENT_TYPE

HTTP_PORT: Final = 9500
CHECK_PORT: Final = 9501
_LONGEST_NUMBER: Final = 20
_KNOWN: Final = f"there is GET /status, /metrics, /healthz and POST {orders.PATH}"
_STATUSES: Final[Mapping[OrderRefusal, HTTPStatus]] = {
    OrderRefusal.UNSIGNED: HTTPStatus.UNAUTHORIZED,
    OrderRefusal.UNKNOWN_KEY: HTTPStatus.UNAUTHORIZED,
    OrderRefusal.BAD_SIGNATURE: HTTPStatus.UNAUTHORIZED,
    OrderRefusal.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    OrderRefusal.NO_LENGTH: HTTPStatus.LENGTH_REQUIRED,
    OrderRefusal.MALFORMED: HTTPStatus.BAD_REQUEST,
    OrderRefusal.OTHER_INSTANCE: HTTPStatus.FORBIDDEN,
    OrderRefusal.WRONG_TIME: HTTPStatus.FORBIDDEN,
    OrderRefusal.USED_NONCE: HTTPStatus.FORBIDDEN,
    OrderRefusal.TOO_MANY: HTTPStatus.SERVICE_UNAVAILABLE,
    OrderRefusal.BUSY: HTTPStatus.CONFLICT,
}


class _Http(Bounded, HTTPServer):
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        life: NodeState,
        checked: Orders,
        ask: Callable[[DrainOwner, str, timedelta], Order],
        switch: Callable[[str], object],
    ) -> None:
        self.life, self.checked, self.ask, self.switch = life, checked, ask, switch
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(TimelyRequests, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "gpufleet-node"
    sys_version = ""

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
        if self.path.split("?")[0] != orders.PATH:
            self.close_connection = True
            self._refuse(HTTPStatus.NOT_FOUND, _KNOWN)
            return
        try:
            self._carry_out(self._read_order())
        except OrderRefusedError as refused:
            self._refuse(_STATUSES[refused.code], str(refused), refused)
        else:
            self._json(HTTPStatus.ACCEPTED, self._http.life.status())

    def _read_order(self) -> AgentOrder:
        """Raises OrderRefusedError: before the body is read, where the head is enough to say no."""
        # until the body is read whole, where the next request begins cannot be known
        closes, self.close_connection = self.close_connection, True
        said = self.headers.get("Content-Length", "0").strip()
        length = int(said) if said.isascii() and said.isdigit() and len(said) < _LONGEST_NUMBER else None
        if length is None or "Transfer-Encoding" in self.headers:
            raise OrderRefusedError(OrderRefusal.NO_LENGTH, f"Content-Length: is {said!r}, must say the body's bytes")
        if length > orders.LARGEST:
            raise OrderRefusedError(OrderRefusal.TOO_LARGE, f"an order has at most {orders.LARGEST} bytes")
        claim = self._http.checked.claim(self.headers.get("Authorization", ""))
        body = self.rfile.read(length)
        self.close_connection = closes
        return self._http.checked.take(claim, body)

    def _carry_out(self, order: AgentOrder) -> None:
        """Raises OrderRefusedError: BUSY."""
        match order.action:
            case Drain(by=by, reason=reason, deadline=deadline):
                self._http.ask(by, reason, deadline)
            case Switch(digest=digest):
                try:
                    self._http.switch(digest)
                except SwitchBusyError as error:
                    raise OrderRefusedError(OrderRefusal.BUSY, str(error)) from error

    def _refuse(self, status: HTTPStatus, message: str, refused: OrderRefusedError | None = None) -> None:
        """Say no, in the log too; `now` tells who signs orders what this agent's clock says."""
        self._http.life.log.warning(
            "request" if refused is None else "order",
            outcome="refused",
            code=None if refused is None else refused.code.value,
            method=self.command,
            path=self.path.split("?")[0],
            status=int(status),
            error=message,
        )
        answer = {"error": message}
        if refused is not None:
            answer["code"] = refused.code.value
            if refused.now is not None:
                answer["now"] = refused.now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._json(status, answer)

    def _json(self, status: HTTPStatus, value: Any) -> None:
        self._answer(status, json.dumps(value, indent=1).encode() + b"\n", "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Check(Bounded):
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], life: NodeState) -> None:
        self.life = life
        super().__init__(address, _CheckHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _CheckHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Check)
        self.request.sendall(self.server.life.agent_check(self.client_address[0]).encode() + b"\n")


def serve(  # noqa: PLR0913 - what its faces reach
    life: NodeState,
    *,
    address: str,
    checked: Orders,
    ask: Callable[[DrainOwner, str, timedelta], Order],
    switch: Callable[[str], object],
    ports: tuple[int, int] = (HTTP_PORT, CHECK_PORT),
) -> tuple[_Http, _Check]:
    """Serve from threads of their own. Raises OSError when a port is taken."""
    http = _Http((address, ports[0]), life, checked, ask, switch)
    check = _Check((address, ports[1]), life)
    for server in (http, check):
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True).start()
    return http, check
