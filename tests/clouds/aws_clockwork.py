"""The embedded AWS in this process, with machines that are names and a clock that the test moves: hours pass at once.

The calls go over HTTP, by real clients: what is compared is what AWS's clients read.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from moto.autoscaling import models as scaling_models
from moto.autoscaling import urls as scaling_urls
from moto.autoscaling.models import autoscaling_backends
from moto.ec2 import urls as ec2_urls
from moto.ec2 import utils as ec2_utils
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models import instances as instance_models
from moto.s3 import models as bucket_models

from localcloud.aws.api_faults import ApiFaults
from localcloud.aws.calls import Calls
from localcloud.aws.groups import LivingAutoScaling, LivingGroup
from localcloud.aws.images import add_images
from localcloud.aws.install import install
from localcloud.aws.instances import LivingInstance
from localcloud.aws.reconcile import one_round
from localcloud.aws.server import Endpoint, Front
from localcloud.aws.world import World
from localcloud.control_api import Control
from localcloud.faults import Faults
from localcloud.places import ACCESS_KEY, ACCOUNT, REGION, Places
from localcloud.time_scale import TimeScale
from tests.local_token import BEARER, TOKEN, door
from tests.networks import free_port

NOON = datetime(2026, 11, 24, 12, 0, 0, 250_000, tzinfo=UTC)
STEP = timedelta(seconds=0.25)


class Names:
    """Machines that are names: they live until they are ended, or power themselves off."""

    def __init__(self) -> None:
        self._alive: set[str] = set()

    def start(self, instance: Any) -> None:
        self._alive.add(instance.id)

    def is_alive(self, instance_id: str) -> bool:
        return instance_id in self._alive

    def end(self, instance_id: str) -> None:
        self._alive.discard(instance_id)

    def attach(self, instance_id: str, volume_id: str) -> None:
        """Nothing."""

    def detach(self, instance_id: str, volume_id: str) -> None:
        """Nothing."""

    def is_mounted(self, instance_id: str, volume_id: str) -> bool:
        return False

    def discard(self, volume_id: str) -> None:
        """Nothing."""


@dataclass(slots=True, kw_only=True)
class Clockwork:
    """The cloud, its clock and its clients."""

    world: World
    ec2_backend: EC2Backend
    scaling_backend: LivingAutoScaling
    machines: Names
    url: str
    clock: list[datetime]
    subnets: dict[str, str] = field(default_factory=dict[str, str])
    """By the letter of the zone."""
    _clients: dict[str, Any] = field(default_factory=dict[str, Any])

    def client(self, service: str) -> Any:
        """A real client, without retries."""
        if service not in self._clients:
            session: Any = boto3.Session(ACCESS_KEY, TOKEN, region_name=REGION)
            settings = Config(retries={"total_max_attempts": 1})
            self._clients[service] = session.client(service, endpoint_url=self.url, config=settings)
        return self._clients[service]

    @property
    def scaling(self) -> Any:
        return self.client("autoscaling")

    def run(self, seconds: float, step: timedelta = STEP) -> None:
        """Let so much of the real cloud's time pass: less on the clock, where a time scale divides it."""
        until = self.clock[0] + self.world.time_scale.shorten(timedelta(seconds=seconds))
        step = self.world.time_scale.shorten(step)
        while self.clock[0] < until:
            self.clock[0] += step
            one_round(self.world, self.ec2_backend, self.scaling_backend)

    def ask(self, path: str, **body: Any) -> Any:
        """A call of the control API."""
        return httpx.post(f"{self.url}/_localcloud/{path}", json=body, headers=BEARER).raise_for_status().json()

    def clear(self) -> None:
        """End what a test left, and give all capacity back."""
        self.ask("restore")
        for group in self.scaling.describe_auto_scaling_groups()["AutoScalingGroups"]:
            name = group["AutoScalingGroupName"]
            self.scaling.resume_processes(AutoScalingGroupName=name)
            self.scaling.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
        self.run(20)

    def members(self, group: str) -> list[tuple[str, str]]:
        """Instance and lifecycle state of each member."""
        found = self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"][0]
        return [(one["InstanceId"], one["LifecycleState"]) for one in found["Instances"]]

    def activities(self, group: str) -> list[dict[str, Any]]:
        """Oldest first."""
        return self.scaling.describe_scaling_activities(AutoScalingGroupName=group)["Activities"][::-1]

    def instance(self, instance_id: str) -> dict[str, Any]:
        found = self.client("ec2").describe_instances(InstanceIds=[instance_id])
        return found["Reservations"][0]["Instances"][0]

    def group(  # noqa: PLR0913
        self,
        name: str,
        *,
        size: int = 1,
        mixed: bool = False,
        spot: bool = False,
        zones: str = "a",
        hooks: tuple[dict[str, Any], ...] = (),
        **template: Any,
    ) -> None:
        """A group of g6.xlarge. `mixed`: with a mixed instances policy; `spot`: it launches spot instances."""
        ec2 = self.client("ec2")
        data: dict[str, Any] = {
            "ImageId": "ami-0d1a0000000000001",
            "InstanceType": "g6.xlarge",
            "UserData": base64.b64encode(b"#!/bin/sh\n").decode(),
            "InstanceInitiatedShutdownBehavior": "terminate",
            **template,
        }
        if spot and not mixed:
            data["InstanceMarketOptions"] = {"MarketType": "spot"}
        unique = f"{name}-{self.clock[0]:%Y%m%d%H%M%S.%f}"
        made = ec2.create_launch_template(LaunchTemplateName=unique, LaunchTemplateData=data)["LaunchTemplate"]
        of_template = {"LaunchTemplateId": made["LaunchTemplateId"], "Version": "$Latest"}
        policy = {
            "LaunchTemplate": {"LaunchTemplateSpecification": of_template, "Overrides": []},
            "InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": 0 if spot else 100},
        }
        self.scaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            MinSize=0,
            MaxSize=4,
            DesiredCapacity=size,
            VPCZoneIdentifier=",".join(self.subnets[zone] for zone in zones),
            LifecycleHookSpecificationList=list(hooks),
            Tags=[{"Key": "gpu-fleet:pool", "Value": name, "PropagateAtLaunch": True}],
            **({"MixedInstancesPolicy": policy} if mixed else {"LaunchTemplate": of_template}),
        )


