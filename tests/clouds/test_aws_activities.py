"""What an Auto Scaling group says of its members, in AWS's own sentences."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clouds.aws.calls import AwsCalls
from clouds.aws.groups import AwsGroups, read_activity
from gpufleet.domain.activity import ActivityKind


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


NOW = datetime(2026, 11, 22, 15, 0, tzinfo=UTC)


def _line(number: int, ago: int, status: str, description: str) -> dict[str, Any]:
    return {
        "ActivityId": str(number), "AutoScalingGroupName": "chat", "Description": description, "Cause": "",
        "StatusCode": status, "StartTime": NOW - timedelta(minutes=ago),
        "StatusMessage": "InsufficientInstanceCapacity" if status == "Failed" else None,
    }  # fmt: skip


class Scaling:
    """In the order of the API: what is in progress first, then by start, the newest first; two to a page."""

    def __init__(self) -> None:
        self.pages_read = 0
        self.lines = [
            _line(1, 90, "InProgress", "Terminating EC2 instance: i-0123456789abcdef0"),
            _line(2, 1, "InProgress", "Launching a new EC2 instance: i-0123456789abcdef1"),
            _line(3, 2, "Failed", "Launching a new EC2 instance"),
            _line(4, 20, "Failed", "Launching a new EC2 instance"),
            _line(5, 30, "Failed", "Launching a new EC2 instance"),
        ]

    def get_paginator(self, operation: str) -> "Scaling":
        assert operation == "describe_scaling_activities"
        return self

    def paginate(self, **_: Any) -> Iterator[Mapping[str, Any]]:
        for first in range(0, len(self.lines), 2):
            self.pages_read += 1
            yield {"Activities": self.lines[first : first + 2]}


def test_one_that_has_drained_for_long_hides_no_refusal_and_old_pages_are_not_read() -> None:
    scaling = Scaling()
    groups = AwsGroups(AwsCalls("us-east-1", lambda _: scaling))
    found = groups.activities(["chat"], NOW - timedelta(minutes=10))
    assert [(one.id, one.kind) for one in found] == [("3", ActivityKind.NO_CAPACITY)]
    assert scaling.pages_read == 2


class Shifting(Scaling):
    """Something new happens after each page, which moves the rest on by one."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = [_line(n, n, "Successful", f"Terminating EC2 instance: i-0123456789abcde{n:02}") for n in (1, 2)]
        for line in self.lines:
            line["Cause"] = "taken out of service in response to an ELB system health check failure"

    def paginate(self, **_: Any) -> Iterator[Mapping[str, Any]]:
        yield {"Activities": self.lines}
        yield {"Activities": self.lines[1:]}


def test_what_stands_on_two_pages_happened_once() -> None:
    found = AwsGroups(AwsCalls("us-east-1", lambda _: Shifting())).activities(["chat"], NOW - timedelta(minutes=10))
    assert [(one.id, one.kind) for one in found] == [("2", ActivityKind.UNHEALTHY), ("1", ActivityKind.UNHEALTHY)]
