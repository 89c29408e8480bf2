"""Finds metrics of accelerators that a store holds in a form that proves nothing, and says what to change.

Watchdogs read canonical names. A Prometheus without the relabelling of this product has the exporter's own names, for
example `DCGM_FI_PROF_GR_ENGINE_ACTIVE`; one without the label `instance_id` has metrics of no known instance.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from serving.accelerators import CONTRACTS, metrics
from serving.accelerators.queries import KIND_LABEL
from serving.metrics import Source
from watchdogs.ports import Metrics


class RawMetricsCode(StrEnum):
    """What prevents the use of metrics. The values are stable codes."""

    NOT_RELABELLED = "metrics_not_relabelled"
    """They have the exporter's own names."""
    OTHER_JOB = "metrics_of_other_job"
    """Their scrape job has another name."""
    NO_INSTANCE_ID = "metrics_without_instance_id"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RawMetrics:
    """Metrics of one scrape job that prove nothing."""

    code: RawMetricsCode
    job: str
    kind: str
    """Of the accelerator."""
    name: str
    """One of the metrics."""

    @property
    def sentence(self) -> str:
        """What is wrong, and what to do."""
        job = f"job {self.job!r}" if self.job else "a job without a name"
        rules = f"`gpufleet accelerators relabelling {self.kind}` prints its metric_relabel_configs"
        match self.code:
            case RawMetricsCode.NOT_RELABELLED:
                return f"{job} has {self.name} under the exporter's own name, which proves nothing: {rules}"
            case RawMetricsCode.OTHER_JOB:
                return f"{self.name} is of {job}: name the scrape job {str(Source.ACCELERATOR)!r}"
            case RawMetricsCode.NO_INSTANCE_ID:
                return (
                    f"{self.name} of {job} has no label instance_id: add it to the targets (AWS: the instance's id,"
                    " Google Cloud: its name)"
                )


_CANONICAL: Final = metrics.ACTIVE.name
_KINDS: Final = {
    prefix + series.name: contract.kind
    for contract in CONTRACTS.values()
    for prefix in contract.prefixes
    for series in contract.carriers(metrics.ACTIVE)
}
"""The exporters' names of activity, and the kind of accelerator."""


def find(store: Metrics, now: datetime, job: str = Source.ACCELERATOR) -> list[RawMetrics]:
    """Return the metrics of activity that watchdogs cannot use, one for each job and cause, in one query.

    `job`: the scrape job that watchdogs read. Raises OSError.
    """
    by = f"count by (__name__, job, {KIND_LABEL})"
    unused = (f'{by} ({_CANONICAL}{{job!="{job}"}})', f'{by} ({_CANONICAL}{{instance_id=""}})')
    found: dict[tuple[RawMetricsCode, str, str], RawMetrics] = {}
    for labels, _ in store.query(" or ".join((*_raw(), *unused)), now):
        name, of_job = labels.get("__name__", ""), labels.get("job", "")
        code = RawMetricsCode.NO_INSTANCE_ID if of_job == job else RawMetricsCode.OTHER_JOB
        code = code if name == _CANONICAL else RawMetricsCode.NOT_RELABELLED
        kind = labels.get(KIND_LABEL, "") if name == _CANONICAL else _KINDS.get(name, "")
        one = RawMetrics(code=code, job=of_job, kind=kind, name=name)
        found[code, of_job, kind] = min(one, found.get((code, of_job, kind), one))
    return sorted(found.values())


def _raw() -> Iterator[str]:
    """Yield the parts of the query for the exporters' names. Names with a condition on labels are general ones."""
    for contract in CONTRACTS.values():
        names: dict[str, list[str]] = {}
        for series in contract.carriers(metrics.ACTIVE):
            where = "".join(f',{label}=~"{pattern}"' for label, pattern in series.where.items())
            names.setdefault(where, []).extend(prefix + series.name for prefix in contract.prefixes)
        for where, chosen in names.items():
            yield f'count by (__name__, job) ({{__name__=~"{"|".join(chosen)}"{where}}})'
