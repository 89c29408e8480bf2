"""Messages over an unreliable network: each key arrives once and in order, even if processes die. Real HTTP and
SQLite.
"""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localcloud.slack.faults import Fault
from localcloud.slack.server import SlackSink
from sqlalchemy import Engine, update
from typer.testing import CliRunner

from cli.commands import build
from gpufleet.ledger.database import writing
from gpufleet.ledger.outbox import (
    Message,
    MessageState,
    counts,
    enqueue,
    escape,
    messages,
    open_channels,
    retry_refused,
)
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.tables import OUTBOX
from gpufleet.notify.buttons import with_buttons
from gpufleet.notify.deliver import Delivered, Delivery
from gpufleet.notify.messages import cut, digest_message, files_message, report_message
from gpufleet.notify.slack import (
    Answer,
    SlackBot,
    SlackSettingsError,
    SlackWebhook,
    TryLater,
    Unknown,
    from_environment,
    masked,
)
from gpufleet.toolchain.folders import ROOT
from tests.fixtures import local_token
from tests.fixtures.documents import a_document

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time


@pytest.fixture
def ledger(tmp_path: Path) -> Engine:
    return open_ledger(f"sqlite:///{tmp_path}/ledger.db")


@pytest.fixture
def sink() -> Iterator[SlackSink]:
    server = SlackSink("127.0.0.1", 0, local_token.callers())
    server.start()
    server.faults.hang_s = 0.4
    server.faults.retry_after = 0.5
    yield server
    server.stop()


def bot(sink: SlackSink, timeout_s: float = 60) -> SlackBot:
    """A bot that waits long enough for a busy machine; `timeout_s`: shorter than the sink hangs."""
    return SlackBot(local_token.BOT, f"{sink.url}/api/", timeout_s=timeout_s)


def put(ledger: Engine, keys: Sequence[str], channel: str = "#gpu-cost") -> None:
    with writing(ledger) as connection:
        for key in keys:
            enqueue(connection, Message(key=key, channel=channel, text=f"text of {key}"), NOW)


def run(ledger: Engine, receiver: SlackBot | SlackWebhook, clock: Clock, rounds: int = 1) -> Delivered:
    """Some rounds of delivery, ten seconds apart."""
    done = Delivered()
    for _ in range(rounds):
        done = Delivery(engine=ledger, receiver=receiver, now=clock.now).run()
        clock.time += timedelta(seconds=10)
    return done


def arrived(sink: SlackSink, channel: str = "#gpu-cost") -> list[str]:
    """Keys in the order of arrival."""
    return [m.content["metadata"]["event_payload"]["key"] for m in sink.channels.messages if m.channel == channel]


def test_messages_arrive_once_and_in_order(ledger: Engine, sink: SlackSink) -> None:
    put(ledger, ["a", "b", "c"])
    put(ledger, ["b", "d"])
    done = run(ledger, bot(sink), Clock())
    assert arrived(sink) == ["a", "b", "c", "d"]
    assert done.sent == 4
    assert run(ledger, bot(sink), Clock()).sent == 0


@pytest.mark.parametrize("fault", list(Fault))
def test_a_fault_neither_loses_nor_doubles_a_message(ledger: Engine, sink: SlackSink, fault: Fault) -> None:
    sink.faults.queue = [fault]
    put(ledger, ["a", "b"])
    clock = Clock()
    run(ledger, bot(sink, 0.2) if fault is Fault.HANG_AFTER else bot(sink), clock)
    assert arrived(sink) == (["a"] if fault.accepts else [])  # b waits behind a
    run(ledger, bot(sink), clock, rounds=2)
    assert arrived(sink) == ["a", "b"]
    assert counts(ledger)[MessageState.SENT] == 2


def test_retry_after_is_obeyed(ledger: Engine, sink: SlackSink) -> None:
    sink.faults.queue = [Fault.THROTTLE]
    sink.faults.retry_after = 30
    put(ledger, ["a"])
    clock = Clock()
    run(ledger, bot(sink), clock, rounds=3)
    assert arrived(sink) == []
    run(ledger, bot(sink), clock)
    assert arrived(sink) == ["a"]


