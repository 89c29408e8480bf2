"""Responses of an engine that is stopping, hung or not an engine: the agent's loop survives them."""

import socket
import socketserver
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from hosts.node import health, local_http
from hosts.node.engine_client import EngineUrls, HttpEngine
from hosts.node.ports import EngineLoad, GateRequests, StepError
from serving.accelerators import CONTRACTS as ACCELERATORS
from serving.engines import CONTRACTS
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
    return HttpEngine(url, "chat", CONTRACTS["vllm"])


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
    assert (identity.kind, identity.version) == ("vllm", version)
    assert identity.missing == ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")


SGLANG_PAGE = (
    b'sglang:num_running_reqs{tp_rank="0"} 0\nsglang:num_queue_reqs{tp_rank="0"} 1\n'
    b'sglang:realtime_tokens_total{mode="decode",tp_rank="0"} 9\n'
    b'sglang:http_requests_active{endpoint="/v1/completions",method="POST"} 2\n'
)


@pytest.mark.parametrize(
    ("key", "version"), [pytest.param("a" * 64, "0.5.23", id="with its key"), pytest.param(None, None, id="without")]
)
def test_sglang_reports_its_release_to_callers_with_its_key(
    serve: Callable[[Response], str], key: str | None, version: str | None
) -> None:
    def respond(connection: socket.socket, request: bytes) -> None:
        path = request.split()[1]
        if path == b"/metrics":
            connection.sendall(whole(SGLANG_PAGE))
        elif path == b"/v1/loads" and b"Bearer " + b"a" * 64 in request:
            connection.sendall(whole(b'{"version": "0.5.23"}'))
        else:
            connection.sendall(whole(b"{}", "401 Unauthorized"))

    found = HttpEngine(serve(respond), "chat", CONTRACTS["sglang"], lambda: key)
    assert found.load() == EngineLoad(running=2, waiting=1), "a request that the scheduler has not reported yet"
    assert found.identity().version == version


LMDEPLOY_PAGE = (
    b"lmdeploy:num_requests_running 1\nlmdeploy:num_requests_waiting 0\nlmdeploy:num_api_requests_waiting 0\n"
)


def test_an_engine_without_a_report_has_the_release_of_the_settings(serve: Callable[[Response], str]) -> None:
    asked: list[bytes] = []

    def respond(connection: socket.socket, request: bytes) -> None:
        asked.append(request.split()[1])
        connection.sendall(whole(LMDEPLOY_PAGE))

    client = HttpEngine(serve(respond), "chat", CONTRACTS["lmdeploy"], stated_version="0.16.0")
    assert client.load() == EngineLoad(running=1, waiting=0)
    assert client.identity().version == "0.16.0"
    assert asked == [b"/metrics"], "it has no path to ask for a release"


@pytest.mark.parametrize(
    ("kind", "path", "document", "healthy"),
    [
        pytest.param("lmdeploy", "/health", b'{"status": "healthy"}', True, id="LMDeploy serves"),
        pytest.param("lmdeploy", "/health", b'{"status": "sleeping"}', False, id="LMDeploy sleeps"),
        pytest.param("dynamo", "/v1/models", b'{"data": [{"id": "chat"}]}', True, id="Dynamo has a model"),
        pytest.param("dynamo", "/v1/models", b'{"data": []}', False, id="Dynamo's worker loads its model"),
        pytest.param("dynamo", "/v1/models", b"[]", False, id="not a document"),
        pytest.param("dynamo", "/v1/models", b"", False, id="no content"),
        pytest.param("triton", "/health/ready", b"", True, id="Triton's status is enough"),
    ],
)
def test_a_200_is_healthy_only_with_the_content_that_the_contract_requires(
    serve: Callable[[Response], str], kind: str, path: str, document: bytes, healthy: bool
) -> None:
    assert HttpEngine(serve(at_path({path: document})), "chat", CONTRACTS[kind]).healthy() is healthy


@pytest.mark.parametrize(
    ("document", "version"),
    [
        pytest.param(b'{"version": "0.32.0"}', "0.32.0", id="the engine reports another one"),
        pytest.param(b"{}", "0.31.0", id="the engine reports none"),
    ],
)
def test_the_engines_own_report_precedes_the_settings(
    serve: Callable[[Response], str], document: bytes, version: str
) -> None:
    url = serve(at_path({"/metrics": PAGE, "/version": document}))
    client = HttpEngine(url, "chat", CONTRACTS["vllm"], stated_version="0.31.0")
    assert client.load() is not None
    assert client.identity().version == version


