"""The flags of each engine that settings use. Unknown flags are errors, as for them."""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

_TAKEN_AND_UNUSED = (
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--api-server-count",
    "--gpu-memory-utilization",
    "--max-num-batched-tokens",
    "--kv-cache-dtype",
    "--dtype",
    "--quantization",
    "--load-format",
    "--safetensors-load-strategy",
    "--tokenizer",
    "--chat-template",
    "--distributed-executor-backend",
    "--download-dir",
    "--seed",
    "--uvicorn-log-level",
    "--speculative-config",
    "--scheduling-policy",
    "--max-loras",
    "--max-cpu-loras",
    "--max-lora-rank",
    "--lora-dtype",
)
_SWITCHES_UNUSED = (
    "--enforce-eager",
    "--enable-chunked-prefill",
    "--trust-remote-code",
    "--enable-request-id-headers",
    "--async-scheduling",
    "--no-enable-log-requests",
    "--enable-log-requests",
    "--disable-log-stats",
    "--enable-scale-out",
)


def _token_s() -> float:
    return float(os.environ.get("GPUFLEET_SIM_TOKEN_MS", "15")) / 1000


def _prefill_tokens_per_s() -> float:
    return float(os.environ.get("GPUFLEET_SIM_PREFILL_TOKENS_PER_S", "20000"))


def _load_s() -> float:
    return float(os.environ.get("GPUFLEET_SIM_LOAD_S", "0"))


