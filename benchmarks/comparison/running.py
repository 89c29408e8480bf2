"""Starts engines as the node agent does: real ones and simulated ones, by their contracts' arguments."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import httpx

from benchmarks.comparison.player import CAPACITY, CONTEXT, QUEUE, contract_of
from gpufleet.toolchain.folders import ROOT
from serving.engines.launch import OFFLINE, EngineServer, check_arguments

KEY: Final = "key-of-the-comparison-0123456789"
NAME: Final = "tiny"
START_LIMIT_S: Final = 600
"""Real engines need 20 s to 90 s on two cores without other work."""
DRAIN_S: Final = 120
_TOKEN_MS: Final = 2
"""Of engines that compute nothing, in milliseconds."""
_VLLM: Final = (
    *("--max-model-len", str(CONTEXT), "--max-num-seqs", str(CAPACITY), "--block-size", "32"),
    *("--kv-cache-memory-bytes", "16M", "--max-num-queued-reqs", str(CAPACITY + QUEUE)),
)
_SGLANG: Final = (
    *("--max-running-requests", str(CAPACITY), "--max-queued-requests", str(QUEUE), "--context-length", str(CONTEXT)),
)
_ARGUMENTS: Final = {"vllm": _VLLM, "sglang": _SGLANG}
_MODULES: Final = {
    "vllm": "localcloud.vllm",
    "sglang": "localcloud.sglang",
    "triton": "localcloud.triton",
}


@dataclass(slots=True, kw_only=True)
class RunningEngine:
    """A process that serves."""

    kind: str
    url: str
    metrics_url: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self, limit_s: float) -> int | None:
        """Its exit code; None: it did not end."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None


def _command(kind: str, model: Path, ports: tuple[int, int], *, is_real: bool) -> list[str]:
    module = _MODULES[kind] if is_real else "localcloud.engine"
    launch = contract_of(kind).launch
    port, metrics_port = ports
    if launch is None:
        addresses = [f"--http-port={port}", f"--metrics-port={metrics_port}", "--http-address=127.0.0.1"]
        more = ["--metrics-address=127.0.0.1", "--allow-grpc=false", "--allow-gpu-metrics=false"]
        return [sys.executable, "-m", module, str(model), *addresses, *more, f"--exit-timeout-secs={DRAIN_S}"]
    args = _ARGUMENTS[kind]
    check_arguments(launch, args)
    server = EngineServer(
        model_path=PurePosixPath(model),
        served_name=NAME,
        host="127.0.0.1",
        port=port,
        shutdown_timeout_s=DRAIN_S,
        args=args,
    )
    return [sys.executable, "-m", module, *launch.arguments(server)]


@contextmanager
def running(kind: str, model: Path, log: Path, ports: tuple[int, int], *, is_real: bool) -> Iterator[RunningEngine]:
    """An engine that is ready, and its end.

    Raises:
        RuntimeError: it ended before it was ready, or was not ready in time.
    """
    launch = contract_of(kind).launch
    variables = {"PYTHONPATH": f"{ROOT}:{ROOT / 'localcloud' / 'src'}", "GPUFLEET_SIM_TOKEN_MS": str(_TOKEN_MS)}
    if launch is not None:
        variables |= {**OFFLINE, **launch.environment, launch.key_variable: KEY}
    with log.open("ab") as output:
        process = subprocess.Popen(
            _command(kind, model, ports, is_real=is_real),
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env={**os.environ, **variables},
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{ports[0]}"
    metrics_url = url if contract_of(kind).probes.metrics_port is None else f"http://127.0.0.1:{ports[1]}"
    engine = RunningEngine(kind=kind, url=url, metrics_url=metrics_url, process=process, log=log)
    try:
        _until_ready(engine)
        yield engine
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _until_ready(engine: RunningEngine) -> None:
    end = time.monotonic() + START_LIMIT_S
    path = contract_of(engine.kind).probes.alive
    while time.monotonic() < end:
        if engine.process.poll() is not None:
            raise RuntimeError(f"{engine.kind} ended before it was ready: {engine.log.read_text()[-2000:]}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{engine.url}{path}", timeout=60).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{engine.kind} was not ready within {START_LIMIT_S} s: {engine.log.read_text()[-2000:]}")
