"""The history of instances in the embedded AWS, compared with recorded responses of the real one.

Sources of each message: docs/cloud-answers.md. Identifiers, tokens and times are replaced before the comparison.
"""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError
from localcloud.aws import refusals

from gpufleet.toolchain.folders import ROOT
from tests.fixtures.clouds.aws_clockwork import Clockwork, clockwork, hook

RECORDED = ROOT / "tests" / "recorded"
READY = hook("LAUNCHING")
DRAIN = hook("TERMINATING", heartbeat_s=150)
SPOT_TAKEN = "Server.SpotInstanceTermination: Spot instance termination"
BY_PERSON = "Client.UserInitiatedShutdown: User initiated shutdown"
BY_ITSELF = "Client.InstanceInitiatedShutdown: Instance initiated shutdown"

STARTED = (
    "At TIME an instance was started in response to a difference between desired and actual capacity, increasing the"
    " capacity from {} to {}."
)
CREATED = "At TIME a user request created an AutoScalingGroup changing the desired capacity from 0 to {}.  "
LAUNCH_FAILURE = "At TIME an instance was taken out of service in response to a launch failure."
EC2_CHECK = (
    "At TIME an instance was taken out of service in response to an EC2 health check indicating it has been"
    " terminated"
    " or stopped."
)
USER_CHECK = "At TIME an instance was taken out of service in response to a user health-check."
REPLACED = "At TIME an instance was launched in response to an unhealthy instance needing to be replaced."
DIED = "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason: {}"
ABANDONED = "Instance failed to complete user's Lifecycle Action: Lifecycle Action with token TOKEN was abandoned: {}"
FIRST = CREATED.format(1) + STARTED.format(0, 1)


@pytest.fixture(scope="module", params=[1.0, 20.0], ids=["real waiting times", "a twentieth"])
def module_cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clockwork]:
    with clockwork(tmp_path_factory.mktemp("cloud"), request.param) as made:
        yield made


@pytest.fixture
def cloud(module_cloud: Clockwork) -> Iterator[Clockwork]:
    """With the real cloud's waiting times, and with all of them divided by 20: the sequences are the same."""
    yield module_cloud
    module_cloud.clear()


def activities_of(cloud: Clockwork, group: str) -> list[tuple[str, str, str]]:
    """Status, description and cause of each activity, oldest first."""
    names = dict[str, str]()

    def plain(text: str) -> str:
        for found in re.findall(r"i-[0-9a-f]{17}", text):
            names.setdefault(found, f"i-{len(names) + 1}")
        for found, name in names.items():
            text = text.replace(found, name)
        text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
        return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "TOKEN", text)

    found = sorted(cloud.activities(group), key=lambda activity: activity["StartTime"])
    return [(a["StatusCode"], plain(a["Description"]), plain(a["Cause"])) for a in found]


def only(cloud: Clockwork, group: str, state: str) -> str:
    """The id of the only member of a group, which is in this state."""
    ((found, lifecycle),) = cloud.members(group)
    assert lifecycle == state
    return found


def launched(status: str, number: int, cause: str, why: str = "") -> tuple[str, str, str]:
    reason = f".  Status Reason: {why}" if why else ""
    return status, f"Launching a new EC2 instance: i-{number}{reason}", cause


def ended(number: int, cause: str, status: str = "Successful") -> tuple[str, str, str]:
    return status, f"Terminating EC2 instance: i-{number}", cause


def test_abandoned_hook_cancels_the_launch_and_terminates_the_instance(cloud: Clockwork) -> None:
    cloud.group("g", hooks=(READY,))
    assert activities_of(cloud, "g") == [], "the group answers after a while"
    cloud.run(11)
    assert cloud.instance(only(cloud, "g", "Pending"))["State"]["Name"] == "pending"
    assert activities_of(cloud, "g") == [launched("PreInService", 1, FIRST)]
    cloud.run(9)
    first = only(cloud, "g", "Pending:Wait")
    assert activities_of(cloud, "g") == [launched("MidLifecycleAction", 1, FIRST)]
    cloud.scaling.complete_lifecycle_action(
        AutoScalingGroupName="g",
        LifecycleHookName="launching",
        InstanceId=first,
        LifecycleActionResult="ABANDON",
    )
    why = ABANDONED.format("Lifecycle Action Completed with ABANDON Result")
    assert activities_of(cloud, "g") == [
        launched("Cancelled", 1, FIRST, why),
        ended(1, LAUNCH_FAILURE, "InProgress"),
    ]
    assert cloud.activities("g")[0]["StatusMessage"].endswith("with ABANDON Result")
    assert cloud.members("g") == [(first, "Terminating")]
    cloud.run(3)
    assert activities_of(cloud, "g") == [
        launched("Cancelled", 1, FIRST, why),
        ended(1, LAUNCH_FAILURE),
        launched("PreInService", 2, STARTED.format(0, 1)),
    ]
    assert cloud.instance(first)["StateReason"]["Message"] == BY_PERSON


