"""Capacity Blocks of the embedded EC2, with a real boto3 client: searched, bought, started and ended as AWS
documents."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.fixtures.clouds.emulator import RunningCloud, make_group, make_template, wait_for

pytestmark = pytest.mark.slow
MACHINE = "p5.48xlarge"
EARLY = timedelta(minutes=30)
"""AWS starts to terminate the instances of a block this long before the end of the block."""


def offerings(cloud: RunningCloud, **more: Any) -> list[dict[str, Any]]:
    asked = {"InstanceType": MACHINE, "InstanceCount": 1, "CapacityDurationHours": 24, **more}
    return cloud.client("ec2").describe_capacity_block_offerings(**asked)["CapacityBlockOfferings"]


def bought(cloud: RunningCloud) -> dict[str, Any]:
    made = cloud.client("ec2").purchase_capacity_block(
        CapacityBlockOfferingId=offerings(cloud)[0]["CapacityBlockOfferingId"],
        InstancePlatform="Linux/UNIX",
        TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": [{"Key": "team", "Value": "search"}]}],
    )
    return made["CapacityReservation"]


def state_of(cloud: RunningCloud, reservation: str) -> str:
    found = cloud.client("ec2").describe_capacity_reservations(CapacityReservationIds=[reservation])
    return found["CapacityReservations"][0]["State"]


def move(cloud: RunningCloud, reservation: str, *, starts: timedelta, ends: timedelta) -> None:
    now = datetime.now(UTC)
    body = {"reservation": reservation, "starts": str(now + starts), "ends": str(now + ends)}
    status, answer = cloud.control("POST", "block", body)
    assert status == 200, answer


def block_group(cloud: RunningCloud, name: str, reservation: dict[str, Any], **template: Any) -> None:
    target = {"CapacityReservationTarget": {"CapacityReservationId": reservation["CapacityReservationId"]}}
    launched = {"CapacityReservationSpecification": target, "InstanceMarketOptions": {"MarketType": "capacity-block"}}
    made = make_template(cloud, name, InstanceType=MACHINE, **{**launched, **template})
    make_group(cloud, name, made, size=1, zones=reservation["AvailabilityZone"][-1])


def failed(cloud: RunningCloud, name: str) -> str:
    wait_for("a failed launch", lambda: any(one["StatusCode"] == "Failed" for one in cloud.activities(name)))
    return next(one["StatusMessage"] for one in cloud.activities(name) if one["StatusCode"] == "Failed")


def test_offerings_match_the_rules_of_aws(cloud: RunningCloud) -> None:
    found = offerings(cloud, CapacityDurationHours=48, InstanceCount=2)
    assert 1 <= len(found) <= 6
    for offering in found:
        assert (offering["EndDate"].hour, offering["EndDate"].minute) == (11, 30)
        assert offering["EndDate"] - offering["StartDate"] == timedelta(hours=48)
        assert offering["StartDate"] > datetime.now(UTC)
        assert float(offering["UpfrontFee"]) > 0 and offering["CurrencyCode"] == "USD"
    late = datetime.now(UTC) + timedelta(days=20)
    assert all(offering["StartDate"] >= late for offering in offerings(cloud, StartDateRange=late))
    assert offerings(cloud, EndDateRange=datetime.now(UTC) + timedelta(hours=1)) == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param({"InstanceType": "g6.xlarge"}, "instanceType", id="type that is not sold so"),
        pytest.param({"InstanceCount": 65}, "instanceCount", id="too many"),
        pytest.param({"CapacityDurationHours": 25}, "capacityDurationHours", id="part of a day"),
        pytest.param({"CapacityDurationHours": 15 * 24}, "capacityDurationHours", id="part of a week"),
    ],
)
def test_offering_that_aws_does_not_sell_is_refused(cloud: RunningCloud, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ClientError, match=message):
        offerings(cloud, **asked)


def test_bought_block_is_scheduled_and_cannot_be_cancelled(cloud: RunningCloud) -> None:
    ec2, block = cloud.client("ec2"), bought(cloud)
    assert (block["State"], block["ReservationType"], block["EndDateType"]) == (
        "scheduled",
        "capacity-block",
        "limited",
    )
    assert block["AvailableInstanceCount"] == 0
    assert {"Key": "team", "Value": "search"} in block["Tags"]
    shown = ec2.describe_capacity_blocks(CapacityBlockIds=[block["CapacityBlockId"]])["CapacityBlocks"]
    assert [one["CapacityReservationIds"] for one in shown] == [[block["CapacityReservationId"]]]
    for undo in (ec2.cancel_capacity_reservation, ec2.modify_capacity_reservation):
        with pytest.raises(ClientError, match="Capacity Block"):
            undo(CapacityReservationId=block["CapacityReservationId"])
    block_group(cloud, "too-early", block)
    assert "does not have sufficient" in failed(cloud, "too-early")
    with pytest.raises(ClientError, match="does not exist"):
        ec2.purchase_capacity_block(CapacityBlockOfferingId="cb-nothing", InstancePlatform="Linux/UNIX")


def test_capacity_block_market_type_is_required_for_blocks_and_refused_otherwise(cloud: RunningCloud) -> None:
    block = bought(cloud)
    move(cloud, block["CapacityReservationId"], starts=timedelta(seconds=-1), ends=timedelta(days=1))
    block_group(cloud, "no-market", block, InstanceMarketOptions={})
    assert "needs the market type 'capacity-block'" in failed(cloud, "no-market")
    block_group(cloud, "no-block", block, CapacityReservationSpecification={})
    assert "Only a Capacity Block" in failed(cloud, "no-block")


def test_instances_of_a_block_end_half_an_hour_before_it(cloud: RunningCloud) -> None:
    block = bought(cloud)
    reservation = block["CapacityReservationId"]
    event_types = _queue_of_blocks(cloud)
    move(cloud, reservation, starts=timedelta(seconds=-1), ends=timedelta(days=1))
    wait_for("the block to begin", lambda: state_of(cloud, reservation) == "active")
    block_group(cloud, "block", block)
    wait_for("an instance in the block", lambda: cloud.in_service("block"))
    (instance,) = cloud.instances("block")
    assert instance["CapacityReservationId"] == reservation
    assert instance["InstanceLifecycle"] == "capacity-block"
    assert [row["capacity_type"] for row in cloud.control("GET", "billing-log")[1] if row["group"] == "block"] == [
        "reserved"
    ]

    move(cloud, reservation, starts=timedelta(days=-1), ends=EARLY + timedelta(seconds=1))
    wait_for("its end", lambda: cloud.instances("block")[0]["State"]["Name"] in ("shutting-down", "terminated"))
    assert cloud.instances("block")[0]["StateReason"]["Message"].endswith("Capacity Block ends")
    assert state_of(cloud, reservation) == "active", "it is paid for until its own end"
    assert "does not have sufficient" in failed(cloud, "block")
    delivered = wait_for("both events", lambda: event_types() if len(event_types()) >= 2 else None)
    assert {"Capacity Block Reservation Delivered", "Capacity Block Reservation Expiration Warning"} <= set(delivered)

    move(cloud, reservation, starts=timedelta(days=-1), ends=timedelta(seconds=-1))
    wait_for("the block to be over", lambda: state_of(cloud, reservation) == "expired")


def _queue_of_blocks(cloud: RunningCloud) -> Any:
    """Route events of blocks to a queue with a rule. Each call returns the kinds of all events so far."""
    queues, events = cloud.client("sqs"), cloud.client("events")
    url = queues.create_queue(QueueName="blocks")["QueueUrl"]
    arn = queues.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    kinds = ["Capacity Block Reservation Delivered", "Capacity Block Reservation Expiration Warning"]
    pattern = json.dumps({"source": ["aws.ec2"], "detail-type": kinds})
    events.put_rule(Name="blocks", EventPattern=pattern)
    events.put_targets(Rule="blocks", Targets=[{"Id": "queue", "Arn": arn}])
    seen: list[str] = []

    def event_types() -> list[str]:
        for message in queues.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
            seen.append(json.loads(message["Body"])["detail-type"])
        return seen

    return event_types
