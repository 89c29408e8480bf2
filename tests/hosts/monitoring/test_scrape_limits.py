"""What Prometheus accepts from a page: metric names of its job, within the job's limits."""

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.cost_sources import METRIC_NAMES
from gpufleet.domain.model import Cloud
from gpufleet.domain.policies import ScalePolicy
from gpufleet.settings.document.alerts import AlertSettings
from hosts.monitoring import queries
from hosts.monitoring.alerts import alerts
from hosts.monitoring.dashboards import dashboards
from hosts.monitoring.limits import LIMITS
from hosts.monitoring.prometheus import PrometheusSettings, render
from hosts.monitoring.rules import RuleSettings, recordings
from serving import metrics
from serving.accelerators import metrics as accelerators
from serving.metrics import Source
from tests.fixtures.ledger_metrics import ledger_page
from tests.fixtures.prometheus import running
from watchdogs.accelerator_queries import accelerator_query
from watchdogs.engine_evidence import engine_query
from watchdogs.promql import SeriesSelector
from watchdogs.scale import pressure

SETTINGS = PrometheusSettings(
    cloud=Cloud.AWS,
    environment="prod",
    haproxy=("127.0.0.1:8404",),
    watchdogs=("127.0.0.1:9600",),
    node_exporter=True,
)
MINUTES = timedelta(minutes=10)
SCRAPED = re.compile(r"(?<![a-zA-Z0-9_:$])(?:vllm:|DCGM_FI_|node_|process_|haproxy_|gpufleet_)[a-zA-Z0-9_:]+")
NO_METRICS = {"gpufleet_part", accelerators.PREFIX}
"""A label that a query creates, and the beginning of names."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (make setup installs it)"
)


def _expressions() -> Iterator[str]:
    yield from (alert.expression for alert in alerts(AlertSettings(latency_p99_s={"chat": 10})))
    yield from (rule.expression for rule in recordings(RuleSettings()))
    for dashboard in dashboards():
        yield from (query.expression for panel in dashboard.panels for query in panel.queries)
        yield from dashboard.variables.values()
    yield from (queries.PHASE, queries.DRAINING, queries.ORDER_KEYS, queries.HELD, queries.FIRING)
    yield from queries.per_instance("prod", MINUTES).values()
    yield pressure.present_query("prod", MINUTES)
    yield pressure.past_query("prod", {"chat": ScalePolicy()})
    series = SeriesSelector(labels='environment="prod"')
    yield engine_query(series, MINUTES, timedelta(seconds=10))
    yield accelerator_query(series, MINUTES, timedelta(seconds=10))
    yield " ".join(METRIC_NAMES.all())


def _keepers(name: str) -> list[str]:
    """Return the jobs that keep a series of that name."""
    jobs = yaml.safe_load(render(SETTINGS))["scrape_configs"]
    keeps = {job["job_name"]: job["metric_relabel_configs"][-1] for job in jobs}
    assert {keep["action"] for keep in keeps.values()} == {"keep"}
    return [job for job, keep in keeps.items() if re.fullmatch(keep["regex"], name)]


def test_every_queried_name_is_kept_from_exactly_one_job() -> None:
    asked = {name for text in _expressions() for name in SCRAPED.findall(text)} - NO_METRICS
    assert len(asked) > 50
    assert {name: jobs for name in asked if len(jobs := _keepers(name)) != 1} == {}


@pytest.mark.parametrize("source", Source)
def test_a_documented_name_is_kept(source: Source) -> None:
    for name in metrics.series_names(source):
        assert _keepers(name) == [source.value]


@pytest.mark.parametrize("name", accelerators.ALL)
def test_a_canonical_name_of_accelerators_is_kept(name: str) -> None:
    assert _keepers(name) == [Source.ACCELERATOR.value]


def test_names_of_the_control_host_s_pages_are_kept() -> None:
    names = {line.split("{")[0].split(" ")[0] for line in ledger_page().splitlines() if not line.startswith("#")}
    assert names
    assert {name: jobs for name in names if (jobs := _keepers(name)) != ["watchdogs"]} == {}


def test_every_job_has_every_limit() -> None:
    jobs = yaml.safe_load(render(SETTINGS))["scrape_configs"]
    assert {job["job_name"] for job in jobs} == LIMITS.keys()
    for job in jobs:
        for limit in ("sample", "target", "label", "label_value_length", "label_name_length"):
            assert job[f"{limit}_limit"] > 0
        assert job["body_size_limit"].endswith("MB")


class Pages(BaseHTTPRequestHandler):
    """Pages of a working engine and of compromised engines."""

    def do_GET(self) -> None:
        body = self.pages()[self.path].encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @staticmethod
    def pages() -> Mapping[str, str]:
        running_ = "vllm:num_requests_running"
        return {
            "/well": f"{running_} 2\n",
            "/forges": f'{running_} 2\ngpufleet_held_requests{{pool="chat"}} 1000\nDCGM_FI_DEV_GPU_UTIL 0\nany 1\n'
            'gpufleet_router_key_output_tokens_total{key="red"} 9\ngpufleet_target{pool="chat"} 90\n',
            "/samples": "".join(f'{running_}{{engine="{n}"}} 1\n' for n in range(10_001)),
            "/labels": f"{running_}{{" + ",".join(f'l{n}="1"' for n in range(100)) + "} 1\n",
            "/long": f'{running_}{{engine="{"x" * 5_000}"}} 1\n',
            "/body": f"{running_} 1\n" + "# x\n" * (17 * 1024 * 1024 // 4),
        }

    def log_message(self, format: str, *args: object) -> None:
        """Suppress the log."""


@contextmanager
def _served() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{pages.server_address[1]}"
        finally:
            pages.shutdown()


@needs_prometheus
def test_a_page_above_a_limit_is_down_and_forged_names_are_dropped(tmp_path: Path) -> None:
    (rendered,) = [job for job in yaml.safe_load(render(SETTINGS))["scrape_configs"] if job["job_name"] == "engine"]
    kept = {key: value for key, value in rendered.items() if "limit" in key or key == "metric_relabel_configs"}
    with _served() as address:
        static = [
            {"targets": [address], "labels": {"__metrics_path__": path, "page": path}} for path in Pages.pages()
        ]
        job = {"job_name": "engine", "static_configs": static, **kept}
        # A slow machine needs more than a second for 17 MB.
        job["scrape_interval"] = job["scrape_timeout"] = "5s"
        (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))
        with running(tmp_path) as url:
            _until_up(url, {"/well": 1, "/forges": 1, "/samples": 0, "/labels": 0, "/long": 0, "/body": 0})
            names = {one["metric"]["__name__"] for one in _ask(url, '{job="engine",page="/forges"}')}
    assert {name for name in names if not name.startswith("scrape_")} == {"up", "gpufleet_engine_requests_running"}


def _until_up(url: str, wanted: Mapping[str, int]) -> None:
    """Wait until targets are up (1) or down (0) as expected: on a loaded machine a scrape can be late once."""
    end = time.monotonic() + 120
    while (found := {one["metric"]["page"]: int(one["value"][1]) for one in _ask(url, "up")}) != wanted:
        assert time.monotonic() < end, found
        time.sleep(0.2)


def _ask(url: str, expression: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": expression}, timeout=60, trust_env=False)
    return answer.json()["data"]["result"]
