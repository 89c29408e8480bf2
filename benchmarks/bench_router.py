"""What the router costs: latency, requests per second, and delay of streamed chunks, beside going direct and rivals.

Needs wrk. Rivals run where they are named: `GPUFLEET_BENCH_VLLM_ROUTER` and `GPUFLEET_BENCH_LITELLM` hold the path of
each program, installed in an environment of its own.
"""

import os
import re
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.table import Table
from tests.router.conftest import Router, document, running
from tests.router.replica import Replica

ROUNDS = int(os.environ.get("GPUFLEET_BENCH_ROUNDS", "5"))
SECONDS = 3
ROUTERS = {
    "64 KiB": (65_536, 1),
    "64 KiB, 2 replicas": (65_536, 2),
    "256 KiB (shipped)": (262_144, 1),
    "1 MiB": (1_048_576, 1),
}
"""Buffer and replicas."""
BODY = '{"model": "chat", "messages": [{"role": "user", "content": "%s"}]}' % ("x" * 900)
USAGE = '"usage":{"prompt_tokens":7,"completion_tokens":3}'
ANSWER = '{"id":"x","object":"chat.completion","model":"chat","choices":[],' + USAGE + "}"
JSON = {"Content-Type": "application/json"}
_HOW = {
    "vllm-router": "`pip install vllm-router`; GPUFLEET_BENCH_VLLM_ROUTER names its program",
    "LiteLLM": "`pip install 'litellm[proxy]'`; GPUFLEET_BENCH_LITELLM names its program",
}
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One run of wrk."""

    p50_ms: float
    p99_ms: float
    per_second: float
    failed: int


def run() -> Iterator[Table]:
    """Speed, then streams."""
    with tempfile.TemporaryDirectory() as folder:
        if shutil.which("wrk") is None:
            yield Table(title="Router: speed", columns=("missing",), rows=(("wrk is not installed",),))
        else:
            yield _speed(Path(folder))
        yield _streams(Path(folder))


def _speed(folder: Path) -> Table:
    with ExitStack() as stack:
        urls: dict[str, str] = {}
        routers: list[Router] = []
        for name, (size, replicas) in ROUTERS.items():
            made = stack.enter_context(running(folder / name, buffer_bytes=size))
            made.fleet.written = document({"name": "chat", "model": "models/chat"})
            for number in range(replicas):
                replica = made.add(f"i-{number}", serve=False)
                stack.enter_context(fast_engine(folder, replica.address))
                stack.enter_context(Replica(replica.address, engine_port=8001))
                urls.setdefault("direct", f"http://{replica.address}:8000")
            made.ready()
            urls[f"router, {name}"] = made.url
            routers.append(made)
        rivals, silent = stack.enter_context(_rivals(folder, urls["direct"]))
        urls |= rivals
        seen = {
            name: (_median(found[0] for found in runs), _median(found[1] for found in runs))
            for name, runs in _rounds(folder, urls).items()
        }
    direct = seen["direct"][0].p50_ms
    rows = tuple(
        (
            name,
            f"{one.p50_ms:.3f}",
            f"{one.p50_ms - direct:+.3f}",
            f"{many.per_second:,.0f}",
            f"{many.per_second / seen['direct'][1].per_second:.2f}",
            f"{many.p99_ms:.1f}",
            str(one.failed + many.failed),
        )
        for name, (one, many) in seen.items()
    )
    return Table(
        title="Router: what it adds to a request of 1 KB",
        columns=("through", "p50 ms, 1 client", "added", "requests/s, 32 clients", "of direct", "p99 ms", "failed"),
        rows=rows,
        notes=(
            f"Medians of {ROUNDS} alternating rounds of {SECONDS} s; HAProxy with one thread; load and backend on "
            "the same machine. Plain HTTP. The largest request that is read for its model decides the buffer; larger "
            "ones name it in x-model. Where a pool has several replicas, the start of the prompt is read, too.",
            *silent,
        ),
    )


def _rounds(folder: Path, urls: Mapping[str, str]) -> dict[str, list[tuple[Seen, Seen]]]:
    found: dict[str, list[tuple[Seen, Seen]]] = {name: [] for name in urls}
    for _ in range(ROUNDS):
        for name, url in urls.items():
            found[name].append((_wrk(folder, url, 1), _wrk(folder, url, 32)))
    return found


def _median(runs: Iterator[Seen]) -> Seen:
    found = list(runs)
    return Seen(
        p50_ms=statistics.median(one.p50_ms for one in found),
        p99_ms=statistics.median(one.p99_ms for one in found),
        per_second=statistics.median(one.per_second for one in found),
        failed=sum(one.failed for one in found),
    )


def _wrk(folder: Path, url: str, clients: int) -> Seen:
    script = folder / "post.lua"
    script.write_text(
        f"wrk.method = 'POST'\nwrk.body = [[{BODY}]]\nwrk.headers['Content-Type'] = 'application/json'\n"
    )
    command = ["wrk", "-t1", f"-c{clients}", f"-d{SECONDS}s", "--latency", "-s", str(script)]
    done = subprocess.run(
        [*command, f"{url}/v1/chat/completions"], capture_output=True, text=True, check=True, timeout=60
    )
    text = done.stdout
    found = {name: _time(text, name) for name in ("50%", "99%")}
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    failed = sum(int(n) for n in re.findall(r"Non-2xx or 3xx responses: (\d+)", text))
    failed += sum(int(n) for n in re.findall(r"(?:connect|read|write|timeout) (\d+)", text))
    return Seen(p50_ms=found["50%"], p99_ms=found["99%"], per_second=float(rate[1]) if rate else 0.0, failed=failed)


def _time(text: str, share: str) -> float:
    match = re.search(rf"\s{share}\s+([\d.]+)(us|ms|s)", text)
    if match is None:
        raise ValueError(f"wrk tells no {share}: {text[-300:]}")
    return float(match[1]) * _UNITS[match[2]]


@contextmanager
def fast_engine(folder: Path, address: str) -> Iterator[None]:
    """An engine that answers at once: HAProxy itself, so that the backend is no limit."""
    config = folder / f"engine-{address}.cfg"
    text = ANSWER.replace('"', '\\"')
    config.write_text(
        "defaults\n    mode http\n    timeout connect 1s\n    timeout client 1m\n    timeout server 1m\n"
        f"frontend engine\n    bind {address}:8000\n"
        "    http-request return status 200 if { path /health }\n"
        "    http-request wait-for-body time 1s\n"
        f'    http-request return status 200 content-type application/json string "{text}"\n'
    )
    program = shutil.which("haproxy") or "/usr/sbin/haproxy"
    with subprocess.Popen([program, "-f", str(config)], stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(10)


@contextmanager
def _rivals(folder: Path, engine: str) -> Iterator[tuple[Mapping[str, str], list[str]]]:
    """The URLs of those that answer, and a sentence about each one that does not."""
    commands: dict[str, list[str]] = {}
    ports = {name: _free_port() for name in ("vllm-router", "LiteLLM")}
    if program := os.environ.get("GPUFLEET_BENCH_VLLM_ROUTER"):
        where = ["--host", "127.0.0.1", "--port", str(ports["vllm-router"])]
        commands["vllm-router"] = [program, *where, "--worker-urls", engine, "--policy", "round_robin"]
    if program := os.environ.get("GPUFLEET_BENCH_LITELLM"):
        config = folder / "litellm.yaml"
        config.write_text(
            "model_list:\n  - model_name: chat\n    litellm_params:\n      model: openai/chat\n"
            f"      api_base: {engine}/v1\n      api_key: none\n"
            # it does not start without a key, and a key would be work that the others do not do
            "general_settings:\n  dangerously_permit_weak_or_unset_master_key: true\n"
        )
        commands["LiteLLM"] = [
            program,
            "--config",
            str(config),
            "--host",
            "127.0.0.1",
            "--port",
            str(ports["LiteLLM"]),
        ]
    silent = [
        f"{name} was not run: it is not installed here ({_HOW[name]})." for name in ports.keys() - commands.keys()
    ]
    running_: list[subprocess.Popen[bytes]] = []
    try:
        found: dict[str, str] = {}
        for name, command in commands.items():
            log = folder / f"{name}.log"
            with log.open("wb") as said:
                running_.append(subprocess.Popen(command, cwd=folder, stdout=said, stderr=said))
            url = f"http://127.0.0.1:{ports[name]}"
            if why := _refusal(url):
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                silent.append(f"{name} did not answer ({why}); its last words: {' '.join(last)[-200:] or 'none'}.")
            else:
                found[name] = url
        yield found, sorted(silent)
    finally:
        for process in running_:
            process.terminate()
            process.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _refusal(url: str, limit_s: float = 90) -> str:
    """Empty once it answers 200; else what it did instead, all of the time."""
    end, why = time.monotonic() + limit_s, ""
    while time.monotonic() < end:
        try:
            answer = httpx.post(f"{url}/v1/chat/completions", content=BODY.encode(), headers=JSON, timeout=5)
            if answer.status_code == 200:
                return ""
            why = f"{answer.status_code} {answer.text[:150]}"
        except httpx.HTTPError as error:
            why = repr(error)
        time.sleep(0.5)
    return why


def _streams(folder: Path) -> Table:
    """Delay of chunks from the engine's hand to the client's, paired runs."""
    with running(folder / "streams") as made:
        made.fleet.written = document({"name": "chat", "model": "models/chat"})
        replica = made.add("i-1")
        made.ready()
        direct, through = f"http://{replica.address}:8000", made.url
        pairs = [(_delays(direct), _delays(through)) for _ in range(ROUNDS)]
    p50 = [statistics.median(b) - statistics.median(a) for a, b in pairs]
    p95 = [_p95(b) - _p95(a) for a, b in pairs]
    return Table(
        title="Router: what it adds to a streamed chunk",
        columns=("chunks", "added p50 ms", "added p95 ms"),
        rows=((f"{ROUNDS} x 60, every 20 ms", f"{statistics.median(p50):.2f}", f"{statistics.median(p95):.2f}"),),
        notes=("Medians of paired runs. Without `option http-no-delay` a chunk waits up to 200 ms.",),
    )


def _p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


def _delays(url: str) -> list[float]:
    import json

    body = {"model": "chat", "messages": [], "stream": True, "n": 60, "gap_s": 0.02}
    found: list[float] = []
    with httpx.Client(timeout=30) as client, client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                found.append((time.monotonic() - json.loads(line[6:])["sent"]) * 1000)
    return found
