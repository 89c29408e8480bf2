"""The contract of NVIDIA GPUs: dcgm-exporter, and an exporter over NVML where DCGM is missing.

A MIG instance is a unit of its own: `UUID` is its GPU's, `GPU_I_ID` its number. Its activity is relative to the
instance, utilization does not exist for it, and power and energy are the whole GPU's, repeated for each instance.
Time-slicing and MPS: the exporter repeats each number for each pod, or attributes the GPU to one of them. GPUs
without profiling metrics report utilization only, which misses short kernels between two samples: it can veto.
"""

import math
from datetime import timedelta
from typing import Final

from serving.accelerators import metrics
from serving.accelerators.contract import (
    AcceleratorContract,
    AcceleratorEvidenceRule,
    AcceleratorSeries,
    Exporter,
    Scope,
    SeriesUnit,
    UnitIdentity,
    UnknownCode,
)
from serving.accelerators.launch import AcceleratorLaunch, DeviceAccess, ExporterContainer
from serving.accelerators.nvidia_driver import DRIVER
from serving.exposition import Sample
from serving.metrics import Metric, is_blank
from serving.releases import versions

_DCGM: Final = "dcgm-exporter"
_NVML: Final = "nvidia_gpu_exporter"


def _dcgm(name: str, measures: Metric, unit: SeriesUnit, scope: Scope = Scope.UNIT) -> AcceleratorSeries:
    return AcceleratorSeries(name=name, measures=measures, unit=unit, exporter=_DCGM, scope=scope)


def _nvml(name: str, measures: Metric, unit: SeriesUnit, scope: Scope = Scope.UNIT) -> AcceleratorSeries:
    return AcceleratorSeries(name=f"nvidia_smi_{name}", measures=measures, unit=unit, exporter=_NVML, scope=scope)


def _profiled(name: str) -> AcceleratorSeries:
    return AcceleratorSeries(
        name=name, measures=metrics.ACTIVE, unit=SeriesUnit.RATIO, exporter=_DCGM, absent=UnknownCode.NO_PROFILING
    )


def _utilization(name: str, unit: SeriesUnit, exporter: str) -> AcceleratorSeries:
    """The share of samples with any kernel. Short kernels between two samples are not seen."""
    return AcceleratorSeries(name=name, measures=metrics.ACTIVE, unit=unit, exporter=exporter, zero_while_busy=True)


_HARMLESS_XIDS: Final = frozenset({0, 13, 31, 43, 45})
"""XID errors that a program causes itself (13, 31, 43), or that only report a terminated program (45)."""
_DEFECTS: Final = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "double-bit ECC errors",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remapping of memory rows has failed",
}


def _defect(sample: Sample) -> str:
    if is_blank(sample.value) or not math.isfinite(sample.value):
        return ""
    if sample.name == "DCGM_FI_DEV_XID_ERRORS" and sample.value not in _HARMLESS_XIDS:
        return f"XID error {sample.value:.0f}"
    found = _DEFECTS.get(sample.name)
    return f"{found} ({sample.value:.0f})" if found and sample.value > 0 else ""


def _arguments(host: str, port: int) -> tuple[str, ...]:
    return "-a", f"{host}:{port}", "-f", "/etc/dcgm-exporter/dcp-metrics-included.csv", "-c", "1000"


_LAUNCH: Final = AcceleratorLaunch(
    access=DeviceAccess(options=("--gpus=all",)),
    exporter=ExporterContainer(
        title="GPU exporter",
        # The driver gives profiling fields (DCGM_FI_PROF_...) only to CAP_SYS_ADMIN, and DCGM requires root for them.
        options=(
            "--gpus=all",
            "--cap-drop=ALL",
            "--cap-add=SYS_ADMIN",
            "--security-opt=no-new-privileges",
            "--read-only",
            "--tmpfs=/tmp:nosuid,nodev,noexec",
            "--memory=2g",
            # the image's own script changes its file system (ldconfig, setcap) before it runs this program
            "--entrypoint=dcgm-exporter",
        ),
        arguments=_arguments,
    ),
    driver=DRIVER,
    defect=_defect,
)

