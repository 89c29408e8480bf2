"""How much of a page Prometheus takes, and which names from which job. Pure.

Every page but the control host's own comes from a machine that clients' requests reach. Beyond a limit Prometheus
takes nothing of a page and its target is down (`up` is 0), which alerts judge. A name that another job serves is
dropped, so no page can stand in for another's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from serving import metrics
from serving.metrics import Source

LABELS: Final = {"label_limit": 100, "label_name_length_limit": 256, "label_value_length_limit": 4096}
"""Of every series. vLLM's largest has 36 labels; an order's reason, which an agent's page shows, has up to 4 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one job."""

    names: str
    """A regular expression of the names that are kept."""
    samples: int
    """Of one page, after names are dropped."""
    body: str
    """Size of one page."""
    targets: int
    """With more of them Prometheus reads none of the job."""


def _of(source: Source, samples: int, body: str) -> Limits:
    return Limits(names="|".join(metrics.series_names(source)), samples=samples, body=body, targets=5_000)


_WATCHDOGS: Final = ("budget", "brakes", "daemon", "ledger", "messages", "preemptions", "quota", "spend", "target")
LIMITS: Final[Mapping[str, Limits]] = {
    # a page of vLLM 0.32 has 51 KB and 500 samples for each of its engines
    Source.ENGINE.value: _of(Source.ENGINE, 10_000, "16MB"),
    # 8 GPUs in 7 parts each have 1,300 samples
    Source.DCGM.value: _of(Source.DCGM, 5_000, "8MB"),
    Source.NODE.value: _of(Source.NODE, 1_000, "1MB"),
    # 192 CPUs have 1,920 samples before modes are dropped
    Source.HOST.value: _of(Source.HOST, 5_000, "8MB"),
    "haproxy": Limits(names="haproxy_.+", samples=500_000, body="128MB", targets=100),
    metrics.ROUTER_JOB: Limits(
        names="gpufleet_router_.+|gpufleet_held_requests", samples=200_000, body="64MB", targets=100
    ),
    "watchdogs": Limits(names=f"gpufleet_({'|'.join(_WATCHDOGS)})(_.+)?", samples=100_000, body="32MB", targets=100),
}
"""By job."""


def bounded(job: Mapping[str, Any]) -> dict[str, Any]:
    """A scrape configuration with the limits of its job, which keep names after all else was relabelled."""
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