@pytest.mark.parametrize("result", ["CONTINUE", "ABANDON"])
def test_heartbeat_timeout_has_the_default_result_of_the_hook(cloud: Clockwork, result: str) -> None:
    cloud.group("g", hooks=(hook("LAUNCHING", result),))
    cloud.run(1780)
    first = only(cloud, "g", "Pending:Wait")
    cloud.run(60)
    if result == "CONTINUE":
        assert activities_of(cloud, "g") == [launched("Successful", 1, FIRST)]
        assert only(cloud, "g", "InService") == first
        return
    assert activities_of(cloud, "g")[:2] == [
        launched("Cancelled", 1, FIRST, ABANDONED.format("Heartbeat Timeout")),
        ended(1, LAUNCH_FAILURE),
    ]
    assert cloud.instance(first)["State"]["Name"] == "terminated"


def test_launch_of_an_instance_that_powers_off_during_boot_is_cancelled(cloud: Clockwork) -> None:
    cloud.group("g", hooks=(READY, DRAIN))
    cloud.run(20)
    first = only(cloud, "g", "Pending:Wait")
    cloud.machines.end(first)
    cloud.run(30)
    assert activities_of(cloud, "g") == [
        launched("Cancelled", 1, FIRST, DIED.format(BY_ITSELF)),
        ended(1, LAUNCH_FAILURE),
        launched("MidLifecycleAction", 2, STARTED.format(0, 1)),
    ]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        pytest.param("person", BY_PERSON, id="a person"),
        pytest.param("account", BY_PERSON, id="AWS for the account"),
        pytest.param("spot", SPOT_TAKEN, id="spot is taken"),
        pytest.param("server", "Server.InternalError: Internal error on launch", id="AWS fails"),
        pytest.param(
            "key",
            "Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state",
            id="its key is not usable",
        ),
        pytest.param("volumes", "Client.VolumeLimitExceeded: Volume limit exceeded", id="no volume"),
    ],
)
@pytest.mark.parametrize("seconds", [11, 20], ids=["Pending", "Pending:Wait"])
def test_interrupted_launch_is_cancelled_with_the_reason(
    cloud: Clockwork, how: str, reason: str, seconds: int
) -> None:
    cloud.group("g", hooks=(READY,), spot=True)
    cloud.run(seconds)
    ((first, state),) = cloud.members("g")
    assert state == ("Pending" if seconds == 11 else "Pending:Wait")
    cloud.ask("end", instance=first, how=how)
    cloud.run(10)
    assert activities_of(cloud, "g")[:2] == [
        launched("Cancelled", 1, FIRST, DIED.format(reason)),
        ended(1, LAUNCH_FAILURE),
    ]


@pytest.mark.parametrize("how", ["person", "account", "unstated", "spot", "itself"])
def test_terminated_member_is_replaced_for_every_cause(cloud: Clockwork, how: str) -> None:
    cloud.group("g", spot=True)
    cloud.run(30)
    first = only(cloud, "g", "InService")
    if how == "itself":
        cloud.machines.end(first)
    else:
        cloud.ask("end", instance=first, how=how)
    cloud.run(2)
    assert only(cloud, "g", "InService") == first, "its group does not know yet"
    cloud.run(20)
    assert activities_of(cloud, "g") == [
        launched("Successful", 1, FIRST),
        ended(1, EC2_CHECK),
        launched("Successful", 2, REPLACED),
    ]


def test_stopped_instance_is_terminated_by_its_group(cloud: Clockwork) -> None:
    cloud.group("g")
    cloud.run(30)
    first = only(cloud, "g", "InService")
    cloud.client("ec2").stop_instances(InstanceIds=[first])
    cloud.run(20)
    assert activities_of(cloud, "g")[1] == ended(1, EC2_CHECK)
    assert cloud.instance(first)["State"]["Name"] == "terminated"


