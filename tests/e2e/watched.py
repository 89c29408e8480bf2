"""An environment with one pool that the watchdogs' commands look after: real agents, Prometheus and ledger."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.settings.document import PATH_IN_BUCKET
from hosts.monitoring.prometheus import TARGETS_FILE, PrometheusSettings, render
from tests.e2e.embedded_cloud import (
    BUCKET,
    CLONE,
    EmbeddedCloud,
    fleet_document,
    instance_settings,
    pool_entry,
    started,
    status,
    wait_for,
)
from tests.networks import end_process
from tests.prometheus import running as running_prometheus

GROUPS = (
    ("batch-spot-a", "spot", "us-east-1a", 1),
    ("batch-spot-b", "spot", "us-east-1b", 1),
    ("batch-od", "on-demand", None, 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """An environment with one pool of two spot instances, and the command that looks after it."""

    cloud: EmbeddedCloud
    folder: Path
    prometheus_url: str

    def describe(self, ledger: str, prometheus_url: str = "", **pool: Any) -> None:
        """Write the fleet document, as `pulumi up` does; `ledger` is the host's file, `pool` what is more to say."""
        text = json.dumps(_document(self.folder / ledger, prometheus_url or self.prometheus_url, pool))
        self.cloud.put_bytes(PATH_IN_BUCKET, text.encode())

    def called(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`gpufleet … --json`, with more in its environment."""
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments, "--json"],
            cwd=CLONE,
            env=self.cloud.environment() | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        sys.stdout.write(f"{arguments} {done.returncode} {done.stdout} {done.stderr}\n")  # shown when it fails
        return done

    def run(self, *arguments: str) -> tuple[int, Any]:
        """`gpufleet … --json`: exit code and answer."""
        done = self.called(*arguments)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def reasons(self, answer: Any) -> dict[str, str]:
        return {d["resource"]: d["reason_code"] for d in answer["decisions"]}


@contextmanager
def watched(folder: Path, network: str) -> Iterator[Fleet]:
    """The environment, when its two spot instances are ready."""
    with started(folder, network) as cloud, prometheus(folder, cloud) as url:
        make_groups(cloud)
        made = Fleet(cloud=cloud, folder=folder, prometheus_url=url)
        made.describe("ledger.db")
        for name in ("batch-spot-a", "batch-spot-b"):
            wait_for(f"a ready instance of {name}", lambda name=name: ready(cloud, name), 90)
        yield made


def ready(cloud: EmbeddedCloud, group: str) -> bool:
    members = cloud.members(group)
    return bool(members) and all(status(one["PrivateIpAddress"])["ready"] for one in members)


@contextmanager
def prometheus(folder: Path, cloud: EmbeddedCloud) -> Iterator[str]:
    settings = PrometheusSettings(cloud=Cloud.AWS, environment="test", scrape_interval=timedelta(seconds=1))
    (folder / "prometheus.yml").write_text(render(settings), "utf-8")
    writer = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "monitoring", "targets", "--every", "2s"]
        + ["--fleet", f"s3://{BUCKET}/{PATH_IN_BUCKET}", "--out", str(folder / TARGETS_FILE)],
        cwd=CLONE,
        env=cloud.environment(),
    )
    try:
        with running_prometheus(folder) as url:
            yield url
    finally:
        end_process(writer, 30)


def make_groups(cloud: EmbeddedCloud) -> None:
    ec2, scaling = cloud.client("ec2"), cloud.client("autoscaling")
    vpc = ec2.create_vpc(CidrBlock=f"{cloud.network}.0.0/16")["Vpc"]["VpcId"]
    subnets = {
        zone: ec2.create_subnet(VpcId=vpc, CidrBlock=f"{cloud.network}.{number}.0/24", AvailabilityZone=zone)[
            "Subnet"
        ]["SubnetId"]
        for number, zone in ((1, "us-east-1a"), (2, "us-east-1b"))
    }
    for name, kind, zone, desired in GROUPS:
        cloud.make_template(name, cloud.user_data(instance_settings("batch", CapacityType(kind))))
        written = {
            tags.ENVIRONMENT: "test",
            tags.POOL: "batch",
            tags.CAPACITY_TYPE: kind,
            tags.OWNER: "tests",
        }
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            MinSize=0,
            MaxSize=3,
            DesiredCapacity=desired,
            VPCZoneIdentifier=",".join(subnets.values()) if zone is None else subnets[zone],
            MixedInstancesPolicy={
                "LaunchTemplate": {
                    "LaunchTemplateSpecification": {"LaunchTemplateName": name, "Version": "$Latest"},
                    "Overrides": [{"InstanceType": "g6.xlarge"}],
                },
                "InstancesDistribution": {
                    "OnDemandBaseCapacity": 0,
                    "OnDemandPercentageAboveBaseCapacity": 0 if kind == "spot" else 100,
                },
            },
            Tags=[{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in written.items()],
        )


def _document(ledger: Path, prometheus_url: str, more: Mapping[str, Any]) -> dict[str, Any]:
    groups = [
        {"type": kind, "zone": zone, "name": name, "max": 3, "machine_types": ["g6.xlarge"]}
        for name, kind, zone, _ in GROUPS
    ]
    watchdogs = {
        "idle": {"window": "15s", "grace": "3s", "min_age": "15s", "max_stops_per_run": 1, "stop_price": None},
        "scale": {},
        "spot": {"fallback_after": "20s", "hold": "8s", "zone_backoff": "30s"},
    }
    pool = pool_entry("batch", groups, **{"target": 2, "watchdogs": watchdogs, **more})
    return fleet_document(prometheus_url, f"sqlite:///{ledger}", pool)
