"""Tests of the permissions that an attacker gains with the identity of an instance or control host, as `pulumi up`
declares them.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.toolchain.folders import ROOT
from tests.fixtures.fakes import RecordingMocks
from tests.fixtures.iam import Statement, allowed, condition_holds, statements
from tests.fixtures.stacks.running import run

GROUP = "arn:aws:autoscaling:us-east-1:111122223333:autoScalingGroup:u:autoScalingGroupName/legal-spot-a"
INSTANCE = "arn:aws:ec2:us-east-1:111122223333:instance/i-other"
OF_ENVIRONMENT = {
    "ec2:ResourceTag/gpu-fleet:environment": "prod",
    "autoscaling:ResourceTag/gpu-fleet:environment": "prod",
}
ROLE, MEMBER = "gcp:projects/iAMCustomRole:IAMCustomRole", "gcp:projects/iAMMember:IAMMember"
ORPHANS = [{"name": "old", "older_than": "7d"}]


def declared(mocks: RecordingMocks, folder: Path, cloud: str, **fleet: Any) -> None:
    """Run the program with the production settings."""
    path = folder / f"Pulumi.{cloud}-prod.yaml"
    document = yaml.safe_load((ROOT / "stacks" / "config" / path.name).read_text())
    document["config"]["gpu-fleet:fleet"] |= fleet
    path.write_text(yaml.safe_dump(document))
    run(path, mocks)


def rights(mocks: RecordingMocks, name: str) -> list[Statement]:
    return statements(str(mocks.named("aws:iam/rolePolicy:RolePolicy", f"gpu-fleet-prod-{name}")["policy"]))


@pytest.mark.parametrize(
    ("action", "resource", "keys"),
    [
        pytest.param("autoscaling:CompleteLifecycleAction", GROUP, (), id="abandon the boots of others"),
        pytest.param("autoscaling:RecordLifecycleActionHeartbeat", GROUP, (), id="hold others at their hooks"),
        pytest.param("autoscaling:TerminateInstanceInAutoScalingGroup", GROUP, (), id="end others"),
        pytest.param("autoscaling:DescribeAutoScalingInstances", "*", (), id="learn who they are"),
        pytest.param("ec2:CreateTags", INSTANCE, ("gpu-fleet:phase",), id="the phase of others"),
        pytest.param("ec2:CreateTags", INSTANCE, ("gpu-fleet:idle-since",), id="mark others as idle"),
        pytest.param("ec2:DeleteTags", INSTANCE, ("gpu-fleet:pool",), id="take others out of their pool"),
    ],
)
def test_an_aws_instance_cannot_change_other_resources(
    mocks: RecordingMocks, tmp_path: Path, action: str, resource: str, keys: tuple[str, ...]
) -> None:
    declared(mocks, tmp_path, "aws")
    assert not allowed(rights(mocks, "instance"), action, resource, OF_ENVIRONMENT | {"aws:TagKeys": list(keys)})


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("gpu-fleet:idle-since", True),
        ("gpu-fleet:keep-until", True),
        ("gpu-fleet:environment", False),
        ("gpu-fleet:pool", False),
        ("gpu-fleet:phase", False),
        ("Name", False),
    ],
)
@pytest.mark.parametrize("action", ["ec2:CreateTags", "ec2:DeleteTags"])
def test_the_control_host_on_aws_writes_tags_and_moves_no_instance(
    mocks: RecordingMocks, tmp_path: Path, action: str, key: str, written: bool
) -> None:
    declared(mocks, tmp_path, "aws")
    assert allowed(rights(mocks, "control"), action, INSTANCE, OF_ENVIRONMENT | {"aws:TagKeys": [key]}) is written


def test_the_control_host_on_aws_cannot_remove_all_tags_at_once(mocks: RecordingMocks, tmp_path: Path) -> None:
    """A call without tag keys removes all tags, so the instance would belong to no pool."""
    declared(mocks, tmp_path, "aws")
    assert not allowed(rights(mocks, "control"), "ec2:DeleteTags", INSTANCE, OF_ENVIRONMENT)
    assert not allowed(rights(mocks, "control"), "ec2:DeleteTags", INSTANCE, OF_ENVIRONMENT | {"aws:TagKeys": []})


def test_the_control_host_on_aws_completes_hooks_of_its_own_environment(
    mocks: RecordingMocks, tmp_path: Path
) -> None:
    declared(mocks, tmp_path, "aws")
    complete = "autoscaling:CompleteLifecycleAction"
    assert allowed(rights(mocks, "control"), complete, GROUP, OF_ENVIRONMENT)
    other = dict.fromkeys(OF_ENVIRONMENT, "dev")
    assert not allowed(rights(mocks, "control"), complete, GROUP, other)


def held(mocks: RecordingMocks, account: str) -> dict[str, str | None]:
    """Return permissions of a service account in the project, each with its condition."""
    roles = {one.name: one.inputs["permissions"] for one in mocks.of_type(ROLE)}
    found: dict[str, str | None] = {}
    for one in mocks.of_type(MEMBER):
        if one.inputs["member"].startswith(f"serviceAccount:{account}@"):
            condition = one.inputs.get("condition")
            found |= dict.fromkeys(roles[one.name], condition and condition["expression"])
    return found


def test_a_google_instance_has_no_permission_in_the_project(mocks: RecordingMocks, tmp_path: Path) -> None:
    declared(mocks, tmp_path, "gcp")
    assert held(mocks, "gpu-fleet-prod-gpu") == {}


def test_the_control_host_on_google_labels_only_instances_of_its_pools(mocks: RecordingMocks, tmp_path: Path) -> None:
    declared(mocks, tmp_path, "gcp")
    condition = held(mocks, "gpu-fleet-prod-ctl")["compute.instances.setLabels"]
    assert condition
    zone = "projects/p/zones/us-central1-a"
    kinds = ("InstanceGroupManager", "RegionInstanceGroupManager")
    managers = [
        one.inputs for kind in kinds for one in mocks.of_type(f"gcp:compute/{kind[0].lower()}{kind[1:]}:{kind}")
    ]
    assert managers
    for manager in managers:
        assert condition_holds(condition, f"{zone}/instances/{manager['baseInstanceName']}-x1y2")
    for name in ("database-1", "gpu-fleet-prod-control-1a2b", "dev-chat-spot-x1y2", "xprod-chat-x1y2"):
        assert not condition_holds(condition, f"{zone}/instances/{name}"), name
    assert not condition_holds(condition, "projects/p/zones/us-central1-a/disks/prod-chat")
    assert not condition_holds(condition, "projects/prod-eu")


def test_the_control_host_on_google_cannot_delete_or_stop_instances_directly(
    mocks: RecordingMocks, tmp_path: Path
) -> None:
    declared(mocks, tmp_path, "gcp")
    for right in ("delete", "stop", "setMetadata", "setServiceAccount", "update"):
        assert f"compute.instances.{right}" not in held(mocks, "gpu-fleet-prod-ctl")


def test_a_rule_for_machines_outside_pools_allows_labels_on_all_google_instances(
    mocks: RecordingMocks, tmp_path: Path
) -> None:
    """Their names follow no pattern, so no condition can match them. The documentation states this."""
    declared(mocks, tmp_path, "gcp", orphans=ORPHANS)
    found = held(mocks, "gpu-fleet-prod-ctl")
    assert found["compute.instances.setLabels"] is None
    assert "compute.instances.stop" not in found
