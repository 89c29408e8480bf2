"""Auto Scaling groups of the embedded cloud, with a real boto3 client and the real process."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import AwsGroups
from gpufleet.clouds.aws.instance_history import AwsInstanceHistory
from gpufleet.domain.activity import CloudError
from tests.fixtures.clouds.emulator import RunningCloud, make_group, make_template, wait_for


def _wait_in_service(cloud: RunningCloud, name: str, count: int) -> list[dict[str, Any]]:
    wait_for(f"{count} in service in {name}", lambda: len(cloud.in_service(name)) == count)
    return cloud.in_service(name)


def _reserve(cloud: RunningCloud, zone: str, count: int, **more: Any) -> str:
    """Create a reservation of `count` machines. Returns its id."""
    made = cloud.client("ec2").create_capacity_reservation(
        InstanceType="g6.xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone=zone, InstanceCount=count, **more
    )
    return made["CapacityReservation"]["CapacityReservationId"]


def test_spot_group_spreads_over_its_zones_and_is_marked_as_spot(cloud: RunningCloud) -> None:
    make_group(cloud, "spread", make_template(cloud, "spread"), size=2, spot=True)
    members = _wait_in_service(cloud, "spread", 2)
    assert {member["AvailabilityZone"] for member in members} == {"us-east-1a", "us-east-1b"}
    found = cloud.instances("spread")
    assert [one["InstanceLifecycle"] for one in found] == ["spot", "spot"]
    assert [one["InstanceType"] for one in found] == ["g6.xlarge", "g6.xlarge"]
    addresses = {one["PrivateIpAddress"] for one in found}
    assert len(addresses) == 2
    for one in found:
        number = 1 if one["Placement"]["AvailabilityZone"] == "us-east-1a" else 2
        assert one["PrivateIpAddress"].startswith(f"{cloud.places.network}.{number}.")
        tags = {tag["Key"]: tag["Value"] for tag in one["Tags"]}
        assert tags["gpu-fleet:pool"] == "spread"
        assert "not-for-instances" not in tags
    done = cloud.activities("spread")
    assert [one["StatusCode"] for one in done] == ["Successful", "Successful"]
    # each activity names the whole step
    assert all(one["Cause"].endswith("increasing the capacity from 0 to 2.") for one in done)
    with pytest.raises(ClientError, match="UnsupportedOperation.*one-time Spot Instance request"):
        cloud.client("ec2").stop_instances(InstanceIds=[found[0]["InstanceId"]])


def test_on_demand_group_is_not_spot(cloud: RunningCloud) -> None:
    make_group(cloud, "plain", make_template(cloud, "plain"), size=1)
    _wait_in_service(cloud, "plain", 1)
    assert "InstanceLifecycle" not in cloud.instances("plain")[0]


def test_next_machine_type_is_tried_when_one_has_no_capacity(cloud: RunningCloud) -> None:
    wanted = {"zone": "us-east-1a", "type": "g6.xlarge", "kind": "spot", "count": 0}
    assert cloud.control("POST", "capacity", wanted)[0] == 200
    make_group(cloud, "second", make_template(cloud, "second"), size=1, spot=True, zones="a")
    _wait_in_service(cloud, "second", 1)
    assert cloud.instances("second")[0]["InstanceType"] == "g5.xlarge"


def _failed(cloud: RunningCloud, name: str) -> list[dict[str, Any]]:
    """The failed launches of a group. A launch in progress may still fail."""
    return [activity for activity in cloud.activities(name) if activity["StatusCode"] == "Failed"]


@pytest.mark.parametrize(
    ("spot", "limit", "message"),
    [
        pytest.param(
            True,
            {"zone": "us-east-1a", "type": "g6.xlarge", "kind": "spot", "count": 0},
            "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your request"
            " configuration. Please adjust your request and try again. Launching EC2 instance failed.",
            id="no spot capacity",
        ),
        pytest.param(
            False,
            {"zone": "us-east-1a", "type": "g6.xlarge", "kind": "on-demand", "count": 0},
            "We currently do not have sufficient g6.xlarge capacity in the Availability Zone you requested"
            " (us-east-1a).",
            id="no on-demand capacity",
        ),
        pytest.param(
            False,
            {"kind": "on-demand", "vcpus": 2},
            "You have requested more vCPU capacity than your current vCPU limit of 2 allows",
            id="over quota",
        ),
    ],
)
def test_failed_launch_is_an_activity_with_the_cause(
    cloud: RunningCloud, spot: bool, limit: dict[str, Any], message: str, request: pytest.FixtureRequest
) -> None:
    name = f"fails-{request.node.callspec.id.replace(' ', '-')}"
    cloud.control("POST", "capacity", limit)
    template = make_template(cloud, name)
    make_group(cloud, name, template, size=1, spot=spot, zones="a", types=("g6.xlarge",))
    wait_for("a failed activity", lambda: _failed(cloud, name))
    failed = _failed(cloud, name)[-1]
    assert failed["StatusMessage"].startswith(message)
    assert cloud.group(name)["DesiredCapacity"] == 1, "the desired size stays"
    assert cloud.group(name)["Instances"] == []
    cloud.control("POST", "restore", {})
    _wait_in_service(cloud, name, 1)


@pytest.mark.parametrize(
    ("desired", "message"), [pytest.param(5, "above max value 4", id="high"), pytest.param(0, "below min", id="low")]
)
def test_size_outside_the_limits_is_refused(cloud: RunningCloud, desired: int, message: str) -> None:
    name = f"limits-{desired}"
    make_group(cloud, name, make_template(cloud, name), size=1, MinSize=1)
    with pytest.raises(ClientError, match=message):
        cloud.client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=desired)


def test_update_of_limits_keeps_the_mixed_instances_policy(cloud: RunningCloud) -> None:
    make_group(cloud, "update", make_template(cloud, "update"), size=0, spot=True)
    cloud.client("autoscaling").update_auto_scaling_group(AutoScalingGroupName="update", MinSize=2, MaxSize=3)
    found = cloud.group("update")
    assert (found["DesiredCapacity"], found["MinSize"], found["MaxSize"]) == (2, 2, 3)
    assert len(found["MixedInstancesPolicy"]["LaunchTemplate"]["Overrides"]) == 2
    _wait_in_service(cloud, "update", 2)
    assert {one["InstanceLifecycle"] for one in cloud.instances("update")} == {"spot"}


def test_suspended_processes_prevent_changes_of_the_group(cloud: RunningCloud) -> None:
    scaling = cloud.client("autoscaling")
    make_group(cloud, "still", make_template(cloud, "still"), size=1)
    _wait_in_service(cloud, "still", 1)
    scaling.suspend_processes(AutoScalingGroupName="still", ScalingProcesses=["Launch", "Terminate"])
    scaling.set_desired_capacity(AutoScalingGroupName="still", DesiredCapacity=2)
    make_group(cloud, "other", make_template(cloud, "other"), size=1)
    # the loop has processed both groups as soon as the other one is complete
    _wait_in_service(cloud, "other", 1)
    assert len(cloud.group("still")["Instances"]) == 1
    scaling.set_desired_capacity(AutoScalingGroupName="still", DesiredCapacity=0)
    scaling.set_desired_capacity(AutoScalingGroupName="other", DesiredCapacity=2)
    _wait_in_service(cloud, "other", 2)
    assert len(cloud.in_service("still")) == 1
    scaling.resume_processes(AutoScalingGroupName="still", ScalingProcesses=["Terminate"])
    wait_for("the group to shrink", lambda: not cloud.group("still")["Instances"])


def test_termination_with_decrement_waits_for_the_hook(cloud: RunningCloud) -> None:
    scaling = cloud.client("autoscaling")
    hook = {
        "LifecycleHookName": "drain",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
        "HeartbeatTimeout": 600,
        "DefaultResult": "CONTINUE",
    }
    make_group(cloud, "hook", make_template(cloud, "hook"), size=2, LifecycleHookSpecificationList=[hook])
    chosen = _wait_in_service(cloud, "hook", 2)[0]["InstanceId"]
    named = {"AutoScalingGroupName": "hook", "LifecycleHookName": "drain", "InstanceId": chosen}
    with pytest.raises(ClientError, match="No active Lifecycle Action"):
        scaling.record_lifecycle_action_heartbeat(**named)
    done = scaling.terminate_instance_in_auto_scaling_group(InstanceId=chosen, ShouldDecrementDesiredCapacity=True)
    assert done["Activity"]["Cause"].endswith("shrinking the capacity from 2 to 1.")
    found = cloud.group("hook")
    assert found["DesiredCapacity"] == 1
    states = {one["InstanceId"]: one["LifecycleState"] for one in found["Instances"]}
    assert states[chosen] == "Terminating:Wait"
    assert {one["InstanceId"]: one["State"]["Name"] for one in cloud.instances("hook")}[chosen] == "running"
    (seen,) = AwsGroups(AwsCalls("us-east-1", cloud.client)).groups(["hook"])
    assert (seen.leaving, len(seen.instance_ids)) == ({chosen}, 1)
    assert chosen not in seen.instance_ids
    scaling.record_lifecycle_action_heartbeat(**named)
    scaling.complete_lifecycle_action(**named, LifecycleActionResult="CONTINUE")
    wait_for("the instance to leave", lambda: len(cloud.group("hook")["Instances"]) == 1)
    assert len(cloud.in_service("hook")) == 1, "it is not replaced"


def test_hook_ends_after_its_timeout(cloud: RunningCloud) -> None:
    scaling = cloud.client("autoscaling")
    make_group(cloud, "timeout", make_template(cloud, "timeout"), size=1)
    scaling.put_lifecycle_hook(
        AutoScalingGroupName="timeout",
        LifecycleHookName="drain",
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=1,
        DefaultResult="CONTINUE",
    )
    _wait_in_service(cloud, "timeout", 1)
    scaling.set_desired_capacity(AutoScalingGroupName="timeout", DesiredCapacity=0)
    wait_for("the end of the instance", lambda: not cloud.group("timeout")["Instances"])
    assert cloud.activities("timeout")[0]["StatusCode"] == "Successful"


def test_instance_terminated_through_ec2_is_replaced(cloud: RunningCloud) -> None:
    make_group(cloud, "replace", make_template(cloud, "replace"), size=1)
    first = _wait_in_service(cloud, "replace", 1)[0]["InstanceId"]
    address = cloud.instances("replace")[0]["PrivateIpAddress"]
    ended = cloud.client("ec2").terminate_instances(InstanceIds=[first])["TerminatingInstances"][0]
    assert ended["CurrentState"]["Name"] == "shutting-down"
    wait_for("a replacement", lambda: {one["InstanceId"] for one in cloud.in_service("replace")} - {first})
    found = {one["InstanceId"]: one for one in cloud.instances("replace")}
    assert found[first]["State"]["Name"] == "terminated"
    assert "PrivateIpAddress" not in found[first], "a terminated instance has no address"
    assert [one["PrivateIpAddress"] == address for one in found.values() if "PrivateIpAddress" in one] == [False], (
        "the address of a terminated instance is not reused at once"
    )


def test_decrement_below_min_is_refused(cloud: RunningCloud) -> None:
    make_group(cloud, "floor", make_template(cloud, "floor"), size=1, MinSize=1)
    only = _wait_in_service(cloud, "floor", 1)[0]["InstanceId"]
    with pytest.raises(ClientError, match="desiredSize equals minSize"):
        cloud.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=only, ShouldDecrementDesiredCapacity=True
        )


def test_group_with_instances_is_deleted_only_with_force(cloud: RunningCloud) -> None:
    scaling = cloud.client("autoscaling")
    make_group(cloud, "delete", make_template(cloud, "delete"), size=1)
    _wait_in_service(cloud, "delete", 1)
    with pytest.raises(ClientError, match="ResourceInUse"):
        scaling.delete_auto_scaling_group(AutoScalingGroupName="delete")
    scaling.delete_auto_scaling_group(AutoScalingGroupName="delete", ForceDelete=True)
    assert cloud.group("delete")["Status"] == "Delete in progress"
    wait_for(
        "the group to go",
        lambda: not scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["delete"])["AutoScalingGroups"],
    )
    assert {one["State"]["Name"] for one in cloud.instances("delete")} == {"terminated"}


def test_reserved_group_launches_only_within_its_reservation(cloud: RunningCloud) -> None:
    ec2 = cloud.client("ec2")
    made = _reserve(cloud, "us-east-1a", 1, InstanceMatchCriteria="targeted")
    target = {"CapacityReservationTarget": {"CapacityReservationId": made}}
    template = make_template(cloud, "reserved", CapacityReservationSpecification=target)
    make_group(cloud, "reserved", template, size=2, zones="a")
    wait_for("one to fail", lambda: any(one["StatusCode"] == "Failed" for one in cloud.activities("reserved")))
    _wait_in_service(cloud, "reserved", 1)
    assert cloud.instances("reserved")[0]["CapacityReservationId"] == made
    shown = ec2.describe_capacity_reservations(CapacityReservationIds=[made])["CapacityReservations"][0]
    assert (shown["TotalInstanceCount"], shown["AvailableInstanceCount"]) == (1, 0)
    assert [row["capacity_type"] for row in cloud.control("GET", "billing-log")[1] if row["group"] == "reserved"] == [
        "reserved"
    ]
    ec2.modify_capacity_reservation(CapacityReservationId=made, InstanceCount=2)
    _wait_in_service(cloud, "reserved", 2)
    ec2.cancel_capacity_reservation(CapacityReservationId=made)
    (shown,) = ec2.describe_capacity_reservations(CapacityReservationIds=[made])["CapacityReservations"]
    assert shown["State"] == "cancelled"


def test_cancelled_reservation_is_no_longer_paid_although_ec2_lists_it(cloud: RunningCloud) -> None:
    ends = datetime(2099, 1, 1, tzinfo=UTC)
    made = _reserve(cloud, "us-east-1b", 3, EndDateType="limited", EndDate=ends)
    history = AwsInstanceHistory(AwsCalls("us-east-1", cloud.client), "us-east-1", "test")

    def paid() -> list[tuple[int, datetime | None]]:
        return [(one.instances, one.ends_at) for one in history.paid() if one.reservation == made]

    assert paid() == [(3, ends)]
    cloud.client("ec2").cancel_capacity_reservation(CapacityReservationId=made)
    assert paid() == []


def test_reservation_expires_at_its_end_date(cloud: RunningCloud) -> None:
    ec2 = cloud.client("ec2")
    ends = datetime.now(UTC) + timedelta(seconds=2)
    made = _reserve(cloud, "us-east-1b", 1, EndDateType="limited", EndDate=ends)

    def state() -> str:
        (shown,) = ec2.describe_capacity_reservations(CapacityReservationIds=[made])["CapacityReservations"]
        return shown["State"]

    wait_for("its end", lambda: state() == "expired")


EFA: dict[str, Any] = {"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "efa"}
ONLY = {"DeviceIndex": 1, "NetworkCardIndex": 1, "InterfaceType": "efa-only"}


@pytest.mark.parametrize(
    ("machine_type", "interfaces", "group", "message"),
    [
        pytest.param("g6.xlarge", [EFA], {}, "EFA interfaces are not supported on g6.xlarge", id="no EFA"),
        pytest.param("g6.8xlarge", [EFA, ONLY], {}, "Interface count 2 exceeds the limit for g6.8xlarge", id="cards"),
        pytest.param("g6.8xlarge", [EFA], {"PlacementGroup": "nowhere"}, "'nowhere' is unknown", id="placement"),
    ],
)
def test_launch_that_ec2_refuses_is_refused(
    cloud: RunningCloud, machine_type: str, interfaces: list[Any], group: dict[str, Any], message: str
) -> None:
    name = f"efa-{machine_type}-{len(interfaces)}-{len(group)}"
    template = make_template(cloud, name, InstanceType=machine_type, NetworkInterfaces=interfaces)
    make_group(cloud, name, template, size=1, zones="a", **group)
    failed = wait_for("a failed activity", lambda: _failed(cloud, name))[-1]
    assert message in failed["StatusMessage"]
    assert cloud.group(name)["Instances"] == []


def test_placement_group_with_instances_cannot_be_deleted(cloud: RunningCloud) -> None:
    ec2 = cloud.client("ec2")
    ec2.create_placement_group(GroupName="near", Strategy="cluster")
    with pytest.raises(ClientError, match="Duplicate"):
        ec2.create_placement_group(GroupName="near", Strategy="cluster")
    template = make_template(cloud, "near", InstanceType="g6.8xlarge", NetworkInterfaces=[EFA])
    make_group(cloud, "near", template, size=1, zones="a", PlacementGroup="near")
    _wait_in_service(cloud, "near", 1)
    with pytest.raises(ClientError, match="InUse"):
        ec2.delete_placement_group(GroupName="near")
    cloud.client("autoscaling").set_desired_capacity(AutoScalingGroupName="near", DesiredCapacity=0)
    wait_for("the instance to go", lambda: {i["State"]["Name"] for i in cloud.instances("near")} == {"terminated"})
    ec2.delete_placement_group(GroupName="near")
    with pytest.raises(ClientError, match="Unknown"):
        ec2.describe_placement_groups(GroupNames=["near"])


def test_accounts_that_use_a_reservation_are_reported(cloud: RunningCloud) -> None:
    made = _reserve(cloud, "us-east-1a", 5)
    history = AwsInstanceHistory(AwsCalls("us-east-1", cloud.client), "us-east-1", "test")
    own = cloud.client("sts").get_caller_identity()["Account"]
    assert history.used_by(made) == {own: 0}
    for account, count in (("222222222222", 2), ("333333333333", 1)):
        use = {"reservation": made, "account": account, "instances": count}
        assert cloud.control("POST", "reservation", use)[0] == 200
    assert history.used_by(made) == {own: 0, "222222222222": 2, "333333333333": 1}
    (paid,) = [one for one in history.paid() if one.reservation == made]
    assert (paid.instances, paid.available) == (5, 2)
    page = cloud.client("ec2").get_capacity_reservation_usage(CapacityReservationId=made, MaxResults=2)
    assert [one["AccountId"] for one in page["InstanceUsages"]] == [own, "222222222222"]
    rest = {"CapacityReservationId": made, "NextToken": page["NextToken"], "MaxResults": 2}
    last = cloud.client("ec2").get_capacity_reservation_usage(**rest)
    assert [one["UsedInstanceCount"] for one in last["InstanceUsages"]] == [1]
    assert last.get("NextToken") is None
    too_many = {"reservation": made, "account": "222222222222", "instances": 6}
    assert cloud.control("POST", "reservation", too_many)[0] == 400
    with pytest.raises(CloudError, match="does not exist"):
        history.used_by("cr-0123456789abcdef0")
