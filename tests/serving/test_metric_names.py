import re

import pytest

from serving import metrics
from serving.metrics import Metric, MetricKind, Source

PREFIXES = {
    Source.ENGINE: ("vllm:", "gpufleet_engine_"),
    Source.ACCELERATOR: "DCGM_FI_",
    Source.NODE: "gpufleet_node_",
    Source.HOST: "node_",
}


@pytest.mark.parametrize("metric", metrics.ALL.values(), ids=str)
def test_names_show_source_and_kind(metric: Metric) -> None:
    assert metric.name.startswith(PREFIXES[metric.source])
    assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", metric.name)
    if metric.source is not Source.ACCELERATOR:
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert metric.unit
    assert metric.meaning


@pytest.mark.parametrize("sentinel", metrics.DCGM_BLANKS)
def test_a_sentinel_stays_blank_after_conversion_to_a_double(sentinel: int) -> None:
    assert metrics.is_blank(sentinel)
    assert metrics.is_blank(float(sentinel))


@pytest.mark.parametrize("value", [0, 1.0, 100, 183_359, 9.9e11], ids=str)
def test_a_measurement_is_not_a_sentinel(value: float) -> None:
    assert not metrics.is_blank(value)
