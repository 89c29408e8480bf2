"""The cost report of a large fleet: 30 days of 5,000 instances and 200 models, and how it grows.

`GPUFLEET_BENCH_INSTANCES` sets another size. Each report runs in a process of its own, so that its peak is its own.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks import fleet_ledger
from benchmarks.table import Table
from ledger.schema import open_ledger
from tests import postgres

DAYS = 30
MODELS = 200

_READER = """
import resource, sys, time
from datetime import timedelta
from benchmarks import fleet_ledger as made
from costs.report import Scope, load
from ledger.schema import open_ledger
from prices.packaged import PackagedPrices
began = time.perf_counter()
scope = Scope(fleet=made.FLEET, environment="bench", cloud="aws", region="us-east-1", since=made.SINCE,
              until=made.until(int(sys.argv[2])), now=made.until(int(sys.argv[2])))
report = load(open_ledger(sys.argv[1]), scope, (), PackagedPrices())
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
      len(report.charges), report.total.tokens.total)
"""


def run() -> Iterator[Table]:
    """Sizes from a tenth up to the whole, on SQLite and, where it is installed, on PostgreSQL."""
    most = int(os.environ.get("GPUFLEET_BENCH_INSTANCES", "5000"))
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        urls = {"SQLite": "sqlite:///" + folder + "/{n}.db"}
        if postgres.binaries() is not None:
            url = stack.enter_context(postgres.running(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            urls["PostgreSQL"] = url
        for name, url in urls.items():
            for instances in (most // 10, most) if name == "SQLite" else (most,):
                rows.append(_measured(name, url.format(n=instances), instances))
                Path(folder, f"{instances}.db").unlink(missing_ok=True)
    notes = ["Limits: 60 s and 1 GB. One row per charge is kept; tokens are summed from hourly roll-ups."]
    if "PostgreSQL" not in urls:
        notes.append("PostgreSQL is not installed here: its row is missing.")
    yield Table(
        title=f"Cost report of {DAYS} days, {MODELS} models",
        columns=("ledger", "instances", "written in", "report", "peak memory", "charges"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _measured(name: str, url: str, instances: int) -> tuple[str, ...]:
    engine = open_ledger(url)
    began = time.perf_counter()
    fleet_ledger.write(engine, days=DAYS, instances=instances, models=MODELS)
    written = time.perf_counter() - began
    engine.dispose()
    done = subprocess.run(
        [sys.executable, "-c", _READER, url, str(DAYS)], capture_output=True, text=True, timeout=1_800, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2_000:])
    seconds, peak, charges, _ = done.stdout.split()
    return name, f"{instances:,}", f"{written:.0f} s", f"{float(seconds):.1f} s", f"{peak} MB", f"{int(charges):,}"