def test_unhealthy_instance_is_drained_and_replaced(cloud: Clockwork) -> None:
    cloud.group("g", hooks=(DRAIN,))
    cloud.run(30)
    first = only(cloud, "g", "InService")
    cloud.scaling.set_instance_health(InstanceId=first, HealthStatus="Unhealthy")
    cloud.run(5)
    assert cloud.members("g")[0] == (first, "Terminating:Wait")
    assert activities_of(cloud, "g")[1:] == [
        ended(1, USER_CHECK, "MidLifecycleAction"),
        launched("PreInService", 2, REPLACED),
    ]
    cloud.run(160)
    assert activities_of(cloud, "g")[1:] == [ended(1, USER_CHECK), launched("Successful", 2, REPLACED)]


@pytest.mark.parametrize("lost", ["Pending", "Pending:Wait", "InService", "Terminating:Wait"])
def test_spot_is_preempted_after_its_notice_in_each_phase(cloud: Clockwork, lost: str) -> None:
    cloud.group("g", spot=True, hooks=(DRAIN,) if lost in ("InService", "Terminating:Wait") else (READY,))
    cloud.run(11 if lost == "Pending" else 30)
    if lost == "Terminating:Wait":
        cloud.scaling.set_desired_capacity(AutoScalingGroupName="g", DesiredCapacity=0)
        cloud.run(12)
    first = only(cloud, "g", lost)
    cloud.ask("preempt", instance=first, notice_s=0) if lost == "Pending" else cloud.ask("preempt", instance=first)
    if lost != "Pending":
        cloud.run(118)
        assert cloud.instance(first)["State"]["Name"] == "running", "two minutes of notice"
    cloud.run(15)
    found = cloud.instance(first)
    assert found["StateReason"] == {"Code": "Server.SpotInstanceTermination", "Message": SPOT_TAKEN}
    assert found["StateTransitionReason"] == "Server.SpotInstanceTermination", "no time"
    expected = {
        "Pending": [launched("Cancelled", 1, FIRST, DIED.format(SPOT_TAKEN)), ended(1, LAUNCH_FAILURE)],
        "Pending:Wait": [launched("Cancelled", 1, FIRST, DIED.format(SPOT_TAKEN)), ended(1, LAUNCH_FAILURE)],
        "InService": [launched("Successful", 1, FIRST), ended(1, EC2_CHECK)],
        "Terminating:Wait": [launched("Successful", 1, FIRST), ended(1, shrunk(1, 0, 1))],
    }
    assert activities_of(cloud, "g")[:2] == expected[lost]


def shrunk(before: int, after: int, number: int) -> str:
    return (
        f"At TIME a user request explicitly set group desired capacity changing the desired capacity from {before} to"
        f" {after}.  At TIME an instance was taken out of service in response to a difference between desired and"
        " actual"
        f" capacity, shrinking the capacity from {before} to {after}.  At TIME instance i-{number} was selected for"
        " termination."
    )


def test_each_activity_of_a_step_names_the_whole_step(cloud: Clockwork) -> None:
    cloud.group("g", size=0)
    cloud.scaling.update_auto_scaling_group(AutoScalingGroupName="g", DesiredCapacity=2, MaxSize=3)
    cloud.run(30)
    user = (
        "At TIME a user request update of AutoScalingGroup constraints to min: 0, max: 3, desired: 2 changing the"
        " desired capacity from 0 to 2.  "
    )
    both = [launched("Successful", number, user + STARTED.format(0, 2)) for number in (1, 2)]
    assert activities_of(cloud, "g") == both
    cloud.scaling.set_desired_capacity(AutoScalingGroupName="g", DesiredCapacity=0)
    cloud.run(30)
    assert activities_of(cloud, "g") == [*both, ended(1, shrunk(2, 0, 1)), ended(2, shrunk(2, 0, 2))]


def test_termination_through_the_group_names_the_request(cloud: Clockwork) -> None:
    cloud.group("g")
    cloud.run(30)
    first = only(cloud, "g", "InService")
    done = cloud.scaling.terminate_instance_in_auto_scaling_group(
        InstanceId=first, ShouldDecrementDesiredCapacity=True
    )
    cause = "was taken out of service in response to a user request, shrinking the capacity from 1 to 0."
    assert done["Activity"]["Cause"].endswith(f"Z instance {first} {cause}")
    assert (done["Activity"]["StatusCode"], done["Activity"].get("EndTime")) == ("InProgress", None)


