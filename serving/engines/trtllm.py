"""The contract of TensorRT-LLM's own server, `trtllm-serve`.

Its request counters increase only when a request ends. Its gauges come from a loop that sleeps until a request ends:
they can be 0 while the first long request runs, and above 0 after the last one. So only the gate shows a request
that runs. The page exists only with `return_perf_metrics`, its gauges only with `enable_iter_perf_stats`.

It has no API key, and always registers endpoints that change the model (`/update_weights`, `/release_memory`), so the
fleet starts it behind a gate. The launch was not run on hardware here.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from serving import metrics
from serving.engines.contract import (
    GATE,
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
from serving.engines.launch import REFUSED_VARIABLES, EngineServer, Gate, Launch, folders, loopback
from serving.releases import versions

_DECIDED: Final = frozenset(
    {
        "--host",
        "--port",
        "--served_model_name",
        "--config",
        "--extra_llm_api_options",
        "--log_level",
    }
)
_FLAGS: Final = frozenset(
    {
        # distribution of a model over GPUs
        "--tensor_parallel_size",
        "--tp_size",
        "--pipeline_parallel_size",
        "--pp_size",
        "--context_parallel_size",
        "--cp_size",
        "--moe_expert_parallel_size",
        "--ep_size",
        "--moe_cluster_parallel_size",
        "--cluster_size",
        "--gpus_per_node",
        # memory and batches
        "--max_batch_size",
        "--max_num_tokens",
        "--max_seq_len",
        "--max_beam_width",
        "--free_gpu_memory_fraction",
        "--kv_cache_free_gpu_memory_fraction",
        "--enable_chunked_prefill",
        "--num_postprocess_workers",
        "--fail_fast_on_attention_window_too_large",
        # numbers and kernels
        "--backend",
        "--kv_cache_dtype",
        # responses
        "--reasoning_parser",
        "--tool_parser",
    }
)
_WITH_OPTIONS: Final = (
    "import os,sys;"
    "path='/tmp/gpufleet-options.yaml';"
    "open(path,'w').write('{return_perf_metrics: true, enable_iter_perf_stats: true}');"
    "os.execvp('trtllm-serve',['trtllm-serve','serve',*sys.argv[1:],'--extra_llm_api_options',path])"
)
"""The metrics are options of a YAML file only. It overrides every flag, so settings must not contain one."""


def _arguments(server: EngineServer) -> tuple[str, ...]:
    return (
        "-c",
        _WITH_OPTIONS,
        str(server.model_path),
        "--served_model_name",
        server.served_name,
        "--host",
        loopback(server),
        "--port",
        str(server.port),
        "--log_level",
        "warning",
        *server.args,
    )


def _folders(scratch: PurePosixPath) -> Mapping[str, str]:
    return folders(scratch, "trtllm", FLASHINFER_WORKSPACE_BASE=str(scratch))


LAUNCH: Final = Launch(
    program="python3",
    arguments=_arguments,
    flags=_FLAGS,
    decided=_DECIDED,
    splits={
        "--tensor_parallel_size": "tensor",
        "--tp_size": "tensor",
        "--pipeline_parallel_size": "pipeline",
        "--pp_size": "pipeline",
        "--context_parallel_size": "context",
        "--cp_size": "context",
    },
    # the other backends load compiled engines
    values={"--backend": frozenset({"pytorch"})},
    refused_variables=rf"{REFUSED_VARIABLES}|(?:TLLM|OMPI|PMIX|PRTE)_\w*|TRTLLM_(?!ENABLE_)\w*",
    # usage reports to its vendor are on by default in newer builds
    environment={"TRTLLM_NO_USAGE_STATS": "1"},
    folders=_folders,
    gate=Gate(
        port=8001,
        inference=("/v1/completions", "/v1/chat/completions"),
        readable=("/version", "/v1/models"),
    ),
    cuda=13,
)


def _at_end(name: str, measures: metrics.Metric) -> EngineSeries:
    return EngineSeries(name=f"trtllm_{name}", measures=measures, refresh=Refresh.REQUEST_END, zero_while_busy=True)


def _gauge(name: str, measures: metrics.Metric) -> EngineSeries:
    return EngineSeries(
        name=f"trtllm_{name}", measures=measures, refresh=Refresh.REQUEST_END, zero_while_busy=True, kept_at_rest=True
    )


CONTRACT: Final = Contract(
    kind="trtllm",
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
            *GATE,
            metrics.PROMPT_TOKENS,
            metrics.GENERATION_TOKENS,
            metrics.REQUEST_SUCCESS,
        ),
        idle=(
            *GATE,
            metrics.PROMPT_TOKENS,
            metrics.GENERATION_TOKENS,
            metrics.REQUEST_SUCCESS,
        ),
    ),
    tokens=TokenRecord(
        source=TokenSource.ENGINE,
        error="counted when a request ends; a stream that its client leaves is not counted",
        errors=(
            TokenError.REQUEST_END,
            TokenError.ABANDONED,
            TokenError.AFTER_LAST_SCRAPE,
        ),
    ),
    # its `/metrics` is another document, and reading that one empties it
    probes=Probes(alive="/health", version="/version", metrics="/prometheus/metrics"),
    labels=CounterLabels(parts=("engine_type",)),
    drain=EngineDrain(stop=StopMode.CUTS),
    launch=LAUNCH,
    sources=(
        "tensorrt_llm/metrics/collector.py and tensorrt_llm/serve/openai_server.py of NVIDIA/TensorRT-LLM",
        "tensorrt_llm/commands/serve.py of NVIDIA/TensorRT-LLM at 00209af, documentation of trtllm-serve 1.3",
    ),
)
