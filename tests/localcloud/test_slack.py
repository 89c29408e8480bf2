"""The Slack sink: accepted and refused requests, and its page, with the real slack_sdk."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from localcloud.slack.messages import mrkdwn
from localcloud.slack.server import SlackSink
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.webhook import WebhookClient

from tests.fixtures import local_token


@pytest.fixture
def sink() -> Iterator[tuple[SlackSink, str]]:
    made = SlackSink("127.0.0.1", 0, local_token.callers())
    made.start()
    yield made, f"http://127.0.0.1:{made.port}"
    made.stop()


def _get(url: str) -> str:
    request = urllib.request.Request(url, headers=local_token.BEARER)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def _client(url: str) -> WebClient:
    return WebClient(token=local_token.BOT, base_url=f"{url}/api/", retry_handlers=[])


def test_webhook_message_is_stored_and_shown(sink: tuple[SlackSink, str]) -> None:
    _, url = sink
    blocks = [
        {"type": "header", "text": {"type": "plain_text", "text": "Idle <GPU>"}},
        {"type": "section", "text": {"type": "mrkdwn", "text": "*i-1* is `idle` & costs 1 < 2"}},
        {"type": "context", "elements": [{"type": "mrkdwn", "text": "keep it: _tag_"}]},
    ]
    answer = WebhookClient(f"{url}{local_token.WEBHOOK}", retry_handlers=[]).send(text="idle", blocks=blocks)
    assert (answer.status_code, answer.body) == (200, "ok")
    assert [message["text"] for message in json.loads(_get(f"{url}/messages"))] == ["idle"]
    page = _get(f"{url}/")
    assert "<h3>Idle &lt;GPU&gt;</h3>" in page
    assert "<b>i-1</b> is <code>idle</code> &amp; costs 1 &lt; 2" in page


def test_message_can_be_posted_changed_and_found_by_its_metadata(sink: tuple[SlackSink, str]) -> None:
    client = _client(sink[1])
    metadata = {"event_type": "report", "event_payload": {"key": "2026-11-20"}}
    made = client.chat_postMessage(channel="#gpu-cost", text="first", metadata=metadata)
    client.chat_update(channel="#gpu-cost", ts=str(made["ts"]), text="second")
    found: Any = client.conversations_history(channel="#gpu-cost", include_all_metadata=True)
    assert [(m["ts"], m["text"], m["metadata"]) for m in found["messages"]] == [(made["ts"], "second", metadata)]
    plain: Any = client.conversations_history(channel="#gpu-cost")
    assert "metadata" not in plain["messages"][0]
    assert not client.conversations_history(channel="#other")["messages"]


@pytest.mark.parametrize(
    ("blocks", "code"),
    [
        pytest.param([{"type": "divider"}] * 51, "invalid_blocks", id="too many blocks"),
        pytest.param(
            [{"type": "section", "text": {"type": "mrkdwn", "text": "x" * 3001}}], "invalid_blocks", id="long section"
        ),
        pytest.param(
            [{"type": "section", "text": {"type": "mrkdwn", "text": "x" * 2900}}] * 5,
            "msg_blocks_too_long",
            id="too long together",
        ),
    ],
)
def test_request_that_slack_refuses_is_refused(sink: tuple[SlackSink, str], blocks: list[Any], code: str) -> None:
    with pytest.raises(SlackApiError, match=code):
        _client(sink[1]).chat_postMessage(channel="#c", text="t", blocks=blocks)
    assert json.loads(_get(f"{sink[1]}/messages")) == []


def test_missing_token_or_text_is_refused(sink: tuple[SlackSink, str]) -> None:
    with pytest.raises(SlackApiError, match="not_authed"):
        WebClient(token="", base_url=f"{sink[1]}/api/").api_call(
            "chat.postMessage", json={"channel": "#c", "text": "t"}
        )
    with pytest.raises(SlackApiError, match="no_text"):
        _client(sink[1]).api_call("chat.postMessage", json={"channel": "#c"})


def test_change_of_a_missing_message_is_an_error(sink: tuple[SlackSink, str]) -> None:
    with pytest.raises(SlackApiError, match="message_not_found"):
        _client(sink[1]).chat_update(channel="#c", ts="1.0", text="t")


def test_sink_answers_429_as_often_as_requested(sink: tuple[SlackSink, str]) -> None:
    body = json.dumps({"times": 2, "retry_after": 3}).encode()
    request = urllib.request.Request(f"{sink[1]}/throttle", data=body, headers=local_token.BEARER)
    with urllib.request.urlopen(request, timeout=60):
        pass
    hook = WebhookClient(f"{sink[1]}{local_token.WEBHOOK}", retry_handlers=[])
    answers = [hook.send(text="t") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 429, 200]
    assert {name.lower(): value for name, value in answers[0].headers.items()}["retry-after"] == "3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("*b* _i_ `c`", "<b>b</b> <i>i</i> <code>c</code>", id="marks"),
        pytest.param("<script>", "&lt;script&gt;", id="no HTML comes through"),
        pytest.param("&lt;b&gt; &amp; x", "&lt;b&gt; &amp; x", id="Slack's escapes"),
        pytest.param("<http://a/b|see>", '<a href="http://a/b">see</a>', id="link"),
        pytest.param("a_b_c 2*3*4", "a_b_c 2*3*4", id="marks inside words"),
        pytest.param("x\n```\ncode *b*\n```", "x<br><pre>code *b*</pre>", id="code block"),
    ],
)
def test_markup_becomes_html(text: str, expected: str) -> None:
    assert mrkdwn(text) == expected


def test_invalid_json_on_the_webhook_is_refused(sink: tuple[SlackSink, str]) -> None:
    request = urllib.request.Request(f"{sink[1]}{local_token.WEBHOOK}", data=b"{", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    with caught.value as error:
        assert (error.code, error.read()) == (400, b"invalid_payload")