def _described(cloud: Clockwork, how: str) -> dict[str, Any]:
    """The description of an instance that ended this way."""
    cloud.group("g")
    cloud.run(30)
    first = only(cloud, "g", "InService")
    cloud.ask("end", instance=first, how=how)
    cloud.run(1)
    return cloud.instance(first)


@pytest.mark.parametrize(
    ("how", "reason", "transition"),
    [
        pytest.param("person", BY_PERSON, r"User initiated \(2026-11-\d\d \d\d:\d\d:\d\d GMT\)", id="a person"),
        pytest.param("account", BY_PERSON, "User initiated", id="AWS for the account"),
        pytest.param("unstated", None, "", id="nothing is stated"),
        pytest.param("server", "Server.InternalError: Internal error on launch", "Server.InternalError", id="AWS"),
    ],
)
def test_terminated_instance_has_the_description_of_ec2(
    cloud: Clockwork, how: str, reason: str | None, transition: str
) -> None:
    found = _described(cloud, how)
    assert found["State"] == {"Code": 48, "Name": "terminated"}
    assert found.get("StateReason", {}).get("Message") == reason
    assert re.fullmatch(transition, found["StateTransitionReason"])
    assert found.get("NetworkInterfaces", []) == []
    assert not {"SubnetId", "VpcId", "PrivateIpAddress"} & set(found)
    assert {"InstanceType", "LaunchTime", "Tags"} <= set(found)
    assert found["Placement"]["AvailabilityZone"] == "us-east-1a"


def test_terminated_instance_may_lose_its_tags(cloud: Clockwork) -> None:
    cloud.group("g")
    cloud.run(30)
    first = only(cloud, "g", "InService")
    cloud.ask("end", instance=first, how="spot", tags_removed=True)
    cloud.run(1)
    assert cloud.instance(first).get("Tags", []) == []


def test_reason_of_a_stop_stays_after_the_next_start(cloud: Clockwork) -> None:
    ec2 = cloud.client("ec2")
    made = ec2.run_instances(
        ImageId="ami-0d1a0000000000001", InstanceType="g6.xlarge", SubnetId=cloud.subnets["a"], MinCount=1, MaxCount=1
    )["Instances"][0]["InstanceId"]
    cloud.run(6)
    ec2.stop_instances(InstanceIds=[made])
    cloud.run(1)
    stopped = cloud.instance(made)
    ec2.start_instances(InstanceIds=[made])
    cloud.run(6)
    found = cloud.instance(made)
    assert found["State"]["Name"] == "running"
    assert (
        found["StateReason"]
        == stopped["StateReason"]
        == {
            "Code": "Client.UserInitiatedShutdown",
            "Message": BY_PERSON,
        }
    )
    assert found["StateTransitionReason"] == stopped["StateTransitionReason"]


def test_activity_ends_at_a_whole_second_which_may_be_before_its_start(cloud: Clockwork) -> None:
    cloud.ask("capacity", refuse="no-spot")
    cloud.group("g", spot=True)
    cloud.run(11)
    failed = cloud.activities("g")[0]
    assert failed["EndTime"].microsecond == 0
    assert failed["EndTime"] == failed["StartTime"].replace(microsecond=0)
    assert failed["Progress"] == 100
    assert failed["AutoScalingGroupARN"].endswith(":autoScalingGroupName/g")
    assert set(re.findall(r'"([^"]+)":', failed["Details"])) == {"Subnet ID", "Availability Zone"}


def refused(cloud: Clockwork, *, mixed: bool, spot: bool, zones: str = "a") -> list[tuple[str, str]]:
    """Status and message of the activities of a group whose launches are refused, at its first step."""
    cloud.group("g", mixed=mixed, spot=spot, zones=zones)
    cloud.run(11)
    found = cloud.activities("g")
    assert all(
        one["Description"] == f"Launching a new EC2 instance.  Status Reason: {one['StatusMessage']}" for one in found
    )
    assert cloud.members("g") == []
    return [(one["StatusCode"], one["StatusMessage"]) for one in found]


def _failed(message: str) -> list[tuple[str, str]]:
    return [("Failed", f"{message} Launching EC2 instance failed.")]


