"""The simulated neuron-monitor with its Prometheus script: AWS Inferentia and Trainium.

`python -m localcloud.exporters.neuron --port 9400 [--engine URL] [--machine-type T]`. It listens on the machine's
address; the real script listens on every address.

Written from neuron-monitor-prometheus.py of the Neuron tools (names, labels; counters are added up by the script;
gauges and counters of runtimes are cleared only when no runtime runs), a public page recorded on an inf1.xlarge with
and without a runtime, and the page of a trn1n.32xlarge in tests of Amazon's CloudWatch agent.

Faults: `exporter-reset` restarts the runtime: other tags, counters at 0. `exporter-blank`: neuron-monitor reports an
error for the groups of the cores, so their series are missing. Fault `exporter-variant`:

- `ended-runtime`: gauges of a second runtime that ended stay on the page with their last values;
- `no-hardware-info`: a release of the script without the series of the hardware.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from localcloud.exporters import program
from localcloud.exporters.frame import (
    ExporterFaults,
    ExporterKind,
    MachineState,
    Series,
    SimulatedUnit,
    family,
    used_mib,
)
from localcloud.exporters.metadata import Hardware

_MEMORY: Final = {"constants": 0.6, "model_code": 0.02, "model_shared_scratchpad": 0.1, "runtime_memory": 0.01}
"""Kinds of a core's memory and their shares; tensors take the rest."""
_STATUS: Final = ("completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input", "failed_to_queue")
_ERRORS: Final = ("generic", "numerical", "transient", "model", "runtime", "hardware")
_ECC: Final = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
_FIRST_PID: Final = 15400
_STARTED: Final = time.time()


def units(hardware: Hardware, faults: ExporterFaults) -> Sequence[SimulatedUnit]:
    """The cores of each device. Raises ValueError: Neuron devices cannot be divided."""
    if faults.parts("slices"):
        raise ValueError("slices: Neuron devices are not divided; programs use their cores")
    devices = range(min(hardware.count, int(faults.number("gpus", hardware.count))))
    share = 1 / hardware.cores
    return [
        SimulatedUnit(device=device, share=share, number=str(core))
        for device in devices
        for core in range(hardware.cores)
    ]


def page(hardware: Hardware, state: MachineState, faults: ExporterFaults) -> str:
    """/metrics now."""
    instance = _instance(hardware)
    lines = [
        family("process_start_time_seconds", "gauge", "start of the script", [({}, _STARTED)]),
        family("process_cpu_seconds_total", "counter", "CPU time of the script", [({}, time.process_time())]),
    ]
    if state.held:
        lines += _runtime(hardware, state, faults, instance)
    lines += _host(hardware, state, faults, instance)
    return "".join(lines)


def _instance(hardware: Hardware) -> dict[str, str]:
    return {
        "availability_zone": hardware.zone,
        "instance_id": hardware.seed,
        "instance_name": "",
        "instance_type": hardware.machine_type,
        "region": hardware.zone.rstrip("abcdef"),
        "subnet_id": "subnet-0",
    }


def _sorted(labels: Mapping[str, str], **more: str) -> dict[str, str]:
    return dict(sorted({**labels, **more}.items()))


