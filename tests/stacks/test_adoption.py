"""Adoption of an existing group, with the real engine: the group and its instances stay, and exactly the changes that
`gpufleet import` lists are made.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.toolchain.folders import ROOT
from tests.fixtures.e2e.embedded_cloud import wait_for
from tests.fixtures.networks import free_network
from tests.fixtures.stacks.engine import LIMIT_S, Engine, embedded_cloud, make_engine

pytestmark = pytest.mark.slow

NETWORK = free_network()
STACK = "aws-local"
GROUP = "inference"
POOL = "chat"
DISK = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 50, "Encrypted": True, "VolumeType": "gp3"}}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    with embedded_cloud(folder / "cloud", NETWORK):
        made = make_engine(folder, NETWORK, ("aws",))
        made.client("s3").create_bucket(Bucket="gpu-fleet-local-models")
        made.client("ssm").put_parameter(Name="/gpu-fleet/local/engine-key", Value="e" * 64, Type="SecureString")
        network = made.client("ec2").create_vpc(CidrBlock=f"{NETWORK}.0.0/16")["Vpc"]["VpcId"]
        subnets = {
            zone: made.client("ec2").create_subnet(
                VpcId=network, CidrBlock=f"{NETWORK}.{number}.0/24", AvailabilityZone=zone
            )["Subnet"]["SubnetId"]
            for number, zone in enumerate(("us-east-1a", "us-east-1b"), 1)
        }
        existing_group(made, subnets["us-east-1a"])
        settings(made, network, subnets)
        made.run("stack", "init", STACK)
        yield made


def existing_group(engine: Engine, subnet: str) -> None:
    """Create a group with two instances, as a user without this project does."""
    ec2, scaling = engine.client("ec2"), engine.client("autoscaling")
    image = ec2.describe_images(Owners=["self", "amazon"])["Images"][0]["ImageId"]
    data = {"ImageId": image, "InstanceType": "g6.xlarge", "BlockDeviceMappings": [DISK]}
    ec2.create_launch_template(LaunchTemplateName="before", LaunchTemplateData=data)
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=GROUP,
        MinSize=2,
        MaxSize=3,
        DesiredCapacity=2,
        VPCZoneIdentifier=subnet,
        LaunchTemplate={"LaunchTemplateName": "before", "Version": "1"},
        HealthCheckGracePeriod=120,
        TerminationPolicies=["OldestInstance"],
        CapacityRebalance=True,
        Tags=[
            {"Key": key, "Value": "search", "PropagateAtLaunch": True} for key in ("Name", "team", "gpu-fleet:owner")
        ],
    )
    wait_for("two instances in service", lambda: in_service(engine) == 2)
    scaling.put_lifecycle_hook(
        AutoScalingGroupName=GROUP,
        LifecycleHookName="drain",
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=600,
        DefaultResult="ABANDON",
    )


def in_service(engine: Engine) -> int:
    return sum(one["LifecycleState"] == "InService" for one in described(engine)["Instances"])


def settings(engine: Engine, network: str, subnets: dict[str, str]) -> None:
    """Write settings with one on-demand pool in the network of the group."""
    config = engine.settings(STACK)
    fleet: dict[str, Any] = config["config"]["gpu-fleet:fleet"]
    fleet["zones"] = list(subnets)
    fleet["network"] = {"kind": "given", "id": network, "cidr": f"{NETWORK}.0.0/16", "subnets": subnets}
    pool = fleet["pools"][0]
    pool |= {"target": 2, "min": 0, "max": 4, "capacity": {"on_demand": {"max": 4, "machine_types": ["g6.xlarge"]}}}
    fleet["pools"] = [pool]
    engine.settings(STACK, config)


def settings_file(engine: Engine) -> Path:
    return engine.folder / "config" / f"Pulumi.{STACK}.yaml"


def gpufleet(engine: Engine, *options: str) -> tuple[int, dict[str, Any]]:
    """Run `gpufleet import` and return its exit code and answer."""
    command = [sys.executable, "-m", "cli.main", "import", "--group", GROUP, "--pool", POOL, "--json", *options]
    done = subprocess.run(
        [*command, "--settings", str(settings_file(engine))],
        cwd=engine.folder,
        env=engine.environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def described(engine: Engine) -> dict[str, Any]:
    (found,) = engine.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[GROUP])[
        "AutoScalingGroups"
    ]
    return found


def fields(engine: Engine) -> dict[str, Any]:
    """Every field of the group, its tags and its hooks, without its instances."""
    found = described(engine)
    found["SuspendedProcesses"] = [one["ProcessName"] for one in found["SuspendedProcesses"]]
    if "MixedInstancesPolicy" in found:
        found.pop("LaunchTemplate", None)  # the emulator shows both
    hooks = engine.client("autoscaling").describe_lifecycle_hooks(AutoScalingGroupName=GROUP)["LifecycleHooks"]
    return (
        {name: value for name, value in found.items() if name not in ("Instances", "Tags")}
        | {f"Tags.{one['Key']}": one for one in found["Tags"]}
        | {f"LifecycleHooks.{one['LifecycleHookName']}": one for one in hooks}
    )


def test_adopted_group_keeps_its_instances_and_changes_as_listed(engine: Engine) -> None:
    before, members = fields(engine), described(engine)["Instances"]
    text = settings_file(engine).read_text()

    code, preview = gpufleet(engine)

    assert (code, preview["refusals"], preview["key"], preview["instances"]) == (0, [], "on-demand", 2)
    assert fields(engine) == before
    assert settings_file(engine).read_text() == text, "a preview writes nothing"

    assert gpufleet(engine, "--write", "--import-file", "import.json") == (0, preview)
    engine.run(
        *("import", "--file", "import.json", "--stack", STACK),
        *("--protect=false", "--generate-code=false", "--yes", "--skip-preview"),
    )
    assert fields(engine) == before, "the import reads only"
    shown = engine.run("preview", "--diff", "--stack", STACK)
    assert "aws:autoscaling/group:Group: (update)" in shown
    assert "replace" not in shown
    engine.run("up", "--yes", "--skip-preview", "--stack", STACK)

    after = fields(engine)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed == {one["field"] for one in preview["changes"]}
    assert described(engine)["Instances"] == members, "same instances, with their former template"
    assert engine.outputs(STACK)["groups"] == {POOL: [GROUP]}

    engine.run("preview", "--expect-no-changes", "--stack", STACK)
    engine.run("refresh", "--yes", "--skip-preview", "--stack", STACK)
    engine.run("preview", "--expect-no-changes", "--stack", STACK)

    code, again = gpufleet(engine)
    assert (code, [one["code"] for one in again["refusals"]]) == (3, ["already_managed"])
