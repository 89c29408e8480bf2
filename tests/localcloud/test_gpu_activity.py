"""The simulated GPUs of an engine behind a gate work while a request is open, whatever the engine's gauges report."""

import socketserver
from pathlib import Path

from localcloud.exporters import nvidia
from localcloud.exporters.frame import Simulator
from localcloud.exporters.metadata import Hardware

from serving import engine_gate
from tests.fixtures.networks import free_address, served

STALE = "trtllm_num_requests_running 2\ntrtllm_num_requests_waiting 1\ntrtllm_generation_tokens_total 7\n"


def _program(body: list[str]) -> type[socketserver.BaseRequestHandler]:
    class Program(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            text = body[0]
            self.request.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())

    return Program


def test_gpus_work_while_a_request_is_open_at_the_gate(tmp_path: Path) -> None:
    host, port = free_address()
    count = ["1 4\n"]
    page = socketserver.ThreadingTCPServer((host, port), _program([STALE]))
    gate = socketserver.ThreadingTCPServer((host, engine_gate.COUNT_PORT), _program(count))
    hardware = Hardware(kind="nvidia", name="L4", count=1, memory_mib=24_000, watts=72.0, seed="i-1")
    with served(page), served(gate):
        simulator = Simulator(
            kind=nvidia.KIND, hardware=hardware, engine_url=f"http://{host}:{port}", faults=tmp_path
        )
        simulator.sample(1.0)
        assert simulator.state.active(0) > 0.5
        count[0] = "0 4\n"
        simulator.sample(1.0)
        assert simulator.state.active(0) == 0.0, "its own gauges keep their values after the last request"
