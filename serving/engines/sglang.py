"""The contract of SGLang.

Its token counters increase only when a request ends, so a constant counter does not prove that the engine is idle.
Its gauges are written at prefill batches and each 40 decode iterations; before 0.5.16 they can stay above 0 for 30 s
after the last request. Its `/health` generates a token, `/ready` does not. Its `/server_info` contains API keys:
never read it.
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

_LAG: Final = timedelta(seconds=30)
"""An idle scheduler writes its gauges within 30 s."""
_FIRST_RANK: Final = {"tp_rank": "0?", "pp_rank": "0?", "moe_ep_rank": "0?"}
"""With `--enable-metrics-for-all-schedulers`, each rank repeats the numbers of the first one. Data-parallel ranks do
not."""
_INFERENCE: Final = {"endpoint": "/generate|/v1/.*completions|/v1/embeddings|/v1/responses", "method": "POST"}

CONTRACT: Final = Contract(
    kind=EngineKind.SGLANG,
    title="SGLang",
    tested=versions("0.5.10", "0.5.24"),
    series=(
        EngineSeries(
            name="sglang:num_running_reqs",
            measures=metrics.REQUESTS_RUNNING,
            refresh=Refresh.INTERVAL,
            lag=_LAG,
            where=_FIRST_RANK,
        ),
        EngineSeries(
            name="sglang:num_queue_reqs",
            measures=metrics.REQUESTS_WAITING,
            refresh=Refresh.INTERVAL,
            lag=_LAG,
            where=_FIRST_RANK,
        ),
        EngineSeries(
            name="sglang:http_requests_active",
            measures=metrics.OPEN_REQUESTS,
            refresh=Refresh.REQUEST,
            where=_INFERENCE,
        ),
        EngineSeries(
            name="sglang:token_usage",
            measures=metrics.KV_CACHE_USAGE,
            refresh=Refresh.INTERVAL,
            lag=_LAG,
            where=_FIRST_RANK,
        ),
        EngineSeries(
            name="sglang:prompt_tokens_total",
            measures=metrics.PROMPT_TOKENS,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
        EngineSeries(
            name="sglang:cached_tokens_total",
            measures=metrics.PROMPT_TOKENS_CACHED,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
            where={"cache_source": "(device|host|storage)?"},
        ),
        EngineSeries(
            name="sglang:generation_tokens_total",
            measures=metrics.GENERATION_TOKENS,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
        EngineSeries(name="sglang:realtime_tokens_total", measures=metrics.LIVE_TOKENS, where=_FIRST_RANK),
        EngineSeries(
            name="sglang:num_requests_total",
            measures=metrics.REQUEST_SUCCESS,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
        EngineSeries(name="sglang:time_to_first_token_seconds", measures=metrics.TIME_TO_FIRST_TOKEN),
        EngineSeries(name="sglang:inter_token_latency_seconds", measures=metrics.INTER_TOKEN_LATENCY),
        EngineSeries(
            name="sglang:e2e_request_latency_seconds",
            measures=metrics.E2E_LATENCY,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
    ),
    evidence=EngineEvidenceRule(
        work=(
            metrics.REQUESTS_RUNNING,
            metrics.REQUESTS_WAITING,
            metrics.OPEN_REQUESTS,
            metrics.LIVE_TOKENS,
            metrics.GENERATION_TOKENS,
        ),
        idle=(metrics.REQUESTS_RUNNING, metrics.REQUESTS_WAITING, metrics.OPEN_REQUESTS, metrics.LIVE_TOKENS),
        window=2 * _LAG,
    ),
    tokens=TokenRecord(
        source=TokenSource.ENGINE,
        error="counted when a request ends, aborted ones with their whole prompt",
        per_adapter=True,
    ),
    probes=Probes(alive="/ready", version="/v1/loads", version_needs_key=True, shows_drain=True),
    drain=EngineDrain(stop=StopMode.FINISHES_AND_ACCEPTS, abort="/abort_request", abort_body='{"abort_all": true}'),
    sources=(
        "srt/observability and srt/managers of the packages of SGLang 0.5.1 to 0.5.23",
        "pages of a running SGLang 0.5.23 server: idle, busy, with a queue",
    ),
)
