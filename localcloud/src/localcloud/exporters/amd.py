"""The simulated device-metrics-exporter of AMD Instinct GPUs, whole or divided into compute partitions.

`METRICS_EXPORTER_PORT=9400 python -m localcloud.exporters.amd -bind=ADDRESS [--engine URL] [--machine-type T]`.

Written from ROCm/device-metrics-exporter 1.5.2 (commit afd0fe8): docs/configuration/metricslist.md (names, units,
what partitions report), pkg/amdgpu/gpuagent/gpuagent_gpu_metrics.go (labels; lower-case values), cmd/exporter/main.go
and pkg/exporter/config/config.go (options, port), docs/knownissues.md (labels of guests).

Fault `slices`: `spx`, `dpx`, `qpx` or `cpx`. Fault `exporter-variant`:

- `prefix`: CommonConfig.MetricsFieldPrefix `amd_`, as in the exporter's example/config.json;
- `suppressed`: partitions other than 0 have no activity at all, instead of 0;
- `guest`: a guest of a hypervisor: no power, no energy, no memory in use, empty serial number and model.
"""

import argparse
import os
import socket
import sys
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
    watts,
)
from localcloud.exporters.metadata import Hardware

_PARTITIONS: Final = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}
"""Of an MI300X, which has eight accelerator dies."""
_BLANKS: Final = {"gpu_gfx_activity": 65535.0, "gpu_umc_activity": 65535.0, "gpu_package_power": 4294967295.0}
_BLANK: Final = 18446744073709551615.0
"""All bits set, in the width of the field: what releases before the filter of 2026 pass on."""
_NOT_OF_GUESTS: Final = (
    "gpu_package_power",
    "gpu_power_usage",
    "gpu_energy_consumed",
    "gpu_used_vram",
    "gpu_free_vram",
)
_ZERO: Final = ("gpu_package_power", "gpu_power_usage")
"""Partitions other than 0 report 0."""
_SUPPRESSED: Final = ("gpu_energy_consumed", "gpu_junction_temperature", "gpu_clock")
"""Partitions other than 0 do not report them."""
_ACTIVITY: Final = ("gpu_gfx_activity", "gpu_umc_activity")
_MEANINGS: Final = {
    "gpu_package_power": "socket power in W",
    "gpu_power_usage": "power usage in W",
    "gpu_energy_consumed": "accumulated energy in uJ",
    "gpu_junction_temperature": "junction temperature in C",
    "gpu_clock": "clock in MHz",
    "gpu_gfx_activity": "graphics engine usage in %",
    "gpu_umc_activity": "memory engine usage in %",
    "gpu_total_vram": "VRAM in MB",
    "gpu_used_vram": "VRAM used in MB",
    "gpu_free_vram": "VRAM free in MB",
    "gpu_ecc_uncorrect_total": "uncorrectable errors",
    "gpu_health": "1 healthy, 0 unhealthy",
}


def units(hardware: Hardware, faults: ExporterFaults) -> Sequence[SimulatedUnit]:
    """Partitions of each GPU. Raises ValueError for an unknown mode."""
    mode = _mode(faults)
    count = _PARTITIONS.get(mode)
    if count is None:
        raise ValueError(f"slices: {mode!r} is not a mode of AMD's partitions: {', '.join(_PARTITIONS)}")
    gpus = range(min(hardware.count, int(faults.number("gpus", hardware.count))))
    return [
        SimulatedUnit(device=gpu, share=1 / count, profile=mode, number=str(part), serves=part == 0)
        for gpu in gpus
        for part in range(count)
    ]


def _mode(faults: ExporterFaults) -> str:
    return (faults.parts("slices") or ("spx",))[0]


