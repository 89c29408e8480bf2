"""Measures the router against direct access and other routers: latency, requests per second, and delay of streamed
chunks.

For requests per second, each router has the first core exclusively; load generator, engines and our controller share
the others. HAProxy without rules runs as a reference: its result is the limit of this machine, and the difference to
ours is the cost of our rules.

It needs wrk. Other routers run if their environment variables are set (see benchmarks.rivals).
"""

import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.rivals import BODY, free_port, rivals
from benchmarks.table import Table
from serving.router.error_pages import quoted
from serving.router.render import LOG_FORMAT
from tests.fixtures.networks import free_network
from tests.fixtures.router.replica import Replica
from tests.fixtures.router.router import document, running

ROUNDS = int(os.environ.get("GPUFLEET_BENCH_ROUNDS", "5"))
SECONDS = 3
ROUTERS = {
    "64 KiB": (65_536, 1),
    "64 KiB, 2 replicas": (65_536, 2),
    "256 KiB (shipped)": (262_144, 1),
    "1 MiB": (1_048_576, 1),
}
"""Buffer size and number of replicas."""
BARE = "HAProxy without rules, 64 KiB"
LOGGED = "the same with our log line, 64 KiB"
"""This variant also buffers whole requests, which is necessary to read their model. The remaining difference is due
to rules, headers and tokens.
"""
TICK = os.sysconf("SC_CLK_TCK")
USAGE = '"usage":{"prompt_tokens":7,"completion_tokens":3}'
ANSWER = '{"id":"x","object":"chat.completion","model":"chat","choices":[],' + USAGE + "}"
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Results of one run of wrk."""

    p50_ms: float
    p99_ms: float
    per_second: float
    cpu_us: float
    """CPU time of the router per request in microseconds. 0 without a router."""
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One path to the engine."""

    url: str
    process: int | None = None
    """Process id of the router."""


def run() -> Iterator[Table]:
    """Yield the table of speed, then of streams."""
    with tempfile.TemporaryDirectory() as folder:
        if shutil.which("wrk") is None:
            yield Table(title="Router: speed", columns=("missing",), rows=(("wrk is not installed",),))
        else:
            yield _speed(Path(folder))
        yield _streams(Path(folder))


def _speed(folder: Path) -> Table:
    with ExitStack() as stack:
        address = free_network() + ".1.1"
        engines = [os.getpid(), stack.enter_context(fast_engine(folder, address))]
        ways = {"direct": Way(url=f"http://{address}:8000")}
        for name in (BARE, LOGGED):
            ways[name] = stack.enter_context(_plain(folder, address, logged=name == LOGGED))
        for name, (size, replicas) in ROUTERS.items():
            made = stack.enter_context(running(folder / name, every_s=0.5, buffer_bytes=size))
            made.fleet.written = document({"name": "chat", "model": "models/chat"})
            added = [made.add(f"i-{number}", serve=False).address for number in range(replicas)]
            engines.append(stack.enter_context(fast_engine(folder, *added)))
            for there in added:
                stack.enter_context(Replica(there, engine_port=8001))
            made.ready()
            ways[f"router, {name}"] = Way(url=made.url, process=made.controller.haproxy.admin.process_id())
        others, silent = stack.enter_context(rivals(folder, ways["direct"].url))
        ways.update({other.name: Way(url=other.url, process=other.process) for other in others})
        alone = _rounds(folder, ways, 1)
        stack.enter_context(_first_core_for([way.process for way in ways.values() if way.process], engines))
        many = _rounds(folder, ways, 32)
        seen = {name: (alone[name], many[name]) for name in ways}
    direct, bare = seen["direct"][0].p50_ms, seen[BARE][1].per_second
    rows = tuple(
        (
            name,
            f"{one.p50_ms:.3f}",
            f"{one.p50_ms - direct:+.3f}",
            f"{load.per_second:,.0f}",
            f"{load.per_second / bare:.2f}",
            f"{load.cpu_us:.1f}" if load.cpu_us else "-",
            f"{1e6 / load.cpu_us:,.0f}" if load.cpu_us else "-",
            f"{load.p99_ms:.1f}",
            str(one.failed + load.failed),
        )
        for name, (one, load) in seen.items()
    )
    return Table(
        title="Router: what it adds to a request of 1 KB",
        columns=(
            "through", "p50 ms, 1 client", "added", "requests/s, 32 clients", "of bare", "CPU us/request",
            "requests/s of a full core", "p99 ms", "failed",
        ),
        rows=rows,
        notes=(
            f"Medians of {ROUNDS} alternating rounds of {SECONDS} s, first with 1 client, then with 32: then each "
            f"router is alone on the first of {os.cpu_count()} cores, and load, engine and controller are on the "
            "others. HAProxy has one thread. Requests/s of a full core: 1 s divided by the CPU time of one request. "
            "The measured rate can be lower, because the load on the other core may be the limit. Plain HTTP. The "
            "largest request that is read for its model decides the buffer; larger ones name it in x-model. Where a "
            "pool has several replicas, the start of the prompt is read, too.",
            *silent,
        ),
    )  # fmt: skip


