"""Checks the health of the GPUs from the metrics of the GPU exporter."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import UnknownMachineError
from gpufleet.domain.model import Cloud
from hosts.node.local_http import fetch
from serving import metrics
from serving.exposition import Sample, parse

_TIMEOUT_S: Final = 3.0
_FATAL: Final = (
    (metrics.ECC_DOUBLE_BIT, "double-bit ECC errors"),
    (metrics.ROW_REMAP_FAILURE, "remapping of memory rows has failed"),
)
HARMLESS_XIDS: Final = frozenset({0, 13, 31, 43, 45})
"""XID errors that a program causes itself (13, 31, 43), or that only report a terminated program (45)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """The result of a health check."""

    broken: str | None = None
    """Why this machine must not serve; None if no defect was found."""
    unknown: str | None = None
    """Why the health is unknown; None if it is known."""


def expected_gpus(cloud: Cloud, machine_type: str) -> int | None:
    """Return the number of GPUs of a machine type; None if the catalogue does not contain the type."""
    try:
        return catalogue.machine(cloud, machine_type).gpu_count
    except UnknownMachineError:
        return None


def check(address: str, expected: int | None = None) -> HealthReport:
    """Query the exporter on this machine. Without an answer the health is unknown, which is not a defect."""
    url = f"http://{address}:{metrics.PORTS[metrics.Source.DCGM]}/metrics"
    try:
        return judge(parse(fetch(url, _TIMEOUT_S).decode()), expected)
    except (OSError, ValueError) as error:
        return HealthReport(unknown=f"the GPU exporter did not return metrics: {error}")


def judge(samples: Iterable[Sample], expected: int | None = None) -> HealthReport:
    """Evaluate the exporter's metrics. `expected`: the number of GPUs of the machine type; None if unknown."""
    page = [sample for sample in samples if not metrics.is_blank(sample.value)]
    gpus = {sample.labels.get("UUID") for sample in page if sample.name == metrics.FB_USED.name}
    if not gpus:
        return HealthReport(unknown="the GPU exporter reports no GPU")
    if expected is not None and len(gpus) < expected:
        return HealthReport(broken=f"the GPU exporter reports {len(gpus)} of {expected} GPUs")
    for sample in page:
        where = f"GPU {sample.labels.get('gpu')}"
        if sample.name == metrics.XID_ERRORS.name and sample.value not in HARMLESS_XIDS:
            return HealthReport(broken=f"{where}: XID error {sample.value:.0f}")
        for metric, defect in _FATAL:
            if sample.name == metric.name and sample.value > 0:
                return HealthReport(broken=f"{where}: {defect} ({sample.value:.0f})")
    return HealthReport()
