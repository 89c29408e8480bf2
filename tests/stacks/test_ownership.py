"""Tests that each field has one owner, on the real engine: a watchdog's change survives `refresh`, `preview` and a
new template.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from gpufleet.settings import document
from gpufleet.settings.document import FleetDocument
from tests.fixtures.networks import free_network
from tests.fixtures.stacks.engine import Engine, embedded_cloud, make_engine

pytestmark = pytest.mark.slow

NETWORK = free_network()
STACK = "aws-local"
BUCKET = "gpu-fleet-local-models"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    with embedded_cloud(folder / "cloud", NETWORK):
        made = make_engine(folder, NETWORK)
        made.client("s3").create_bucket(Bucket=BUCKET)
        made.client("ssm").put_parameter(Name="/gpu-fleet/local/engine-key", Value="e" * 64, Type="SecureString")
        made.settings(STACK)
        made.run("stack", "init", STACK)
        yield made


def settings(engine: Engine, disk_gib: int = 100) -> None:
    """Write the shipped settings with this test's network. The machines of pool `batch` use EFA."""
    config = engine.settings(STACK)
    fleet: dict[str, Any] = config["config"]["gpu-fleet:fleet"]
    fleet["network"]["cidr"] = f"{NETWORK}.0.0/16"
    fleet["machines"]["disk_gib"] = disk_gib
    batch: dict[str, Any] = fleet["pools"][1]
    batch["network"] = "efa"
    batch["capacity"]["spot"]["machine_types"] = ["g6.8xlarge", "g5.8xlarge"]
    engine.settings(STACK, config)


def sizes(engine: Engine) -> dict[str, int]:
    found = engine.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    return {group["AutoScalingGroupName"]: group["DesiredCapacity"] for group in found}


def near(engine: Engine) -> dict[str, str]:
    """Return groups in a placement group, with the strategy."""
    strategies = {g["GroupName"]: g["Strategy"] for g in placement_groups(engine)}
    found = engine.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    return {g["AutoScalingGroupName"]: strategies[g["PlacementGroup"]] for g in found if g.get("PlacementGroup")}


def placement_groups(engine: Engine) -> list[dict[str, Any]]:
    return engine.client("ec2").describe_placement_groups()["PlacementGroups"]


def fabric_group(engine: Engine) -> str:
    """Return the only security group of EFA interfaces."""
    named = [{"Name": "description", "Values": ["EFA of gpu-fleet"]}]
    (found,) = engine.client("ec2").describe_security_groups(Filters=named)["SecurityGroups"]
    return found["GroupId"]


def state_of_release_0_1(engine: Engine) -> None:
    """Change Pulumi's state to the form in which all pools with EFA share one group that is not named after a
    pool.
    """
    file = engine.folder / "state.json"
    engine.run("stack", "export", "--file", str(file), "--stack", STACK)
    text = file.read_text()
    assert "::gpu-fleet-local-fabric-batch" in text
    file.write_text(text.replace("::gpu-fleet-local-fabric-batch", "::gpu-fleet-local-fabric"))
    engine.run("stack", "import", "--file", str(file), "--stack", STACK)


def fleet_document(engine: Engine) -> FleetDocument:
    body = engine.client("s3").get_object(Bucket=BUCKET, Key=document.PATH_IN_BUCKET)["Body"].read()
    return document.parse(body, "the bucket")


def test_sizes_belong_to_watchdogs_and_shape_to_pulumi(engine: Engine) -> None:
    settings(engine)
    engine.run("up", "--yes", "--skip-preview", "--stack", STACK)
    engine.run("preview", "--expect-no-changes", "--stack", STACK)
    at_creation = sizes(engine)
    described = fleet_document(engine)
    assert {g.name for pool in described.pools for g in pool.groups} == at_creation.keys()
    assert sum(at_creation.values()) == 5, "reserved 1, spot 2 of chat and 2 of batch, on-demand 0"

    of_batch = {g.name for g in described.pool("batch").groups}
    assert near(engine) == dict.fromkeys(of_batch, "cluster"), "one for each zone of the pool with EFA"

    # every kind of write by a watchdog: from 0 to 1, and from any other size to 0
    written = {name: 1 - min(size, 1) for name, size in at_creation.items()}
    for name, size in written.items():
        engine.client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=size)
    engine.run("preview", "--expect-no-changes", "--stack", STACK)
    engine.run("refresh", "--yes", "--skip-preview", "--stack", STACK)
    engine.run("preview", "--expect-no-changes", "--stack", STACK)
    assert sizes(engine) == written

    group = fabric_group(engine)
    state_of_release_0_1(engine)
    settings(engine, disk_gib=120)
    output = engine.run("up", "--yes", "--skip-preview", "--stack", STACK)
    assert "launchTemplate:LaunchTemplate" in output.replace(
        "aws:ec2:LaunchTemplate", "launchTemplate:LaunchTemplate"
    )
    assert sizes(engine) == written
    assert fabric_group(engine) == group, "instances are in it: it could not be deleted"
    engine.run("preview", "--expect-no-changes", "--stack", STACK)

    engine.run("destroy", "--yes", "--skip-preview", "--stack", STACK)
    assert sizes(engine) == {}
    assert placement_groups(engine) == []
