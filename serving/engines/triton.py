"""The contract of Triton Inference Server with a TensorRT-LLM backend.

Its inference counters increase only when a request ends, and its queue gauge does not count requests that run. The
gauges of the C++ backend keep their last values after the last request; the Python backend (`llmapi`) has none. So
only the number of connections shows a request that runs. An ensemble counts one request under the names of several
models: tokens are counted for the backend's model only.
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

_BACKEND: Final = {"model": "tensorrt_llm(_bls)?"}


def _backend(name: str, measures: metrics.Metric, kind: str, **label: str) -> EngineSeries:
    return EngineSeries(
        name=f"nv_trt_llm_{name}",
        measures=measures,
        refresh=Refresh.ITERATION,
        kept_at_rest=True,
        where={**_BACKEND, kind: label["is_"]},
    )


CONTRACT: Final = Contract(
    kind=EngineKind.TRITON,
    title="Triton",
    tested=versions("2.38", "2.72"),
    series=(
        _backend("request_metrics", metrics.REQUESTS_RUNNING, "request_type", is_="active"),
        _backend("request_metrics", metrics.REQUESTS_WAITING, "request_type", is_="waiting"),
        _backend("kv_cache_block_metrics", metrics.KV_CACHE_USAGE, "kv_cache_block_type", is_="fraction"),
        EngineSeries(
            name="nv_llm_input_token_len_sum",
            measures=metrics.PROMPT_TOKENS,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
            where={"response_metric_type": "total_input_tokens"},
        ),
        EngineSeries(
            name="nv_llm_output_token_len_sum",
            measures=metrics.GENERATION_TOKENS,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
            where={"response_metric_type": "total_output_tokens"},
        ),
        EngineSeries(
            name="nv_inference_pending_request_count",
            measures=metrics.OPEN_REQUESTS,
            refresh=Refresh.SCRAPE,
            zero_while_busy=True,
        ),
        EngineSeries(
            name="nv_inference_exec_count",
            measures=metrics.WORK_STEPS,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
        EngineSeries(
            name="nv_llm_output_token_len_count",
            measures=metrics.REQUEST_SUCCESS,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
            where={"response_metric_type": "total_output_tokens"},
        ),
    ),
    evidence=EngineEvidenceRule(
        work=(
            metrics.NODE_ENGINE_CONNECTIONS,
            metrics.OPEN_REQUESTS,
            metrics.WORK_STEPS,
        ),
        idle=(metrics.NODE_ENGINE_CONNECTIONS, metrics.WORK_STEPS),
    ),
    tokens=TokenRecord(
        source=TokenSource.HISTOGRAM,
        error="only of models of the TensorRT-LLM backend, counted when a request ends",
    ),
    probes=Probes(alive="/v2/health/ready", version="/v2", metrics_port=8002, shows_drain=True),
    drain=EngineDrain(stop=StopMode.FINISHES),
    sources=(
        "docs/user_guide/metrics.md of triton-inference-server/server at e1db8a6",
        "pages of a running Triton 2.51.0 server: idle, busy",
    ),
)
