"""Tests that a preview predicts names that only `up` knows, from the resources of the plan."""

import json
from dataclasses import replace
from typing import Any

import pytest

from policies.context import Context
from policies.pack import check
from policies.resource import UNKNOWN, Resource
from tests.fixtures.policies import iam_aws as of_aws
from tests.fixtures.policies import iam_google as of_google
from tests.fixtures.policies.iam import AWS, GCP, RULE
from tests.fixtures.policies.resources import TODAY

ACCOUNT, PROFILE = "gcp:serviceaccount/account:Account", "aws:iam/instanceProfile:InstanceProfile"
TEMPLATE, INSTANCE = "aws:ec2/launchTemplate:LaunchTemplate", "aws:ec2/instance:Instance"


def made(kind: str, name: str, props: dict[str, Any] | None = None, **depends: Resource) -> Resource:
    sources = {key: (source.urn,) for key, source in depends.items()}
    return Resource(type=kind, name=name, urn=f"urn:{kind}:{name}", props=props or {}, depends=sources)


def refused(context: Context, *resources: Resource) -> list[str]:
    return [violation.sentence for rule, violation in check(resources, context) if rule.id == RULE]


def account(name: str) -> Resource:
    return made(ACCOUNT, name, {"accountId": name})


def binding(source: Resource, **changes: Any) -> Resource:
    props = of_google.on_bucket(member=UNKNOWN, **changes)
    return made(of_google.ON_BUCKET, "gpu-fleet-prod-ctl-bucket-0", props, member=source)


@pytest.mark.parametrize(
    ("name", "passes"),
    [("gpu-fleet-prod-ctl", True), ("gpu-fleet-prod-gpu", False), ("mine", False)],
    ids=["the control host", "instances under its name", "another account"],
)
def test_a_binding_is_checked_by_its_account(name: str, passes: bool) -> None:
    source = account(name)
    assert (refused(GCP, source, binding(source, condition=None)) == []) is passes


@pytest.mark.parametrize(
    "depends",
    [(), ("urn:elsewhere",), ("urn:a", "urn:b")],
    ids=["from nothing", "from outside of the plan", "from two accounts"],
)
def test_a_member_comes_from_one_account_of_the_plan(depends: tuple[str, ...]) -> None:
    accounts = [replace(account("gpu-fleet-prod-ctl"), urn="urn:a"), replace(account("mine"), urn="urn:b")]
    one = replace(binding(accounts[0], condition=None), depends={"member": depends})
    (message,) = refused(GCP, *accounts, one)
    assert "member is (known after up): must come from one gcp:serviceaccount/account:Account of this plan" in message


@pytest.mark.parametrize(("role", "passes"), [("gpu_fleet_prod_ctl", True), ("gpu_fleet_prod_rtr", False)])
def test_a_role_is_checked_by_its_custom_role(role: str, passes: bool) -> None:
    source, its = account("gpu-fleet-prod-ctl"), made(of_google.CUSTOM, "x", {"roleId": role, "permissions": []})
    props = of_google.on_project(role=UNKNOWN, member=UNKNOWN)
    one = made(of_google.ON_PROJECT, "gpu-fleet-prod-ctl", props, member=source, role=its)
    assert (refused(GCP, source, its, one) == []) is passes


def role(name: str) -> Resource:
    trust = json.loads(of_aws.text({"Effect": "Allow", "Action": "sts:AssumeRole"}))
    trust["Statement"][0]["Principal"] = {"Service": "ec2.amazonaws.com"}
    return made(of_aws.ROLE, name, {"assumeRolePolicy": json.dumps(trust)})


@pytest.mark.parametrize(("name", "passes"), [("gpu-fleet-prod-control", True), ("gpu-fleet-prod-instance", False)])
def test_a_policy_is_checked_by_its_role(name: str, passes: bool) -> None:
    source, props = role(name), {"role": UNKNOWN, "policy": of_aws.text(of_aws.allow())}
    one = made(of_aws.POLICY, "gpu-fleet-prod-control", props, role=source)
    assert (refused(AWS, source, one) == []) is passes


@pytest.mark.parametrize("kind", [INSTANCE, TEMPLATE])
@pytest.mark.parametrize(("name", "passes"), [("gpu-fleet-prod-instance", True), ("mine", False)])
def test_a_machine_is_checked_by_its_profile(kind: str, name: str, passes: bool) -> None:
    source = role(name)
    profile = made(PROFILE, name, {"role": UNKNOWN}, role=source)
    value = UNKNOWN if kind == INSTANCE else {"arn": UNKNOWN}
    machine = made(kind, "it", {"iamInstanceProfile": value}, iamInstanceProfile=profile)
    found = refused(AWS, source, profile, machine)
    assert (not any(message.startswith("it ") for message in found)) is passes
    assert (found == []) is passes


def test_without_settings_no_name_is_predicted() -> None:
    assert refused(Context(today=TODAY), binding(account("gpu-fleet-prod-ctl"), condition=None)) == []
