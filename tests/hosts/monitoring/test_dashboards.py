"""Each query of each dashboard returns data from a real Prometheus that scrapes the project's exporters."""

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import typer
import yaml
from typer.testing import CliRunner

from app.monitoring import ask
from cli import monitoring
from cli.output import Exit
from gpufleet.clouds.prometheus import Prometheus
from gpufleet.console import exporter
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.document.alerts import AlertSettings
from gpufleet.settings.document.money import Budget
from hosts.monitoring.alerts import render
from hosts.monitoring.dashboards import SOURCE, dashboards, files
from hosts.monitoring.dashboards import render as render_dashboard
from hosts.monitoring.rules import RuleSettings
from serving import metrics
from serving.accelerators import CONTRACTS
from serving.accelerators.relabelling import relabelling
from serving.metrics import Metric
from serving.metrics import MetricKind as Shape
from serving.router.exporter import RouterSnapshot
from serving.router.exporter import metrics as router_page
from serving.router.meter import Meter
from tests.fixtures.console.fleet import document
from tests.fixtures.ledger_metrics import _charges, ledger_page
from tests.fixtures.metrics_text import value
from tests.fixtures.prometheus import running

LABELS = {
    "environment": "prod", "pool": "chat", "capacity_type": "spot", "zone": "z", "machine_type": "g6.xlarge",
    "group": "g", "instance_id": "i-1",
}  # fmt: skip


BUDGET = Budget(usd_per_month=Decimal(730), usd_per_hour_at_max=Decimal(2))
WHOLE = document("chat").model_copy(update={"budget": BUDGET, "node_exporter": True})


def engine_page(seconds: float) -> str:
    """Return a page with all known metrics of engine, exporter and agent; counters increase."""
    return "".join(line for metric in metrics.ALL.values() for line in _samples(metric, seconds))


def _samples(metric: Metric, seconds: float) -> Iterator[str]:
    if metric.kind is Shape.HISTOGRAM:
        for bound in ("0.1", "1", "+Inf"):
            yield f'{metric.name}_bucket{{le="{bound}"}} {seconds * 10}\n'
        yield f"{metric.name}_count {seconds * 10}\n{metric.name}_sum {seconds}\n"
    else:
        labels = {
            metrics.NODE_PHASE: '{phase="ready"}',
            metrics.NODE_BOOT_SECONDS: '{step="cache"}',
            metrics.HOST_CPU_SECONDS: '{cpu="0",mode="idle"}',
            metrics.HOST_DISK_FREE: '{mountpoint="/"}',
            metrics.HOST_DISK_SIZE: '{mountpoint="/"}',
        }
        value = seconds * 10 if metric.kind is Shape.COUNTER else 1
        yield f"{metric.name}{labels.get(metric, '')} {value}\n"


def gpu_page(seconds: float) -> str:
    """A page of dcgm-exporter with one GPU that draws 40 W. Its energy increases."""
    labels = 'gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA L4",Hostname="h"'
    values = {
        "PROF_GR_ENGINE_ACTIVE": 0.5, "DEV_GPU_UTIL": 50, "DEV_POWER_USAGE": 40, "DEV_XID_ERRORS": 0,
        "DEV_TOTAL_ENERGY_CONSUMPTION": round(40_000 * seconds),
        "DEV_FB_USED": 20_000, "DEV_FB_FREE": 2_000, "DEV_FB_RESERVED": 600,
    }  # fmt: skip
    return "".join(f"DCGM_FI_{name}{{{labels}}} {value}\n" for name, value in values.items())


class Pages(BaseHTTPRequestHandler):
    meter: Meter
    began = time.monotonic()

    def do_GET(self) -> None:
        seconds = time.monotonic() - self.began
        self.meter.by_status[("chat", "2xx")] = int(seconds * 10)
        moment = RouterSnapshot(held={"chat": 1}, ready={"chat": 1}, known={"chat": 1}, excluded={"chat": 0})
        text = {
            "/instance": engine_page(seconds),
            "/gpu": gpu_page(seconds),
            "/router": router_page(self.meter, moment),
            "/ledger": ledger_page(),
        }[self.path]
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    Pages.meter = Meter(folder / "access.log", folder / "meter.json")
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        target = f"127.0.0.1:{pages.server_address[1]}"
        own = {"environment": "prod"}
        jobs = [
            {"job_name": job, "metrics_path": path, "honor_labels": True,
             "static_configs": [{"targets": [target], "labels": labels}]}
            for job, path, labels in (("node", "/instance", LABELS), ("accelerator", "/gpu", LABELS),
                                      ("router", "/router", own), ("watchdogs", "/ledger", own))
        ]  # fmt: skip
        jobs[1]["metric_relabel_configs"] = relabelling(CONTRACTS.values())
        (folder / "rules.yml").write_text(render(AlertSettings(), RuleSettings(rate_window=timedelta(seconds=10))))
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        try:
            with running(folder) as url:
                yield url
        finally:
            pages.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (make setup installs it)")
