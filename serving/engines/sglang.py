"""The contract of SGLang.

Its token counters increase only when a request ends, so a constant counter does not prove that the engine is idle.
Its gauges are written at prefill batches, which are not in the number of running requests, and each 40 decode
iterations; they can keep their values for 30 s after the last request. Its `/health` generates a token, `/ready` does
not. Its `/server_info` contains API keys: never read it. A stream that its full queue refuses gets 200 and an
error event.
"""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Final

from serving import metrics
from serving.engines.contract import (
    Contract,
    CounterLabels,
    EngineDrain,
    EngineEvidenceRule,
    EngineSeries,
    Probes,
    Refresh,
    StopMode,
    TokenError,
    TokenRecord,
    TokenSource,
)
from serving.engines.launch import REFUSED_VARIABLES, AdapterName, EngineServer, Launch, folders, own_name
from serving.releases import versions

_LAG: Final = timedelta(seconds=30)
"""An idle scheduler writes its gauges within 30 s."""
_FIRST_RANK: Final = {"tp_rank": "0?", "pp_rank": "0?", "moe_ep_rank": "0?"}
"""With `--enable-metrics-for-all-schedulers`, each rank repeats the numbers of the first one. Data-parallel ranks do
not."""
_OTHER_COPIES: Final = {"dp_rank": "[1-9][0-9]*", "pp_rank": "0?"}
"""With `--enable-dp-attention`, the copies of the attention layers are ranks of one tensor-parallel group: the second
copy has a `tp_rank`, and may have a `moe_ep_rank`, above 0 (`SchedulerMetricsCollector.init_new`)."""
_INFERENCE: Final = {
    "endpoint": "/generate|/encode|/classify|/invocations|/vertex_generate|/api/(?:chat|generate)|/v1/.+",
    "method": "POST",
}
"""All pages that can make a GPU work."""

_DECIDED: Final = frozenset(
    {
        "--model-path",
        "--model",
        "--served-model-name",
        "--host",
        "--port",
        "--api-key",
        "--admin-api-key",
        "--enable-metrics",
        "--allowed-media-domains",
        "--log-level",
        "--log-level-http",
        "--enable-lora",
        "--lora-paths",
    }
)
_FLAGS: Final = frozenset(
    {
        # distribution of a model over GPUs
        "--tp-size",
        "--tensor-parallel-size",
        "--pp-size",
        "--dp-size",
        "--ep-size",
        "--enable-dp-attention",
        "--load-balance-method",
        "--disable-custom-all-reduce",
        "--enable-p2p-check",
        # memory and batches
        "--context-length",
        "--mem-fraction-static",
        "--max-running-requests",
        "--max-queued-requests",
        "--max-total-tokens",
        "--max-prefill-tokens",
        "--chunked-prefill-size",
        "--enable-mixed-chunk",
        "--page-size",
        "--schedule-policy",
        "--schedule-conservativeness",
        "--swa-full-tokens-ratio",
        "--num-continuous-decode-steps",
        "--num-reserved-decode-tokens",
        "--stream-interval",
        "--decode-log-interval",
        "--allow-auto-truncate",
        "--disable-radix-cache",
        "--radix-eviction-policy",
        "--enable-priority-scheduling",
        "--enable-hierarchical-cache",
        "--hicache-ratio",
        "--hicache-size",
        # numbers and kernels
        "--dtype",
        "--quantization",
        "--kv-cache-dtype",
        "--attention-backend",
        "--sampling-backend",
        "--grammar-backend",
        "--moe-runner-backend",
        "--moe-a2a-backend",
        "--disable-cuda-graph",
        "--disable-cuda-graph-padding",
        "--cuda-graph-max-bs-decode",
        "--disable-overlap-schedule",
        "--enable-torch-compile",
        "--torch-compile-max-bs",
        "--speculative-algorithm",
        "--speculative-num-steps",
        "--speculative-eagle-topk",
        "--speculative-num-draft-tokens",
        "--random-seed",
        "--watchdog-timeout",
        "--sleep-on-idle",
        "--skip-server-warmup",
        "--device",
        # LoRA adapters, which the pool names
        "--max-lora-rank",
        "--max-loras-per-batch",
        "--max-loaded-loras",
        "--lora-eviction-policy",
        "--lora-backend",
        # responses
        "--reasoning-parser",
        "--tool-call-parser",
        "--enable-cache-report",
        "--stream-response-default-include-usage",
        "--incremental-streaming-output",
    }
)
_WITH_KEY: Final = (
    "import os,runpy,sys;"
    "sys.argv=['sglang.launch_server',*sys.argv[1:],'--api-key',os.environ.pop('SGLANG_ENGINE_KEY')];"
    "runpy.run_module('sglang.launch_server',run_name='__main__',alter_sys=True)"
)
"""SGLang takes its key as an argument only. Every user of a machine can read the command line of a process, so this
adds the key inside the process."""


