"""axe-core finds no violation in the console, the cost report and the scan, in light and dark, wide and narrow."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.ledger.schema import open_ledger
from gpufleet.scan import page as scan_page
from gpufleet.scan.advice import advise
from gpufleet.scan.model import (
    CapacityKind,
    FailureCode,
    Scan,
    ScannedCapacity,
    ScannedInstance,
    ScanScope,
    ScopeFailure,
    ScopeResult,
    Verdict,
    VerdictReason,
)
from tests.fixtures.console import axe
from tests.fixtures.console.browser import PROGRAM, Browser, browser
from tests.fixtures.console.fleet import instance
from tests.fixtures.console.pages import FakeConsoleData, serving, sign_in
from tests.fixtures.small_fleet import WINDOW, document, fill, stdout_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="Chromium is missing: make setup-tests"),
    pytest.mark.skipif(not axe.SCRIPT.exists(), reason=axe.MISSING),
]
LOOKS = [(375, "light"), (375, "dark"), (1440, "light"), (1440, "dark")]
CONSOLE_PATHS = (
    "/",
    "/instances",
    f"/instance/{instance(1).id}",
    "/history",
    "/history?span=30d&by=team",
    "/nowhere",
)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    engine = open_ledger(f"sqlite:///{folder}/ledger.db")
    fill(engine)
    engine.dispose()
    stdout_of("cost", "--fleet", document(folder), *WINDOW, "--format", "html", "--out", folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "scan.html"
    found = _scan()
    path.write_text(scan_page.page(found, advise(found)), "utf-8")
    return path


def _scan() -> Scan:
    scope = ScanScope("aws", "111122223333", "us-east-1")
    at = datetime(2026, 11, 26, tzinfo=UTC)
    verdicts = [
        (Verdict.IDLE, VerdictReason.GPU_IDLE), (Verdict.IN_USE, VerdictReason.GPU_WORKED),
        (Verdict.LIKELY_IDLE, VerdictReason.POWER_IDLE), (Verdict.UNKNOWN, VerdictReason.NO_METRIC),
    ]  # fmt: skip
    instances = [
        ScannedInstance(
            instance=Instance(
                id=f"i-{number}", cloud=Cloud.AWS, region="us-east-1", zone="us-east-1a", machine_type="g6.xlarge",
                capacity_type=CapacityType.ON_DEMAND, state=InstanceState.RUNNING,
                launched_at=at - timedelta(days=9),
            ),
            account=scope.account, owner="ann", usd_per_hour=Decimal("0.8"), verdict=verdict, reason=reason,
            idle_hours=30 if verdict is Verdict.IDLE else 0,
        )
        for number, (verdict, reason) in enumerate(verdicts)
    ]  # fmt: skip
    held = ScannedCapacity(
        kind=CapacityKind.CAPACITY_RESERVATION, scope=scope, id="cr-1", place="us-east-1a", machine_type="g6.xlarge",
        total=2, unused=2, usd_per_hour=Decimal("1.6"),
    )  # fmt: skip
    failure = ScopeFailure(scope=scope, code=FailureCode.DENIED, what="metrics", message="not allowed")
    return Scan(
        at=at, window=timedelta(days=7), idle_window=timedelta(days=1),
        results=[ScopeResult(scope=scope, instances=instances, capacity=[held])], failures=[failure],
    )  # fmt: skip


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_console_has_no_violation(tab: Browser, width: int, scheme: str) -> None:
    tab.look(width, scheme)
    with serving(FakeConsoleData()) as url:
        tab.call("Network.clearBrowserCookies")
        tab.open(url)
        found = {"signing in": axe.violations(tab)}
        sign_in(tab, url)
        for path in CONSOLE_PATHS:
            tab.open(url + path)
            found[path] = axe.violations(tab)
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
@pytest.mark.parametrize("page", ["report", "scan"])
def test_a_written_page_has_no_violation(
    tab: Browser, request: pytest.FixtureRequest, page: str, width: int, scheme: str
) -> None:
    path: Path = request.getfixturevalue(page)
    tab.look(width, scheme)
    tab.open(path.as_uri())
    assert axe.violations(tab) == []
