"""The contract of LMDeploy.

It counts tokens at each iteration but writes its gauges every 10 s, so a gauge of 0 with an increasing counter is
work. Its page needs the API key. Its `/health` answers 200 with `sleeping` while the model is unloaded.
"""

from datetime import timedelta
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

_GAUGE_LAG: Final = timedelta(seconds=10)
"""`log_interval` of its metrics logger."""


def _gauge(name: str, measures: metrics.Metric) -> EngineSeries:
    return EngineSeries(name=f"lmdeploy:{name}", measures=measures, refresh=Refresh.INTERVAL, lag=_GAUGE_LAG)


def _at_end(name: str, measures: metrics.Metric) -> EngineSeries:
    return EngineSeries(name=f"lmdeploy:{name}", measures=measures, refresh=Refresh.REQUEST_END, zero_while_busy=True)


CONTRACT: Final = Contract(
    kind=EngineKind.LMDEPLOY,
    title="LMDeploy",
    tested=versions("0.14", "0.17"),
    series=(
        _gauge("num_requests_running", metrics.REQUESTS_RUNNING),
        _gauge("num_requests_waiting", metrics.REQUESTS_WAITING),
        _gauge("num_api_requests_waiting", metrics.REQUESTS_WAITING),
        _gauge("gpu_cache_usage_perc", metrics.KV_CACHE_USAGE),
        EngineSeries(name="lmdeploy:prompt_tokens_total", measures=metrics.PROMPT_TOKENS, zero_while_busy=True),
        _at_end("cached_tokens_total", metrics.PROMPT_TOKENS_CACHED),
        EngineSeries(
            name="lmdeploy:generation_tokens_total", measures=metrics.GENERATION_TOKENS, zero_while_busy=True
        ),
        _at_end("request_success_total", metrics.REQUEST_SUCCESS),
        EngineSeries(name="lmdeploy:time_to_first_token_seconds", measures=metrics.TIME_TO_FIRST_TOKEN),
        EngineSeries(name="lmdeploy:iter_token_latency", measures=metrics.INTER_TOKEN_LATENCY),
        _at_end("e2e_request_latency_seconds", metrics.E2E_LATENCY),
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
        window=2 * _GAUGE_LAG,
    ),
    tokens=TokenRecord(
        source=TokenSource.ENGINE,
        error="exact while the engine runs; cached tokens of requests that did not finish are not counted",
    ),
    probes=Probes(alive="/health", alive_status="status=healthy", metrics_need_key=True),
    drain=EngineDrain(stop=StopMode.FINISHES),
    sources=("lmdeploy/metrics/loggers.py of InternLM/lmdeploy from v0.9.2 to v0.16.0",),
)
