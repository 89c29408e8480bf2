"""AWS failures at the HTTP level, with the real boto3. A partial result never counts as complete."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import boto3
import pytest
from botocore.config import Config

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import AwsGroups
from gpufleet.clouds.aws.instance_history import AwsInstanceHistory
from gpufleet.clouds.aws.inventory import OF_ONE_ITEM, AwsInventory
from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError
from gpufleet.domain.instance_history import InstanceHistory
from tests.fixtures.networks import served

ONCE = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=0.5)
NAMESPACE = 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'
Answer = Callable[[dict[str, str]], tuple[int, bytes, int | None]]


def instance(number: int, zone: str = "us-east-1a") -> str:
    return (
        f"<item><instancesSet><item><instanceId>i-{number}</instanceId><instanceType>g6.xlarge</instanceType>"
        f"<launchTime>2026-11-21T08:00:00Z</launchTime><instanceState><code>16</code><name>running</name>"
        f"</instanceState><placement><availabilityZone>{zone}</availabilityZone></placement></item></instancesSet></item>"
    )


def listing(*items: str, token: str = "", key: str = "reservationSet") -> bytes:
    more = f"<nextToken>{token}</nextToken>" if token else ""
    body = f"<DescribeInstancesResponse {NAMESPACE}><{key}>{''.join(items)}</{key}>{more}</DescribeInstancesResponse>"
    return body.encode()


def refusal(code: str) -> bytes:
    return f"<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors></Response>".encode()


@dataclass
class Cloud:
    """Gives the responses of a test in order, and repeats the last one."""

    answers: list[Answer] = field(default_factory=list[Answer])
    asked: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    silent: threading.Event = field(default_factory=threading.Event)

    def answer(self, form: dict[str, str]) -> tuple[int, bytes, int | None]:
        self.asked.append(form)
        chosen = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return chosen(form)


@pytest.fixture
def cloud() -> Iterator[tuple[Cloud, AwsCalls]]:
    fake = Cloud()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(text).items()}
            status, body, length = fake.answer(form)
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = length is not None

        def log_message(self, format: str, *args: Any) -> None:
            """Suppress the log."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        server.daemon_threads = True

        def client(service: str) -> Any:
            return boto3.client(  # pyright: ignore[reportCallIssue]
                service,  # pyright: ignore[reportArgumentType]
                region_name="us-east-1",
                endpoint_url=f"http://127.0.0.1:{server.server_address[1]}",
                aws_access_key_id="x",
                aws_secret_access_key="x",
                config=ONCE,
            )

        yield fake, AwsCalls("us-east-1", client)
        fake.silent.set()


def plain(status: int, body: bytes, length: int | None = None) -> Answer:
    return lambda _: (status, body, length)


WHOLE = listing(instance(1))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        pytest.param([plain(503, refusal("RequestLimitExceeded"))], "RequestLimitExceeded", id="throttled"),
        pytest.param(
            [plain(200, listing(instance(1), token="n")), plain(503, refusal("RequestLimitExceeded"))],
            "RequestLimitExceeded",
            id="second page throttled",
        ),
        pytest.param([plain(200, WHOLE[:60], len(WHOLE))], "failed", id="connection cut in a page"),
        pytest.param([plain(200, WHOLE[:60])], "failed", id="page cut, length right"),
        pytest.param([plain(200, listing(key="other"))], "contains no Reservations", id="page without its list"),
        pytest.param(
            [plain(200, listing(instance(1, "eu-west-1a")))], "the request was for us-east-1", id="wrong region"
        ),
        pytest.param(
            [plain(200, WHOLE.replace(b"instancesSet", b"otherSet"))], "the list is incomplete", id="no instances"
        ),
        *(
            pytest.param([plain(200, WHOLE.replace(*part))], "cannot be read", id=f"one item without {name}")
            for name, part in {
                "its zone": (b"availabilityZone", b"zone"),
                "its launch time": (b"launchTime", b"begin"),
                "its type": (b"instanceType", b"kind"),
                "its name": (b"instanceId", b"name"),
                "a state that we know": (b"running", b"hibernating"),
            }.items()
        ),
        pytest.param([plain(401, refusal("AuthFailure"))], "AuthFailure", id="refused"),
        pytest.param([plain(200, listing(instance(1), token="n"))], "same next token", id="pages without an end"),
    ],
)
@pytest.mark.parametrize(
    "read",
    [AwsInventory.instances, lambda inventory: inventory.gpus().whole()],
    ids=["of the fleet", "all GPUs"],
)
def test_an_incomplete_inventory_is_an_error(
    cloud: tuple[Cloud, AwsCalls], answers: list[Answer], message: str, read: Callable[[AwsInventory], object]
) -> None:
    fake, calls = cloud
    fake.answers = answers
    with pytest.raises(CloudError, match=message):
        read(AwsInventory(calls, "us-east-1", "prod"))
    assert calls.counts["ec2:describe_instances"] >= len(fake.asked), "what was refused was a call, too"


