"""A real Prometheus discovers the members of groups through the targets file of the embedded cloud."""

import json
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.inventory import AwsInventory
from gpufleet.domain.model import Cloud
from gpufleet.domain.ownership import OwnedGroup
from hosts.monitoring.prometheus import PrometheusSettings, render
from serving.accelerators.metrics import ACTIVE
from tests.fixtures.clouds.emulator import RunningCloud, make_group, make_template, wait_for
from tests.fixtures.prometheus import running
from tests.fixtures.targets import written

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (make setup does it)"),
]

_EXPORTER = """#!/bin/sh
mkdir -p "$GPUFLEET_ROOT/srv"
echo 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"} 0.5' > "$GPUFLEET_ROOT/srv/metrics"
cd "$GPUFLEET_ROOT/srv"
exec python3 -m http.server 9400 --bind "$GPUFLEET_LOCAL_ADDRESS"
"""
_TAGS = [
    {"Key": "gpu-fleet:pool", "Value": "chat", "PropagateAtLaunch": True},
    {"Key": "gpu-fleet:environment", "Value": "local", "PropagateAtLaunch": True},
    {"Key": "gpu-fleet:capacity-type", "Value": "spot", "PropagateAtLaunch": True},
]


@pytest.fixture
def prometheus(cloud: RunningCloud, tmp_path: Path) -> Iterator[str]:
    settings = PrometheusSettings(cloud=Cloud.AWS, environment="local", scrape_interval=timedelta(seconds=1))
    (tmp_path / "prometheus.yml").write_text(render(settings), "utf-8")
    groups = {"exporters": OwnedGroup(pool="chat")}
    inventory = AwsInventory(AwsCalls("us-east-1", cloud.client), "us-east-1", "local", groups)
    with (
        written(tmp_path, inventory.listed, "local"),
        running(tmp_path, f"{cloud.places.network}.0.10:9090", environment={"PATH": "/usr/bin:/bin"}) as url,
    ):
        yield url


def _active(url: str) -> list[dict[str, Any]]:
    """Series of the exporter that are active in Prometheus."""
    try:
        with urlopen(f"{url}/api/v1/query?query={ACTIVE}", timeout=60) as answer:
            return [found["metric"] for found in json.load(answer)["data"]["result"]]
    except OSError:
        return []


def test_machines_are_discovered_and_removed(cloud: RunningCloud, prometheus: str) -> None:
    template = make_template(cloud, "exporters", _EXPORTER)
    make_group(cloud, "exporters", template, size=2, spot=True, Tags=_TAGS)
    make_group(cloud, "unmanaged", template, size=1, spot=True, Tags=_TAGS)
    wait_for("both machines to be scraped", lambda: len(_active(prometheus)) == 2, 120)
    labels = _active(prometheus)
    assert {found["instance_id"] for found in labels} == {
        one["InstanceId"] for one in cloud.group("exporters")["Instances"]
    }
    assert {(found["pool"], found["capacity_type"], found["group"]) for found in labels} == {
        ("chat", "spot", "exporters")
    }
    assert {found["zone"] for found in labels} == {"us-east-1a", "us-east-1b"}
    cloud.client("autoscaling").set_desired_capacity(AutoScalingGroupName="exporters", DesiredCapacity=1)
    wait_for("the one that ended to be forgotten", lambda: len(_active(prometheus)) == 1, 120)
