"""Tests that AWS policies may contain only what the program writes."""

import json
import subprocess
import sys
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from components.aws import permissions
from components.aws.permissions import MachineRole
from gpufleet.settings.environment import PolicyException
from policies.context import Context
from policies.iam import actions
from policies.pack import RULES, check
from policies.resource import UNKNOWN, Resource
from tests.fixtures.policies.iam import AWS, RULE, violations
from tests.fixtures.policies.iam_aws import (
    ACCOUNT,
    BUCKET,
    GROUPS,
    MODELS,
    ON_BUCKET,
    OURS,
    POLICY,
    REGION,
    ROLE,
    allow,
    of_control,
    text,
)
from tests.fixtures.policies.resources import TODAY

ENGINE_KEY, ORDER_KEY = "/gpu-fleet/prod/engine-key", "/gpu-fleet/prod/order-key"
GITHUB = "token.actions.githubusercontent.com"


def read(resource: Any = MODELS, action: Any = "s3:GetObject", **parts: Any) -> dict[str, Any]:
    """Return a statement of a GPU instance's policy."""
    return allow(action, resource, **{"Condition": None, **parts})


def of_instance(*statements: Any, role: Any = "gpu-fleet-prod-instance-0a1b2c3") -> list[str]:
    return violations(POLICY, {"role": role, "policy": text(*statements)}, AWS, "gpu-fleet-prod-instance")


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(allow(), id="as the program writes it"),
        pytest.param(allow("AUTOSCALING:setdesiredcapacity"), id="in other letters"),
        pytest.param(allow(["autoscaling:SetDesiredCapacity"], [GROUPS]), id="lists"),
        pytest.param(allow(resource=GROUPS.replace("*", "*:autoScalingGroupName/chat-spot")), id="narrower resource"),
        pytest.param(allow(Condition={**OURS, "Bool": {"aws:ViaAWSService": False}}), id="one condition more"),
        pytest.param(
            allow(Condition={"StringEquals": {"AutoScaling:resourcetag/gpu-fleet:environment": ["prod"]}}),
            id="key in other letters",
        ),
        pytest.param(allow(Sid="Any"), id="with a Sid"),
        pytest.param({"Effect": "Deny", "Action": "*", "Resource": "*", "NotPrincipal": "x"}, id="what is denied"),
        pytest.param(
            allow("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter{ORDER_KEY}", Condition=None),
            id="a secret of the settings",
        ),
    ],
)
def test_listed_permissions_pass(statement: dict[str, Any]) -> None:
    assert of_control(text(statement)) == []
    assert of_control(text()[:-3] + json.dumps(statement) + "}") == []


