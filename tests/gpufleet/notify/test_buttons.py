"""*Keep* in Slack: both endpoints on loopback, with the sink and a real ledger. Tests every check, and that a click
counts once.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from localcloud.slack.interactive import sign
from localcloud.slack.server import SlackSink
from sqlalchemy import Engine

from app.adapters import FleetMessages, WallClock
from app.fleets import load_one
from gpufleet.domain import tags
from gpufleet.domain.brakes import Brake
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.ledger import operations
from gpufleet.ledger.outbox import messages
from gpufleet.ledger.schema import open_ledger
from gpufleet.notify.buttons import ClickError, read_click
from gpufleet.notify.clicks import ClickHandler, FleetButtons
from gpufleet.notify.deliver import deliver
from gpufleet.notify.endpoints import MOST_BYTES, SocketModeListener, is_signed, serve_http
from gpufleet.notify.slack import SlackBot
from tests.fixtures import local_token
from tests.fixtures.logs import RecordedLog
from tests.fixtures.small_fleet import FLEET, document

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


@dataclass
class Machines:
    """An inventory of one instance."""

    tagged: dict[str, str] = field(default_factory=dict[str, str])
    answers: threading.Event = field(default_factory=threading.Event)
    """Tags can be written only while this is set."""
    fails: str = ""
    ended: bool = False

    def instance(self, instance_id: str) -> Instance | None:
        return Instance(
            id=instance_id, cloud=Cloud.AWS, region="us-east-1", zone="us-east-1a", machine_type="g6.xlarge",
            capacity_type=CapacityType.SPOT, launched_at=datetime(2026, 1, 1, tzinfo=UTC), environment="dev",
            pool="chat", state=InstanceState.TERMINATED if self.ended else InstanceState.RUNNING,
        )  # fmt: skip

    def tag(self, instance_ids: Sequence[str], values: Mapping[str, str]) -> Mapping[str, str]:
        self.answers.wait(60)
        if self.fails:
            return dict.fromkeys(instance_ids, self.fails)
        self.tagged |= values
        return {}


@dataclass
class World:
    """A fleet with one marked instance, whose message is in the sink."""

    ledger: Engine
    sink: SlackSink
    machines: Machines
    presses: ClickHandler

    @property
    def brakes(self) -> Sequence[Brake]:
        return operations.brakes(self.ledger, FLEET, datetime.now(UTC))

    def press(self, **more: Any) -> list[Any]:
        """Clicks the button of the mark's message. Returns the answers."""
        wanted = {"ts": self.sink.channels.messages[0].ts, "action_id": "gpufleet_keep_4h", **more}
        request = urllib.request.Request(
            f"{self.sink.url}/click",
            data=json.dumps(wanted).encode(),
            headers={"Content-Type": "application/json", **local_token.BEARER},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            said = json.load(answer)
        assert said["ok"], said
        return said["answers"]

    def texts(self, count: int) -> list[str]:
        """The texts in the channel, once there are `count` of them."""
        until(lambda: len(self.sink.channels.messages) >= count)
        return [message.content["text"] for message in self.sink.channels.messages]


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    sink = SlackSink("127.0.0.1", 0, local_token.callers())
    sink.start()
    ledger, machines = open_ledger(f"sqlite:///{tmp_path}/ledger.db"), Machines()
    machines.answers.set()
    bot = SlackBot(local_token.BOT, f"{sink.url}/api/")

    def send(desk: FleetButtons) -> None:
        deliver(desk.engine, bot, lambda: datetime.now(UTC))

    fleet = load_one(str(document(tmp_path, notify={"slack_channel": "#gpu-cost", "keep_users": ["UADA"]})))
    desk = FleetButtons(
        fleet=FLEET, environment="dev", channel="#gpu-cost", users=frozenset({"UADA"}), engine=ledger,
        inventory=machines,
    )  # fmt: skip
    FleetMessages(ledger, fleet, WallClock()).notify(
        "marked:i-1:x", "i-1 is <idle>", {"instance": "i-1", "may_keep": True}
    )
    send(desk)
    presses = ClickHandler(desks={FLEET: desk}, now=lambda: datetime.now(UTC), deliver=send, log=RecordedLog())
    yield World(ledger=ledger, sink=sink, machines=machines, presses=presses)
    presses.close()
    sink.stop()


@pytest.fixture
def socket(world: World) -> Iterator[SocketModeListener]:
    door = SocketModeListener(local_token.APP, world.presses, f"{world.sink.url}/api/")
    door.open()
    until(lambda: world.sink.socket_mode.connections == 1)
    yield door
    door.close()


@pytest.fixture
def http(world: World) -> Iterator[str]:
    with serve_http("127.0.0.1", 0, SECRET, world.presses, lambda: datetime.now(UTC)) as server:
        yield f"{server.url}/slack/actions"


def test_keep_over_socket_mode_sets_the_brake_and_writes_the_tag(world: World, socket: SocketModeListener) -> None:
    begun = datetime.now(UTC)
    world.machines.answers.clear()
    (answered,) = world.press(user="UADA", action_id="gpufleet_keep_24h")
    assert answered is not None, "Slack waits for three seconds only, so the answer comes before the cloud's"
    world.machines.answers.set()
    mark, kept = world.texts(2), world.sink.channels.messages[1]
    assert mark[1].startswith("<@UADA> keeps i-1 until ")
    assert kept.content["thread_ts"] == world.sink.channels.messages[0].ts
    (brake,) = world.brakes
    assert (brake.kind, brake.scope, brake.owner) == ("keep", "i-1", "Slack UADA")
    assert brake.until is not None
    assert abs(brake.until - begun - timedelta(hours=24)) < timedelta(minutes=2)
    until(lambda: bool(world.machines.tagged))
    assert world.machines.tagged == {tags.KEEP_UNTIL: tags.write_time(brake.until)}


def test_keep_over_http_does_the_same(world: World, http: str) -> None:
    assert world.press(user="UADA", url=http, secret=SECRET) == [200]
    assert world.texts(2)[1].startswith("<@UADA> keeps i-1 until ")
    assert [brake.scope for brake in world.brakes] == ["i-1"]


def test_repeated_click_counts_once_over_either_endpoint(world: World, socket: SocketModeListener, http: str) -> None:
    stamp = f"{time.time():.6f}"
    world.press(user="UADA", times=2, action_ts=stamp)
    world.press(user="UADA", times=2, action_ts=stamp, url=http, secret=SECRET)
    assert len(world.brakes) == 1
    assert len(world.texts(2)) == 2


def test_unauthorized_user_keeps_nothing_and_is_notified_once(world: World, socket: SocketModeListener) -> None:
    world.press(user="UEVE")
    world.press(user="UEVE", action_id="gpufleet_keep_24h")
    assert "<@UEVE> may not keep instances" in world.texts(2)[1]
    assert world.brakes == ()
    assert world.machines.tagged == {}
    assert len(messages(world.ledger)) == 2


@pytest.mark.parametrize("age", [-600, 600], ids=["old", "from the future"])
def test_old_click_is_a_replay(world: World, http: str, age: int) -> None:
    assert world.press(user="UADA", action_ts=str(time.time() + age), url=http, secret=SECRET) == [200]
    assert world.brakes == ()


def test_wrong_secret_is_refused(world: World, http: str) -> None:
    assert world.press(user="UADA", url=http, secret="another secret of some length") == [401]
    assert world.brakes == ()


def test_a_body_that_is_too_large_is_not_read(http: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(http, data=b"x" * (MOST_BYTES + 1), timeout=60)
    assert refused.value.code == 413
    refused.value.close()


@pytest.mark.parametrize(
    ("seconds", "change", "expected"),
    [
        pytest.param(0, {}, True, id="good"),
        pytest.param(299, {}, True, id="nearly five minutes"),
        pytest.param(301, {}, False, id="older than five minutes"),
        pytest.param(-301, {}, False, id="from the future"),
        pytest.param(0, {"X-Slack-Signature": "v0=00"}, False, id="forged"),
        pytest.param(0, {"X-Slack-Signature": "v0=é"}, False, id="not even ASCII"),
        pytest.param(0, {"X-Slack-Request-Timestamp": "²"}, False, id="a digit that is none"),
        pytest.param(0, {"X-Slack-Request-Timestamp": ""}, False, id="no time"),
    ],
)
def test_signatures(seconds: int, change: dict[str, str], expected: bool) -> None:
    now, body = datetime(2026, 11, 21, tzinfo=UTC), b"payload=%7B%7D"
    stamp = str(int(now.timestamp()) - seconds)
    headers = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": sign(SECRET, stamp, body)} | change
    assert is_signed(SECRET, headers.get, body, now) is expected
    assert not is_signed(SECRET, headers.get, body + b" ", now)


def test_the_signature_of_slacks_documentation() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F"
        b"96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "X-Slack-Request-Timestamp": "1531420618",
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    now = datetime.fromtimestamp(1531420618, UTC)
    assert is_signed(SECRET, headers.get, body, now)


def test_brake_holds_if_the_tag_fails(world: World, socket: SocketModeListener) -> None:
    world.machines.fails = "UnauthorizedOperation"
    world.press(user="UADA")
    assert world.texts(3)[2] == "its tag could not be written: UnauthorizedOperation"
    assert len(world.brakes) == 1


def test_terminated_instance_is_reported(world: World, socket: SocketModeListener) -> None:
    world.machines.ended = True
    world.press(user="UADA")
    assert "has ended already" in world.texts(3)[2]


def test_socket_mode_reconnects(world: World, socket: SocketModeListener) -> None:
    world.sink.socket_mode.hang_up()
    until(lambda: world.sink.socket_mode.connections == 0 or len(world.sink.socket_mode.tickets) > 0)
    until(lambda: world.sink.socket_mode.connections == 1)
    (answered,) = world.press(user="UADA")
    assert answered is not None
    assert len(world.texts(2)) == 2


def test_wrong_app_token_is_reported(world: World) -> None:
    door = SocketModeListener(local_token.BOT, world.presses, f"{world.sink.url}/api/")
    with pytest.raises(OSError, match="not_allowed_token_type"):
        door.open()
    door.close()


def test_the_sink_shows_real_buttons(world: World) -> None:
    page = urllib.request.Request(f"{world.sink.url}/", headers=local_token.BEARER)
    with urllib.request.urlopen(page, timeout=60) as answer:
        shown = answer.read().decode()
    assert "gpufleet_keep_4h" in shown
    assert "Keep 24 h</button>" in shown
    assert "i-1 is &lt;idle&gt;" in shown


ACTION = {"action_id": "gpufleet_keep_4h", "action_ts": "1.5", "value": '{"fleet":"f","instance":"i","message":"m"}'}


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        pytest.param([], "no object", id="a list"),
        pytest.param({"type": "view_submission"}, "not block_actions", id="another type"),
        pytest.param({"type": "block_actions", "actions": []}, "no list with an action", id="no action"),
        pytest.param({"type": "block_actions", "actions": [{"action_id": "x"}]}, "none of ours", id="another's"),
        pytest.param({"type": "block_actions", "actions": [ACTION | {"value": "{"}]}, "cannot be read", id="value"),
        pytest.param({"type": "block_actions", "actions": [ACTION | {"action_ts": "nan"}]}, "cannot be", id="nan"),
        pytest.param(
            {"type": "block_actions", "actions": [ACTION], "user": {"id": ""}}, "`id` is no text", id="user"
        ),
    ],
)
def test_invalid_click_is_refused(payload: object, said: str) -> None:
    with pytest.raises(ClickError, match=said):
        read_click(payload)
