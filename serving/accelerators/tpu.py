"""The contract of Google Cloud TPUs: the node agent on VMs, the device plugin's exporter on GKE.

libtpu serves its metrics only while a program holds the TPU, and only to programs on the host: on VMs the node agent
reads them and serves them under libtpu's names, with dots replaced and the labels `chip` and `core`. On GKE the
series with a container exist only for chips that one holds. The `_node` series of other chips read 0: no container
holds them, or their program does not serve metrics, so they prove no idleness. Duty cycle is of a chip, memory on VMs
of a core. TPUs report no power and no energy.
"""

from datetime import timedelta
from typing import Final

from serving.accelerators import metrics
from serving.accelerators.contract import (
    AcceleratorContract,
    AcceleratorEvidenceRule,
    AcceleratorSeries,
    Exporter,
    SeriesUnit,
    UnitIdentity,
    UnknownCode,
)
from serving.accelerators.launch import EXPORTER_PORT, AcceleratorLaunch, AgentExporter, DeviceAccess
from serving.metrics import Metric

_GKE: Final = "tpu-device-plugin"
_AGENT: Final = "node agent"
_EVERY: Final = timedelta(seconds=60)
_MAKE: Final = {"make": "cloud-tpu"}
"""The names on GKE are general ones; this label shows whose they are."""


def _gke(name: str, measures: Metric, unit: SeriesUnit) -> AcceleratorSeries:
    return AcceleratorSeries(
        name=name,
        measures=measures,
        unit=unit,
        exporter=_GKE,
        where=_MAKE,
        every=_EVERY,
        absent=UnknownCode.NO_WORKLOAD,
    )


def _veto(name: str, *, fractions: bool) -> AcceleratorSeries:
    """A number that can be 0 while the chip computes."""
    return AcceleratorSeries(
        name=name,
        measures=metrics.ACTIVE,
        unit=SeriesUnit.PERCENT,
        exporter=_GKE,
        where=_MAKE,
        every=_EVERY,
        zero_while_busy=True,
        fractions=fractions,
        absent=UnknownCode.NO_WORKLOAD,
    )


def _agent(name: str, measures: Metric, unit: SeriesUnit, parts: tuple[str, ...] = ()) -> AcceleratorSeries:
    return AcceleratorSeries(
        name=f"tpu_runtime_{name}",
        measures=measures,
        unit=unit,
        exporter=_AGENT,
        parts=parts,
        every=_EVERY,
        absent=UnknownCode.NO_WORKLOAD,
    )


_LAUNCH: Final = AcceleratorLaunch(
    # Google documents containers without privileges for GKE: with the devices, and unlimited locked memory, which the
    # engine's container has anyway
    access=DeviceAccess(files=("/dev/accel[0-9]*", "/dev/vfio/*")),
    exporter=AgentExporter(title="TPU exporter", command="libtpu"),
    no_driver="use a machine image for TPU VMs",
    reports_all=False,  # only chips that the engine holds
)

CONTRACT: Final = AcceleratorContract(
    kind="tpu",
    title="Google Cloud TPU",
    exporters=(
        Exporter(name=_AGENT, port=EXPORTER_PORT, note="on VMs; reads libtpu's gRPC service at localhost:8431"),
        Exporter(name=_GKE, port=2112, note="on GKE nodes; part of the TPU device plugin"),
    ),
    series=(
        _gke("duty_cycle", metrics.ACTIVE, SeriesUnit.PERCENT),
        _veto("duty_cycle_node", fractions=False),
        _veto("tensorcore_utilization", fractions=True),
        _veto("tensorcore_utilization_node", fractions=True),
        _gke("memory_used", metrics.MEMORY_USED, SeriesUnit.BYTES),
        _gke("memory_total", metrics.MEMORY_TOTAL, SeriesUnit.BYTES),
        _agent("tensorcore_dutycycle_percent", metrics.ACTIVE, SeriesUnit.PERCENT),
        _agent("hbm_memory_usage_bytes", metrics.MEMORY_USED, SeriesUnit.BYTES, ("core",)),
        _agent("hbm_memory_total_bytes", metrics.MEMORY_TOTAL, SeriesUnit.BYTES, ("core",)),
        _agent("tensorcore_idle_duration_seconds", metrics.IDLE_SECONDS, SeriesUnit.SECONDS),
    ),
    identity=UnitIdentity(
        device=("accelerator_id", "chip"),
        tenants=("namespace", "pod"),
        copies=("container", "model", "tpu_topology"),
    ),
    evidence=AcceleratorEvidenceRule(
        work=(metrics.ACTIVE,),
        idle=(metrics.ACTIVE,),
        clock=metrics.IDLE_SECONDS,
        window=2 * _EVERY,
    ),
    launch=_LAUNCH,
    sources=(
        "tpu-info 0.14.2 (PyPI): metrics.py (names of libtpu, duty cycle per chip, memory per core, idle duration)",
        "AI-Hypercomputer/cloud-accelerator-diagnostics commit fe85c12: tpu_metric_service.proto",
        "Google Cloud documentation, TPUs on GKE, privileged mode: locked memory of containers without privileges",
        "facebookincubator/dynolog: page recorded from tpu-device-plugin 1.35.7-gke.0 on a tpu7x-standard-4t node",
        "ray-project/ray: test page of the GKE exporter for v6e, port 2112",
        "llm-d.ai: operations, observability, TPU (units and labels on GKE)",
    ),
)
