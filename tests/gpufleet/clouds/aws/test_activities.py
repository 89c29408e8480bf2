"""The meaning of Auto Scaling activities, with the messages of AWS."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpufleet.clouds.aws.activities import read_activity
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import AwsGroups
from gpufleet.domain.activity import Activity, ActivityKind


@pytest.mark.parametrize(
    ("description", "status", "message", "kind"),
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
            ActivityKind.ENDED_UNSTATED,
            id="taken, ended by a person or powered off: the group cannot distinguish",
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
def test_activities_are_classified(description: str, status: str, message: str, kind: ActivityKind | None) -> None:
    found = read_activity(
        {
            "ActivityId": "1",
            "AutoScalingGroupName": "chat-spot-us-east-1a",
            "Description": f"{description}: i-0123456789abcdef0",
            "Cause": message,
            "StatusMessage": message if status == "Failed" else None,
            "StatusCode": status,
            "StartTime": datetime(2026, 11, 21, 2, 15, tzinfo=UTC),
        }
    )
    assert (found.kind if found else None) is kind
    assert found is None or found.instance_id == "i-0123456789abcdef0"


K = ActivityKind
MIXED = "Could not launch {} Instances. {} - {}"
LIMIT = "You have requested more vCPU capacity than your current vCPU limit of 64 allows for the instance bucket that"


@pytest.mark.parametrize("kind_of_mix", ["", "Spot", "On-Demand"])
@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (
            "InsufficientInstanceCapacity",
            "There is no Spot capacity available that matches your request.",
            K.NO_CAPACITY,
        ),
        (
            "InsufficientInstanceCapacity",
            "We currently do not have sufficient p5en.48xlarge capacity in the Availability Zone you requested"
            " (eu-north-1b). Our system will be working on provisioning additional capacity.",
            K.NO_CAPACITY,
        ),
        ("InsufficientInstanceCapacity", "Insufficient capacity.", K.NO_CAPACITY),
        (
            "UnfulfillableCapacity",
            "Unable to fulfill capacity due to your request configuration. Please adjust your request and try again.",
            K.NO_CAPACITY,
        ),
        (
            "InsufficientInstanceCapacity",
            "We currently do not have sufficient capacity to launch all of the additional requested instances into"
            " Placement Group 'close'.",
            K.NO_CAPACITY,
        ),
        (
            "VolumeLimitExceeded",
            "You have exceeded your maximum gp3 storage limit of 50 TiB in this region.",
            K.QUOTA,
        ),
        (
            "Unsupported",
            "The requested Availability Zone is currently constrained and we are no longer accepting new customer"
            " requests for g5 instance types.",
            K.UNSUPPORTED,
        ),
        (
            "OptInRequired",
            "In order to use this AWS Marketplace product you need to accept terms and subscribe.",
            K.PERMISSION,
        ),
        ("VcpuLimitExceeded", f"{LIMIT} the specified instance type belongs to.", K.QUOTA),
        ("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded.", K.QUOTA),
        ("MaxFleetCountExceeded", "You've reached your quota for maximum Fleet Requests for this account.", K.QUOTA),
        (
            "InstanceLimitExceeded",
            "Your quota allows for 0 more running instance(s). You requested at least 1",
            K.QUOTA,
        ),
        ("RequestLimitExceeded", "Request limit exceeded.", K.THROTTLED),
        ("Throttling", "Rate exceeded", K.THROTTLED),
        (
            "SpotMaxPriceTooLow",
            "Your Spot request price of 0.5 is lower than the minimum required Spot request fulfillment price.",
            K.PRICE,
        ),
        (
            "ReservationCapacityExceeded",
            "The requested reservation does not have sufficient compatible and available capacity for this request.",
            K.RESERVATION_FULL,
        ),
        (
            "Unsupported",
            "Your requested instance type (g6e.12xlarge) is not supported in your requested Availability Zone"
            " (us-east-1e). Please retry your request by not specifying an Availability Zone.",
            K.UNSUPPORTED,
        ),
        ("Unsupported", "The requested configuration is currently not supported.", K.UNSUPPORTED),
        (
            "InvalidParameterCombination",
            "The specified instance type is not eligible for Free Tier.",
            K.UNSUPPORTED,
        ),
        ("UnauthorizedOperation", "You are not authorized to perform this operation.", K.PERMISSION),
        (
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "The provided credentials do not have permission to create the service-linked role for Spot.",
            K.PERMISSION,
        ),
        ("Blocked", "This account is currently blocked and not recognized as a valid account.", K.PERMISSION),
        ("InvalidAMIID.NotFound", "The image id '[ami-02c7e84c65fcfecee]' does not exist", K.CONFIGURATION),
        ("InvalidGroup.NotFound", "The security group 'sg-1' does not exist in VPC 'vpc-1'", K.CONFIGURATION),
        (
            "InsufficientFreeAddressesInSubnet",
            "There are not enough free addresses in subnet 'subnet-1' to satisfy the requested number of instances.",
            K.CONFIGURATION,
        ),
        (
            "InsufficientInstanceCapacity",
            "You've reached the limit of instances in this spread placement group.",
            K.CONFIGURATION,
        ),
        ("IncorrectState", "AMI ami-1 is pending, and cannot be run.", K.LATER),
        ("InvalidState", "Your Capacity Block reservation cr-1 is not active yet.", K.LATER),
    ],
)
def test_refusals_with_and_without_a_mixed_policy(
    kind_of_mix: str, code: str, message: str, kind: ActivityKind
) -> None:
    text = MIXED.format(kind_of_mix, code, message) if kind_of_mix else message
    assert read(message=f"{text} Launching EC2 instance failed.").kind is kind


@pytest.mark.parametrize(
    "message",
    [
        "The stars are not right.",
        "Could not launch Spot Instances. ChipShortage - No silicon. Launching EC2 instance failed.",
        "Your request does not have sufficient permissions to change the capacity of the group.",
        "Capacity Rebalancing could not be started.",
        "The instance ID 'i-0123456789abcdef0' does not exist",
        "",
    ],
)
def test_unknown_messages_are_unknown(message: str) -> None:
    assert read(message=message).kind is K.UNKNOWN


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("Server.SpotInstanceTermination", K.PREEMPTED),
        ("Server.SpotInstanceShutdown", K.PREEMPTED),
        ("Client.UserInitiatedShutdown", K.ENDED_BY_PERSON),
        ("Client.InstanceInitiatedShutdown", K.FAILED_BOOT),
        ("Server.InternalError", K.FAILED_BOOT),
        ("Server.NobodyKnows", K.FAILED_BOOT),
        ("Client.VolumeLimitExceeded", K.QUOTA),
        ("Client.InvalidSnapshot.NotFound", K.CONFIGURATION),
        ("Client.InternalError", K.PERMISSION),
        ("Server.InsufficientInstanceCapacity", K.NO_CAPACITY),
    ],
)
def test_an_instance_that_ends_before_service_has_the_kind_of_its_reason(code: str, kind: ActivityKind) -> None:
    message = (
        "Instance became unhealthy while waiting for instance to be in InService state."
        f" Termination Reason: {code}: reason of the instance"
    )
    found = read(status="Cancelled", message=message, instance="i-0123456789abcdef0", took=timedelta(minutes=9))
    assert (found.kind, found.instance_id) == (kind, "i-0123456789abcdef0")
    assert found.at == NOW + timedelta(minutes=9), "the time of its end, not of its launch"


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("an instance was taken out of service in response to an EC2 instance status check failure.", K.UNHEALTHY),
        ("an instance was taken out of service in response to an EC2 scheduled reboot.", K.UNHEALTHY),
        ("an instance was taken out of service in response to a VPC Lattice health check failure.", K.UNHEALTHY),
        (
            "an instance was taken out of service in response to an EC2 health check that indicated it had been"
            " terminated or stopped.",
            K.ENDED_UNSTATED,
        ),
        (
            "instance i-1 was taken out of service in response to a user request, shrinking the capacity from 4.",
            K.ENDED,
        ),
        ("an instance was taken out of service in response to an instance refresh.", K.ENDED),
        ("an instance was taken out of service in response to a whim.", K.UNKNOWN),
        ("", K.ENDED_UNSTATED),
    ],
)
def test_terminations_are_classified(cause: str, kind: ActivityKind) -> None:
    full_cause = f"At 2026-11-21T02:15:00Z {cause}" if cause else ""
    found = read("Terminating EC2 instance", "Successful", instance="i-0123456789abcdef0", cause=full_cause)
    assert found.kind is kind


def test_other_activities_are_omitted() -> None:
    raw = _line(1, 0, "Successful", "Updating load balancers/target groups: Successful.")
    assert read_activity(raw) is None


def read(
    description: str = "Launching a new EC2 instance",
    status: str = "Failed",
    *,
    message: str = "",
    cause: str = "",
    instance: str = "",
    took: timedelta = timedelta(),
) -> Activity:
    more = {"StatusMessage": message, "Cause": cause, "EndTime": NOW + took}
    described = f"{description}: {instance}" if instance else description
    found = read_activity({**_line(1, 0, status, described), **more})
    assert found is not None
    return found


def test_a_failed_launch_and_its_termination_count_once() -> None:
    message = "Instance failed to complete user's Lifecycle Action: Lifecycle Action with token 1 was abandoned: x"
    end_cause = "At 2026-11-22T14:59:00Z an instance was taken out of service in response to a launch failure."
    name = "i-0123456789abcdef0"

    class Both(Scaling):
        def __init__(self) -> None:
            super().__init__()
            self.lines = [
                {**_line(1, 1, "Successful", f"Terminating EC2 instance: {name}"), "Cause": end_cause},
                {**_line(3, 9, "Cancelled", f"Launching a new EC2 instance: {name}"), "StatusMessage": message},
            ]

    found = AwsGroups(AwsCalls("us-east-1", lambda _: Both())).activities(["chat"], NOW - timedelta(minutes=10))
    assert [(one.id, one.kind, one.instance_id) for one in found] == [("3", K.FAILED_BOOT, name)]


NOW = datetime(2026, 11, 22, 15, 0, tzinfo=UTC)


def _line(number: int, ago: int, status: str, description: str) -> dict[str, Any]:
    return {
        "ActivityId": str(number), "AutoScalingGroupName": "chat", "Description": description, "Cause": "",
        "StatusCode": status, "StartTime": NOW - timedelta(minutes=ago),
        "StatusMessage": "InsufficientInstanceCapacity" if status == "Failed" else None,
    }  # fmt: skip


class Scaling:
    """Activities in the order of the API: first those in progress, then the others, newest first. Two per page."""

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


def test_a_long_drain_hides_no_refusal_and_old_pages_are_not_read() -> None:
    scaling = Scaling()
    groups = AwsGroups(AwsCalls("us-east-1", lambda _: scaling))
    found = groups.activities(["chat"], NOW - timedelta(minutes=10))
    assert [(one.id, one.kind) for one in found] == [("3", ActivityKind.NO_CAPACITY), ("2", ActivityKind.IN_PROGRESS)]
    assert scaling.pages_read == 2


class Shifting(Scaling):
    """A new activity between two requests moves the last item of a page to the next page."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = [_line(n, n, "Successful", f"Terminating EC2 instance: i-0123456789abcde{n:02}") for n in (1, 2)]
        for line in self.lines:
            line["Cause"] = "taken out of service in response to an ELB system health check failure"

    def paginate(self, **_: Any) -> Iterator[Mapping[str, Any]]:
        yield {"Activities": self.lines}
        yield {"Activities": self.lines[1:]}


def test_an_activity_on_two_pages_counts_once() -> None:
    found = AwsGroups(AwsCalls("us-east-1", lambda _: Shifting())).activities(["chat"], NOW - timedelta(minutes=10))
    assert [(one.id, one.kind) for one in found] == [("2", ActivityKind.UNHEALTHY), ("1", ActivityKind.UNHEALTHY)]
