"""Many alerts on the whole path: Prometheus, Alertmanager, `gpufleet console`, outbox, Slack's sink."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from localcloud.slack.server import SlackSink
from sqlalchemy import select

from gpufleet.domain.model import Cloud
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.tables import OUTBOX
from gpufleet.notify.deliver import deliver
from gpufleet.notify.slack import SlackBot
from gpufleet.settings.document.alerts import AlertSettings
from gpufleet.toolchain.folders import ROOT as CLONE
from hosts.monitoring import alertmanager, alerts
from hosts.monitoring.prometheus import PrometheusSettings
from hosts.monitoring.prometheus import render as render_prometheus
from hosts.monitoring.rules import RuleSettings
from tests.fixtures import local_token
from tests.fixtures.console.fleet import document
from tests.fixtures.networks import free_network

NETWORK = free_network()
TOKEN = "a-token-of-the-console"  # noqa: S105 - of a test
SECOND = timedelta(seconds=1)
STORM = 500

needs_amtool = pytest.mark.skipif(
    shutil.which("amtool") is None, reason="amtool is not installed (make setup installs it)"
)
needs_both = pytest.mark.skipif(
    not all(map(shutil.which, ("prometheus", "prometheus-alertmanager"))),
    reason="Prometheus and Alertmanager are not installed (make setup installs them)",
)


def settings(folder: Path, **changed: Any) -> alertmanager.AlertmanagerSettings:
    token = str(folder / "token")
    return alertmanager.AlertmanagerSettings(webhook=f"http://{NETWORK}.0.9:9600/alerts", token_file=token, **changed)


@needs_amtool
def test_amtool_accepts_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    path = tmp_path / "alertmanager.yml"
    path.write_text(alertmanager.render(settings(tmp_path)))
    done = subprocess.run(["amtool", "check-config", str(path)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 receivers" in done.stdout


def test_inhibition_rules_name_existing_alerts() -> None:
    names = {alert.name for alert in alerts.alerts(AlertSettings())}
    assert names >= {name for loud, quiet, _ in alertmanager.QUIET for name in (loud, quiet)}


@needs_amtool
def test_the_command_writes_valid_configurations(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.json"
    fleet.write_text(document("chat").model_copy(update={"node_exporter": True}).model_dump_json())
    (tmp_path / "token").write_text(TOKEN)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "cli.main", "monitoring", "render", "--fleet", str(fleet), "--out", str(out)]
    more = ["--token-file", str(tmp_path / "token"), "--p99", "chat=10s"]
    done = subprocess.run([*command, *more], cwd=CLONE, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for check in (["amtool", "check-config", "alertmanager.yml"], ["promtool", "check", "config", "prometheus.yml"]):
        judged = subprocess.run(check, cwd=out, capture_output=True, text=True, timeout=180)
        assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "LatencyHigh" in (out / "rules.yml").read_text()
    assert "job_name: host\n" in (out / "prometheus.yml").read_text()
    assert len(list((out / "grafana" / "dashboards").iterdir())) == 4
    wrong = subprocess.run([*command, "--p99", "other=1s"], cwd=CLONE, capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2
    assert "no pool 'other'" in wrong.stderr


@needs_both
@pytest.mark.slow
@pytest.mark.long
def test_five_hundred_failing_instances_are_one_message_and_their_end_another(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sink = SlackSink("127.0.0.1", 0, local_token.callers())
        sink.start()
        stack.callback(sink.stop)
        gpus = stack.enter_context(_gpus())
        ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
        stack.enter_context(_console(tmp_path, ledger))
        stack.enter_context(_alertmanager(tmp_path))
        stack.enter_context(_prometheus(tmp_path))
        slack = SlackBot(local_token.BOT, f"{sink.url}/api/")

        def texts() -> list[str]:
            deliver(open_ledger(ledger), slack, lambda: datetime.now(UTC))
            return [
                one["text"]
                for one in httpx.get(f"{sink.url}/messages", headers=local_token.BEARER, timeout=60).json()
            ]

        gpus.xid = 79
        _until(lambda: len(texts()) >= 1, "one notification for all alerts is sent")
        # More GPUs fail: the posts contain no new alert.
        for _ in range(3):
            gpus.failing += 1
            time.sleep(2.5)
        sent = texts()
        assert len(sent) == 1, sent
        assert sent[0].splitlines()[0] == (f"GpuErrors (environment prod, fleet aws-prod, pool chat): {STORM} firing")
        assert "docs/runbook.md#gpuerrors" in sent[0]
        gpus.xid = 0
        _until(
            lambda: len(texts()) == 2, "the resolution is sent", 300
        )  # the rule holds on to an XID for two minutes
        assert texts()[1].startswith("Resolved: GpuErrors (environment prod, fleet aws-prod, pool chat), ")


@needs_both
@pytest.mark.slow
def test_an_alert_waits_for_alertmanager_and_console_and_is_sent_once_despite_restarts(tmp_path: Path) -> None:
    with ExitStack() as stack:
        gpus = stack.enter_context(_gpus())
        gpus.failing, gpus.xid = 1, 79
        ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
        stack.enter_context(_prometheus(tmp_path))
        _until(lambda: "GpuErrors" in _firing(), "the alert fires while Alertmanager is down")
        first = stack.enter_context(_alertmanager(tmp_path))
        _until(lambda: _requests("_failed") > 0, "posts to the missing console fail")
        stack.enter_context(_console(tmp_path, ledger))
        _until(lambda: _queued(ledger) == 1, "the alert is queued")
        first.kill()
        first.wait(120)
        stack.enter_context(_alertmanager(tmp_path))
        # A killed Alertmanager loses the record of its posts.
        _until(lambda: _requests("") > 0, "the alert is posted again")
        assert _queued(ledger) == 1


def _firing() -> list[str]:
    found = httpx.get(f"http://{NETWORK}.0.10:9090/api/v1/alerts", timeout=60).json()["data"]["alerts"]
    return [one["labels"]["alertname"] for one in found if one["state"] == "firing"]


def _requests(what: str) -> float:
    """Return the number of this Alertmanager's requests to the console; `_failed`: of those without an answer."""
    page = httpx.get(f"http://{NETWORK}.0.10:9093/metrics", timeout=60).text
    name = f'alertmanager_notification_requests{what}_total{{integration="webhook"'
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


