"""The catalogue of the clouds' machine types with accelerators, and their devices. Sources: `data/SOURCE.md`."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from fractions import Fraction
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Final

from gpufleet.domain.model import Cloud, Instance

_DATA: Final = "gpufleet.domain.data"


class AcceleratorKind(StrEnum):
    """The kind of accelerator: which driver, exporter and metrics a machine needs. The values name the contracts of
    `serving.accelerators`."""

    NVIDIA = "nvidia"
    AMD = "amd"
    NEURON = "neuron"
    """AWS Inferentia and Trainium."""
    TPU = "tpu"

    @property
    def label(self) -> str:
        """The kind's name for people."""
        return {"nvidia": "NVIDIA", "amd": "AMD", "neuron": "Neuron", "tpu": "TPU"}[self]


class Interconnect(StrEnum):
    """How the devices of one machine exchange data."""

    NONE = "none"
    """The machine has one device."""
    PCIE = "pcie"
    NVLINK = "nvlink"
    NEURONLINK = "neuronlink"
    ICI = "ici"
    """Google's inter-chip interconnect. It also joins the machines of a TPU slice."""


class UnknownMachineError(LookupError):
    """The catalogue does not contain this machine type or GPU. The message suggests similar names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A device model: a GPU, a Neuron device or a TPU chip. Dense figures; None if no verifiable one is published."""

    name: str
    accelerator: AcceleratorKind
    memory_mib: int
    """As clouds report it, less than the nominal size; nominal for AMD, Neuron and TPU."""
    memory_bandwidth_gb_s: float
    fp16_dense_tflops: float
    """FP16, or BF16 where a device has no FP16 (TPU)."""
    fp8_dense_tflops: float | None
    bf16: bool
    fp8: bool
    watts: int | None
    """Rated power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A machine type of one cloud. `gpu` in a field's name means an accelerator device of any kind: a GPU, a Neuron
    device or a TPU chip."""

    cloud: Cloud
    name: str
    accelerator: AcceleratorKind
    architecture: str
    """Of the CPUs: `x86_64` or `arm64`. Machine images differ."""
    gpu: str
    """The device's name; `gpu()` returns its figures."""
    gpu_count: int
    """Devices that are visible to the guest."""
    gpu_share: Fraction
    """Share of a physical GPU behind each device: 1, or less on fractional machines."""
    gpu_memory_mib: int
    """Per device, as the cloud reports it."""
    units_per_device: int
    """Schedulable units of a device that is not partitioned: the physical cores of a Neuron device, otherwise 1."""
    interconnect: Interconnect
    vcpus: int
    memory_mib: int
    nvme_disks: int
    """Number of local NVMe disks; the maximum that can be requested if `nvme_optional`."""
    nvme_disk_bytes: int
    """Size of one disk."""
    nvme_optional: bool
    network_mbps: int | None
    """Baseline on AWS, maximum on Google Cloud. None: not published."""
    efa_interfaces: int | None
    """EFA interfaces on AWS (for multi-node workloads), one per network card; None if their layout is unknown."""
    tried_on_hardware: bool
    """Whether somebody ran this project on a machine of this type. False: its figures are read, not measured."""

    @property
    def total_gpu_memory_mib(self) -> int:
        return self.gpu_count * self.gpu_memory_mib

    @property
    def nvme_bytes(self) -> int:
        """Total size of all local NVMe disks."""
        return self.nvme_disks * self.nvme_disk_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedFamily:
    """Machine types with accelerators that the catalogue leaves out."""

    cloud: Cloud
    prefix: str
    reason: str
    remedy: str = "choose a machine type of the catalogue"


