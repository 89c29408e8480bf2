"""Measures `gpufleet scan` of 10,000 instances in 17 regions: wall-clock and CPU time, memory and API calls.

Another process emulates EC2, CloudWatch and the Price List on loopback and answers with a delay, so the CPU time and
the memory are those of the scan alone. Half of the instances are idle, half work; each has one GPU and a value for
each hour of the window of 7 days.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from benchmarks.table import Table
from tests.fixtures.scan.aws_accounts import AwsInstance, AwsRegion, aws_cloud, hours

ROOT: Final = Path(__file__).parents[1]
REGIONS: Final = (
    *("us-east-1", "us-east-2", "us-west-1", "us-west-2", "ca-central-1", "sa-east-1"),
    *("eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2", "eu-west-3"),
    *("ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-south-1", "ap-southeast-1", "ap-southeast-2"),
)
"""Regions that are enabled in each account."""
SIZES: Final = (len(REGIONS), 10_000)
LATENCY_S: Final = 0.1
"""Time before each answer of the emulated services."""

_SCAN: Final = """
import json, resource, sys, time
from cli.main import main
sys.argv = ["gpufleet", "scan", "--json"]
try:
    main()
except SystemExit:
    pass
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "mebibytes": used.ru_maxrss // 1024}), file=sys.stderr)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """One scan."""

    instances: int
    first_line_s: float
    wall_s: float
    cpu_s: float
    mebibytes: int
    calls: int
    calls_s: float
    """From the first call to the last."""


def run() -> Iterator[Table]:
    """Scan an account with one instance in each region, and one with 10,000 instances."""
    took = [_measured(size) for size in SIZES]
    yield Table(
        title=f"Scan of one AWS account, {len(REGIONS)} regions, a window of 7 days",
        columns=("instances", "first line", "wall", "CPU", "peak memory", "API calls", "calls per second"),
        rows=tuple(
            (
                f"{one.instances:,}",
                f"{one.first_line_s:.2f} s",
                f"{one.wall_s:.1f} s",
                f"{one.cpu_s:.1f} s",
                f"{one.mebibytes} MiB",
                str(one.calls),
                f"{one.calls / one.calls_s:.1f}",
            )
            for one in took
        ),
        notes=(
            f"Limits: the first line in 1 s, {len(REGIONS)} regions in 60 s, {SIZES[-1]:,} instances in 90 s,"
            " 10 calls per second and account.",
            f"Each answer takes at least {LATENCY_S:.1f} s. The emulated services run in another process of the same"
            " machine, and their CPU time is not counted.",
            f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        ),
    )


def _measured(instances: int) -> Took:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, instances))
    process.start()
    theirs.close()
    try:
        return _scan(ours, instances)
    finally:
        ours.close()
        process.join(60)
        process.kill()


def _scan(server: Connection, instances: int) -> Took:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "GOOGLE_"))}
    environment |= server.recv()
    began = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as answer,
        subprocess.Popen(
            [sys.executable, "-c", _SCAN],
            cwd=ROOT, env=environment, stdout=answer, stderr=subprocess.PIPE, text=True,
        ) as running,
    ):  # fmt: skip
        assert running.stderr is not None
        running.stderr.readline()
        first = time.monotonic() - began
        lines = running.stderr.readlines()
        wall = time.monotonic() - began
        answer.seek(0)
        found = json.load(answer)
    uses = {use: one["instances"] for use, one in found["totals"]["by_verdict"].items()}
    if found["failures"] or uses != {"idle": (instances + 1) // 2, "in use": instances // 2}:
        raise RuntimeError(f"the scan is not complete: {uses}, {found['failures'][:3]}")
    used = json.loads(lines[-1])
    server.send(None)
    times: list[float] = server.recv()
    return Took(
        instances=instances,
        first_line_s=first,
        wall_s=wall,
        cpu_s=used["cpu_s"],
        mebibytes=used["mebibytes"],
        calls=len(times),
        calls_s=times[-1] - times[0],
    )


def serve(pipe: Connection, instances: int) -> None:
    """Emulate the account. Send its environment; when asked, send the times of all calls."""
    now = datetime.now(UTC)
    launched, idle, busy = now - timedelta(days=30), hours(0), hours(40)
    with aws_cloud() as cloud:
        cloud.regions |= {
            name: AwsRegion(
                instances=[
                    AwsInstance(id=f"i-{number:017x}", launched=launched, gpus=[busy if number % 2 else idle])
                    for number in range(place, instances, len(REGIONS))
                ],
                spot_usd={"g6.xlarge": "0.25"},
                list_usd={"g6.xlarge": "0.8"},
                latency_s=LATENCY_S,
            )
            for place, name in enumerate(REGIONS)
        }
        pipe.send(cloud.environment())
        try:
            pipe.recv()
            pipe.send(sorted(at for at, *_ in cloud.calls))
            pipe.recv()
        except EOFError:
            pass
