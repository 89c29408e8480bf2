"""Tests that types which the program does not create are refused, unless an exception names type and resource."""

import json
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.domain.model import Cloud
from gpufleet.settings.environment import PolicyException
from policies.context import Context, from_config
from policies.pack import check
from policies.resource import Resource
from policies.resource_types import CREATED_TYPES
from tests.fixtures.stacks.settings_files import AWS, GCP

TODAY = date(2026, 11, 21)
RULE = "resource-type-listed"
INSTANCE, ALARM = "aws:ec2/instance:Instance", "aws:cloudwatch/metricAlarm:MetricAlarm"
HOST = "gpu-fleet:aws:ControlHost"


def context(*exceptions: PolicyException, cloud: Cloud | None = None) -> Context:
    return Context(cloud=cloud, environment="dev", today=TODAY, exceptions=exceptions)


def excepted(kind: str | None, name: str = "it", until: date = TODAY) -> PolicyException:
    return PolicyException(rule=RULE, type=kind, resource=name, owner="ann", reason="wanted", until=until)


def of(kind: str, name: str = "it", within: str = "") -> Resource:
    chain = f"{within}${kind}" if within else kind
    return Resource(type=kind, name=name, urn=f"urn:pulumi:dev::gpu-fleet::{chain}::{name}")


def messages_of(resource: Resource, *exceptions: PolicyException) -> list[str]:
    return [rule.message(violation) for rule, violation in check([resource], context(*exceptions)) if rule.id == RULE]


@pytest.mark.parametrize(
    ("resource", "wrong"),
    [
        pytest.param(of(ALARM), "creates no resource of this type", id="type of AWS"),
        pytest.param(of("gcp:compute/address:Address"), "creates no resource of this type", id="type of Google"),
        pytest.param(of("kubernetes:core/v1:Pod"), "creates no resource of this type", id="another provider's"),
        pytest.param(of("pulumi:providers:random"), "creates no resource of this type", id="another provider"),
        pytest.param(of("command:local:Command"), "creates no resource of this type", id="command"),
        pytest.param(of("pulumi-nodejs:dynamic:Resource"), "creates no resource of this type", id="dynamic"),
        pytest.param(of("pulumi:pulumi:StackReference"), "creates no resource of this type", id="another stack"),
        pytest.param(of("awsx:ec2:Vpc"), "creates no resource of this type", id="a component of others"),
        pytest.param(of("aws:ec2/Instance:instance"), "creates no resource of this type", id="almost a type"),
        pytest.param(of(INSTANCE), "and this resource is in the stack", id="ours, in no component"),
        pytest.param(of(INSTANCE, within="my:own:Part"), "this resource is in my:own:Part", id="ours, in another's"),
        pytest.param(of(INSTANCE, within=f"my:own:Part${HOST}"), "in my:own:Part$gpu-fleet", id="ours, nested"),
        pytest.param(of("pulumi:providers:aws", "other"), "another account", id="a provider of its own"),
    ],
)  # fmt: skip
def test_types_outside_the_program_are_refused(resource: Resource, wrong: str) -> None:
    (message,) = messages_of(resource)
    assert wrong in message
    assert message.startswith(f"{resource.name} ({resource.type}): ")
    assert f"{{rule: {RULE}, type: {resource.type}, resource: {resource.name}, owner: OWNER" in message


@pytest.mark.parametrize(
    "resource",
    [
        pytest.param(of(INSTANCE, within=HOST), id="where it is made"),
        pytest.param(Resource(type=INSTANCE, name="it"), id="without a URN"),
        pytest.param(of("aws:s3/bucketObjectv2:BucketObjectv2"), id="in the stack"),
        pytest.param(of("pulumi:pulumi:Stack", "gpu-fleet-dev"), id="stack"),
        pytest.param(of("pulumi:providers:aws", "default_7_51_1"), id="the default provider"),
        pytest.param(of("pulumi:providers:gcp", "default"), id="the default provider, without a version"),
        pytest.param(of(HOST), id="component"),
    ],
)
def test_types_of_the_program_pass(resource: Resource) -> None:
    assert messages_of(resource) == []


@pytest.mark.parametrize(
    ("exception", "why"),
    [
        pytest.param(excepted(ALARM), None, id="type and name"),
        pytest.param(excepted(ALARM, until=date(2026, 11, 20)), "ended on 2026-11-20", id="ended"),
        pytest.param(excepted(None), "is for resource it without a type", id="without a type"),
        pytest.param(excepted(ALARM, "*"), f"is for resource * of type {ALARM}", id="for all"),
        pytest.param(excepted(INSTANCE), f"of type {INSTANCE}", id="another type"),
        pytest.param(excepted(ALARM, "other"), "", id="another name"),
    ],
)
def test_an_exception_names_type_and_resource(exception: PolicyException, why: str | None) -> None:
    messages = messages_of(of(ALARM), exception)
    if why is None:
        assert messages == []
    else:
        (message,) = messages
        assert why in message