def test_a_poster_that_died_after_the_post_is_followed_by_a_look(ledger: Engine, sink: SlackSink) -> None:
    put(ledger, ["a", "b"])

    class Dies(SlackBot):
        def post(self, *arguments: object, **more: object) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
            super().post(*arguments, **more)  # pyright: ignore[reportArgumentType]
            raise KeyboardInterrupt

    clock = Clock()
    with pytest.raises(KeyboardInterrupt):
        run(ledger, Dies(local_token.BOT, f"{sink.url}/api/"), clock)
    assert run(ledger, bot(sink), clock).sent == 0  # another process may still be working on it
    clock.time += timedelta(minutes=2)
    assert run(ledger, bot(sink), clock).found == 1
    assert arrived(sink) == ["a", "b"]


def test_webhook_marks_a_possible_repeat(ledger: Engine, sink: SlackSink) -> None:
    sink.faults.queue = [Fault.ERROR_AFTER]
    put(ledger, ["a"])
    hook, clock = SlackWebhook(f"{sink.url}{local_token.WEBHOOK}"), Clock()
    run(ledger, hook, clock)
    assert run(ledger, hook, clock).possible_repeats == 1
    assert [m.content["text"] for m in sink.channels.messages] == ["text of a", "(possible repeat) text of a"]


def test_a_refused_message_does_not_stop_the_next_one(ledger: Engine, sink: SlackSink) -> None:
    with writing(ledger) as connection:
        blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": "x" * 3001}}]
        enqueue(connection, Message(key="bad", channel="#c", text="t", detail={"blocks": blocks}), NOW)
    put(ledger, ["good"], "#c")
    assert run(ledger, bot(sink), Clock()).refused == 1
    assert arrived(sink, "#c") == ["good"]
    (refused,) = messages(ledger, (MessageState.REFUSED,))
    assert refused.error == "invalid_blocks"


def test_refused_message_is_sent_after_retry(ledger: Engine, sink: SlackSink, tmp_path: Path) -> None:
    with writing(ledger) as connection:
        enqueue(connection, Message(key="lost", channel="#nowhere", text="text", detail={}), NOW)
        connection.execute(update(OUTBOX).values(state=MessageState.REFUSED.value, error="channel_not_found"))
    place = tmp_path / "fleet.json"
    place.write_text(json.dumps(a_document() | {"ledger_url": str(ledger.url)}))
    done = CliRunner().invoke(build("slack"), ["slack", "retry", "--fleet", str(place)])
    assert (done.exit_code, done.output) == (0, "dev: 1 refused message queued again\n")
    later = Clock()
    later.time = datetime.now(UTC) + timedelta(minutes=1)
    run(ledger, bot(sink), later)
    assert arrived(sink, "#nowhere") == ["lost"]


def test_channels_do_not_wait_for_each_other(ledger: Engine, sink: SlackSink) -> None:
    put(ledger, ["a1", "a2"], "#a")
    put(ledger, ["b1"], "#b")
    sink.faults.queue = [Fault.THROTTLE]
    run(ledger, bot(sink), Clock())
    assert (arrived(sink, "#a"), arrived(sink, "#b")) == ([], ["b1"])


def test_an_answer_in_a_thread_names_its_parent(ledger: Engine, sink: SlackSink) -> None:
    put(ledger, ["parent"])
    with writing(ledger) as connection:
        enqueue(connection, Message(key="child", channel="#gpu-cost", text="t", detail={"thread": "parent"}), NOW)
    run(ledger, bot(sink), Clock())
    parent, child = sink.channels.messages
    assert child.content["thread_ts"] == parent.ts


