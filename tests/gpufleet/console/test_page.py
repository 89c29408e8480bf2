"""The web page over real HTTP: access, content, and its one action."""

import re
import socket
from collections.abc import Iterator
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from app.errors import AppError
from cli.commands import build as command
from gpufleet.console.access import PROXY_SECRET, SESSION_S, Access
from gpufleet.console.view import FleetData, build
from gpufleet.domain.decisions import Reason
from tests.fixtures.console.fleet import NOW, busy_view, document, instance
from tests.fixtures.console.pages import TOKEN, FakeConsoleData, serving


@pytest.fixture
def data() -> FakeConsoleData:
    return FakeConsoleData()


@pytest.fixture
def signed_in(data: FakeConsoleData) -> Iterator[httpx.Client]:
    with serving(data) as url, httpx.Client(base_url=url, follow_redirects=True, timeout=60) as client:
        assert client.post("/sign-in", data={"token": TOKEN}).status_code == 200
        yield client


def stamp_of(page: str) -> str:
    found = re.search(r'name="stamp" value="([0-9a-f]+)"', page)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("path", ["/", "/status.json", "/costs", "/history", "/instances", "/instance/i-1", "/other"])
def test_nothing_of_the_fleet_is_shown_without_signing_in(data: FakeConsoleData, path: str) -> None:
    with serving(data) as url:
        answer = httpx.get(url + path, timeout=60)
    assert answer.status_code == 401
    assert "aws/prod" not in answer.text
    assert 'type="password"' in answer.text


def test_a_wrong_token_is_refused_and_a_right_one_gives_a_strict_cookie(data: FakeConsoleData) -> None:
    with serving(data) as url:
        wrong = httpx.post(f"{url}/sign-in", data={"token": TOKEN + "x"}, timeout=60)
        right = httpx.post(f"{url}/sign-in", data={"token": TOKEN}, timeout=60)
    assert (wrong.status_code, right.status_code) == (401, 303)
    assert "set-cookie" not in wrong.headers
    assert all(word in right.headers["set-cookie"] for word in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert TOKEN not in right.headers["set-cookie"]


@pytest.mark.parametrize(
    ("cookie", "later", "known"),
    [("", 0, True), ("", SESSION_S + 1, False), ("x", 0, False), ("9999999999.forged", 0, False)],
    ids=["good", "too-old", "changed", "forged"],
)
def test_a_session_is_signed_and_ends(cookie: str, later: float, known: bool) -> None:
    access = Access(token=TOKEN)
    value = cookie if len(cookie) > 1 else access.session(1000) + cookie
    assert (access.user({"cookie": f"gpufleet={value}"}, 1000 + later) is not None) is known


def test_proxy_header_counts_only_with_the_proxy_secret() -> None:
    access = Access(token=TOKEN, proxy_header="X-Forwarded-User", proxy_secret="p" * 16)
    headers = {"x-forwarded-user": "ann"}
    known = headers | {"x-gpufleet-proxy-secret": "p" * 16}
    assert access.user(known, 0) == "ann"
    # every process of the machine and every forwarded port connects from loopback, too
    assert access.user(headers, 0) is None
    assert access.user(headers | {"x-gpufleet-proxy-secret": "wrong"}, 0) is None
    assert access.user(headers | {"x-gpufleet-proxy-secret": ""}, 0) is None
    assert access.user({"x-gpufleet-proxy-secret": "p" * 16}, 0) is None
    assert Access(token=TOKEN, proxy_header="X-Forwarded-User").user(known, 0) is None
    assert Access(token=TOKEN, proxy_header="X-Forwarded-User").user(headers | {PROXY_SECRET: ""}, 0) is None
    assert Access(token=TOKEN).user(known, 0) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--proxy-header", "X-User"], "give both"),
        (["--proxy-secret-file", "secret"], "give both"),
        (["--proxy-header", "X-User", "--proxy-secret-file", "short"], "at least 16 characters"),
        (["--proxy-header", "X-User", "--proxy-secret-file", "nowhere"], "nowhere: No such file"),
    ],
)
def test_a_proxys_header_needs_its_secret(
    options: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUFLEET_CONSOLE_TOKEN", TOKEN)
    (tmp_path / "secret").write_text("p" * 16)
    (tmp_path / "short").write_text("p")
    done = CliRunner().invoke(command("console"), ["console", "--wait", *options])
    assert isinstance(done.exception, AppError)
    assert text in str(done.exception)


def test_every_page_forbids_scripts_frames_and_external_resources(signed_in: httpx.Client) -> None:
    for path in ("/", "/instances", f"/instance/{instance(1).id}", "/history", "/nowhere"):
        answer = signed_in.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "<script" not in answer.text
        assert not re.search(r'(?:src|href)="(?:https?:)?//', answer.text)


def test_overview_shows_the_events_of_the_night(signed_in: httpx.Client) -> None:
    page = signed_in.get("/").text
    for shown in ("aws/prod/us-east-1", "11,347.68", "QueueGrowing", "120 of 140", "ann@example.com", "resize"):
        assert shown in page, shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_html_is_well_formed(signed_in: httpx.Client) -> None:
    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in ("meta", "input", "link"):
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    for path in ("/", "/instances", f"/instance/{instance(1).id}", "/history"):
        parser = Tags()
        parser.feed(signed_in.get(path).text)
        assert parser.open == []


def test_the_page_updates_itself_only_on_demand(signed_in: httpx.Client) -> None:
    assert 'http-equiv="refresh"' not in signed_in.get("/").text
    assert 'http-equiv="refresh" content="30"' in signed_in.get("/", params={"updates": "on"}).text


def test_pause_needs_the_pages_own_stamp(signed_in: httpx.Client, data: FakeConsoleData) -> None:
    form = {"fleet": "aws/prod/us-east-1", "pool": "chat"}
    assert signed_in.post("/pause", data={**form, "stamp": "0" * 64}).status_code == 403
    assert data.paused == []
    stamp = stamp_of(signed_in.get("/history").text)
    assert "are paused" in signed_in.post("/pause", data={**form, "stamp": stamp}).text
    assert data.paused == [("aws/prod/us-east-1", "chat", "token")]
    assert signed_in.post("/pause", data={**form, "pool": "all", "stamp": stamp}).status_code == 409


def test_keep_needs_the_pages_own_stamp(signed_in: httpx.Client, data: FakeConsoleData) -> None:
    form = {"fleet": "aws/prod/us-east-1", "instance": instance(1).id}
    assert signed_in.post("/keep", data={**form, "stamp": "0" * 64}).status_code == 403
    assert data.kept == []
    stamp = stamp_of(signed_in.get("/").text)
    assert "is kept" in signed_in.post("/keep", data={**form, "stamp": stamp}).text
    assert data.kept == [("aws/prod/us-east-1", instance(1).id, "token")]


def test_keep_error_is_shown(signed_in: httpx.Client, data: FakeConsoleData) -> None:
    stamp = stamp_of(signed_in.get("/").text)
    data.refuse = "i-1 does not run <b>any more</b>."
    answer = signed_in.post("/keep", data={"instance": "i-1", "stamp": stamp})
    assert answer.status_code == 409
    assert "&lt;b&gt;any more" in answer.text


def test_keep_is_refused_without_signing_in(data: FakeConsoleData) -> None:
    with serving(data) as url:
        assert httpx.post(f"{url}/keep", data={"instance": "i-1", "stamp": ""}, timeout=60).status_code == 401
    assert data.kept == []


def test_an_instance_shows_its_decisions(signed_in: httpx.Client) -> None:
    page = signed_in.get(f"/instance/{instance(1).id}").text
    assert f"{Reason.FALLBACK.sentence}: 3 to 5" in page
    assert "42%" in page
    assert signed_in.get("/instance/i-unknown").status_code == 404


def test_the_pages_of_a_large_fleet_stay_small(signed_in: httpx.Client, data: FakeConsoleData) -> None:
    pools = [f"pool-{n}" for n in range(200)]
    machines = [instance(n, pool=pools[n % 200]) for n in range(5000)]
    data.fleets = [build(FleetData(document=document(*pools), at=NOW, instances=machines), lambda _: Decimal(1))]
    page = signed_in.get("/")
    assert len(page.content) < 300_000
    first = signed_in.get("/instances")
    assert len(first.content) < 300_000
    assert "1 to 200 of 5000" in first.text
    assert instance(200).id in signed_in.get("/instances", params={"start": 200}).text


def test_metrics_need_no_token_and_contain_no_secret(data: FakeConsoleData) -> None:
    with serving(data) as url:
        answer = httpx.get(f"{url}/metrics", timeout=60)
    assert answer.status_code == 200
    assert 'gpufleet_target{environment="prod",pool="chat"} 3' in answer.text


@pytest.mark.parametrize(
    ("path", "size", "status"), [("/sign-in", 5000, 413), ("/alerts", 5_000_000, 401)], ids=["form", "alerts"]
)
def test_large_posts_are_refused_without_reading(data: FakeConsoleData, path: str, size: int, status: int) -> None:
    with serving(data) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), size))
            assert b" %d " % status in client.recv(4096).split(b"\r\n")[0]


