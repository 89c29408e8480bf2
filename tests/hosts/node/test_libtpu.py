"""The agent's page of TPU metrics. The server is Google's gRPC library with the simulated libtpu."""

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localcloud.exporters import libtpu as simulated
from localcloud.exporters.frame import Simulator
from localcloud.exporters.metadata import Hardware

from hosts.node import http2, libtpu
from serving.accelerators import CONTRACTS
from serving.accelerators.reading import UnitKey, read
from serving.exposition import parse
from tests.fixtures.networks import free_address, served

V7X = Hardware(kind="tpu", name="TPU7x", count=4, cores=2, memory_mib=98304, watts=900, seed="n-1")
TYPES = simulated.message_types()
METHOD = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"


@contextmanager
def running(folder: Path, hardware: Hardware = V7X) -> Iterator[tuple[Simulator, tuple[str, int]]]:
    """The service, and its address."""
    simulator = Simulator(kind=simulated.KIND, hardware=hardware, engine_url="http://127.0.0.1:9", faults=folder)
    service, port = simulated.make_service(simulator, ("127.0.0.1", 0))
    service.start()
    try:
        yield simulator, ("127.0.0.1", port)
    finally:
        service.stop(None)


def test_the_page_has_the_duty_cycle_of_chips_and_the_memory_of_cores(tmp_path: Path) -> None:
    (tmp_path / "gpu-active").write_text("0.25,0")
    with running(tmp_path) as (simulator, address):
        simulator.sample(3.0)
        reading = read(CONTRACTS["tpu"], parse(libtpu.page(address)))
    assert [unit.highest for unit in reading.units.values()] == [0.25, 0.0, 0.0, 0.0]
    values = reading.units[UnitKey("1")].values
    assert {metric.name.removeprefix("gpufleet_accelerator_"): value for metric, value in values.items()} == {
        "active_ratio": 0.0,
        "memory_used_bytes": int(98304 * 0.92) * 2**20,
        "memory_total_bytes": 98304 * 2**20,
        "idle_seconds": 3.0,
    }


@pytest.mark.parametrize(
    ("fault", "text", "families"),
    [
        pytest.param("exporter", "", 0, id="libtpu refuses"),
        pytest.param("exporter-variant", "no-idle-clock", 3, id="an older libtpu without idle times"),
    ],
)
def test_metrics_that_libtpu_does_not_serve_are_absent(tmp_path: Path, fault: str, text: str, families: int) -> None:
    with running(tmp_path) as (simulator, address):
        simulator.sample(1.0)
        (tmp_path / fault).write_text(text)
        assert libtpu.page(address).count("# TYPE") == families


def test_without_a_program_on_the_tpu_the_page_is_empty(tmp_path: Path) -> None:
    with running(tmp_path) as (_, address):
        pass
    assert libtpu.page(address) == ""


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64, struct.pack(">I", 9 << 24)])
def test_a_server_that_does_not_speak_grpc_gives_no_series(sent: bytes) -> None:
    class Program(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(sent)

    address = free_address()
    with served(socketserver.ThreadingTCPServer(address, Program)):
        assert libtpu.page(address) == ""


def test_a_server_that_never_answers_ends_the_call_in_time() -> None:
    ended = threading.Event()

    class Program(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            ended.wait(60)

    address = free_address()
    with served(socketserver.ThreadingTCPServer(address, Program)):
        with pytest.raises(OSError, match="timed out|in time"):
            http2.call(address, METHOD, b"", 0.2)
        ended.set()


numbers = st.one_of(
    st.builds(lambda value: {"as_double": value}, st.floats(allow_nan=False)),
    st.builds(lambda value: {"as_int": value}, st.integers(-(2**63), 2**63 - 1)),
)


@given(st.dictionaries(st.integers(0, 2**31), numbers, max_size=8))
def test_responses_are_read_as_googles_library_writes_them(values: dict[int, dict[str, Any]]) -> None:
    response = TYPES["MetricResponse"]()
    response.metric.name = "tpu.runtime"
    response.metric.description = "a text"
    for device, gauge in values.items():
        metric = response.metric.metrics.add()
        metric.attribute.key = "device-id"
        metric.attribute.value.int_attr = device
        metric.timestamp.seconds = 1_700_000_000
        for name, value in gauge.items():
            setattr(metric.gauge, name, value)
    expected = {device: float(next(iter(gauge.values()))) for device, gauge in values.items()}
    assert libtpu.read_response(response.SerializeToString()) == expected


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_read_as_no_values(data: bytes) -> None:
    try:
        found = libtpu.read_response(data)
    except ValueError:
        return
    assert all(isinstance(value, float) for value in found.values())


@pytest.mark.parametrize(
    ("devices", "chips"),
    [
        pytest.param({0: 5.0, 1: 2.0, 2: 7.0, 3: 9.0}, {"0": 2.0, "1": 7.0}, id="one per core: the lowest"),
        pytest.param({0: 5.0, 1: 2.0}, {"0": 5.0, "1": 2.0}, id="one per chip"),
        pytest.param({0: 5.0, 1: 2.0, 2: 1.0}, {}, id="three for two chips: unknown"),
    ],
)
def test_the_idle_time_of_a_chip_is_that_of_its_last_core(devices: dict[int, float], chips: dict[str, float]) -> None:
    duty, used, total, idle = (
        "tpu.runtime.tensorcore.dutycycle.percent",
        "tpu.runtime.hbm.memory.usage.bytes",
        "tpu.runtime.hbm.memory.total.bytes",
        "tpu.runtime.tensorcore.idle_duration.seconds",
    )
    page = libtpu.render({duty: {0: 0.0, 1: 0.0}, used: {}, total: {}, idle: devices})
    found = {one.labels["chip"]: one.value for one in parse(page) if one.name.endswith("idle_duration_seconds")}
    assert found == chips


def test_a_large_answer_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(http2, "_LARGEST", 100)
    with running(tmp_path) as (simulator, address):
        simulator.sample(1.0)
        assert libtpu.page(address) == ""
