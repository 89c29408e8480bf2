"""Reads an engine's page by its contract: canonical values, and the names that it lacks. Standard library only."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from serving import metrics
from serving.engines.contract import Contract, EngineSeries
from serving.exposition import Sample
from serving.metrics import Metric, MetricKind
from serving.releases import Version

EVIDENCE: Final = "evidence"
"""Label of series at the metrics store. Absent: the number is evidence by its engine's contract."""
NO_EVIDENCE: Final = "none"
"""Value of `EVIDENCE` for a number that proves nothing, such as a gauge that keeps its last value."""
PART_LABEL: Final = "part"
"""Label of series with one canonical name that come from several names of one engine."""
ADDED_LABELS: Final = (PART_LABEL, EVIDENCE)
"""Labels that relabelling adds. They do not make a series a copy of another one."""
_ANY: Final = "[^;]*"
"""Any value of a label. Prometheus joins the values of several labels with semicolons."""
_HIGHEST: Final = (metrics.KV_CACHE_USAGE,)
"""Shares: the highest series counts. All other metrics are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One page in canonical metrics."""

    values: Mapping[Metric, float]
    """Gauges and counters. A metric that the page does not report is absent; it is never 0 by default."""
    missing: tuple[str, ...]
    """Names that the evidence needs and the page lacks, sorted."""
    without_tokens: tuple[str, ...]
    """Names that the token record needs and the page lacks, sorted: its tokens are unknown, not 0."""


def read(contract: Contract, version: Version, samples: Iterable[Sample]) -> Reading:
    """Return the canonical values of a page of that release."""
    page: dict[str, list[Sample]] = {}
    for sample in samples:
        page.setdefault(sample.name, []).append(sample)
    values: dict[Metric, float] = {}
    lacking: dict[Metric, set[str]] = {}
    for series in contract.at(version):
        if series.measures.kind is MetricKind.HISTOGRAM:
            continue
        found = [sample.value for sample in page.get(series.name, ()) if matches(series, sample)]
        if not found:
            lacking.setdefault(series.measures, set()).add(series.name)
        elif series.measures in _HIGHEST:
            values[series.measures] = max(found)
        else:
            values[series.measures] = values.get(series.measures, 0.0) + sum(found)
    return Reading(
        # a total of some of its parts would be too low
        values={metric: value for metric, value in values.items() if metric not in lacking},
        missing=_names(lacking, contract.evidence.idle),
        without_tokens=_names(lacking, (metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS)),
    )


def _names(lacking: Mapping[Metric, set[str]], needed: Iterable[Metric]) -> tuple[str, ...]:
    return tuple(sorted(name for metric in needed for name in lacking.get(metric, ())))


def matches(series: EngineSeries, sample: Sample) -> bool:
    """Whether the labels of a sample are those that the series asks for."""
    return any(
        all(re.fullmatch(pattern, sample.labels.get(label, "")) is not None for label, pattern in choice.items())
        for choice in series.choices
    )


def unknown(
    contract: Contract | None,
    version: str | None,
    missing: Sequence[str],
    window: timedelta,
) -> str | None:
    """Return why an engine's numbers prove nothing over this window; None: its contract applies."""
    if contract is None:
        return "its engine is not known"
    title = contract.title
    if not contract.series:
        return f"{title} reports no metrics"
    if version is None:
        return f"the release of {title} is not known"
    try:
        release = Version.parse(version)
    except ValueError as error:
        return f"{title} {error}"
    if release not in contract.tested:
        return f"{title} {version}: the contract covers {contract.tested}"
    if missing:
        return f"{title} {version} does not report {', '.join(missing)}"
    if window < contract.evidence.window:
        return (
            f"{title} proves idleness over {_text(contract.evidence.window)} or more, the window is {_text(window)}"
        )
    return None


def _text(span: timedelta) -> str:
    return f"{span.total_seconds():g} s"


def relabelling(contracts: Iterable[Contract]) -> list[dict[str, Any]]:
    """Return Prometheus's `metric_relabel_configs` that give these engines' series their canonical names.

    Several names of one engine with one canonical name would collide: they get the label `part`. Series that `where`
    excludes keep their names, so no query counts them. Gauges and counters that prove nothing by the contract get
    the label `evidence`. The Python client of Prometheus writes underscores for colons when it answers OpenMetrics,
    which Prometheus asks for (prometheus_client 0.22 or later): both spellings match.
    """
    rules: list[dict[str, Any]] = []
    for contract in contracts:
        proofs = {*contract.evidence.work, *contract.evidence.idle}
        for series in contract.series:
            labels = sorted({label for choice in series.choices for label in choice})
            suffix = "(_bucket|_sum|_count)" if series.measures.kind is MetricKind.HISTOGRAM else ""
            choices = [";".join(f"(?:{choice.get(label, _ANY)})" for label in labels) for choice in series.choices]
            matches = choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"
            spelled = series.name.replace(":", "[:_]") + suffix
            regex = f"{spelled};{matches}" if labels else spelled
            source = ["__name__", *labels]
            name = series.measures.name + ("$1" if suffix else "")
            carriers = {other.name for other in contract.series if other.measures is series.measures}
            given = {"__name__": name}
            if len(carriers) > 1:
                given = {PART_LABEL: series.name, **given}
            if series.measures not in proofs and not suffix:
                given = {EVIDENCE: NO_EVIDENCE, **given}
            rules += (
                {"source_labels": source, "regex": regex, "target_label": label, "replacement": value}
                for label, value in given.items()
            )
    return rules
