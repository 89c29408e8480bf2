"""The checks of notifications detect an outbox that loses a message or has it twice, without reading the outbox."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

import pytest

from tests.chaos import notifications
from tests.chaos.evidence import ENDED_BY_US, TAKEN_BY_CLOUD, BrokenGpu, RunRecord
from tests.chaos.notifications import Fired
from tests.fixtures.networks import served

NOON: Final = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
"""Times of the following events are seconds after it."""
GPU: Final = BrokenGpu(instance="i-gpu", error=(NOON + 100, NOON + 130), missing=(NOON + 130, NOON + 300))
ERRORS: Final = Fired(name="GpuErrors", pool="chat", instance="i-gpu", span=(NOON + 102, NOON + 132))
GPU_MISSING: Final = Fired(name="GpuGone", pool="chat", instance="i-gpu", span=(NOON + 252, NOON + 301))
DAY: Final = Fired(name="RouterProblem", pool="", instance="", span=(NOON + 1000, NOON + 1001))
"""Too short to require a notification; the last alert in the data of Prometheus."""
DRY: Final = (NOON + 400, NOON + 460)
REFUSED: Final = {f"chat-spot-{zone}": [NOON + 402, NOON + 410, NOON + 430] for zone in "abc"}


def stay(instance: str, **changed: Any) -> dict[str, Any]:
    values = {
        "instance": instance,
        "pool": "chat",
        "capacity_type": "spot",
        "launched": "2026-11-21T11:00:00+00:00",
        "ended": "2026-11-21T12:10:00+00:00",
        "why": TAKEN_BY_CLOUD,
    }
    return values | changed


BILLING_LOG: Final = (
    stay("i-too-many", why=ENDED_BY_US),
    stay("i-idle", pool="batch", why=ENDED_BY_US),
    stay("i-fallback", capacity_type="on-demand", launched="2026-11-21T12:07:30+00:00", ended=None, why=None),
    stay("i-lost"),
)


def message(key: str, text: str) -> dict[str, Any]:
    return {"text": text, "metadata": {"event_payload": {"key": key}}}


def alert(key: str, name: str, *, ends: bool = False) -> dict[str, Any]:
    head = f"{'Resolved: ' if ends else ''}{name} (environment local, fleet aws-local, pool chat)"
    return message(f"aws-local/alert/{key}", head if ends else f"{head}\n• A GPU of i-gpu (chat) reports XID")


SINK: Final = (
    message("f/spot:ended:i-too-many", "i-too-many of pool chat was ended"),
    message("f/idle:marked:i-idle:20261121t1150z", "i-idle is idle"),
    message("f/idle:ended:i-idle", "i-idle of pool batch was ended"),
    message("f/spot:fallback:chat-od-1:20261121t1207", "Pool chat: on-demand replaces missing spot"),
    alert("1/firing", "GpuErrors"),
    alert("1/resolved", "GpuErrors", ends=True),
    alert("2/firing", "GpuGone"),
    alert("2/resolved", "GpuGone", ends=True),
    message("f/spot:dry:chat:20261121", "Pool chat: no spot capacity in 3 zones."),
)


def judge(
    sink: Sequence[Mapping[str, Any]],
    *,
    seen: Sequence[Fired] = (ERRORS, GPU_MISSING, DAY),
    billing_log: Sequence[Mapping[str, Any]] = BILLING_LOG,
    broken: Sequence[BrokenGpu] = (GPU,),
    dry: Sequence[tuple[float, float]] = (DRY,),
    notices: Sequence[float] = (NOON + 70,),
    refused: Mapping[str, Sequence[float]] = REFUSED,
    blind: Sequence[tuple[float, float]] = (),
) -> list[str]:
    """All violations that the checks report."""
    record = RunRecord(
        answered=9,
        failures=(),
        kills=(),
        taken=frozenset(),
        broken=broken,
        dry=dry,
        notices=notices,
        blind=blind,
    )
    verdicts = (
        notifications.notified_events(billing_log, sink),
        notifications.alerts(seen, sink, record),
        notifications.dry(refused, sink, record),
    )
    return [one for verdict in verdicts for one in verdict.wrong]


def test_complete_notifications_pass() -> None:
    assert judge(SINK) == []


@pytest.mark.parametrize(
    ("ended", "wrong"),
    [
        pytest.param("2026-11-21T11:00:06+00:00", [], id="taken back with its ask"),
        pytest.param(
            "2026-11-21T11:01:00+00:00", ["no notification of the end of i-early"], id="ended after a while"
        ),
    ],
)
def test_end_of_an_instance_from_a_withdrawn_request(ended: str, wrong: list[str]) -> None:
    assert judge(SINK, billing_log=[*BILLING_LOG, stay("i-early", ended=ended, why=ENDED_BY_US)]) == wrong


@pytest.mark.parametrize("number", range(len(SINK)))
def test_each_lost_message_is_detected(number: int) -> None:
    assert judge([*SINK[:number], *SINK[number + 1 :]]) != []


@pytest.mark.parametrize("number", range(len(SINK)))
def test_each_repeated_message_is_detected(number: int) -> None:
    assert judge([*SINK, SINK[number]]) != []


@pytest.mark.parametrize(
    ("again", "wrong"),
    [
        pytest.param(
            alert("3/firing", "GpuErrors"), "GpuErrors of chat: notified 2 times, it fired 1 times", id="alert"
        ),
        pytest.param(
            message("f/spot:dry:chat:20261121", "Pool chat: no spot capacity in 2 zones."),
            "notified 2 times on 20261121",
            id="no spot",
        ),
        pytest.param(message("f/idle:ended:i-idle", "ended"), "the end of i-idle was notified 2 times", id="end"),
        pytest.param(alert("9/firing", "GpuHot"), "GpuHot fired, and no fault causes it", id="for nothing"),
        pytest.param(
            alert("9/firing", "ErrorsHigh"), "notification of ErrorsHigh of chat, which never fired", id="made up"
        ),
    ],
)
def test_notifications_without_an_event_are_detected(again: dict[str, Any], wrong: str) -> None:
    assert wrong in judge([*SINK, again])


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        pytest.param((GPU_MISSING, DAY), "GpuErrors of i-gpu did not fire", id="a rule that does not see its fault"),
        pytest.param(
            (ERRORS, GPU_MISSING, DAY, Fired(name="GpuErrors", pool="chat", instance="i-2", span=(NOON, NOON + 1))),
            "GpuErrors fired for i-2, which no fault broke",
            id="a rule that sees what is not there",
        ),
        pytest.param(
            (ERRORS, GPU_MISSING, DAY, Fired(name="SpotLossHigh", pool="chat", instance="", span=(NOON, NOON + 1))),
            "SpotLossHigh fired for 1 spot instances within an hour",
            id="few losses",
        ),
        pytest.param(
            (ERRORS, GPU_MISSING, DAY, Fired(name="ErrorsHigh", pool="chat", instance="", span=(NOON, NOON + 60))),
            "ErrorsHigh of chat: notified 0 times, expected at least 1",
            id="fired without a notification",
        ),
    ],
)
def test_alerts_are_compared_with_the_faults(seen: Sequence[Fired], wrong: str) -> None:
    assert wrong in judge(SINK, seen=seen)


@pytest.mark.parametrize(
    ("blind", "wrong"),
    [
        pytest.param((), 2, id="it ended and began again: neither was notified"),
        pytest.param(((NOON + 134, NOON + 290),), 0, id="Prometheus was down between"),
        pytest.param(((NOON + 280, NOON + 290),), 2, id="it was down for a part"),
        pytest.param(((NOON + 600, NOON + 900),), 2, id="it was down another time"),
    ],
)
def test_prometheus_outage_does_not_split_an_alert(blind: Sequence[tuple[float, float]], wrong: int) -> None:
    again = Fired(name="GpuErrors", pool="chat", instance="i-gpu", span=(NOON + 292, NOON + 330))
    assert len(judge(SINK, seen=(ERRORS, again, GPU_MISSING, DAY), blind=blind)) == wrong


@pytest.mark.parametrize(
    ("notices", "wrong"),
    [
        pytest.param([NOON + number for number in range(4)], 1, id="four within the hour"),
        pytest.param([NOON + 1300 * number for number in range(4)], 0, id="four in more than an hour"),
        pytest.param([NOON], 0, id="one"),
    ],
)
def test_many_spot_losses_require_an_alert(notices: Sequence[float], wrong: int) -> None:
    violation = "the cloud took 4 spot instances within an hour and SpotLossHigh did not fire"
    assert judge(SINK, notices=notices) == [violation] * wrong


@pytest.mark.parametrize(
    ("dry", "refused", "wrong"),
    [
        pytest.param((DRY,), REFUSED, [], id="all refused"),
        pytest.param((), REFUSED, ["notified on 20261121, although spot capacity was available"], id="never dry"),
        pytest.param((DRY,), REFUSED | {"chat-spot-c": []}, [], id="one zone was not asked"),
    ],
)
def test_notification_of_missing_spot_requires_refusals(
    dry: Sequence[tuple[float, float]], refused: Mapping[str, Sequence[float]], wrong: list[str]
) -> None:
    assert judge(SINK, dry=dry, refused=refused) == wrong


def test_missing_notification_of_missing_spot_is_detected() -> None:
    assert judge(SINK[:-1]) == ["no zone had spot capacity 1 times, and no message was posted"]


def test_moments_are_grouped_into_spans() -> None:
    assert notifications.spans([5, 1, 2, 3, 9, 10], 2) == [(1, 5), (9, 10)]
    assert notifications.spans([], 2) == []


@pytest.fixture
def prometheus() -> Iterator[str]:
    """A server that answers one query with two series."""
    result = [
        {
            "metric": {"alertname": "GpuErrors", "pool": "chat", "instance_id": "i-1"},
            "values": [[100, "1"], [101, "1"], [130, "1"]],
        },
        {"metric": {"alertname": "RouterGone"}, "values": [[7, "1"]]},
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": {"result": result}}).encode())

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002 - the base class's name
            """Log nothing."""

    with served(HTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_fired_alerts_are_read_from_prometheus(prometheus: str) -> None:
    assert notifications.fired(prometheus) == [
        Fired(name="GpuErrors", pool="chat", instance="i-1", span=(100, 101)),
        Fired(name="GpuErrors", pool="chat", instance="i-1", span=(130, 130)),
        Fired(name="RouterGone", pool="", instance="", span=(7, 7)),
    ]
