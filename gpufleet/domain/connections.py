"""Bounds of our small HTTP servers: how many connections at once, and how long one request may take to arrive.

Standard library only: the node agent carries this.
"""

import contextlib
import io
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Any, Final

MOST_CONNECTIONS: Final = 128
"""Of one server. Who is asked by a control host and some routers has a dozen."""
REQUEST_S: Final = 15.0
"""From a request's first byte to its last. The largest one is read over a network of our own."""


class Bounded(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A thread for each connection, of so many at once. With one more the oldest is closed: who asks and goes is
    served while others hold connections open.
    """

    daemon_threads = True
    most_connections = MOST_CONNECTIONS

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._held: dict[int, socket.socket] = {}
        self._guard = threading.Lock()
        super().__init__(*arguments, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._held[id(request)] = request
            oldest = [self._held.pop(key) for key in [*self._held][: len(self._held) - self.most_connections]]
        for one in oldest:
            # its thread, which waits for it, ends
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._held.pop(id(request), None)
        super().shutdown_request(request)


class InTime(io.RawIOBase):
    """What a client sends: each request whole within `whole_s` of its first byte, which is waited for `idle_s`."""

    def __init__(
        self, connection: socket.socket, idle_s: float, whole_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection, self._idle_s, self._whole_s, self._clock = connection, idle_s, whole_s, clock
        self._ends: float | None = None

    def begin(self) -> None:
        """Another request."""
        self._ends = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises TimeoutError: too late; a byte now and then does not help."""
        left = self._idle_s if self._ends is None else self._ends - self._clock()
        if left <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(left)
        try:
            count = self._connection.recv_into(buffer)
        finally:
            # of what is sent, in all
            self._connection.settimeout(self._idle_s)
        if self._ends is None:
            self._ends = self._clock() + self._whole_s
        return count


class TimelyRequests(socketserver.StreamRequestHandler):
    """Of a handler (before BaseHTTPRequestHandler): a request that does not arrive in time ends its connection."""

    whole_s: float = REQUEST_S
    timeout = 30.0
    """Also of an idle connection, and of an answer."""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._incoming = InTime(self.connection, self.timeout or self.whole_s, self.whole_s)
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        """One request of a connection."""
        self._incoming.begin()
        super().handle_one_request()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - BaseHTTPRequestHandler's