LAUNCHING = "Launching a new EC2 instance"
SPOT_MIX, MIX = "Could not launch Spot Instances. ", "Could not launch On-Demand Instances. "
VCPUS = (
    "You have requested more vCPU capacity than your current vCPU limit of 2 allows for the instance bucket that the"
    " specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an"
    " adjustment to this limit."
)
NO_CAPACITY = (
    "We currently do not have sufficient g6.xlarge capacity in the Availability Zone you requested (us-east-1a). Our"
    " system will be working on provisioning additional capacity."
)
HINT = (
    " You can currently get g6.xlarge capacity by not specifying an Availability Zone in your request or choosing"
    " us-east-1b, us-east-1c."
)
NO_SPOT = "There is no Spot capacity available that matches your request."
UNFULFILLABLE = (
    "UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration. Please adjust your"
    " request and"
    " try again."
)


@pytest.mark.parametrize(
    ("limit", "spot", "with_mix", "alone"),
    [
        pytest.param(
            {"kind": "on-demand", "vcpus": 2}, False, f"{MIX}VcpuLimitExceeded - {VCPUS}", VCPUS, id="vCPU quota"
        ),
        pytest.param(
            {"kind": "spot", "vcpus": 2},
            True,
            f"{SPOT_MIX}MaxSpotInstanceCountExceeded - Max spot instance count exceeded.",
            "Max spot instance count exceeded.",
            id="spot quota",
        ),
        pytest.param(
            {"kind": "spot", "zone": "us-east-1a", "type": "g6.xlarge", "count": 0},
            True,
            SPOT_MIX + UNFULFILLABLE,
            NO_SPOT,
            id="dry zone, spot",
        ),
        pytest.param(
            {"kind": "on-demand", "zone": "us-east-1a", "type": "g6.xlarge", "count": 0},
            False,
            f"{MIX}InsufficientInstanceCapacity - {NO_CAPACITY}{HINT}",
            NO_CAPACITY + HINT,
            id="dry zone, on-demand",
        ),
    ],
)
@pytest.mark.parametrize("mixed", [True, False], ids=["with a mixed policy", "without"])
def test_quota_and_capacity_errors_have_the_messages_of_ec2(
    cloud: Clockwork, limit: dict[str, Any], spot: bool, with_mix: str, alone: str, mixed: bool
) -> None:
    cloud.ask("capacity", **limit)
    assert refused(cloud, mixed=mixed, spot=spot) == _failed(with_mix if mixed else alone)


def test_type_without_capacity_in_any_zone_is_refused_without_naming_another_zone(cloud: Clockwork) -> None:
    for letter in "abc":
        cloud.ask("capacity", kind="on-demand", zone=f"us-east-1{letter}", type="g6.xlarge", count=0)
    found = refused(cloud, mixed=False, spot=False, zones="ab")
    assert found == [*_failed(NO_CAPACITY), *_failed(NO_CAPACITY.replace("us-east-1a", "us-east-1b"))]


CHOSEN = [
    ("no-spot-match", f"InsufficientInstanceCapacity - {NO_SPOT}", NO_SPOT),
    ("insufficient-old", "InsufficientInstanceCapacity - Insufficient capacity.", "Insufficient capacity."),
    (
        "unsupported-zone",
        "InvalidFleetConfiguration - Your requested instance type (g6.xlarge) is not supported in your requested"
        " Availability Zone (us-east-1a).",
        "Your requested instance type (g6.xlarge) is not supported in your requested Availability Zone"
        " (us-east-1a). Please"
        " retry your request by not specifying an Availability Zone or choosing us-east-1b, us-east-1c.",
    ),
    (
        "price",
        "SpotMaxPriceTooLow - Your Spot request price of 0.001 is lower than the minimum required Spot request"
        " fulfillment"
        " price of 0.0031.",
        "Your Spot request price of 0.001 is lower than the minimum required Spot request fulfillment price of"
        " 0.0031.",
    ),
    ("throttled", "RequestLimitExceeded - Request limit exceeded.", "Request limit exceeded."),
    (
        "block-devices",
        "InvalidBlockDeviceMapping - snapshotId can only be modified on EBS devices.",
        "snapshotId can only be modified on EBS devices.",
    ),
]


