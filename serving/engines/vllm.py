"""The contract of vLLM."""

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

CONTRACT: Final = Contract(
    kind=EngineKind.VLLM,
    title="vLLM",
    tested=versions("0.11.1", "0.33"),
    series=(
        EngineSeries(name="vllm:num_requests_running", measures=metrics.REQUESTS_RUNNING),
        EngineSeries(name="vllm:num_requests_waiting", measures=metrics.REQUESTS_WAITING),
        EngineSeries(name="vllm:kv_cache_usage_perc", measures=metrics.KV_CACHE_USAGE),
        EngineSeries(name="vllm:prompt_tokens_total", measures=metrics.PROMPT_TOKENS, zero_while_busy=True),
        EngineSeries(
            name="vllm:prompt_tokens_cached_total", measures=metrics.PROMPT_TOKENS_CACHED, versions=versions("0.18")
        ),
        EngineSeries(name="vllm:generation_tokens_total", measures=metrics.GENERATION_TOKENS, zero_while_busy=True),
        EngineSeries(
            name="vllm:request_success_total",
            measures=metrics.REQUEST_SUCCESS,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
        EngineSeries(name="vllm:time_to_first_token_seconds", measures=metrics.TIME_TO_FIRST_TOKEN),
        EngineSeries(name="vllm:inter_token_latency_seconds", measures=metrics.INTER_TOKEN_LATENCY),
        EngineSeries(name="vllm:request_queue_time_seconds", measures=metrics.QUEUE_TIME),
        EngineSeries(name="vllm:request_prefill_time_seconds", measures=metrics.PREFILL_TIME),
        EngineSeries(name="vllm:request_decode_time_seconds", measures=metrics.DECODE_TIME),
        EngineSeries(
            name="vllm:e2e_request_latency_seconds",
            measures=metrics.E2E_LATENCY,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
    ),
    evidence=EngineEvidenceRule(
        work=(
            metrics.REQUESTS_RUNNING,
            metrics.REQUESTS_WAITING,
            metrics.PROMPT_TOKENS,
            metrics.GENERATION_TOKENS,
            metrics.REQUEST_SUCCESS,
        ),
        idle=(
            metrics.REQUESTS_RUNNING,
            metrics.REQUESTS_WAITING,
            metrics.PROMPT_TOKENS,
            metrics.GENERATION_TOKENS,
        ),
    ),
    tokens=TokenRecord(
        source=TokenSource.ENGINE,
        error="exact while the engine runs; tokens since the last scrape before an abrupt end are not counted",
        exact_for_aborts=True,
        per_adapter=True,
    ),
    probes=Probes(alive="/health", version="/version"),
    drain=EngineDrain(stop=StopMode.FINISHES),
    key_variable="VLLM_API_KEY",
    launchable=True,
    sources=(
        "vllm/v1/metrics/loggers.py of vLLM 0.32.0, and of 0.9.3 to 0.21.0 for the names by release",
        "the page of a running vLLM 0.32.0 server",
    ),
)
