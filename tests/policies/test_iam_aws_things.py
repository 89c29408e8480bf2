"""Tests of AWS resource policies: the queue, the bucket, and VPC endpoints."""

import json
from dataclasses import replace
from typing import Any

import pytest

from components.aws import endpoints, permissions
from components.aws.bucket import bucket_policy
from policies.context import Context
from policies.resource import UNKNOWN
from tests.fixtures.policies.iam import AWS, violations
from tests.fixtures.policies.iam_aws import ACCOUNT, BUCKET, MODELS, ON_BUCKET, REGION, allow, text

QUEUE = f"arn:aws:sqs:{REGION}:{ACCOUNT}:gpu-fleet-prod-notices"
RULE_ARN = f"arn:aws:events:{REGION}:{ACCOUNT}:rule/gpu-fleet-prod-notices-0a1b2c3"
ON_QUEUE, ENDPOINT = "aws:sqs/queuePolicy:QueuePolicy", "aws:ec2/vpcEndpoint:VpcEndpoint"


def with_network(**changes: Any) -> Context:
    """Return the context of the shipped settings with network changes."""
    fleet = json.loads(AWS.config["gpu-fleet:fleet"])
    fleet["network"] |= changes
    return replace(AWS, config={"gpu-fleet:fleet": json.dumps(fleet)})


def queue(**parts: Any) -> dict[str, Any]:
    whole = {
        "Principal": {"Service": "events.amazonaws.com"},
        "Condition": {"ArnEquals": {"aws:SourceArn": RULE_ARN}},
        **parts,
    }
    return {"policy": text(allow("sqs:SendMessage", QUEUE, **whole))}


@pytest.mark.parametrize(
    ("props", "passes"),
    [
        pytest.param(queue(), True, id="as the program writes it"),
        pytest.param(queue(Condition=None), False, id="of any rule"),
        pytest.param(queue(Condition={"ArnLike": {"aws:SourceArn": RULE_ARN}}), False, id="another operator"),
        pytest.param(queue(Condition={"ArnEquals": {"aws:SourceArn": RULE_ARN[:-7] + "*"}}), False, id="like a rule"),
        pytest.param(queue(Condition={"ArnEquals": {"aws:SourceArn": RULE_ARN.replace(ACCOUNT, "444455556666")}}),
                     False, id="a rule of another account"),
        pytest.param(queue(Principal="*"), False, id="everybody"),
        pytest.param(queue(Principal={"Service": "sns.amazonaws.com"}), False, id="another service"),
        pytest.param(queue(Action="sqs:*"), False, id="every action"),
    ],
)  # fmt: skip
def test_the_queue_accepts_messages_of_its_rule_only(props: dict[str, Any], passes: bool) -> None:
    assert (violations(ON_QUEUE, props, AWS) == []) is passes
    # in the state, the queue itself also has the policy
    assert (violations("aws:sqs/queue:Queue", props, AWS) == []) is passes


S3 = endpoints.of_s3(region=REGION, account=ACCOUNT, bucket=BUCKET)
SQS = endpoints.of_service("sqs", account=ACCOUNT)
EC2 = endpoints.of_service("ec2", account=ACCOUNT)
ALL = text({"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"})


@pytest.mark.parametrize(
    ("service", "policy", "passes"),
    [
        pytest.param("s3", S3, True, id="S3"),
        pytest.param("s3", S3.replace(BUCKET, "other"), False, id="S3, another bucket"),
        pytest.param("s3", S3.replace(ACCOUNT, "444455556666"), False, id="S3, another account"),
        pytest.param("s3", S3.replace('"aws:ResourceAccount"', '"aws:x"'), False, id="S3, whose buckets"),
        pytest.param("s3", None, False, id="S3 without a policy"),
        pytest.param("s3", "", False, id="S3 without a policy, in a state"),
        pytest.param("s3", ALL, False, id="S3, the policy that AWS gives"),
        pytest.param("sqs", SQS, True, id="SQS"),
        pytest.param("sqs", EC2, False, id="SQS, as EC2"),
        pytest.param("sqs", None, False, id="SQS without a policy"),
        pytest.param("sqs", UNKNOWN, False, id="SQS, not known yet"),
        pytest.param("ec2", EC2, True, id="EC2, whose calls name things of others"),
        pytest.param("dynamodb", None, False, id="a service that the settings do not name"),
        pytest.param("pricing.api", None, True, id="a service of the settings that takes no policy"),
        pytest.param("pricing.api", ALL, True, id="the same in a state"),
    ],
)
def test_endpoints_lead_to_our_account_alone(service: str, policy: Any, passes: bool) -> None:
    context = with_network(private_services=["ec2", "pricing.api", "sqs"])
    props = {"serviceName": f"com.amazonaws.{REGION}.{service}", "policy": policy}
    assert (violations(ENDPOINT, props, context) == []) is passes