def _arguments(server: EngineServer) -> tuple[str, ...]:
    return (
        "-c",
        _WITH_KEY,
        "--model-path",
        str(server.model_path),
        "--served-model-name",
        server.served_name,
        "--host",
        server.host,
        "--port",
        str(server.port),
        "--enable-metrics",
        # requests may name media: no host is allowed
        "--allowed-media-domains",
        "none.invalid",
        "--log-level",
        "warning",
        *server.args,
        *_adapters(server),
    )


def _adapters(server: EngineServer) -> tuple[str, ...]:
    """Load the adapters. A request for `chat:sql` uses the adapter `sql`; one for another unknown name uses the model
    itself (`_parse_model_parameter`, srt/entrypoints/openai/serving_base.py).
    """
    if not server.adapters:
        return ()
    return ("--enable-lora", "--lora-paths", *(f"{own_name(name)}={path}" for name, path in server.adapters.items()))


def _folders(scratch: PurePosixPath) -> Mapping[str, str]:
    return folders(
        scratch,
        "sglang",
        SGLANG_CACHE_DIR=f"{scratch}/sglang",
        FLASHINFER_WORKSPACE_BASE=str(scratch),
    )


LAUNCH: Final = Launch(
    program="python3",
    arguments=_arguments,
    key_variable="SGLANG_ENGINE_KEY",
    flags=_FLAGS,
    decided=_DECIDED,
    splits={
        "--tp-size": "tensor",
        "--tensor-parallel-size": "tensor",
        "--pp-size": "pipeline",
    },
    refused_variables=rf"{REFUSED_VARIABLES}|(?:SGLANG|SGL)_\w*",
    # a health check that generates a token would keep the GPU active
    environment={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"},
    folders=_folders,
    adapters=AdapterName.AFTER_MODEL,
    cuda=12,
)
CONTRACT: Final = Contract(
    kind="sglang",
    title="SGLang",
    tested=versions("0.5.10", "0.5.24"),
    series=(
        EngineSeries(
            name="sglang:num_running_reqs",
            measures=metrics.REQUESTS_RUNNING,
            refresh=Refresh.INTERVAL,
            lag=_LAG,
            where=_FIRST_RANK,
            or_where=_OTHER_COPIES,
        ),
        EngineSeries(
            name="sglang:num_queue_reqs",
            measures=metrics.REQUESTS_WAITING,
            refresh=Refresh.INTERVAL,
            lag=_LAG,
            where=_FIRST_RANK,
            or_where=_OTHER_COPIES,
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
            or_where=_OTHER_COPIES,
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
        EngineSeries(
            name="sglang:realtime_tokens_total",
            measures=metrics.LIVE_TOKENS,
            where=_FIRST_RANK,
            or_where=_OTHER_COPIES,
        ),
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
        error="counted when a request ends, aborted ones with their whole prompt; not counted if its client "
        "disconnects while it waits",
        errors=(
            TokenError.REQUEST_END,
            TokenError.ABORTED_PROMPT,
            TokenError.AFTER_LAST_SCRAPE,
        ),
        per_adapter=True,
    ),
    probes=Probes(alive="/ready", version="/v1/loads", version_needs_key=True),
    # a request with a cached prompt adds to one `cache_source` per level of the cache
    labels=CounterLabels(parts=("engine_type", "is_streaming", "cache_source", "priority")),
    launch=LAUNCH,
    run="0.5.23 on CPUs",
    drain=EngineDrain(stop=StopMode.FINISHES_AND_ACCEPTS),
    sources=(
        "srt/observability and srt/managers of the packages of SGLang 0.5.1 to 0.5.23",
        "pages of a running SGLang 0.5.23 server: idle, busy, with a queue",
    ),
)