def test_every_query_returns_data(tmp_path: Path) -> None:
    with prometheus(tmp_path) as url:
        asked, end = Prometheus(url), time.monotonic() + 180
        while left := [one for one in ask(asked, WHOLE, datetime.now(UTC)) if not one.series]:
            assert time.monotonic() < end, left
            time.sleep(0.5)
        asked.close()


class OneEmpty(BaseHTTPRequestHandler):
    """A fake Prometheus with two series for each query except that for preemptions."""

    def do_POST(self) -> None:
        query = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["query"][0]
        found = [] if "preemptions" in query else [{"metric": {}, "value": [0, "2"]}]
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("fleet", "left_out"),
    [
        pytest.param(WHOLE, 0, id="everything"),
        pytest.param(WHOLE.model_copy(update={"budget": None}), 2, id="no budget, so no burn rates"),
        pytest.param(WHOLE.model_copy(update={"node_exporter": False}), 3, id="no node exporter, so no machines"),
        pytest.param(document("chat"), 5, id="neither"),
    ],
)
def test_the_command_names_the_panels_without_data(tmp_path: Path, fleet: FleetDocument, left_out: int) -> None:
    app = typer.Typer()
    monitoring.register(app)
    with ThreadingHTTPServer(("127.0.0.1", 0), OneEmpty) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        at = {"prometheus_url": f"http://127.0.0.1:{server.server_address[1]}"}
        path = tmp_path / "fleet.json"
        path.write_text(fleet.model_copy(update=at).model_dump_json())
        done = CliRunner().invoke(app, ["monitoring", "check", "--fleet", str(path), "--json"])
        server.shutdown()
    assert done.exit_code == Exit.FOUND
    found = json.loads(done.stdout)
    assert {(one["dashboard"], one["panel"]) for one in found if not one["series"]} == {("Fleet", "Preemptions")}
    assert not [one["query"] for one in found if "$" in one["query"]], "something is left to be chosen"
    every = sum(len(panel.queries) for board in dashboards() for panel in board.panels)
    assert len(found) == every - left_out


def test_every_panel_has_a_description_and_a_unit() -> None:
    for board in dashboards():
        assert len({panel.title for panel in board.panels}) == len(board.panels)
        for panel in board.panels:
            assert panel.unit, panel.title
            assert panel.description.endswith("."), panel.title
            assert panel.queries, panel.title


def test_every_variable_of_a_query_is_defined() -> None:
    for board in dashboards():
        document = json.loads(render_dashboard(board))
        names = {variable["name"] for variable in document["templating"]["list"]}
        used = set(re.findall(r"\$(\w+)", " ".join(q.expression for p in board.panels for q in p.queries)))
        assert used <= names
        boxes = [panel["gridPos"] for panel in document["panels"]]
        assert all(box["x"] + box["w"] <= 24 for box in boxes)
        assert len({(box["x"], box["y"]) for box in boxes}) == len(boxes)


def test_grafana_finds_source_and_dashboards_at_its_start() -> None:
    found = files("http://127.0.0.1:9090", "/etc/gpu-fleet/dashboards")
    (source,) = yaml.safe_load(found["provisioning/datasources/gpufleet.yml"])["datasources"]
    assert (source["uid"], source["url"]) == (SOURCE, "http://127.0.0.1:9090")
    boards = [json.loads(text) for path, text in found.items() if path.startswith("dashboards/")]
    assert {board["uid"] for board in boards} == {board.uid for board in dashboards()}
    assert {panel["datasource"]["uid"] for board in boards for panel in board["panels"]} == {SOURCE}


def test_a_spend_over_too_little_time_is_not_shown() -> None:
    short = exporter.WindowSpend(window="1h", covered=timedelta(minutes=1), charges=())
    page = exporter.render([exporter.FleetMetrics(environment="prod", spends=[short])])
    assert "gpufleet_spend_rate_usd_per_hour{" not in page
    assert "gpufleet_ledger_known_until_seconds{" not in page


def test_a_rate_covers_the_known_time() -> None:
    half = exporter.WindowSpend(window="1h", covered=timedelta(minutes=30), charges=_charges())
    page = exporter.render([exporter.FleetMetrics(environment="e", spends=[half])])
    rate = value(page, "gpufleet_spend_rate_usd_per_hour", environment="e", window="1h")
    assert rate == 2, "1 USD in half an hour"
    labels = {"environment": "e", "pool": "chat", "capacity_type": "spot", "state": "used"}
    assert value(page, "gpufleet_spend_usd_per_hour", **labels) == 2
