"""`gpufleet report` on a real ledger: each report in each format, with the amounts recomputed from its output."""

import csv
import json
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from localcloud.slack.server import SlackSink

from app.errors import AppError
from gpufleet.costs.document import CSV_COLUMNS
from gpufleet.domain.model import CapacityType
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.schema import open_ledger
from tests.fixtures import local_token
from tests.fixtures.small_fleet import HOUR, ODD_MODEL, WINDOW, call, document, fill, read_json, run, stdout_of


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    engine.dispose()
    return document(tmp_path)


def test_amounts_can_be_recomputed_from_the_report(fleet: Path) -> None:
    found = read_json("cost", "--fleet", fleet, *WINDOW)
    prices = {price["id"]: Decimal(price["usd_per_hour"]) for price in found["prices"]}
    exact = Decimal(0)
    for row in found["charges"]:
        amount = Decimal(row["seconds"]) * prices[row["price"]] / 3600
        amount = -amount if row["kind"] == "interrupted by the cloud" else amount
        assert abs(amount - Decimal(row["usd"])) <= Decimal("1e-9")
        exact += amount
    total = found["total"]
    assert abs(exact - Decimal(total["usd"])) <= Decimal("1e-9")
    parts = ("usd_used", "usd_idle", "usd_starting", "usd_unused_reservation", "usd_shared")
    assert sum(Decimal(total[name]) for name in parts) == Decimal(total["usd"])
    for groups in found["by"].values():
        assert abs(sum(Decimal(g["usd"]) for g in groups.values()) - Decimal(total["usd"])) <= Decimal("1e-8")
    tokens = total["tokens"]
    assert (tokens["prompt"], tokens["cached"], tokens["generation"]) == (315_000, 31_500, 78_750)
    blended = Decimal(total["usd"]) / (tokens["prompt"] + tokens["generation"]) * 1_000_000
    assert abs(blended - Decimal(total["usd_per_million_tokens"]["blended"])) < Decimal("1e-6")


def test_rules_of_the_window_are_the_ones_of_the_bill(fleet: Path) -> None:
    found = read_json("cost", "--fleet", fleet, *WINDOW)
    by = found["by"]["capacity-type"]
    assert Decimal(by["spot"]["usd"]) == 0  # AWS preempted it within its first hour
    # 2 h idle, 5.5 h fallback of which the last 3 h less one second at the new price
    expected = Decimal("0.72") * 2 + (Decimal("0.72") * (9_000 + 1) + Decimal("0.9") * (10_800 - 1)) / 3600
    assert abs(Decimal(by["on-demand"]["usd"]) - expected) < Decimal("0.0001")
    assert Decimal(by["reserved"]["usd_unused_reservation"]) == Decimal("0.72")


def test_table_shows_every_requested_grouping(fleet: Path) -> None:
    shown = stdout_of("cost", "--fleet", fleet, *WINDOW, "--by", "team", "--by", "zone")
    assert "search" in shown and "research" in shown and "us-east-1a" in shown
    assert ODD_MODEL not in shown
    assert ODD_MODEL in stdout_of("cost", "--fleet", fleet, *WINDOW)


