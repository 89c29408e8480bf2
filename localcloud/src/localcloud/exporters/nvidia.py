"""The simulated dcgm-exporter: NVIDIA GPUs, MIG instances, and GPUs that several pods share.

`python -m localcloud.exporters.nvidia -a ADDRESS:9400 [--engine URL] [--machine-type T]`.

Written from NVIDIA/dcgm-exporter at commit d5e5f51: internal/pkg/rendermetrics/render_metrics.go (labels and their
order), internal/pkg/transformation/kubernetes.go (copies for each pod, values of processes), etc/*.csv (names and
units).

Fault `slices`: MIG profiles of each GPU (`3g.40gb,2g.20gb,1g.10gb`), or `shared:N`: N pods share each GPU
(time-slicing or MPS with --kubernetes-virtual-gpus). Fault `exporter-variant`:

- `hostname`: the label's name since May 2026, instead of `Hostname`;
- `renamed`: a list of counters with the names of DCGM 4.7;
- `no-profiling`: a GPU, or missing rights, without profiling fields;
- `pods`: the labels of Kubernetes, with a pod for each unit.
"""

import argparse
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

_BLANK: Final = 9223372036854775794.0
"""DCGM_INT64_NOT_SUPPORTED."""
_RESERVED_MIB: Final = 512
_SLICES: Final = 7
"""Compute slices of a GPU that can be divided."""
_PROFILE: Final = re.compile(r"([1-7])g\.(\d+)gb")
_FIRST_ID: Final = {7: 0, 4: 1, 3: 1, 2: 3, 1: 7}
"""Lowest id of a GPU instance with this number of slices, as nvidia-smi assigns them."""
_RENAMED: Final = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 1.0),
    "DCGM_FI_DEV_GPU_UTIL": ("DCGM_FI_DEV_GPU_UTIL_RATIO", 0.01),
    "DCGM_FI_DEV_POWER_USAGE": ("DCGM_FI_DEV_BOARD_POWER_WATTS", 1.0),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 0.001),
}
"""Names of DCGM 4.7 with another unit or name, and the factor to their unit."""
_OF_PROCESSES: Final = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED")
"""Fields that are also reported for the processes of each pod that shares a GPU."""
_NOT_OF_INSTANCES: Final = ("DCGM_FI_DEV_GPU_UTIL",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    kind: str
    meaning: str


_FIELDS: Final = tuple(
    _Field(name=f"DCGM_FI_{name}", kind=kind, meaning=meaning)
    for name, kind, meaning in (
        ("DEV_SM_CLOCK", "gauge", "SM clock in MHz"),
        ("DEV_MEM_CLOCK", "gauge", "memory clock in MHz"),
        ("DEV_MEMORY_TEMP", "gauge", "memory temperature in C"),
        ("DEV_GPU_TEMP", "gauge", "GPU temperature in C"),
        ("DEV_POWER_USAGE", "gauge", "power draw in W"),
        ("DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "energy since boot in mJ"),
        ("DEV_GPU_UTIL", "gauge", "GPU utilization in %"),
        ("DEV_XID_ERRORS", "gauge", "last XID error"),
        ("DEV_FB_FREE", "gauge", "framebuffer free in MiB"),
        ("DEV_FB_USED", "gauge", "framebuffer used in MiB"),
        ("DEV_FB_RESERVED", "gauge", "framebuffer reserved in MiB"),
        ("DEV_ECC_SBE_VOL_TOTAL", "counter", "volatile single-bit errors"),
        ("DEV_ECC_DBE_VOL_TOTAL", "counter", "volatile double-bit errors"),
        ("DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "rows remapped for uncorrectable errors"),
        ("DEV_ROW_REMAP_FAILURE", "gauge", "remapping of rows has failed"),
        ("PROF_GR_ENGINE_ACTIVE", "gauge", "ratio of time with an active graphics engine"),
        ("PROF_SM_ACTIVE", "gauge", "ratio of cycles with a warp on an SM"),
        ("PROF_PIPE_TENSOR_ACTIVE", "gauge", "ratio of cycles with an active tensor pipe"),
        ("PROF_DRAM_ACTIVE", "gauge", "ratio of cycles with an active memory interface"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entity:
    """A GPU or an instance on the page, with its values by field."""

    labels: Mapping[str, str]
    values: Mapping[str, float]


def units(hardware: Hardware, faults: ExporterFaults) -> Sequence[SimulatedUnit]:
    """GPUs, their MIG instances, or the pods that share them. Raises ValueError for a division that does not fit."""
    gpus = range(min(hardware.count, int(faults.number("gpus", hardware.count))))
    parts = faults.parts("slices")
    if not parts:
        return [SimulatedUnit(device=gpu) for gpu in gpus]
    if parts[0].startswith("shared:"):
        tenants = int(parts[0].partition(":")[2])
        return [
            SimulatedUnit(device=gpu, number=str(tenant), serves=tenant == 0)
            for gpu in gpus
            for tenant in range(tenants)
        ]
    sizes = [_slices(profile) for profile in parts]
    if sum(sizes) > _SLICES or sum(_mib(profile) for profile in parts) > hardware.memory_mib * 1.1:
        raise ValueError(f"slices: a {hardware.name} has no place for {' and '.join(parts)}")
    numbers = [str(_FIRST_ID[size] + sizes[:index].count(size)) for index, size in enumerate(sizes)]
    return [
        SimulatedUnit(device=gpu, share=size / _SLICES, profile=profile, number=number, serves=index == 0)
        for gpu in gpus
        for index, (profile, size, number) in enumerate(zip(parts, sizes, numbers, strict=True))
    ]


def _slices(profile: str) -> int:
    found = _PROFILE.fullmatch(profile)
    if found is None or int(found[1]) not in _FIRST_ID:
        raise ValueError(f"slices: {profile!r} is not a MIG profile such as 3g.40gb")
    return int(found[1])


def _mib(profile: str) -> int:
    return int(profile.partition(".")[2].removesuffix("gb")) * 1024


def page(hardware: Hardware, state: MachineState, faults: ExporterFaults) -> str:
    """/metrics now."""
    shown = list(_entities(hardware, state, faults))
    lines: list[str] = []
    for field in _FIELDS:
        if "_PROF_" in field.name and faults.has("no-profiling"):
            continue
        name, factor = _RENAMED.get(field.name, (field.name, 1.0)) if faults.has("renamed") else (field.name, 1.0)
        series = [
            (labels, _BLANK if "exporter-blank" in faults else value * factor)
            for entity in shown
            if field.name in entity.values
            for labels, value in _copies(entity, field.name, state, faults)
        ]
        lines.append(family(name, field.kind, field.meaning, series))
    return "".join(lines)


def _entities(hardware: Hardware, state: MachineState, faults: ExporterFaults) -> Iterator[_Entity]:
    for index, unit in enumerate(state.units):
        if unit.number and not unit.profile and unit.number != "0":
            continue  # another pod of the same GPU
        device = state.active(unit.device)
        active = state.of_unit[index].active if unit.profile else device
        whole = _device_values(hardware, state, unit.device, faults)
        memory = _mib(unit.profile) if unit.profile else hardware.memory_mib
        free = memory - _RESERVED_MIB
        held = state.work.up if unit.serves else state.held
        values = {
            **whole,
            "DCGM_FI_DEV_FB_USED": used_mib(free, held),
            "DCGM_FI_DEV_FB_FREE": free - used_mib(free, held),
            "DCGM_FI_DEV_FB_RESERVED": _RESERVED_MIB,
            "DCGM_FI_DEV_GPU_UTIL": min(100, round(active * 110)),
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": round(active, 6),
            "DCGM_FI_PROF_SM_ACTIVE": round(active * 0.8, 6),
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": round(active * 0.3, 6),
            "DCGM_FI_PROF_DRAM_ACTIVE": round(active * 0.6, 6),
        }
        if unit.profile:
            values = {name: value for name, value in values.items() if name not in _NOT_OF_INSTANCES}
        yield _Entity(labels=_labels(hardware, unit, index, faults), values=values)


def _device_values(hardware: Hardware, state: MachineState, device: int, faults: ExporterFaults) -> dict[str, float]:
    """Values of the whole GPU, which every instance of it repeats."""
    active = state.active(device)
    return {
        "DCGM_FI_DEV_SM_CLOCK": 1980 if active else 345,
        "DCGM_FI_DEV_MEM_CLOCK": 2619 if active else 405,
        "DCGM_FI_DEV_MEMORY_TEMP": round(38 + 30 * active),
        "DCGM_FI_DEV_GPU_TEMP": round(33 + 32 * active),
        "DCGM_FI_DEV_POWER_USAGE": round(watts(hardware, active), 3),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": int(
            state.joules[device] * 1000 * faults.number("exporter-unit", 1.0)
        ),
        "DCGM_FI_DEV_XID_ERRORS": int(faults.number("xid", 0)),
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 0,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": int(faults.number("ecc", 0)),
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
    }


def _copies(entity: _Entity, name: str, state: MachineState, faults: ExporterFaults) -> Iterator[Series]:
    """One series; on a shared GPU one for each pod, with the same value or with that of the pod's processes."""
    value = entity.values[name]
    gpu = int(entity.labels["gpu"])
    tenants = [
        (index, unit)
        for index, unit in enumerate(state.units)
        if unit.device == gpu and unit.number and not unit.profile
    ]
    if not tenants or name in _OF_PROCESSES:
        yield entity.labels, value
    for index, unit in tenants:
        labels = {**entity.labels, **_pod(index), "vgpu": unit.number}
        if name in _OF_PROCESSES:
            active = state.of_unit[index].active
            own = round(active * 100) if name.endswith("UTIL") else round(value / len(tenants)) if active else 0
            labels = {**entity.labels, **_pod(index, uid=True), "vgpu": unit.number}
            yield labels, own
        else:
            yield labels, value


def _labels(hardware: Hardware, unit: SimulatedUnit, index: int, faults: ExporterFaults) -> dict[str, str]:
    gpu = unit.device
    return {
        "gpu": str(gpu),
        "UUID": f"GPU-{hardware.seed}-{gpu:04d}",
        "pci_bus_id": f"00000000:{gpu + 0x16:02X}:00.0",
        "device": f"nvidia{gpu}",
        "modelName": f"NVIDIA {hardware.name} (simulated)",
        **({"GPU_I_PROFILE": unit.profile, "GPU_I_ID": unit.number} if unit.profile else {}),
        "hostname" if faults.has("hostname") else "Hostname": socket.gethostname(),
        "DCGM_FI_DRIVER_VERSION": "580.95.05",
        **(_pod(index) if faults.has("pods") else {}),
    }


def _pod(index: int, *, uid: bool = False) -> dict[str, str]:
    names = {"container": "engine", "namespace": "serving", "pod": f"tenant-{index}"}
    return {**names, "pod_uid": f"00000000-0000-0000-0000-{index:012d}"} if uid else names


KIND: Final = ExporterKind(kind="nvidia", product="dcgm-exporter", units=units, page=page)


def main() -> int:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="dcgm-exporter", description="Simulated GPU exporter.")
    parser.add_argument("-a", "--address", default=":9400", help="HOST:PORT to listen on")
    parser.add_argument("-f", "--collectors", help="accepted as by the real exporter, and ignored")
    parser.add_argument("-c", "--collect-interval", help="accepted and ignored")
    parser.add_argument("--machine-type", help="default: from the instance metadata")
    parser.add_argument("--engine", help="default: port 8000 of the same address")
    given = parser.parse_args()
    host, _, port = given.address.rpartition(":")
    return program.start(KIND, host, int(port), given.machine_type, given.engine)


if __name__ == "__main__":
    sys.exit(main())
