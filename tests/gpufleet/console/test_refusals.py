"""The console logs refused requests without secrets, and limits the number of log lines."""

import httpx

from gpufleet.console.server import MAX_REFUSALS, REFUSALS_S, Refusals
from gpufleet.http_server import HttpRequest
from tests.fixtures.console.pages import TOKEN, FakeConsoleData, serving
from tests.fixtures.logs import RecordedLog


def test_a_refused_request_is_a_line_without_a_secret() -> None:
    log = RecordedLog()
    with serving(FakeConsoleData(), log=log) as url:
        httpx.post(
            f"{url}/alerts?x=secret-1", content=b"{}", headers={"Authorization": "Bearer secret-2"}, timeout=60
        )
        httpx.post(f"{url}/sign-in", data={"token": "secret-3"}, timeout=60)
        httpx.get(f"{url}/instances", headers={"Cookie": "gpufleet=secret-4"}, timeout=60)
        httpx.get(f"{url}/healthz", timeout=60)
        httpx.post(f"{url}/alerts", content=b"x", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
    assert [(one["method"], one["path"], one["status"]) for one in log.lines] == [
        ("POST", "/alerts", 401), ("POST", "/sign-in", 401), ("GET", "/instances", 401),
    ]  # fmt: skip
    assert {(one["event"], one["outcome"], one["client"]) for one in log.lines} == {
        ("request", "refused", "127.0.0.1")
    }
    assert "secret" not in str(log.lines)
    assert TOKEN not in str(log.lines)


def test_flood_is_counted_and_not_logged() -> None:
    now, log = [0.0], RecordedLog()
    refusals = Refusals(log, lambda: now[0])
    asked = HttpRequest(method="GET", path="/\x1b[2J\n" + "x" * 900, client=("10.0.0.1", 1))
    for _ in range(1000):
        refusals.note(asked, 404)
    assert len(log.lines) == MAX_REFUSALS
    assert all(len(line["path"]) == 200 for line in log.lines)
    now[0] += REFUSALS_S
    refusals.note(asked, 404)
    assert log.lines[-1]["left_out"] == 1000 - MAX_REFUSALS
