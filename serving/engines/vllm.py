"""The contract of vLLM.

While it drains, a new request gets 500; one whose prompt is token IDs gets 200 without a token. Requests whose
clients disconnect are not in its number of finished requests; their tokens are counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from serving.engines.launch import REFUSED_VARIABLES, AdapterName, EngineServer, Launch, folders
from serving.releases import versions

_DECIDED: Final = frozenset(
    {
        "--model",
        "--host",
        "--port",
        "--served-model-name",
        "--shutdown-timeout",
        "--api-key",
        "--download-dir",
        "--root-path",
        "--uds",
        "--enable-lora",
        "--lora-modules",
    }
)
"""Flags that only the agent sets."""
_FLAGS: Final = frozenset(
    {
        # distribution of a model over GPUs
        "--tensor-parallel-size",
        "-tp",
        "--pipeline-parallel-size",
        "-pp",
        "--data-parallel-size",
        "-dp",
        "--enable-expert-parallel",
        "--api-server-count",
        "-asc",
        "--disable-custom-all-reduce",
        "--cpu-offload-gb",
        # memory and batches
        "--max-model-len",
        "--gpu-memory-utilization",
        "--kv-cache-memory-bytes",
        "--kv-cache-dtype",
        "--block-size",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--max-num-queued-reqs",
        "--long-prefill-token-threshold",
        "--enable-chunked-prefill",
        "--no-enable-chunked-prefill",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--prefix-caching-hash-algo",
        "--scheduling-policy",
        "--async-scheduling",
        "--no-async-scheduling",
        "--limit-mm-per-prompt",
        "--mm-processor-cache-gb",
        # numbers and kernels
        "--dtype",
        "--quantization",
        "-q",
        "--enforce-eager",
        "--seed",
        "--safetensors-load-strategy",
        "--load-format",
        "--speculative-config",
        "--runner",
        "--convert",
        # LoRA adapters, which the pool names
        "--max-loras",
        "--max-cpu-loras",
        "--max-lora-rank",
        "--lora-dtype",
        "--fully-sharded-loras",
        # responses
        "--max-logprobs",
        "--generation-config",
        "--override-generation-config",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "--reasoning-parser",
        "--chat-template-content-format",
        "--enable-prompt-tokens-details",
        "--enable-force-include-usage",
        # logs, without prompts
        "--uvicorn-log-level",
        "--disable-log-stats",
        "--no-enable-log-requests",
    }
)
"""Flags that settings may contain. Other flags are not reviewed, or load code (`--middleware`, plugins), read files
of the machine (`--config`, `--allowed-local-media-path`), load other weight formats, or write prompts to logs."""
_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "--load-format": frozenset({"auto", "safetensors", "dummy", "runai_streamer", "fastsafetensors"})
}
"""Allowed values of flags that also have unsafe values: pickles can run code."""
_REFUSED: Final = (
    rf"{REFUSED_VARIABLES}|(?:VLLM_ALLOW_|VLLM_SERVER_DEV)\w*"
    r"|VLLM_(?:PLUGINS|CACHE_ROOT|CONFIG_ROOT|ASSETS_CACHE|USE_MODELSCOPE|HOST_IP|API_KEY|DEBUG_\w+|TORCH_PROFILER_DIR"
    r"|NCCL_SO_PATH|LOGGING_CONFIG_PATH)"
)
"""Variables that also make vLLM load other code, open endpoints that change it, or send data to another host."""
_ENVIRONMENT: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    # Seconds that the engine keeps the router's idle connections open. vLLM's default of 5 would close some just when
    # a request arrives.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
}
_LORAS_PER_BATCH: Final = 8
"""Adapters that use GPU memory at the same time, unless the settings specify a number. SGLang's default."""
_LATE_KERNELS: Final = "/usr/local/lib/python3.12/dist-packages/flashinfer_cubin/cubins/flashinfer"
"""Folder inside its own package where FlashInfer creates links for some mixture-of-experts models (flashinfer#2834);
the image lacks this folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """The options of a vLLM server. None: vLLM's own default."""

    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    """Copies of the model behind one address; each uses `tensor × pipeline` GPUs of its own."""
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    dtype: str | None = None
    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool | None = None
    enable_expert_parallel: bool = False
    speculative_config: str | None = None
    max_num_queued_reqs: int | None = None
    safetensors_load_strategy: str | None = None
    enforce_eager: bool = False

    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of `vllm serve`, in the order of the fields, without vLLM's defaults."""
        given: list[str] = []
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            flag = "--" + name.replace("_", "-")
            if value is True:
                given.append(flag)
            elif value is False and name == "enable_prefix_caching":
                given.append("--no-enable-prefix-caching")
            elif value in (None, False) or (value == 1 and name.endswith("_parallel_size")):
                continue
            else:
                given += [flag, str(value)]
        return tuple(given)


