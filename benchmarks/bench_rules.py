"""Measures Prometheus rules at 20,000 GPUs: number of series, seconds per rule group, and seconds of the screens'
queries.

A real Prometheus scrapes generated pages of 50 instances each, with four GPUs and one engine per instance. Samples
have explicit times. Metrics with a lookback window have a sample per scrape interval, for five minutes or an hour as
the rules require; others have only the newest sample. `GPUFLEET_BENCH_GPUS` sets another size.
"""

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from benchmarks.rivals import free_port
from benchmarks.table import Table
from gpufleet.settings.document.alerts import AlertSettings
from hosts.monitoring.alerts import render
from hosts.monitoring.queries import per_instance
from hosts.monitoring.rules import RuleSettings
from serving import metrics, recorded
from serving.accelerators import CONTRACTS
from serving.metrics import Metric, MetricKind, Source

GPUS: Final = int(os.environ.get("GPUFLEET_BENCH_GPUS", "20000"))
GPUS_EACH, PAGE, POOL = 4, 50, 25
SCRAPE_S: Final = 10
SAMPLES: Final = 300 // SCRAPE_S
HOUR: Final = 3600 // SCRAPE_S
SPREAD_S: Final = 30
"""Prometheus spreads its first scrapes over this number of seconds."""
LIMIT_S: Final = 480
SHOWN: Final = 8
"""Number of rules in the table, the slowest first."""
BOUNDS: Final = 22
"""Approximate number of buckets of vLLM's latency histograms."""
RATED: Final = frozenset(
    {metrics.GENERATION_TOKENS, metrics.PROMPT_TOKENS, metrics.E2E_LATENCY, metrics.TIME_TO_FIRST_TOKEN}
)
LONG: Final = frozenset({metrics.XID_ERRORS, metrics.ECC_DOUBLE_BIT})
"""Metrics with a lookback of an hour. For the second, rules read a recorded series, which the pages also contain."""
UNITS: Final = {series.measures: series.unit for series in CONTRACTS["nvidia"].series}
KNOWN: Final = (*metrics.ALL.values(), *UNITS)
ERRORS: Final = frozenset(
    {
        metrics.XID_ERRORS,
        metrics.ECC_DOUBLE_BIT,
        metrics.ECC_SINGLE_BIT,
        metrics.UNCORRECTABLE_REMAPPED_ROWS,
    }
)
"""Metrics that are zero in a healthy fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Prometheus' state at the end."""

    series: int
    groups: dict[str, float]
    rules: dict[str, float]
    queries: dict[str, float]
    mebibytes: int


