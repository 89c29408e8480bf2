"""A span that a bill has closed stays what it was, and says what would have changed."""

import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app import trueup
from app.fleets import load_one
from app.windows import Window
from costs.bills import Bill, Form, Line
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from ledger import facts
from ledger.database import writing
from ledger.declared import declarations
from ledger.facts import EndCause, RunEnd
from ledger.schema import open_ledger
from tests.unit.small_fleet import FLEET, HOUR, T0, WINDOW, document, fill, read_json, run

NAT = {"name": "NAT gateway", "sku": "aws:vpc:nat-gateway", "units": "3"}
END = T0 + 6 * HOUR


def stated(sku: str, usd: str, as_of: str = "2026-11-01") -> dict[str, str]:
    return {"sku": sku, "usd_per_hour": usd, "source": "contract", "as_of": as_of}


PRICES = [stated("aws:vpc:nat-gateway", "0.045")]


@pytest.fixture
def ledger(tmp_path: Path) -> Engine:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    return engine


def settings(folder: Path, **more: Any) -> Path:
    return document(folder, **({"shared": [NAT], "prices": {"overrides": PRICES}} | more))


def close(fleet: Path) -> None:
    """Reconcile the window with a bill that has every hour."""
    lines = [
        Line(resource="i-idle", start=T0 + n * HOUR, end=T0 + (n + 1) * HOUR, usd=Decimal("0.72"), hours=Decimal(1))
        for n in range(6)
    ]
    window = Window(since=T0, until=END, now=END + HOUR, timezone="UTC")
    bill = Bill(form=Form.CUR, digest="d", lines=tuple(lines), others=Decimal(0))
    trueup.compare(load_one(str(fleet)), bill, window)


def report(fleet: Path, *window: str) -> Any:
    found = read_json("cost", "--fleet", fleet, *(window or WINDOW))
    return {name: value for name, value in found.items() if name != "made_at"}


def without_notes(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "notes"}


def refused(found: dict[str, Any]) -> list[str]:
    return [note for note in found["notes"] if note.startswith(("closed by a bill", "what instances did"))]


MAX = {"name": "chat", "max": 45}
CHANGES = [
    pytest.param({"shared": [NAT, NAT | {"name": "another"}]}, "+0.81 USD (batch +0.40, chat +0.40)", id="shared"),
    pytest.param({"shared": []}, "-0.81 USD (batch -0.40, chat -0.40)", id="nothing shared"),
    pytest.param(
        {"prices": {"overrides": [stated("aws:vpc:nat-gateway", "0.09")]}}, "(batch +0.40, chat +0.40)", id="a price"
    ),
    pytest.param(
        {"prices": {"overrides": [*PRICES, stated("aws:ec2:g6.xlarge:on-demand", "9")]}}, "chat +", id="of instances"
    ),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_a_closed_span_does_not_change_and_says_what_would_have(
    tmp_path: Path, ledger: Engine, change: dict[str, Any], said: str
) -> None:
    fleet = settings(tmp_path)
    close(fleet)
    before = report(fleet)
    assert before["state"] == "final"
    assert refused(before) == []
    after = report(settings(tmp_path, **change))
    assert without_notes(after) == without_notes(before)
    (note,) = refused(after)
    assert said in note


def test_max_of_a_pool_moves_nothing_of_a_closed_span(tmp_path: Path, ledger: Engine) -> None:
    fleet = settings(tmp_path)
    close(fleet)
    before = report(fleet)
    raw = json.loads(fleet.read_text())
    raw["pools"][0]["max"] = 45
    fleet.write_text(json.dumps(raw))
    after = report(fleet)
    assert without_notes(after) == without_notes(before)
    assert refused(after) == [
        "closed by a bill, so settings and prices of today change nothing here; with them it would have cost"
        " +0.00 USD (batch -0.32, chat +0.32)"
    ]


def test_prices_that_become_known_later_change_no_closed_span(tmp_path: Path, ledger: Engine) -> None:
    fleet = settings(tmp_path)
    close(fleet)
    before = report(fleet)
    late = Price(
        sku="aws:ec2:g6.xlarge:on-demand", region="us-east-1", zone=None, source="late", valid_from=T0 + HOUR,
        usd_per_hour=Decimal(50), as_of=T0 + HOUR,
    )  # fmt: skip
    with writing(ledger) as connection:
        facts.add_prices(connection, [late])
    after = report(fleet)
    assert without_notes(after) == without_notes(before)
    assert len(refused(after)) == 1
    hour = ("--since", "2026-11-20T08:00", "--until", "2026-11-20T09:00")
    assert "50" not in {price["usd_per_hour"] for price in report(fleet, *hour)["prices"]}


def test_facts_that_come_after_the_close_are_said(tmp_path: Path, ledger: Engine) -> None:
    fleet = settings(tmp_path)
    close(fleet)
    with writing(ledger) as connection:
        end = RunEnd(
            cloud=Cloud.AWS, instance_id="i-late", started_at=T0, ended_at=T0 + HOUR, cause=EndCause.ENDED, exact=True
        )  # fmt: skip
        facts.add_runs(connection, [run("i-late", 0, CapacityType.ON_DEMAND, last_seen_at=T0 + HOUR)])
        facts.add_ends(connection, [end])
    (note,) = refused(report(fleet))
    assert note.startswith("what instances did became known better since this was closed")


def test_closing_keeps_what_it_was_computed_with(tmp_path: Path, ledger: Engine) -> None:
    close(settings(tmp_path))
    close(settings(tmp_path, shared=[]))
    with ledger.connect() as connection:
        (kept,) = declarations(connection, FLEET)
    assert "NAT gateway" in kept.content
    assert kept.at == END + timedelta(hours=1)