def _arguments(server: EngineServer) -> tuple[str, ...]:
    return (
        "serve",
        str(server.model_path),
        "--served-model-name",
        server.served_name,
        "--host",
        server.host,
        "--port",
        str(server.port),
        "--shutdown-timeout",
        str(server.shutdown_timeout_s),
        *server.args,
        *_one_front(server.args),
        *_adapters(server),
    )


def _one_front(args: Sequence[str]) -> tuple[str, ...]:
    """Use one API server for several copies of a model, unless the settings specify a number.

    By default, vLLM starts one API server per copy (`api_server_count`, vllm/entrypoints/cli/serve.py of 0.32).
    Several API servers share a page without `process_*` (vllm/v1/metrics/prometheus.py), so the idle watchdog could
    never judge it.
    """
    flags = {arg.partition("=")[0] for arg in args}
    copies = bool(flags & {"--data-parallel-size", "-dp"})
    return ("--api-server-count", "1") if copies and not flags & {"--api-server-count", "-asc"} else ()


def _adapters(server: EngineServer) -> tuple[str, ...]:
    """Load the adapters. By default, vLLM keeps one of them in memory and reads the others from disk when requested
    (`max_loras`, `max_cpu_loras` in vllm/config/lora.py of 0.32).
    """
    if not server.adapters:
        return ()
    flags = {arg.partition("=")[0] for arg in server.args}
    count = len(server.adapters)
    memory = ("--max-loras", str(min(count, _LORAS_PER_BATCH)), "--max-cpu-loras", str(count))
    return (
        "--enable-lora",
        *(() if flags & {"--max-loras", "--max-cpu-loras"} else memory),
        "--lora-modules",
        *(f"{name}={path}" for name, path in server.adapters.items()),
    )


def _folders(scratch: PurePosixPath) -> Mapping[str, str]:
    return folders(scratch, "vllm", VLLM_CACHE_ROOT=str(scratch))


LAUNCH: Final = Launch(
    program="vllm",
    arguments=_arguments,
    key_variable="VLLM_API_KEY",
    flags=_FLAGS,
    decided=_DECIDED,
    splits={
        "--tensor-parallel-size": "tensor",
        "-tp": "tensor",
        "--pipeline-parallel-size": "pipeline",
        "-pp": "pipeline",
    },
    values=_VALUES,
    refused_variables=_REFUSED,
    environment=_ENVIRONMENT,
    folders=_folders,
    temporary=(_LATE_KERNELS,),
    adapters=AdapterName.ANY,
    cuda=12,
)
CONTRACT: Final = Contract(
    kind="vllm",
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
        EngineSeries(
            name="vllm:request_queue_time_seconds",
            measures=metrics.QUEUE_TIME,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
        EngineSeries(
            name="vllm:request_prefill_time_seconds",
            measures=metrics.PREFILL_TIME,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
        EngineSeries(
            name="vllm:request_decode_time_seconds",
            measures=metrics.DECODE_TIME,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
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
        errors=(TokenError.AFTER_LAST_SCRAPE,),
        per_adapter=True,
    ),
    probes=Probes(alive="/health", version="/version"),
    drain=EngineDrain(stop=StopMode.FINISHES),
    launch=LAUNCH,
    run="0.32.0 on CPUs",
    sources=(
        "vllm/v1/metrics/loggers.py of vLLM 0.32.0, and of 0.9.3 to 0.21.0 for the names by release",
        "the page of a running vLLM 0.32.0 server",
    ),
)
