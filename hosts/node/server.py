"""The agent's servers: its HTTP API on port 9500 and HAProxy's agent check on port 9501."""

import json
import socketserver
from collections.abc import Callable, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Final

from gpufleet.domain import orders
from gpufleet.domain.clocks import rfc3339
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.orders import AgentOrder, Drain, OrderRefusal, OrderRefusedError, Switch
from gpufleet.http_server import Answer, BoundedServer, HttpRequest, HttpServer, RequestError, Routes, ServerLimits
from hosts.node import page
from hosts.node.drain import Order
from hosts.node.orders import Orders
from hosts.node.state import NodeState
from hosts.node.switch import SwitchBusyError
from serving.exposition import CONTENT_TYPE

HTTP_PORT: Final = 9500
CHECK_PORT: Final = 9501
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
_LENGTHS: Final = {_STATUSES[code]: code for code in (OrderRefusal.TOO_LARGE, OrderRefusal.NO_LENGTH)}


class _Api:
    """The HTTP API: public read-only pages, and signed orders."""

    def __init__(
        self,
        state: NodeState,
        checked: Orders,
        ask: Callable[[DrainOwner, str, timedelta], Order],
        switch: Callable[[str], object],
    ) -> None:
        self._state, self._checked, self._ask, self._switch = state, checked, ask, switch
        self._routes = Routes(
            {
                "GET /status": lambda _: _json(HTTPStatus.OK, state.status()),
                "GET /metrics": lambda _: Answer(body=page.render(state), content_type=CONTENT_TYPE),
                "GET /healthz": lambda _: Answer(body="ok\n"),
                f"POST {orders.PATH}": self._order,
            }
        )

    def answer(self, request: HttpRequest) -> Answer | None:
        """Answer a request. Log refusals."""
        try:
            return self._routes(request)
        except OrderRefusedError as refused:
            return self._refuse(request, _STATUSES[refused.code], refused)
        except RequestError as error:
            return self._refuse(request, error.status, error)

    def _order(self, request: HttpRequest) -> Answer:
        """Execute a signed order. Raises OrderRefusedError, before it reads the body if the headers are enough."""
        try:
            request.length(orders.MAX_BODY_BYTES)
        except RequestError as error:
            raise OrderRefusedError(_LENGTHS[error.status], str(error)) from error
        claim = self._checked.claim(request.header("Authorization") or "")
        self._execute(self._checked.take(claim, request.body(orders.MAX_BODY_BYTES)))
        return _json(HTTPStatus.ACCEPTED, self._state.status())

    def _execute(self, order: AgentOrder) -> None:
        """Execute an accepted order. Raises OrderRefusedError (BUSY)."""
        match order.action:
            case Drain(by=by, reason=reason, deadline=deadline):
                self._ask(by, reason, deadline)
            case Switch(digest=digest):
                try:
                    self._switch(digest)
                except SwitchBusyError as error:
                    raise OrderRefusedError(OrderRefusal.BUSY, str(error)) from error

    def _refuse(self, request: HttpRequest, status: HTTPStatus, error: OrderRefusedError | RequestError) -> Answer:
        """Log and return a refusal. `now` gives the sender the time of this agent's clock."""
        refused = error if isinstance(error, OrderRefusedError) else None
        self._state.log.warning(
            "request" if refused is None else "order",
            outcome="refused",
            code=None if refused is None else refused.code.value,
            method=request.method,
            path=request.path,
            status=int(status),
            error=str(error),
        )
        answer = {"error": str(error)}
        if refused is not None:
            answer["code"] = refused.code.value
            if refused.now is not None:
                answer["now"] = rfc3339(refused.now)
        return _json(status, answer)


def _json(status: HTTPStatus, value: object) -> Answer:
    return Answer(status=status, body=json.dumps(value, indent=1) + "\n", content_type="application/json")


class _Check(BoundedServer):
    def __init__(self, address: tuple[str, int], state: NodeState) -> None:
        self.state = state
        super().__init__(address, _CheckHandler, ServerLimits())


class _CheckHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Check)
        self.request.sendall(self.server.state.agent_check(self.client_address[0]).encode() + b"\n")


def serve(  # noqa: PLR0913 - the dependencies of both servers
    state: NodeState,
    *,
    address: str,
    checked: Orders,
    ask: Callable[[DrainOwner, str, timedelta], Order],
    switch: Callable[[str], object],
    ports: tuple[int, int] = (HTTP_PORT, CHECK_PORT),
) -> tuple[HttpServer, BoundedServer]:
    """Start both servers in their own threads. Raises OSError if a port is in use."""
    http = HttpServer((address, ports[0]), _Api(state, checked, ask, switch).answer, product="gpufleet-node")
    check = _Check((address, ports[1]), state)
    return http.start("http"), check.start("agent-check")
