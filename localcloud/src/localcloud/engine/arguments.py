"""The flags of `vllm serve` that our settings use. An unknown flag is an error, as it is for vLLM."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """The command line of the simulated engine."""

    model: Path
    served_names: tuple[str, ...]
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
    token_s: float
    """Time per output token of a request that runs alone."""
    prefill_tokens_per_s: float
    load_s: float
    """Least time that loading takes, on top of reading the files."""


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
    """Read the command line (after the program). Exits with 2 and a message where vLLM would."""
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
        token_s=float(os.environ.get("GPUFLEET_SIM_TOKEN_MS", "15")) / 1000,
        prefill_tokens_per_s=float(os.environ.get("GPUFLEET_SIM_PREFILL_TOKENS_PER_S", "20000")),
        load_s=float(os.environ.get("GPUFLEET_SIM_LOAD_S", "0")),
    )
