"""Alerts of the cost watchdog about budgets and anomalies, from a real ledger; each is sent once."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app import alerts
from app.fleets import load_one
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import CostPass, EndCause, RunEnd
from gpufleet.ledger.outbox import messages
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.tables import PRICES
from tests.fixtures.small_fleet import FLEET, HOUR, T0, document, run

WEEK = timedelta(weeks=1)


@pytest.fixture
def ledger(tmp_path: Path) -> Engine:
    """Spot at 2 USD/h for two weeks; in the last hour on-demand at 6 USD/h replaces it."""
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    spot = run("i-spot", -336, CapacityType.SPOT)
    with writing(engine) as connection:
        facts.add_runs(connection, [spot, run("i-new", 4.2, CapacityType.ON_DEMAND)])
        facts.add_ends(
            connection,
            [
                RunEnd(
                    cloud=spot.cloud, instance_id="i-spot", started_at=spot.started_at,
                    ended_at=T0 + 4 * HOUR, cause=EndCause.PREEMPTED, exact=True,
                )
            ],
        )  # fmt: skip
        for kind, usd in (("spot", "2"), ("on-demand", "6")):
            seen = Price(
                sku=f"aws:ec2:g6.xlarge:{kind}", region="us-east-1", zone=None, source="test",
                valid_from=T0 - 3 * WEEK, usd_per_hour=Decimal(usd), as_of=T0,
            )  # fmt: skip
            facts.add_prices(connection, [seen])
        for at in (*(T0 - 2 * WEEK + n * HOUR for n in range(14 * 24 + 5)), T0 + 5 * HOUR - timedelta(minutes=4)):
            facts.add_pass(
                connection, CostPass(environment=FLEET, at=at, host="h", metrics_from=None, metrics_until=None)
            )
    return engine


NOW = T0 + 5 * HOUR + timedelta(minutes=1)


def alert_texts(tmp_path: Path, ledger: Engine, **more: Any) -> list[str]:
    alerts.enqueue_all(load_one(str(document(tmp_path, **more))), ledger, NOW)
    return [one.message.text for one in messages(ledger)]


def test_anomalous_hour_is_reported_once_with_its_cause(tmp_path: Path, ledger: Engine) -> None:
    first = alert_texts(tmp_path, ledger, budget=None)
    assert first[0] == (
        "dev: 4.80 USD/h, usually 2.00: spot fell back to on-demand in us-east-1a (pool chat) since 10:12:"
        " +4.80 USD/h (change: price +3.20, volume +0.00, efficiency -0.40 USD/h)"
    )
    assert first[1].startswith("dev, pool chat: 4.80 USD/h")
    assert alert_texts(tmp_path, ledger, budget=None) == first  # sent only once


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        pytest.param("1200", ["57% of", "684.90 of 1,200 USD"], id="half"),
        pytest.param("800", ["86% of", "is expected to cost 1,190.87 USD"], id="four fifths, and more to come"),
        pytest.param("600", ["114% of"], id="more than all of it"),
        pytest.param("100000", [], id="far from it"),
    ],
)
def test_exceeded_budget_is_reported(tmp_path: Path, ledger: Engine, budget: str, expected: list[str]) -> None:
    limits = {"usd_per_month": budget, "usd_per_hour_at_max": "160"}
    budgets = [text for text in alert_texts(tmp_path, ledger, budget=limits) if "budget" in text]
    assert bool(budgets) == bool(expected)
    assert all(text in " ".join(budgets) for text in expected)


def test_hours_are_due_until_they_are_enqueued_and_only_with_a_channel(tmp_path: Path, ledger: Engine) -> None:
    fleet = load_one(str(document(tmp_path)))
    assert alerts.due(fleet, ledger, NOW) == [T0 + 5 * HOUR]
    alerts.enqueue_all(fleet, ledger, NOW)
    assert alerts.due(fleet, ledger, NOW + timedelta(minutes=30)) == []
    assert alerts.due(fleet, ledger, NOW + 2 * HOUR) == [T0 + 6 * HOUR, T0 + 7 * HOUR]
    assert len(alerts.due(fleet, ledger, NOW + timedelta(days=9))) == 7
    assert alerts.due(load_one(str(document(tmp_path, notify=None))), ledger, NOW) == []


def test_next_pass_reports_for_a_pass_that_died_before_its_messages(tmp_path: Path, ledger: Engine) -> None:
    fleet = load_one(str(document(tmp_path, budget=None)))
    with writing(
        ledger
    ) as connection:  # its facts are written: the fixture's, and those of another pass in the same hour
        facts.add_pass(
            connection, CostPass(environment=FLEET, at=NOW, host="h", metrics_from=None, metrics_until=None)
        )
    alerts.enqueue_all(fleet, ledger, NOW + timedelta(minutes=5))
    assert messages(ledger)[0].message.text.startswith("dev: 4.80 USD/h, usually 2.00")


def test_missed_hour_is_reported_in_the_next_hour(tmp_path: Path, ledger: Engine) -> None:
    fleet = load_one(str(document(tmp_path, budget=None)))
    alerts.enqueue_all(fleet, ledger, NOW - HOUR)
    before = len(messages(ledger))
    alerts.enqueue_all(fleet, ledger, NOW + HOUR)
    assert any("4.80 USD/h, usually 2.00" in one.message.text for one in messages(ledger)[before:])


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        pytest.param({"pool": "chat", "usd_per_month": "800"}, "dev, pool chat: at least 86% of", id="pool"),
        pytest.param({"team": "search", "usd_per_month": "800"}, "dev, team search: at least 86% of", id="team"),
        pytest.param(
            {"pool": "chat", "usd_per_month": "6849", "thresholds": ["0.1"]},
            "dev, pool chat: at least 10% of",
            id="threshold",
        ),
        pytest.param({"pool": "batch", "usd_per_month": "1"}, "", id="a pool that cost nothing"),
    ],
)
def test_budgets_of_pools_and_teams(tmp_path: Path, ledger: Engine, budget: dict[str, Any], expected: str) -> None:
    found = [text for text in alert_texts(tmp_path, ledger, budget=None, budgets=[budget]) if "budget" in text]
    assert bool(found) == bool(expected)
    assert all(text.startswith(expected) or "is expected" in text for text in found)


@pytest.mark.parametrize("unpriced", [1, 2, 3, 4])
def test_hour_without_a_priced_reference_is_not_reported_as_an_increase(
    tmp_path: Path, ledger: Engine, unpriced: int
) -> None:
    """In earlier weeks another machine without a price ran, so it is unknown whether this hour is expensive."""
    weeks = [
        run(f"i-old-{n}", 4 - 24 * 7 * n, CapacityType.ON_DEMAND, machine_type="x9.large",
            last_seen_at=T0 + (5 - 24 * 7 * n) * HOUR)
        for n in range(1, unpriced + 1)
    ]  # fmt: skip
    with writing(ledger) as connection:
        facts.add_runs(connection, weeks)
        facts.add_ends(
            connection,
            [
                RunEnd(cloud=one.cloud, instance_id=one.instance_id, started_at=one.started_at,
                       ended_at=one.last_seen_at, cause=EndCause.ENDED, exact=True)
                for one in weeks
            ],
        )  # fmt: skip
    found = [text for text in alert_texts(tmp_path, ledger, budget=None) if text.startswith("dev: 4.80 USD/h")]
    assert not found


def test_anomaly_lists_resources_without_a_price(tmp_path: Path, ledger: Engine) -> None:
    with writing(ledger) as connection:
        facts.add_runs(connection, [run("i-odd", 4.5, CapacityType.ON_DEMAND, machine_type="x9.large")])
    first = alert_texts(tmp_path, ledger, budget=None)[0]
    assert first.startswith("dev: at least 4.80 USD/h, usually 2.00: ")
    assert first.endswith("; unknown: no price for x9.large on-demand in us-east-1a")


def test_hour_with_a_missing_price_is_not_reported_as_a_decrease(tmp_path: Path, ledger: Engine) -> None:
    """In the last hour only on-demand without a price ran; before, spot ran at 2 USD/h."""
    with writing(ledger) as connection:
        connection.execute(PRICES.delete().where(PRICES.c.sku.endswith("on-demand")))
        facts.add_runs(connection, [run("i-odd", 3.9, CapacityType.ON_DEMAND, machine_type="x9.large")])
        new = RunEnd(
            cloud=Cloud.AWS, instance_id="i-new", started_at=T0 + 4.2 * HOUR, ended_at=T0 + 4.21 * HOUR,
            cause=EndCause.ENDED, exact=True,
        )  # fmt: skip
        facts.add_ends(connection, [new])
    assert not [text for text in alert_texts(tmp_path, ledger, budget=None) if "USD/h, usually" in text]


def test_fleet_without_history_has_no_anomalies(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    assert alert_texts(tmp_path, engine) == []