def _runtime(
    hardware: Hardware, state: MachineState, faults: ExporterFaults, instance: Mapping[str, str]
) -> Iterator[str]:
    """Series of the program that holds the devices."""
    own = _sorted(instance, runtime_tag=str(_FIRST_PID + state.runtime))
    tags = [own]
    if faults.has("ended-runtime"):
        tags.append(_sorted(instance, runtime_tag=str(_FIRST_PID - 1)))
    completed = max((unit.executions for unit in state.of_unit), default=0.0)
    status = [(_sorted(own, status_type="completed"), completed)]
    status += [(_sorted(own, status_type=name), 0.0) for name in _STATUS]
    errors = [(_sorted(own, error_type=name), 0.0) for name in _ERRORS]
    yield family("execution_errors_total", "counter", "failed executions", errors)
    yield family("execution_status_total", "counter", "executions by outcome", status)
    percentiles = [
        (_sorted(own, percentile=name), 0.0033) for name in ("p0", "p1", "p100", "p25", "p50", "p75", "p99")
    ]
    yield family("execution_latency_seconds", "gauge", "latency of executions", percentiles)
    held = _held_bytes(hardware, faults)
    memory = [
        (_sorted(own, memory_location="host"), 1.1e9),
        (_sorted(own, memory_location="neuron_device"), held * hardware.count * hardware.cores),
    ]
    yield family("neuron_runtime_memory_used_bytes", "gauge", "memory of the runtime", memory)
    if "exporter-blank" in faults:
        return
    active: list[Series] = []
    for labels in tags:
        for index, unit in enumerate(state.units):
            value = state.of_unit[index].active if labels is own else 0.42
            active.append((_sorted(labels, neuroncore=_core(hardware, unit)), value))
    yield family("neuroncore_utilization_ratio", "gauge", "utilization of a core", active)
    for name, share in (*_MEMORY.items(), ("tensors", 1 - sum(_MEMORY.values()))):
        series = [
            (_sorted(labels, memory_location="None", neuroncore=_core(hardware, unit)), float(round(held * share)))
            for labels in tags
            for unit in state.units
        ]
        yield family(f"neuroncore_memory_usage_{name}", "gauge", f"memory of a core for {name}", series)


def _core(hardware: Hardware, unit: SimulatedUnit) -> str:
    """Cores are numbered through the host."""
    return str(unit.device * hardware.cores + int(unit.number))


def _held_bytes(hardware: Hardware, faults: ExporterFaults) -> float:
    """Memory of one core in use."""
    mib = used_mib(hardware.memory_mib / hardware.cores, held=True)
    return mib * 1024 * 1024 * faults.number("exporter-unit", 1.0)


def _host(
    hardware: Hardware, state: MachineState, faults: ExporterFaults, instance: Mapping[str, str]
) -> Iterator[str]:
    total, used = _system_memory(state.seconds)
    yield family("system_memory_total_bytes", "gauge", "memory of the host", [(instance, total)])
    yield family("system_memory_used_bytes", "gauge", "memory of the host in use", [(instance, used)])
    count = min(hardware.count, int(faults.number("gpus", hardware.count)))
    events = [
        (_sorted(instance, event_type=name, neuron_device_index=str(device)), _ecc(name, faults))
        for device in range(count)
        for name in _ECC
    ]
    yield family("hardware_ecc_events_total", "counter", "errors of the hardware", events)
    yield family("instance_info", "gauge", "the instance", [(instance, 1.0)])
    if not faults.has("no-hardware-info"):
        info = _sorted(instance, neuron_device_count=str(count), neuroncore_per_device_count=str(hardware.cores))
        yield family("neuron_hardware_info", "gauge", "the devices", [(info, 1.0)])


def _ecc(name: str, faults: ExporterFaults) -> float:
    return faults.number("ecc", 0.0) if name == "mem_ecc_uncorrected" else 0.0


def _system_memory(seconds: float) -> tuple[float, float]:
    """Memory of the host and its used part, in bytes: it changes all the time."""
    total = 384 * 2.0**30
    return total, total / 50 + 4096 * (seconds % 977)


KIND: Final = ExporterKind(kind="neuron", product="neuron-monitor", units=units, page=page)


def main() -> int:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="neuron-monitor", description="Simulated Neuron exporter.")
    parser.add_argument("-p", "--port", type=int, default=8000, help="port to listen on")
    parser.add_argument("--machine-type", help="default: from the instance metadata")
    parser.add_argument("--engine", help="default: port 8000 of the same address")
    given = parser.parse_args()
    return program.start(KIND, "", given.port, given.machine_type, given.engine)


if __name__ == "__main__":
    sys.exit(main())
