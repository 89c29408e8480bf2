"""A scan of the embedded cloud's Google project, and of a Prometheus with recorded metrics."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.scan import scan
from app.scan_evidence import PrometheusStore, verdict_of
from app.scan_google import GoogleScanAccount
from gpufleet.clouds.call_pace import CallPace
from gpufleet.scan.judge import ScanWindows
from gpufleet.scan.model import CapacityKind, Verdict
from tests.fixtures.clouds.emulator import start_cloud, stop_cloud, wait_for
from tests.fixtures.clouds.google import PROJECT, ZONE, Google
from tests.fixtures.clouds.google_token import google_clients_have_the_token as google_clients_have_the_token
from tests.fixtures.scan.google_projects import GoogleCloud, google_cloud
from tests.fixtures.watchdogs import recordings
from tests.fixtures.watchdogs.orphans import orphan
from tests.fixtures.watchdogs.plain import START
from tests.fixtures.watchdogs.recordings import engine, exporter

pytestmark = pytest.mark.slow


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    cloud = start_cloud(tmp_path)
    try:
        found = Google(cloud=cloud)
        found.make_network()
        monkeypatch.setenv("GPUFLEET_COMPUTE_ENDPOINT", cloud.places.google_url)
        yield found
    finally:
        stop_cloud(cloud)


@pytest.fixture
def monitoring(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleCloud]:
    with google_cloud() as made:
        made.projects[PROJECT] = []
        monkeypatch.setenv("GPUFLEET_MONITORING_ENDPOINT", made.url)
        yield made


def test_instances_of_the_embedded_cloud_are_found_and_priced(google: Google, monitoring: GoogleCloud) -> None:
    google.make_group("notebook", google.make_template("notebook"), 1)
    wait_for("the instance", lambda: google.running("notebook"))
    windows = ScanWindows(now=datetime.now(UTC))
    found = scan([GoogleScanAccount(PROJECT, pace=CallPace(rate=1000))], windows, lambda *_: None)
    (one,) = found.instances or pytest.fail(str(found.all_failures))
    assert (one.instance.zone, one.instance.group) == (ZONE, f"zones/{ZONE}/notebook")
    assert one.usd_per_hour is not None and one.verdict is Verdict.UNKNOWN, "no series, so nothing is known"
    assert {each.what for each in found.all_failures} <= {"commitments"}, found.all_failures
    assert all(each.kind is CapacityKind.RESERVATION for each in found.capacity)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus")
def test_a_prometheus_proves_idle_gpus_and_shows_work(tmp_path: Path) -> None:
    recorded = {
        "i-rest": [*engine(busy=False), *exporter(busy=False)],
        "i-work": [*engine(busy=False), *exporter(busy=True)],
        "i-engine": engine(busy=False),
    }
    windows = ScanWindows(now=START, idle=timedelta(minutes=30))
    with recordings.holding(recorded, tmp_path) as url:
        found = PrometheusStore(url).gather(sorted(recorded), windows, lambda *, waits=True: None)
    uses = {name: verdict_of(replace(orphan(1), id=name), evidence, windows) for name, evidence in found.items()}
    assert {name: use and use.verdict for name, use in uses.items()} == {
        "i-rest": Verdict.IDLE,
        "i-work": Verdict.IN_USE,
        "i-engine": Verdict.LIKELY_IDLE,
    }
