"""What an Auto Scaling group says of its members, in AWS's own sentences."""

from datetime import UTC, datetime

import pytest

from clouds.aws.groups import read_activity
from fleet.activity import ActivityKind


@pytest.mark.parametrize(
    ("description", "status", "words", "kind"),
    [
        pytest.param("Launching a new EC2 instance", "Successful", "", ActivityKind.LAUNCHED, id="launch"),
        pytest.param(
            "Launching a new EC2 instance",
            "Failed",
            "UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration.",
            ActivityKind.NO_CAPACITY,
            id="no capacity",
        ),
        pytest.param(
            "Terminating EC2 instance",
            "Successful",
            "an instance was taken out of service in response to an EC2 health check indicating"
            " it has been terminated or stopped.",
            ActivityKind.PREEMPTED,
            id="a spot instance was taken",
        ),
        pytest.param(
            "Terminating EC2 instance",
            "Successful",
            "an instance was taken out of service in response to an ELB system health check failure.",
            ActivityKind.UNHEALTHY,
            id="a machine that answers no check",
        ),
        pytest.param(
            "Terminating EC2 instance",
            "Successful",
            "instance i-0123456789abcdef0 was taken out of service in response to a user request",
            ActivityKind.ENDED,
            id="asked for",
        ),
        pytest.param("Terminating EC2 instance", "Failed", "whatever", None, id="an end that failed"),
    ],
)
def test_what_happened(description: str, status: str, words: str, kind: ActivityKind | None) -> None:
    found = read_activity(
        {
            "ActivityId": "1",
            "AutoScalingGroupName": "chat-spot-us-east-1a",
            "Description": f"{description}: i-0123456789abcdef0",
            "Cause": words,
            "StatusMessage": words if status == "Failed" else None,
            "StatusCode": status,
            "StartTime": datetime(2026, 11, 21, 2, 15, tzinfo=UTC),
        }
    )
    assert (found.kind if found else None) is kind
    assert found is None or found.instance_id == "i-0123456789abcdef0"