@pytest.mark.parametrize(("name", "with_mix", "alone"), CHOSEN, ids=[name for name, *_ in CHOSEN])
@pytest.mark.parametrize("mixed", [True, False], ids=["with a mixed policy", "without"])
def test_injected_refusal_has_the_message_of_ec2(
    cloud: Clockwork, name: str, with_mix: str, alone: str, mixed: bool
) -> None:
    cloud.ask("capacity", refuse=name, zone="us-east-1a", kind="spot")
    assert refused(cloud, mixed=mixed, spot=True) == _failed(SPOT_MIX + with_mix if mixed else alone)


def test_full_reservation_is_refused(cloud: Clockwork) -> None:
    ec2 = cloud.client("ec2")
    made = ec2.create_capacity_reservation(
        InstanceType="g6.xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]["CapacityReservationId"]
    target = {"CapacityReservationTarget": {"CapacityReservationId": made}}
    cloud.group("g", size=2, CapacityReservationSpecification=target)
    cloud.run(11)
    assert set(activities_of(cloud, "g")) == {
        launched("PreInService", 1, CREATED.format(2) + STARTED.format(0, 2)),
        (
            "Failed",
            "Launching a new EC2 instance.  Status Reason: The requested reservation does not have sufficient"
            " compatible"
            " and available capacity for this request. Launching EC2 instance failed.",
            CREATED.format(2) + STARTED.format(0, 2),
        ),
    }
    ec2.cancel_capacity_reservation(CapacityReservationId=made)


def test_launch_in_a_zone_without_capacity_is_retried_until_it_succeeds(cloud: Clockwork) -> None:
    cloud.ask("capacity", refuse="no-spot")
    cloud.group("g", spot=True, mixed=True)
    cloud.run(300)
    starts = [one["StartTime"] for one in cloud.activities("g")]
    waits = [
        round((later - before).total_seconds() * cloud.cloud_state.time_scale.factor)
        for before, later in zip(starts, starts[1:], strict=False)
    ]
    assert waits == [10, 20, 40, 60, 60, 60]
    causes = [cause for _, _, cause in activities_of(cloud, "g")]
    assert causes[0] == FIRST
    assert set(causes[1:]) == {STARTED.format(0, 1)}, "the user's request is reported once"
    cloud.ask("restore")
    cloud.run(20)
    assert activities_of(cloud, "g")[-1] == launched("Successful", 1, STARTED.format(0, 1))


def _suspended(cloud: Clockwork) -> dict[str, str]:
    (found,) = cloud.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["g"])["AutoScalingGroups"]
    return {one["ProcessName"]: one["SuspensionReason"] for one in found["SuspendedProcesses"]}


def test_processes_suspended_by_a_user_show_the_time(cloud: Clockwork) -> None:
    cloud.group("g", size=0)
    cloud.scaling.suspend_processes(AutoScalingGroupName="g", ScalingProcesses=["AZRebalance"])
    before = _suspended(cloud)
    assert re.fullmatch(r"User suspended at 2026-11-\d\dT\d\d:\d\d:\d\dZ", before["AZRebalance"])
    cloud.run(5)
    cloud.scaling.suspend_processes(AutoScalingGroupName="g", ScalingProcesses=["Launch"])
    assert _suspended(cloud)["AZRebalance"] == before["AZRebalance"], "each keeps its own time"
    cloud.scaling.resume_processes(AutoScalingGroupName="g", ScalingProcesses=["Launch"])
    assert _suspended(cloud) == before


def test_launches_that_fail_for_a_day_are_suspended_until_resumed(cloud: Clockwork) -> None:
    cloud.ask("capacity", refuse="no-spot")
    cloud.group("g", spot=True, mixed=True)
    cloud.run(23 * 3600, timedelta(seconds=30))
    assert _suspended(cloud) == {}
    cloud.run(2 * 3600, timedelta(seconds=30))
    assert set(_suspended(cloud)) == {"Launch"}
    assert not _suspended(cloud)["Launch"].startswith("User")
    tried = len(cloud.activities("g"))
    cloud.ask("restore")
    cloud.run(600, timedelta(seconds=5))
    assert len(cloud.activities("g")) == tried, "it is silent"
    cloud.scaling.resume_processes(AutoScalingGroupName="g", ScalingProcesses=["Launch"])
    cloud.run(30)
    assert _suspended(cloud) == {}
    only(cloud, "g", "InService")