def tag(value: Any, operator: str = "StringEquals") -> dict[str, Any]:
    return {operator: {"autoscaling:ResourceTag/gpu-fleet:environment": value}}


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        # actions
        pytest.param(allow("*"), "matches", id="every action"),
        pytest.param(allow("autoscaling:*"), "autoscaling:AttachInstances", id="every action of a service"),
        pytest.param(allow("autoscaling:SetDesired*"), "and those that AWS adds later", id="listed wildcard"),
        pytest.param(allow("autoscaling:SetDesiredCapacit?"), "and those that AWS adds later", id="one letter"),
        pytest.param(allow("*:*"), "are not in the list", id="every action of every service"),
        pytest.param(allow("iam:PassRole", "*", Condition=None), "can be limited to arn:", id="outside the list"),
        pytest.param(allow("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/*"), "is not an action", id="every role"),
        pytest.param(allow(["autoscaling:SetDesiredCapacity", "s3:*"]), "'s3:*'", id="one bad action of two"),
        pytest.param(allow("autoscaling:\u017fetDesiredCapacity"), "is not an action", id="long s"),
        pytest.param(allow("autosca\u217ding:SetDesiredCapacity"), "is not an action", id="letters that look alike"),
        pytest.param(allow(" autoscaling:SetDesiredCapacity"), "is not an action", id="space"),
        pytest.param(allow(None), "has no Action", id="no action"),
        pytest.param(allow([]), "has no Action", id="no action in the list"),
        pytest.param(allow(7), "where a string is expected", id="action that is not text"),
        pytest.param(allow([["s3:*"]]), "where a string is expected", id="action in a list in a list"),
        pytest.param({"Sid": "Only"}, "neither Allow nor Deny", id="Sid alone"),
        pytest.param(allow(None, NotAction="iam:*"), "everything except what NotAction", id="NotAction"),
        pytest.param(allow(resource=None, NotResource="arn:x"), "except what NotResource", id="NotResource"),
        pytest.param(allow(Effect="allow"), "neither Allow nor Deny", id="effect in small letters"),
        pytest.param(allow(Effect=None), "neither Allow nor Deny", id="no effect"),
        pytest.param({**allow(None), "action": "s3:GetObject"}, "not an element", id="small element"),
        pytest.param(allow(**{"Action ": "s3:*"}), "is not an element", id="element with a space"),
        pytest.param(allow(Principal="*"), "has a Principal", id="principal of an identity"),
        # resources
        pytest.param(allow(resource="*"), "the list allows it on arn:aws:autoscaling", id="every resource"),
        pytest.param(allow(resource="**"), "is allowed on **", id="two stars"),
        pytest.param(allow(resource=[GROUPS, "*"]), "is allowed on *", id="one bad resource of two"),
        pytest.param(allow(resource=GROUPS.replace(ACCOUNT, "*")), "is allowed on", id="every account"),
        pytest.param(allow(resource=GROUPS.replace(ACCOUNT, "444455556666")), "is allowed on", id="another account"),
        pytest.param(allow(resource=GROUPS.replace(ACCOUNT, "????????????")), "is allowed on", id="twelve letters"),
        pytest.param(allow(resource=GROUPS.replace(ACCOUNT, "${aws:PrincipalAccount}")), "is allowed", id="variable"),
        pytest.param(allow(resource=GROUPS.replace(REGION, "*")), "is allowed on", id="every region"),
        pytest.param(allow(resource=GROUPS.replace("arn:aws:", "arn:aws-cn:")), "is allowed on", id="China"),
        pytest.param(allow(resource=GROUPS.replace("arn:aws:", "arn:*:")), "is allowed on", id="every partition"),
        pytest.param(allow(resource="arn:aws:autoscaling:*"), "is allowed on", id="the rest of an ARN"),
        pytest.param(allow(resource=[]), "has no Resource", id="no resource"),
        pytest.param(allow(resource=""), "is allowed on", id="empty resource"),
        pytest.param(
            allow("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/other"), "is allowed on",
            id="a secret that the settings do not name",
        ),
        pytest.param(
            allow("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/*"), "is allowed on",
            id="every parameter",
        ),
        pytest.param(
            allow("s3:PutObject", f"arn:aws:s3:::{BUCKET}/models/*", Condition=None), "is allowed on",
            id="objects that machines use",
        ),
        pytest.param(allow("s3:ListBucket", "arn:aws:s3:::*", Condition=None), "is allowed on", id="every bucket"),
        pytest.param(allow("s3:ListBucket", "arn:aws:s3:::other", Condition=None), "is allowed", id="other bucket"),
        # conditions
        pytest.param(allow(Condition=None), "without the condition StringEquals autoscaling:Res", id="no condition"),
        pytest.param(allow(Condition={}), "gpu-fleet:environment: prod", id="empty condition"),
        pytest.param(allow(Condition=tag("dev")), "without the condition", id="another environment"),
        pytest.param(allow(Condition=tag(["prod", "dev"])), "without the condition", id="and another environment"),
        pytest.param(allow(Condition=tag([])), "without the condition", id="no value"),
        pytest.param(allow(Condition=tag("*", "StringLike")), "without the condition", id="any value"),
        pytest.param(allow(Condition=tag("prod", "StringLike")), "without the condition", id="another operator"),
        pytest.param(allow(Condition=tag("prod", "StringEqualsIfExists")), "without the condition", id="IfExists"),
        pytest.param(allow(Condition=tag("prod", "ForAnyValue:StringEquals")), "without the", id="ForAnyValue"),
        pytest.param(allow(Condition=tag("prod", "ForAllValues:StringEquals")), "without the", id="ForAllValues"),
        pytest.param(allow(Condition=tag("prod", "StringNotEquals")), "without the condition", id="negated"),
        pytest.param(allow(Condition=tag("${aws:PrincipalTag/env}")), "without the condition", id="policy variable"),
        pytest.param(
            allow(Condition={"StringEquals": {"aws:ResourceTag/gpu-fleet:environment": "prod", "aws:x": "prod"}}),
            "without the condition", id="another key",
        ),
        pytest.param(allow(Condition={"StringEquals": "prod"}), "not a map of maps", id="condition without a key"),
        pytest.param(allow(Condition={"StringLike": {"iam:PassedToService": "*"}}), "without", id="PassedToService"),
        pytest.param(allow(Condition={"ArnLike": {"aws:PrincipalArn": "arn:*"}}), "without", id="any principal"),
        pytest.param(
            allow(Condition={"StringLike": {"aws:PrincipalAccount": "????????????"}}), "without", id="any account"
        ),
        pytest.param(allow(Condition={"StringLike": {"aws:RequestedRegion": "*-*"}}), "without", id="any region"),
        pytest.param(
            allow(Condition={"IpAddress": {"aws:SourceIp": ["0.0.0.0/1", "128.0.0.0/1"]}}), "without",
            id="any address",
        ),
        pytest.param(allow(Condition={"Bool": {"aws:PrincipalIsAWSService": "false"}}), "without", id="no service"),
        pytest.param(
            allow(
                "ec2:CreateTags",
                f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/*",
                Condition={"StringEquals": {"ec2:ResourceTag/gpu-fleet:environment": "prod"}},
            ),
            "without the condition ForAllValues:StringEquals aws:TagKeys", id="every tag",
        ),
    ],
)  # fmt: skip
def test_unlisted_permissions_are_refused(statement: dict[str, Any], wrong: str) -> None:
    messages = of_control(text(allow(), statement))
    assert messages
    assert wrong in messages[0]
    assert messages[0].startswith("gpu-fleet-prod-control (aws:iam/rolePolicy:RolePolicy): policy.Statement[1] is ")


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        pytest.param("{", "is not JSON", id="broken"),
        pytest.param("\ufeff" + text(allow()), "is not JSON", id="byte order mark"),
        pytest.param("[]", "is not a JSON object", id="list"),
        pytest.param(text(allow(), statement=[]), "names statement twice", id="second Statement"),
        pytest.param(text(7), "a Statement that is not a map", id="statement that is not a map"),
        pytest.param(
            text(allow()).replace('"Action":', '"Action": "s3:*", "Action":'), "names Action twice", id="two actions"
        ),
        pytest.param(
            text(allow()).replace('"Action":', '"action": "s3:*", "Action":'), "names Action twice", id="two cases"
        ),
        pytest.param("[" * 100_000, "is not JSON", id="deep"),
        pytest.param({"Statement": allow("s3:*")}, "s3:*", id="not as text"),
        pytest.param({"statement": allow("s3:*")}, "not an element", id="not as text, in small letters"),
    ],
)
def test_an_ambiguous_policy_is_refused(policy: Any, wrong: str) -> None:
    (message,) = of_control(policy)
    assert wrong in message


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (POLICY, "policy"),
        (ROLE, "assumeRolePolicy"),
        (ROLE, "inlinePolicies"),
        (ON_BUCKET, "policy"),
        ("aws:kms/key:Key", "policy"),
    ],
)
def test_a_preview_knows_policies(kind: str, key: str) -> None:
    """A preview must know the program's policies. Otherwise CI, which has only a preview, would check nothing."""
    (message,) = violations(kind, {key: UNKNOWN}, AWS, "gpu-fleet-prod-control")
    assert f"{key} is (known after up): must be known in the preview" in message


@pytest.mark.parametrize(
    ("role", "name", "passes"),
    [
        pytest.param("gpu-fleet-prod-control-0a1b2c3", "any", True, id="the role"),
        pytest.param(UNKNOWN, "gpu-fleet-prod-control", True, id="not known yet"),
        pytest.param(UNKNOWN, "mine", False, id="not known yet, of another name"),
        pytest.param("gpu-fleet-prod-instance-0a1b2c3", "gpu-fleet-prod-control", False, id="instances"),
        pytest.param("gpu-fleet-dev-control-0a1b2c3", "gpu-fleet-prod-control", False, id="another environment"),
        pytest.param("gpu-fleet-prod-control-x", "gpu-fleet-prod-control", False, id="not of Pulumi"),
        pytest.param(None, "mine", False, id="none"),
    ],
)
def test_each_machine_has_its_own_permissions(role: Any, name: str, passes: bool) -> None:
    assert (violations(POLICY, {"role": role, "policy": text(allow())}, AWS, name) == []) is passes


def test_an_instance_reads_no_secret_but_the_engine_key() -> None:
    parameter = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter"
    assert of_instance(read(), read(parameter + ENGINE_KEY, "ssm:GetParameter")) == []
    assert of_instance(read(parameter + ORDER_KEY, "ssm:GetParameter"))


@pytest.mark.parametrize(
    ("kind", "props"),
    [
        pytest.param("aws:iam/policy:Policy", {"policy": text(read())}, id="policy of its own"),
        pytest.param("aws:iam/userPolicy:UserPolicy", {"policy": text(read())}, id="user"),
        pytest.param("aws:iam/groupPolicy:GroupPolicy", {"policy": text(allow("*", "*"))}, id="group"),
        pytest.param("aws:ssoadmin/permissionSetInlinePolicy:PermissionSetInlinePolicy",
                     {"inlinePolicy": text(allow("*", "*"))}, id="permission set"),
        pytest.param(ROLE, {"inlinePolicies": [{"name": "x", "policy": text(allow("*", "*"))}]}, id="inline"),
        pytest.param(ROLE, {"managedPolicyArns": ["arn:aws:iam::aws:policy/PowerUserAccess"]}, id="managed"),
        pytest.param(ROLE, {"managedPolicyArns": [UNKNOWN]}, id="managed, not known"),
        pytest.param("aws:iam/rolePolicyAttachment:RolePolicyAttachment",
                     {"policyArn": "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"}, id="attached"),
        pytest.param("aws:iam/rolePolicyAttachment:RolePolicyAttachment",
                     {"policyArn": f"arn:aws:iam::{ACCOUNT}:policy/ours"}, id="ours, attached"),
        pytest.param("aws:iam/policyAttachment:PolicyAttachment", {"policyArn": UNKNOWN}, id="attached, not known"),
        pytest.param("aws:iam/rolePolicyAttachmentsExclusive:RolePolicyAttachmentsExclusive",
                     {"policyArns": ["arn:aws:iam::aws:policy/AdministratorAccess"]}, id="all attachments"),
        pytest.param("aws-native:iam:Role", {"assumeRolePolicyDocument": {"Statement": [allow()]}}, id="native"),
        # trust policies
        *(
            pytest.param(ROLE, {"assumeRolePolicy": text({"Effect": "Allow", "Action": "sts:AssumeRole", **parts})},
                         id=f"trust of {name}")
            for name, parts in {
                "everybody": {"Principal": "*"},
                "everybody, as a map": {"Principal": {"AWS": "*"}},
                "everybody, in a list": {"Principal": {"AWS": ["*"]}},
                "everybody with a condition": {"Principal": "*", "Condition": {"StringLike": {"aws:x": "*"}}},
                "another account": {"Principal": {"AWS": "arn:aws:iam::444455556666:root"}},
                "our account": {"Principal": {"AWS": ACCOUNT}},
                "another service": {"Principal": {"Service": "lambda.amazonaws.com"}},
                "a service and another": {"Principal": {"Service": ["ec2.amazonaws.com", "lambda.amazonaws.com"]}},
                "a service and a user": {"Principal": {"Service": "ec2.amazonaws.com", "AWS": "*"}},
                "all but one": {"NotPrincipal": {"AWS": ACCOUNT}},
                "no principal": {},
                "any repository": {
                    "Action": "sts:AssumeRoleWithWebIdentity",
                    "Principal": {"Federated": f"arn:aws:iam::{ACCOUNT}:oidc-provider/{GITHUB}"},
                    "Condition": {"StringEquals": {f"{GITHUB}:aud": "sts.amazonaws.com"}},
                },
                "machines, with tags": {"Action": "sts:TagSession", "Principal": {"Service": "ec2.amazonaws.com"}},
            }.items()
        ),
        # resource policies
        *(
            pytest.param(ON_BUCKET, {"policy": text({"Effect": "Allow", "Action": "s3:GetObject", "Resource": MODELS,
                                                     "Principal": principal, "Condition": condition})},
                         id=f"bucket: {name}")
            for name, principal, condition in (
                ("everybody with TLS", "*", {"Bool": {"aws:SecureTransport": "true"}}),
                ("any account", "*", {"StringLike": {"aws:PrincipalAccount": "????????????"}}),
                ("any address", "*", {"IpAddress": {"aws:SourceIp": ["0.0.0.0/1", "128.0.0.0/1"]}}),
                ("no service", "*", {"Bool": {"aws:PrincipalIsAWSService": "false"}}),
                ("our account", {"AWS": ACCOUNT}, {}),
            )
        ),
        pytest.param("aws:s3/bucket:Bucket", {"policy": text(read(Principal="*"))}, id="in the bucket"),
        pytest.param("aws:s3/bucketV2:BucketV2", {"policy": text(read(Principal="*"))}, id="in the older bucket"),
        pytest.param("aws:s3/accessPoint:AccessPoint", {"policy": text(read(Principal="*"))}, id="access point"),
        pytest.param("aws:kms/key:Key", {"policy": text(allow("kms:*", "*", Principal={"AWS": "*"}))}, id="key"),
        pytest.param("aws:ecr/repositoryPolicy:RepositoryPolicy",
                     {"policy": text(allow("ecr:*", None, Principal="*"))},
                     id="registry"),
        pytest.param("aws:cloudwatch/eventBusPolicy:EventBusPolicy",
                     {"policy": text(allow("events:PutEvents", "*", Principal="*"))}, id="event bus"),
        pytest.param("aws:opensearch/domain:Domain", {"accessPolicies": text(allow("es:*", "*", Principal="*"))},
                     id="another property"),
        pytest.param("aws:glue/resourcePolicy:ResourcePolicy", {"policy": " \n" + text(allow("glue:*", "*"))},
                     id="behind spaces"),
    ],
)  # fmt: skip
def test_other_ways_to_permissions_are_refused(kind: str, props: dict[str, Any]) -> None:
    assert violations(kind, props, AWS)


def test_without_settings_no_account_is_known_and_none_may_be_a_wildcard() -> None:
    nothing = Context(today=TODAY)
    role = permissions.role_name("prod", MachineRole.CONTROL)
    assert violations(POLICY, {"policy": text(allow()), "role": f"{role}-0a1b2c3"}, nothing) == []
    wide = text(allow(resource=GROUPS.replace(ACCOUNT, "*")))
    assert violations(POLICY, {"policy": wide, "role": f"{role}-0a1b2c3"}, nothing)


@pytest.mark.parametrize(("until", "passes"), [(TODAY, True), (date(2026, 11, 20), False)])
def test_an_additional_statement_needs_an_expiring_exception(until: date, passes: bool) -> None:
    exception = PolicyException(
        rule=RULE, resource="gpu-fleet-prod-control", owner="ann", reason="uploads reports", until=until
    )
    context = replace(AWS, exceptions=(exception,))
    assert (of_control(text(allow("s3:*", "*")), context) == []) is passes


def test_a_message_names_statement_action_rule_and_remedy() -> None:
    rule = next(rule for rule in RULES if rule.id == RULE)
    resource = Resource(type=POLICY, name="mine", props={"role": "mine", "policy": text(read("*"))})
    (message,) = [rule.message(violation) for found, violation in check([resource], AWS) if found is rule]
    assert message.startswith("mine (aws:iam/rolePolicy:RolePolicy): policy.Statement[0] is 's3:GetObject': ")
    assert "it can be limited to arn:${Partition}:s3" in message
    assert "[iam-in-list]" in message
    assert "python -m scripts.policy_lists" in message


def test_a_name_with_many_wildcards_is_expanded_fast() -> None:
    assert actions.expanded("s3:" + "*a" * 40 + "?" * 40 + "*x") == ()


def test_own_policies_need_no_database_of_actions() -> None:
    code = (
        "import sys; from policies import pack; from tests.fixtures.policies.iam_aws import allow, of_control, text;"
        "assert of_control(text(allow())) == []; print('policy_sentry' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