@contextmanager
def _first_core_for(routers: Iterable[int], others: Iterable[int]) -> Iterator[None]:
    """Move routers to the first core, and other processes with their children to the other cores. With one core,
    nothing is moved.
    """
    cores = os.sched_getaffinity(0)
    first = {min(cores)}
    for process in routers:
        _pin(process, first)
    for process in others:
        _pin(process, cores - first or cores)
    try:
        yield
    finally:
        _pin(os.getpid(), cores)


def _pin(process: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def _plain(folder: Path, engine: str, *, logged: bool) -> Iterator[Way]:
    """Run HAProxy as a plain proxy: one backend, no rules, without our controller."""
    port = free_port()
    log = f"    log stdout format raw local0\n    log-format {quoted(LOG_FORMAT)}\n    option http-buffer-request\n"
    text = (
        "global\n    nbthread 1\n    tune.bufsize 65536\ndefaults\n    mode http\n    http-reuse safe\n"
        "    timeout connect 1s\n    timeout client 1m\n    timeout server 1m\n"
        f"{log if logged else ''}"
        f"frontend plain\n    bind 127.0.0.1:{port}\n    default_backend engine\n"
        f"backend engine\n    server one {engine}:8000\n"
    )
    with _haproxy(folder / f"plain-{port}.cfg", text) as process:
        yield Way(url=f"http://127.0.0.1:{port}", process=process)


def _rounds(folder: Path, ways: Mapping[str, Way], clients: int) -> dict[str, Seen]:
    found: dict[str, list[Seen]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            found[name].append(_wrk(folder, way, clients))
    return {name: _median(runs) for name, runs in found.items()}


def _median(found: list[Seen]) -> Seen:
    return Seen(
        p50_ms=statistics.median(one.p50_ms for one in found),
        p99_ms=statistics.median(one.p99_ms for one in found),
        per_second=statistics.median(one.per_second for one in found),
        cpu_us=statistics.median(one.cpu_us for one in found),
        failed=sum(one.failed for one in found),
    )


def _wrk(folder: Path, way: Way, clients: int) -> Seen:
    script = folder / "post.lua"
    script.write_text(
        f"wrk.method = 'POST'\nwrk.body = [[{BODY}]]\nwrk.headers['Content-Type'] = 'application/json'\n"
    )
    command = ["wrk", "-t1", f"-c{clients}", f"-d{SECONDS}s", "--latency", "-s", str(script)]
    before = _cpu_s(way)
    done = subprocess.run(
        [*command, f"{way.url}/v1/chat/completions"], capture_output=True, text=True, check=True, timeout=60
    )
    spent = _cpu_s(way) - before
    text = done.stdout
    number = re.search(r"(\d+) requests in", text)
    found = {name: _time(text, name) for name in ("50%", "99%")}
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    failed = sum(int(n) for n in re.findall(r"Non-2xx or 3xx responses: (\d+)", text))
    failed += sum(int(n) for n in re.findall(r"(?:connect|read|write|timeout) (\d+)", text))
    return Seen(
        p50_ms=found["50%"],
        p99_ms=found["99%"],
        per_second=float(rate[1]) if rate else 0.0,
        cpu_us=spent / max(int(number[1]), 1) * 1e6 if number else 0.0,
        failed=failed,
    )


def _cpu_s(way: Way) -> float:
    """Return the CPU seconds that the router has used, user and system."""
    if way.process is None:
        return 0.0
    fields = Path(f"/proc/{way.process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _time(text: str, share: str) -> float:
    match = re.search(rf"\s{share}\s+([\d.]+)(us|ms|s)", text)
    if match is None:
        raise ValueError(f"wrk reports no {share}: {text[-300:]}")
    return float(match[1]) * _UNITS[match[2]]


@contextmanager
def fast_engine(folder: Path, *addresses: str) -> Iterator[int]:
    """Run an engine that responds immediately, and yield its process id. It is HAProxy itself, so that the backend is
    no bottleneck.

    One process serves all addresses of a pool. Two processes on one core would have to be woken twice as often, at
    the expense of the router that wakes them.
    """
    text = ANSWER.replace('"', '\\"')
    config = (
        "defaults\n    mode http\n    timeout connect 1s\n    timeout client 1m\n    timeout server 1m\n"
        f"frontend engine\n    bind {','.join(f'{address}:8000' for address in addresses)}\n"
        "    http-request return status 200 if { path /health }\n"
        "    http-request wait-for-body time 1s\n"
        f'    http-request return status 200 content-type application/json string "{text}"\n'
    )
    with _haproxy(folder / f"engine-{addresses[0]}.cfg", config) as process:
        yield process


@contextmanager
def _haproxy(config: Path, text: str) -> Iterator[int]:
    """Run HAProxy with this configuration, and yield its process id."""
    config.write_text(text)
    program = shutil.which("haproxy") or "/usr/sbin/haproxy"
    with (
        config.with_suffix(".log").open("ab") as log,
        subprocess.Popen([program, "-f", str(config)], stdout=log, stderr=subprocess.DEVNULL) as process,
    ):
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(10)


def _streams(folder: Path) -> Table:
    """Measure the delay of chunks between the engine and the client in paired runs."""
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
