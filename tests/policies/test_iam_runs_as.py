"""Tests that machines run with the program's own roles and accounts, or are covered by an exception."""

from dataclasses import replace
from typing import Any

import pytest

from gpufleet.settings.environment import PolicyException
from policies.context import Context
from policies.resource import UNKNOWN
from tests.fixtures.policies.iam import AWS, GCP, violations
from tests.fixtures.policies.resources import TODAY

TEMPLATE, INSTANCE = "aws:ec2/launchTemplate:LaunchTemplate", "aws:ec2/instance:Instance"
TARGET = "aws:cloudwatch/eventTarget:EventTarget"
GOOGLE = "gcp:compute/instanceTemplate:InstanceTemplate"
NAME = "gpu-fleet-prod-instance-0a1b2c3"
ARN = f"arn:aws:iam::111122223333:instance-profile/{NAME}"
EMAIL = "gpu-fleet-prod-gpu@example-project.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("kind", "props", "context", "passes"),
    [
        pytest.param(TEMPLATE, {"iamInstanceProfile": {"arn": ARN}}, AWS, True, id="template, ours"),
        pytest.param(TEMPLATE, {"iamInstanceProfile": {"arn": UNKNOWN}}, AWS, True, id="template, not known yet"),
        pytest.param(TEMPLATE, {"iamInstanceProfile": {"name": "Admin"}}, AWS, False, id="template, another's"),
        pytest.param(
            TEMPLATE,
            {"iamInstanceProfile": {"arn": ARN.replace("prod", "dev")}},
            AWS,
            False,
            id="another environment",
        ),
        pytest.param(
            TEMPLATE, {"iamInstanceProfile": {"arn": ARN.replace("1111", "9999")}}, AWS, False, id="another account"
        ),
        pytest.param(INSTANCE, {"iamInstanceProfile": NAME}, AWS, True, id="instance, ours"),
        pytest.param(INSTANCE, {"iamInstanceProfile": "Admin"}, AWS, False, id="instance, another's"),
        pytest.param(INSTANCE, {}, AWS, True, id="instance without rights"),
        pytest.param(INSTANCE, {"iamInstanceProfile": ""}, AWS, True, id="instance without rights, in a state"),
        pytest.param(TARGET, {"arn": "arn:aws:sqs:x", "roleArn": ""}, AWS, True, id="target without a role"),
        pytest.param(TARGET, {"arn": "arn:aws:ssm:x", "roleArn": UNKNOWN}, AWS, False, id="target with a role"),
        pytest.param(
            "aws:autoscaling/group:Group", {"initialLifecycleHooks": [{"roleArn": "arn:x"}]}, AWS, False, id="hook"
        ),
        pytest.param(
            "aws:ec2/spotFleetRequest:SpotFleetRequest",
            {"launchSpecifications": [{"iamInstanceProfileArn": ARN}, {"iamInstanceProfile": "Admin"}]},
            AWS,
            False,
            id="spot fleet",
        ),
        pytest.param("aws:iam/instanceProfile:InstanceProfile", {"role": NAME}, AWS, True, id="profile, ours"),
        pytest.param(
            "aws:iam/instanceProfile:InstanceProfile", {"role": "Admin"}, AWS, False, id="profile, another's"
        ),
        pytest.param(GOOGLE, {"serviceAccount": {"email": EMAIL}}, GCP, True, id="Google, ours"),
        pytest.param(GOOGLE, {"serviceAccount": {"email": UNKNOWN}}, GCP, True, id="Google, not known yet"),
        pytest.param(
            GOOGLE, {"serviceAccount": {"email": EMAIL.replace("gpu@", "admin@")}}, GCP, False, id="Google, another's"
        ),
        pytest.param(
            GOOGLE, {"serviceAccount": {"email": EMAIL.replace("@example", "@other")}}, GCP, False, id="other project"
        ),
        pytest.param(INSTANCE, {"iamInstanceProfile": "Admin"}, Context(today=TODAY), True, id="without settings"),
    ],
)
def test_machines_run_with_identities_of_the_program(
    kind: str, props: dict[str, Any], context: Context, passes: bool
) -> None:
    assert (violations(kind, props, context) == []) is passes


@pytest.mark.parametrize(("kind", "passes"), [(INSTANCE, True), (TEMPLATE, False)])
def test_an_exception_allows_a_bastion_its_own_permissions(kind: str, passes: bool) -> None:
    exception = PolicyException(
        rule="resource-type-listed", type=kind, resource="it", owner="ann", reason="bastion", until=TODAY
    )
    context = replace(AWS, exceptions=(exception,))
    assert (violations(INSTANCE, {"iamInstanceProfile": "bastion"}, context) == []) is passes
