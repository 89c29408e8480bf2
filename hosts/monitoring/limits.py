"""Limits of each scrape job: size of a page, number of samples, and accepted metric names. No I/O.

All pages except those of the control host come from machines that are exposed to clients' requests. If a page
exceeds a limit, Prometheus discards the whole page and its target is down (`up` is 0); alerts detect that. A metric
name of another job is dropped, so a page cannot replace metrics of another job.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from serving import metrics
from serving.accelerators import CONTRACTS
from serving.accelerators import metrics as accelerators
from serving.metrics import Source

LABELS: Final = {"label_limit": 100, "label_name_length_limit": 256, "label_value_length_limit": 4096}
"""Label limits of each series. vLLM's largest series has 36 labels. The reason of an order, which is a label on
the agent's page, has up to 4 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one job."""

    names: str
    """Regular expression of the accepted metric names."""
    samples: int
    """Maximum samples of one page, after other names are dropped."""
    body: str
    """Maximum size of one page."""
    targets: int
    """Maximum number of targets. With more, Prometheus scrapes no target of the job."""


def _of(source: Source, samples: int, body: str, more: Iterable[str] = ()) -> Limits:
    names = sorted({*metrics.series_names(source), *more})
    return Limits(names="|".join(names), samples=samples, body=body, targets=5_000)


_OF_ACCELERATORS: Final = (
    *accelerators.ALL,
    *(contract.identity.cores.series for contract in CONTRACTS.values() if contract.identity.cores is not None),
)
"""Canonical names, and series with the number of a device's slices."""
_WATCHDOGS: Final = ("budget", "brakes", "daemon", "ledger", "messages", "preemptions", "quota", "spend", "target")
LIMITS: Final[Mapping[str, Limits]] = {
    # A page of vLLM 0.32 has 51 KB, and 500 samples per engine.
    Source.ENGINE.value: _of(Source.ENGINE, 10_000, "16MB"),
    # 8 GPUs with 7 MIG partitions each have 1,300 samples.
    Source.ACCELERATOR.value: _of(Source.ACCELERATOR, 5_000, "8MB", _OF_ACCELERATORS),
    Source.NODE.value: _of(Source.NODE, 1_000, "1MB"),
    # 192 CPUs have 1,920 samples before CPU modes are dropped.
    Source.HOST.value: _of(Source.HOST, 5_000, "8MB"),
    "haproxy": Limits(names="haproxy_.+", samples=500_000, body="128MB", targets=100),
    metrics.ROUTER_JOB: Limits(
        names="gpufleet_router_.+|gpufleet_held_requests", samples=200_000, body="64MB", targets=100
    ),
    "watchdogs": Limits(names=f"gpufleet_({'|'.join(_WATCHDOGS)})(_.+)?", samples=100_000, body="32MB", targets=100),
}
"""Job name -> limits."""


def bounded(job: Mapping[str, Any]) -> dict[str, Any]:
    """Add the limits of its job to a scrape configuration. Names are filtered after all other relabelling."""
    limits = LIMITS[job["job_name"]]
    keep = {"source_labels": ["__name__"], "regex": limits.names, "action": "keep"}
    return {
        **job,
        "sample_limit": limits.samples,
        "body_size_limit": limits.body,
        "target_limit": limits.targets,
        **LABELS,
        "metric_relabel_configs": [*job.get("metric_relabel_configs", ()), keep],
    }
