"""The fast parser for instance lists returns all fields that the code reads."""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from xml.sax.saxutils import escape

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.instance_history import AwsInstanceHistory
from gpufleet.clouds.aws.instance_parser import INSTANCE, lean
from gpufleet.domain.activity import CloudError
from gpufleet.domain.instance_history import InstanceRecord
from tests.fixtures.clouds.raw_answers import RawAnswers

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


SESSION: Final = boto3.Session("key", "secret", region_name=REGION)
ONCE: Final = Config(retries={"total_max_attempts": 1})


def answered(body: str, status: int = 200) -> Any:
    """A botocore client that gets this response without sending a request."""
    made: Any = SESSION.client("ec2", config=ONCE)
    made.meta.events.register(
        "before-send.ec2.DescribeInstances",
        lambda request, **_: AWSResponse(request.url, status, {}, RawAnswers(body.encode())),
    )
    return made


@pytest.fixture
def client() -> Any:
    return answered(ANSWER)


def history_of(client: Any) -> list[InstanceRecord]:
    return list(AwsInstanceHistory(AwsCalls(REGION, lambda _: client), REGION, ENVIRONMENT).history().records)


def test_both_parsers_give_the_same_history(client: Any) -> None:
    whole = history_of(client)
    assert [record.instance.id for record in whole] == ["i-spot", "i-paid", "i-taken"]
    assert [record.preempted for record in whole] == [False, False, True]
    assert history_of(lean(client)) == whole


class _Recording(dict[str, Any]):
    """An instance that records which of its fields are read."""

    def __init__(self, raw: Mapping[str, Any], asked: set[str]) -> None:
        super().__init__(raw)
        self._asked = asked

    def __getitem__(self, name: str) -> Any:
        self._asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        return super().get(name, default)


class _RecordingCalls(AwsCalls):
    """Calls that return recording instances, from a client with the default parser."""

    def __init__(self, client: Any, asked: set[str]) -> None:
        super().__init__(REGION, lambda _: client)
        self._asked = asked

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        for found in super().pages(service, operation, key, **arguments):
            yield {"Instances": [_Recording(raw, self._asked) for raw in found["Instances"]]}


def test_the_kept_fields_are_those_that_the_code_reads(client: Any) -> None:
    asked: set[str] = set()
    found = AwsInstanceHistory(_RecordingCalls(client, asked), REGION, ENVIRONMENT)
    assert (len(found.history().records), len(found.gpus().instances)) == (3, 3)
    assert asked == INSTANCE


def test_the_fast_parser_returns_no_other_fields(client: Any) -> None:
    (first, *_) = lean(client).describe_instances()["Reservations"]
    (read,) = first["Instances"]
    assert (set(first), set(read) <= INSTANCE) == ({"Instances"}, True)
    assert (read["State"], read["Placement"]) == ({"Name": "running"}, {"AvailabilityZone": "us-east-1a"})


TEXTS = st.text(st.characters(exclude_categories=("C",)), max_size=4)
LEAVES: Final = (
    "capacityReservationId", "imageId", "instanceId", "instanceLifecycle", "instanceType", "privateIpAddress",
    "reason", "subnetId",
)  # fmt: skip
INSIDE: Final = {
    "instanceState": ("name",),
    "placement": ("availabilityZone", "tenancy"),
    "stateReason": ("code", "message"),
    "monitoring": ("state",),
}


def element(name: str, inside: str) -> str:
    return f"<{name}>{inside}</{name}>" if inside else f"<{name}/>"


def leaves(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    """A subset of these elements in any order, with any text."""
    some = st.lists(st.sampled_from(names), unique=True).flatmap(
        lambda chosen: st.tuples(*(st.tuples(st.just(name), TEXTS) for name in chosen))
    )
    return some.map(lambda found: "".join(element(name, escape(text)) for name, text in found))


def items(inside: list[str]) -> str:
    return "".join(element("item", one) for one in inside)


TAG_SETS = st.lists(leaves(("key", "value")), max_size=3).map(lambda tags: element("tagSet", items(tags)))
MOMENTS = st.sampled_from(("2026-11-21T00:00:00.000Z", "1763755200"))
INSTANCES = st.tuples(
    leaves(LEAVES),
    *(st.just("") | leaves(names).map(lambda inside, of=of: element(of, inside)) for of, names in INSIDE.items()),
    st.just("") | TAG_SETS,
    st.just("") | MOMENTS.map(lambda at: element("launchTime", at)),
).map("".join)
RESERVATIONS = st.lists(st.none() | st.lists(INSTANCES, max_size=2), max_size=2)
SPACES = st.sampled_from(("", ' xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'))


class _Reading:
    """A client that parses any response body."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._body = ""
        client.meta.events.register("before-send.ec2.DescribeInstances", self._answer)

    def read(self, body: str) -> Mapping[str, Any]:
        self._body = body
        return self._client.describe_instances()

    def _answer(self, request: Any, **_: Any) -> AWSResponse:
        return AWSResponse(request.url, 200, {}, RawAnswers(self._body.encode()))


@pytest.fixture(scope="module")
def readings() -> tuple[_Reading, _Reading]:
    """A client with botocore's parser and one with the fast parser."""
    return _Reading(SESSION.client("ec2", config=ONCE)), _Reading(lean(SESSION.client("ec2", config=ONCE)))


@settings(max_examples=25)
@given(RESERVATIONS, SPACES, st.none() | TEXTS)
def test_both_parsers_agree_for_any_response(
    readings: tuple[_Reading, _Reading], reservations: list[list[str] | None], space: str, token: str | None
) -> None:
    listed = items(["" if one is None else element("instancesSet", items(one)) for one in reservations])
    more = "" if token is None else element("nextToken", escape(token))
    body = f"<Answer{space}><requestId>r-1</requestId>{element('reservationSet', listed)}{more}</Answer>"
    whole, found = (reading.read(body) for reading in readings)
    assert found == {**whole, "Reservations": [_kept(one) for one in whole["Reservations"]]}


def _kept(reservation: Mapping[str, Any]) -> dict[str, Any]:
    """A reservation from botocore's parser, without the fields that the fast parser omits."""
    kept = {name: found for name, found in reservation.items() if name == "Instances"}
    return {name: [_read_of(one) for one in found] for name, found in kept.items()}


def _read_of(instance: Mapping[str, Any]) -> dict[str, Any]:
    inside = {"Placement": {"AvailabilityZone"}, "State": {"Name"}, "StateReason": {"Code"}}
    return {
        name: {k: v for k, v in value.items() if k in inside[name]} if name in inside else value
        for name, value in instance.items()
        if name in INSTANCE
    }


REFUSED = "<Response><Errors><Error><Code>{0}</Code><Message>no</Message></Error></Errors></Response>"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        pytest.param(REFUSED.format("UnauthorizedOperation"), 403, "UnauthorizedOperation: no", id="refused"),
        pytest.param("<html>busy</html>", 503, "503", id="not from the cloud"),
        pytest.param(ANSWER[:-200], 200, "invalid XML", id="cut"),
        pytest.param("<Answer><requestId>1</requestId></Answer>", 200, "contains no Reservations", id="no list"),
    ],
)
def test_errors_are_the_same_with_both_parsers(body: str, status: int, message: str) -> None:
    messages: list[str] = []
    for client in (answered(body, status), lean(answered(body, status))):
        with pytest.raises(CloudError, match=message) as error:
            history_of(client)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
