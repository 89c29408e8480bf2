"""Suspended processes of Auto Scaling groups, counted instances, and malformed responses."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import AwsGroups
from gpufleet.clouds.aws.rollouts import AwsRollouts
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import Group

TEMPLATE = {"LaunchTemplateId": "lt-1", "Version": "1"}


class Scaling:
    """An API with one group. It records resumed processes."""

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
        pytest.param("Suspended by Auto Scaling: launches failed for over 24 hours", True, id="as AWS writes it"),
        pytest.param("", False, id="no user is stated: not ours to resume"),
    ],
)
def test_suspensions_by_users_and_by_aws_are_distinguished(reason: str, by_cloud: bool) -> None:
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
def test_lifecycle_states_decide_which_instances_count(state: str, counts: bool, leaves: bool) -> None:
    member = {"InstanceId": "i-1", "LifecycleState": state, "LaunchTemplate": TEMPLATE}
    scaling = Scaling(Instances=[member])
    group = read(scaling)
    assert (group.instance_ids, group.leaving) == (("i-1",) if counts else (), {"i-1"} if leaves else set())
    version = AwsRollouts(AwsCalls("us-east-1", lambda _: scaling)).version("chat")
    assert version.current == (("i-1",) if counts else ())


@pytest.mark.parametrize(
    ("template", "outdated"),
    [({"Version": "7"}, ()), ({"Version": "6"}, ("i-1",)), ({"LaunchTemplateId": "lt-before"}, ("i-1",))],
    ids=["the group's", "older version", "same version of another template"],
)
def test_instances_of_another_template_or_version_are_outdated(
    template: Mapping[str, str], outdated: tuple[str, ...]
) -> None:
    wanted = {"LaunchTemplateId": "lt-1", "Version": "7"}
    member = {"InstanceId": "i-1", "LifecycleState": "InService", "LaunchTemplate": {**wanted, **template}}
    scaling = Scaling(Instances=[member], LaunchTemplate=wanted)
    assert AwsRollouts(AwsCalls("us-east-1", lambda _: scaling)).version("chat").outdated == outdated


class Answers:
    """Returns pages by operation."""

    def __init__(self, **pages: Any) -> None:
        self._pages: Mapping[str, Any] = pages
        self._operation = ""

    def get_paginator(self, operation: str) -> "Answers":
        found = Answers(**self._pages)
        found._operation = operation
        return found

    def paginate(self, **asked: Any) -> list[Mapping[str, Any]]:
        found: Any = self._pages[self._operation]
        if isinstance(found, list):
            return cast(list[Mapping[str, Any]], found)
        return found(asked)

    def describe_instance_refreshes(self, **_: Any) -> Mapping[str, Any]:
        return self._pages["describe_instance_refreshes"]


def groups_of(**pages: Any) -> AwsGroups:
    return AwsGroups(AwsCalls("us-east-1", lambda _: Answers(**pages)))


WHOLE = Scaling().group
MALFORMED = {
    "no size": {key: value for key, value in WHOLE.items() if key != "DesiredCapacity"},
    "a member without a state": {**WHOLE, "Instances": [{"InstanceId": "i-1"}]},
    "members of another kind": {**WHOLE, "Instances": ["i-1"]},
    "no zones": {**WHOLE, "AvailabilityZones": None},
    "a tag without a value": {**WHOLE, "Tags": [{"Key": "gpu-fleet:pool"}]},
    "a suspension without a name": {**WHOLE, "SuspendedProcesses": [{}]},
}


@pytest.mark.parametrize("odd", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_group_does_not_affect_others(odd: Mapping[str, Any]) -> None:
    other = {**WHOLE, "AutoScalingGroupName": "code"}
    groups = groups_of(
        describe_auto_scaling_groups=[{"AutoScalingGroups": [odd, other]}],
        describe_instance_refreshes={"InstanceRefreshes": []},
    )
    found = groups.readable(["chat", "code"])
    assert list(found.groups) == ["code"]
    assert list(found.errors) == ["chat"] and "chat cannot be read" in found.errors["chat"]
    with pytest.raises(CloudError, match="chat cannot be read"):
        groups.groups(["chat", "code"])
    assert groups.in_rollout(["chat", "code"]) == frozenset(), "whoever cannot be read is asked"


def test_unreadable_refreshes_are_an_error() -> None:
    groups = groups_of(
        describe_auto_scaling_groups=[{"AutoScalingGroups": []}],
        describe_instance_refreshes={"InstanceRefreshes": [{}]},
    )
    with pytest.raises(CloudError, match="the refreshes of chat cannot be read"):
        groups.in_rollout(["chat"])


NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
REFUSED = {
    "ActivityId": "1", "AutoScalingGroupName": "chat", "Description": "Launching a new EC2 instance", "Cause": "",
    "StatusCode": "Failed", "StatusMessage": "Insufficient capacity.", "StartTime": NOW, "EndTime": NOW,
}  # fmt: skip


@pytest.mark.parametrize("lacks", ["ActivityId", "StartTime", "StatusCode", "AutoScalingGroupName"])
def test_a_malformed_activity_affects_only_its_group(lacks: str) -> None:
    odd = {key: value for key, value in REFUSED.items() if key != lacks}

    def pages(asked: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [{"Activities": [odd if asked["AutoScalingGroupName"] == "chat" else REFUSED]}]

    groups = groups_of(describe_scaling_activities=pages)
    with pytest.raises(CloudError, match="an activity of chat cannot be read"):
        groups.activities(["chat"], NOW - timedelta(hours=1))
    assert len(groups.activities(["code"], NOW - timedelta(hours=1))) == 1
