"""Tests of a compromised router: the permissions of its identity and the access through its firewall, as `pulumi up`
declares them.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.toolchain.folders import ROOT
from hosts.control import bundle
from serving.router.policy import FILE_NAME
from tests.fixtures.fakes import RecordingMocks
from tests.fixtures.iam import Statement, allowed, condition_holds, statements
from tests.fixtures.stacks.running import run

SHA256 = "ab" * 32
SECRETS = {
    "aws": {"GPUFLEET_SLACK_TOKEN": "/gpu-fleet/prod/slack-token", "GPUFLEET_DATABASE": "/gpu-fleet/prod/pg"},
    "gcp": {"GPUFLEET_SLACK_TOKEN": "gpu-fleet-prod-slack-token", "GPUFLEET_DATABASE": "gpu-fleet-prod-pg"},
}
CLIENTS = "10.77.0.0/16"
GROUP = "arn:aws:autoscaling:us-east-1:111122223333:autoScalingGroup:u:autoScalingGroupName/chat-spot-a"
INSTANCE = "arn:aws:ec2:us-east-1:111122223333:instance/i-1"
OF_ENVIRONMENT = {
    "ec2:ResourceTag/gpu-fleet:environment": "prod",
    "autoscaling:ResourceTag/gpu-fleet:environment": "prod",
    "aws:TagKeys": ["gpu-fleet:phase"],
}
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"


def declared(mocks: RecordingMocks, folder: Path, cloud: str, routers: int = 2) -> dict[str, Any]:
    """Run the program with the production settings, and return the settings."""
    path = folder / f"Pulumi.{cloud}-prod.yaml"
    document = yaml.safe_load((ROOT / "stacks" / "config" / path.name).read_text())
    fleet = document["config"]["gpu-fleet:fleet"]
    fleet["control"] |= {
        "routers": routers,
        "bundle": SHA256,
        "secrets": SECRETS[cloud],
        "client_networks": [CLIENTS],
    }
    path.write_text(yaml.safe_dump(document))
    run(path, mocks)
    return fleet


@pytest.fixture
def aws(mocks: RecordingMocks, tmp_path: Path) -> dict[str, Any]:
    return declared(mocks, tmp_path, "aws")


@pytest.fixture
def google(mocks: RecordingMocks, tmp_path: Path) -> dict[str, Any]:
    return declared(mocks, tmp_path, "gcp")


def rights(mocks: RecordingMocks, name: str) -> list[Statement]:
    return statements(str(mocks.named("aws:iam/rolePolicy:RolePolicy", f"gpu-fleet-prod-{name}")["policy"]))


def machines(mocks: RecordingMocks, kind: str, role: str) -> list[dict[str, Any]]:
    found = [one.inputs for one in mocks.of_type(kind)]
    return [one for one in found if (one.get("tags") or one["labels"]).get(role) == "router"]


def test_routers_on_aws_have_their_own_role_and_group(mocks: RecordingMocks, aws: dict[str, Any]) -> None:
    routers = machines(mocks, "aws:ec2/instance:Instance", "gpu-fleet:role")
    assert len(routers) == 2
    assert {one["iamInstanceProfile"] for one in routers} == {"gpu-fleet-prod-router-3f2a"}
    assert [one["vpcSecurityGroupIds"] for one in routers] == [["gpu-fleet-prod-routers-id"]] * 2
    (balancer,) = mocks.of_type("aws:lb/loadBalancer:LoadBalancer")
    assert balancer.inputs["securityGroups"] == ["gpu-fleet-prod-routers-id"]


def test_a_router_on_aws_reads_what_it_needs(mocks: RecordingMocks, aws: dict[str, Any]) -> None:
    router, bucket = rights(mocks, "router"), f"arn:aws:s3:::{aws['bucket']['name']}"
    for key in ("fleet/fleet.json", f"fleet/{FILE_NAME}", bundle.key(SHA256), bundle.key("cd" * 32)):
        assert allowed(router, "s3:GetObject", f"{bucket}/{key}"), key
    assert allowed(router, "s3:ListBucket", bucket, {"s3:prefix": f"fleet/{FILE_NAME}"})
    assert allowed(router, "ec2:DescribeInstances", "*")
    place = f"arn:aws:ssm:{aws['zones'][0][:-1]}:{aws['account']}:parameter"
    assert allowed(router, "ssm:GetParameter", f"{place}{aws['engine_key']}")


def test_a_compromised_aws_router_cannot_change_anything_or_read_other_secrets(
    mocks: RecordingMocks, aws: dict[str, Any]
) -> None:
    router, bucket = rights(mocks, "router"), f"arn:aws:s3:::{aws['bucket']['name']}"
    place = f"arn:aws:ssm:{aws['zones'][0][:-1]}:{aws['account']}:parameter"
    named = [*SECRETS["aws"].values(), aws["orders"]["private_key"]]
    tried = [
        *(("ssm:GetParameter", f"{place}{name}") for name in named),
        *(("s3:PutObject", f"{bucket}/{key}") for key in ("fleet/router.json", "models/a/served.json", "backups/x")),
        *(("s3:GetObject", f"{bucket}/{key}") for key in ("backups/ledger/x", "models/a/b", "agents/c/d")),
        ("s3:DeleteObject", f"{bucket}/fleet/router.json"),
        ("s3:ListBucket", bucket),
        ("autoscaling:TerminateInstanceInAutoScalingGroup", GROUP),
        ("autoscaling:SetDesiredCapacity", GROUP),
        ("autoscaling:CompleteLifecycleAction", GROUP),
        ("autoscaling:StartInstanceRefresh", GROUP),
        ("ec2:CreateTags", INSTANCE),
        ("ec2:DeleteTags", INSTANCE),
        ("ec2:StopInstances", INSTANCE),
        ("sqs:ReceiveMessage", "arn:aws:sqs:us-east-1:111122223333:gpu-fleet-prod-notices"),
    ]
    assert [one for one in tried if allowed(router, *one, OF_ENVIRONMENT)] == []
    changing = [
        action
        for statement in router
        for action in statement["Action"]
        if not action.split(":")[1].startswith(("Describe", "Get", "List")) and not action.startswith("ssm")
    ]
    assert changing == [], "what is left is people's sessions"


def opened(mocks: RecordingMocks, group: str) -> set[tuple[int, str]]:
    """Return the port and source of each ingress rule of a security group."""
    return {
        (int(rule["fromPort"]), rule.get("cidrIpv4") or rule["referencedSecurityGroupId"])
        for rule in (one.inputs for one in mocks.of_type(INGRESS))
        if rule["securityGroupId"] == f"gpu-fleet-prod-{group}-id"
    }


def test_clients_on_aws_reach_routers_but_not_the_control_host(mocks: RecordingMocks, aws: dict[str, Any]) -> None:
    routers, control = "gpu-fleet-prod-routers-id", "gpu-fleet-prod-control-id"
    assert opened(mocks, "routers") == {(8080, CLIENTS), (8080, routers), (8404, control)}
    assert opened(mocks, "control") == set()
    of_instances = opened(mocks, "instances")
    assert {port for port, source in of_instances if source == routers} == {8000, 9501}
    assert {source for _, source in of_instances} == {routers, control}


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_a_control_host_that_is_the_router_is_reached_by_clients(
    mocks: RecordingMocks, tmp_path: Path, cloud: str
) -> None:
    declared(mocks, tmp_path, cloud, routers=1)
    if cloud == "aws":
        assert opened(mocks, "control") == {(8080, CLIENTS)}
        assert not opened(mocks, "routers")
        assert not [one for one in mocks.of_type("aws:iam/role:Role") if one.name == "gpu-fleet-prod-router"]
    else:
        assert ("8080", CLIENTS) in reached(mocks, "gpu-fleet-prod-ctl")
        accounts = {one.name for one in mocks.of_type("gcp:serviceaccount/account:Account")}
        assert accounts == {"gpu-fleet-prod-gpu", "gpu-fleet-prod-ctl"}


def reached(mocks: RecordingMocks, account: str) -> set[tuple[str, str]]:
    """Return the port and source of each firewall rule that allows access to machines of a service account."""
    return {
        (port, source.partition("@")[0])
        for rule in (one.inputs for one in mocks.of_type("gcp:compute/firewall:Firewall"))
        if account in [target.partition("@")[0] for target in rule["targetServiceAccounts"]]
        for allow in rule["allows"]
        for port in allow["ports"]
        for source in (*(rule.get("sourceRanges") or ()), *(rule.get("sourceServiceAccounts") or ()))
    }


def test_a_google_router_reads_what_it_needs_and_cannot_change_anything(
    mocks: RecordingMocks, google: dict[str, Any]
) -> None:
    member = "gpu-fleet-prod-rtr"
    (role,) = [one.inputs for one in mocks.of_type("gcp:projects/iAMCustomRole:IAMCustomRole") if one.name == member]
    assert role["permissions"] == ["compute.instanceGroupManagers.get", "compute.instances.list"]
    (held,) = [
        one.inputs
        for one in mocks.of_type("gcp:storage/bucketIAMMember:BucketIAMMember")
        if one.name.startswith(member)
    ]
    assert held["role"] == "roles/storage.objectViewer", "no object is written or deleted"
    bucket, condition = f"projects/_/buckets/{google['bucket']['name']}", held["condition"]["expression"]
    for key in ("fleet/fleet.json", f"fleet/{FILE_NAME}", bundle.key(SHA256)):
        assert condition_holds(condition, f"{bucket}/objects/{key}"), key
    for key in ("backups/ledger/x", "models/a/served.json", "agents/c/d", "fleet/other"):
        assert not condition_holds(condition, f"{bucket}/objects/{key}"), key
    assert condition_holds(condition, bucket, f"fleet/{FILE_NAME}")
    assert not condition_holds(condition, bucket, "models/") and not condition_holds(condition, bucket)
    secrets = mocks.of_type("gcp:secretmanager/secretIamMember:SecretIamMember")
    assert [one.inputs["secretId"] for one in secrets if one.name.startswith(member)] == [google["engine_key"]]


def test_routers_on_google_have_their_own_account_and_firewall(mocks: RecordingMocks, google: dict[str, Any]) -> None:
    routers = machines(mocks, "gcp:compute/instance:Instance", "gpu-fleet-role")
    accounts = {one["serviceAccount"]["email"].partition("@")[0] for one in routers}
    assert (len(routers), accounts) == (2, {"gpu-fleet-prod-rtr"})
    to_routers = reached(mocks, "gpu-fleet-prod-rtr")
    assert {port for port, source in to_routers if source == CLIENTS} == {"8080"}
    assert ("8404", "gpu-fleet-prod-ctl") in to_routers
    assert {port for port, _ in reached(mocks, "gpu-fleet-prod-ctl")} == {"22"}, "people, through IAP"
    to_instances = reached(mocks, "gpu-fleet-prod-gpu")
    assert {port for port, source in to_instances if source == "gpu-fleet-prod-rtr"} == {"8000", "9501"}