@pytest.mark.parametrize(
    "part",
    [
        (b"availabilityZone", b"zone"),
        (b"launchTime", b"begin"),
        (b"instanceType", b"kind"),
        (b"running", b"odd"),
        (b"us-east-1", b"eu-west-1"),
    ],
    ids=["no zone", "no launch time", "no type", "an unknown state", "another region"],
)
def test_a_malformed_instance_does_not_affect_others(
    cloud: tuple[Cloud, AwsCalls], part: tuple[bytes, bytes]
) -> None:
    fake, calls = cloud
    odd = instance(2).encode().replace(*part).decode()
    reader = AwsInstanceHistory(calls, "us-east-1", "prod")
    for read in (reader.listed, reader.gpus, reader.history):
        fake.answers = [plain(200, listing(instance(1), odd, instance(3)))]
        found = read()
        one_by_one = (
            [record.instance for record in found.records] if isinstance(found, InstanceHistory) else found.instances
        )
        assert [one.id for one in one_by_one] == ["i-1", "i-3"]
        assert list(found.errors) == ["i-2"] and "i-2 cannot be read" in found.errors["i-2"]
    terminated = [instance(number).replace("running", "terminated") for number in (1, 3)]
    fake.answers = [plain(200, listing(terminated[0], odd, terminated[1], instance(4)))]
    ended = reader.ended(["i-1", "i-2", "i-3", "i-4"])
    assert [one.id for one in ended] == ["i-1", "i-3"], "an unreadable instance hides no other, and i-4 runs"


def test_a_cloud_that_does_not_respond_is_an_error(cloud: tuple[Cloud, AwsCalls]) -> None:
    fake, calls = cloud

    def hang(_: dict[str, str]) -> tuple[int, bytes, int | None]:
        fake.silent.wait(10)
        return 200, WHOLE, None

    fake.answers = [hang]
    with pytest.raises(CloudError, match="Read timeout"):
        AwsInventory(calls, "us-east-1", "prod").instances()


def test_all_pages_are_read_and_counted(cloud: tuple[Cloud, AwsCalls]) -> None:
    fake, calls = cloud
    fake.answers = [plain(200, listing(instance(1), token="n")), plain(200, listing(instance(2)))]
    assert [one.id for one in AwsInventory(calls, "us-east-1", "prod").instances()] == ["i-1", "i-2"]
    assert calls.counts == {"ec2:describe_instances": 2}
    assert fake.asked[1]["NextToken"] == "n"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(listing(instance(2)), "requested i-1, received i-2", id="another one"),
        pytest.param(listing(instance(1), instance(2)), "requested i-1, received i-1, i-2", id="two"),
        pytest.param(listing(), "requested i-1, received no instance", id="none, and no refusal"),
        pytest.param(listing(key="other"), "requested i-1, received no instance", id="no list"),
        pytest.param(listing("<item/>"), "requested i-1, received no instance", id="a reservation without instances"),
        pytest.param(listing(instance(1, "eu-west-1a")), "the request was for us-east-1", id="wrong region"),
    ],
)
def test_a_response_about_another_instance_is_an_error(
    cloud: tuple[Cloud, AwsCalls], answer: bytes, message: str
) -> None:
    fake, calls = cloud
    fake.answers = [plain(200, answer)]
    with pytest.raises(CloudError, match=message):
        AwsInventory(calls, "us-east-1", "prod").instance("i-1")


def test_a_known_instance_is_read_and_an_unknown_one_is_none(cloud: tuple[Cloud, AwsCalls]) -> None:
    fake, calls = cloud
    fake.answers = [plain(200, WHOLE), plain(400, refusal("InvalidInstanceID.NotFound"))]
    inventory = AwsInventory(calls, "us-east-1", "prod")
    first, second = inventory.instance("i-1"), inventory.instance("i-2")
    assert first is not None and first.id == "i-1"
    assert second is None


