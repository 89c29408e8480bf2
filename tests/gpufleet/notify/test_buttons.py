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

from app.adapters import FleetMessages
from app.fleets import load_one
from gpufleet.domain import tags
from gpufleet.domain.brakes import Brake
from gpufleet.domain.clocks import WallClock
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.ledger import operations
from gpufleet.ledger.outbox import messages
from gpufleet.ledger.schema import open_ledger
from gpufleet.notify.buttons import ClickError, read_click
from gpufleet.notify.clicks import ClickHandler, FleetButtons
from gpufleet.notify.deliver import deliver
from gpufleet.notify.endpoints import MAX_BYTES, SocketModeListener, is_signed, serve_http
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
class ButtonSetup:
    """A fleet with one marked instance, whose message is in the sink."""

    ledger: Engine
    sink: SlackSink
    machines: Machines
    clicks: ClickHandler

    @property
    def brakes(self) -> Sequence[Brake]:
        return operations.brakes(self.ledger, FLEET, datetime.now(UTC))

    def click(self, **more: Any) -> list[Any]:
        """Clicks the button of the mark's message. Returns the answers."""
        wanted = {"ts": self.sink.channels.messages[0].ts, "action_id": "gpufleet_keep_4h", **more}
        request = urllib.request.Request(
            f"{self.sink.url}/click",
            data=json.dumps(wanted).encode(),
            headers={"Content-Type": "application/json", **local_token.BEARER},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            output = json.load(answer)
        assert output["ok"], output
        return output["answers"]

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
def setup(tmp_path: Path) -> Iterator[ButtonSetup]:
    sink = SlackSink("127.0.0.1", 0, local_token.callers())
    sink.start()
    ledger, machines = open_ledger(f"sqlite:///{tmp_path}/ledger.db"), Machines()
    machines.answers.set()
    bot = SlackBot(local_token.BOT, f"{sink.url}/api/")

    def send(buttons: FleetButtons) -> None:
        deliver(buttons.engine, bot, lambda: datetime.now(UTC))

    fleet = load_one(str(document(tmp_path, notify={"slack_channel": "#gpu-cost", "keep_users": ["UADA"]})))
    buttons = FleetButtons(
        name=FLEET, environment="dev", channel="#gpu-cost", users=frozenset({"UADA"}), engine=ledger,
        inventory=machines,
    )  # fmt: skip
    FleetMessages(ledger, fleet, WallClock()).notify(
        "marked:i-1:x", "i-1 is <idle>", {"instance": "i-1", "may_keep": True}
    )
    send(buttons)
    clicks = ClickHandler(fleets={FLEET: buttons}, now=lambda: datetime.now(UTC), deliver=send, log=RecordedLog())
    yield ButtonSetup(ledger=ledger, sink=sink, machines=machines, clicks=clicks)
    clicks.close()
    sink.stop()


@pytest.fixture
def socket(setup: ButtonSetup) -> Iterator[SocketModeListener]:
    listener = SocketModeListener(local_token.APP, setup.clicks, f"{setup.sink.url}/api/")
    listener.open()
    until(lambda: setup.sink.socket_mode.connections == 1)
    yield listener
    listener.close()


@pytest.fixture
def http(setup: ButtonSetup) -> Iterator[str]:
    with serve_http("127.0.0.1", 0, SECRET, setup.clicks, lambda: datetime.now(UTC)) as server:
        yield f"{server.url}/slack/actions"


def test_keep_over_socket_mode_sets_the_brake_and_writes_the_tag(
    setup: ButtonSetup, socket: SocketModeListener
) -> None:
    begun = datetime.now(UTC)
    setup.machines.answers.clear()
    (answered,) = setup.click(user="UADA", action_id="gpufleet_keep_24h")
    assert answered is not None, "Slack waits for three seconds only, so the answer comes before the cloud's"
    setup.machines.answers.set()
    mark, kept = setup.texts(2), setup.sink.channels.messages[1]
    assert mark[1].startswith("<@UADA> keeps i-1 until ")
    assert kept.content["thread_ts"] == setup.sink.channels.messages[0].ts
    (brake,) = setup.brakes
    assert (brake.kind, brake.scope, brake.owner) == ("keep", "i-1", "Slack UADA")
    assert brake.until is not None
    assert abs(brake.until - begun - timedelta(hours=24)) < timedelta(minutes=2)
    until(lambda: bool(setup.machines.tagged))
    assert setup.machines.tagged == {tags.KEEP_UNTIL: tags.write_time(brake.until)}


def test_keep_over_http_does_the_same(setup: ButtonSetup, http: str) -> None:
    assert setup.click(user="UADA", url=http, secret=SECRET) == [200]
    assert setup.texts(2)[1].startswith("<@UADA> keeps i-1 until ")
    assert [brake.scope for brake in setup.brakes] == ["i-1"]


def test_repeated_click_counts_once_over_either_endpoint(
    setup: ButtonSetup, socket: SocketModeListener, http: str
) -> None:
    stamp = f"{time.time():.6f}"
    setup.click(user="UADA", times=2, action_ts=stamp)
    setup.click(user="UADA", times=2, action_ts=stamp, url=http, secret=SECRET)
    assert len(setup.brakes) == 1
    assert len(setup.texts(2)) == 2


def test_unauthorized_user_keeps_nothing_and_is_notified_once(setup: ButtonSetup, socket: SocketModeListener) -> None:
    setup.click(user="UEVE")
    setup.click(user="UEVE", action_id="gpufleet_keep_24h")
    assert "<@UEVE> may not keep instances" in setup.texts(2)[1]
    assert setup.brakes == ()
    assert setup.machines.tagged == {}
    assert len(messages(setup.ledger)) == 2


@pytest.mark.parametrize("age", [-600, 600], ids=["old", "from the future"])
def test_old_click_is_a_replay(setup: ButtonSetup, http: str, age: int) -> None:
    assert setup.click(user="UADA", action_ts=str(time.time() + age), url=http, secret=SECRET) == [200]
    assert setup.brakes == ()


def test_wrong_secret_is_refused(setup: ButtonSetup, http: str) -> None:
    assert setup.click(user="UADA", url=http, secret="another secret of some length") == [401]
    assert setup.brakes == ()


def test_a_body_that_is_too_large_is_not_read(http: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(http, data=b"x" * (MAX_BYTES + 1), timeout=60)
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
        pytest.param(0, {"X-Slack-Request-Timestamp": "²"}, False, id="a digit that is not ASCII"),
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


def test_brake_holds_if_the_tag_fails(setup: ButtonSetup, socket: SocketModeListener) -> None:
    setup.machines.fails = "UnauthorizedOperation"
    setup.click(user="UADA")
    assert setup.texts(3)[2] == "its tag could not be written: UnauthorizedOperation"
    assert len(setup.brakes) == 1


def test_terminated_instance_is_reported(setup: ButtonSetup, socket: SocketModeListener) -> None:
    setup.machines.ended = True
    setup.click(user="UADA")
    assert "has ended already" in setup.texts(3)[2]


def test_socket_mode_reconnects(setup: ButtonSetup, socket: SocketModeListener) -> None:
    setup.sink.socket_mode.hang_up()
    until(lambda: setup.sink.socket_mode.connections == 0 or len(setup.sink.socket_mode.tickets) > 0)
    until(lambda: setup.sink.socket_mode.connections == 1)
    (answered,) = setup.click(user="UADA")
    assert answered is not None
    assert len(setup.texts(2)) == 2


def test_wrong_app_token_is_reported(setup: ButtonSetup) -> None:
    listener = SocketModeListener(local_token.BOT, setup.clicks, f"{setup.sink.url}/api/")
    with pytest.raises(OSError, match="not_allowed_token_type"):
        listener.open()
    listener.close()


def test_the_sink_shows_real_buttons(setup: ButtonSetup) -> None:
    page = urllib.request.Request(f"{setup.sink.url}/", headers=local_token.BEARER)
    with urllib.request.urlopen(page, timeout=60) as answer:
        shown = answer.read().decode()
    assert "gpufleet_keep_4h" in shown
    assert "Keep 24 h</button>" in shown
    assert "i-1 is &lt;idle&gt;" in shown


ACTION = {"action_id": "gpufleet_keep_4h", "action_ts": "1.5", "value": '{"fleet":"f","instance":"i","message":"m"}'}


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        pytest.param([], "expected an object, got list", id="a list"),
        pytest.param({"type": "view_submission"}, "expected 'block_actions'", id="another type"),
        pytest.param({"type": "block_actions", "actions": []}, "list with at least one action", id="no action"),
        pytest.param(
            {"type": "block_actions", "actions": [{"action_id": "x"}]},
            "not an action of",
            id="an action of another app",
        ),
        pytest.param({"type": "block_actions", "actions": [ACTION | {"value": "{"}]}, "cannot be read", id="value"),
        pytest.param({"type": "block_actions", "actions": [ACTION | {"action_ts": "nan"}]}, "cannot be", id="nan"),
        pytest.param(
            {"type": "block_actions", "actions": [ACTION], "user": {"id": ""}}, "`id`: expected text", id="user"
        ),
    ],
)
def test_invalid_click_is_refused(payload: object, message: str) -> None:
    with pytest.raises(ClickError, match=message):
        read_click(payload)
