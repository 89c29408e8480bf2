"""The simulated metrics service of libtpu: gRPC on port 8431, in the process that holds the TPU.

Written from tpu-info (AI-Hypercomputer/cloud-accelerator-diagnostics at commit fe85c12):
proto/tpu_metric_service.proto
(messages) and metrics.py (names; duty cycle by chip, memory by core; the attribute of a number is its device).
The simulated engine serves it on a machine with TPUs. It ends with the engine, so a TPU without a program has no
metrics at all. The status of a metric that libtpu does not know is an assumption (INVALID_ARGUMENT).

Faults: `exporter` and `exporter-blank`: the service refuses all metrics. Fault `exporter-variant`: `no-idle-clock`: a
release without the idle duration.
"""

import json
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from localcloud.exporters.frame import (
    ExporterFaults,
    ExporterKind,
    MachineState,
    SimulatedUnit,
    Simulator,
    fault_folder,
    sample_until,
    used_mib,
)
from localcloud.exporters.metadata import Hardware
from localcloud.plugin_server import make_server

PORT: Final = 8431
_PACKAGE: Final = "tpu.monitoring.runtime"
_DUTY_CYCLE: Final = "tpu.runtime.tensorcore.dutycycle.percent"
_USED: Final = "tpu.runtime.hbm.memory.usage.bytes"
_TOTAL: Final = "tpu.runtime.hbm.memory.total.bytes"
_IDLE: Final = "tpu.runtime.tensorcore.idle_duration.seconds"
_DOUBLES: Final = frozenset({_DUTY_CYCLE, _IDLE})
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_MESSAGES: Final = {
    "AttrValue": (("int_attr", 3, _FIELD.TYPE_INT64, "attr"),),
    "Attribute": (("key", 1, _FIELD.TYPE_STRING, ""), ("value", 2, "AttrValue", "")),
    "Gauge": (("as_double", 1, _FIELD.TYPE_DOUBLE, "value"), ("as_int", 2, _FIELD.TYPE_INT64, "value")),
    "Metric": (
        ("attribute", 1, "Attribute", ""),
        ("timestamp", 2, ".google.protobuf.Timestamp", ""),
        ("gauge", 3, "Gauge", "measure"),
    ),
    "TPUMetric": (
        ("name", 1, _FIELD.TYPE_STRING, ""),
        ("description", 2, _FIELD.TYPE_STRING, ""),
        ("metrics", 3, "*Metric", ""),
    ),
    "MetricRequest": (("metric_name", 1, _FIELD.TYPE_STRING, ""), ("skip_node_aggregation", 2, _FIELD.TYPE_BOOL, "")),
    "MetricResponse": (("metric", 1, "TPUMetric", ""),),
}
"""Fields of the service's messages: name, number, type (of a message: its name, with `*` if repeated), oneof."""


def units(hardware: Hardware, faults: ExporterFaults) -> Sequence[SimulatedUnit]:
    """The chips. Raises ValueError: a chip cannot be divided."""
    if faults.parts("slices"):
        raise ValueError("slices: a TPU chip is not divided")
    return [
        SimulatedUnit(device=chip) for chip in range(min(hardware.count, int(faults.number("gpus", hardware.count))))
    ]


def page(hardware: Hardware, state: MachineState, faults: ExporterFaults) -> str:
    """The values of each metric by device, as JSON."""
    total = hardware.memory_mib * 1024 * 1024 * faults.number("exporter-unit", 1.0)
    used = used_mib(hardware.memory_mib, held=True) * 1024 * 1024 * faults.number("exporter-unit", 1.0)
    chips = [unit.device for unit in state.units]
    cores = range(len(chips) * hardware.cores)
    values = {
        _DUTY_CYCLE: {chip: round(state.active(chip) * 100, 2) for chip in chips},
        _USED: {core: int(used / hardware.cores) for core in cores},
        _TOTAL: {core: int(total / hardware.cores) for core in cores},
    }
    if not faults.has("no-idle-clock"):
        values[_IDLE] = {chip: round(state.of_unit[chip].idle_s, 3) for chip in chips}
    return json.dumps(values)


KIND: Final = ExporterKind(kind="tpu", product="libtpu", units=units, page=page)


def message_types() -> dict[str, Any]:
    """The classes of the service's messages, by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tpu_metric_service.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for own, number, kind, oneof in fields:
            field = message.field.add(name=own, number=number, label=_FIELD.LABEL_OPTIONAL)
            if isinstance(kind, str):
                plain = kind.removeprefix("*")
                field.type = _FIELD.TYPE_MESSAGE
                field.type_name = plain if plain.startswith(".") else f".{_PACKAGE}.{plain}"
                field.label = _FIELD.LABEL_REPEATED if kind.startswith("*") else _FIELD.LABEL_OPTIONAL
            else:
                field.type = kind
            if oneof:
                if not message.oneof_decl:
                    message.oneof_decl.add(name=oneof)
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


def make_service(simulator: Simulator, address: tuple[str, int]) -> tuple[grpc.Server, int]:
    """The service, not started, and its port. Raises RuntimeError when the address is taken."""
    types = message_types()

    def answer(request: Any, context: Any) -> Any:
        faults = simulator.read_faults()
        if "exporter" in faults or "exporter-blank" in faults:
            context.abort(grpc.StatusCode.UNAVAILABLE, "metrics are not available")
        values = json.loads(simulator.page()).get(request.metric_name, {})
        if not values:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unsupported metric: {request.metric_name}")
        response = types["MetricResponse"]()
        response.metric.name = request.metric_name
        for device, value in values.items():
            metric = response.metric.metrics.add()
            metric.attribute.key = "device-id"
            metric.attribute.value.int_attr = int(device)
            metric.timestamp.seconds = int(time.time())
            setattr(metric.gauge, "as_double" if request.metric_name in _DOUBLES else "as_int", value)
        return response

    untyped: Any = grpc
    method = untyped.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=types["MetricRequest"].FromString,
        response_serializer=types["MetricResponse"].SerializeToString,
    )
    handler = untyped.method_handlers_generic_handler(
        f"{_PACKAGE}.RuntimeMetricService", {"GetRuntimeMetric": method}
    )
    return make_server(4, (handler,), address=address)


def serve_with(engine: tuple[str, int], hardware: Hardware) -> None:
    """Serve the metrics of an engine at this address, in its process. Raises RuntimeError if the port is taken."""
    url = f"http://{engine[0]}:{engine[1]}"
    simulator = Simulator(kind=KIND, hardware=hardware, engine_url=url, faults=fault_folder())
    service, _ = make_service(simulator, (engine[0], PORT))
    service.start()

    def sample() -> None:
        sample_until(simulator, threading.Event())
        service.stop(None)  # a service that nothing refers to ends

    threading.Thread(target=sample, daemon=True).start()
