"""The contract of LMDeploy.

It counts tokens at each iteration but writes its gauges every 10 s, so a gauge of 0 with an increasing counter is
work. Its `/health` answers 200 with `sleeping` while the model is unloaded.

It has endpoints that change the model (`/update_weights` loads pickles, which can run code, `/sleep`), and always
registers them, so the fleet starts it behind a gate. It opens images and videos of its own file system that a request
names: the container contains none but those of its image. The launch was not run on hardware here.
"""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Final

from serving import metrics
from serving.engines.contract import (
    Contract,
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
from serving.engines.launch import REFUSED_VARIABLES, EngineServer, Gate, Launch, folders, loopback
from serving.releases import versions

_DECIDED: Final = frozenset(
    {
        "--model-name",
        "--server-name",
        "--server-port",
        "--api-keys",
        "--allow-origins",
        "--allow-credentials",
        "--allow-methods",
        "--allow-headers",
        "--allowed-media-domains",
        "--disable-fastapi-docs",
        "--log-level",
    }
)
_FLAGS: Final = frozenset(
    {
        # distribution of a model over GPUs
        "--tp",
        "--cp",
        "--communicator",
        # memory and batches
        "--session-len",
        "--max-batch-size",
        "--cache-max-entry-count",
        "--cache-block-seq-len",
        "--enable-prefix-caching",
        "--max-prefill-token-num",
        "--num-tokens-per-iter",
        "--max-prefill-iters",
        "--cudagraph-capture-batch-sizes",
        "--vision-max-batch-size",
        "--language-model-only",
        # numbers and kernels
        "--backend",
        "--dtype",
        "--quant-policy",
        "--model-format",
        "--rope-scaling-factor",
        "--eager-mode",
        "--enable-microbatch",
        "--speculative-algorithm",
        "--speculative-num-draft-tokens",
        # responses
        "--tool-call-parser",
        "--reasoning-parser",
    }
)
"""Not among them: `--max-concurrent-requests`, because probes and metrics wait for a place with the requests;
`--dp`, which starts servers on more ports; `--disable-metrics`."""


def _arguments(server: EngineServer) -> tuple[str, ...]:
    return (
        "serve",
        "api_server",
        str(server.model_path),
        "--model-name",
        server.served_name,
        "--server-name",
        loopback(server),
        "--server-port",
        str(server.port),
        "--disable-fastapi-docs",
        # no page of another site may use this server, and requests may name no media of other hosts
        "--allow-origins",
        "http://none.invalid",
        "--allowed-media-domains",
        "none.invalid",
        # prompts are logged below this level
        "--log-level",
        "WARNING",
        *server.args,
    )


def _folders(scratch: PurePosixPath) -> Mapping[str, str]:
    return folders(scratch, "lmdeploy", HF_MODULES_CACHE=f"{scratch}/hf-modules")


LAUNCH: Final = Launch(
    program="lmdeploy",
    arguments=_arguments,
    flags=_FLAGS,
    decided=_DECIDED,
    splits={"--tp": "tensor"},
    refused_variables=rf"{REFUSED_VARIABLES}|(?:LMDEPLOY|TM|UVICORN|SSL|RAY|TORCHELASTIC|MASTER)_\w+",
    environment={"UVICORN_LOG_LEVEL": "warning"},
    folders=_folders,
    gate=Gate(
        port=8001,
        inference=("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages(?:/count_tokens)?"),
        readable=("/v1/models",),
    ),
    # `--allowed-media-domains`
    since="0.15",
    cuda=12,
)
_GAUGE_LAG: Final = timedelta(seconds=10)
"""`log_interval` of its metrics logger."""


def _gauge(name: str, measures: metrics.Metric) -> EngineSeries:
    return EngineSeries(name=f"lmdeploy:{name}", measures=measures, refresh=Refresh.INTERVAL, lag=_GAUGE_LAG)


def _at_end(name: str, measures: metrics.Metric) -> EngineSeries:
    return EngineSeries(name=f"lmdeploy:{name}", measures=measures, refresh=Refresh.REQUEST_END, zero_while_busy=True)


CONTRACT: Final = Contract(
    kind="lmdeploy",
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
        errors=(
            TokenError.UNFINISHED_CACHED,
            TokenError.AFTER_LAST_SCRAPE,
        ),
    ),
    probes=Probes(alive="/health", alive_status="status=healthy"),
    drain=EngineDrain(stop=StopMode.FINISHES),
    launch=LAUNCH,
    sources=(
        "lmdeploy/metrics/loggers.py of InternLM/lmdeploy from v0.9.2 to v0.16.0",
        "lmdeploy/cli/serve.py, lmdeploy/cli/utils.py and lmdeploy/serve/openai of InternLM/lmdeploy at 1263d5c",
    ),
)
