"""Clients of the console that hold connections open, or send large bodies without a token."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import httpx

from gpufleet.console.access import Access
from gpufleet.http_server import ServerLimits
from tests.fixtures.console.pages import TOKEN, FakeConsoleData, serving


def test_a_large_body_is_not_read_before_its_sender_is_known() -> None:
    with serving(FakeConsoleData(), Access(token=TOKEN)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(b"POST /alerts HTTP/1.1\r\nContent-Length: 4194304\r\n\r\n" + b"x" * 4096)
            assert client.makefile("rb").readline().split()[1] == b"401"
        assert httpx.post(f"{url}/keep", data={"instance": "i"}, timeout=60).status_code == 401
        sent = httpx.post(f"{url}/alerts", content=b"{}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
        assert sent.status_code == 400


def test_the_console_answers_while_silent_connections_are_open() -> None:
    with serving(FakeConsoleData()) as url, ExitStack() as stack:
        before = threading.active_count()
        host, _, port = url.removeprefix("http://").partition(":")
        for _ in range(ServerLimits().connections + 40):
            silent = stack.enter_context(socket.create_connection((host, int(port))))
            silent.sendall(b"POST /alerts HTTP/1.1\r\nX: ")
        assert httpx.get(f"{url}/healthz", timeout=60).text == "ok"
        _until(lambda: threading.active_count() - before <= ServerLimits().connections + 2)


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
