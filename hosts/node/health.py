"""Are the GPUs well? Read from the exporter beside the engine."""

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
"""XID errors that a program causes by itself (13, 31, 43) or that only report an ended one (45)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """What was seen."""

    broken: str | None = None
    """Why this machine must not serve."""
    unknown: str | None = None
    """Why nothing can be said."""


def expected_gpus(cloud: Cloud, machine_type: str) -> int | None:
    """GPUs that a machine of that type has; None for one that the catalogue does not know."""
    try:
        return catalogue.machine(cloud, machine_type).gpu_count
    except UnknownMachineError:
        return None


def check(address: str, expected: int | None = None) -> HealthReport:
    """Ask the exporter on this machine. Without an answer nothing is known, which breaks nothing."""
    url = f"http://{address}:{metrics.PORTS[metrics.Source.DCGM]}/metrics"
    try:
        return judge(parse(fetch(url, _TIMEOUT_S).decode()), expected)
    except (OSError, ValueError) as error:
        return HealthReport(unknown=f"the GPU exporter gives no numbers: {error}")


def judge(samples: Iterable[Sample], expected: int | None = None) -> HealthReport:
    """The verdict on a page of the exporter; `expected`: how many GPUs the machine was sold with."""
    page = [sample for sample in samples if not metrics.is_blank(sample.value)]
    gpus = {sample.labels.get("UUID") for sample in page if sample.name == metrics.FB_USED.name}
    if not gpus:
        return HealthReport(unknown="the GPU exporter names no GPU")
    if expected is not None and len(gpus) < expected:
        return HealthReport(broken=f"{len(gpus)} of {expected} GPUs answer")
    for sample in page:
        where = f"GPU {sample.labels.get('gpu')}"
        if sample.name == metrics.XID_ERRORS.name and sample.value not in HARMLESS_XIDS:
            return HealthReport(broken=f"{where}: XID error {sample.value:.0f}")
        for metric, words in _FATAL:
            if sample.name == metric.name and sample.value > 0:
                return HealthReport(broken=f"{where}: {words} ({sample.value:.0f})")
    return HealthReport()
