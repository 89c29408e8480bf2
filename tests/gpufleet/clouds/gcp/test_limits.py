"""Time limits of Compute Engine calls, with the real clients and temporarily unavailable servers."""

import contextlib
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpufleet.clouds.gcp.calls import ENDPOINT, OPERATION_LIMIT_S, GoogleCalls
from gpufleet.domain.activity import CloudError
from tests.fixtures.networks import served

Answer = tuple[int, dict[str, Any]]
Answers = Callable[[str], Answer]
ABSENT: Answer = (503, {"error": {"code": 503, "message": "come back later"}})
PLACE = {"zone": "us-central1-a", "instance": "x"}
LIMIT_S = 0.5


class Compute:
    """A server with a response per test. It records its requests: the page token, else the last part of the path."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Answers = lambda _: ABSENT


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compute]:
    fake = Compute()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            what = parse_qs(url.query).get("pageToken", [url.path.rpartition("/")[2]])[0]
            fake.asked.append(what)
            status, body = fake.answer(what)
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            """Suppress the log."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.server_address[1]}")
        yield fake


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda calls: calls.one("instances", "get", **PLACE), id="one"),
        pytest.param(lambda calls: list(calls.pages("instances", "aggregated_list")), id="pages"),
    ],
)
def test_a_read_is_retried_within_its_limit(compute: Compute, read: Callable[[GoogleCalls], object]) -> None:
    with pytest.raises(CloudError, match="failed: Timeout of 0.5s exceeded.*come back later"):
        read(GoogleCalls("p", call_limit_s=LIMIT_S))
    assert len(compute.asked) > 1


@pytest.mark.timeout(20)
def test_each_page_has_its_own_limit(compute: Compute) -> None:
    compute.answer = lambda page: ABSENT if page == "second" else (200, {"items": [], "nextPageToken": "second"})
    with pytest.raises(CloudError, match="come back later"):
        list(GoogleCalls("p", call_limit_s=LIMIT_S).pages("zone_operations", "list", zone="us-central1-a"))
    assert compute.asked[0] == "operations"
    assert set(compute.asked[1:]) == {"second"}
    assert len(compute.asked) > 2


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("last", "made"),
    [
        pytest.param((200, {"items": [{"name": "c"}]}), 3, id="whole"),
        pytest.param(ABSENT, 3, id="the last page fails"),
        pytest.param((200, {}), 3, id="an empty page"),
    ],
)
def test_every_page_counts_as_a_call(compute: Compute, last: Answer, made: int) -> None:
    pages = {
        "operations": (200, {"items": [{"name": "a"}], "nextPageToken": "second"}),
        "second": (200, {"items": [{"name": "b"}], "nextPageToken": "last"}),
        "last": last,
    }
    compute.answer = pages.__getitem__
    calls = GoogleCalls("p", call_limit_s=LIMIT_S)
    with contextlib.suppress(CloudError):
        list(calls.pages("zone_operations", "list", zone="us-central1-a"))
    assert calls.counts == {"compute:zone_operations.list": made}


def test_a_read_succeeds_after_a_short_outage(compute: Compute) -> None:
    compute.answer = lambda _: ABSENT if len(compute.asked) < 3 else (200, {"name": "x"})
    assert GoogleCalls("p").one("instances", "get", **PLACE).name == "x"


def test_a_write_is_not_retried(compute: Compute) -> None:
    with pytest.raises(CloudError, match="come back later"):
        GoogleCalls("p").finish("instances", "stop", **PLACE)
    assert compute.asked == ["stop"]


class Clock:
    """A clock that only advances during `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def running(waits: int, clock: Clock, wait_s: float = 0.0) -> Answers:
    """An operation that is done after `waits` wait calls of `wait_s` seconds each."""
    left = waits

    def answer(what: str) -> Answer:
        nonlocal left
        if what == "wait":
            left -= 1
            clock.now += wait_s
        return 200, {"name": "op", "zone": "zones/us-central1-a", "status": "RUNNING" if left > 0 else "DONE"}

    return answer


@pytest.mark.parametrize(
    ("waits", "wait_s", "slept"),
    [
        pytest.param(0, 0.0, [], id="done at once"),
        pytest.param(1, 0.0, [], id="done by the first wait"),
        pytest.param(4, 0.0, [1.0, 1.0, 1.0], id="waits that come back at once"),
        pytest.param(3, 120.0, [], id="waits as long as Google waits"),
    ],
)
def test_wait_calls_that_return_at_once_are_delayed(
    compute: Compute, waits: int, wait_s: float, slept: list[float]
) -> None:
    clock = Clock()
    compute.answer = running(waits, clock, wait_s)
    GoogleCalls("p", clock=clock, sleep=clock.sleep).finish("instances", "stop", **PLACE)
    assert clock.slept == slept
    assert compute.asked == ["stop", *["wait"] * waits]


def test_an_operation_without_an_end_times_out(compute: Compute) -> None:
    clock = Clock()
    compute.answer = running(10_000, clock)
    with pytest.raises(CloudError, match=r"instances\.stop: not done after 300 s"):
        GoogleCalls("p", clock=clock, sleep=clock.sleep).finish("instances", "stop", **PLACE)
    assert len(compute.asked) <= OPERATION_LIMIT_S + 2


def test_an_operation_that_ends_with_an_error_raises_its_code(compute: Compute) -> None:
    error = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "the zone has none"}
    ended = {"name": "op-1", "status": "DONE", "zone": "zones/us-central1-a", "error": {"errors": [error]}}
    compute.answer = lambda _: (200, ended)
    with pytest.raises(CloudError, match=r"instances\.stop in p failed: ZONE_RESOURCE_POOL_EXHAUSTED") as caught:
        GoogleCalls("p").finish("instances", "stop", **PLACE)
    assert caught.value.code == "ZONE_RESOURCE_POOL_EXHAUSTED"
