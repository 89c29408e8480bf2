"""The catalogue of GPU machine types of the clouds, and their GPUs. Sources: `data/SOURCE.md`."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Final

from gpufleet.domain.model import Cloud

_DATA: Final = "gpufleet.domain.data"


class UnknownMachineError(LookupError):
    """The catalogue does not contain this machine type or GPU. The message suggests similar names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU model. Dense figures; None if no verifiable figure is published."""

    name: str
    memory_mib: int
    """As clouds report it; less than the nominal size."""
    memory_bandwidth_gb_s: float
    fp16_dense_tflops: float
    fp8_dense_tflops: float | None
    bf16: bool
    fp8: bool
    watts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A machine type of one cloud."""

    cloud: Cloud
    name: str
    gpu: str
    """The GPU's name; `gpu()` returns its figures."""
    gpu_count: int
    """GPU devices that are visible to the guest."""
    gpu_share: Fraction
    """Share of a physical GPU behind each device: 1, or less on fractional machines."""
    gpu_memory_mib: int
    """Per device, as the cloud reports it."""
    vcpus: int
    memory_mib: int
    nvme_disks: int
    """Number of local NVMe disks; the maximum that can be requested if `nvme_optional`."""
    nvme_disk_bytes: int
    """Size of one disk."""
    nvme_optional: bool
    network_mbps: int
    """Baseline on AWS, maximum on Google Cloud."""
    efa_interfaces: int | None
    """EFA interfaces on AWS (for multi-node workloads), one per network card; None if their layout is unknown."""

    @property
    def total_gpu_memory_mib(self) -> int:
        return self.gpu_count * self.gpu_memory_mib

    @property
    def nvme_bytes(self) -> int:
        """Total size of all local NVMe disks."""
        return self.nvme_disks * self.nvme_disk_bytes


def machine(cloud: Cloud, name: str) -> MachineType:
    """Return the machine type of that name. Raises UnknownMachineError with similar names."""
    table = _machines()
    found = table.get((cloud, name))
    if found is not None:
        return found
    elsewhere = [other for other, known in table if known == name]
    if elsewhere:
        raise UnknownMachineError(f"machine type {name!r} is offered by {elsewhere[0]}, not by {cloud}")
    raise UnknownMachineError(_unknown(f"{cloud} machine type", name, [n for c, n in table if c is cloud]))


def machines(cloud: Cloud | None = None) -> tuple[MachineType, ...]:
    """Return all known machine types of one cloud, or of all clouds."""
    return tuple(m for m in _machines().values() if cloud in (None, m.cloud))


def gpu(name: str) -> Gpu:
    """Return the figures of a GPU. Raises UnknownMachineError with similar names."""
    found = _gpus().get(name)
    if found is None:
        raise UnknownMachineError(_unknown("GPU", name, list(_gpus())))
    return found


def _unknown(kind: str, name: str, known: list[str]) -> str:
    near = get_close_matches(name.lower(), known, n=3, cutoff=0.6) or get_close_matches(name.upper(), known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(sorted(known)[:8])}, …"
    return f"no {kind} {name!r} in the catalogue: {hint}"


def _rows(table: str) -> Iterator[dict[str, str]]:
    text = resources.files(_DATA).joinpath(table).read_text(encoding="utf-8")
    return iter(csv.DictReader(text.splitlines()))


@cache
def _machines() -> dict[tuple[Cloud, str], MachineType]:
    found: dict[tuple[Cloud, str], MachineType] = {}
    for row in _rows("machines.csv"):
        cloud = Cloud(row["cloud"])
        found[cloud, row["name"]] = MachineType(
            cloud=cloud,
            name=row["name"],
            gpu=row["gpu"],
            gpu_count=int(row["gpu_count"]),
            gpu_share=Fraction(row["gpu_share"]),
            gpu_memory_mib=int(row["gpu_memory_mib"]),
            vcpus=int(row["vcpus"]),
            memory_mib=int(row["memory_mib"]),
            nvme_disks=int(row["nvme_disks"]),
            nvme_disk_bytes=int(row["nvme_disk_bytes"]),
            nvme_optional=row["nvme_optional"] == "yes",
            network_mbps=int(row["network_mbps"]),
            efa_interfaces=int(row["efa_interfaces"]) if row["efa_interfaces"] else None,
        )
    return found


@cache
def _gpus() -> dict[str, Gpu]:
    return {
        row["name"]: Gpu(
            name=row["name"],
            memory_mib=int(row["memory_mib"]),
            memory_bandwidth_gb_s=float(row["memory_bandwidth_gb_s"]),
            fp16_dense_tflops=float(row["fp16_dense_tflops"]),
            fp8_dense_tflops=float(row["fp8_dense_tflops"]) if row["fp8_dense_tflops"] else None,
            bf16=row["bf16"] == "yes",
            fp8=row["fp8"] == "yes",
            watts=int(row["watts"]),
        )
        for row in _rows("gpus.csv")
    }
