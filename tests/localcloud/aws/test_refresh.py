"""Instance refresh of the embedded cloud, with a real boto3 client and the real process."""

from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.fixtures.clouds.aws_clockwork import clockwork
from tests.fixtures.clouds.emulator import RunningCloud, make_group, make_template, wait_for


def _status(cloud: RunningCloud, name: str) -> str:
    found = cloud.client("autoscaling").describe_instance_refreshes(AutoScalingGroupName=name)["InstanceRefreshes"]
    return found[0]["Status"]


@pytest.mark.slow
@pytest.mark.parametrize("launch_first", [True, False], ids=["replacement first", "old one first"])
def test_refresh_replaces_one_instance_at_a_time(cloud: RunningCloud, launch_first: bool) -> None:
    name = f"refresh-{launch_first}".lower()
    template = make_template(cloud, name)
    make_group(cloud, name, template, size=2)
    wait_for("two in service", lambda: len(cloud.in_service(name)) == 2)
    before = {member["InstanceId"] for member in cloud.in_service(name)}
    scaling, fewest = cloud.client("autoscaling"), 2

    preferences = {"MinHealthyPercentage": 50, "InstanceWarmup": 0}
    if launch_first:
        preferences |= {"MinHealthyPercentage": 100, "MaxHealthyPercentage": 150}
    scaling.start_instance_refresh(AutoScalingGroupName=name, Preferences=preferences)
    with pytest.raises(ClientError, match="InstanceRefreshInProgress"):
        scaling.start_instance_refresh(AutoScalingGroupName=name)

    def done() -> bool:
        nonlocal fewest
        fewest = min(fewest, len(cloud.in_service(name)))
        return _status(cloud, name) == "Successful"

    wait_for("the refresh to end", done, limit_s=180)
    after = {member["InstanceId"] for member in cloud.in_service(name)}
    assert len(after) == 2
    assert not before & after
    assert fewest == (2 if launch_first else 1)


def test_cancel_without_a_refresh_is_refused(cloud: RunningCloud) -> None:
    make_group(cloud, "no-refresh", make_template(cloud, "no-refresh"), size=0)
    with pytest.raises(ClientError, match="ActiveInstanceRefreshNotFound"):
        cloud.client("autoscaling").cancel_instance_refresh(AutoScalingGroupName="no-refresh")


@pytest.mark.slow
def test_refresh_without_a_healthy_minimum_replaces_all_at_once(cloud: RunningCloud) -> None:
    make_group(cloud, "careless", make_template(cloud, "careless"), size=3)
    wait_for("three in service", lambda: len(cloud.in_service("careless")) == 3)
    preferences = {"MinHealthyPercentage": 0, "MaxHealthyPercentage": 100, "InstanceWarmup": 0}
    cloud.client("autoscaling").start_instance_refresh(AutoScalingGroupName="careless", Preferences=preferences)
    wait_for("no instance in service", lambda: not cloud.in_service("careless"))


def test_refresh_of_an_on_demand_group_launches_no_spot_instance(tmp_path: Path) -> None:
    with clockwork(tmp_path) as cloud:
        cloud.group("on-demand", size=2, mixed=True)
        cloud.run(60)
        cloud.scaling.start_instance_refresh(
            AutoScalingGroupName="on-demand",
            Preferences={"MinHealthyPercentage": 100, "MaxHealthyPercentage": 150, "InstanceWarmup": 0},
        )
        seen: set[str] = set()
        while len(seen) < 3:
            cloud.run(5)
            seen |= {key for key, _ in cloud.members("on-demand")}
        assert not [key for key in seen if cloud.instance(key).get("InstanceLifecycle") == "spot"]
