"""Persistent HTTP/1.1 connections for the object readers, over `http.client`: bounded bodies, failures as OSError.

Standard library only, because the node agent contains this module. Redirects are not followed.
"""

import contextlib
import ssl
from collections.abc import Generator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

TIMEOUT_S: Final = 20.0
"""Time limit for one read or write, after which TimeoutError is raised."""
LARGEST_BODY: Final = 64 * 1024 * 1024
"""Maximum bytes of a body that is read completely."""
_PIECE: Final = 64 * 1024


class Server:
    """The server of a URL. Its connections share one TLS context, because loading certificate authorities is slow."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r}: expected the address of a server, http://HOST[:PORT] or https://HOST[:PORT]")
        self.netloc = parts.netloc
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None

    def connection(self) -> HTTPConnection:
        """A new connection. Its first request opens it."""
        if self._tls is None:
            return HTTPConnection(self.netloc, timeout=TIMEOUT_S)
        return HTTPSConnection(self.netloc, timeout=TIMEOUT_S, context=self._tls)


class Connection:
    """One connection to a server, for use by one thread. A request reopens it after it was closed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._http = server.connection()

    @contextlib.contextmanager
    def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Generator[HTTPResponse]:
        """Send a request and yield its response. The caller reads the body inside the block. Raises OSError.

        The connection stays open only after a complete response. Otherwise the next request would read the remainder.
        """
        keeps = False
        try:
            self._http.request(method, target, body or None, headers)
            with self._http.getresponse() as response:
                yield response
                keeps = is_complete(response)
        except HTTPException as error:
            raise ConnectionError(f"{self._server.netloc}: invalid HTTP response: {error!r}"[:200]) from error
        finally:
            if not keeps:
                self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()
        # http.client buffers the headers of a rejected request and would send them with the next request
        self._http = self._server.connection()


def is_complete(response: HTTPResponse) -> bool:
    """Whether the body was read to its end. Always False for a body with neither a length nor chunks."""
    return response.isclosed() if response.chunked else response.length == 0


def read(response: HTTPResponse, limit: int = LARGEST_BODY) -> bytes:
    """Read the remaining body. Raises ConnectionError if it ends early or is longer than `limit` bytes."""
    body, piece = bytearray(), memoryview(bytearray(_PIECE))
    while count := response.readinto(piece):
        body += piece[:count]
        if len(body) > limit:
            raise ConnectionError(f"the response has more than {limit} bytes")
    if not is_complete(response):
        raise ConnectionError(f"the response ended early, after {len(body)} bytes")
    return bytes(body)