_NO_CONTRACT: Final = "which this project has no metrics contract for"
_OLD_GPU: Final = "which current engines and drivers do not support"
_OLD_TPU: Final = "which is older than the TPU generations that this project lists (v5e and newer)"
EXCLUDED: Final = (
    ExcludedFamily(cloud=Cloud.AWS, prefix="dl1.", reason=f"has Intel Gaudi accelerators, {_NO_CONTRACT}"),
    ExcludedFamily(cloud=Cloud.AWS, prefix="dl2q.", reason=f"has Qualcomm AI 100 accelerators, {_NO_CONTRACT}"),
    ExcludedFamily(cloud=Cloud.AWS, prefix="vt1.", reason="has video transcoders, which cannot serve models"),
    ExcludedFamily(cloud=Cloud.AWS, prefix="f1.", reason="has FPGAs, which cannot serve models"),
    ExcludedFamily(cloud=Cloud.AWS, prefix="f2.", reason="has FPGAs, which cannot serve models"),
    ExcludedFamily(cloud=Cloud.AWS, prefix="g2.", reason=f"has K520 GPUs, {_OLD_GPU}"),
    ExcludedFamily(cloud=Cloud.AWS, prefix="g3.", reason=f"has M60 GPUs, {_OLD_GPU}"),
    ExcludedFamily(cloud=Cloud.AWS, prefix="g3s.", reason=f"has an M60 GPU, {_OLD_GPU}"),
    ExcludedFamily(cloud=Cloud.AWS, prefix="p2.", reason=f"has K80 GPUs, {_OLD_GPU}"),
    ExcludedFamily(cloud=Cloud.AWS, prefix="trn3", reason="has Trainium3 devices, without published machine figures"),
    ExcludedFamily(cloud=Cloud.GCP, prefix="ct3", reason=f"has TPU v2 or v3, {_OLD_TPU}"),
    ExcludedFamily(cloud=Cloud.GCP, prefix="ct4p-", reason=f"has TPU v4, {_OLD_TPU}"),
    ExcludedFamily(cloud=Cloud.GCP, prefix="ct5l-", reason="has TPU v5e in a form without slices"),
    ExcludedFamily(
        cloud=Cloud.GCP,
        prefix="n1-",
        reason="has no accelerators of its own, and pools do not attach GPUs",
        remedy="choose a machine type that includes its GPUs, for example g2-standard-8",
    ),
)
"""Families that a cloud rents and that the catalogue leaves out, with the reason."""


def machine(cloud: Cloud, name: str) -> MachineType:
    """Return the machine type of that name. Raises UnknownMachineError with similar names."""
    table = _machines()
    found = table.get((cloud, name))
    if found is not None:
        return found
    elsewhere = [other for other, known in table if known == name]
    if elsewhere:
        raise UnknownMachineError(f"machine type {name!r} is offered by {elsewhere[0]}, not by {cloud}")
    for excluded in EXCLUDED:
        if excluded.cloud is cloud and name.startswith(excluded.prefix):
            raise UnknownMachineError(f"machine type {name!r} {excluded.reason}: {excluded.remedy}")
    raise UnknownMachineError(_unknown(f"{cloud} machine type", name, [n for c, n in table if c is cloud]))


_NO_V100: Final = "has V100 GPUs, which current engine images and open drivers do not support"
_UNSUPPORTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "V100-16GB": _NO_V100,
        "V100-32GB": _NO_V100,
        "Radeon-Pro-V520": "has Radeon Pro V520 GPUs, which ROCm and current engines do not support",
        "Inferentia": "has first-generation Inferentia devices, which current Neuron images do not support",
    }
)
"""Devices that current drivers or engines do not support, with the reason for people."""


def launch_obstacle(wanted: MachineType) -> str | None:
    """Return why pools cannot launch this machine type; None if they can. What runs already is found and priced."""
    if wanted.gpu in _UNSUPPORTED:
        return _UNSUPPORTED[wanted.gpu]
    if wanted.architecture != "x86_64":
        return f"has {wanted.architecture} CPUs, which pools cannot launch yet"
    if wanted.gpu_share != 1:
        return "has a fraction of a GPU and needs the vGPU driver, which pools cannot launch yet"
    return None