def page(hardware: Hardware, state: MachineState, faults: ExporterFaults) -> str:
    """/metrics now. All numbers are gauges, also the counters."""
    prefix = "amd_" if faults.has("prefix") else ""
    values = [_values(hardware, state, unit, faults) for unit in state.units]
    labels = [_labels(hardware, unit, index, faults) for index, unit in enumerate(state.units)]
    nodes = {"hostname": socket.gethostname()}
    lines = [family(f"{prefix}gpu_nodes_total", "gauge", "GPUs of the host", [(nodes, float(hardware.count))])]
    for name, meaning in _MEANINGS.items():
        series = list(_series(name, labels, values, faults))
        lines.append(family(f"{prefix}{name}", "gauge", meaning, series))
    return "".join(lines)


def _series(
    name: str, labels: Sequence[Mapping[str, str]], values: Sequence[Mapping[str, float]], faults: ExporterFaults
) -> Iterator[Series]:
    for own, value in zip(labels, values, strict=True):
        if name in value:
            more = {"clock_index": "0", "clock_type": "system"} if name == "gpu_clock" else {}
            blank = "exporter-blank" in faults and name not in ("gpu_health", "gpu_total_vram")
            yield dict(sorted({**own, **more}.items())), _BLANKS.get(name, _BLANK) if blank else value[name]


def _values(hardware: Hardware, state: MachineState, unit: SimulatedUnit, faults: ExporterFaults) -> dict[str, float]:
    active = state.active(unit.device)
    power = float(round(watts(hardware, active)))
    memory = int(hardware.memory_mib * unit.share)
    used = used_mib(memory, state.work.up if unit.serves else state.held)
    broken = faults.number("ecc", 0) > 0 or faults.number("xid", 0) > 0
    values: dict[str, float] = {
        "gpu_package_power": power,
        "gpu_power_usage": power,
        "gpu_energy_consumed": state.joules[unit.device] * 1e6 * faults.number("exporter-unit", 1.0),
        "gpu_junction_temperature": round(35 + 40 * active),
        "gpu_clock": 2100 if active else 132,
        "gpu_gfx_activity": round(active * 100),
        "gpu_umc_activity": round(active * 40),
        "gpu_total_vram": memory,
        "gpu_used_vram": used,
        "gpu_free_vram": memory - used,
        "gpu_ecc_uncorrect_total": int(faults.number("ecc", 0)),
        "gpu_health": 0.0 if broken else 1.0,
    }
    left_out = set(_NOT_OF_GUESTS) if faults.has("guest") else set[str]()
    if unit.number != "0":
        left_out |= set(_SUPPRESSED) | (set(_ACTIVITY) if faults.has("suppressed") else set())
        values |= dict.fromkeys((*_ZERO, *_ACTIVITY), 0.0)
    return {name: value for name, value in values.items() if name not in left_out}


def _labels(hardware: Hardware, unit: SimulatedUnit, index: int, faults: ExporterFaults) -> dict[str, str]:
    guest = faults.has("guest")
    return {
        "card_model": "" if guest else f"{hardware.name} (simulated)",
        "container": "",
        "deployment_mode": "guest" if guest else "baremetal",
        "gpu_compute_partition_type": unit.profile,
        "gpu_id": str(index),
        "gpu_memory_partition_type": "nps1",
        "gpu_partition_id": unit.number,
        "hostname": socket.gethostname(),
        "job_id": "",
        "job_partition": "",
        "job_user": "",
        "namespace": "",
        "pod": "",
        # partitions have the serial number of their GPU
        "serial_number": "" if guest else f"{hardware.seed}-{unit.device:04d}",
    }


KIND: Final = ExporterKind(kind="amd", product="device-metrics-exporter", units=units, page=page)


def main() -> int:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="server", description="Simulated GPU exporter.", allow_abbrev=False)
    parser.add_argument("-bind", "--bind", default="", help="address to listen on")
    parser.add_argument("--machine-type", help="default: from the instance metadata")
    parser.add_argument("--engine", help="default: port 8000 of the same address")
    given, _ = parser.parse_known_args()
    port = int(os.environ.get("METRICS_EXPORTER_PORT") or 5000)
    return program.start(KIND, given.bind, port, given.machine_type, given.engine)


if __name__ == "__main__":
    sys.exit(main())