def _release() -> str | None:
    return os.environ.get("GPUFLEET_SIM_RELEASE") or None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """The command line of the simulated engine. Its speed and release come from the environment."""

    kind: str = "vllm"
    model: Path
    served_names: tuple[str, ...]
    adapters: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """LoRA adapters: the engine's own name of each, and its folder."""
    host: str
    port: int
    max_model_len: int | None
    max_num_seqs: int
    block_size: int
    kv_cache_bytes: int | None
    prefix_caching: bool
    max_num_queued_reqs: int | None
    shutdown_timeout_s: int
    api_key: str | None
    token_s: float = field(default_factory=_token_s)
    """Time per output token of a request that runs alone."""
    prefill_tokens_per_s: float = field(default_factory=_prefill_tokens_per_s)
    load_s: float = field(default_factory=_load_s)
    """Minimum loading time, on top of reading the files."""
    release: str | None = field(default_factory=_release)
    """The release that it reports; None: the one that it simulates."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"simulated engine: error: {message}\n")


def human_int(text: str) -> int:
    """`8M` and `1k`, as vLLM writes sizes: k, m, g, t are decimal and K, M, G, T binary."""
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    if text and text[-1] in units:
        return int(float(text[:-1]) * units[text[-1]])
    return int(text)


def parse(argv: Sequence[str]) -> SimulatorSettings:
    """Read the command line (after the program). Exits with 2 and a message where the engine would."""
    if argv[:2] == ["serve", "api_server"]:
        return _parse_lmdeploy(argv[2:])
    if argv[:1] != ["-c"]:
        return _parse_vllm(argv)
    return next(parser for name, parser in _OF_PYTHON.items() if name in argv[1])(argv[2:])


def _adapters(parser: _Parser, enabled: bool, pairs: Sequence[str]) -> dict[str, Path]:
    if pairs and not enabled:
        parser.error("adapters need --enable-lora")
    return {name: Path(path) for name, _, path in (pair.partition("=") for pair in pairs)}


_SGLANG_UNUSED: Final = (
    "--allowed-media-domains",
    "--log-level",
    "--tp-size",
    "--pp-size",
    "--dp-size",
    "--ep-size",
    "--mem-fraction-static",
    "--chunked-prefill-size",
    "--kv-cache-dtype",
    "--dtype",
    "--quantization",
    "--attention-backend",
    "--sampling-backend",
    "--random-seed",
    "--device",
    "--max-lora-rank",
    "--max-loras-per-batch",
    "--max-loaded-loras",
)


def _parse_sglang(argv: Sequence[str]) -> SimulatorSettings:
    parser = _Parser(prog="sglang", description="Simulated engine with the API of SGLang.", allow_abbrev=False)
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--context-length", type=int)
    parser.add_argument("--max-running-requests", type=int, default=256)
    parser.add_argument("--max-queued-requests", type=int)
    parser.add_argument("--max-total-tokens", type=int)
    parser.add_argument("--disable-radix-cache", action="store_true")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--lora-paths", nargs="*", default=[])
    for switch in ("--enable-metrics", "--sleep-on-idle", "--disable-cuda-graph", "--enable-cache-report"):
        parser.add_argument(switch, action="store_true")
    for flag in _SGLANG_UNUSED:
        parser.add_argument(flag)
    given = parser.parse_args(argv)
    return SimulatorSettings(
        kind="sglang",
        model=given.model_path,
        served_names=(given.served_model_name,),
        # the flag is optional there
        adapters=_adapters(parser, True, given.lora_paths),
        host=given.host,
        port=given.port,
        max_model_len=given.context_length,
        max_num_seqs=given.max_running_requests,
        block_size=1,
        kv_cache_bytes=None,
        prefix_caching=not given.disable_radix_cache,
        max_num_queued_reqs=given.max_queued_requests,
        shutdown_timeout_s=0,
        api_key=os.environ.get("SGLANG_ENGINE_KEY") or None,
    )


_TRTLLM_UNUSED: Final = (
    "--log_level",
    "--backend",
    "--tensor_parallel_size",
    "--tp_size",
    "--pipeline_parallel_size",
    "--pp_size",
    "--moe_expert_parallel_size",
    "--ep_size",
    "--max_num_tokens",
    "--free_gpu_memory_fraction",
    "--kv_cache_dtype",
)


def _parse_trtllm(argv: Sequence[str]) -> SimulatorSettings:
    parser = _Parser(prog="trtllm-serve", description="Simulated engine with the API of TensorRT-LLM.")
    parser.allow_abbrev = False
    parser.add_argument("model", type=Path)
    parser.add_argument("--served_model_name", required=True)
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max_seq_len", type=int)
    parser.add_argument("--max_batch_size", type=int, default=256)
    parser.add_argument("--enable_chunked_prefill", action="store_true")
    for flag in _TRTLLM_UNUSED:
        parser.add_argument(flag)
    given = parser.parse_args(argv)
    return _without_key(
        "trtllm",
        given.model,
        given.served_model_name,
        (given.host, given.port),
        max_model_len=given.max_seq_len,
        max_num_seqs=given.max_batch_size,
    )


def _parse_lmdeploy(argv: Sequence[str]) -> SimulatorSettings:
    parser = _Parser(prog="lmdeploy", description="Simulated engine with the API of LMDeploy.", allow_abbrev=False)
    parser.add_argument("model", type=Path)
    parser.add_argument("--model-name", required=True)
    parser.add_argument("--server-name", required=True)
    parser.add_argument("--server-port", type=int, required=True)
    parser.add_argument("--session-len", type=int)
    parser.add_argument("--max-batch-size", type=int, default=256)
    parser.add_argument("--disable-fastapi-docs", action="store_true")
    for flag in ("--allow-origins", "--allowed-media-domains"):
        parser.add_argument(flag, nargs="+")
    for flag in ("--log-level", "--tp", "--backend", "--quant-policy", "--cache-max-entry-count"):
        parser.add_argument(flag)
    given = parser.parse_args(argv)
    return _without_key(
        "lmdeploy",
        given.model,
        given.model_name,
        (given.server_name, given.server_port),
        max_model_len=given.session_len,
        max_num_seqs=given.max_batch_size,
    )


def _parse_dynamo(argv: Sequence[str]) -> SimulatorSettings:
    """Read the arguments of the launcher: a time limit, those of the frontend, and those of the worker."""
    parser = _Parser(prog="dynamo", description="Simulated engine with the API of Dynamo.", allow_abbrev=False)
    parser.add_argument("limit", type=int)
    parser.add_argument("--http-host", required=True)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    for flag in ("--kv-events-config", "--tensor-parallel-size", "--gpu-memory-utilization"):
        parser.add_argument(flag)
    given = parser.parse_args([argument for argument in argv if argument != "dynamo.vllm"])
    return _without_key(
        "dynamo",
        given.model,
        given.served_model_name,
        (given.http_host, given.http_port),
        max_model_len=given.max_model_len,
        max_num_seqs=given.max_num_seqs,
        shutdown_timeout_s=given.limit,
    )


def _parse_triton(argv: Sequence[str]) -> SimulatorSettings:
    """Read the arguments of the launcher: folders, the model's name, vLLM's arguments, and those of the frontend."""
    parser = _Parser(prog="triton", description="Simulated engine with the API of Triton.", allow_abbrev=False)
    for name in ("repository", "program", "name"):
        parser.add_argument(name)
    parser.add_argument("vllm", type=json.loads)
    parser.add_argument("--host", required=True)
    parser.add_argument("--openai-port", type=int, required=True)
    for flag in ("--tokenizer", "--uvicorn-log-level", "--default-max-tokens", "--tool-call-parser"):
        parser.add_argument(flag)
    given = parser.parse_args(argv)
    return _without_key(
        "triton",
        Path(given.tokenizer),
        given.name,
        (given.host, given.openai_port),
        max_model_len=given.vllm.get("max_model_len"),
        max_num_seqs=given.vllm.get("max_num_seqs", 256),
    )


def _without_key(  # noqa: PLR0913 - one for each argument of an engine
    kind: str,
    model: Path,
    name: str,
    address: tuple[str, int],
    *,
    max_model_len: int | None,
    max_num_seqs: int,
    shutdown_timeout_s: int = 0,
) -> SimulatorSettings:
    """Return the settings of an engine behind a gate."""
    return SimulatorSettings(
        kind=kind,
        model=model,
        served_names=(name,),
        host=address[0],
        port=address[1],
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        block_size=32,
        kv_cache_bytes=None,
        prefix_caching=True,
        max_num_queued_reqs=None,
        shutdown_timeout_s=shutdown_timeout_s,
        api_key=None,
    )


_OF_PYTHON: Final[Mapping[str, Callable[[Sequence[str]], SimulatorSettings]]] = {
    "sglang": _parse_sglang,
    "trtllm-serve": _parse_trtllm,
    "dynamo.frontend": _parse_dynamo,
    "KIND_MODEL": _parse_triton,
}
"""Name in the program of `python3 -c PROGRAM` -> the parser of its other arguments."""


def _parse_vllm(argv: Sequence[str]) -> SimulatorSettings:
    parser = _Parser(prog="vllm", description="Simulated engine with the API of vLLM.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve")
    serve.add_argument("model", type=Path)
    serve.add_argument("--served-model-name", nargs="+", default=[])
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--max-model-len", type=human_int)
    serve.add_argument("--max-num-seqs", type=int, default=256)
    serve.add_argument("--block-size", type=int, default=16)
    serve.add_argument("--kv-cache-memory-bytes", type=human_int)
    serve.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    serve.add_argument("--max-num-queued-reqs", type=int)
    serve.add_argument("--shutdown-timeout", type=int, default=0)
    serve.add_argument("--api-key", default=os.environ.get("VLLM_API_KEY"))
    serve.add_argument("--enable-lora", action="store_true")
    serve.add_argument("--lora-modules", nargs="+", default=[])
    for flag in _TAKEN_AND_UNUSED:
        serve.add_argument(flag)
    for flag in _SWITCHES_UNUSED:
        serve.add_argument(flag, action="store_true")
    given = serve.parse_args(argv[1:]) if argv[:1] == ["serve"] else parser.parse_args(argv)
    if given.shutdown_timeout < 0:
        serve.error(f"--shutdown-timeout {given.shutdown_timeout}: must be 0 or more")
    return SimulatorSettings(
        model=given.model,
        served_names=tuple(given.served_model_name) or (str(given.model),),
        adapters=_adapters(serve, given.enable_lora, given.lora_modules),
        host=given.host,
        port=given.port,
        max_model_len=given.max_model_len,
        max_num_seqs=given.max_num_seqs,
        block_size=given.block_size,
        kv_cache_bytes=given.kv_cache_memory_bytes,
        prefix_caching=given.enable_prefix_caching,
        max_num_queued_reqs=given.max_num_queued_reqs,
        shutdown_timeout_s=given.shutdown_timeout,
        api_key=given.api_key or None,
    )
