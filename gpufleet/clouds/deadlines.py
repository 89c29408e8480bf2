"""An HTTP transport with a time limit for the complete response, headers and body.

httpx limits only each single read, so a server that sends one byte at a time can block its caller for ever. This
transport limits each read to the time that remains for the whole response.
"""

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final

import httpcore
import httpx

_FAILURES: Final = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
)


LINES: Final = 100
"""Maximum number of concurrent connections, as in httpx. Instances that do not respond must not delay the others."""


class DeadlineTransport(httpx.BaseTransport):
    """Keeps connections open between requests, as httpx does. Uses no proxies. Raises httpx.TransportError."""

    def __init__(self, context: ssl.SSLContext, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._left = _Left(limit_s, clock)
        self._pool = httpcore.ConnectionPool(
            ssl_context=context, max_connections=LINES, network_backend=_Network(self._left)
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._left.begin()
        url = request.url
        asked = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.read(),
            extensions=request.extensions,
        )
        with _as_httpx():
            answer = self._pool.handle_request(asked)
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer))

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


class _Left:
    """Remaining time for the current request of each thread."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._of_thread = threading.local()

    def begin(self) -> None:
        self._of_thread.until = self._clock() + self._limit_s

    def at_most(self, seconds: float | None) -> float:
        """The smaller of `seconds` and the remaining time. Raises httpcore.ReadTimeout if no time remains."""
        left: float = self._of_thread.until - self._clock()
        if left <= 0:
            raise httpcore.ReadTimeout(f"the answer was not complete after {self._limit_s:g} s")
        return left if seconds is None else min(left, seconds)


class _Stream(httpcore.NetworkStream):
    """A connection whose reads and writes are limited to the remaining time of the request."""

    def __init__(self, inner: httpcore.NetworkStream, left: _Left) -> None:
        self._inner, self._left = inner, left

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            return self._inner.read(max_bytes, self._left.at_most(timeout))
        except httpcore.ReadTimeout:
            self._left.at_most(timeout)  # raises a clearer error if the total time is used up
            raise

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._left.at_most(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        secure = self._inner.start_tls(ssl_context, server_hostname, self._left.at_most(timeout))
        return _Stream(secure, self._left)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Network(httpcore.NetworkBackend):
    """Opens connections with that limit."""

    def __init__(self, left: _Left) -> None:
        self._inner, self._left = httpcore.SyncBackend(), left

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        line = self._inner.connect_tcp(host, port, self._left.at_most(timeout), local_address, socket_options)
        return _Stream(line, self._left)

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        with _as_httpx():
            self._answer.close()


@contextlib.contextmanager
def _as_httpx() -> Generator[None]:
    try:
        yield
    except _FAILURES as error:
        raise httpx.TransportError(str(error) or type(error).__name__) from error
