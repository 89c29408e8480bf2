"""Reads all responses that were recorded from real AWS accounts, and compares the results."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError

from components.aws.group_shape import SUSPENDED_PROCESSES
from gpufleet.clouds.aws.activities import read_activity
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import OURS, AwsGroups
from gpufleet.clouds.aws.instance_history import AwsInstanceHistory
from gpufleet.clouds.aws.inventory import AwsInventory
from gpufleet.clouds.aws.notices import ABSENT, AwsNotices
from gpufleet.clouds.aws.prices import AwsPrices
from gpufleet.domain.activity import ActivityKind, CloudError
from gpufleet.domain.model import CapacityType, InstanceState
from tests.fixtures.clouds.raw_answers import RawAnswers
from tests.fixtures.clouds.recorded import AWS, SENTENCES, calls, named, placebo

INSTANCES = named("ec2_describe_instances_*.json")
GROUPS = named("asg_*.json")
REFUSALS = [*named("ec2_*_refused_*.json"), "ec2_create_tags_without_ids.json", *named("sqs_*.json")]
ENDED = (InstanceState.STOPPING, InstanceState.STOPPED, InstanceState.TERMINATED)


def region_of(answer: Mapping[str, Any]) -> str:
    zones = {i["Placement"]["AvailabilityZone"] for held in answer["Reservations"] for i in held["Instances"]}
    (region,) = {zone[:-1] for zone in zones}
    return region


@pytest.mark.parametrize("name", INSTANCES)
def test_instances(name: str) -> None:
    answer = placebo(name)
    region = region_of(answer)
    expected = {i["InstanceId"]: i for held in answer["Reservations"] for i in held["Instances"]}
    found = AwsInventory(calls(answer, region), region, "test").instances()
    assert {i.id for i in found} == set(expected)
    for one in found:
        raw = expected[one.id]
        assert (one.machine_type, one.zone) == (raw["InstanceType"], raw["Placement"]["AvailabilityZone"])
        assert (one.capacity_type is CapacityType.SPOT) is (raw.get("InstanceLifecycle") == "spot")
        user = raw.get("StateTransitionReason", "").startswith("User initiated (") and one.state in ENDED
        assert one.end_reason is (ActivityKind.ENDED_BY_PERSON if user else None)


@pytest.mark.parametrize("name", INSTANCES)
def test_instance_history(name: str) -> None:
    answer = placebo(name)
    region = region_of(answer)
    for record in AwsInstanceHistory(calls(answer, region), region, "test").history().records:
        stated = record.instance.end_reason is ActivityKind.ENDED_BY_PERSON
        assert (record.ended_at is not None) is stated, "a user's end has a time, and nothing else here has one"
        assert not record.preempted


def test_a_new_instance_has_no_end_reason() -> None:
    answer = {"Reservations": [placebo("ec2_run_instances.json")]}
    (one,) = AwsInventory(calls(answer), "us-east-1", "test").instances()
    assert (one.state, one.end_reason) == (InstanceState.PENDING, None)


def test_ended_instances_without_tags_are_read() -> None:
    answer = placebo("ec2_describe_instances_terminated_2026.json")
    found = AwsInventory(calls(answer), "us-east-1", "test").ended(["i-0074c3be9f6a78da8"])
    ended = [one for one in found if one.state is InstanceState.TERMINATED]
    assert (len(ended), {one.end_reason for one in ended}) == (10, {ActivityKind.ENDED_BY_PERSON})
    assert all(not one.tags for one in ended)


def test_many_ended_instances_are_requested_in_parts() -> None:
    asked: list[int] = []

    class Ec2:
        def get_paginator(self, operation: str) -> "Ec2":
            assert operation == "describe_instances"
            return self

        def paginate(self, **arguments: Any) -> Iterator[Mapping[str, Any]]:
            (named,) = arguments["Filters"]
            asked.append(len(named["Values"]))
            yield {"Reservations": []}

    inventory = AwsInventory(AwsCalls("us-east-1", lambda _: Ec2()), "us-east-1", "test")
    assert list(inventory.ended([f"i-{n}" for n in range(401)])) == []
    assert asked == [200, 200, 1]
    assert list(inventory.ended([])) == []
    assert len(asked) == 3


@pytest.mark.parametrize("name", GROUPS)
def test_groups(name: str) -> None:
    answer = placebo(name)
    expected = {raw["AutoScalingGroupName"]: raw for raw in answer["AutoScalingGroups"]}
    for group in AwsGroups(calls(answer)).groups(list(expected)):
        raw = expected[group.name]
        assert group.instance_ids == tuple(member["InstanceId"] for member in raw["Instances"])
        assert (group.desired, group.leaving) == (raw["DesiredCapacity"], frozenset())
        assert group.zone == (raw["AvailabilityZones"][0] if len(raw["AvailabilityZones"]) == 1 else None)


@pytest.mark.parametrize(
    ("name", "group", "since"),
    [
        ("asg_suspended_by_user_2016.json", "CustodianASG", "2016-05-08T12:54:47Z"),
        ("asg_suspended_by_user_2026.json", "custodian-suspend-force-recording", "2026-02-26T18:56:36Z"),
        ("asg_suspend_after.json", "custodian-suspend-force-recording", "2026-02-26T18:56:36Z"),
    ],
)
def test_processes_suspended_by_a_user(name: str, group: str, since: str) -> None:
    answer = placebo(name)
    found = {one.name: one for one in AwsGroups(calls(answer)).groups([group])}[group].suspended
    assert {one.process for one in found} >= {"Launch", "Terminate", "HealthCheck", "ReplaceUnhealthy"}
    assert {(one.reason, one.by_cloud) for one in found} == {(f"User suspended at {since}", False)}


def test_a_process_suspended_by_the_stack_is_not_reported() -> None:
    (group,) = AwsGroups(calls(placebo("asg_suspended_by_user_2026.json"))).groups(["c7n-image-age-test"])
    assert group.suspended == ()
    assert set(SUSPENDED_PROCESSES) == OURS


def test_capacity_reservations() -> None:
    answer = placebo("ec2_describe_capacity_reservations.json")
    expected = [raw for raw in answer["CapacityReservations"] if raw["State"] in ("active", "expired")]
    region = expected[0]["AvailabilityZone"][:-1]
    found = AwsInstanceHistory(calls(answer, region), region, "test").paid()
    assert [(one.reservation, one.instances, one.ends_at, one.available) for one in found] == [
        (
            raw["CapacityReservationId"], raw["TotalInstanceCount"], None,
            raw["AvailableInstanceCount"] if raw["State"] == "active" else None,
        )
        for raw in expected
    ]  # fmt: skip


def answered(service: str, name: str, status: int = 200) -> AwsCalls:
    """Calls with a botocore client that gets a recorded response without sending a request."""
    session = boto3.Session("key", "secret", region_name="us-west-2")
    client: Any = session.client(service, config=Config(retries={"total_max_attempts": 1}))  # pyright: ignore
    body = (AWS / name).read_bytes()
    client.meta.events.register(
        "before-send", lambda request, **_: AWSResponse(request.url, status, {}, RawAnswers(body))
    )
    return AwsCalls("us-west-2", lambda _: client)


def test_instances_of_2012() -> None:
    found = AwsInventory(answered("ec2", "xml/ec2-describe-instances.xml"), "us-west-2", "test").instances()
    assert {(one.state, one.end_reason) for one in found} == {
        (InstanceState.RUNNING, None),
        (InstanceState.STOPPED, ActivityKind.ENDED_BY_PERSON),
    }


def test_no_activities() -> None:
    found = answered("autoscaling", "xml/autoscaling-describe-scaling-activities.xml")
    assert AwsGroups(found).activities(["g"], datetime.fromisoformat("2012-01-01T00:00:00Z")) == ()


def test_spot_prices() -> None:
    now = datetime.fromisoformat("2013-03-20T14:00:00Z")
    answer = answered("ec2", "xml/ec2-describe-spot-price-history.xml").one("ec2", "describe_spot_price_history")
    found = AwsPrices(calls(answer), "us-west-2").prices(["m1.small"], now, now)
    assert len(found) == len(answer["SpotPriceHistory"]) == 1000
    first = found[0]
    assert (first.sku, first.zone) == ("aws:ec2:m1.small:spot", "us-west-2b")
    assert first.usd_per_hour == Decimal("0.01")


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    answer = placebo(name)
    with pytest.raises(CloudError, match=answer["Error"]["Message"]) as error:
        AwsInventory(calls(answer), "us-east-1", "test").stop("i-1")
    assert error.value.code == answer["Error"]["Code"]


def test_a_missing_queue() -> None:
    answer = placebo("sqs_queue_gone.json")
    assert answer["Error"]["Code"] in ABSENT
    assert not AwsNotices(calls(answer), "test").there()


@pytest.mark.parametrize(
    ("name", "service", "operation", "code"),
    [
        ("xml/ec2-describe-instances_error.xml", "ec2", "describe_instances", "InvalidInstanceID.Malformed"),
        ("xml/autoscaling-delete-policy_error.xml", "autoscaling", "describe_auto_scaling_groups", "ValidationError"),
        ("xml/sts-get-session-token_error.xml", "sts", "get_caller_identity", "AccessDenied"),
    ],
)
def test_error_codes_in_xml_responses(name: str, service: str, operation: str, code: str) -> None:
    with pytest.raises(CloudError) as error:
        answered(service, name, 400).one(service, operation)
    assert error.value.code == code


def test_a_malformed_id_is_an_unknown_instance() -> None:
    refused = answered("ec2", "xml/ec2-describe-instances_error.xml", 400)
    assert AwsInventory(refused, "us-west-2", "test").instance("foobar") is None


def _parsed(raw: Mapping[str, Any]) -> dict[str, Any]:
    moments = {name: datetime.fromisoformat(raw[name]) for name in ("StartTime", "EndTime") if name in raw}
    return {**raw, **moments}


def test_the_event_of_a_failed_launch_is_read_as_an_activity() -> None:
    event = json.loads((AWS / "events/autoscaling_launch_unsuccessful.json").read_text())
    found = read_activity(_parsed(event["detail"]))
    assert found is not None
    assert (found.kind, found.instance_id) == (ActivityKind.CONFIGURATION, None)
    assert found.at == datetime.fromisoformat("2016-05-21T16:43:34.112Z")


def test_the_example_of_the_api_reference() -> None:
    examples = json.loads((AWS / "examples_autoscaling.json").read_text())["examples"]
    (example,) = examples["DescribeScalingActivities"]
    (found,) = (read_activity(_parsed(raw)) for raw in example["output"]["Activities"])
    assert found is not None
    assert (found.kind, found.instance_id) == (ActivityKind.LAUNCHED, "i-4ba0837f")


@pytest.mark.parametrize("name", named("events/nth_*.json"))
def test_notices_are_counted(name: str) -> None:
    message = {"Body": (AWS / name).read_text(), "ReceiptHandle": "r"}
    assert AwsNotices(calls({"QueueUrl": "q", "Messages": [message]}), "test").wait() == 1


@pytest.mark.parametrize(
    "sentence", [s for s in SENTENCES if s["cloud"] == "aws"], ids=lambda s: f"{s['kind']}: {s['means']}"
)
def test_recorded_messages_are_classified(sentence: Mapping[str, Any]) -> None:
    raw = {name: sentence[name] for name in ("StatusCode", "Description", "StatusMessage", "Cause")}
    started = datetime.fromisoformat("2026-11-21T00:00:00Z")
    found = read_activity({**raw, "ActivityId": "1", "AutoScalingGroupName": "g", "StartTime": started})
    assert found is not None
    assert found.kind.value == sentence["kind"]


@pytest.mark.parametrize(
    ("code", "error"),
    [("UnauthorizedOperation", None), ("AccessDenied", None), ("InvalidCapacityReservationId.NotFound", CloudError)],
)
def test_use_by_account_is_unknown_without_permission(code: str, error: type[CloudError] | None) -> None:
    class Refusing:
        def get_capacity_reservation_usage(self, **_: Any) -> Any:
            raise ClientError({"Error": {"Code": code, "Message": "no"}}, "GetCapacityReservationUsage")

    history = AwsInstanceHistory(AwsCalls("us-east-1", lambda _: Refusing()), "us-east-1", "test")
    if error is None:
        assert history.used_by("cr-1") is None
        return
    with pytest.raises(error, match=code):
        history.used_by("cr-1")