@pytest.mark.parametrize(("name", "passes"), [("gpu-fleet-prod-notices", True), ("mine", False)])
def test_only_the_policy_of_the_queue_is_checked_by_up(name: str, passes: bool) -> None:
    """The policy contains a rule name that Pulumi generates."""
    assert (violations(ON_QUEUE, {"policy": UNKNOWN}, AWS, name) == []) is passes


def test_a_queue_without_a_policy_passes_in_a_state() -> None:
    assert violations("aws:sqs/queue:Queue", {"policy": ""}, AWS) == []


def test_a_service_of_another_account_gets_no_endpoint() -> None:
    name = f"com.amazonaws.vpce.{REGION}.vpce-svc-0123456789abcdef0"
    assert violations(ENDPOINT, {"serviceName": name}, AWS)


def test_a_gateway_needs_no_policy_in_a_network_with_nat() -> None:
    assert violations(ENDPOINT, {"serviceName": f"com.amazonaws.{REGION}.s3"}, with_network(internet="nat")) == []


def test_the_bucket_denies_as_the_program_writes_it() -> None:
    machines = permissions.machine_roles(ACCOUNT, "prod")
    policy = bucket_policy(BUCKET, machines, (f"arn:aws:iam::{ACCOUNT}:role/deploy",))
    assert violations(ON_BUCKET, {"policy": policy}, AWS) == []


MACHINES = permissions.machine_roles(ACCOUNT, "prod")
PUBLISHER = f"arn:aws:iam::{ACCOUNT}:role/deploy"
DENIED = json.loads(bucket_policy(BUCKET, MACHINES))


def denied(index: int, **changes: Any) -> str:
    """Return the bucket's policy with changes to one statement."""
    policy = json.loads(json.dumps(DENIED))
    policy["Statement"][index] |= changes
    return json.dumps(policy)


@pytest.mark.parametrize(
    ("policy", "lacks"),
    [
        pytest.param(json.dumps(DENIED), None, id="as the program writes it"),
        pytest.param(denied(1, Principal={"AWS": "*"}), None, id="everybody, as a map"),
        pytest.param(denied(0, Condition={"Bool": {"aws:SecureTransport": False}}), None, id="as a boolean"),
        pytest.param(json.dumps({"Statement": DENIED["Statement"][:1]}), "NoMachinePublishes", id="one left out"),
        pytest.param(json.dumps({"Statement": []}), "NoMachinePublishes", id="all left out"),
        pytest.param(denied(0, Effect="deny"), "TlsOnly", id="another effect"),
        pytest.param(denied(1, Principal={"AWS": ACCOUNT}), "NoMachinePublishes", id="fewer principals"),
        pytest.param(denied(1, Action=["s3:PutObject"]), "NoMachinePublishes", id="fewer actions"),
        pytest.param(denied(1, Resource=[MODELS]), "NoMachinePublishes", id="fewer resources"),
        pytest.param(denied(1, Condition={"ArnLike": {"aws:PrincipalArn": MACHINES[:2]}}), "NoMachine", id="fewer"),
        pytest.param(denied(1, Condition={"ArnLike": {"aws:PrincipalArn": "arn:x"}}), "NoMachine", id="others"),
        pytest.param(
            denied(1, Condition={**DENIED["Statement"][1]["Condition"], "Bool": {"aws:ViaAWSService": "true"}}),
            "NoMachinePublishes",
            id="one condition more",
        ),
        pytest.param(denied(1, NotAction="s3:x"), "NoMachinePublishes", id="another element"),
    ],
)
def test_the_bucket_keeps_its_denials(policy: str, lacks: str | None) -> None:
    messages = violations(ON_BUCKET, {"bucket": BUCKET, "policy": policy}, AWS)
    assert any(f"does not contain the denial {lacks}" in message for message in messages) is (lacks is not None)


@pytest.mark.parametrize(
    ("publishers", "passes"),
    [((PUBLISHER,), True), ((), False), ((PUBLISHER, f"arn:aws:iam::{ACCOUNT}:role/*"), False)],
    ids=["as in the settings", "none", "others as well"],
)
def test_only_publishers_of_the_settings_publish(publishers: tuple[str, ...], passes: bool) -> None:
    fleet = json.loads(AWS.config["gpu-fleet:fleet"])
    fleet["bucket"]["publishers"] = [PUBLISHER]
    context = replace(AWS, config={"gpu-fleet:fleet": json.dumps(fleet)})
    policy = bucket_policy(BUCKET, MACHINES, publishers)
    assert (violations(ON_BUCKET, {"bucket": BUCKET, "policy": policy}, context) == []) is passes


def test_another_bucket_needs_no_denials() -> None:
    assert violations(ON_BUCKET, {"bucket": "mine", "policy": json.dumps({"Statement": []})}, AWS) == []
