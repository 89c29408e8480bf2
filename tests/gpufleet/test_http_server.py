"""The HTTP server of all pages: limits, routes, errors and stop."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus

import httpx
import pytest

from gpufleet.http_server import (
    Answer,
    Handler,
    HttpRequest,
    HttpServer,
    Incoming,
    RequestError,
    Routes,
    ServerLimits,
)
from gpufleet.logs import log_crashes
from tests.fixtures.logs import Line, RecordedLog

MAX_BODY = 1000
SMALL = ServerLimits(connections=4, request_s=1.5, idle_s=60)


def echo(request: HttpRequest) -> Answer:
    return Answer(body=request.body(MAX_BODY))


@contextmanager
def serving(handler: Handler = echo, limits: ServerLimits = SMALL, host: str = "127.0.0.1") -> Iterator[HttpServer]:
    with HttpServer((host, 0), handler, limits=limits, headers={"X-All": "yes"}) as server:
        yield server.start("test", poll_s=0.05)


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def sent(server: HttpServer, request: bytes) -> bytes:
    """Send a request; return all bytes until the server closes the connection."""
    with connect(server) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_silent_connections_hold_threads_up_to_the_limit_and_other_clients_are_answered() -> None:
    before = threading.active_count()
    with serving() as server, ExitStack() as stack:
        for _ in range(40):
            silent = stack.enter_context(connect(server))
            silent.sendall(b"POST / HTTP/1.1\r\nX: ")
        assert httpx.post(server.url, content=b"yes", timeout=60).text == "yes"
        until(lambda: threading.active_count() - before <= SMALL.connections + 2)


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_client_that_sends_a_byte_at_a_time_is_disconnected(where: str) -> None:
    begun = b"POST / HTTP/1.1\r\nX: " if where == "head" else b"POST / HTTP/1.1\r\nContent-Length: 900\r\n\r\n"
    with serving() as server, connect(server) as slow:
        slow.sendall(begun)
        end, ended = time.monotonic() + 50, False  # shorter than the limit for idle connections
        while not ended and time.monotonic() < end:
            try:
                slow.sendall(b"a")
                slow.settimeout(0.1)
                ended = slow.recv(1000) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
        assert ended


def test_a_connection_takes_one_request_after_another() -> None:
    with serving() as server, httpx.Client(base_url=server.url, timeout=60) as client:
        for text in ("one", "two"):
            assert client.post("/", content=text.encode()).text == text
            # Longer than the limit of a request: between two requests, the idle limit applies.
            time.sleep(1.6)


def test_the_time_of_a_request_begins_with_its_first_byte() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        now = [0.0]
        incoming = Incoming(ours, ServerLimits(idle_s=5, request_s=15), clock=lambda: now[0])
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


@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param(f"Content-Length: {MAX_BODY + 1}", 413, id="too large"),
        pytest.param("Content-Length: -1", 411, id="negative"),
        pytest.param("Content-Length: many", 411, id="not a number"),
        pytest.param("Content-Length: " + "9" * 5000, 411, id="5,000 digits"),
        pytest.param("Content-Length: 1\r\nContent-Length: 2", 411, id="two lengths"),
        pytest.param("Content-Length: 4\r\nTransfer-Encoding: chunked", 411, id="length and encoding"),
        pytest.param("Transfer-Encoding: chunked", 411, id="no length"),
    ],
)
def test_a_body_without_a_valid_length_is_refused_and_the_connection_ends(head: str, status: int) -> None:
    with serving() as server:
        answer = sent(server, f"POST / HTTP/1.1\r\n{head}\r\n\r\nGET / HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1") == 1, "what follows a body that was not read is not a request"


def test_a_body_that_ends_early_is_refused() -> None:
    with serving() as server, connect(server) as client:
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc")
        client.shutdown(socket.SHUT_WR)
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"the body ends after 3 of 9 bytes\n")


def test_an_answer_before_the_body_reaches_a_client_that_sends_on() -> None:
    def refuse(request: HttpRequest) -> Answer:
        raise RequestError(HTTPStatus.UNAUTHORIZED, "who are you?")

    with serving(refuse, ServerLimits()) as server, connect(server) as client:
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 60000\r\n\r\n")
        first = client.recv(10)
        for _ in range(60):
            client.sendall(b"x" * 1000)
        answer = first + client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.endswith(b"\r\n\r\nwho are you?\n")


def test_routes_match_methods_paths_and_prefixes() -> None:
    routes = Routes(
        {
            "GET /": lambda _: Answer(body="root"),
            "GET /one/*": lambda request: Answer(body=request.path),
            "POST /form": echo,
        }
    )
    with serving(routes) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        found = client.get("/", params={"a": "1"})
        assert (found.text, found.headers["x-all"], found.headers["server"]) == ("root", "yes", "gpufleet")
        assert client.get("/one/a%20b").text == "/one/a%20b"
        assert client.post("/form", content=b"x").text == "x"
        assert client.get("/form").status_code == 405
        missing = client.get("/two")
        assert (missing.status_code, missing.text) == (404, "expected one of GET /, GET /one/*, POST /form\n")
        head = client.head("/")
        assert (head.status_code, head.headers["content-length"], head.content) == (200, "4", b"")
        assert client.get("/").text == "root", "no byte of a body came after the HEAD"


def test_a_request_has_headers_query_and_both_addresses() -> None:
    seen: list[HttpRequest] = []

    def see(request: HttpRequest) -> Answer:
        seen.append(request)
        return Answer()

    with serving(see) as server:
        sent(server, b"GET /p?q=1 HTTP/1.1\r\nX-A: 1\r\nx-a: 2\r\nConnection: close\r\n\r\n")
        sent(server, b"GET //[ HTTP/1.0\r\n\r\n")
    first, second = seen
    assert (first.path, first.query, first.header("X-A"), first.header("Y")) == ("/p", "q=1", "1,2", None)
    assert (first.client[0], first.own) == ("127.0.0.1", ("127.0.0.1", server.port))
    assert second.path == "/["


def test_no_answer_closes_the_connection() -> None:
    with serving(lambda _: None) as server:
        assert sent(server, b"GET / HTTP/1.1\r\n\r\n") == b""


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    """The log lines of unhandled exceptions."""
    log = RecordedLog()
    for hook in ("sys.excepthook", "threading.excepthook"):
        monkeypatch.setattr(hook, None)
    log_crashes(log)
    return log.lines


def test_an_error_of_a_handler_is_logged_and_not_sent(crashes: list[Line]) -> None:
    def fail(request: HttpRequest) -> Answer:
        raise ValueError("the page is broken")

    with serving(fail) as server:
        for _ in range(2):
            answer = httpx.get(f"{server.url}/secret-1?secret-2", headers={"Cookie": "secret-3"}, timeout=60)
            assert (answer.status_code, answer.text) == (500, "internal error\n")
    assert [(line["event"], line["error"]) for line in crashes] == [("crash", "ValueError: the page is broken")] * 2
    assert "secret" not in str(crashes)


def test_a_client_that_disconnects_is_not_logged(crashes: list[Line]) -> None:
    left, ended = threading.Event(), threading.Event()

    def large(request: HttpRequest) -> Answer:
        assert left.wait(60)
        return Answer(body=b"x" * 10_000_000)

    class Watched(HttpServer):
        def shutdown_request(self, request: object) -> None:
            super().shutdown_request(request)
            ended.set()

    with Watched(("127.0.0.1", 0), large) as server:
        server.start("test", poll_s=0.05)
        with connect(server) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        left.set()
        assert ended.wait(60)
    assert crashes == []


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        pytest.param(b"<script>\r\n", b"400", id="no request"),
        pytest.param(b"BREW /<script> HTTP/1.1\r\n\r\n", b"501", id="another method"),
        pytest.param(b"GET /<script> HTTP/9.9\r\n\r\n", b"505", id="another version"),
        pytest.param(b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", b"414", id="a long path"),
    ],
)
def test_an_answer_to_a_malformed_request_repeats_no_part_of_it(request_line: bytes, status: bytes) -> None:
    with serving() as server:
        answer = sent(server, request_line)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"script" not in answer
    assert b"<" not in answer


def test_a_stop_ends_idle_connections_and_completes_answers() -> None:
    asked, finish = threading.Event(), threading.Event()

    def slow(request: HttpRequest) -> Answer:
        if request.path == "/slow":
            asked.set()
            assert finish.wait(60)
        return Answer(body="done")

    server = HttpServer(("127.0.0.1", 0), slow).start("test", poll_s=0.05)
    idle, busy = (http.client.HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(2))
    idle.request("GET", "/")
    assert idle.getresponse().read() == b"done"
    busy.request("GET", "/slow")
    assert asked.wait(60)
    server.stop()
    assert idle.sock is not None
    assert idle.sock.recv(1) == b"", "closed long before its idle limit"
    finish.set()
    assert busy.getresponse().read() == b"done"
    with HttpServer(("127.0.0.1", server.port), echo):
        pass  # the address can be used again
    idle.close()
    busy.close()


def test_it_listens_on_both_loopback_addresses() -> None:
    for host, url in (("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")):
        with serving(host=host) as server:
            assert server.url.startswith(url)
            assert httpx.post(server.url, content=b"x", timeout=60).text == "x"
