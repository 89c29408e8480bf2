"""Who is refused stands in the console's log, without secrets, and cannot fill it."""

import json

import httpx
import pytest

from gpufleet.console.server import MOST_REFUSALS, REFUSALS_S, ConsoleRequest, Refusals
from tests.fixtures.console.pages import TOKEN, FakeBook, serving


def test_a_refused_request_is_a_line_without_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeBook()) as url:
        httpx.post(f"{url}/alerts?x=secret-1", content=b"{}", headers={"Authorization": "Bearer secret-2"})
        httpx.post(f"{url}/sign-in", data={"token": "secret-3"})
        httpx.get(f"{url}/instances", headers={"Cookie": "gpufleet=secret-4"})
        httpx.get(f"{url}/healthz")
        httpx.post(f"{url}/alerts", content=b"x", headers={"Authorization": f"Bearer {TOKEN}"})
    said = capsys.readouterr().err
    lines = [json.loads(line) for line in said.splitlines()]
    assert [(one["method"], one["path"], one["status"]) for one in lines] == [
        ("POST", "/alerts", 401), ("POST", "/sign-in", 401), ("GET", "/instances", 401),
    ]  # fmt: skip
    assert {(one["event"], one["outcome"], one["client"]) for one in lines} == {("request", "refused", "127.0.0.1")}
    assert "secret" not in said
    assert TOKEN not in said


def test_a_flood_is_counted_and_not_written() -> None:
    now, lines = [0.0], list[str]()
    refusals = Refusals(lines.append, lambda: now[0])
    asked = ConsoleRequest(path="/\x1b[2J\n" + "x" * 900, query={}, form={}, headers={}, client="10.0.0.1")
    for _ in range(1000):
        refusals.note("GET", asked, 404)
    assert len(lines) == MOST_REFUSALS
    assert all("\x1b" not in line and line.count("\n") == 1 and len(line) < 600 for line in lines)
    now[0] += REFUSALS_S
    refusals.note("GET", asked, 404)
    assert json.loads(lines[-1])["left_out"] == 1000 - MOST_REFUSALS
