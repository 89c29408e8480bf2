"""Responses of single AWS calls in the embedded cloud: single instances, notices as events, injected errors."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.prices import AwsPrices
from tests.fixtures.clouds.emulator import RunningCloud, make_group, make_template, wait_for


def _run(cloud: RunningCloud, **more: Any) -> dict[str, Any]:
    assert cloud.network is not None
    made = cloud.client("ec2").run_instances(
        ImageId="ami-0d1a0000000000001",
        InstanceType="g6.xlarge",
        SubnetId=cloud.network.subnets["a"],
        MinCount=1,
        MaxCount=1,
        **more,
    )
    return made["Instances"][0]


def _instance(cloud: RunningCloud, instance_id: str) -> dict[str, Any]:
    return cloud.client("ec2").describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]


def _wait(cloud: RunningCloud, instance_id: str, state: str) -> None:
    wait_for(f"{instance_id} {state}", lambda: _instance(cloud, instance_id)["State"]["Name"] == state)


def test_single_instance_stops_and_starts_and_is_billed_while_it_runs(cloud: RunningCloud) -> None:
    ec2 = cloud.client("ec2")
    launched = _run(cloud)
    made = launched["InstanceId"]
    assert launched["State"]["Name"] == "pending"
    _wait(cloud, made, "running")
    address = _instance(cloud, made)["PrivateIpAddress"]
    ec2.stop_instances(InstanceIds=[made])
    _wait(cloud, made, "stopped")
    stopped = _instance(cloud, made)
    assert stopped["StateTransitionReason"].startswith("User initiated (20")
    assert stopped["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    ec2.start_instances(InstanceIds=[made])
    _wait(cloud, made, "running")
    assert _instance(cloud, made)["PrivateIpAddress"] == address
    ec2.terminate_instances(InstanceIds=[made])
    _wait(cloud, made, "terminated")
    stays = [row for row in cloud.control("GET", "billing-log")[1] if row["instance"] == made]
    assert [row["why"] for row in stays] == ["stopped", "Client.UserInitiatedShutdown"]
    assert all(row["ended"] for row in stays)


@pytest.mark.parametrize(
    ("limit", "market", "code"),
    [
        pytest.param(
            {"zone": "us-east-1a", "type": "g6.xlarge", "kind": "on-demand", "count": 0},
            {},
            "InsufficientInstanceCapacity",
            id="capacity",
        ),
        pytest.param({"kind": "on-demand", "vcpus": 0}, {}, "VcpuLimitExceeded", id="quota"),
        pytest.param(
            {"kind": "spot", "vcpus": 0},
            {"InstanceMarketOptions": {"MarketType": "spot"}},
            "MaxSpotInstanceCountExceeded",
            id="spot quota",
        ),
    ],
)
def test_single_instance_is_refused_with_the_codes_of_ec2(
    cloud: RunningCloud, limit: dict[str, Any], market: dict[str, Any], code: str
) -> None:
    cloud.control("POST", "capacity", limit)
    with pytest.raises(ClientError, match=code):
        _run(cloud, **market)


def test_notice_reaches_the_queue_of_a_rule(cloud: RunningCloud) -> None:
    events, sqs = cloud.client("events"), cloud.client("sqs")
    url = sqs.create_queue(QueueName="notices")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    kinds = ["EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation"]
    events.put_rule(Name="notices", EventPattern=json.dumps({"source": ["aws.ec2"], "detail-type": kinds}))
    events.put_targets(Rule="notices", Targets=[{"Id": "queue", "Arn": arn}])
    make_group(cloud, "noticed", make_template(cloud, "noticed"), size=1, spot=True)
    member = wait_for("the instance", lambda: cloud.in_service("noticed"))[0]["InstanceId"]
    cloud.control("POST", "preempt", {"instance": member, "notice_s": 0})
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    found = {body["detail-type"]: body for body in (json.loads(message["Body"]) for message in received)}
    assert sorted(found) == sorted(kinds)
    assert found[kinds[0]]["detail"] == {"instance-id": member, "instance-action": "terminate"}
    zone = cloud.instances("noticed")[0]["Placement"]["AvailabilityZone"]
    # the resource ARN has the zone and no account
    assert [found[kind]["resources"] for kind in kinds] == [[f"arn:aws:ec2:{zone}:instance/{member}"]] * 2
    assert "instance-action" not in found[kinds[1]]["detail"]


@pytest.mark.parametrize(
    ("service", "operation", "call", "code"),
    [
        pytest.param("ec2", "DescribeInstances", lambda c: c.describe_instances(), "RequestLimitExceeded", id="ec2"),
        pytest.param(
            "autoscaling", "*", lambda c: c.describe_auto_scaling_groups(), "Throttling", id="any of auto scaling"
        ),
        pytest.param("ssm", "GetParameter", lambda c: c.get_parameter(Name="/x"), "ThrottlingException", id="json"),
        pytest.param("s3", "ListBuckets", lambda c: c.list_buckets(), "SlowDown", id="s3"),
    ],
)
def test_injected_error_is_raised_by_boto3(
    cloud: RunningCloud, service: str, operation: str, call: Any, code: str
) -> None:
    wanted = {"service": service, "operation": operation, "code": code, "status": 503, "times": 1}
    assert cloud.control("POST", "api-fault", wanted)[0] == 200
    with pytest.raises(ClientError) as caught:
        call(cloud.client(service))
    assert caught.value.response["Error"]["Code"] == code
    assert cloud.control("GET", "api-fault")[1] == [], "it happens once"


def test_fault_can_affect_only_the_second_page(cloud: RunningCloud) -> None:
    wanted = {"service": "s3", "operation": "ListBuckets", "skip": 1}
    cloud.control("POST", "api-fault", wanted)
    cloud.client("s3").list_buckets()
    with pytest.raises(ClientError, match="RequestLimitExceeded"):
        cloud.client("s3").list_buckets()


def test_placement_scores_follow_capacity(cloud: RunningCloud) -> None:
    ec2 = cloud.client("ec2")
    types = ["g6.xlarge", "g5.xlarge", "g6e.xlarge"]

    def scores(chosen: list[str]) -> dict[str, int]:
        found = ec2.get_spot_placement_scores(
            InstanceTypes=chosen, TargetCapacity=1, SingleAvailabilityZone=True, RegionNames=["us-east-1"]
        )["SpotPlacementScores"]
        return {row["AvailabilityZoneId"]: row["Score"] for row in found}

    assert scores(types) == {"use1-az1": 9, "use1-az2": 9, "use1-az3": 9}
    assert set(scores(types[:2]).values()) == {3}, "fewer than three machine types always score low"
    for machine_type in types:
        limit = {"zone": "us-east-1b", "type": machine_type, "kind": "spot", "count": 0}
        cloud.control("POST", "capacity", limit)
    assert scores(types) == {"use1-az1": 9, "use1-az2": 1, "use1-az3": 9}


def test_group_with_a_deleted_template_does_not_block_other_groups(cloud: RunningCloud) -> None:
    template = make_template(cloud, "gone")
    make_group(cloud, "gone", template, size=0)
    make_group(cloud, "there", make_template(cloud, "there"), size=0)
    cloud.client("ec2").delete_launch_template(LaunchTemplateId=template)
    for name in ("gone", "there"):
        cloud.client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=1)
    wait_for("the other group", lambda: cloud.in_service("there"))
    failed = cloud.activities("gone")
    assert [one["StatusCode"] for one in failed] == ["Failed"], "reported once, not in each round"
    assert failed[0]["StatusMessage"].endswith(f"{template}, does not exist.")


def test_price_list_is_read_by_the_client_of_the_product(cloud: RunningCloud) -> None:
    calls = AwsCalls("us-east-1", client=lambda service: cloud.client(service))
    found = AwsPrices(calls, "us-east-1", calls).list_prices(["g6.xlarge", "x9.nothing"], datetime.now(UTC))
    assert [(price.sku, price.usd_per_hour) for price in found] == [
        ("aws:ec2:g6.xlarge:on-demand", Decimal("0.8048"))
    ]


def test_price_list_refuses_other_services(cloud: RunningCloud) -> None:
    with pytest.raises(ClientError, match="AmazonRDS"):
        cloud.client("pricing").get_products(ServiceCode="AmazonRDS")