CONTRACT: Final = AcceleratorContract(
    kind="nvidia",
    title="NVIDIA GPU",
    exporters=(
        Exporter(name=_DCGM, port=9400, releases=versions("3.1.0", "5.0"), note="needs the driver and DCGM"),
        Exporter(name=_NVML, port=9835, note="reads NVML through nvidia-smi; no profiling metrics, no MIG instances"),
    ),
    series=(
        _profiled("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
        _profiled("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
        _utilization("DCGM_FI_DEV_GPU_UTIL", SeriesUnit.PERCENT, _DCGM),
        # DCGM 4.6 uses this name for whole percentages: a value above 1 is implausible, so nothing follows from it
        _utilization("DCGM_FI_DEV_GPU_UTIL_RATIO", SeriesUnit.RATIO, _DCGM),
        _utilization("nvidia_smi_utilization_gpu_ratio", SeriesUnit.RATIO, _NVML),
        _dcgm("DCGM_FI_DEV_FB_USED", metrics.MEMORY_USED, SeriesUnit.MIB),
        _nvml("memory_used_bytes", metrics.MEMORY_USED, SeriesUnit.BYTES),
        _dcgm("DCGM_FI_DEV_FB_FREE", metrics.MEMORY_FREE, SeriesUnit.MIB),
        _nvml("memory_free_bytes", metrics.MEMORY_FREE, SeriesUnit.BYTES),
        _dcgm("DCGM_FI_DEV_FB_RESERVED", metrics.MEMORY_RESERVED, SeriesUnit.MIB),
        _dcgm("DCGM_FI_DEV_FB_TOTAL", metrics.MEMORY_TOTAL, SeriesUnit.MIB),
        _nvml("memory_total_bytes", metrics.MEMORY_TOTAL, SeriesUnit.BYTES),
        _dcgm("DCGM_FI_DEV_POWER_USAGE", metrics.POWER, SeriesUnit.WATTS, Scope.DEVICE),
        _dcgm("DCGM_FI_DEV_BOARD_POWER_WATTS", metrics.POWER, SeriesUnit.WATTS, Scope.DEVICE),
        _nvml("power_draw_watts", metrics.POWER, SeriesUnit.WATTS, Scope.DEVICE),
        _dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", metrics.ENERGY, SeriesUnit.MILLIJOULES, Scope.DEVICE),
        _dcgm("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", metrics.ENERGY, SeriesUnit.JOULES, Scope.DEVICE),
        _dcgm("DCGM_EXP_GPU_HEALTH_STATUS", metrics.HEALTHY, SeriesUnit.OK_IS_0, Scope.DEVICE),
        _dcgm("DCGM_FI_DEV_ROW_REMAP_FAILURE", metrics.HEALTHY, SeriesUnit.OK_IS_0, Scope.DEVICE),
    ),
    identity=UnitIdentity(
        device=("UUID", "uuid", "gpu_uuid", "gpu"),
        slice=("GPU_I_ID",),
        profile="GPU_I_PROFILE",
        tenants=("namespace", "pod"),
        sharing=("vgpu",),
        copies=("container", "pod_uid", "hpc_job", "Hostname", "hostname", "health_watch"),
    ),
    evidence=AcceleratorEvidenceRule(
        work=(metrics.ACTIVE,),
        idle=(metrics.ACTIVE,),
        pulse=metrics.ENERGY,
        measurements=2,
        window=timedelta(seconds=60),
    ),
    launch=_LAUNCH,
    is_blank=is_blank,
    sources=(
        "NVIDIA/dcgm-exporter commit d5e5f51: internal/pkg/rendermetrics/render_metrics.go (labels), "
        "internal/pkg/transformation/kubernetes.go (copies per pod), etc/default-counters.csv (units)",
        "NVIDIA/dcgm-exporter issues 50, 216, 430: no utilization of MIG instances; issue 655: label hostname",
        "NVIDIA/DCGM 4.6 and 4.7 field identifiers: renamed fields, energy in joules (1611), utilization as a ratio "
        "(1613)",
        "recorded pages: four T4 with driver 535 (dcgm-exporter 4.x), and a GPU with blank values",
        "utkuozdemir/nvidia_gpu_exporter: names and units of public recorded pages",
    ),
)