@pytest.mark.parametrize(("kind", "passes"), [(None, True), (INSTANCE, True), (ALARM, False)])
def test_a_type_in_an_exception_of_another_rule_must_match(kind: str | None, passes: bool) -> None:
    rule = "disks-encrypted"
    waiver = excepted(kind).model_copy(update={"rule": rule})
    plain = Resource(type=INSTANCE, name="it", props={"rootBlockDevice": {"encrypted": False}})
    found = {broken.id for broken, _ in check([plain], context(waiver))}
    assert (rule not in found) is passes


def test_a_type_is_checked_without_settings() -> None:
    assert [rule.id for rule, _ in check([of(ALARM)], Context(today=TODAY))] == [RULE]


@pytest.mark.parametrize("cloud", list(Cloud))
def test_the_list_contains_what_each_cloud_needs(cloud: Cloud) -> None:
    assert {kind for kind in CREATED_TYPES if kind.startswith(f"{cloud}:")}


ENCRYPTED = {"encrypted": True}
BASTION: dict[str, Any] = {
    "instanceType": "t3.micro",
    "ami": "ami-0123456789abcdef0",
    "subnetId": "subnet-0123456789abcdef0",
    "associatePublicIpAddress": False,
    "metadataOptions": {"httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 1.0},
    "rootBlockDevice": ENCRYPTED,
}
GOOGLE_BASTION: dict[str, Any] = {
    "machineType": "e2-small",
    "zone": "us-central1-a",
    "networkInterfaces": [{"subnetwork": "s"}],
    "shieldedInstanceConfig": {"enableSecureBoot": True, "enableVtpm": True, "enableIntegrityMonitoring": True},
    "metadata": {"enable-oslogin": "TRUE", "block-project-ssh-keys": "TRUE", "serial-port-enable": "FALSE"},
    "serviceAccount": {"email": "bastion@p.iam.gserviceaccount.com", "scopes": ["cloud-platform"]},
    "bootDisk": {"initializeParams": {"image": "debian-cloud/debian-12"}},
}
GOOGLE_BUCKET = {
    "location": "us-central1",
    "uniformBucketLevelAccess": True,
    "publicAccessPrevention": "enforced",
    "versioning": {"enabled": True},
}
ADDITIONS = [
    pytest.param(INSTANCE, BASTION, id="bastion"),
    pytest.param("aws:s3/bucket:Bucket", {"bucket": "b", "tags": {}}, id="bucket"),
    pytest.param("aws:s3/bucketV2:BucketV2", {"bucket": "b", "tags": {}}, id="bucket, version 2"),
    pytest.param(ALARM, {"comparisonOperator": "GreaterThanThreshold", "evaluationPeriods": 1.0}, id="alarm"),
    pytest.param("aws:route53/record:Record", {"name": "x", "type": "A", "records": ["10.0.0.1"]}, id="DNS record"),
    pytest.param(
        "aws:ec2/vpcPeeringConnection:VpcPeeringConnection",
        {"vpcId": "vpc-1", "peerVpcId": "vpc-2", "peerOwnerId": "111122223333"},
        id="peering",
    ),
    pytest.param("gcp:compute/instance:Instance", GOOGLE_BASTION, id="Google bastion"),
    pytest.param("gcp:storage/bucket:Bucket", GOOGLE_BUCKET, id="Google bucket"),
    pytest.param("gcp:monitoring/alertPolicy:AlertPolicy", {"combiner": "OR", "displayName": "x"}, id="Google alarm"),
    pytest.param(
        "gcp:dns/recordSet:RecordSet", {"name": "x.", "type": "A", "rrdatas": ["10.0.0.1"]}, id="Google DNS"
    ),
    pytest.param(
        "gcp:compute/networkPeering:NetworkPeering", {"network": "n", "peerNetwork": "m"}, id="Google peering"
    ),
]


@pytest.mark.parametrize(("kind", "props"), ADDITIONS)
def test_a_common_addition_needs_one_exception(kind: str, props: dict[str, Any]) -> None:
    addition = replace(of(kind), props=props)
    cloud = Cloud(kind.partition(":")[0])
    # with a budget, every other resource would need a price
    shipped = in_file(AWS if cloud is Cloud.AWS else GCP)
    assert [rule.id for rule, _ in check([addition], replace(shipped, environment="dev"))][0] == RULE
    assert check([addition], replace(shipped, environment="dev", exceptions=(excepted(kind),))) == []


def in_file(config: dict[str, Any]) -> Context:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    return from_config(texts, TODAY)


def test_an_excepted_resource_with_a_price_counts_towards_the_budget() -> None:
    addition = replace(of(INSTANCE), props={**BASTION, "instanceType": "m6i.large"})
    small = replace(in_file(AWS), environment="dev", usd_per_hour_at_max=Decimal("0.05"))
    found = check([addition], replace(small, exceptions=(excepted(INSTANCE),)))
    assert [(rule.id, v.wrong[:24]) for rule, v in found] == [("within-budget", "costs up to 0.10 USD/h a")]