def test_two_concurrent_senders_post_once(ledger: Engine, sink: SlackSink) -> None:
    put(ledger, [f"m{n}" for n in range(20)])
    clock = Clock()
    deliveries = [Delivery(engine=ledger, receiver=bot(sink), now=clock.now) for _ in range(2)]
    for _ in range(20):
        for delivery in deliveries:
            delivery.run(most=1)
    assert arrived(sink) == [f"m{n}" for n in range(20)]


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        pytest.param({"GPUFLEET_SLACK_TOKEN": "xoxb-1"}, SlackBot, id="token"),
        pytest.param(
            {"GPUFLEET_SLACK_WEBHOOK": "https://hooks.slack.com/services/T/B/x"}, SlackWebhook, id="webhook"
        ),
    ],
)
def test_environment_selects_the_receiver(environ: dict[str, str], kind: type) -> None:
    assert isinstance(from_environment(environ), kind)


def test_a_wrong_webhook_is_never_shown_in_full() -> None:
    with pytest.raises(SlackSettingsError, match="expected an https:// address") as caught:
        from_environment({"GPUFLEET_SLACK_WEBHOOK": "http://hooks.slack.com/services/T000/B000/verysecret"})
    assert "verysecret" not in str(caught.value)
    assert masked("https://hooks.slack.com/services/T000/B000/verysecret") == "https://hooks.slack.com…et"


@pytest.mark.parametrize(
    "url", ["http://127.evil.example/x", "http://127.0.0.1.evil.example", "http://hooks.slack.com"]
)
@pytest.mark.parametrize("variable", ["GPUFLEET_SLACK_WEBHOOK", "GPUFLEET_SLACK_API_URL"])
def test_unencrypted_urls_are_allowed_only_on_loopback(variable: str, url: str) -> None:
    token = {"GPUFLEET_SLACK_TOKEN": "xoxb-1"} if variable.endswith("API_URL") else {}
    with pytest.raises(SlackSettingsError, match=f"{variable}: expected an https:// address"):
        from_environment({variable: url, **token})
    assert from_environment({variable: "http://127.0.0.1:8081/api/", **token})


def test_without_settings_the_error_names_them() -> None:
    with pytest.raises(SlackSettingsError, match="GPUFLEET_SLACK_TOKEN"):
        from_environment({})


def test_a_long_report_stays_within_the_limits_of_slack(ledger: Engine, sink: SlackSink) -> None:
    body = "\n".join(f"pool-{n:04}  <{'9' * 90}>" for n in range(2_000))
    with writing(ledger) as connection:
        enqueue(connection, replace(report_message("cost", "title " * 1_000, body), key="long", channel="#c"), NOW)
    assert run(ledger, bot(sink), Clock()).sent == 1
    assert "gpufleet report cost" in json.dumps(sink.channels.messages[0].content)


def test_files_arrive_once_in_the_thread_of_their_message(ledger: Engine, sink: SlackSink) -> None:
    put(ledger, ["a"])
    files = replace(files_message("a", "t", [("x.csv", "x", b"1,2")]), channel="#gpu-cost")
    with writing(ledger) as connection:
        enqueue(connection, files, NOW)

    class Dies(SlackBot):
        def post(self, *arguments: object, **more: object) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
            done = super().post(*arguments, **more)  # pyright: ignore[reportArgumentType]
            if str(arguments[1]).endswith("/files"):
                raise KeyboardInterrupt
            return done

    clock = Clock()
    with pytest.raises(KeyboardInterrupt):
        run(ledger, Dies(local_token.BOT, f"{sink.url}/api/"), clock)
    clock.time += timedelta(minutes=2)
    assert run(ledger, bot(sink), clock).found == 1
    parent, child = sink.channels.messages
    assert child.content["thread_ts"] == parent.ts
    assert [sink.files.contents[file["id"]] for file in child.content["files"]] == [b"1,2"]


def test_four_hundred_messages_through_every_fault(ledger: Engine, sink: SlackSink) -> None:
    """The fast form of the slow test below: no process is killed, and the test advances the clock."""
    for channel in ("#c0", "#c1"):
        put(ledger, [f"{channel}/{n}" for n in range(200)], channel)
    sink.faults.retry_after, sink.faults.hang_s = 0.5, 0.25
    sink.faults.draw(list(Fault), 0.1, seed=7)
    clock = Clock()
    for _ in range(400):
        if not open_channels(ledger):
            break
        run(ledger, bot(sink, 0.2), clock)
    assert counts(ledger)[MessageState.SENT] == 400
    for channel in ("#c0", "#c1"):
        assert arrived(sink, channel) == [f"{channel}/{n}" for n in range(200)]