def test_admin_api_suspends_launches_as_after_a_day_of_failures(cloud: Clockwork) -> None:
    cloud.group("g", size=0)
    cloud.ask("suspend", group="g")
    assert set(_suspended(cloud)) == {"Launch"}


def test_completed_lifecycle_action_is_refused_by_token_and_by_instance(cloud: Clockwork) -> None:
    cloud.group("g", hooks=(READY,))
    cloud.run(20)
    first = only(cloud, "g", "Pending:Wait")
    named = {"AutoScalingGroupName": "g", "LifecycleHookName": "launching", "LifecycleActionResult": "CONTINUE"}
    cloud.scaling.complete_lifecycle_action(**named, InstanceId=first)
    with pytest.raises(ClientError, match=f"No active Lifecycle Action found with instance ID {first}"):
        cloud.scaling.complete_lifecycle_action(**named, InstanceId=first)
    token = "e85eb647-4fe0-4909-b341-a6c42d8aba1f"
    with pytest.raises(ClientError, match=f"No active Lifecycle Action found with token {token}"):
        cloud.scaling.complete_lifecycle_action(**named, LifecycleActionToken=token)


@pytest.mark.parametrize(
    ("attribute", "call", "message"),
    [
        pytest.param("DisableApiStop", "stop", "stopped. Modify its 'disableApiStop'", id="stop"),
        pytest.param("DisableApiStop", "terminate", "terminated. Modify its 'disableApiStop'", id="terminate"),
        pytest.param(
            "DisableApiTermination", "terminate", "terminated. Modify its 'disableApiTermination'", id="protected"
        ),
    ],
)
def test_protected_instance_is_neither_stopped_nor_terminated(
    cloud: Clockwork, attribute: str, call: str, message: str
) -> None:
    ec2 = cloud.client("ec2")
    made = ec2.run_instances(
        ImageId="ami-0d1a0000000000001",
        InstanceType="g6.xlarge",
        SubnetId=cloud.subnets["a"],
        MinCount=1,
        MaxCount=1,
    )["Instances"][0]["InstanceId"]
    ec2.modify_instance_attribute(InstanceId=made, **{attribute: {"Value": True}})
    with pytest.raises(ClientError, match="OperationNotPermitted") as caught:
        getattr(ec2, f"{call}_instances")(InstanceIds=[made])
    message = f"The instance '{made}' may not be {message} instance attribute and try again."
    assert caught.value.response["Error"]["Message"] == message


def _recorded_messages() -> set[str]:
    """Status messages of scaling activities from recordings, documentation and other projects."""
    found = json.loads((RECORDED / "sentences.json").read_text("utf-8"))
    return {_without_names(one["StatusMessage"]) for one in found if one["cloud"] == "aws" and one["StatusMessage"]}


def _without_names(message: str) -> str:
    """The message with placeholders for machine types, zones and tokens, and without the prefix of a mixed policy
    and the suffix of Auto Scaling."""
    message = re.sub(r"^Could not launch (Spot|On-Demand) Instances\. [\w.]+ - ", "", message)
    message = message.removesuffix(" Launching EC2 instance failed.")
    message = re.sub(r"[a-z]{2}-[a-z]+-\d[a-z](, [a-z]{2}-[a-z]+-\d[a-z])*", "ZONES", message)
    message = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "TOKEN", message)
    return re.sub(r"\b[a-z]\w*\.\d*x?large\b", "TYPE", message)


def test_cancelled_launches_have_recorded_messages() -> None:
    key = "Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state"
    abandoned = ["Lifecycle Action Completed with ABANDON Result", "Heartbeat Timeout"]
    assert {DIED.format(key), *(ABANDONED.format(why) for why in abandoned)} <= _recorded_messages()


NEVER_RECORDED_HERE = {"fleet-limit", "spot-role", "permission", "unsupported"}
"""Known from other sources, or assumed: docs/cloud-answers.md."""


@pytest.mark.parametrize("name", sorted(refusals.CHOSEN.keys() - NEVER_RECORDED_HERE))
def test_refusal_message_was_recorded(name: str) -> None:
    refusal = refusals.CHOSEN[name].for_launch(zone="us-east-1a", type="g6.xlarge", others="us-east-1b, us-east-1c")
    recorded = _recorded_messages()
    assert _without_names(refusal.message) in recorded
    if name != "unsupported-zone":  # its longer message is of RunInstances
        assert _without_names(refusal.without_mix.message) in recorded