def test_two_fleets_are_one_page(signed_in: httpx.Client, data: FakeConsoleData) -> None:
    other = build(
        FleetData(document=document("chat").model_copy(update={"environment": "dev"}), at=NOW, instances=[]),
        lambda _: None,
    )
    data.fleets = [busy_view(), other]
    page = signed_in.get("/").text
    assert page.index("aws/prod/us-east-1") < page.index("aws/dev/us-east-1")
    assert signed_in.get("/instances", params={"fleet": "aws/dev/us-east-1"}).status_code == 200
    assert signed_in.get("/instances").status_code == 404, "which of the two?"
    costs = signed_in.get("/costs").text
    assert "/costs?fleet=aws%2Fprod%2Fus-east-1" in costs
    assert "/costs?fleet=aws%2Fdev%2Fus-east-1" in costs
    assert "1,234.57" in costs, "the last hour of the one whose costs are known"
    assert "costs of aws/dev" in signed_in.get("/costs", params={"fleet": "aws/dev/us-east-1"}).text
    assert signed_in.get("/costs", params={"fleet": "nowhere"}).status_code == 404


def test_the_costs_of_the_only_fleet_need_no_choice(signed_in: httpx.Client) -> None:
    assert "costs of aws/prod" in signed_in.get("/costs").text


@pytest.mark.parametrize("path", ["/", "/costs", "/history", "/metrics", "/status.json"])
def test_unreadable_ledger_is_reported(signed_in: httpx.Client, data: FakeConsoleData, path: str) -> None:
    data.broken = "the ledger is <locked>"
    answer = signed_in.get(path)
    assert answer.status_code == 503
    assert "the ledger is" in answer.text
    assert path == "/metrics" or "<locked>" not in answer.text
