"""Instances are read from EC2's answers as far as somebody reads them: nothing that is read is missing."""

import io
from collections.abc import Iterator, Mapping
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from clouds.aws.calls import AwsCalls
from clouds.aws.lean import INSTANCE, lean
from clouds.aws.lives import AwsLives
from fleet.lives import Life

REGION, ENVIRONMENT = "us-east-1", "prod"
TAGS = (
    f"<item><key>gpu-fleet:environment</key><value>{ENVIRONMENT}</value></item>"
    "<item><key>gpu-fleet:pool</key><value>chat</value></item>"
    "<item><key>aws:autoscaling:groupName</key><value>chat-spot-a</value></item>"
)
SPOT = "<instanceLifecycle>spot</instanceLifecycle>"
DISK = (
    "<item><deviceName>/dev/sda</deviceName><ebs><volumeId>vol-1</volumeId><status>attached</status>"
    "<attachTime>2026-11-21T01:00:00.000Z</attachTime></ebs></item>"
)


def instance(name: str, state: str, extra: str) -> str:
    return (
        f"<item><reservationId>r-{name}</reservationId><ownerId>1</ownerId><groupSet/><instancesSet><item>"
        f"<instanceId>{name}</instanceId><imageId>ami-1</imageId>"
        f"<instanceState><code>16</code><name>{state}</name></instanceState><privateDnsName>ip</privateDnsName>"
        "<instanceType>g6.xlarge</instanceType><launchTime>2026-11-21T00:00:00.000Z</launchTime>"
        "<placement><availabilityZone>us-east-1a</availabilityZone><tenancy>default</tenancy></placement>"
        f"<monitoring><state>disabled</state></monitoring><subnetId>s</subnetId>{extra}"
        f"<blockDeviceMapping>{DISK}</blockDeviceMapping><tagSet>{TAGS}</tagSet></item></instancesSet></item>"
    )


ANSWER = (
    '<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>1</requestId>'
    "<reservationSet>"
    + instance("i-spot", "running", f"<privateIpAddress>10.0.0.1</privateIpAddress>{SPOT}")
    + instance("i-paid", "running", "<capacityReservationId>cr-1</capacityReservationId>")
    + instance(
        "i-taken",
        "terminated",
        f"{SPOT}<reason>Server.SpotInstanceTermination (2026-11-21 02:00:00 GMT)"
        "</reason><stateReason><code>Server.SpotInstanceTermination</code><message>taken</message></stateReason>",
    )
    + "</reservationSet></DescribeInstancesResponse>"
)


class _Raw(io.BytesIO):
    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self.read()


@pytest.fixture
def client() -> Any:
    """botocore's own client, whose calls are answered before they are sent."""
    made: Any = boto3.Session("key", "secret", region_name=REGION).client("ec2")
    made.meta.events.register(
        "before-send.ec2.DescribeInstances",
        lambda request, **_: AWSResponse(request.url, 200, {}, _Raw(ANSWER.encode())),
    )
    return made


def lives(client: Any) -> list[Life]:
    return list(AwsLives(AwsCalls(REGION, lambda _: client), REGION, ENVIRONMENT).lives())


def test_a_lean_answer_tells_what_the_whole_one_does(client: Any) -> None:
    whole = lives(client)
    assert [life.instance.id for life in whole] == ["i-spot", "i-paid", "i-taken"]
    assert [life.preempted for life in whole] == [False, False, True]
    assert lives(lean(client)) == whole


class _Recording(dict[str, Any]):
    """An instance that remembers what was asked of it."""

    def __init__(self, raw: Mapping[str, Any], asked: set[str]) -> None:
        super().__init__(raw)
        self._asked = asked

    def __getitem__(self, name: str) -> Any:
        self._asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        return super().get(name, default)


class _Told(AwsCalls):
    """Calls that are answered with what a whole client told."""

    def __init__(self, client: Any, asked: set[str]) -> None:
        super().__init__(REGION, lambda _: client)
        self._asked = asked

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        for found in super().pages(service, operation, key, **arguments):
            yield {"Instances": [_Recording(raw, self._asked) for raw in found["Instances"]]}


def test_the_fields_that_are_kept_are_those_that_somebody_reads(client: Any) -> None:
    asked: set[str] = set()
    found = AwsLives(_Told(client, asked), REGION, ENVIRONMENT)
    assert (len(found.lives()), len(found.gpus())) == (3, 3)
    assert asked == INSTANCE


def test_a_lean_answer_has_nothing_else(client: Any) -> None:
    (first, *_) = lean(client).describe_instances()["Reservations"]
    (told,) = first["Instances"]
    assert (set(first), set(told) <= INSTANCE) == ({"Instances"}, True)
    assert (told["State"], told["Placement"]) == ({"Name": "running"}, {"AvailabilityZone": "us-east-1a"})