POSTER = """
import sys
from datetime import UTC, datetime, timedelta
from gpufleet.ledger.schema import open_ledger
from gpufleet.domain.clocks import WallClock
from gpufleet.notify.deliver import Delivery
from gpufleet.notify.slack import SlackBot
from tests.fixtures import local_token
bot = SlackBot(local_token.BOT, sys.argv[2], timeout_s=0.2)
delivery = Delivery(engine=open_ledger(sys.argv[1]), receiver=bot, now=WallClock().now,
                    sending_timeout=timedelta(seconds=0.3), look_up_delay=timedelta(seconds=0.05))
print("at work", flush=True)
while delivery.run(most=50).later is not None:
    pass
"""


@pytest.mark.slow
def test_four_thousand_messages_through_faults_and_kills(tmp_path: Path, sink: SlackSink) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger, channels, wanted = open_ledger(url), [f"#c{n}" for n in range(4)], 1_000
    for channel in channels:
        put(ledger, [f"{channel}/{n}" for n in range(wanted)], channel)
    sink.faults.retry_after = 0.02
    sink.faults.hang_s = 0.25
    sink.faults.draw(list(Fault), 0.03, seed=7)
    chance, kills, deadline = random.Random(7), 0, time.monotonic() + 400
    while open_channels(ledger) and time.monotonic() < deadline:
        command = [sys.executable, "-c", POSTER, url, f"{sink.url}/api/"]
        poster = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert poster.stdout is not None and poster.stdout.readline() == "at work\n"
            end = time.monotonic() + chance.uniform(3, 6)
            while time.monotonic() < end and open_channels(ledger):
                time.sleep(0.2)
        finally:
            poster.send_signal(signal.SIGKILL)
            poster.communicate(timeout=180)
        kills += 1
    assert counts(ledger)[MessageState.SENT] == 4_000
    for channel in channels:
        assert arrived(sink, channel) == [f"{channel}/{n}" for n in range(wanted)]
    assert kills >= 3


@pytest.mark.parametrize(
    "refusal", [pytest.param("missing_scope", id="no scope"), pytest.param("not_in_channel", id="not a member")]
)
def test_message_without_a_look_up_is_sent_again_and_marked(ledger: Engine, sink: SlackSink, refusal: str) -> None:
    sink.faults.queue = [Fault.ERROR_AFTER]
    sink.channels.unsearchable = refusal
    put(ledger, ["a", "b", "c"])
    clock = Clock()
    run(ledger, bot(sink), clock, rounds=3)
    assert arrived(sink) == ["a"]
    run(ledger, bot(sink), clock, rounds=6)
    assert arrived(sink) == ["a", "a", "b", "c"]
    texts = [str(message.content["text"]) for message in sink.channels.messages]
    assert texts[:2] == ["text of a", "(possible repeat) text of a"]
    assert counts(ledger)[MessageState.SENT] == 3


def test_message_that_fails_for_hours_does_not_block_others(ledger: Engine, sink: SlackSink) -> None:
    class Picky(SlackBot):
        def post(self, channel: str, key: str, text: str, detail: Mapping[str, Any], thread: str | None) -> Answer:
            if key == "a":
                return TryLater(error="internal_error")
            return super().post(channel, key, text, detail, thread)

    put(ledger, ["a", "b", "c"])
    clock = Clock()
    run(ledger, Picky(local_token.BOT, f"{sink.url}/api/"), clock, rounds=200)
    assert arrived(sink) == ["b", "c"]
    assert counts(ledger)[MessageState.WAITING] == 1
    clock.time += timedelta(minutes=5)
    run(ledger, bot(sink), clock)
    assert arrived(sink) == ["b", "c", "a"]