def machines(cloud: Cloud | None = None) -> tuple[MachineType, ...]:
    """Return all known machine types of one cloud, or of all clouds."""
    return tuple(m for m in _machines().values() if cloud in (None, m.cloud))


def known(cloud: Cloud, names: Iterable[str]) -> tuple[MachineType, ...]:
    """Return the machine types of these names that the catalogue contains, in their order."""
    table = _machines()
    return tuple(table[cloud, name] for name in names if (cloud, name) in table)


def gpu(name: str) -> Gpu:
    """Return the figures of a GPU. Raises UnknownMachineError with similar names."""
    found = _gpus().get(name)
    if found is None:
        raise UnknownMachineError(_unknown("GPU", name, list(_gpus())))
    return found


def devices() -> tuple[Gpu, ...]:
    """Return all device models with figures."""
    return tuple(_gpus().values())


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
            accelerator=AcceleratorKind(row["accelerator"]),
            architecture=row["architecture"],
            gpu=row["gpu"],
            gpu_count=int(row["gpu_count"]),
            gpu_share=Fraction(row["gpu_share"]),
            gpu_memory_mib=int(row["gpu_memory_mib"]),
            units_per_device=int(row["units_per_device"]),
            interconnect=Interconnect(row["interconnect"]),
            vcpus=int(row["vcpus"]),
            memory_mib=int(row["memory_mib"]),
            nvme_disks=int(row["nvme_disks"]),
            nvme_disk_bytes=int(row["nvme_disk_bytes"]),
            nvme_optional=row["nvme_optional"] == "yes",
            network_mbps=int(row["network_mbps"]) if row["network_mbps"] else None,
            efa_interfaces=int(row["efa_interfaces"]) if row["efa_interfaces"] else None,
            tried_on_hardware=row["tried_on_hardware"] == "yes",
        )
    return found


WORKING_POWER_SHARE: Final = 0.6
"""Share of a GPU's rated power that an idle GPU never draws (an idle L4 with a loaded model draws about 0.4)."""
LARGE_WATTS: Final = 250.0
WORKING_POWER_SHARE_OF_LARGE: Final = 0.4
"""The same for GPUs rated at `LARGE_WATTS` or more: idle with a loaded model, they draw a fifth to a quarter."""


def working_watts(rated: float) -> float:
    """Return the power in W that an idle GPU with this rated power never draws."""
    return rated * (WORKING_POWER_SHARE_OF_LARGE if rated >= LARGE_WATTS else WORKING_POWER_SHARE)


def rated_watts(cloud: Cloud, machine_type: str) -> float | None:
    """Return the rated power in W of one device of a machine type; None: the type, its device or its power is
    unknown.
    """
    try:
        rated = gpu(machine(cloud, machine_type).gpu).watts
    except UnknownMachineError:
        return None
    return None if rated is None else float(rated)


def working_watts_of(instances: Iterable[Instance]) -> dict[str, float]:
    """Return the power in W that an idle device never draws, by instance id; absent: unknown."""
    rated = {one.id: rated_watts(one.cloud, one.machine_type) for one in instances}
    return {name: working_watts(watts) for name, watts in rated.items() if watts is not None}


@cache
def _gpus() -> dict[str, Gpu]:
    return {
        row["name"]: Gpu(
            name=row["name"],
            accelerator=AcceleratorKind(row["accelerator"]),
            memory_mib=int(row["memory_mib"]),
            memory_bandwidth_gb_s=float(row["memory_bandwidth_gb_s"]),
            fp16_dense_tflops=float(row["fp16_dense_tflops"]),
            fp8_dense_tflops=float(row["fp8_dense_tflops"]) if row["fp8_dense_tflops"] else None,
            bf16=row["bf16"] == "yes",
            fp8=row["fp8"] == "yes",
            watts=int(row["watts"]) if row["watts"] else None,
        )
        for row in _rows("gpus.csv")
    }
