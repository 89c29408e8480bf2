"""The gate's configuration under a real HAProxy."""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving import engine_gate, metrics
from serving.engine_gate import GateConfig
from serving.engines import CONTRACTS
from serving.engines.contract import Probes
from tests.fixtures.running_gate import GATE, PROBES, VARIABLE, RunningGate, running_gate
from tests.fixtures.signing import ENGINE_KEY

pytestmark = pytest.mark.skipif(
    shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None, reason="haproxy is not installed"
)
KEY = f"Bearer {ENGINE_KEY}"


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGate]:
    with running_gate(tmp_path_factory.mktemp("gate")) as running:
        running.engine.end_streams()
        yield running


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("key", "status"),
    [
        pytest.param(None, 401, id="no key"),
        pytest.param("Bearer " + "0" * 64, 401, id="wrong key"),
        pytest.param("Bearer ", 401, id="empty key"),
        pytest.param("Bearer", 401, id="scheme only"),
        pytest.param(ENGINE_KEY, 401, id="no scheme"),
        pytest.param(KEY[:-1], 401, id="a prefix of the key"),
        pytest.param(f"{KEY}0", 401, id="more than the key"),
        pytest.param(f"Bearer wrong, {KEY}", 401, id="two keys in one header"),
        pytest.param(f"{KEY}\r\nAuthorization: {KEY}", 401, id="two headers"),
        pytest.param(KEY, 200, id="the key"),
    ],
)
def test_inference_needs_the_key(gate: RunningGate, key: str | None, status: int) -> None:
    assert gate.status("POST", "/v1/completions", key) == status


def test_the_engine_does_not_get_the_key(gate: RunningGate) -> None:
    gate.status("POST", "/v2/models/a.b/infer", KEY)
    assert gate.engine.seen[-1] == "POST /v2/models/a.b/infer None"


@pytest.mark.parametrize(
    ("method", "path", "arrives"),
    [
        pytest.param("GET", "/health", "GET /live", id="health"),
        pytest.param("GET", "/metrics", "GET /prometheus/metrics", id="metrics"),
        pytest.param("GET", "/version", "GET /version", id="version"),
        pytest.param("GET", "/v1/models", "GET /v1/models", id="models"),
    ],
)
def test_pages_are_read_without_a_key(gate: RunningGate, method: str, path: str, arrives: str) -> None:
    passed = gate.counts()
    assert gate.status(method, path) == 200
    assert gate.engine.seen[-1] == arrives
    assert gate.counts() == passed, "reading a page is not a request"


