"""A real Prometheus discovers the members of Compute Engine groups through its generated target file."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from gpufleet.clouds.gcp.calls import ENDPOINT, GoogleCalls
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.domain.model import Cloud
from gpufleet.domain.ownership import OwnedGroup
from hosts.monitoring.prometheus import PrometheusSettings, render
from serving.accelerators.metrics import ACTIVE
from tests.fixtures.clouds.emulator import start_cloud, stop_cloud, wait_for
from tests.fixtures.clouds.google import PROJECT, REGION, ZONE, Google
from tests.fixtures.prometheus import running
from tests.fixtures.targets import written

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (make setup does it)"),
]

LABELS = ("instance_id", "zone", "machine_type", "group", "environment", "pool", "capacity_type")
_EXPORTER = """#!/bin/sh
mkdir -p "$GPUFLEET_ROOT/etc/systemd/system"
cat > "$GPUFLEET_ROOT/etc/systemd/system/dcgm.service" <<UNIT
[Service]
ExecStart=docker run --rm --network host gpu-fleet/dcgm-exporter -a $GPUFLEET_LOCAL_ADDRESS:9400
UNIT
cat > "$GPUFLEET_ROOT/etc/systemd/system/host.service" <<UNIT
[Service]
ExecStart=docker run --rm node-exporter --web.listen-address=$GPUFLEET_LOCAL_ADDRESS:9100
UNIT
systemctl daemon-reload
systemctl start dcgm.service
systemctl start host.service
"""


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    cloud = start_cloud(tmp_path / "cloud")
    monkeypatch.setenv(ENDPOINT, cloud.places.google_url)
    try:
        made = Google(cloud=cloud)
        made.make_network()
        yield made
    finally:
        stop_cloud(cloud)


@contextmanager
def _prometheus(folder: Path, google: Google) -> Iterator[str]:
    second = timedelta(seconds=1)
    settings = PrometheusSettings(cloud=Cloud.GCP, environment="test", scrape_interval=second, node_exporter=True)
    (folder / "prometheus.yml").write_text(render(settings), "utf-8")
    groups = {"chat": OwnedGroup(pool="chat", zone=ZONE)}
    inventory = GoogleInventory(GoogleCalls(PROJECT), REGION, "test", groups)
    address = f"{google.cloud.places.network}.0.10:9090"
    with (
        written(folder, inventory.listed, "test"),
        running(folder, address, environment={"PATH": "/usr/bin:/bin"}) as url,
    ):
        yield url


def _found(url: str, query: str) -> list[dict[str, Any]]:
    try:
        with urlopen(f"{url}/api/v1/query?query={quote(query)}", timeout=60) as answer:
            return [found["metric"] for found in json.load(answer)["data"]["result"]]
    except OSError:
        return []


def test_an_instance_is_scraped_with_its_labels(google: Google, tmp_path: Path) -> None:
    google.make_group("chat", google.make_template("chat", _EXPORTER), 1)
    member = wait_for("the member", lambda: google.running("chat"))[0]
    with _prometheus(tmp_path, google) as url:
        found = wait_for("the exporter", lambda: _found(url, ACTIVE.name), 120)[0]
        host = wait_for("the node exporter", lambda: _found(url, "node_memory_MemAvailable_bytes"), 120)[0]
        modes = {one["mode"] for one in wait_for("CPUs", lambda: _found(url, "node_cpu_seconds_total"), 120)}
    labels = {name: found[name] for name in LABELS}
    assert {name: host[name] for name in LABELS} == labels
    assert (host["job"], modes) == ("host", {"idle", "iowait"})
    assert labels == {
        "instance_id": member.name,
        "zone": ZONE,
        "machine_type": "g2-standard-8",
        "group": "chat",
        "environment": "test",
        "pool": "chat",
        "capacity_type": "spot",
    }
    assert "L4" in found["modelName"], "the exporter asked the metadata server which machine it is on"
