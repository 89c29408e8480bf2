"""Tests that roles allow exactly the calls that the code makes. The test extracts the calls from the source."""

import ast
import json
from collections.abc import Iterator, Sequence
from datetime import timedelta

import boto3
import pytest

from components.aws import permissions
from components.aws.identities import Allowed
from gpufleet.clouds.aws import signed
from gpufleet.domain import tags
from gpufleet.domain.policies import EvidenceSource, OrphanAction, OrphanPolicy
from gpufleet.toolchain.folders import ROOT

CLOUDS = ROOT / "gpufleet" / "clouds"
PLACE = {
    "bucket": "b",
    "region": "us-east-1",
    "account": "111122223333",
    "environment": "prod",
}
ENGINE_KEY, ORDER_KEY = "/gpu-fleet/prod/engine-key", "/gpu-fleet/prod/order-key"
PEOPLE = {"account.py", "bootstrap.py", "existing_groups.py", "images.py", "scan_aws.py", "state_bucket.py"}
"""Modules that operators run with their own permissions: the bucket, its key, the image mirror, the scan."""
IN_IAM = {"service-quotas": "servicequotas"}
"""Services whose IAM prefix differs from their boto3 name."""
CALLS_IN_IAM = {"ListObjectsV2": "ListBucket"}
WRITTEN_OUT = {"s3:GetObject", "s3:PutObject", "s3:ListBucket"}
"""Actions that `gpufleet/clouds/aws/objects.py` and S3Store call directly. Without list permission S3 returns 403 for
a missing object.
"""


def allowed(statements: Sequence[Allowed]) -> set[str]:
    return {action for statement in statements for action in statement.actions}


def called() -> set[str]:
    """Return every call that watchdogs and reports make through AwsCalls, as IAM actions."""
    found: set[str] = set()
    packages = (CLOUDS / "aws", ROOT / "app", ROOT / "cli", ROOT / "hosts" / "control")
    for path in [
        *(path for package in packages for path in package.glob("*.py")),
        CLOUDS / "secrets.py",
    ]:
        if path.name not in PEOPLE:
            found |= {_action(*call) for call in _calls(ast.parse(path.read_text()))}
    return found


def _calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        constants = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if node.func.attr in ("one", "once", "pages") and len(constants) >= 2:
            yield constants[0], constants[1]


def _action(service: str, operation: str) -> str:
    client = boto3.client(service, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")  # pyright: ignore[reportCallIssue, reportArgumentType]
    call = client.meta.method_to_api_mapping[operation]
    return f"{IN_IAM.get(service, service)}:{CALLS_IN_IAM.get(call, call)}"


def of_control(notices: str) -> tuple[Allowed, ...]:
    return permissions.of_control(**PLACE, notices=notices, secrets=(ENGINE_KEY, ORDER_KEY))


def of_instances() -> tuple[Allowed, ...]:
    return permissions.of_instances(**PLACE, engine_key=ENGINE_KEY)


def of_routers() -> tuple[Allowed, ...]:
    place = {key: PLACE[key] for key in ("bucket", "region", "account")}
    return permissions.of_routers(**place, engine_key=ENGINE_KEY)


RULES = (
    OrphanPolicy(name="stopping", action=OrphanAction.STOP, tags={"team": "research"}, name_like="note*"),
    OrphanPolicy(name="listening", evidence=EvidenceSource.CLOUDWATCH, older_than=timedelta(days=7)),
)


def of_orphans(*rules: OrphanPolicy) -> tuple[Allowed, ...]:
    place = {key: PLACE[key] for key in ("region", "account", "environment")}
    return permissions.of_orphans(**place, rules=rules)


def test_the_control_host_may_call_what_its_code_calls() -> None:
    granted = allowed(of_control("arn:aws:sqs:us-east-1:111122223333:q"))
    assert granted | allowed(of_orphans(*RULES)) == called() | WRITTEN_OUT


def test_the_control_host_needs_a_rule_for_machines_outside_pools() -> None:
    assert of_orphans() == ()
    marking = allowed(of_orphans(RULES[1]))
    assert marking == {"ec2:CreateTags", "ec2:DeleteTags", "cloudwatch:GetMetricData", "cloudwatch:ListMetrics"}
    stop = next(s for s in of_orphans(RULES[0]) if "ec2:StopInstances" in s.actions)
    assert stop.when["StringLike"] == {
        "ec2:InstanceType": ["g*", "p*"],
        "ec2:ResourceTag/team": "research",
        "ec2:ResourceTag/Name": "note*",
    }


def test_an_instance_may_call_what_its_agent_calls() -> None:
    assert allowed(of_instances()) == signed.ACTIONS


@pytest.mark.parametrize(
    "statements",
    [of_instances(), of_routers(), of_control("arn:q"), of_orphans(*RULES)],
    ids=["instance", "router", "control", "orphans"],
)
def test_write_permissions_are_limited_to_the_environment(statements: Sequence[Allowed]) -> None:
    reading = ("Describe", "Get", "List", "Receive")
    for statement in statements:
        assert not any("*" in action for action in statement.actions)
        rendered = json.dumps(statement.statement())
        for action in statement.actions:
            service, call = action.split(":")
            if service in ("s3", "sqs"):
                assert "*" not in [resource[:1] for resource in statement.resources], "a thing by its name"
            elif not call.startswith(reading):
                assert f'{service}:ResourceTag/{tags.ENVIRONMENT}": "prod' in rendered, action


def test_an_instance_changes_nothing() -> None:
    """IAM cannot limit a call to the calling instance: a write permission would cover all instances of its
    environment.
    """
    assert allowed(of_instances()) == {"s3:GetObject", "ssm:GetParameter"}


def test_watchdogs_write_only_their_own_tags() -> None:
    writing = [s for s in (*of_control("arn:q"), *of_orphans(*RULES)) if "ec2:CreateTags" in s.actions]
    assert len(writing) == 1 + len(RULES)
    for statement in writing:
        assert set(statement.actions) == {"ec2:CreateTags", "ec2:DeleteTags"}
        assert statement.when["ForAllValues:StringEquals"] == {"aws:TagKeys": [tags.IDLE_SINCE, tags.KEEP_UNTIL]}
