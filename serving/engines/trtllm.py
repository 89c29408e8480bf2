"""The contract of TensorRT-LLM's own server, `trtllm-serve`.

Its request counters increase only when a request ends. Its gauges come from a loop that sleeps until a request ends:
they can be 0 while the first long request runs, and above 0 after the last one. So only the number of connections
shows a request that runs. The page exists only with `return_perf_metrics`, its gauges only with
`enable_iter_perf_stats`.
"""

from typing import Final

from serving import metrics
from serving.engines.contract import (
    Contract,
    EngineDrain,
    EngineEvidenceRule,
    EngineKind,
    EngineSeries,
    Probes,
    Refresh,
    StopMode,
    TokenRecord,
    TokenSource,
    versions,
)


def _at_end(name: str, measures: metrics.Metric) -> EngineSeries:
    return EngineSeries(name=f"trtllm_{name}", measures=measures, refresh=Refresh.REQUEST_END, zero_while_busy=True)


def _gauge(name: str, measures: metrics.Metric) -> EngineSeries:
    return EngineSeries(
        name=f"trtllm_{name}", measures=measures, refresh=Refresh.REQUEST_END, zero_while_busy=True, kept_at_rest=True
    )


CONTRACT: Final = Contract(
    kind=EngineKind.TRTLLM,
    title="TensorRT-LLM",
    tested=versions("1.3", "1.4"),
    series=(
        _gauge("num_requests_running", metrics.REQUESTS_RUNNING),
        _gauge("num_requests_waiting", metrics.REQUESTS_WAITING),
        _gauge("kv_cache_utilization", metrics.KV_CACHE_USAGE),
        _at_end("prompt_tokens_total", metrics.PROMPT_TOKENS),
        _at_end("prompt_cached_tokens_total", metrics.PROMPT_TOKENS_CACHED),
        _at_end("generation_tokens_total", metrics.GENERATION_TOKENS),
        _at_end("request_success_total", metrics.REQUEST_SUCCESS),
        _at_end("time_to_first_token_seconds", metrics.TIME_TO_FIRST_TOKEN),
        _at_end("time_per_output_token_seconds", metrics.INTER_TOKEN_LATENCY),
        _at_end("e2e_request_latency_seconds", metrics.E2E_LATENCY),
    ),
    evidence=EngineEvidenceRule(
        work=(
            metrics.NODE_ENGINE_CONNECTIONS,
            metrics.PROMPT_TOKENS,
            metrics.GENERATION_TOKENS,
            metrics.REQUEST_SUCCESS,
        ),
        idle=(
            metrics.NODE_ENGINE_CONNECTIONS,
            metrics.PROMPT_TOKENS,
            metrics.GENERATION_TOKENS,
            metrics.REQUEST_SUCCESS,
        ),
    ),
    tokens=TokenRecord(
        source=TokenSource.ENGINE,
        error="counted when a request ends; a stream that its client leaves is not counted",
    ),
    # its `/metrics` is another document, and reading that one empties it
    probes=Probes(alive="/health", version="/version", metrics="/prometheus/metrics"),
    drain=EngineDrain(stop=StopMode.CUTS),
    sources=("tensorrt_llm/metrics/collector.py and tensorrt_llm/serve/openai_server.py of NVIDIA/TensorRT-LLM",),
)
