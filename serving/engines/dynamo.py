"""The contract of NVIDIA Dynamo: the numbers of its frontend.

The frontend counts each request once. Its workers pass the numbers of their own engines through; with separate
prefill and decode workers both count the prompt, so workers are not counted. It does not report its release: the
image's tag does. Its `/health` and `/live` answer 200 without any worker; its list of models is empty until the
worker has loaded the model.

The fleet starts a frontend and one vLLM worker in one container, which find each other by files. Neither has an API
key, and the worker's own HTTP server has endpoints that change the model: it is off, and the frontend is behind a
gate. The worker publishes its load, one way, at a port of all addresses, which no setting changes: the network's
firewall admits no caller there. The launch was run with a simulated worker, and not on GPUs.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from serving import metrics
from serving.engines import vllm
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
from serving.engines.launch import EngineServer, Gate, Launch, folders, loopback
from serving.metrics import MetricKind
from serving.releases import versions

_DECIDED: Final = frozenset(
    {
        "--model",
        "--served-model-name",
        "--http-host",
        "--http-port",
        "--kv-events-config",
        "--discovery-backend",
        "--request-plane",
        "--event-plane",
    }
)
_ELSEWHERE: Final = frozenset(
    {
        # of vLLM's API server, which does not run here
        "--api-server-count",
        "-asc",
        "--chat-template-content-format",
        "--enable-auto-tool-choice",
        "--enable-force-include-usage",
        "--enable-prompt-tokens-details",
        "--tool-call-parser",
        "--uvicorn-log-level",
        # the frontend routes by the worker's statistics
        "--disable-log-stats",
        # ranks have addresses of their own
        "--data-parallel-size",
        "-dp",
        # the fleet starts it without adapters
        "--max-loras",
        "--max-cpu-loras",
        "--max-lora-rank",
        "--lora-dtype",
        "--fully-sharded-loras",
    }
)
_FLAGS: Final = (vllm.LAUNCH.flags - _ELSEWHERE) | {
    "--dyn-tool-call-parser",
    "--dyn-reasoning-parser",
    "--engine-request-limit",
}
"""Flags of the worker. The frontend has none: with one worker there is nothing to route."""
_LAUNCHER: Final = """\
import os, signal, sys

limit, worker = int(sys.argv[1]), sys.argv.index("dynamo.vllm")
foreign = ("DYN_", "NATS_", "ETCD_", "OTEL_", "MODEL_EXPRESS_")
variables = {name: value for name, value in os.environ.items() if not name.upper().startswith(foreign)}
variables |= {
    "DYN_DISCOVERY_BACKEND": "file",
    "DYN_FILE_KV": "/tmp/dynamo",
    "DYN_REQUEST_PLANE": "tcp",
    "DYN_EVENT_PLANE": "zmq",
    # the default is the machine's address, at which all listen but the publisher of events
    "DYN_TCP_RPC_HOST": "127.0.0.1",
    "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
    "DYN_EVENT_PLANE_HOST": "127.0.0.1",
    # the worker has no HTTP server, so it does not serve the tokenizer's files by HTTP
    "DYN_SYSTEM_PORT": "-1",
    "DYN_SELF_HOST_METADATA": "0",
    "DYN_DISABLE_FRONTEND_ADMIN_API": "1",
    # such a check generates a token
    "DYN_HEALTH_CHECK_ENABLED": "false",
}
running = {}
stopping = False


def start(module, *arguments):
    command = [sys.executable, "-m", module, *arguments]
    running[os.spawnve(os.P_NOWAIT, sys.executable, command, variables)] = module


def stop(*_):
    global stopping
    if len(running) < 2 and not stopping:
        sys.exit(0)
    stopping = True
    # the frontend finishes its requests with the worker
    for process in list(running)[:1]:
        os.kill(process, signal.SIGTERM)
    signal.alarm(limit)


def cut(*_):
    for process in running:
        os.kill(process, signal.SIGKILL)


def wait_for_end():
    process, status = os.wait()
    while process not in running:
        process, status = os.wait()
    print(running.pop(process), "ended:", os.waitstatus_to_exitcode(status), file=sys.stderr)


signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGALRM, cut)
start("dynamo.frontend", *sys.argv[2:worker])
start(*sys.argv[worker:])
wait_for_end()
if not stopping:
    signal.alarm(30)
for process in running:
    os.kill(process, signal.SIGTERM)
wait_for_end()
sys.exit(0 if stopping else 1)
"""
"""Runs the frontend and the worker until one of them ends, and then ends the other one. After SIGTERM the frontend
ends first, and both end within the time limit. `DYN_…` variables configure everything, so none is inherited."""


def _arguments(server: EngineServer) -> tuple[str, ...]:
    return (
        "-c",
        _LAUNCHER,
        str(server.shutdown_timeout_s),
        "--http-host",
        loopback(server),
        "--http-port",
        str(server.port),
        "dynamo.vllm",
        "--model",
        str(server.model_path),
        "--served-model-name",
        server.served_name,
        # releases before 1.2 publish them on all addresses
        "--kv-events-config",
        '{"enable_kv_cache_events": false}',
        *server.args,
    )


def _folders(scratch: PurePosixPath) -> Mapping[str, str]:
    return folders(scratch, "dynamo", VLLM_CACHE_ROOT=str(scratch))


LAUNCH: Final = Launch(
    # the frontend's image has another program as its entry point
    program="python3",
    arguments=_arguments,
    flags=_FLAGS,
    decided=_DECIDED,
    splits={flag: dimension for flag, dimension in vllm.LAUNCH.splits.items() if flag in _FLAGS},
    values=vllm.LAUNCH.values,
    refused_variables=rf"{vllm.LAUNCH.refused_variables}|(?:DYN|DYNAMO|NATS|ETCD|OTEL|MODEL_EXPRESS|NIXL)_\w*",
    environment={"VLLM_NO_USAGE_STATS": "1"},
    folders=_folders,
    gate=Gate(
        port=8001,
        inference=("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
        readable=("/v1/models", "/live"),
    ),
    # `--discovery-backend`, and TCP between frontend and worker
    since="1.0",
    cuda=12,
)


def _frontend(name: str, measures: metrics.Metric, refresh: Refresh) -> EngineSeries:
    constant = refresh is not Refresh.REQUEST and measures.kind is MetricKind.COUNTER
    return EngineSeries(
        name=f"dynamo_frontend_{name}",
        measures=measures,
        refresh=refresh,
        zero_while_busy=constant,
    )


CONTRACT: Final = Contract(
    kind="dynamo",
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
        errors=(
            TokenError.REQUEST_END,
            TokenError.AFTER_LAST_SCRAPE,
        ),
    ),
    probes=Probes(alive="/v1/models", alive_status="data"),
    labels=CounterLabels(model="model"),
    drain=EngineDrain(stop=StopMode.FINISHES),
    launch=LAUNCH,
    run="1.6.1: its frontend with a simulated worker",
    sources=(
        "dynamo/frontend, dynamo/vllm and dynamo/common of the packages of Dynamo 1.0.0 to 1.6.1",
        "lib/runtime/src/config/environment_names.rs of ai-dynamo/dynamo at 00ebc550",
        "lib/runtime/src/metrics/prometheus_names.rs of ai-dynamo/dynamo",
        "docs/observability/metrics_examples/fe.log of ai-dynamo/dynamo: a page of a running frontend",
    ),
)
