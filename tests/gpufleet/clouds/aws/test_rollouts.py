"""Detection of instance refreshes: groups are described in batches; refreshes are listed only where necessary."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import AwsGroups
from gpufleet.clouds.aws.rollouts import healthy_percentages


def member(version: str = "3", state: str = "InService") -> dict[str, Any]:
    template = {"LaunchTemplateId": "lt-1", "Version": version}
    return {"InstanceId": "i-1", "LifecycleState": state, "LaunchTemplate": template}


def group(name: str, members: Sequence[Mapping[str, Any]], version: str = "3", mixed: bool = True) -> dict[str, Any]:
    spec = {"LaunchTemplateId": "lt-1", "Version": version}
    wanted = {"MixedInstancesPolicy": {"LaunchTemplate": {"LaunchTemplateSpecification": spec}}}
    return {
        "AutoScalingGroupName": name,
        "Instances": list(members),
        **(wanted if mixed else {"LaunchTemplate": spec}),
    }


class Scaling:
    """The required part of the API. All groups have a refresh in progress."""

    def __init__(self, groups: Sequence[Mapping[str, Any]]) -> None:
        self.groups = {raw["AutoScalingGroupName"]: raw for raw in groups}
        self.asked: list[str] = []

    def get_paginator(self, operation: str) -> "Scaling":
        assert operation == "describe_auto_scaling_groups"
        return self

    def paginate(
        self,
        *,
        AutoScalingGroupNames: Sequence[str],  # noqa: N803
        PaginationConfig: Mapping[str, int],  # noqa: N803
    ) -> Iterator[Mapping[str, Any]]:
        assert len(AutoScalingGroupNames) <= PaginationConfig["PageSize"] <= 100
        yield {"AutoScalingGroups": [self.groups[name] for name in AutoScalingGroupNames if name in self.groups]}

    def describe_instance_refreshes(self, *, AutoScalingGroupName: str) -> Mapping[str, Any]:  # noqa: N803
        self.asked.append(AutoScalingGroupName)
        return {"InstanceRefreshes": [{"Status": "InProgress"}]}


def seen(found: Mapping[str, Any], *, required: Sequence[str] = ()) -> bool:
    scaling = Scaling([found])
    return AwsGroups(AwsCalls("us-east-1", lambda _: scaling)).in_rollout(["g"], required) == {"g"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(group("g", [member(), member()]), False, id="at rest"),
        pytest.param(group("g", [member(), member()], mixed=False), False, id="at rest, one template"),
        pytest.param(group("g", [member(), member()], "$Latest"), False, id="at rest, the newest template"),
        pytest.param(group("g", []), False, id="empty"),
        pytest.param(group("g", [member(), member("4")], "4"), True, id="members of two templates"),
        pytest.param(group("g", [member(), member("4")], "$Latest"), True, id="two, the newest wanted"),
        pytest.param(group("g", [member(), member()], "4"), True, id="all of an older template"),
        pytest.param(group("g", [member(), member(state="Pending")]), True, id="one comes"),
        pytest.param(group("g", [member(), member(state="Terminating:Wait")]), True, id="one goes"),
        pytest.param(group("another", []), True, id="not described"),
    ],
)
def test_refreshes_are_listed_only_for_changing_groups(found: Mapping[str, Any], expected: bool) -> None:
    assert seen(found) is expected


def test_refreshes_of_required_groups_are_listed() -> None:
    assert seen(group("g", [member()]), required=["g"])


def test_hundreds_of_stable_groups_need_three_calls() -> None:
    names = [f"g{n}" for n in range(250)]
    scaling = Scaling([group(name, [member()]) for name in names])
    calls = AwsCalls("us-east-1", lambda _: scaling)
    assert AwsGroups(calls).in_rollout(names, ["g7"]) == {"g7"}
    assert (calls.counts, scaling.asked) == (
        {"autoscaling:describe_auto_scaling_groups": 3, "autoscaling:describe_instance_refreshes": 1},
        ["g7"],
    )


@pytest.mark.parametrize("desired", [1, 2, 3, 7, 10, 15, 33, 100])
@pytest.mark.parametrize("launch_first", [True, False], ids=["replacement first", "old one first"])
def test_a_refresh_replaces_one_instance_at_a_time(desired: int, launch_first: bool) -> None:
    percent = healthy_percentages(desired, launch_first=launch_first)
    in_service = math.ceil(desired * percent["MinHealthyPercentage"] / 100)
    at_most = max(desired + launch_first, desired * percent["MaxHealthyPercentage"] // 100)
    assert (in_service, at_most) == ((desired, desired + 1) if launch_first else (desired - 1, desired))
