"""The simulated engine's /metrics, in the names and labels of vLLM 0.32."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.engine.batch import Batch
from localcloud.engine.histogram import Histogram
from serving import metrics
from serving.engines import CONTRACTS
from serving.exposition import Sample, render_family
from serving.metrics import Metric

_STARTED = time.time()
_NAMES: Final = {series.measures: series.name for series in CONTRACTS["vllm"].series}
"""vLLM's own names of canonical metrics; `tests/vllm/test_engines.py` compares the page with that of real vLLM."""


def own_name(metric: Metric) -> str:
    """vLLM's name of a metric."""
    return _NAMES.get(metric, metric.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Families:
    """Writes families with the labels that all of an engine's carry."""

    labels: Mapping[str, str]

    def plain(self, metric: Metric, value: float, **more: str) -> str:
        """A family of one sample."""
        sample = Sample(name=own_name(metric), labels={**self.labels, **more}, value=value)
        return render_family(sample.name, metric.kind, metric.meaning, [sample])

    def by(self, metric: Metric, label: str, counts: Iterable[tuple[str, float]]) -> str:
        """A family with a sample for each value of one more label."""
        name = own_name(metric)
        samples = [Sample(name=name, labels={**self.labels, label: k}, value=v) for k, v in counts]
        return render_family(name, metric.kind, metric.meaning, samples)

    def histogram(self, name: str, meaning: str, counts: Histogram) -> str:
        return render_family(name, "histogram", meaning, counts.samples(name, self.labels))


def render(batch: Batch, model_name: str, *, block_size: int, prefix_caching: bool) -> str:
    """The page."""
    families = _Families(labels={"engine": "0", "model_name": model_name})
    return "".join(
        (
            _process(),
            *_requests(batch, families, model_name),
            *_times(batch, families),
            families.plain(
                metrics.CACHE_CONFIG,
                1,
                block_size=str(block_size),
                num_gpu_blocks=str(batch.blocks),
                kv_cache_size_tokens=str(batch.blocks * block_size),
                enable_prefix_caching=str(prefix_caching),
                cache_dtype="auto",
            ),
        )
    )


def _process() -> str:
    families = (
        ("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", _STARTED),
        ("process_cpu_seconds_total", "counter", "Total user and system CPU time spent.", time.process_time()),
    )
    return "".join(
        render_family(name, kind, meaning, [Sample(name=name, value=value)])
        for name, kind, meaning, value in families
    )


def _requests(batch: Batch, families: _Families, model_name: str) -> Iterator[str]:
    """What runs and waits, what was counted, how requests ended."""
    counters = batch.counters
    running, waiting, kv_usage = batch.gauges()
    yield families.plain(metrics.REQUESTS_RUNNING, running)
    yield families.plain(metrics.REQUESTS_WAITING, waiting)
    yield families.plain(metrics.KV_CACHE_USAGE, kv_usage)
    yield families.plain(metrics.PREFIX_CACHE_QUERIES, counters.queried)
    yield families.plain(metrics.PREFIX_CACHE_HITS, counters.cached)
    yield families.plain(metrics.PREEMPTIONS, 0)
    yield families.plain(metrics.PROMPT_TOKENS, counters.prompt)
    yield families.plain(metrics.PROMPT_TOKENS_CACHED, counters.cached)
    yield families.plain(metrics.GENERATION_TOKENS, counters.generated)
    yield families.by(metrics.REQUEST_SUCCESS, "finished_reason", counters.finished.items())
    # vLLM puts no engine's number on these
    rejected = {"max_num_queued_reqs": counters.rejected, "max_num_queued_tokens": 0}
    yield _Families(labels={"model_name": model_name}).by(metrics.ADMISSION_REJECTIONS, "reason", rejected.items())


def _times(batch: Batch, families: _Families) -> Iterator[str]:
    """The histograms: sizes, then times."""
    counters = batch.counters
    yield families.histogram(
        "vllm:request_prompt_tokens", "Number of prefill tokens processed.", counters.prompt_sizes
    )
    yield families.histogram(
        "vllm:request_generation_tokens", "Number of generation tokens processed.", counters.answer_sizes
    )
    for metric, counts in (
        (metrics.TIME_TO_FIRST_TOKEN, counters.ttft),
        (metrics.INTER_TOKEN_LATENCY, counters.itl),
        (metrics.E2E_LATENCY, counters.e2e),
        (metrics.QUEUE_TIME, counters.queue),
    ):
        yield families.histogram(own_name(metric), metric.meaning, counts)
