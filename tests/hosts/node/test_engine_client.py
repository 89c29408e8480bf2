"""Responses of an engine that is stopping, hung or not an engine: the agent's loop survives them."""

import socket
import socketserver
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress

import pytest

from hosts.node import health, local_http
from hosts.node.engine_client import HttpEngine
from hosts.node.ports import EngineLoad, StepError
from serving.engines import CONTRACTS, EngineKind
from tests.fixtures.networks import served

PAGE = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n"
Response = Callable[[socket.socket, bytes], None]


def whole(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def sends(raw: bytes) -> Response:
    return lambda connection, _: connection.sendall(raw)


def trickles(connection: socket.socket, request: bytes) -> None:
    assert request
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(400):
        connection.sendall(b"#")
        time.sleep(0.02)


@pytest.fixture
def serve() -> Generator[Callable[[Response], str]]:
    """Starts a server that reads a request and then sends a given response."""
    with ExitStack() as servers:

        def start(respond: Response) -> str:
            class Program(socketserver.BaseRequestHandler):
                def handle(self) -> None:
                    request = self.request.recv(65536)
                    with suppress(OSError):  # the client may have closed the connection
                        respond(self.request, request)

            server = servers.enter_context(served(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Program)))
            return "http://{}:{}".format(*server.server_address[:2])

        yield start


def engine(url: str) -> HttpEngine:
    return HttpEngine(url, "chat", CONTRACTS[EngineKind.VLLM])


BROKEN = [
    pytest.param(sends(whole(PAGE)[:-9]), id="ends in the middle of its page"),
    pytest.param(
        sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nvllm:num_requests_running 3\n"),
        id="ends in the middle of a chunk",
    ),
    pytest.param(sends(b""), id="closes without a word"),
    pytest.param(sends(b"+PONG\r\n"), id="another program is at its port"),
    pytest.param(sends(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 300 + b"\r\n"), id="hundreds of header lines"),
    pytest.param(
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: lots\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"), id="no length"
    ),
    pytest.param(sends(whole(b"busy", "503 Service Unavailable")), id="refuses"),
]


@pytest.mark.parametrize("respond", BROKEN)
def test_an_engine_with_invalid_responses_is_unhealthy(serve: Callable[[Response], str], respond: Response) -> None:
    found = engine(serve(respond))
    assert not found.healthy()
    assert found.load() is None
    with pytest.raises(StepError, match="the first request"):
        found.warm_up("key")


@pytest.mark.parametrize(
    ("page", "load"),
    [
        pytest.param(PAGE, EngineLoad(running=3, waiting=1), id="both numbers"),
        pytest.param(PAGE.splitlines()[0], None, id="one number"),
        pytest.param(b"\xff\xfe", None, id="no text"),
        pytest.param(b"", None, id="nothing"),
    ],
)
def test_the_load_is_read_from_the_engines_metrics(
    serve: Callable[[Response], str], page: bytes, load: EngineLoad | None
) -> None:
    assert engine(serve(sends(whole(page)))).load() == load


def at_path(answers: dict[str, bytes]) -> Response:
    """Answers each path with its own body, and others with 404."""

    def respond(connection: socket.socket, request: bytes) -> None:
        body = answers.get(request.split()[1].decode())
        connection.sendall(whole(b"", "404 Not Found") if body is None else whole(body))

    return respond


@pytest.mark.parametrize(
    ("document", "version"),
    [
        pytest.param(b'{"version": "0.32.0"}', "0.32.0", id="reported"),
        pytest.param(b'{"version": "9.1.0"}', "9.1.0", id="of a release without a contract"),
        pytest.param(b'{"version": 5}', None, id="not a text"),
        pytest.param(b'{"version": "1\\n2"}', None, id="not printable"),
        pytest.param(b"[]", None, id="not a document"),
        pytest.param(b"{", None, id="not JSON"),
    ],
)
def test_the_engine_is_identified_by_its_own_report(
    serve: Callable[[Response], str], document: bytes, version: str | None
) -> None:
    found = engine(serve(at_path({"/metrics": PAGE, "/version": document})))
    assert found.load() == EngineLoad(running=3, waiting=1)
    identity = found.identity()
    assert (identity.kind, identity.version) == (EngineKind.VLLM, version)
    assert identity.missing == ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")


@pytest.mark.parametrize("body", [b"[]", b"null", b'{"choices": []}', b"{", b"\xff"])
def test_a_first_answer_without_choices_is_an_error(serve: Callable[[Response], str], body: bytes) -> None:
    with pytest.raises(StepError, match="the first request"):
        engine(serve(sends(whole(body)))).warm_up("key")


def test_a_slow_answer_is_aborted(serve: Callable[[Response], str]) -> None:
    with pytest.raises(TimeoutError, match="incomplete response"):
        local_http.fetch(serve(trickles), 0.2)


def test_an_endless_answer_is_aborted(serve: Callable[[Response], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_http, "MOST_BYTES", 1000)
    with pytest.raises(TimeoutError, match="incomplete response"):
        local_http.fetch(serve(sends(whole(b"x" * 2000))), 5)


@pytest.mark.parametrize("respond", BROKEN)
def test_an_aborted_exporter_answer_breaks_nothing(
    serve: Callable[[Response], str], respond: Response, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = serve(respond).removeprefix("http://").split(":")
    monkeypatch.setitem(health.metrics.PORTS, health.metrics.Source.DCGM, int(port))
    report = health.check(host, 1)
    assert report.broken is None
    assert report.unknown is not None
