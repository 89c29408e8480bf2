"""Measures the screens with 5,000 instances in 200 pools: the whole command, rendering, and page size.

Another process (idle_servers.py) simulates AWS and Prometheus on loopback, with a ledger of one day.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from statistics import median

from rich.console import Console
from sqlalchemy import Engine

from app import cost_sums
from app.fleets import load_one
from app.ledgers import ledger_name
from benchmarks import bench_idle_pass, fleet_ledger
from benchmarks.table import Table, medians
from gpufleet.console import page
from gpufleet.console.document import document as as_document
from gpufleet.console.text import screen
from gpufleet.console.top import Screen, draw
from gpufleet.console.view import FleetData, FleetView, InstanceSignals, build
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import FleetDocument
from tests.fixtures.console import browser as browsers
from tests.fixtures.console.fleet import NOW, document, instance
from tests.fixtures.console.pages import TOKEN, FakeConsoleData, serving

INSTANCES, POOLS = 5_000, 200
_COMMANDS = (("--help",), ("--no-costs",), (), ("--json",), ("--costs",))


def run() -> Iterator[Table]:
    """Yield tables for all steps from the data to the display."""
    pools = [f"pool-{n}" for n in range(POOLS)]
    machines = [instance(n, pool=pools[n % POOLS]) for n in range(INSTANCES)]
    signals = {
        one.id: InstanceSignals(
            phase="ready", gpu_active=0.4, running=3, waiting=1, kv_cache=0.5, tokens_per_second=900
        )
        for one in machines
    }
    read = FleetData(document=document(*pools), at=NOW, instances=machines, signals=signals)
    view = build(read, lambda _: Decimal(1))
    works: dict[str, Callable[[], object]] = {
        "add up": lambda: build(read, lambda _: Decimal(1)),
        "status": lambda: _drawn(view),
        "status --json": lambda: as_document(view),
        "top, one picture of 50 lines": lambda: _top(view),
        "page": lambda: page.overview([view], datetime.now(UTC), "stamp"),
        "page of 200 instances": lambda: page.instances(view, None, 0),
    }
    spent = medians(works)
    sizes = {
        "page": len(page.overview([view], datetime.now(UTC), "stamp").encode()),
        "page of 200 instances": len(page.instances(view, None, 0).encode()),
    }
    painted = _first_paint(view)
    yield Table(
        title=f"Console: {INSTANCES:,} instances in {POOLS} pools",
        columns=("what", "wall s", "CPU s", "KB"),
        rows=tuple(
            (name, f"{one.wall_s:.3f}", f"{one.cpu_s:.3f}", f"{sizes[name] / 1000:.0f}" if name in sizes else "")
            for name, one in spent.items()
        ),
        notes=(
            "Medians of five rounds, without the time that cloud, Prometheus and ledger take to answer (eight queries"
            " for a whole fleet, none for each instance).",
            "First contentful paint of the page in headless Chromium, since the navigation: "
            + ("Chromium is not installed." if painted is None else f"{painted:.2f} s (median of five)."),
        ),
    )
    yield _commands()


def _drawn(view: FleetView) -> str:
    out = Console(file=io.StringIO(), width=80)
    out.print(screen(view))
    return str(out.file)


def _top(view: FleetView) -> str:
    out = Console(file=io.StringIO(), width=120)
    out.print(draw(Screen(), [view], (), lines=50))
    return str(out.file)


def _first_paint(view: FleetView) -> float | None:
    """Return the seconds from navigation to the first contentful paint, with the console as server. None: no
    browser.
    """
    if browsers.PROGRAM is None:
        return None
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(FakeConsoleData(fleets=[view])) as url,
        browsers.browser(Path(folder)) as tab,
    ):
        tab.look(1440, "dark")
        tab.open(url)
        tab.ask("document.getElementById('token').focus()")
        tab.type(TOKEN)
        with tab.loads():
            tab.type_key("Enter")
        found: list[float] = []
        for _ in range(5):
            tab.open(f"{url}/")
            tab.picture(Path(folder, "seen.png"))  # the browser paints only if a screenshot is taken
            found.append(tab.ask("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000)
    return median(found)


def _commands() -> Table:
    """Measure the commands as a user runs them, from start to exit."""
    with bench_idle_pass.servers(INSTANCES), tempfile.TemporaryDirectory() as folder:
        document, ledger = Path(folder, "fleet.json"), Path(folder, "ledger.db")
        document.write_text(json.dumps(bench_idle_pass.document_of(INSTANCES, ledger)))
        engine = open_ledger(f"sqlite:///{ledger}")
        since = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=1)
        fleet_ledger.write(engine, days=1, instances=INSTANCES, models=POOLS, since=since)
        _passed(load_one(str(document)), engine)
        engine.dispose()
        environment = bench_idle_pass.environment() | {"GPUFLEET_FLEET": str(document)}
        rows = [_command(arguments, environment) for arguments in _COMMANDS]
    return Table(
        title=f"`gpufleet status` as a whole: {INSTANCES:,} instances in {POOLS} pools",
        columns=("command", "wall s", "CPU s"),
        rows=tuple(rows),
        notes=(
            "Best of three, the start of the process included. AWS answers pages of 1,000 instances, Prometheus six"
            " queries with a number for each instance; the costs of the hour and of today are those that the last"
            " pass of the cost watchdog left in the ledger; `--costs` computes them again, from a day by the hour.",
            f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        ),
    )


def _passed(document: FleetDocument, engine: Engine) -> None:
    """Write the state that the cost watchdog leaves after a recent pass."""
    now = datetime.now(UTC)
    with writing(engine) as connection:
        facts.add_pass(
            connection,
            facts.CostPass(
                environment=ledger_name(document), at=now, host="h", metrics_from=None, metrics_until=None
            ),
        )
    cost_sums.store_sums(document, engine, now)


def _command(arguments: tuple[str, ...], environment: dict[str, str]) -> tuple[str, str, str]:
    """Return the fastest of three runs. Raises CalledProcessError if the command fails."""
    found: list[tuple[float, float]] = []
    for _ in range(3):
        began, before = time.perf_counter(), os.times()
        command = [sys.executable, "-m", "cli.main", "status", *arguments]
        subprocess.run(command, env=environment, capture_output=True, check=True, timeout=300)
        after = os.times()
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        found.append((time.perf_counter() - began, cpu_s))
    wall_s, cpu_s = min(found)
    return f"gpufleet status {' '.join(arguments)}".strip(), f"{wall_s:.2f}", f"{cpu_s:.2f}"
