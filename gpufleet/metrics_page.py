"""Metrics pages in Prometheus' text format (0.0.4), rendered with `prometheus_client` from existing values.

The node agent has only the standard library: it renders its page with `serving.exposition`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

Labels = Mapping[str, str]
Values = Iterable[tuple[Labels, float]]
"""The samples of a metric family. An unknown value has no sample: missing is not zero."""


def gauge(name: str, meaning: str, values: Values) -> Metric:
    """Create a family of gauges."""
    return _with(GaugeMetricFamily(name, meaning), name, values)


def counter(name: str, meaning: str, values: Values) -> Metric:
    """Create a family of counters. `name` ends with `_total`."""
    if not name.endswith("_total"):
        raise ValueError(f"{name}: the name of a counter must end with _total")
    return _with(CounterMetricFamily(name, meaning), name, values)


def histogram(name: str, meaning: str, values: Iterable[tuple[Labels, Sequence[tuple[str, float]], float]]) -> Metric:
    """Create a family of histograms: labels, cumulative counts by upper bound (the last one is `+Inf`), sum."""
    family = HistogramMetricFamily(name, meaning)
    for labels, buckets, total in values:
        for bound, count in buckets:
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{name}_count", dict(labels), buckets[-1][1])
        family.add_sample(f"{name}_sum", dict(labels), total)
    return family


def page(families: Iterable[Metric]) -> str:
    """Render the page."""
    return generate_latest(_Families(families)).decode()


def _with(family: Metric, name: str, values: Values) -> Metric:
    for labels, value in values:
        family.add_sample(name, dict(labels), value)
    return family


class _Families:
    """A minimal collector for `generate_latest`. A registry would check all names for duplicates for each page."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
