"""Time limits for responses whose headers or body arrive slowly, on real connections."""

import socketserver
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import httpx
import pytest

from gpufleet.clouds.deadlines import DeadlineTransport
from gpufleet.clouds.prometheus import Prometheus
from gpufleet.domain.activity import CloudError
from tests.fixtures.networks import served

BODY = b'{"status": "success", "data": {"resultType": "vector", "result": []}}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
LIMIT_S, BYTE_S = 2.0, 0.15
"""Time limit for a response, and pause between its bytes. Slow responses exceed the limit; normal ones do not."""
NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


@contextmanager
def server(trickles: Callable[[int], bytes]) -> Iterator[tuple[str, list[int]]]:
    """A server that responds at once, except for the part that `trickles` returns for a request number.

    It sends this part one byte at a time, and nothing after it. Yields its URL, and a list with an item per
    connection.
    """
    lines: list[int] = []
    asked = 0

    class Line(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            nonlocal asked
            lines.append(1)
            while head := self._head():
                asked += 1
                self.rfile.read(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
                slow = trickles(asked)
                if not slow:
                    self.wfile.write(HEAD + BODY)
                    continue
                self.wfile.write((HEAD + BODY).partition(slow)[0])
                for byte in slow:
                    self.wfile.write(bytes((byte,)))
                    time.sleep(BYTE_S)
                self.rfile.read(1)  # until the client disconnects

        def _head(self) -> bytes:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                if not (line := self.rfile.readline()):
                    return b""
                head += line
            return head

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore the error: the client is expected to disconnect."""

    with served(Server(("127.0.0.1", 0), Line)) as made:
        yield f"http://127.0.0.1:{made.server_address[1]}", lines


@pytest.mark.parametrize("slow", [HEAD[:20], HEAD[20:44], BODY[:24]], ids=["status line", "header", "body"])
def test_a_slow_response_times_out(slow: bytes) -> None:
    with server(lambda number: slow) as (url, _):
        store = Prometheus(url, longest_s=LIMIT_S)
        with pytest.raises(CloudError, match=r"was not complete after 2 s|in 2 s without ending"):
            store.query("up", NOW)
        store.close()


def test_each_response_has_its_own_limit_and_connections_are_reused() -> None:
    clock = [0.0]

    def passes(_: int) -> bytes:
        clock[0] += 25
        return b""

    with server(passes) as (url, lines):
        transport = DeadlineTransport(ssl.create_default_context(), 60, clock=lambda: clock[0])
        store = Prometheus(url, httpx.Client(transport=transport), clock=lambda: clock[0], longest_s=60)
        for _ in range(4):  # the total exceeds the limit of one response
            assert store.query("up", NOW) == []
        assert len(lines) == 1
        store.close()


def test_a_timeout_is_followed_by_a_new_connection() -> None:
    with server(lambda number: HEAD[:20] if number == 1 else b"") as (url, lines):
        store = Prometheus(url, longest_s=LIMIT_S)
        with pytest.raises(CloudError):
            store.query("up", NOW)
        assert store.query("up", NOW) == []
        assert len(lines) == 2
        store.close()


def test_an_unreachable_server_is_named() -> None:
    with server(lambda number: b"") as (url, _):
        pass
    store = Prometheus(url, longest_s=LIMIT_S)
    with pytest.raises(CloudError, match=f"Prometheus at {url} did not answer: .*refused"):
        store.query("up", NOW)
    store.close()
