"""The contract of Triton Inference Server with a TensorRT-LLM backend.

Its counters increase once for each execution of a model: for a request of the C++ backend when it ends, of the Python
backend (`llmapi`) when it starts. Its queue gauge counts executions that wait, and none that run. The gauges of the
C++ backend keep their last values after the last request; the Python backend has none. So only the gate
shows a request that runs. An ensemble counts one request under the names of several models, and its last
model once for each token of a stream: tokens are counted for the backend's model only. A request whose client
disconnects from an ensemble runs to its end.

The fleet starts Triton with its OpenAI-compatible frontend and its vLLM backend, the one that loads safetensors as
they are; such a page has no tokens. The frontend has no API key and registers endpoints that load models (they
fail in the mode `none`), so it is behind a gate. KServe's endpoints are off. The launch was not run on hardware here.
"""

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from serving import metrics
from serving.engines import vllm
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
from serving.engines.launch import ArgumentError, EngineServer, Gate, Launch, folders, loopback
from serving.releases import versions

_DECIDED: Final = frozenset(
    {
        "--model-repository",
        "--model-control-mode",
        "--load-model",
        "--tokenizer",
        "--host",
        "--openai-port",
        "--openai-restricted-api",
        "--enable-kserve-frontends",
        "--kserve-http-port",
        "--kserve-grpc-port",
        "--uvicorn-log-level",
    }
)
_FRONTEND: Final = frozenset({"--tool-call-parser", "--default-max-tokens", "--max-tool-call-parse-bytes"})
"""Flags of the frontend."""
_VALUES_OF_VLLM: Final[Mapping[str, type[int] | type[float] | type[str]]] = {
    "--tensor-parallel-size": int,
    "--pipeline-parallel-size": int,
    "--max-model-len": int,
    "--max-num-seqs": int,
    "--max-num-batched-tokens": int,
    "--max-logprobs": int,
    "--block-size": int,
    "--seed": int,
    "--gpu-memory-utilization": float,
    "--cpu-offload-gb": float,
    "--dtype": str,
    "--quantization": str,
    "--kv-cache-dtype": str,
}
"""vLLM's flags with a value. Triton's backend reads vLLM's arguments from a file, in which they have types."""
_SWITCHES_OF_VLLM: Final = frozenset(
    {
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--enable-chunked-prefill",
        "--no-enable-chunked-prefill",
        "--enable-expert-parallel",
        "--disable-custom-all-reduce",
        "--enforce-eager",
    }
)
_REPOSITORY: Final = "/tmp/models"  # noqa: S108 - a file system of the container's own, in memory
_PROGRAM: Final = "/opt/tritonserver/python/openai/openai_frontend/main.py"
_LAUNCHER: Final = """\
import os, pathlib, sys

repository, program, name, vllm, *arguments = sys.argv[1:]
folder = pathlib.Path(repository, name)
(folder / "1").mkdir(parents=True)
(folder / "1" / "model.json").write_text(vllm)
(folder / "config.pbtxt").write_text('backend: "vllm" instance_group [{ count: 1 kind: KIND_MODEL }]')
os.execv(sys.executable, [sys.executable, program, "--model-repository", repository, *arguments])
"""
"""Writes Triton's description of the model, and becomes the frontend. A model repository can contain code, so this
one is written here; the model's own folder is only read."""


def _arguments(server: EngineServer) -> tuple[str, ...]:
    of_vllm: dict[str, object] = {"model": str(server.model_path)}
    of_frontend: list[str] = []
    position = 0
    while position < len(server.args):
        flag, separator, value = server.args[position].partition("=")
        position += 1
        if flag in _SWITCHES_OF_VLLM:
            if separator:
                raise ArgumentError(f"engine argument {flag}: takes no value; remove {separator}{value}")
            name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
            of_vllm[name] = not flag.startswith("--no-")
            continue
        if flag not in LAUNCH.flags:
            raise ArgumentError(f"engine argument {flag}: follows no flag with a value; remove it")
        if not separator:
            value = server.args[position] if position < len(server.args) else ""
            position += 1
        if not value or value.startswith("--"):
            raise ArgumentError(f"engine argument {flag}: has no value; write one after the flag")
        if flag in _FRONTEND:
            of_frontend += [flag, value]
        else:
            of_vllm[flag.removeprefix("--").replace("-", "_")] = _typed(flag, value)
    return (
        "-c",
        _LAUNCHER,
        _REPOSITORY,
        _PROGRAM,
        server.served_name,
        json.dumps(of_vllm),
        "--tokenizer",
        str(server.model_path),
        "--host",
        loopback(server),
        "--openai-port",
        str(server.port),
        "--uvicorn-log-level",
        "warning",
        *of_frontend,
    )


def _typed(flag: str, value: str) -> int | float | str:
    kind = _VALUES_OF_VLLM[flag]
    try:
        return kind(value)
    except ValueError as error:
        expected = "a whole number" if kind is int else "a number"
        text = f"engine argument {flag}: expected {expected}, got {value!r}; write digits only"
        raise ArgumentError(text) from error


def _folders(scratch: PurePosixPath) -> Mapping[str, str]:
    return folders(scratch, "triton", VLLM_CACHE_ROOT=str(scratch))


LAUNCH: Final = Launch(
    program="python3",
    arguments=_arguments,
    flags=_FRONTEND | frozenset(_VALUES_OF_VLLM) | _SWITCHES_OF_VLLM,
    decided=_DECIDED,
    splits={"--tensor-parallel-size": "tensor", "--pipeline-parallel-size": "pipeline"},
    refused_variables=rf"{vllm.LAUNCH.refused_variables}|(?:TRITON|TRITONSERVER|OTEL)_\w*",
    # releases of vLLM before 0.10 log prompts at the level INFO
    environment={"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
    folders=_folders,
    gate=Gate(
        port=8001,
        inference=("/v1/chat/completions", "/v1/completions", "/v1/embeddings"),
        readable=("/v1/models",),
    ),
    name_is_folder=True,
    # the frontend is in the image, with all of these flags
    since="2.61",
    cuda=12,
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
    kind="triton",
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
            refresh=Refresh.ITERATION,
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
            *GATE,
            metrics.OPEN_REQUESTS,
            metrics.WORK_STEPS,
        ),
        idle=(*GATE, metrics.WORK_STEPS),
    ),
    tokens=TokenRecord(
        source=TokenSource.HISTOGRAM,
        error="only of models of the TensorRT-LLM backend, counted when a request ends; vLLM backend: unknown",
        errors=(
            TokenError.REQUEST_END,
            TokenError.OTHER_MODELS,
            TokenError.AFTER_LAST_SCRAPE,
        ),
    ),
    probes=Probes(alive="/health/ready"),
    labels=CounterLabels(model="model", engine="version", parts=("response_metric_type",)),
    drain=EngineDrain(stop=StopMode.FINISHES),
    launch=LAUNCH,
    run="2.51.0 on CPUs, its numbers only",
    sources=(
        "python/openai of triton-inference-server/server from v2.52.0 to v2.71.0, and at e1db8a6",
        "src/model.py of triton-inference-server/vllm_backend at 8de0c14",
        "docs/user_guide/metrics.md of triton-inference-server/server at e1db8a6",
        "pages of a running Triton 2.51.0 server: idle, busy, and those of ten scripted runs of a Python backend",
    ),
)
