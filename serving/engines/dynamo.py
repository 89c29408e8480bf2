"""The contract of NVIDIA Dynamo: the numbers of its frontend.

The frontend counts each request once. Its workers pass the numbers of their own engines through; with separate
prefill and decode workers both count the prompt, so workers are not counted. It does not report its release: the
image's tag does. Its `/health` answers 200 without any worker.
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
from serving.metrics import MetricKind


def _frontend(name: str, measures: metrics.Metric, refresh: Refresh) -> EngineSeries:
    constant = refresh is not Refresh.REQUEST and measures.kind is MetricKind.COUNTER
    return EngineSeries(
        name=f"dynamo_frontend_{name}",
        measures=measures,
        refresh=refresh,
        zero_while_busy=constant,
    )


CONTRACT: Final = Contract(
    kind=EngineKind.DYNAMO,
    title="Dynamo",
    tested=versions("0.7", "1.7"),
    series=(
        # Deprecated since 1.3 and still reported. Its successor `active_requests` has the same number: Prometheus
        # does not know the release and would count both.
        _frontend("inflight_requests", metrics.REQUESTS_RUNNING, Refresh.REQUEST),
        _frontend("queued_requests", metrics.REQUESTS_WAITING, Refresh.REQUEST),
        _frontend("input_sequence_tokens_sum", metrics.PROMPT_TOKENS, Refresh.REQUEST_END),
        _frontend("cached_tokens_sum", metrics.PROMPT_TOKENS_CACHED, Refresh.REQUEST_END),
        _frontend("output_tokens_total", metrics.GENERATION_TOKENS, Refresh.ITERATION),
        _frontend("requests_total", metrics.REQUEST_SUCCESS, Refresh.REQUEST_END),
        _frontend("time_to_first_token_seconds", metrics.TIME_TO_FIRST_TOKEN, Refresh.ITERATION),
        _frontend("inter_token_latency_seconds", metrics.INTER_TOKEN_LATENCY, Refresh.ITERATION),
        _frontend("request_duration_seconds", metrics.E2E_LATENCY, Refresh.REQUEST_END),
    ),
    evidence=EngineEvidenceRule(
        work=(
            metrics.REQUESTS_RUNNING,
            metrics.REQUESTS_WAITING,
            metrics.GENERATION_TOKENS,
            metrics.REQUEST_SUCCESS,
        ),
        idle=(metrics.REQUESTS_RUNNING, metrics.GENERATION_TOKENS),
    ),
    tokens=TokenRecord(
        source=TokenSource.HISTOGRAM,
        error="output exact while the frontend runs; input is the sum of a histogram, counted when a request ends",
    ),
    probes=Probes(alive="/live", shows_drain=True),
    drain=EngineDrain(stop=StopMode.FINISHES),
    sources=(
        "lib/runtime/src/metrics/prometheus_names.rs of ai-dynamo/dynamo",
        "docs/observability/metrics_examples/fe.log of ai-dynamo/dynamo: a page of a running frontend",
    ),
)