def _queued(ledger: str) -> int:
    """Return the number of messages about GpuErrors in the outbox."""
    engine = open_ledger(ledger)
    try:
        with engine.connect() as connection:
            texts = connection.execute(select(OUTBOX.c.text)).scalars().all()
    finally:
        engine.dispose()
    return sum(text.startswith("GpuErrors ") for text in texts)


class _Gpus(ThreadingHTTPServer):
    """A server of a page with XID errors of many instances."""

    daemon_threads = True
    xid = 0
    failing = STORM

    def page(self) -> str:
        line = 'DCGM_FI_DEV_XID_ERRORS{{instance_id="i-{n}",pool="chat"}} {xid}\n'
        return "".join(line.format(n=n, xid=self.xid) for n in range(self.failing))


@contextmanager
def _gpus() -> Iterator[_Gpus]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert isinstance(self.server, _Gpus)
            # The router's page is empty: the target exists, so there is no alert.
            body = self.server.page().encode() if self.path == "/metrics" else b""
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with _Gpus((f"{NETWORK}.0.8", 9400), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@contextmanager
def _console(folder: Path, ledger: str) -> Iterator[None]:
    known = json.loads(document("chat").model_dump_json())
    written = folder / "fleet.json"
    written.write_text(json.dumps(known | {"ledger_url": ledger, "notify": {"slack_channel": "#gpu"}}))
    (folder / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "cli.main", "console", "--fleet", str(written)]
    command += ["--listen", f"{NETWORK}.0.9:9600", "--token-file", str(folder / "token")]
    with _running(command, folder / "console.log", f"http://{NETWORK}.0.9:9600/healthz"):
        yield


@contextmanager
def _alertmanager(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    path = folder / "alertmanager.yml"
    path.write_text(alertmanager.render(settings(folder, group_wait=3 * SECOND, group_interval=2 * SECOND)))
    address = f"{NETWORK}.0.10:9093"
    command = ["prometheus-alertmanager", f"--config.file={path}", f"--storage.path={folder / 'alertmanager'}"]
    command += [f"--web.listen-address={address}", "--data.maintenance-interval=1m", "--cluster.listen-address="]
    with _running(command, folder / "alertmanager.log", f"http://{address}/-/ready") as process:
        yield process


@contextmanager
def _prometheus(folder: Path) -> Iterator[None]:
    (folder / "rules.yml").write_text(alerts.render(AlertSettings(), RuleSettings()))
    text = render_prometheus(
        PrometheusSettings(
            cloud=Cloud.AWS,
            environment="prod",
            scrape_interval=SECOND,
            watchdogs=(f"{NETWORK}.0.8:9400",),
            haproxy=(f"{NETWORK}.0.8:9400",),
            alertmanagers=(f"{NETWORK}.0.10:9093",),
            rule_files=("rules.yml",),
        )
    )
    known = yaml.safe_load(text)
    # There is no cloud: the watchdogs' page simulates all instances, so its job keeps their metric names.
    known["scrape_configs"] = [job for job in known["scrape_configs"] if job["job_name"] in ("watchdogs", "router")]
    for job in known["scrape_configs"]:
        del job["metric_relabel_configs"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(known))
    address = f"{NETWORK}.0.10:9090"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command.append("--rules.alert.resend-delay=5s")  # a restarted Alertmanager gets alerts soon
    with _running(
        [*command, f"--web.listen-address={address}"], folder / "prometheus.log", f"http://{address}/-/ready"
    ):
        yield


@contextmanager
def _running(command: list[str], log: Path, ready: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, wait until it responds, and terminate it at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=CLONE, env=dict(os.environ))
    try:
        _until(lambda: httpx.get(ready, timeout=60).is_success, command[0])
        yield process
    finally:
        process.terminate()
        process.wait(120)


def _until(true: Callable[[], bool], what: str, limit_s: float = 180) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            if true():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    pytest.fail(f"not within {limit_s} s: {what}")
