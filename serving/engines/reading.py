"""Reads an engine's page by its contract: canonical values, and the names that it lacks. Standard library only."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from serving import metrics
from serving.engines.contract import Contract, EngineSeries, Version
from serving.exposition import Sample
from serving.metrics import Metric, MetricKind

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
        found = [sample.value for sample in page.get(series.name, ()) if _matches(series, sample)]
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


def _matches(series: EngineSeries, sample: Sample) -> bool:
    return all(
        re.fullmatch(pattern, sample.labels.get(label, "")) is not None for label, pattern in series.where.items()
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
        return str(error)
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
    excludes keep their names, so no query counts them.
    """
    rules: list[dict[str, Any]] = []
    for contract in contracts:
        for series in contract.series:
            labels = sorted(series.where)
            suffix = "(_bucket|_sum|_count)" if series.measures.kind is MetricKind.HISTOGRAM else ""
            regex = ";".join((series.name + suffix, *(f"(?:{series.where[label]})" for label in labels)))
            source = ["__name__", *labels]
            name = series.measures.name + ("$1" if suffix else "")
            carriers = {other.name for other in contract.series if other.measures is series.measures}
            if len(carriers) > 1:
                rules.append(
                    {"source_labels": source, "regex": regex, "target_label": "part", "replacement": series.name}
                )
            rules.append({"source_labels": source, "regex": regex, "target_label": "__name__", "replacement": name})
    return rules
