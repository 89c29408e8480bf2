"""What has no price or was not collected is never taken for 0 USD: forecasts, budgets, savings and anomalies."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import alerts, reports
from app.ledgers import ledger_name
from app.windows import Window
from costs.anomaly import Hour, usual
from costs.digest import as_text, budget_words, month_words
from costs.forecast import BudgetState, Forecast, budget_use, forecast
from gpufleet.domain import money
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.settings.document import FleetDocument
from ledger import facts
from ledger.database import writing
from ledger.decisions import record_outcome
from ledger.outbox import messages
from ledger.schema import open_ledger
from tests.watchdogs.plain import document

NOW = datetime(2026, 11, 16, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
MONTH = datetime(2026, 11, 1, tzinfo=UTC)


def fleet_with(folder: Path, machine: str, looks: list[datetime], **budget: Any) -> FleetDocument:
    """A fleet whose one on-demand machine began with the month and was seen by every look until now."""
    changes: dict[str, Any] = {
        "ledger_url": f"sqlite:///{folder}/ledger.db",
        "budget": {"usd_per_month": "60000", "usd_per_hour_at_max": "500"},
    }
    fleet = FleetDocument.model_validate(document().model_dump(mode="json", by_alias=True) | changes | budget)
    name = ledger_name(fleet)
    seen = facts.Run(
        cloud=Cloud.AWS,
        instance_id="i-1",
        started_at=MONTH,
        environment=name,
        region="us-east-1",
        zone="us-east-1a",
        machine_type=machine,
        capacity_type=CapacityType.ON_DEMAND,
        last_seen_at=max(looks),
        pool="batch",
        owner="team",
    )
    with writing(open_ledger(fleet.ledger_url)) as connection:
        facts.add_runs(connection, [seen])
        for at in looks:
            facts.add_pass(
                connection, facts.Pass(environment=name, at=at, host="h", metrics_from=None, metrics_until=None)
            )
    return fleet


def hourly(since: datetime, until: datetime) -> list[datetime]:
    return [since + HOUR * n for n in range(int((until - since) / HOUR) + 1)]


WHOLE = hourly(MONTH, NOW)
SILENT = hourly(MONTH, NOW - 8 * DAY)
HOLE = [at for at in WHOLE if not MONTH + 3 * DAY + HOUR < at < MONTH + 7 * DAY - HOUR]


def window() -> Window:
    return Window(since=NOW - DAY, until=NOW, now=NOW, timezone="UTC")


@pytest.mark.parametrize(
    ("looks", "known", "unknown", "spent"),
    [
        pytest.param(WHOLE, 15, 0, 15, id="every day"),
        pytest.param(SILENT, 7, 8, 7, id="none for eight days"),
        # the machine was there before the hole and after it
        pytest.param(HOLE, 13, 2, 15, id="a hole of four days, with a look in the first and the last"),
    ],
)
def test_days_that_nobody_collected_are_no_days_of_nothing(
    tmp_path: Path, looks: list[datetime], known: int, unknown: int, spent: int
) -> None:
    found = reports.digest(fleet_with(tmp_path, "p5.48xlarge", looks), window(), True)
    day = Decimal("55.04") * 24
    assert (found.month.days_known, found.month.days_unknown) == (known, unknown)
    assert found.month.spent == day * spent
    assert found.month.expected == day * 30, "each unknown day as dear as a known one"
    assert found.budget is not None
    assert (found.budget.state is BudgetState.UNKNOWN) is (unknown > 0 and not found.budget.crossed)
    assert bool(found.budget.unknown) is (unknown > 0)


def test_a_budget_with_parts_of_unknown_price_is_never_within(tmp_path: Path) -> None:
    fleet = fleet_with(tmp_path, "x99.giant", WHOLE, budgets=[{"team": "team", "usd_per_month": "1"}])
    found = reports.digest(fleet, window(), True)
    assert found.budget is not None
    assert found.budget.state is BudgetState.UNKNOWN
    assert [use.state for _, use in found.budgets] == [BudgetState.UNKNOWN]
    said = as_text(found)
    assert (
        "budget: at least 0% of 60,000 USD used, unknown in part (no price of x99.giant on-demand in us-east-1a)"
        in said
    )
    assert "cost: at least 0.00" in said
    assert "this month: at least 0.00 USD expected" in said
    listed = reports.digest_json(found)
    assert listed["month"]["at_least"] is True
    assert listed["budget"]["unknown"] == ["no price of x99.giant on-demand in us-east-1a"]


def test_people_are_notified_once_of_a_budget_that_is_unknown_in_part(tmp_path: Path) -> None:
    fleet = fleet_with(tmp_path, "x99.giant", WHOLE)
    engine = open_ledger(fleet.ledger_url)
    for hours in (0, 1, 2):
        alerts.enqueue_all(fleet, engine, NOW + hours * HOUR)
    texts = [one.message.text for one in messages(engine) if "budget" in one.message.text]
    assert len(texts) == 1
    assert texts[0].endswith("unknown: no price of x99.giant on-demand in us-east-1a")
    assert texts[0].startswith("test: at least 0% of the month's budget is used")


def test_the_saving_of_an_ended_instance_without_a_price_is_unknown(tmp_path: Path) -> None:
    fleet = fleet_with(tmp_path, "x99.giant", WHOLE)
    decision = Decision(resource="i-1", pool="batch", action=Action.END, reason=Reason.STILL_IDLE)
    done = Outcome(decision=decision, kind=OutcomeKind.DONE, detail="ended")
    record_outcome(open_ledger(fleet.ledger_url), ledger_name(fleet), "idle", done, NOW - 3 * HOUR)
    found = reports.digest(fleet, window(), True)
    assert [one.amount for one in found.savings.stops] == [None]
    assert found.savings.unpriced_stops == 1
    said = as_text(found)
    assert "at least 0.00" in said.split("by ending 1 idle instances")[0].splitlines()[-1]
    assert "unknown  i-1 (batch), counted until" in said
    saved = reports.digest_json(found)["savings"]
    assert (saved["stops"][0]["usd"], saved["stopped_at_least"]) == (None, True)


@given(
    known=st.lists(st.decimals(0, 10**4, places=2), min_size=1, max_size=28),
    lost=st.lists(st.decimals(0, 10**4, places=2), max_size=10),
    left=st.decimals(0, 31, places=2),
)
def test_lost_days_never_lower_a_forecast(known: list[Decimal], lost: list[Decimal], left: Decimal) -> None:
    spent = sum(known, Decimal(0)) + sum(lost, Decimal(0))
    plain, filled = forecast(spent, known, left), forecast(spent, known, left, lost)
    assert plain.expected <= filled.expected
    assert filled.low <= filled.high
    mean = sum(known, Decimal(0)) / len(known)
    most = sum((max(mean, part) for part in lost), Decimal(0)) - sum(lost, Decimal(0))
    assert abs(filled.expected - plain.expected - most) <= money.CENT


@pytest.mark.parametrize(
    ("month", "words"),
    [
        pytest.param({}, "100 USD expected (90 to 110)", id="all known"),
        pytest.param(
            {"days_unknown": 4, "days_lost": 2}, "100 USD expected (90 to 110, from 6 of 10 days)", id="days lost"
        ),
        pytest.param({"unpriced": ("x",)}, "at least 100 USD expected (90 to 110)", id="no price"),
        pytest.param(
            {"days_known": 0, "days_lost": 1}, "at least 50.00 USD so far (no full day known yet)", id="no day"
        ),
    ],
)
def test_a_forecast_says_how_much_of_its_basis_is_known(month: dict[str, Any], words: str) -> None:
    plain = Forecast(spent=Decimal(50), expected=Decimal(100), low=Decimal(90), high=Decimal(110), days_known=6)
    assert month_words(replace(plain, **month)) == words


def test_a_budget_lists_what_is_unknown_and_how_it_stands_all_the_same() -> None:
    month = Forecast(
        spent=Decimal(120), expected=Decimal(200), low=Decimal(0), high=Decimal(0), days_known=3, unpriced=("x",)
    )
    use = budget_use(Decimal(100), month)
    assert use.state is BudgetState.EXCEEDED
    assert budget_words(use) == "at least 120% of 100 USD used, exceeded ‼ (no price of x)"


HOURS = st.builds(
    Hour,
    usd=st.fractions(0, 1000, max_denominator=100),
    instance_hours=st.fractions(0, 10, max_denominator=10),
    tokens=st.integers(0, 1000),
)


@given(
    st.lists(HOURS, min_size=1, max_size=6).flatmap(lambda hours: st.tuples(st.just(hours), st.permutations(hours)))
)
def test_the_usual_hour_is_a_median_whatever_the_order(orders: tuple[list[Hour], list[Hour]]) -> None:
    hours, shuffled = orders
    middle = usual(hours)
    assert middle is not None and middle == usual(shuffled)
    below = sum(hour.usd <= middle.usd for hour in hours)
    above = sum(hour.usd >= middle.usd for hour in hours)
    assert 2 * below >= len(hours) and 2 * above >= len(hours)


def test_the_usual_of_two_hours_lies_between_them() -> None:
    one, other = (Hour(usd=Fraction(usd), instance_hours=Fraction(1), tokens=0) for usd in (1, 99))
    middle = usual([other, one])
    assert middle is not None and middle.usd == 50
