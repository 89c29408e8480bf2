"""Alertmanager's posts become messages: one when a group fires, one more when it is resolved, none twice."""

import contextlib
import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.console.alerts import WebhookError, read
from tests.fixtures.console.pages import TOKEN, FakeConsoleData, serving


def post(states: list[str], started: str = "2026-11-21T02:00:00Z", group: str = '{}:{alertname="GpuHot"}') -> Any:
    alerts = [
        {
            "status": state,
            "labels": {"alertname": "GpuHot", "instance_id": f"i-{number}"},
            "annotations": {"summary": f"A GPU of i-{number} is at 91 °C", "runbook": "docs/runbook.md#gpuhot"},
            "startsAt": started,
        }
        for number, state in enumerate(states)
    ]
    labels = {"alertname": "GpuHot", "pool": "chat"}
    status = "firing" if "firing" in states else "resolved"
    return {"version": "4", "groupKey": group, "status": status, "groupLabels": labels, "alerts": alerts}


def test_five_hundred_instances_make_one_message() -> None:
    notice = read(post(["firing"] * 500))
    assert notice is not None
    assert notice.text.splitlines()[0] == "GpuHot (pool chat): 500 firing"
    assert "and 495 more" in notice.text
    assert "docs/runbook.md#gpuhot" in notice.text
    assert len(notice.text) < 1000


def test_repeated_post_is_the_same_message_and_resolution_is_another() -> None:
    first, again, end = (read(post(s)) for s in (["firing"], ["firing", "resolved"], ["resolved", "resolved"]))
    assert first is not None
    assert again is not None
    assert end is not None
    assert first.key == again.key
    assert end.key != first.key
    assert end.text == "Resolved: GpuHot (pool chat), 2 alerts"


def test_same_alert_on_another_day_is_another_message() -> None:
    one, two = read(post(["firing"])), read(post(["firing"], started="2026-11-22T02:00:00Z"))
    assert one is not None
    assert two is not None
    assert one.key != two.key


def test_growing_group_is_one_message_and_a_later_failure_is_another() -> None:
    keys: list[str] = []
    for starts in (["02:00"], ["02:00", "02:50"], ["02:00", "02:50", "02:59"], ["02:00", "02:50", "05:00"]):
        posted = post(["firing"] * len(starts))
        for alert, start in zip(posted["alerts"], starts, strict=True):
            alert["startsAt"] = f"2026-11-21T{start}:00.123456789Z"
        notice = read(posted)
        assert notice is not None
        keys.append(notice.key)
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_truncated_alerts_are_counted() -> None:
    notice = read(post(["firing"] * 10) | {"truncatedAlerts": 490})
    assert notice is not None
    assert notice.firing == 500
    assert ": 500 firing" in notice.text


def test_empty_group_has_no_message() -> None:
    assert read(post([])) is None


@pytest.mark.parametrize(
    "posted",
    [None, [], "x", {}, {"version": "3"}, {"version": "4", "alerts": {}}, {"version": "4", "alerts": ["x"]},
     {"version": "4", "alerts": [{"status": "firing", "annotations": []}]},
     {"version": "4", "alerts": [{"status": "firing", "startsAt": "now"}]},
     {"version": "4", "alerts": [{"status": "firing", "startsAt": "2026-11-21T02:00:00"}]}],
)  # fmt: skip
def test_invalid_webhook_is_refused(posted: object) -> None:
    with pytest.raises(WebhookError):
        read(posted)


@given(st.recursive(st.none() | st.booleans() | st.text(max_size=5), lambda x: st.lists(x) | st.dictionaries(
    st.sampled_from(["version", "alerts", "status", "groupLabels", "annotations"]), x), max_leaves=8))  # fmt: skip
def test_any_json_is_read_or_refused(posted: object) -> None:
    with contextlib.suppress(WebhookError):
        read(posted)


def test_webhook_needs_the_token_and_names_the_error() -> None:
    data = FakeConsoleData()
    bearer = {"authorization": f"Bearer {TOKEN}"}
    with serving(data) as url:
        assert httpx.post(f"{url}/alerts", json=post(["firing"]), timeout=60).status_code == 401
        assert httpx.post(f"{url}/alerts", content=b"{", headers=bearer, timeout=60).status_code == 400
        assert httpx.post(f"{url}/alerts", content=b"[" * 100_000, headers=bearer, timeout=60).status_code == 400
        assert (
            httpx.post(f"{url}/alerts", content=json.dumps(post(["firing"])), headers=bearer, timeout=60).status_code
            == 200
        )
        data.broken = "the ledger is locked"
        assert httpx.post(f"{url}/alerts", json=post(["firing"]), headers=bearer, timeout=60).status_code == 503, (
            "try again"
        )
    assert [notice.firing for notice in data.notified] == [1]
