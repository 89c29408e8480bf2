"""A running embedded cloud for tests: the real process, on a network of its own, with real boto3 clients."""

import base64
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from localcloud import callers
from localcloud.places import ACCESS_KEY, REGION, Places
from localcloud.time_scale import FAST, VARIABLE
from tests.local_token import BEARER, TOKEN, options
from tests.networks import end_process, free_network

REPOSITORY = Path(__file__).resolve().parents[2]
START_LIMIT_S = 40.0
QUICK: Mapping[str, str] = {VARIABLE: "20"}
"""How fast waiting times of the shared cloud pass: faster than `FAST`, which leaves an engine time to drain."""
_started: list[subprocess.Popen[bytes]] = []


@dataclass(slots=True, kw_only=True)
class RunningCloud:
    """A started embedded cloud."""

    places: Places
    folder: Path
    process: subprocess.Popen[bytes]
    network: "Network | None" = None
    _clients: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def machines(self) -> Path:
        return self.folder / "machines"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8")

    def client(self, service: str) -> Any:
        """A real client, without retries: an error is an error."""
        if service not in self._clients:
            session: Any = boto3.Session(ACCESS_KEY, TOKEN, region_name=REGION)
            settings = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
            self._clients[service] = session.client(service, endpoint_url=self.places.api_url, config=settings)
        return self._clients[service]

    def control(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """A call of the control API: status and answer."""
        payload = None if body is None else json.dumps(body).encode()
        url = f"{self.places.api_url}/_localcloud/{path}"
        request = urllib.request.Request(url, method=method, data=payload, headers=BEARER)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def instances(self, group: str) -> list[dict[str, Any]]:
        """What EC2 says of the instances of a group, also of those that ended."""
        found = self.client("ec2").describe_instances(
            Filters=[{"Name": "tag:aws:autoscaling:groupName", "Values": [group]}]
        )
        return [instance for reservation in found["Reservations"] for instance in reservation["Instances"]]

    def group(self, name: str) -> dict[str, Any]:
        """What Auto Scaling says of a group."""
        found = self.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        return found["AutoScalingGroups"][0]

    def in_service(self, name: str) -> list[dict[str, Any]]:
        """Members of a group that serve."""
        return [one for one in self.group(name)["Instances"] if one["LifecycleState"] == "InService"]

    def activities(self, name: str) -> list[dict[str, Any]]:
        """Scaling activities of a group, newest first."""
        return self.client("autoscaling").describe_scaling_activities(AutoScalingGroupName=name)["Activities"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What every group of a test needs."""

    subnets: Mapping[str, str]
    """Zone letter -> subnet id."""


def wait_for(what: str, check: Callable[[], Any], limit_s: float = 25.0) -> Any:
    """The first true answer. Fails the test with what was waited for."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        found = check()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail(f"waited {limit_s:g} s for {what}")


def start_cloud(
    folder: Path, places: Places | None = None, *more: str, waits: Mapping[str, str] = FAST
) -> RunningCloud:
    """Start the process and wait until it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    places = places or Places(network=free_network())
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "localcloud.cloud", "--state", str(folder / "state")),
                *("--machines", str(folder / "machines"), "--network", places.network),
                *(*options(folder), *more),
            ],
            cwd=REPOSITORY,
            stdout=log,
            stderr=log,
            env={**os.environ, **waits, "AWS_PROFILE": "a-real-account", "AWS_SECRET_ACCESS_KEY": "a-real-secret"},
        )
    _started.append(process)
    cloud = RunningCloud(places=places, folder=folder, process=process)

    def answers() -> bool:
        if process.poll() is not None:
            pytest.fail(f"the cloud ended at once: {cloud.log}")
        try:
            return cloud.control("GET", "health")[0] == 200
        except OSError:
            return False

    wait_for("the embedded cloud", answers, START_LIMIT_S)
    return cloud


def stop_cloud(cloud: RunningCloud) -> None:
    """End it in order; a cloud that does not end is killed and fails the test."""
    end_process(cloud.process)


@pytest.fixture(autouse=True)
def _google_clients_have_the_token(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv(callers.VARIABLE, TOKEN)


@pytest.fixture(scope="session", autouse=True)
def _no_cloud_is_left() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Also when a test failed before it could end the one it had started."""
    yield
    for process in _started:
        if process.poll() is None:
            end_process(process)


@pytest.fixture(scope="session")
def session_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCloud]:
    """One cloud for all tests that do not end it."""
    cloud = start_cloud(tmp_path_factory.mktemp("cloud"), waits=QUICK)
    cloud.network = make_network(cloud)
    try:
        yield cloud
    finally:
        stop_cloud(cloud)


@pytest.fixture
def cloud(session_cloud: RunningCloud) -> Iterator[RunningCloud]:
    """The shared cloud, with all capacity there; the groups and reservations of the test end with it."""
    session_cloud.control("POST", "restore", {})
    yield session_cloud
    session_cloud.control("POST", "restore", {})
    session_cloud.control("DELETE", "fault")
    scaling = session_cloud.client("autoscaling")
    for group in scaling.describe_auto_scaling_groups()["AutoScalingGroups"]:
        if group.get("Status") is None:
            scaling.delete_auto_scaling_group(AutoScalingGroupName=group["AutoScalingGroupName"], ForceDelete=True)
    wait_for(
        "the end of the test's groups",
        lambda: not scaling.describe_auto_scaling_groups()["AutoScalingGroups"],
    )
    # an open one would take the launches of the next test, whatever capacity that one left
    ec2 = session_cloud.client("ec2")
    active = [{"Name": "state", "Values": ["active"]}]
    for reservation in ec2.describe_capacity_reservations(Filters=active)["CapacityReservations"]:
        if reservation["ReservationType"] == "default":
            ec2.cancel_capacity_reservation(CapacityReservationId=reservation["CapacityReservationId"])


def make_network(cloud: RunningCloud) -> Network:
    """A VPC with a subnet per zone, and an instance profile."""
    ec2, iam = cloud.client("ec2"), cloud.client("iam")
    vpc = ec2.create_vpc(CidrBlock=cloud.places.vpc_cidr)["Vpc"]["VpcId"]
    subnets = {
        letter: ec2.create_subnet(
            VpcId=vpc,
            CidrBlock=f"{cloud.places.network}.{number}.0/24",
            AvailabilityZone=f"us-east-1{letter}",
        )["Subnet"]["SubnetId"]
        for number, letter in enumerate("abc", start=1)
    }
    iam.create_role(RoleName="node", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="node")
    iam.add_role_to_instance_profile(InstanceProfileName="node", RoleName="node")
    return Network(subnets=subnets)


def make_template(cloud: RunningCloud, name: str, script: str = "#!/bin/sh\n", **more: Any) -> str:
    """A launch template with this user data. Returns its id."""
    data = {
        "ImageId": "ami-0d1a0000000000001",
        "InstanceType": "g6.xlarge",
        "UserData": base64.b64encode(script.encode()).decode(),
        "IamInstanceProfile": {"Name": "node"},
        "MetadataOptions": {"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
        **more,
    }
    made = cloud.client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
    return made["LaunchTemplate"]["LaunchTemplateId"]


def make_group(cloud: RunningCloud, name: str, template: str, *, size: int, spot: bool = False, **more: Any) -> None:
    """A group over zones a and b (`zones=` changes that), at most 4."""
    assert cloud.network is not None
    zones = more.pop("zones", "ab")
    types = more.pop("types", ("g6.xlarge", "g5.xlarge"))
    specification = {"LaunchTemplateId": template, "Version": "$Latest"}
    wanted: dict[str, Any] = {
        "AutoScalingGroupName": name,
        "MinSize": 0,
        "MaxSize": 4,
        "DesiredCapacity": size,
        "VPCZoneIdentifier": ",".join(cloud.network.subnets[zone] for zone in zones),
        "Tags": [
            {"Key": "gpu-fleet:pool", "Value": more.pop("pool", name), "PropagateAtLaunch": True},
            {"Key": "not-for-instances", "Value": "x", "PropagateAtLaunch": False},
        ],
        **more,
    }
    if spot:
        wanted["MixedInstancesPolicy"] = {
            "LaunchTemplate": {
                "LaunchTemplateSpecification": specification,
                "Overrides": [{"InstanceType": machine_type} for machine_type in types],
            },
            "InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": 0, "OnDemandBaseCapacity": 0},
        }
    else:
        wanted["LaunchTemplate"] = specification
    cloud.client("autoscaling").create_auto_scaling_group(**wanted)


def metadata(address: str, path: str, token: str = "") -> tuple[int, str]:
    """A value of the metadata service, with a fresh token unless one is given."""
    base = f"http://{address}:1338/latest"
    if not token:
        wish = urllib.request.Request(
            f"{base}/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        )
        with urllib.request.urlopen(wish, timeout=5) as answer:
            token = answer.read().decode()
    wish = urllib.request.Request(f"{base}/{path}", headers={"X-aws-ec2-metadata-token": token})
    try:
        with urllib.request.urlopen(wish, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""