def test_clients_of_the_session_use_the_fast_timestamp_parser(
    cloud: tuple[Cloud, AwsCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, calls = cloud
    fake.answers = [plain(200, WHOLE)]
    url = calls._client("ec2").meta.endpoint_url  # pyright: ignore[reportPrivateUsage]
    for name, value in (("ENDPOINT_URL_EC2", url), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x")):
        monkeypatch.setenv(f"AWS_{name}", value)
    (found,) = AwsInventory(AwsCalls("us-east-1"), "us-east-1", "prod").instances()
    assert found.launched_at == datetime(2026, 11, 21, 8, tzinfo=UTC)
    assert found.launched_at.tzinfo is UTC  # botocore's parser would set dateutil's time zone


@pytest.mark.parametrize("code", sorted(OF_ONE_ITEM))
@pytest.mark.parametrize(
    ("size", "poisoned", "most"), [(1, {0}, 1), (8, {5}, 7), (100, {17, 83}, 27), (4, set[int](), 1)]
)
def test_a_poisoned_item_is_isolated_by_halving(
    cloud: tuple[Cloud, AwsCalls], size: int, poisoned: set[int], most: int, code: str
) -> None:
    fake, calls = cloud
    bad = {f"i-{number}" for number in poisoned}
    tagged: set[str] = set()

    def answer(form: dict[str, str]) -> tuple[int, bytes, int | None]:
        ids = {value for name, value in form.items() if name.startswith("ResourceId.")}
        if ids & bad:
            return 400, refusal(code), None
        tagged.update(ids)
        return 200, f"<CreateTagsResponse {NAMESPACE}><return>true</return></CreateTagsResponse>".encode(), None

    fake.answers = [answer]
    ids = [f"i-{number}" for number in range(size)]
    failed = AwsInventory(calls, "us-east-1", "prod").tag(ids, {"k": "v"})
    assert set(failed) == bad
    assert all(code in error for error in failed.values())
    assert tagged == set(ids) - bad
    assert calls.counts["ec2:create_tags"] <= most


@pytest.mark.parametrize("code", ["RequestExpired", "AuthFailure", "RequestLimitExceeded", "InvalidParameterValue"])
@pytest.mark.parametrize("write", ["tag", "untag"])
def test_an_error_that_affects_all_items_needs_one_call(cloud: tuple[Cloud, AwsCalls], code: str, write: str) -> None:
    fake, calls = cloud
    fake.answers = [plain(400, refusal(code))]
    ids = [f"i-{number}" for number in range(500)]
    inventory = AwsInventory(calls, "us-east-1", "prod")
    failed = inventory.tag(ids, {"k": "v"}) if write == "tag" else inventory.untag(ids, ["k"])
    assert set(failed) == set(ids)
    assert all(code in error for error in failed.values())
    assert sum(calls.counts.values()) == 1


def test_a_group_missing_from_the_response_is_an_error(cloud: tuple[Cloud, AwsCalls]) -> None:
    fake, calls = cloud
    fake.answers = [
        plain(
            200,
            b'<DescribeAutoScalingGroupsResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">'
            b"<DescribeAutoScalingGroupsResult><AutoScalingGroups/></DescribeAutoScalingGroupsResult>"
            b"</DescribeAutoScalingGroupsResponse>",
        )
    ]
    with pytest.raises(CloudError, match="batch-spot-a"):
        AwsGroups(calls).groups(["batch-spot-a"])


@pytest.mark.parametrize(
    ("end", "operation"),
    [
        pytest.param(lambda calls: AwsGroups(calls).end("i-1", "g", lower_desired=True), "Terminate", id="end"),
        pytest.param(lambda calls: AwsInventory(calls, "us-east-1", "prod").stop("i-1"), "StopInstances", id="stop"),
    ],
)
def test_destructive_calls_are_not_retried(
    cloud: tuple[Cloud, AwsCalls], monkeypatch: pytest.MonkeyPatch, end: Callable[[AwsCalls], None], operation: str
) -> None:
    """During a minute of retries, a keep tag could be set and would not be noticed."""
    fake, calls = cloud
    fake.answers = [plain(503, refusal("RequestLimitExceeded"))]
    url = calls._client("ec2").meta.endpoint_url  # pyright: ignore[reportPrivateUsage]
    for name, value in (("ENDPOINT_URL", url), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with pytest.raises(CloudError, match="RequestLimitExceeded"):
        end(AwsCalls("us-east-1"))
    (asked,) = fake.asked
    assert asked["Action"].startswith(operation)


def described(desired: int, capacity_type: str = "spot") -> bytes:
    """A DescribeAutoScalingGroups response with one group."""
    return (
        '<DescribeAutoScalingGroupsResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">'
        "<DescribeAutoScalingGroupsResult><AutoScalingGroups><member><AutoScalingGroupName>g</AutoScalingGroupName>"
        f"<MinSize>0</MinSize><MaxSize>9</MaxSize><DesiredCapacity>{desired}</DesiredCapacity>"
        f"<Tags><member><Key>{tags.CAPACITY_TYPE}</Key><Value>{capacity_type}</Value></member></Tags>"
        "</member></AutoScalingGroups></DescribeAutoScalingGroupsResult></DescribeAutoScalingGroupsResponse>"
    ).encode()


def test_a_reduction_of_the_size_is_not_retried(
    cloud: tuple[Cloud, AwsCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, calls = cloud
    fake.answers = [plain(200, described(3)), plain(503, refusal("Throttling"))]
    url = calls._client("ec2").meta.endpoint_url  # pyright: ignore[reportPrivateUsage]
    for name, value in (("ENDPOINT_URL", url), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x")):
        monkeypatch.setenv(f"AWS_{name}", value)
    groups = AwsGroups(AwsCalls("us-east-1"))
    (group,) = groups.groups(["g"])
    with pytest.raises(CloudError, match="Throttling"):
        groups.resize(group, 2)
    assert [asked["Action"] for asked in fake.asked].count("SetDesiredCapacity") == 1


def test_an_invalid_capacity_type_tag_is_named(cloud: tuple[Cloud, AwsCalls]) -> None:
    fake, calls = cloud
    fake.answers = [plain(200, described(3, capacity_type="Spot"))]
    with pytest.raises(CloudError, match=r"g: its tag gpu-fleet:capacity-type is 'Spot', must be one of reserved"):
        AwsGroups(calls).groups(["g"])
