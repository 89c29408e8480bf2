"""What an Auto Scaling group does not do for now, and which of its instances count."""

from collections.abc import Mapping
from typing import Any

import pytest

from clouds.aws.calls import AwsCalls
from clouds.aws.groups import AwsGroups
from clouds.aws.rollouts import AwsRollouts
from gpufleet.domain.model import Group

TEMPLATE = {"LaunchTemplateId": "lt-1", "Version": "1"}


class Scaling:
    """One group, and what was asked of it."""

    def __init__(self, **group: Any) -> None:
        self.group = {
            "AutoScalingGroupName": "chat", "DesiredCapacity": 1, "MinSize": 0, "MaxSize": 4, "Tags": [],
            "AvailabilityZones": ["us-east-1a"], "LaunchTemplate": TEMPLATE, **group,
        }  # fmt: skip
        self.resumed: list[Mapping[str, Any]] = []

    def get_paginator(self, operation: str) -> "Scaling":
        assert operation == "describe_auto_scaling_groups"
        return self

    def paginate(self, **_: Any) -> list[Mapping[str, Any]]:
        return [{"AutoScalingGroups": [self.group]}]

    def describe_auto_scaling_groups(self, **_: Any) -> Mapping[str, Any]:
        return {"AutoScalingGroups": [self.group]}

    def resume_processes(self, **arguments: Any) -> Mapping[str, Any]:
        self.resumed.append(arguments)
        return {}


def read(scaling: Scaling) -> Group:
    (group,) = AwsGroups(AwsCalls("us-east-1", lambda _: scaling)).groups(["chat"])
    return group


@pytest.mark.parametrize(
    ("reason", "by_cloud"),
    [
        pytest.param("User suspended at 2026-02-26T18:56:36Z", False, id="a user"),
        pytest.param("user suspended at 2026-02-26T18:56:36Z", False, id="a user, in other letters"),
        pytest.param("Suspended by Auto Scaling: launches failed for over 24 hours", True, id="in AWS's words"),
        pytest.param("", False, id="nobody says who: not ours to resume"),
    ],
)
def test_who_suspended_a_process(reason: str, by_cloud: bool) -> None:
    rows = [{"ProcessName": "Launch", "SuspensionReason": reason}, {"ProcessName": "AZRebalance"}]
    (found,) = read(Scaling(SuspendedProcesses=rows)).suspended
    assert (found.process, found.reason, found.by_cloud) == ("Launch", reason, by_cloud)


def test_processes_are_resumed() -> None:
    scaling = Scaling()
    AwsGroups(AwsCalls("us-east-1", lambda _: scaling)).resume_processes("chat", {"Launch", "HealthCheck"})
    assert scaling.resumed == [{"AutoScalingGroupName": "chat", "ScalingProcesses": ["HealthCheck", "Launch"]}]


@pytest.mark.parametrize(
    ("state", "counts", "leaves"),
    [
        ("Pending:Wait", True, False),
        ("InService", True, False),
        ("EnteringStandby", True, False),
        ("Terminating:Wait", False, True),
        ("Terminated", False, True),
        ("Terminating:Retained", False, False),
    ],
)
def test_which_instances_count_and_which_leave(state: str, counts: bool, leaves: bool) -> None:
    member = {"InstanceId": "i-1", "LifecycleState": state, "LaunchTemplate": TEMPLATE}
    scaling = Scaling(Instances=[member])
    group = read(scaling)
    assert (group.instance_ids, group.leaving) == (("i-1",) if counts else (), {"i-1"} if leaves else set())
    version = AwsRollouts(AwsCalls("us-east-1", lambda _: scaling)).version("chat")
    assert version.current == (("i-1",) if counts else ())