def hook(transition: str, result: str = "CONTINUE", heartbeat_s: int = 1800) -> dict[str, Any]:
    """`LAUNCHING` or `TERMINATING`."""
    return {
        "LifecycleHookName": transition.lower(),
        "LifecycleTransition": f"autoscaling:EC2_INSTANCE_{transition}",
        "HeartbeatTimeout": heartbeat_s,
        "DefaultResult": result,
    }


@contextmanager
def clockwork(folder: Path, factor: float = 1.0) -> Iterator[Clockwork]:
    """One; afterwards, moto is as it was: other tests of this process use it plain."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _restore_moto_after(monkeypatch)
        _forget()
        yield from _served(folder, factor)


def _served(folder: Path, factor: float) -> Iterator[Clockwork]:
    clock, machines = [NOON], Names()
    world = World(places=Places(), hardware=machines, now=lambda: clock[0], time_scale=TimeScale(factor))
    ec2, scaling = install(world)
    add_images(ec2)
    calls, api_faults = Calls(), ApiFaults()
    faults = Faults(folder)
    control = Control(world=world, ec2=ec2, scaling=scaling, calls=calls, faults=faults, api_faults=api_faults)
    port = free_port()
    endpoint = Endpoint("127.0.0.1", port, Front(world, calls, api_faults, control, door({f"127.0.0.1:{port}"})))
    endpoint.start()
    try:
        made = Clockwork(
            world=world,
            ec2_backend=ec2,
            scaling_backend=scaling,
            machines=machines,
            url=f"http://127.0.0.1:{port}",
            clock=clock,
        )
        client = made.client("ec2")
        vpc = client.create_vpc(CidrBlock="127.16.0.0/16")["Vpc"]["VpcId"]
        for number, letter in enumerate("abc", start=1):
            made.subnets[letter] = client.create_subnet(
                VpcId=vpc, CidrBlock=f"127.16.{number}.0/24", AvailabilityZone=f"{REGION}{letter}"
            )["Subnet"]["SubnetId"]
        yield made
    finally:
        endpoint.stop()
        _forget()


def _restore_moto_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `install` changes, put back when the test ends."""
    changed: tuple[tuple[Any, str], ...] = (
        (instance_models, "Instance"),
        (instance_models, "OperationDisableApiStopNotPermitted"),
        (scaling_models, "FakeAutoScalingGroup"),
        (bucket_models, "FakeBucket"),
        (autoscaling_backends, "backend"),
    )
    for where, name in changed:
        monkeypatch.setattr(where, name, getattr(where, name))
    for kept in (LivingInstance, LivingGroup, LivingAutoScaling):
        monkeypatch.setattr(kept, "world", None, raising=False)
    paths: tuple[tuple[Any, str], ...] = ((ec2_urls.url_paths, "{0}/"), (scaling_urls.url_paths, "{0}/$"))
    for table, key in paths:
        monkeypatch.setitem(table, key, table[key])
    for key in ("instance-lifecycle", "capacity-reservation-id", "instance-state-code"):
        monkeypatch.setitem(ec2_utils.filter_dict_attribute_mapping, key, "")
    monkeypatch.setenv("MOTO_ACCOUNT_ID", ACCOUNT)


def _forget() -> None:
    """The account is empty again."""
    for backends in (ec2_backends, autoscaling_backends):
        if ACCOUNT in backends:
            del backends[ACCOUNT]
