"""The embedded cloud in a process of its own, on a network of its own, for tests that boot machines."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import httpx

from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.settings.document import PATH_IN_BUCKET
from localcloud import tiny_model
from localcloud.places import ACCESS_KEY
from localcloud.time_scale import FAST
from serving import agent_archive, user_data
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.engine import EngineKind
from serving.instance_settings import EngineSettings, InstanceSettings
from tests import local_token, signing
from tests.networks import end_process

CLONE = Path(__file__).resolve().parents[2]
BUCKET = "gpu-fleet-test-models"
CONTROL = "control-host"
ENGINE_KEY = "/gpu-fleet/test/engine-key"
ORDER_KEY = "/gpu-fleet/test/order-key"
"""Names of the parameters."""
SIMULATED = "gpu-fleet/simulated-engine@sha256:" + "0" * 64
ORDERS = {"private_key": f"ssm:{ORDER_KEY}", "public_keys": [signing.key().public.text]}
WITH_KEY = {"Authorization": f"Bearer {signing.ENGINE_KEY}"}
"""Headers of requests that go to an engine without the router."""


def wait_for(what: str, look: Callable[[], Any], limit_s: float = 60) -> Any:
    """Look until there is something. Fails with `what` at the limit."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        try:
            found = look()
        except (httpx.TransportError, OSError):
            found = None
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {limit_s:.0f} s")


@dataclass(slots=True, kw_only=True)
class EmbeddedCloud:
    """A started cloud with a bucket, two keys, a role and a network."""

    network: str
    folder: Path

    @property
    def url(self) -> str:
        return f"http://{self.network}.0.2:4566"

    def client(self, service: str) -> Any:
        session = boto3.Session(ACCESS_KEY, local_token.TOKEN, region_name="us-east-1")
        return session.client(service, endpoint_url=self.url)  # pyright: ignore[reportCallIssue, reportArgumentType]

    def control(self, path: str, body: dict[str, Any] | None = None) -> Any:
        address = f"{self.url}/_localcloud/{path}"
        answer = httpx.request("GET" if body is None else "POST", address, json=body, headers=local_token.BEARER)
        assert answer.is_success, answer.text
        return answer.json()

    def exists(self, key: str) -> bool:
        return "Contents" in self.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=key, MaxKeys=1)

    def put_bytes(self, key: str, body: bytes) -> None:
        self.client("s3").put_object(Bucket=BUCKET, Key=key, Body=body)

    def put_file(self, key: str, path: Path) -> None:
        self.client("s3").upload_file(str(path), BUCKET, key)

    def set_up(self) -> None:
        """Bucket with a served model, keys, role."""
        self.client("s3").create_bucket(Bucket=BUCKET)
        for name, value in ((ENGINE_KEY, signing.ENGINE_KEY), (ORDER_KEY, signing.pem())):
            self.client("ssm").put_parameter(Name=name, Value=value, Type="SecureString")
        iam = self.client("iam")
        iam.create_role(RoleName="gpu-instance", AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName="gpu-instance")
        iam.add_role_to_instance_profile(InstanceProfileName="gpu-instance", RoleName="gpu-instance")
        self.publish_model("chat", tiny_model.Shape())

    def publish_model(self, name: str, shape: tiny_model.Shape, *, served: bool = True) -> str:
        """Put a model into the bucket; its digest."""
        source = self.folder / "models" / f"{name}-{shape.seed}"
        tiny_model.make(source, shape)
        manifest = manifests.describe(source, name=name, revision=f"seed {shape.seed}")
        publish.add(self, source, manifest)
        if served:
            publish.rollout(self, name=name, digest=manifest.digest)
        return manifest.digest

    def user_data(self, settings: InstanceSettings) -> str:
        """The script of an instance, its agent put into the bucket."""
        archive = agent_archive.build(CLONE)
        digest = hashlib.sha256(archive).hexdigest()
        self.put_bytes(user_data.archive_key(digest), archive)
        return user_data.render(settings, digest)

    def make_template(self, name: str, script: str, **launched: Any) -> None:
        """A launch template; what is not said is a g6.xlarge."""
        ec2 = self.client("ec2")
        ec2.create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={
                "ImageId": ec2.describe_images(Owners=["self", "amazon"])["Images"][0]["ImageId"],
                "InstanceType": "g6.xlarge",
                "UserData": base64.b64encode(script.encode()).decode(),
                "IamInstanceProfile": {"Name": "gpu-instance"},
                "MetadataOptions": {"HttpTokens": "required"},
                "InstanceInitiatedShutdownBehavior": "terminate",
                **launched,
            },
        )

    def make_group(self, name: str, script: str, *, pool: str = "chat") -> None:
        """An Auto Scaling group of one spot instance with a termination hook."""
        scaling = self.client("autoscaling")
        self.make_template(name, script)
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            MinSize=0,
            MaxSize=2,
            DesiredCapacity=1,
            VPCZoneIdentifier=self.subnet(),
            MixedInstancesPolicy={
                "LaunchTemplate": {
                    "LaunchTemplateSpecification": {"LaunchTemplateName": name, "Version": "$Latest"},
                    "Overrides": [{"InstanceType": "g6.xlarge"}],
                },
                "InstancesDistribution": {
                    "OnDemandBaseCapacity": 0,
                    "OnDemandPercentageAboveBaseCapacity": 0,
                    "SpotAllocationStrategy": "price-capacity-optimized",
                },
            },
            Tags=[{"Key": tags.POOL, "Value": pool, "PropagateAtLaunch": True}],
        )
        scaling.put_lifecycle_hook(
            AutoScalingGroupName=name,
            LifecycleHookName="drain",
            LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
            DefaultResult="CONTINUE",
            HeartbeatTimeout=120,
        )

    def members(self, group: str) -> list[dict[str, Any]]:
        """Instances of a group, oldest first."""
        found = self.client("ec2").describe_instances(
            Filters=[
                {"Name": "tag:aws:autoscaling:groupName", "Values": [group]},
                {"Name": "instance-state-name", "Values": ["pending", "running"]},
            ]
        )
        instances = [i for r in found["Reservations"] for i in r["Instances"]]
        return sorted(instances, key=lambda i: (i["LaunchTime"], i["InstanceId"]))

    def desired(self) -> dict[str, int]:
        """The desired size of each group."""
        found = self.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
        return {group["AutoScalingGroupName"]: group["DesiredCapacity"] for group in found}

    def environment(self) -> dict[str, str]:
        """Of a command on the control host, whose calls are told apart from the test's by its key."""
        return {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "GPUFLEET_"))} | {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": CONTROL,
            "AWS_SECRET_ACCESS_KEY": local_token.TOKEN,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "GPUFLEET_FLEET": f"s3://{BUCKET}/{PATH_IN_BUCKET}",
        }

    def subnet(self) -> str:
        """One for all groups: in a network of its own each would give out the same addresses."""
        ec2 = self.client("ec2")
        block = f"{self.network}.1.0/24"
        found = ec2.describe_subnets(Filters=[{"Name": "cidr-block", "Values": [block]}])["Subnets"]
        if found:
            return found[0]["SubnetId"]
        vpc = ec2.create_vpc(CidrBlock=f"{self.network}.0.0/16")["Vpc"]["VpcId"]
        made = ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone="us-east-1a")
        return made["Subnet"]["SubnetId"]

    def one_member(self, group: str) -> dict[str, Any]:
        """The only member, waited for."""
        return wait_for(f"an instance of {group}", lambda: (self.members(group) or [None])[0])

    def is_gone(self, instance_id: str) -> bool:
        return self.state(instance_id) == "terminated"

    def state(self, instance_id: str) -> str:
        """What EC2 says of it."""
        found = self.client("ec2").describe_instances(InstanceIds=[instance_id])
        return str(found["Reservations"][0]["Instances"][0]["State"]["Name"])