@pytest.mark.parametrize("body", [b"[]", b"null", b'{"choices": []}', b"{", b"\xff"])
def test_a_first_answer_without_choices_is_an_error(serve: Callable[[Response], str], body: bytes) -> None:
    with pytest.raises(StepError, match="the first request"):
        engine(serve(sends(whole(body)))).warm_up("key")


def test_a_slow_answer_is_aborted(serve: Callable[[Response], str]) -> None:
    with pytest.raises(TimeoutError, match="incomplete response"):
        local_http.fetch(serve(trickles), 0.2)


def test_an_endless_answer_is_aborted(serve: Callable[[Response], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_http, "MAX_BYTES", 1000)
    with pytest.raises(TimeoutError, match="incomplete response"):
        local_http.fetch(serve(sends(whole(b"x" * 2000))), 5)


@pytest.mark.parametrize("respond", BROKEN)
def test_an_aborted_exporter_answer_breaks_nothing(
    serve: Callable[[Response], str], respond: Response, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = serve(respond).removeprefix("http://").split(":")
    monkeypatch.setattr(health, "EXPORTER_PORT", int(port))
    report = health.check(ACCELERATORS["nvidia"], host, 1)
    assert report.broken is None
    assert report.unknown is not None


STALE = b"trtllm_num_requests_running 5\ntrtllm_num_requests_waiting 2\n"


@pytest.mark.parametrize(
    ("count", "load", "requests"),
    [
        pytest.param(whole(b"0 7\n"), EngineLoad(running=0, waiting=0), GateRequests(opened=0, passed=7), id="idle"),
        pytest.param(whole(b"3 9\n"), EngineLoad(running=3, waiting=0), GateRequests(opened=3, passed=9), id="busy"),
        pytest.param(whole(b"", "503 Service Unavailable"), None, None, id="no answer"),
        pytest.param(whole(b"many"), None, None, id="no numbers"),
    ],
)
def test_the_load_behind_a_gate_is_what_the_gate_counts(
    serve: Callable[[Response], str], count: bytes, load: EngineLoad | None, requests: GateRequests | None
) -> None:
    """The engine's own gauges keep their values after the last request."""
    page = serve(sends(whole(STALE)))
    urls = EngineUrls(api=page, metrics=page, clients=page, count=serve(sends(count)))
    found = HttpEngine(urls, "chat", CONTRACTS["trtllm"])
    assert found.load() == load
    assert found.gate_requests() == requests


def test_without_its_gate_the_load_of_such_an_engine_is_unknown(serve: Callable[[Response], str]) -> None:
    found = HttpEngine(serve(sends(whole(STALE))), "chat", CONTRACTS["trtllm"])
    assert found.load() is None
    assert found.gate_requests() is None


@pytest.mark.parametrize(
    ("body", "healthy"),
    [
        pytest.param(b'{"status": "healthy"}', True, id="healthy"),
        pytest.param(b'{"status": "sleeping"}', False, id="asleep"),
        pytest.param(b'["healthy"]', False, id="another document"),
        pytest.param(b"healthy", False, id="text"),
    ],
)
def test_an_engine_is_healthy_only_with_the_status_of_its_contract(
    serve: Callable[[Response], str], body: bytes, healthy: bool
) -> None:
    assert HttpEngine(serve(sends(whole(body))), "chat", CONTRACTS["lmdeploy"]).healthy() is healthy


def test_an_engine_behind_a_gate_is_asked_on_loopback_and_used_through_the_gate() -> None:
    assert EngineUrls.of(CONTRACTS["trtllm"], "10.0.0.7", 8000) == EngineUrls(
        api="http://127.0.0.1:8001",
        metrics="http://127.0.0.1:8001",
        clients="http://10.0.0.7:8000",
        count="http://127.0.0.1:9502/",
    )
    everything = "http://10.0.0.7:8000"
    assert EngineUrls.of(CONTRACTS["vllm"], "10.0.0.7", 8000) == EngineUrls(
        api=everything, metrics=everything, clients=everything
    )
    trtllm = CONTRACTS["trtllm"]
    own_port = replace(trtllm, probes=replace(trtllm.probes, metrics_port=8002))
    assert EngineUrls.of(own_port, "10.0.0.7", 8000).metrics == "http://127.0.0.1:8002"