def run() -> Iterator[Table]:
    """Yield a tenth of the size, then the whole."""
    found = {gpus: _measured(gpus) for gpus in (GPUS // 10, GPUS)}
    yield Table(
        title="Prometheus: rules of a whole fleet",
        columns=("GPUs", "instances", "series", "memory MiB", *(f"{name} s" for name in found[GPUS].groups)),
        rows=tuple(
            (f"{gpus:,}", f"{gpus // GPUS_EACH:,}", f"{one.series:,}", f"{one.mebibytes:,}",
             *(f"{seconds:.2f}" for seconds in one.groups.values()))
            for gpus, one in found.items()
        ),
        notes=(
            f"One evaluation of each group, every {SCRAPE_S} s in the shipped configuration. Series are those of the"
            " metrics that this product names; an engine and an exporter serve more.",
            f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        ),
    )  # fmt: skip
    small, large = found[GPUS // 10], found[GPUS]
    slowest = dict(sorted(large.rules.items(), key=lambda item: -item[1])[:SHOWN])
    for title, last, first in (
        ("The slowest rules", slowest, small.rules),
        ("The screens' queries", large.queries, small.queries),
    ):
        yield Table(
            title=f"{title} at {GPUS:,} GPUs",
            columns=("name", "seconds", f"seconds at {GPUS // 10:,}"),
            rows=tuple((name, f"{seconds:.3f}", f"{first[name]:.3f}") for name, seconds in last.items()),
        )


def _measured(gpus: int) -> _Found:
    pages = -(-gpus // GPUS_EACH // PAGE)
    with tempfile.TemporaryDirectory() as name, _served(pages) as (address, given), _prometheus(
        Path(name), address, pages
    ) as (url, process):  # fmt: skip
        until = time.monotonic() + LIMIT_S
        while len(given) < pages or len(_asked(url, 'up{job=~"page-.*"} == 1')) < pages:
            _wait_until(until, f"{len(given)} of {pages} pages were read")
        groups = _groups(url, datetime.now(UTC), until)
        took = {rule["name"]: rule["evaluationTime"] for group in groups for rule in group["rules"]}
        queries: dict[str, float] = {}
        for label, query in per_instance("prod", timedelta(minutes=5)).items():
            began = time.perf_counter()
            _asked(url, query)
            queries[label] = time.perf_counter() - began
        head = _asked(url, "prometheus_tsdb_head_series")
        return _Found(
            series=int(head[0]["value"][1]),
            groups={group["name"]: group["evaluationTime"] for group in groups},
            rules=took,
            queries=queries,
            mebibytes=_resident(process.pid),
        )


def _groups(url: str, after: datetime, until: float) -> list[dict[str, Any]]:
    """Return every rule group after each has been evaluated on all pages."""
    while True:
        with urlopen(f"{url}/api/v1/rules", timeout=60) as answer:
            groups: list[dict[str, Any]] = json.load(answer)["data"]["groups"]
        if groups and all(
            datetime.fromisoformat(group["lastEvaluation"][:19] + "+00:00") > after for group in groups
        ):
            return groups
        _wait_until(until, "rules were not evaluated")


def _wait_until(until: float, what: str) -> None:
    if time.monotonic() > until:
        raise RuntimeError(f"Prometheus was too slow: {what}")
    time.sleep(1)


def _asked(url: str, query: str) -> list[dict[str, Any]]:
    try:
        with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}", timeout=120) as answer:
            return json.load(answer)["data"]["result"]
    except ConnectionError:
        return []
    except OSError as error:
        if "refused" in str(error) or "503" in str(error):
            return []
        raise


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def _page(number: int, now: float) -> Iterator[str]:
    """Yield the samples of several instances up to now."""
    newest = (int(now * 1000),)
    hour = tuple(int((now - SCRAPE_S * back) * 1000) for back in range(HOUR - 1, -1, -1))
    for instance in range(number * PAGE, (number + 1) * PAGE):
        labels = (
            f'environment="prod",pool="pool-{instance // POOL}",capacity_type="spot",zone="zone-{instance % 3}",'
            f'machine_type="g6.12xlarge",group="group-{instance // POOL}",instance_id="i-{instance:017x}"'
        )
        yield from (f'up{{{labels},job="{job}"}} 1 {newest[0]}\n' for job in ("accelerator", "engine", "node"))
        for metric in (one for one in KNOWN if one.source is not Source.HOST):
            times = hour if metric in LONG else hour[-SAMPLES:] if metric in RATED else newest
            for more in _series(metric):
                series = f"{more[0]}{{{labels}{more[1]}}}"
                yield from (f"{series} {_value(metric, turn)} {at}\n" for turn, at in enumerate(times))


def _value(metric: Metric, turn: int) -> float:
    if metric in ERRORS:
        return 0
    return 0.5 if metric.kind is MetricKind.GAUGE else 100 + 7 * turn


def _series(metric: Metric) -> Iterator[tuple[str, str]]:
    """Yield name and additional labels of each series of a metric on one instance."""
    if metric in UNITS:
        labels = f'accelerator="nvidia",unit="{UNITS[metric]}"'
        yield from (
            (metric.name, f',{labels},gpu="{gpu}",accelerator_device="GPU-{gpu}"') for gpu in range(GPUS_EACH)
        )
    elif metric.source is Source.ACCELERATOR:
        names = (metric.name, recorded.GPU_ECC_ERRORS) if metric is metrics.ECC_DOUBLE_BIT else (metric.name,)
        yield from ((name, f',gpu="{gpu}",UUID="GPU-{gpu}"') for name in names for gpu in range(GPUS_EACH))
    elif metric.kind is MetricKind.HISTOGRAM:
        bounds = (*(f"{0.05 * 1.4**step:.3f}" for step in range(BOUNDS - 1)), "+Inf")
        yield from ((f"{metric.name}_bucket", f',engine="0",model_name="m",le="{bound}"') for bound in bounds)
        yield from ((f"{metric.name}_{end}", ',engine="0",model_name="m"') for end in ("sum", "count"))
    elif metric is metrics.NODE_PHASE:
        yield metric.name, ',phase="ready"'
    else:
        yield metric.name, ',engine="0",model_name="m"' if metric.source is Source.ENGINE else ""


@contextmanager
def _served(pages: int) -> Iterator[tuple[str, set[int]]]:
    """Serve the pages. Each page returns its samples only once, because Prometheus then has them."""
    given: set[int] = set()

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.rpartition("/")[2])
            body = b"" if number in given else "".join(_page(number, time.time())).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            given.add(number)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", given
        server.shutdown()


@contextmanager
def _prometheus(folder: Path, address: str, pages: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    jobs = [
        {"job_name": f"page-{number}", "metrics_path": f"/pages/{number}", "honor_labels": True,
         "static_configs": [{"targets": [address]}]}
        for number in range(pages)
    ]  # fmt: skip
    port = free_port()
    own = {"job_name": "prometheus", "scrape_interval": "5s", "scrape_timeout": "5s",
           "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}  # fmt: skip
    config = {
        "global": {"scrape_interval": f"{SPREAD_S}s", "scrape_timeout": f"{SPREAD_S}s",
                   "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [*jobs, own],
    }  # fmt: skip
    (folder / "rules.yml").write_text(render(AlertSettings(), RuleSettings()))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
             f"--web.listen-address=127.0.0.1:{port}"],
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.terminate()
            process.wait(60)
