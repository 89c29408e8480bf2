"""Measures the cost report of a large fleet (30 days of 5,000 instances and 200 models), and its growth with size.

`GPUFLEET_BENCH_INSTANCES` sets another size. Each report runs in its own process, so peak memory is measured per
report.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks import fleet_ledger
from benchmarks.table import Table
from gpufleet.ledger.schema import open_ledger
from tests.fixtures import postgres

DAYS = 30
MODELS = 200

_READER = """
import resource, sys, time
from datetime import timedelta
from benchmarks import fleet_ledger as made
from gpufleet.costs.query import CostQuery
from gpufleet.costs.report import Scope
from gpufleet.ledger.schema import open_ledger
from gpufleet.prices.packaged import PackagedPrices
began = time.perf_counter()
scope = Scope(fleet=made.FLEET, environment="bench", cloud="aws", region="us-east-1", since=made.SINCE,
              until=made.until(int(sys.argv[2])), now=made.until(int(sys.argv[2])))
query = CostQuery(open_ledger(sys.argv[1]), made.FLEET, "us-east-1", packaged=PackagedPrices())
query.read([(scope.since, scope.until)])
report = query.report(scope)
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
      len(report.charges), report.total.tokens.total)
"""


def run() -> Iterator[Table]:
    """Yield sizes from a tenth to the whole, on SQLite and, where it is installed, on PostgreSQL."""
    most = int(os.environ.get("GPUFLEET_BENCH_INSTANCES", "5000"))
    rows: list[tuple[str, ...]] = []
    page: tuple[str, ...] = ()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        urls = {"SQLite": "sqlite:///" + folder + "/{n}.db"}
        if postgres.binaries() is not None:
            url = stack.enter_context(postgres.running(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            urls["PostgreSQL"] = url
        for name, url in urls.items():
            for instances in (most // 10, most) if name == "SQLite" else (most,):
                rows.append(_measured(name, url.format(n=instances), instances))
                if name == "SQLite" and instances == most:
                    page = _page(url.format(n=instances), Path(folder))
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
    yield Table(
        title=f"The HTML file of {most:,} instances (SQLite)",
        columns=("made in", "peak memory", "size", "open in Chromium"),
        rows=(page,),
        notes=("Limits: 5 MB and 2 s. With digest, forecast and pictures; opened without a cache, layout included.",),
    )


def _page(url: str, folder: Path) -> tuple[str, ...]:
    """Run `report cost --format html` on that ledger, and measure how long a browser needs to show the page."""
    document = folder / "fleet.json"
    pool = {
        "engine": "vllm",
        "target": 1,
        "min": 0,
        "max": 50,
        "drain_deadline": "90s",
        "watchdogs": {},
        "groups": [],
    }
    pools = [
        pool | {"name": f"pool-{n:03}", "model": f"models/m{n:03}", "owner": f"team-{n % 12}"} for n in range(MODELS)
    ]
    made_by = {"project": "gpu-fleet", "stack": "bench", "revision": "1", "at": "2026-10-01T00:00:00Z"}
    document.write_text(json.dumps({
        "version": 1, "environment": "bench", "cloud": "aws", "region": "us-east-1", "account": "000000000000",
        "generated_by": made_by, "bucket": "s3://models", "prometheus_url": "http://127.0.0.1:9", "ledger_url": url,
        "router": {"url": "http://127.0.0.1:9"}, "notify": {"slack_channel": "#c"}, "pools": pools,
    }))  # fmt: skip
    out = folder / "report.html"
    span = ["--since", fleet_ledger.SINCE.isoformat(), "--until", fleet_ledger.until(DAYS).isoformat()]
    arguments = ["report", "cost", "--fleet", str(document), *span, "--format", "html", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", _WRITER, *arguments], capture_output=True, text=True, timeout=1_800, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2_000:])
    seconds, peak = done.stdout.split()
    size = out.stat().st_size / 1_000_000
    return f"{float(seconds):.1f} s", f"{peak} MB", f"{size:.2f} MB", _opened(out)


def _opened(page: Path) -> str:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return "Chromium is not installed here"
    drawn = page.with_name("drawn.html")
    drawn.write_text(page.read_text().replace("<head>", f"<head>{_CLOCK}"))
    shown = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent}/profile",
            "--timeout=20000", "--dump-dom", drawn.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return f"{float(shown.stdout.partition('<title>')[2].partition('</title>')[0]) / 1000:.2f} s"


_CLOCK = """<script>addEventListener('load', () =>
{document.title = document.body.scrollHeight && String(performance.now())})</script>"""
"""Measures to the end of loading and layout; the query of the height forces the layout."""

_WRITER = """
import resource, sys, time
from cli.commands import build
began = time.perf_counter()
build("report")(sys.argv[1:], standalone_mode=False)
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


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
