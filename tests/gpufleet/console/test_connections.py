"""Clients that hold connections open, send a byte now and then, or large bodies without a token."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from gpufleet.console.access import Access
from gpufleet.domain.connections import MOST_CONNECTIONS, Bounded, InTime, TimelyRequests
from tests.fixtures.console.pages import TOKEN, FakeBook, serving


class Small(Bounded, HTTPServer):
    """A server of few connections."""

    most_connections = 4


class Handler(TimelyRequests, BaseHTTPRequestHandler):
    """Answers what was sent."""

    protocol_version = "HTTP/1.1"
    whole_s = 0.6
    timeout = 5.0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@contextmanager
def small() -> Iterator[tuple[str, int]]:
    with Small(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield "127.0.0.1", int(server.server_address[1])
        server.shutdown()


def test_silent_connections_hold_no_more_threads_than_the_limit_and_keep_nobody_out() -> None:
    before = threading.active_count()
    with small() as address, ExitStack() as stack:
        for _ in range(40):
            silent = stack.enter_context(socket.create_connection(address))
            silent.sendall(b"POST / HTTP/1.1\r\nX: ")
        assert httpx.post(f"http://{address[0]}:{address[1]}/", content=b"yes").text == "yes"
        _until(lambda: threading.active_count() - before <= Small.most_connections + 2)


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_byte_now_and_then_is_no_request(where: str) -> None:
    begun = b"POST / HTTP/1.1\r\nX: " if where == "head" else b"POST / HTTP/1.1\r\nContent-Length: 900\r\n\r\n"
    with small() as address, socket.create_connection(address, timeout=10) as slow:
        slow.sendall(begun)
        began, ended = time.monotonic(), False
        while not ended and time.monotonic() - began < 8:
            try:
                slow.sendall(b"a")
                slow.settimeout(0.1)
                ended = slow.recv(100) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
        assert ended
        assert time.monotonic() - began < 5


def test_a_connection_takes_one_request_after_another() -> None:
    with small() as address, httpx.Client(base_url=f"http://{address[0]}:{address[1]}") as client:
        for text in ("one", "two"):
            assert client.post("/", content=text.encode()).text == text
            # longer than one request may take: an idle connection is none
            time.sleep(0.7)


def test_the_time_of_a_request_begins_with_its_first_byte() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        now = [0.0]
        incoming = InTime(ours, idle_s=5, whole_s=15, clock=lambda: now[0])
        buffer = bytearray(1)
        for at in (1000.0, 1014.9):
            now[0] = at
            theirs.sendall(b"a")
            assert incoming.readinto(buffer) == 1
        now[0] = 1015.0
        theirs.sendall(b"a")
        with pytest.raises(TimeoutError):
            incoming.readinto(buffer)
        incoming.begin()
        assert incoming.readinto(buffer) == 1


def test_a_large_body_is_not_read_before_its_sender_is_known() -> None:
    with serving(FakeBook(), Access(token=TOKEN)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"POST /alerts HTTP/1.1\r\nContent-Length: 4194304\r\n\r\n" + b"x" * 4096)
            assert client.makefile("rb").readline().split()[1] == b"401"
        assert httpx.post(f"{url}/keep", data={"instance": "i"}).status_code == 401
        sent = httpx.post(f"{url}/alerts", content=b"{}", headers={"Authorization": f"Bearer {TOKEN}"})
        assert sent.status_code == 400


def test_the_console_has_both_bounds() -> None:
    with serving(FakeBook()) as url, ExitStack() as stack:
        before = threading.active_count()
        host, _, port = url.removeprefix("http://").partition(":")
        for _ in range(MOST_CONNECTIONS + 40):
            silent = stack.enter_context(socket.create_connection((host, int(port))))
            silent.sendall(b"POST /alerts HTTP/1.1\r\nX: ")
        assert httpx.get(f"{url}/healthz").text == "ok"
        _until(lambda: threading.active_count() - before <= MOST_CONNECTIONS + 2)


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