def test_message_without_a_confirmed_post_is_given_up(ledger: Engine) -> None:
    class Unreachable:
        can_look_up = True

        def post(self, channel: str, key: str, text: str, detail: Mapping[str, Any], thread: str | None) -> Answer:
            return Unknown(error="timed out")

        def look_up(self, channel: str, key: str, since: datetime) -> str | None:
            raise OSError("timed out")

    put(ledger, ["a"])
    clock = Clock()
    for _ in range(200):
        Delivery(engine=ledger, receiver=Unreachable(), now=clock.now).run()
        clock.time += timedelta(minutes=5)
    [given_up] = messages(ledger, [MessageState.REFUSED])
    assert given_up.error == "delivery was never confirmed: timed out"


@pytest.mark.parametrize("arrives", [True, False])
def test_message_that_was_given_up_is_looked_up_when_it_is_retried(
    ledger: Engine, sink: SlackSink, *, arrives: bool
) -> None:
    class Unconfirmed(SlackBot):
        def post(self, channel: str, key: str, text: str, detail: Mapping[str, Any], thread: str | None) -> Answer:
            if arrives and arrived(sink) == ["earlier"]:
                super().post(channel, key, text, detail, thread)
            return Unknown(error="timed out")

        def look_up(self, channel: str, key: str, since: datetime) -> str | None:
            raise OSError("timed out")

    clock = Clock()
    put(ledger, ["earlier"])
    run(ledger, bot(sink), clock)
    put(ledger, ["a"])
    receiver = Unconfirmed(local_token.BOT, f"{sink.url}/api/")
    for _ in range(200):
        Delivery(engine=ledger, receiver=receiver, now=clock.now).run()
        clock.time += timedelta(minutes=5)
    assert counts(ledger)[MessageState.REFUSED] == 1
    assert retry_refused(ledger, clock.time) == 1
    done = run(ledger, bot(sink), clock)
    assert (done.found, done.sent) == ((1, 0) if arrives else (0, 1))
    assert arrived(sink) == ["earlier", "a"]


def test_files_for_an_unknown_channel_are_refused_with_the_cause(ledger: Engine, sink: SlackSink) -> None:
    with writing(ledger) as connection:
        enqueue(connection, replace(files_message("a", "t", [("x.csv", "x", b"1,2")]), channel="#nowhere"), NOW)
    assert run(ledger, bot(sink), Clock()).refused == 1
    (refused,) = messages(ledger, (MessageState.REFUSED,))
    assert refused.error == "Slack lists no channel #nowhere that this bot may see"


EVIL = "<!channel> & <https://evil.example|approve>"


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Message(key="k", channel="#c", text=EVIL), id="text"),
        pytest.param(report_message("cost", EVIL, EVIL), id="report"),
        pytest.param(digest_message("title", [(EVIL, EVIL, EVIL)], [EVIL], EVIL, [EVIL]), id="digest"),
        pytest.param(files_message("k", EVIL, [("a.csv", "a", b"1")]), id="files"),
        pytest.param(
            Message(key="k", channel="#c", text=EVIL, detail={"blocks": with_buttons(EVIL, "f", "i", "k")}),
            id="buttons",
        ),
        pytest.param(Message(key="k", channel="#c", text="keeps it", mention=EVIL), id="mention"),
    ],
)
def test_untrusted_texts_neither_mention_nor_link(ledger: Engine, message: Message) -> None:
    with writing(ledger) as connection:
        enqueue(connection, replace(message, key="k", channel="#c"), NOW)
    [stored] = messages(ledger)
    assert "<" not in stored.message.text
    shown = json.dumps([block for block in stored.message.detail.get("blocks", []) if block["type"] != "header"])
    assert "<" not in shown
    assert "&amp;lt;" not in shown + stored.message.text
    assert "&lt;!channel&gt; &amp; &lt;https:" in shown + stored.message.text


@given(st.text(alphabet="a&<>\n", max_size=400), st.integers(10, 120))
def test_cut_text_stays_within_its_limit_once_escaped(text: str, most: int) -> None:
    kept = cut(text, most)
    assert len(escape(kept)) <= most
    assert kept == text or (kept.endswith("…") and text.startswith(kept[:-1]))
    assert kept == text or len(escape(kept)) > most - 10
