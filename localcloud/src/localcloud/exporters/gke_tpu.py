"""The simulated exporter of GKE's TPU device plugin: port 2112 of a node with TPUs.

`python -m localcloud.exporters.gke_tpu [--port 2112] [--engine URL] [--machine-type T]`.

Written from a page that Meta's dynolog recorded from tpu-device-plugin 1.35.7-gke.0 on a tpu7x-standard-4t node, and
from the page of v6e in tests of Ray. Series with a container exist only for chips that a program holds; those of the
node exist for all chips and are 0 for the others.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from localcloud.exporters import program
from localcloud.exporters.frame import ExporterFaults, ExporterKind, MachineState, SimulatedUnit, family, used_mib
from localcloud.exporters.metadata import Hardware

_MEANINGS: Final = {
    "duty_cycle": "share of time in which the chip worked, in %",
    "tensorcore_utilization": "use of the tensor cores in %",
    "memory_bandwidth_utilization": "use of the memory's bandwidth in %",
    "memory_total": "memory of the chip in bytes",
    "memory_used": "allocated memory of the chip in bytes",
}
_OF_NODES_ONLY: Final = ("memory_bandwidth_utilization", "tensorcore_utilization")


def units(hardware: Hardware, faults: ExporterFaults) -> Sequence[SimulatedUnit]:
    """The chips. Raises ValueError: a chip cannot be divided."""
    if faults.parts("slices"):
        raise ValueError("slices: a TPU chip is not divided")
    return [
        SimulatedUnit(device=chip) for chip in range(min(hardware.count, int(faults.number("gpus", hardware.count))))
    ]


def page(hardware: Hardware, state: MachineState, faults: ExporterFaults) -> str:
    """/metrics now."""
    held = state.held and "exporter-blank" not in faults
    lines: list[str] = []
    for name, meaning in _MEANINGS.items():
        values = [_value(name, hardware, state, unit, faults, held=held) for unit in state.units]
        if held and name not in _OF_NODES_ONLY:
            series = [(_labels(hardware, chip, held=True), value) for chip, value in enumerate(values)]
            lines.append(family(name, "gauge", meaning, series))
        node = [(_labels(hardware, chip, held=False), value) for chip, value in enumerate(values)]
        lines.append(family(f"{name}_node", "gauge", f"{meaning}, of the node", node))
    return "".join(lines)


def _value(  # noqa: PLR0913 - the parts of a number
    name: str, hardware: Hardware, state: MachineState, unit: SimulatedUnit, faults: ExporterFaults, *, held: bool
) -> float:
    active = state.active(unit.device) if held else 0.0
    total = hardware.memory_mib * 1024.0 * 1024.0
    factor = faults.number("exporter-unit", 1.0)
    return {
        "duty_cycle": round(active * 100),
        "tensorcore_utilization": round(active * 50, 1),
        "memory_bandwidth_utilization": round(active * 70, 1),
        "memory_total": total * factor,
        "memory_used": used_mib(hardware.memory_mib, held) * 1024.0 * 1024.0 * factor if held else 0.0,
    }[name]


def _labels(hardware: Hardware, chip: int, *, held: bool) -> dict[str, str]:
    container = {"container": "engine", "namespace": "serving", "pod": "engine-0"} if held else {}
    labels = {
        "accelerator_id": f"{hardware.seed}-{chip}",
        "make": "cloud-tpu",
        "model": hardware.name,
        "tpu_topology": "2x2",
        **container,
    }
    return dict(sorted(labels.items()))


KIND: Final = ExporterKind(kind="tpu", product="tpu-device-plugin", units=units, page=page)


def main() -> int:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="tpu-device-plugin", description="Simulated TPU exporter of GKE.")
    parser.add_argument("--port", type=int, default=2112, help="port to listen on")
    parser.add_argument("--machine-type", help="default: from the instance metadata")
    parser.add_argument("--engine", help="default: port 8000 of the same address")
    given = parser.parse_args()
    return program.start(KIND, "", given.port, given.machine_type, given.engine)


if __name__ == "__main__":
    sys.exit(main())