@pytest.mark.parametrize(
    "path",
    [
        *("/update_weights", "/v2/repository/models/m/load", "/sleep", "/release_memory", "/prometheus/metrics", "/"),
        *("/v1/completions/", "/v1/completionsx", "/x/v1/completions", "/V1/completions", "//v1/completions"),
        *("/v1//completions", "/v1/./completions", "/v1/../v1/completions", "/v2/models/../infer"),
        *("/v2/models/..%2frepository/infer", "/v1/%63ompletions", "/v1%2fcompletions", "/%2e%2e/sleep"),
        *("/v1/completions%00", "/v1/completions;/../../sleep", "/v1\\completions", "/v2/models/a/../../sleep/infer"),
        *("http://other/sleep", "http://engine/v1/completions", "*", "/v1/completions%3f/../sleep"),
        *("/v1/completions#/sleep", "/v2/models/.hidden/infer", "/live", "/metrics"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_no_other_path_or_method_reaches_the_engine(gate: RunningGate, method: str, path: str) -> None:
    before = len(gate.engine.seen)
    assert gate.status(method, path, KEY) in (400, 404)
    assert len(gate.engine.seen) == before


@pytest.mark.parametrize(
    "path",
    ["/v1/completions", "/metrics/", "//metrics", "/sleep", "/is_sleeping", "/%6detrics", "http://engine/metrics"],
)
def test_no_other_page_is_read(gate: RunningGate, path: str) -> None:
    before = len(gate.engine.seen)
    assert gate.status("GET", path, KEY) == 404
    assert len(gate.engine.seen) == before


def test_the_protocol_of_a_connection_cannot_change(gate: RunningGate) -> None:
    """After an upgrade HAProxy would pass bytes that it does not understand."""
    before = len(gate.engine.seen)
    more = ("Connection: Upgrade", "Upgrade: h2c")
    assert gate.status("POST", "/v1/completions", KEY, *more) == 400
    preface = gate.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert preface == b"" or preface.startswith(b"HTTP/1.1 4")
    assert len(gate.engine.seen) == before


def test_large_headers_are_refused(gate: RunningGate) -> None:
    before = len(gate.engine.seen)
    assert gate.status("POST", "/v1/completions", KEY, "X-Large: " + "x" * 65_536) == 400
    assert gate.status("POST", "/v1/completions", KEY, *(f"X-{n}: 1" for n in range(200))) == 400
    assert len(gate.engine.seen) == before


def test_refusals_are_json_in_the_form_of_the_openai_api(gate: RunningGate) -> None:
    answer = gate.send("POST /sleep HTTP/1.1\r\nHost: e\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    assert b"content-type: application/json" in answer
    assert b'{"error": {"message": "There is no such endpoint."' in answer


def test_a_second_request_in_a_body_is_not_a_request(gate: RunningGate) -> None:
    inner = "POST /sleep HTTP/1.1\r\nHost: e\r\nContent-Length: 0\r\n\r\n"
    gate.send(
        f"POST /v1/completions HTTP/1.1\r\nHost: e\r\nAuthorization: {KEY}\r\nConnection: close\r\n"
        f"Content-Length: {len(inner) + 5}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}"
    )
    assert not [line for line in gate.engine.seen if "/sleep" in line]


def stream(gate: RunningGate) -> socket.socket:
    """Send a request that the engine answers with a stream, and return its connection after the headers."""
    connection = socket.create_connection((gate.address, 8000), timeout=60)
    connection.sendall(
        f"POST /v1/completions HTTP/1.1\r\nHost: e\r\nAuthorization: {KEY}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    )
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65_536)
    return connection


def test_open_requests_are_counted_while_they_stream_and_no_longer(tmp_path: Path) -> None:
    with running_gate(tmp_path) as gate:
        assert gate.counts() == (0, 0)
        first, second = stream(gate), stream(gate)
        assert gate.counts() == (2, 2)
        gate.engine.send_piece()
        assert b"more" in first.recv(65_536), "each piece passes at once"
        assert b"more" in second.recv(65_536)
        assert gate.counts() == (2, 2)
        assert gate.status("POST", "/v1/completions", "Bearer wrong") == 401
        assert gate.status("GET", "/metrics") == 200
        assert gate.counts() == (2, 2), "neither a refused request nor a page counts"
        gate.engine.end_streams()
        wait_until(lambda: gate.counts() == (0, 2))
        # the connections are still open: idle connections are not requests
        first.close()
        second.close()


def test_a_request_whose_client_left_is_open_no_longer(tmp_path: Path) -> None:
    with running_gate(tmp_path) as gate:
        connection = stream(gate)
        assert gate.counts() == (1, 1)
        connection.close()
        wait_until(lambda: gate.counts() == (0, 1))


def test_without_an_engine_requests_get_503_and_the_count_is_known(tmp_path: Path) -> None:
    with running_gate(tmp_path) as gate:
        gate.engine.shutdown()
        gate.engine.server_close()
        assert gate.status("POST", "/v1/completions", KEY) == 503
        # a request is open until HAProxy has released it, shortly after its response
        wait_until(lambda: gate.counts()[0] == 0)


def test_the_gate_does_not_start_without_a_key(tmp_path: Path) -> None:
    text = engine_gate.render(GateConfig(gate=GATE, probes=PROBES, address="10.0.0.7", key_variable=VARIABLE))
    assert ENGINE_KEY not in text
    (tmp_path / "gate.cfg").write_text(text)
    program = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    assert program is not None
    command = [program, "-c", "-f", str(tmp_path / "gate.cfg")]
    done = subprocess.run(command, capture_output=True, text=True, env={}, timeout=60, check=False)
    assert done.returncode == 1
    assert f"{VARIABLE}: is not set" in done.stderr


def test_an_engine_listens_on_loopback_only() -> None:
    text = engine_gate.render(GateConfig(gate=GATE, probes=PROBES, address="10.0.0.7", key_variable=VARIABLE))
    assert [line.strip() for line in text.splitlines() if " bind " in line] == [
        "bind 10.0.0.7:8000",
        "bind 127.0.0.1:9502",
    ]
    assert "server engine 127.0.0.1:8001" in text
    own = Probes(alive="/v2/health/ready", metrics_port=8002)
    text = engine_gate.render(GateConfig(gate=GATE, probes=own, address="10.0.0.7", key_variable=VARIABLE))
    assert "server metrics 127.0.0.1:8002" in text


@pytest.mark.parametrize("kind", [kind for kind, one in CONTRACTS.items() if one.launch and one.launch.gate])
def test_each_gate_is_valid_and_has_ports_of_its_own(kind: str, tmp_path: Path) -> None:
    contract = next(one for one in CONTRACTS.values() if one.kind == kind)
    assert contract.launch is not None
    assert contract.launch.gate is not None
    taken = {*metrics.PORTS.values(), 9501, engine_gate.COUNT_PORT}
    assert not {contract.launch.gate.port, contract.probes.metrics_port} & taken
    with running_gate(tmp_path, contract.launch.gate, contract.probes) as gate:
        assert gate.status("POST", "/v1/completions") == 401
        for path in ("/update_weights", "/v2/repository/models/m/load", "/sleep", "/shutdown", "/engine/sleep"):
            assert gate.status("POST", path, KEY) == 404
