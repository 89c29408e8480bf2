"""The simulated engine's /metrics, in the names and labels of vLLM 0.32."""

import time

from localcloud.engine.batch import Batch
from serving import metrics
from serving.exposition import Histogram, Sample, render_family
from serving.metrics import Metric

_STARTED = time.time()


def render(batch: Batch, model_name: str, *, block_size: int, prefix_caching: bool) -> str:
    """The page."""
    labels = {"engine": "0", "model_name": model_name}
    counters = batch.counters
    running, waiting, kv_usage = batch.gauges()

    def plain(metric: Metric, value: float, **more: str) -> str:
        return render_family(
            metric.name,
            metric.kind,
            metric.meaning,
            [Sample(name=metric.name, labels={**labels, **more}, value=value)],
        )

    def histogram(name: str, meaning: str, counts: Histogram) -> str:
        return render_family(name, "histogram", meaning, counts.samples(name, labels))

    finished = [
        Sample(name=metrics.REQUEST_SUCCESS.name, labels={**labels, "finished_reason": reason}, value=count)
        for reason, count in counters.finished.items()
    ]
    rejections = metrics.ADMISSION_REJECTIONS
    rejected = [
        Sample(name=rejections.name, labels={"model_name": model_name, "reason": reason}, value=count)
        for reason, count in (("max_num_queued_reqs", counters.rejected), ("max_num_queued_tokens", 0))
    ]
    families = [
        render_family(
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            [Sample(name="process_start_time_seconds", value=_STARTED)],
        ),
        plain(metrics.REQUESTS_RUNNING, running),
        plain(metrics.REQUESTS_WAITING, waiting),
        plain(metrics.KV_CACHE_USAGE, kv_usage),
        plain(metrics.PREFIX_CACHE_QUERIES, counters.queried),
        plain(metrics.PREFIX_CACHE_HITS, counters.cached),
        plain(metrics.PREEMPTIONS, 0),
        plain(metrics.PROMPT_TOKENS, counters.prompt),
        plain(metrics.PROMPT_TOKENS_CACHED, counters.cached),
        plain(metrics.GENERATION_TOKENS, counters.generated),
        render_family(
            metrics.REQUEST_SUCCESS.name, metrics.REQUEST_SUCCESS.kind, metrics.REQUEST_SUCCESS.meaning, finished
        ),
        render_family(rejections.name, rejections.kind, rejections.meaning, rejected),
        histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", counters.prompt_sizes),
        histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", counters.answer_sizes),
        histogram(metrics.TIME_TO_FIRST_TOKEN.name, metrics.TIME_TO_FIRST_TOKEN.meaning, counters.ttft),
        histogram(metrics.INTER_TOKEN_LATENCY.name, metrics.INTER_TOKEN_LATENCY.meaning, counters.itl),
        histogram(metrics.E2E_LATENCY.name, metrics.E2E_LATENCY.meaning, counters.e2e),
        histogram(metrics.QUEUE_TIME.name, metrics.QUEUE_TIME.meaning, counters.queue),
        plain(
            metrics.CACHE_CONFIG,
            1,
            block_size=str(block_size),
            num_gpu_blocks=str(batch.blocks),
            kv_cache_size_tokens=str(batch.blocks * block_size),
            enable_prefix_caching=str(prefix_caching),
            cache_dtype="auto",
        ),
    ]
    return "".join(families)