def test_csv_has_a_row_per_charge_with_the_sum_of_the_report(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "cost.csv"
    assert stdout_of("cost", "--fleet", fleet, *WINDOW, "--format", "csv", "--out", out) == ""
    rows = list(csv.DictReader(StringIO(out.read_text())))
    assert tuple(rows[0]) == CSV_COLUMNS
    whole = read_json("cost", "--fleet", fleet, *WINDOW)
    assert [row["kind"] for row in rows[len(whole["charges"]) :]] == ["unknown", "not collected"]
    rows = rows[: len(whole["charges"])]
    assert abs(sum(Decimal(row["usd"]) for row in rows) - Decimal(whole["total"]["usd"])) <= Decimal("1e-8")


def test_focus_rows_add_up_to_the_report(fleet: Path) -> None:
    rows = list(csv.DictReader(StringIO(stdout_of("cost", "--fleet", fleet, *WINDOW, "--format", "focus"))))
    whole = read_json("cost", "--fleet", fleet, *WINDOW)
    billed = sum(Decimal(row["EffectiveCost"]) for row in rows)
    assert abs(billed - Decimal(whole["total"]["usd"])) <= Decimal("1e-6")


class Links(HTMLParser):
    """All network references of a page, and its visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.tags: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.asked += [str(v) for k, v in attrs if k in ("src", "href", "xlink:href") and not str(v).startswith("#")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_is_one_file_without_network_or_script(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "cost.html"
    stdout_of("cost", "--fleet", fleet, *WINDOW, "--format", "html", "--out", out)
    text = out.read_text(encoding="utf-8")
    page = Links()
    page.feed(text)
    assert page.asked == []
    assert "script" not in page.tags and "@import" not in text and "url(http" not in text
    assert "<b>chat</b>-🦊" not in text  # names are text, never markup
    shown = " ".join(page.text)
    assert ODD_MODEL in shown
    for heading in ("Cost over time", "Waste by cause", "Savings", "Coverage", "Prices", "Method"):
        assert heading in shown


def test_without_matplotlib_the_page_and_the_command_name_the_extra(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "cost.html"
    done = call("cost", "--fleet", fleet, *WINDOW, "--format", "html", "--out", out)
    remedy = "matplotlib is not installed; install the extra plots: uv tool install 'gpu-fleet[plots]'"
    assert (done.exit_code, done.stderr.strip()) == (0, f"without charts: {remedy}")
    text = out.read_text(encoding="utf-8")
    assert f"This page has no charts: {remedy}" in text
    assert "<svg" not in text and "By pool" in text


def test_waste_names_the_cause_and_what_to_do(fleet: Path) -> None:
    shown = stdout_of("waste", "--fleet", fleet, *WINDOW)
    assert "1.4400 USD  idle in batch" in shown
    assert "unused reservation in chat" in shown
    (found,) = read_json("waste", "--fleet", fleet, *WINDOW)
    idle = next(one for one in found["waste"] if one["cause"] == "idle")
    assert (idle["usd"], idle["resources"]) == ("1.440000000", ["i-idle"])


def test_savings_include_terminated_idle_instances(fleet: Path) -> None:
    (found,) = read_json("savings", "--fleet", fleet, *WINDOW)
    (one,) = found["savings"]["stops"]
    assert (one["instance"], one["because"]) == ("i-idle", "now")
    assert abs(Decimal(one["usd"]) - (Decimal("0.72") + Decimal("0.9") * 3)) < Decimal("0.0001")


def test_the_digest_forecasts_the_month_and_shows_the_budget(fleet: Path) -> None:
    (found,) = read_json("digest", "--fleet", fleet, *WINDOW)
    assert found["budget"]["usd_per_month"] == "40"
    assert Decimal(found["month"]["spent"]) == Decimal(found["total"]["usd"])
    shown = stdout_of("digest", "--fleet", fleet, *WINDOW)
    assert "this month" in shown and "Waste:" in shown and "Saved:" in shown


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
def test_a_time_zone_changes_what_is_shown_never_the_sum(fleet: Path, zone: str) -> None:
    moments = ("--since", "2026-11-20T06:00Z", "--until", "2026-11-20T12:00Z")
    assert (
        read_json("cost", "--fleet", fleet, *moments, "--tz", zone)["total"]["usd"]
        == (read_json("cost", "--fleet", fleet, *moments)["total"]["usd"])
    )


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-11-20", 24)], ids=["spring", "autumn", "plain"]
)
def test_a_day_costs_as_many_hours_as_it_has(tmp_path: Path, day: str, hours: int) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
    always = run("i-1", 0, CapacityType.ON_DEMAND)
    with writing(engine) as connection:
        facts.add_runs(
            connection,
            [replace(always, started_at=begin - 30 * HOUR, last_seen_at=begin + 60 * HOUR)],
        )
    engine.dispose()
    price = {"sku": "aws:ec2:g6.xlarge:on-demand", "usd_per_hour": "1", "source": "t", "as_of": "2026-01-01"}
    path = document(tmp_path, prices={"overrides": [price]})
    following = (begin + timedelta(days=1)).date()
    window = ("--since", day, "--until", following, "--tz", "Europe/Berlin")
    assert Decimal(read_json("cost", "--fleet", path, *window)["total"]["usd"]) == hours


def refusal(*arguments: object) -> str:
    done = call(*arguments)
    assert isinstance(done.exception, AppError), (done.output, done.exception)
    return str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(("--tz", "Mars/Base"), "Mars/Base", id="unknown time zone"),
        pytest.param(("--since", "2026-11-21", "--until", "2026-11-20"), "is not before", id="since after until"),
        pytest.param(("--since", "yesterday"), "yesterday", id="no time"),
        pytest.param(("--out", "/none/x", "--format", "csv", "--since", "7d"), "/none/x", id="no folder"),
    ],
)
def test_invalid_input_is_named(fleet: Path, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in refusal("cost", "--fleet", fleet, *arguments)


def test_a_missing_price_names_resource_and_remedy_and_may_be_shown_as_unknown(fleet: Path, tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    with writing(engine) as connection:
        facts.add_runs(connection, [run("i-new", 0, CapacityType.ON_DEMAND, machine_type="g9.huge")])
    engine.dispose()
    message = refusal("cost", "--fleet", fleet, *WINDOW)
    assert (
        "aws:ec2:g9.huge:on-demand" in message
        and "--allow-unpriced" in message
        and "`prices` of the settings" in message
    )
    found = read_json("cost", "--fleet", fleet, *WINDOW, "--allow-unpriced")
    (row,) = [row for row in found["charges"] if row["resource"] == "i-new"]
    assert (row["usd"], row["price"]) == (None, None)
    assert found["total"]["at_least"] is True
    assert any("every total is a lower bound" in note for note in found["notes"])


def test_window_before_the_ledger_is_empty_and_reports_it(fleet: Path) -> None:
    found = read_json("cost", "--fleet", fleet, "--since", "2025-01-01", "--until", "2025-01-02")
    assert Decimal(found["total"]["usd"]) == 0
    assert any("before the ledger" in note for note in found["notes"])


def test_empty_ledger_names_the_command_that_fills_it(tmp_path: Path) -> None:
    file = document(tmp_path, pools=[])
    open_ledger(json.loads(file.read_text())["ledger_url"]).dispose()
    found = read_json("cost", "--fleet", file, "--since", "1d")
    assert Decimal(found["total"]["usd"]) == 0
    assert found["total"]["usd_per_million_tokens"]["blended"] is None
    assert "gpufleet watch cost" in " ".join(found["notes"])


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    connection.close()


def _broken_in_the_middle(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[4096 : len(body) - 4096] = b"\xa5" * (len(body) - 8192)
    path.write_bytes(bytes(body))


def _no_database(path: Path) -> None:
    path.write_bytes(b"these are not the bytes of a database" * 300)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param(_newer, "upgrade gpufleet", id="newer schema"),
        pytest.param(_broken_in_the_middle, "restore a backup", id="broken in the middle"),
        pytest.param(_no_database, "point ledger_url at a ledger", id="no database"),
    ],
)
def test_a_ledger_that_cannot_be_used_is_one_clear_message(
    fleet: Path, tmp_path: Path, damage: Any, expected: str
) -> None:
    path = tmp_path / "ledger.db"
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    damage(path)
    assert expected in refusal("cost", "--fleet", fleet, *WINDOW)


def test_ledger_is_readable_during_a_write(fleet: Path, tmp_path: Path) -> None:
    free = read_json("cost", "--fleet", fleet, *WINDOW)
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    try:
        other.execute("begin exclusive")
        assert read_json("cost", "--fleet", fleet, *WINDOW)["total"] == free["total"]
    finally:
        other.close()


@pytest.mark.slow  # a writer waits 30 s before it gives up
def test_a_locked_ledger_is_one_clear_message_and_nothing_is_lost(
    fleet: Path, tmp_path: Path, slack: SlackSink
) -> None:
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    try:
        other.execute("begin immediate")
        assert "locked" in refusal("cost", "--fleet", fleet, *WINDOW, "--post")
    finally:
        other.close()
    stdout_of("cost", "--fleet", fleet, *WINDOW, "--post")
    assert len(slack.channels.messages) == 1


def test_a_read_only_ledger_is_reported_from_and_not_posted_from(
    fleet: Path, tmp_path: Path, slack: SlackSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = read_json("cost", "--fleet", fleet, *WINDOW)
    whole = json.loads(fleet.read_text())
    whole["ledger_url"] = f"sqlite:///file:{tmp_path}/ledger.db?mode=ro&uri=true"
    fleet.write_text(json.dumps(whole))
    monkeypatch.chdir(tmp_path)
    assert read_json("cost", "--fleet", fleet, *WINDOW)["total"] == free["total"]
    assert "give this user write access to" in refusal("cost", "--fleet", fleet, *WINDOW, "--post")
    assert slack.channels.messages == []
    assert not Path("file:").exists(), "SQLite's URL of a file was taken for a path"


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlackSink]:
    sink = SlackSink("127.0.0.1", 0, local_token.callers())
    sink.start()
    monkeypatch.setenv("GPUFLEET_SLACK_TOKEN", local_token.BOT)
    monkeypatch.setenv("GPUFLEET_SLACK_API_URL", f"{sink.url}/api/")
    yield sink
    sink.stop()


@pytest.mark.parametrize("kind", ["cost", "waste", "savings", "digest"])
def test_a_report_is_posted_once(fleet: Path, slack: SlackSink, kind: str) -> None:
    for _ in range(2):
        stdout_of(kind, "--fleet", fleet, *WINDOW, "--post")
    message, *thread = slack.channels.messages
    assert [one.content["thread_ts"] for one in thread] == ([message.ts] if kind == "digest" else [])
    assert message.channel == "#gpu-cost"
    shown = json.dumps(message.content, ensure_ascii=False)
    assert "dev" in shown
    assert "<b>" not in shown  # untrusted names are escaped


def test_a_digest_by_a_timer_is_posted_once_and_then_silent(fleet: Path, slack: SlackSink, tmp_path: Path) -> None:
    arguments = ("digest", *WINDOW, "--post", "--quiet", "--fleet", fleet)
    assert stdout_of(*arguments) != ""
    posted = len(slack.channels.messages)
    assert posted > 0
    assert (stdout_of(*arguments), len(slack.channels.messages)) == ("", posted)
    silent = document(tmp_path, notify=None)
    assert stdout_of("digest", "--daily", "--post", "--quiet", "--fleet", silent) == ""


def test_without_matplotlib_the_thread_of_the_digest_has_the_csv(
    fleet: Path, slack: SlackSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    stdout_of("digest", "--fleet", fleet, *WINDOW, "--post")
    (table,) = slack.channels.messages[1].content["files"]
    assert slack.files.contents[table["id"]].startswith(b"grouping,")


def test_chart_and_csv_of_the_digest_are_in_its_thread(fleet: Path, slack: SlackSink) -> None:
    stdout_of("digest", "--fleet", fleet, *WINDOW, "--post")
    picture, table = slack.channels.messages[1].content["files"]
    image = slack.files.contents[picture["id"]]
    assert image.startswith(b"\x89PNG")
    assert len(image) > 5_000
    rows = list(csv.DictReader(StringIO(slack.files.contents[table["id"]].decode())))
    total = read_json("cost", "--fleet", fleet, *WINDOW)["total"]
    assert rows[0]["usd"] == total["usd"]
    assert sum(Decimal(row["usd"]) for row in rows if row["grouping"] == "pool") == Decimal(total["usd"])
