"""Serves the metrics of libtpu for Prometheus. libtpu gives them only to programs on its machine, over gRPC.

libtpu runs in the process that holds the TPU: without one, the page has no series. Names are libtpu's, with dots
replaced. Not tried on hardware: written from tpu-info's client and protocol (AI-Hypercomputer/
cloud-accelerator-diagnostics, commit fe85c12).
"""

import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Final

from gpufleet.http_server import Answer, HttpServer, Routes
from hosts.node import http2
from serving.engine_gate import loopback_of
from serving.exposition import CONTENT_TYPE, Sample, render_family

PORT: Final = 8431
"""libtpu's first port. Programs with several processes have one for each (TPU_RUNTIME_METRICS_PORTS)."""
_METHOD: Final = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
_TIMEOUT_S: Final = 2.0
_DUTY_CYCLE: Final = "tpu.runtime.tensorcore.dutycycle.percent"
_MEMORY: Final = ("tpu.runtime.hbm.memory.usage.bytes", "tpu.runtime.hbm.memory.total.bytes")
_IDLE: Final = "tpu.runtime.tensorcore.idle_duration.seconds"
_MEANINGS: Final = {
    _DUTY_CYCLE: "percent of time in which the chip computed",
    _MEMORY[0]: "memory of the core in use",
    _MEMORY[1]: "memory of the core",
    _IDLE: "time since the chip last computed",
}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIGN: Final = 1 << 63
_LONGEST_VARINT: Final = 10


def serve(address: str) -> int:
    """Serve `HOST:PORT` until the process ends."""
    host, _, port = address.rpartition(":")
    source = (loopback_of(host), PORT)
    routes = Routes({"GET /metrics": lambda _: Answer(body=page(source), content_type=CONTENT_TYPE)})
    HttpServer((host, int(port)), routes, product="gpufleet-node").start("metrics")
    threading.Event().wait()
    return 0


def page(source: tuple[str, int]) -> str:
    """Return the metrics of the program that holds the TPU; without one, no series."""
    values = {name: _ask(source, name) for name in _MEANINGS}
    return render(values)


def render(values: Mapping[str, Mapping[int, float]]) -> str:
    """Return the page. `values`: of each metric by device, as libtpu numbers them."""
    chips = len(values[_DUTY_CYCLE])
    lines: list[str] = []
    for name, meaning in _MEANINGS.items():
        devices = values[name]
        if chips == 0 or not devices or len(devices) % chips:
            continue  # the chip of a device is not known
        page_name = name.replace(".", "_")
        samples = [
            Sample(name=page_name, labels=labels, value=value)
            for labels, value in (_by_core if name in _MEMORY else _by_chip)(devices, chips)
        ]
        lines.append(render_family(page_name, "gauge", meaning, samples))
    return "".join(lines)


_Values = Iterator[tuple[dict[str, str], float]]


def _by_core(devices: Mapping[int, float], chips: int) -> _Values:
    for device, value in sorted(devices.items()):
        yield {"chip": str(device * chips // len(devices)), "core": str(device)}, value


def _by_chip(devices: Mapping[int, float], chips: int) -> _Values:
    """Yield the lowest value of each chip: the idle time may have one for each core."""
    found: dict[int, float] = {}
    for device, value in devices.items():
        chip = device * chips // len(devices)
        found[chip] = min(found.get(chip, value), value)
    yield from (({"chip": str(chip)}, value) for chip, value in sorted(found.items()))


def _ask(source: tuple[str, int], name: str) -> Mapping[int, float]:
    """Return a metric by device; empty: libtpu does not serve it."""
    request = bytes([1 << 3 | _BYTES, len(name)]) + name.encode()
    try:
        return read_response(http2.call(source, _METHOD, request, _TIMEOUT_S))
    except (OSError, ValueError):
        return {}


def read_response(response: bytes) -> dict[int, float]:
    """Return the values of a MetricResponse by device. Raises ValueError for other bytes."""
    found: dict[int, float] = {}
    for metric in _messages(response, 1):
        for one in _messages(metric, 3):
            device, value = _device(one), _gauge(one)
            if value is not None:
                found[device] = value
    return found


def _device(metric: bytes) -> int:
    """Return the number of the device: the attribute's integer. Fields with the value 0 may be missing."""
    for attribute in _messages(metric, 1):
        for value in _messages(attribute, 2):
            return next((one for number, one in _fields(value) if number == 3 and isinstance(one, int)), 0)
    raise ValueError("a metric without the number of its device")


def _gauge(metric: bytes) -> float | None:
    for gauge in _messages(metric, 3):
        for number, value in _fields(gauge):
            if number == 1 and isinstance(value, bytes):
                return float(struct.unpack("<d", value)[0])
            if number == 2 and isinstance(value, int):
                return float(value - (_SIGN << 1) if value >= _SIGN else value)
    return None


def _messages(data: bytes, wanted: int) -> Iterator[bytes]:
    for number, value in _fields(data):
        if number == wanted and isinstance(value, bytes):
            yield value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message: numbers for variable integers, bytes for others. Raises ValueError."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, position = _varint(data, position)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if size < 0 or position + size > len(data):
            raise ValueError(f"expected a protocol buffer, got the wire type {kind} at byte {position}")
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = 0
    for index in range(_LONGEST_VARINT):
        if position + index >= len(data):
            break
        byte = data[position + index]
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return result, position + index + 1
    raise ValueError(f"expected a variable integer at byte {position}")
