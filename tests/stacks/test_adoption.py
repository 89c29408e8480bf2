"""Adoption of an existing group, with the real engine: the group and its instances stay, and exactly the changes that
`gpufleet import` lists are made. Then the watchdogs keep its instances, and only a rollout replaces them.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.model import Cloud
from gpufleet.settings.document import PATH_IN_BUCKET
from hosts.monitoring.prometheus import PrometheusSettings, render
from localcloud import tiny_model
from serving.cache import manifest, publish
from serving.cache.store import FolderStore
from tests.fixtures.e2e.embedded_cloud import wait_for
from tests.fixtures.networks import free_address, free_network
from tests.fixtures.prometheus import running
from tests.fixtures.stacks.engine import LIMIT_S, Engine, embedded_cloud, make_engine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs the Debian package prometheus"),
]

NETWORK = free_network()
STACK = "aws-local"
GROUP = "inference"
POOL = "chat"
BUCKET = "gpu-fleet-local-models"
PROMETHEUS = "{}:{}".format(*free_address())
DISK = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 50, "Encrypted": True, "VolumeType": "gp3"}}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    with embedded_cloud(folder / "cloud", NETWORK):
        made = make_engine(folder, NETWORK, ("aws",))
        made.client("s3").create_bucket(Bucket=BUCKET)
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
    pool["watchdogs"]["scale"] = {}
    fleet["pools"] = [pool]
    fleet["prometheus_url"], fleet["ledger_url"] = f"http://{PROMETHEUS}", f"sqlite:///{engine.folder}/ledger.db"
    engine.settings(STACK, config)


def settings_file(engine: Engine) -> Path:
    return engine.folder / "config" / f"Pulumi.{STACK}.yaml"


def started(engine: Engine, *arguments: str) -> subprocess.Popen[str]:
    """Start a `gpufleet` command."""
    return subprocess.Popen(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=engine.folder,
        env=engine.environment | {"GPUFLEET_FLEET": f"s3://{BUCKET}/{PATH_IN_BUCKET}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def gpufleet(engine: Engine, *arguments: str) -> tuple[int, Any]:
    """Run a `gpufleet` command and return its exit code and answer."""
    command = started(engine, *arguments, "--json")
    output, errors = command.communicate(timeout=LIMIT_S)
    assert output, errors
    return command.returncode, json.loads(output)


def imported(engine: Engine, *options: str) -> tuple[int, Any]:
    """Run `gpufleet import` and return its exit code and answer."""
    return gpufleet(
        engine, "import", "--group", GROUP, "--pool", POOL, "--settings", str(settings_file(engine)), *options
    )


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

    code, preview = imported(engine)

    assert (code, preview["refusals"], preview["key"], preview["instances"]) == (0, [], "on-demand", 2)
    assert fields(engine) == before
    assert settings_file(engine).read_text() == text, "a preview writes nothing"

    assert imported(engine, "--write", "--import-file", "import.json") == (0, preview)
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

    code, again = imported(engine)
    assert (code, [one["code"] for one in again["refusals"]]) == (3, ["already_managed"])

    scraped = PrometheusSettings(cloud=Cloud.AWS, environment="local", scrape_interval=timedelta(seconds=1))
    (engine.folder / "prometheus.yml").write_text(render(scraped))
    adopted = {one["InstanceId"] for one in members}
    with running(engine.folder, PROMETHEUS):
        _watchdogs_keep(engine, adopted)
        _only_the_rollout_replaces(engine, adopted)


def _watchdogs_keep(engine: Engine, adopted: set[str]) -> None:
    """They have no agent and no metrics, so nothing is decided about them. They are members, and cost money."""
    for arguments in (["idle"], ["idle", "--apply"], ["spot"], ["spot", "--apply"], ["scale", "--apply"]):
        code, answer = gpufleet(engine, "watch", *arguments)
        assert code == 0, answer
        assert {one["action"] for one in (*answer["decisions"], *answer["outcomes"])} <= {"keep"}, answer
    assert instances(engine).keys() == adopted
    code, [orphans] = gpufleet(engine, "watch", "orphans")
    assert (code, orphans["decisions"]) == (0, []), "they belong to a pool"
    assert charged(engine) == adopted
    code, versions = gpufleet(engine, "rollout", POOL)
    assert (code, set(versions["groups"][0]["outdated"])) == (3, adopted)


def _only_the_rollout_replaces(engine: Engine, adopted: set[str]) -> None:
    """The pool is paused, as docs/first-week.md says: passes of the spot watchdog only complete hooks."""
    publish_model(engine)
    gpufleet(engine, "pause", POOL, "--until-resumed", "--reason", "adoption")
    rollout, drained, until = started(engine, "rollout", POOL, "--apply"), set[str](), time.monotonic() + LIMIT_S
    try:
        while rollout.poll() is None:
            assert time.monotonic() < until
            states = instances(engine)
            assert described(engine)["DesiredCapacity"] == 2, "the size stays"
            assert sum(state == "InService" for state in states.values()) >= 2, "a replacement serves first"
            ending = {key for key, state in states.items() if state == "Terminating:Wait"}
            assert len(ending) <= 1 and ending <= adopted, "one at a time"
            for key in ending - drained:
                # it has no agent: a person completes its drain hook, or it times out
                engine.client("autoscaling").complete_lifecycle_action(
                    AutoScalingGroupName=GROUP,
                    LifecycleHookName="drain",
                    InstanceId=key,
                    LifecycleActionResult="CONTINUE",
                )
                drained.add(key)
            if "Pending:Wait" in states.values():
                code, answer = gpufleet(engine, "watch", "spot", "--apply")
                assert (code, answer["outcomes"]) == (0, []), answer
            time.sleep(0.2)
    finally:
        rollout.kill()
        output = "".join(rollout.communicate())
    assert rollout.returncode == 0, output
    assert drained == adopted
    code, versions = gpufleet(engine, "rollout", POOL)
    assert (code, set(versions["groups"][0]["current"])) == (0, instances(engine).keys())
    assert charged(engine) == adopted | instances(engine).keys()


def instances(engine: Engine) -> dict[str, str]:
    """The instances of the group, with their states."""
    return {one["InstanceId"]: one["LifecycleState"] for one in described(engine)["Instances"]}


def charged(engine: Engine) -> set[str]:
    """Run the cost watchdog. Returns the instances that cost money, by the report of the pool."""
    code, answer = gpufleet(engine, "watch", "cost")
    assert code == 0, answer
    _, report = gpufleet(engine, "report", "cost", "--since", "1h")
    return {one["resource"] for one in report["charges"] if one["pool"] == POOL and Decimal(one["usd"]) > 0}


def publish_model(engine: Engine) -> None:
    """Upload the pool's model, which replacements serve."""
    source, store = engine.folder / "models" / POOL, engine.folder / "store"
    tiny_model.make(source, tiny_model.TinyModelShape())
    described = manifest.describe(source, name=POOL, revision="1")
    publish.add(FolderStore(store), source, described)
    publish.rollout(FolderStore(store), name=POOL, digest=described.digest)
    for path in filter(Path.is_file, store.rglob("*")):
        engine.client("s3").upload_file(str(path), BUCKET, str(path.relative_to(store)))
