"""A small HTTP/1.1 server: a handler maps a request to an answer. Connections, time and bodies are limited.

It sends complete answers. Code that streams or takes over a connection (websockets) uses `http.server` directly.
Uses only the standard library, because the node agent contains this module.
"""

import contextlib
import io
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from gpufleet.domain.loopback import header_of

_MAX_DIGITS: Final = 20
_LINGER_BYTES: Final = 1024 * 1024
"""Maximum bytes of an unused body that are read after the answer: closing a connection with unread bytes resets it,
and the client loses the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of one server."""

    connections: int = 128
    """Maximum concurrent connections. Another one closes the oldest, so that new clients are served while others keep
    connections open."""
    request_s: float = 15.0
    """Maximum time from the first to the last byte of a request."""
    idle_s: float = 30.0
    """Maximum time between two requests of a connection, and for sending an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response."""

    status: int = HTTPStatus.OK
    body: str | bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    """Used if `headers` contain no Content-Type."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class RequestError(Exception):
    """Refuses a request with this status; `str()` is the message."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True, kw_only=True)
class HttpRequest:
    """A request. `body` reads the body from the connection."""

    method: str
    """GET also for HEAD: the server omits the body of the answer."""
    path: str
    """Path without the query, percent-encoded as received."""
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Lower-case name -> value; the values of a repeated header are joined by commas."""
    client: tuple[str, int] = ("", 0)
    own: tuple[str, int] = ("", 0)
    """The server's address and port on this connection."""
    incoming: io.BufferedIOBase = field(default_factory=io.BytesIO)
    """The bytes after the header section."""
    is_read: bool = False
    """Whether the body was read completely; if not, the connection closes after the answer."""

    def header(self, name: str) -> str | None:
        return self.headers.get(name.lower())

    def length(self, most: int) -> int:
        """Return the length of the body in bytes. Raises RequestError if it is missing or above `most`."""
        given = self.headers.get("content-length", "0").strip()
        is_number = given.isascii() and given.isdigit() and len(given) <= _MAX_DIGITS
        if "transfer-encoding" in self.headers or not is_number:
            raise RequestError(HTTPStatus.LENGTH_REQUIRED, "Content-Length: expected the number of bytes of the body")
        if int(given) > most:
            raise RequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is too large: at most {most} bytes are accepted"
            )
        return int(given)

    def body(self, most: int) -> bytes:
        """Read the body of at most `most` bytes. Raises RequestError like `length`, and for an incomplete body."""
        length = self.length(most)
        try:
            found = self.incoming.read(length)
        except TimeoutError as error:
            raise RequestError(HTTPStatus.REQUEST_TIMEOUT, "the body did not arrive in time") from error
        if len(found) < length:
            raise RequestError(HTTPStatus.BAD_REQUEST, f"the body ends after {len(found)} of {length} bytes")
        self.is_read = True
        return found


Handler = Callable[[HttpRequest], Answer | None]
"""Handles a request. None closes the connection without an answer. May raise RequestError."""


class Routes:
    """A handler that selects others by method and path: `GET /status`, or `GET /instance/*` for a prefix."""

    def __init__(self, table: Mapping[str, Handler]) -> None:
        self._exact = {key: handler for key, handler in table.items() if not key.endswith("*")}
        self._prefixes = {key[:-1]: handler for key, handler in table.items() if key.endswith("*")}
        self._known = f"expected one of {', '.join(table)}"

    def __call__(self, request: HttpRequest) -> Answer | None:
        """Call the matching handler. Raises RequestError (404, 405)."""
        handler = self._find(request.method, request.path)
        if handler is not None:
            return handler(request)
        methods = {key.partition(" ")[0] for key in (*self._exact, *self._prefixes)}
        other = any(self._find(method, request.path) for method in methods)
        raise RequestError(HTTPStatus.METHOD_NOT_ALLOWED if other else HTTPStatus.NOT_FOUND, self._known)

    def _find(self, method: str, path: str) -> Handler | None:
        key = f"{method} {path}"
        prefixed = (handler for prefix, handler in self._prefixes.items() if key.startswith(prefix))
        return self._exact.get(key) or next(prefixed, None)


class BoundedServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A TCP server with a thread per connection, up to a limit. Raises OSError if the address is in use."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: Callable[..., Any], limits: ServerLimits) -> None:
        self.limits = limits
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._held: dict[int, socket.socket] = {}
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        super().__init__(address, handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def start(self, name: str, poll_s: float = 0.5) -> Self:
        """Serve in a new thread; `stop` takes up to `poll_s`."""
        self._thread = threading.Thread(target=self.serve_forever, args=(poll_s,), name=name, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Release the address and close idle connections. Requests in progress get their answer."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()
        with self._guard:
            for one in self._held.values():
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RD)

    def __exit__(self, *_: object) -> None:
        self.stop()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._held[id(request)] = request
            oldest = [self._held.pop(key) for key in [*self._held][: len(self._held) - self.limits.connections]]
        for one in oldest:
            # The thread of this connection, which waits for data, ends.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._held.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log errors outside a handler, except those of clients that disconnect or are too slow."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            _report(error)


class HttpServer(BoundedServer):
    """Answers requests in threads. An exception of the handler goes to `sys.excepthook`; the answer is 500."""

    def __init__(
        self,
        address: tuple[str, int],
        handler: Handler,
        *,
        limits: ServerLimits = ServerLimits(),
        product: str = "gpufleet",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`product`: value of the Server header. `headers`: headers of all answers."""
        self.handler, self.product, self.headers = handler, product, headers
        super().__init__(address, _Connection, limits)

    @property
    def url(self) -> str:
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


class Incoming(io.RawIOBase):
    """The bytes from a client. A request must start within `idle_s`, and end within `request_s` of its first byte."""

    def __init__(
        self, connection: socket.socket, limits: ServerLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection, self._limits, self._clock = connection, limits, clock
        self._ends: float | None = None

    def begin(self) -> None:
        """Start the time limits of the next request."""
        self._ends = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes. Raises TimeoutError after the limit, even if single bytes keep arriving."""
        left = self._limits.idle_s if self._ends is None else self._ends - self._clock()
        if left <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(left)
        try:
            count = self._connection.recv_into(buffer)
        finally:
            # The limit for sending.
            self._connection.settimeout(self._limits.idle_s)
        if self._ends is None:
            self._ends = self._clock() + self._limits.request_s
        return count


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer  # pyright: ignore[reportIncompatibleVariableOverride] - what makes it

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.limits.idle_s)
        self.rfile.close()
        self._incoming = Incoming(self.connection, self.server.limits)
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        """Handle one request of the connection."""
        self._incoming.begin()
        super().handle_one_request()

    def version_string(self) -> str:
        return self.server.product

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing per request: handlers log refusals."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the base class refuses. The answer repeats nothing of the request."""
        self.request_version = self.protocol_version  # the base class may not have set it
        self._send(Answer(status=code, body=f"{HTTPStatus(code).phrase}\n"), is_read=False)

    def _serve(self) -> None:
        request = self._request()
        try:
            answer = self.server.handler(request)
        except RequestError as error:
            answer = Answer(status=error.status, body=f"{error}\n")
        except Exception as error:  # noqa: BLE001 - one failed request must not look like a missing server
            _report(error)
            answer = Answer(status=HTTPStatus.INTERNAL_SERVER_ERROR, body="internal error\n")
        if answer is None:
            self.close_connection = True
        else:
            self._send(answer, request.is_read)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve  # noqa: N815

    def _request(self) -> HttpRequest:
        try:
            target = urlsplit(self.path)
            path, query = target.path, target.query
        except ValueError:  # not a valid URL: use it as a path, which no route matches
            path, query = self.path, ""
        headers = {name.lower(): header_of(self.headers, name) or "" for name in self.headers}
        return HttpRequest(
            method="GET" if self.command == "HEAD" else self.command,
            path=path,
            query=query,
            headers=headers,
            client=(str(self.client_address[0]), int(self.client_address[1])),
            own=self.connection.getsockname()[:2],
            incoming=self.rfile,
            is_read="transfer-encoding" not in headers and headers.get("content-length", "0").strip() == "0",
        )

    def _send(self, answer: Answer, is_read: bool) -> None:
        """Send the answer. Close the connection if the body was not read: the next request's start is unknown."""
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        self.close_connection = self.close_connection or not is_read
        self.send_response(answer.status)
        for name, value in {"Content-Type": answer.content_type, **self.server.headers, **answer.headers}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        if not is_read:
            self._linger()

    def _linger(self) -> None:
        """Read the remaining bytes of the request, within its time limit."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            left = _LINGER_BYTES
            while left > 0 and (read := self.rfile.read1(min(left, 65536))):
                left -= len(read)


def _report(error: BaseException) -> None:
    """Pass an error to `sys.excepthook`. Services log it as one line, without secrets (`logs.log_crashes`)."""
    sys.excepthook(type(error), error, error.__traceback__)