def instance_settings(pool: str, kind: CapacityType, **more: Any) -> InstanceSettings:
    """Of an instance with a simulated engine that serves the model of `set_up`, and drains within 10 s."""
    said: dict[str, Any] = {
        "environment": "test",
        "cloud": Cloud.AWS,
        "region": "us-east-1",
        "pool": pool,
        "capacity_type": kind,
        "bucket": f"s3://{BUCKET}",
        "model": "models/chat",
        "served_name": "chat",
        "engine": EngineSettings(kind=EngineKind.VLLM, image=SIMULATED, args=("--max-model-len", "2048")),
        "dcgm_image": "gpu-fleet/dcgm-exporter@sha256:" + "1" * 64,
        "engine_key": f"ssm:{ENGINE_KEY}",
        "order_keys": (signing.key().public.text,),
        "drain_deadline": timedelta(seconds=10),
        "metadata_poll": timedelta(seconds=1),
    }
    return InstanceSettings(**{**said, **more})


def pool_entry(name: str, groups: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """A pool of the fleet document; what is not said is small."""
    return {
        "name": name, "model": "models/chat", "engine": "vllm", "owner": "tests", "target": 0, "min": 0, "max": 4,
        "drain_deadline": "10s", "groups": list(groups), "watchdogs": {}, **more,
    }  # fmt: skip


def fleet_document(prometheus_url: str, ledger_url: str, pool: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The fleet document of a test's environment: on AWS, where nothing else is said."""
    return {
        "version": 1,
        "environment": "test",
        "cloud": "aws",
        "region": "us-east-1",
        "account": "000000000000",
        "generated_by": {"project": "p", "stack": "s", "revision": "r", "at": "2026-11-21T02:15:00Z"},
        "bucket": f"s3://{BUCKET}",
        "prometheus_url": prometheus_url,
        "ledger_url": ledger_url,
        "engine_key": f"ssm:{ENGINE_KEY}",
        "orders": ORDERS,
        "router": {"url": "http://127.0.0.1:9"},
        "notify": {"slack_channel": "#gpu"},
        "pools": [dict(pool)],
        **more,
    }


def status(address: str) -> dict[str, Any]:
    """What the agent of an instance says."""
    return httpx.get(f"http://{address}:9500/status", timeout=2).json()


def wait_until(address: str, field: str, limit_s: float = 60) -> dict[str, Any]:
    """Wait until a field of the status is true."""

    def look() -> dict[str, Any] | None:
        found = status(address)
        return found if found[field] else None

    return wait_for(f"{field} of {address}", look, limit_s)


@contextmanager
def started(folder: Path, network: str, *more: str) -> Iterator[EmbeddedCloud]:
    """A cloud with these options more, and nothing of it afterwards."""
    log = (folder / "cloud.log").open("wb")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "localcloud.cloud", "--state", str(folder / "cloud"), "--network", network),
            *(*local_token.options(folder), *more),
        ],
        cwd=CLONE,
        env={**os.environ, **FAST},
        stdout=log,
        stderr=log,
    )
    cloud = EmbeddedCloud(network=network, folder=folder)
    try:
        wait_for("the embedded cloud", lambda: httpx.get(f"{cloud.url}/_localcloud/health").is_success)
        cloud.set_up()
        yield cloud
    finally:
        with log:
            end_process(process, 120)


def shown(value: Any) -> str:
    """For messages of failed tests."""
    return json.dumps(value, indent=1, default=str)
