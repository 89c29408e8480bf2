"""The contract of AMD Instinct GPUs: AMD's device-metrics-exporter.

A GPU can be divided into compute partitions (DPX, QPX, CPX). Activity then applies to the GPU that is not divided:
partitions report 0, or nothing, whatever they do. The label with the number of the partition is not reliable in
older releases, so no partition's 0 is a measurement. Power and energy are the whole GPU's, reported with partition 0.
Guests of a hypervisor have no power, no memory in use and no serial number. All series are gauges, energy included.
"""

from datetime import timedelta
from typing import Final

from serving.accelerators import metrics
from serving.accelerators.contract import (
    AcceleratorContract,
    AcceleratorEvidenceRule,
    AcceleratorSeries,
    BlindSpot,
    Exporter,
    Scope,
    SeriesUnit,
    UnitIdentity,
    UnknownCode,
)
from serving.accelerators.launch import AcceleratorLaunch, DeviceAccess, ExporterContainer
from serving.exposition import Sample
from serving.metrics import Metric
from serving.releases import versions

_NAME: Final = "device-metrics-exporter"
_PREFIX: Final = "amd_"
"""The prefix of the exporter's example configuration."""
_WHOLE: Final = "|[nN][aA]|[nN][oO][nN][eE]"
"""Values of the label of the partition type that say nothing about partitions."""
_BLANKS: Final = frozenset((float(2**16 - 1), float(2**32 - 1), float(2**64 - 1)))
"""All bits set, in the width of the field: no measurement. 8 bits (255) are not among them: 255 W is a real power."""


def _series(name: str, measures: Metric, unit: SeriesUnit, scope: Scope = Scope.UNIT) -> AcceleratorSeries:
    return AcceleratorSeries(name=name, measures=measures, unit=unit, exporter=_NAME, scope=scope)


def _is_blank(value: float) -> bool:
    return value in _BLANKS


def _defect(sample: Sample) -> str:
    name = sample.name.removeprefix(_PREFIX)
    return "the exporter reports it unhealthy" if name == "gpu_health" and sample.value == 0 else ""


_LAUNCH: Final = AcceleratorLaunch(
    # AMD's documentation of containers; the user of the container needs the groups of the device files
    access=DeviceAccess(
        files=("/dev/kfd", "/dev/dri/renderD*"),
        options=("--security-opt=seccomp=unconfined",),
    ),
    exporter=ExporterContainer(
        title="GPU exporter",
        # docs/installation/docker.md of the exporter: privileged, and /sys for its RAS errors
        options=("--privileged", "--device=/dev/dri", "--device=/dev/kfd", "--volume=/sys:/sys:ro", "--memory=2g"),
        arguments=lambda host, _port: (f"-bind={host}",),
        environment=lambda port: {"METRICS_EXPORTER_PORT": str(port)},
    ),
    no_driver="use a machine image with the amdgpu driver and ROCm 6.2 or later",
    defect=_defect,
)

CONTRACT: Final = AcceleratorContract(
    kind="amd",
    title="AMD Instinct GPU",
    exporters=(
        Exporter(name=_NAME, port=5000, releases=versions("1.2.0", "2.0"), note="needs ROCm and the amdgpu driver"),
    ),
    series=(
        _series("gpu_gfx_activity", metrics.ACTIVE, SeriesUnit.PERCENT),
        # the exporter's documentation names MB; the values are multiples of 2^20 bytes
        _series("gpu_used_vram", metrics.MEMORY_USED, SeriesUnit.MIB),
        _series("gpu_free_vram", metrics.MEMORY_FREE, SeriesUnit.MIB),
        _series("gpu_total_vram", metrics.MEMORY_TOTAL, SeriesUnit.MIB),
        _series("gpu_package_power", metrics.POWER, SeriesUnit.WATTS, Scope.DEVICE),
        _series("gpu_average_package_power", metrics.POWER, SeriesUnit.WATTS, Scope.DEVICE),
        _series("gpu_power_usage", metrics.POWER, SeriesUnit.WATTS, Scope.DEVICE),
        _series("gpu_energy_consumed", metrics.ENERGY, SeriesUnit.MICROJOULES, Scope.DEVICE),
        _series("gpu_health", metrics.HEALTHY, SeriesUnit.OK_IS_1, Scope.DEVICE),
    ),
    identity=UnitIdentity(
        device=("serial_number", "gpu_uuid", "gpu_id"),
        slice=("gpu_partition_id", "gpu_id"),
        whole={"gpu_compute_partition_type": f"{_WHOLE}|[sS][pP][xX]"},
        profile="gpu_compute_partition_type",
        tenants=("namespace", "pod"),
        copies=("container", "job_id", "job_user", "job_partition", "hostname", "card_model"),
    ),
    evidence=AcceleratorEvidenceRule(
        # the firmware averages the activity over a moment before the scrape: work between two scrapes is not seen
        work=(metrics.ACTIVE,),
        idle=(metrics.ACTIVE,),
        pulse=metrics.ENERGY,
        window=timedelta(minutes=5),
    ),
    blind_spots=(
        BlindSpot(
            code=UnknownCode.PARTITION,
            labels={"gpu_compute_partition_type": "[dDtTqQcC][pP][xX]"},
            metrics=(metrics.ACTIVE, metrics.POWER, metrics.ENERGY),
        ),
        # a second partition without the type, which another release or a store may leave out
        BlindSpot(
            code=UnknownCode.PARTITION,
            labels={"gpu_compute_partition_type": _WHOLE, "gpu_partition_id": "[1-9][0-9]*"},
            metrics=(metrics.ACTIVE, metrics.POWER, metrics.ENERGY),
        ),
    ),
    launch=_LAUNCH,
    prefixes=("", _PREFIX),
    is_blank=_is_blank,
    sources=(
        "ROCm/device-metrics-exporter commit 0778d3a: docs/configuration/metricslist.md (names, units, guests)",
        "ROCm/device-metrics-exporter commit 445c962: plan for values that are not available (issue 662)",
        "ROCm/device-metrics-exporter 1.5.2: example/config.json (prefix amd_), labels of partitions",
        "ROCm/device-metrics-exporter 1.5.2 (commit afd0fe8): docs/installation/docker.md, cmd/exporter/main.go "
        "(-bind), pkg/exporter/config/config.go (METRICS_EXPORTER_PORT)",
        "AMD ROCm documentation, Running ROCm Docker containers, 2026-01-20: devices of a container",
        "silogen/kaiwo: three recorded series of MI300X with SPX and CPX",
    ),
)
