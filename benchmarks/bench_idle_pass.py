"""Measures a complete pass of `gpufleet watch idle --apply` over a large fleet: seconds, memory, calls and growth;
and `decide` alone.

Another process (idle_servers.py) simulates AWS, Prometheus and the node agents on loopback, so the figures cover the
pass alone: real clients, a real ledger, and 250 of 5,000 instances that are found idle and marked.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks import idle_servers
from benchmarks.idle_servers import AGENT_PORT, GPUS, HOST, MACHINE_TYPE, PER_POOL
from benchmarks.table import Table

ROOT = Path(__file__).parents[1]
SIZES = (500, 2000, 5000)
LIMIT_S = 120
URL = f"http://{HOST}:{AGENT_PORT}"

_PASS = """
import json, resource, sys, time
began, cpu = time.perf_counter(), time.process_time()
from app.fleets import load_one
from app.passes import Options, kinds
from cli.watch_pass import Show, over_fleets
document, mode = load_one(sys.argv[1]), sys.argv[2]
kind = kinds()["idle"]
loaded = time.perf_counter()
if mode == "decide":
    from app.wiring import wire
    from watchdogs.idle.decide import decide
    wired = wire(document, "idle")
    now = wired.ports.clock.now()
    observed = kind.make(document, wired.ports).observe(now)
    took = []
    for _ in range(7):
        start = time.process_time()
        decide(observed, now)
        took.append(time.process_time() - start)
    print(json.dumps({"decide_s": sorted(took)[3]}))
    sys.exit()
code, [answer] = over_fleets(kind, [document], Options(apply=mode == "apply"), Show.PROBLEMS)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "code": int(code), "imports_s": loaded - began, "pass_s": time.perf_counter() - loaded,
    "cpu_s": time.process_time() - cpu, "mebibytes": used.ru_maxrss // 1024, "calls": answer["api_calls"],
    "decisions": len(answer["decisions"]),
    "marked": sum(o["action"] == "mark" and o["kind"] == "done" for o in answer["outcomes"]),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Results of one pass, and of `decide` on its data."""

    instances: int
    imports_s: float
    pass_s: float
    cpu_s: float
    mebibytes: int
    decide_s: float
    calls: dict[str, int]


def run() -> Iterator[Table]:
    """Yield the results of a pass for each size."""
    took = [_measured(size) for size in SIZES]
    first, last = took[0], took[-1]
    times = last.instances / first.instances
    growth = last.cpu_s / first.cpu_s
    yield Table(
        title="A whole pass of the idle watchdog",
        columns=("instances", "GPUs", "pools", "imports", "pass", "CPU", "peak memory", "decide alone (CPU)"),
        rows=tuple(
            (
                f"{one.instances:,}",
                f"{one.instances * GPUS:,}",
                str(one.instances // PER_POOL),
                f"{one.imports_s:.2f} s",
                f"{one.pass_s:.2f} s",
                f"{one.cpu_s:.2f} s",
                f"{one.mebibytes} MiB",
                f"{one.decide_s:.3f} s",
            )
            for one in took
        ),
        notes=(
            f"Limits at {last.instances:,}: a pass in 10 s and 1 GiB, `decide` in 0.2 s."
            f" {times:.0f} times the instances take {growth:.1f} times the CPU time"
            f" ({'no worse than linear' if growth <= times else 'WORSE THAN LINEAR'}).",
            f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        ),
    )
    names = sorted({name for one in took for name in one.calls})
    yield Table(
        title="Calls of that pass, by operation",
        columns=("operation", *(f"{one.instances:,} instances" for one in took)),
        rows=tuple((name, *(str(one.calls.get(name, 0)) for one in took)) for name in names),
        notes=("The node agents of the quiet instances are queried in addition, each once.",),
    )


def _measured(instances: int) -> Took:
    with servers(instances), tempfile.TemporaryDirectory() as folder:
        document = Path(folder) / "fleet.json"
        document.write_text(json.dumps(document_of(instances, Path(folder) / "ledger.db")))
        _child(document, "dry")  # this accepts the policies for later passes
        decided = _child(document, "decide")
        done = _child(document, "apply")
    quiet = len(range(0, instances, idle_servers.QUIET_EVERY))
    if (done["code"], done["decisions"], done["marked"]) != (0, instances, quiet):
        raise RuntimeError(f"the pass did not do what it should: {done}")
    kept = {name: done[name] for name in ("imports_s", "pass_s", "cpu_s", "mebibytes", "calls")}
    return Took(instances=instances, decide_s=decided["decide_s"], **kept)


@contextmanager
def servers(instances: int) -> Iterator[None]:
    """Run the servers of a fleet with that number of instances, in another process."""
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(instances,), daemon=True)
    server.start()
    try:
        _wait()
        yield
    finally:
        server.terminate()
        server.join(timeout=10)


def _serve(instances: int) -> None:
    with idle_servers.serving(instances):
        time.sleep(LIMIT_S * 3)


def _wait() -> None:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        try:
            httpx.get(f"{URL}/status", timeout=2)
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"nothing answers on {URL}: is the address in use?")


def environment() -> dict[str, str]:
    """Return the environment variables of a command that uses the servers."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "GPUFLEET_"))} | {
        "AWS_ENDPOINT_URL": URL,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _child(document: Path, mode: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _PASS, str(document), mode],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{mode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def document_of(instances: int, ledger: Path) -> dict[str, Any]:
    """Return the fleet document: pools of 25 over three zones, each with its idle watchdog."""
    return {
        "version": 1,
        "environment": "bench",
        "cloud": "aws",
        "region": "us-east-1",
        "account": "000000000000",
        "generated_by": {"project": "p", "stack": "s", "revision": "r", "at": "2026-11-21T02:15:00Z"},
        "bucket": "s3://bench",
        "prometheus_url": URL,
        "ledger_url": f"sqlite:///{ledger}",
        "router": {"url": URL},
        "pools": [
            {
                "name": f"pool-{number}",
                "model": "models/chat",
                "engine": "vllm",
                "owner": "bench",
                "target": PER_POOL,
                "min": 0,
                "max": 2 * PER_POOL,
                "drain_deadline": "90s",
                "groups": [
                    {
                        "type": "spot",
                        "zone": f"us-east-1{zone}",
                        "name": f"pool-{number}-spot-{zone}",
                        "max": PER_POOL,
                        "machine_types": [MACHINE_TYPE],
                    }
                    for zone in "abc"
                ],
                "watchdogs": {"idle": {}},
            }
            for number in range(instances // PER_POOL)
        ],
    }
