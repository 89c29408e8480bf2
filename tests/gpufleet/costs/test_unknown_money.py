"""Unpriced and uncollected costs never count as 0 USD in forecasts, budgets, savings and anomalies."""

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
from gpufleet.costs.anomaly import Hour, anomalies, usual
from gpufleet.costs.digest import as_text, budget_text, month_text
from gpufleet.costs.document import document as as_document
from gpufleet.costs.forecast import BudgetState, Forecast, IntervalCost, budget_use, forecast
from gpufleet.costs.render import as_text as report_text
from gpufleet.domain import money
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.decisions import record_outcome
from gpufleet.ledger.facts import RunEnd
from gpufleet.ledger.history import runs
from gpufleet.ledger.outbox import messages
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import FleetDocument
from tests.fixtures.watchdogs.plain import document

NOW = datetime(2026, 11, 16, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
MONTH = datetime(2026, 11, 1, tzinfo=UTC)


def fleet_with(folder: Path, machine: str, looks: list[datetime], **budget: Any) -> FleetDocument:
    """A fleet with one on-demand machine that starts with the month and appears in every pass until now."""
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
                connection, facts.CostPass(environment=name, at=at, host="h", metrics_from=None, metrics_until=None)
            )
    return fleet


def hourly(since: datetime, until: datetime) -> list[datetime]:
    return [since + HOUR * n for n in range(int((until - since) / HOUR) + 1)]


WHOLE = hourly(MONTH, NOW)
SILENT = hourly(MONTH, NOW - 8 * DAY)
HOLE = [at for at in WHOLE if not MONTH + 3 * DAY + HOUR < at < MONTH + 7 * DAY - HOUR]

DAILY = [MONTH + DAY * n for n in range(16)]
HOURS_OF_A_DAY = [at for at in WHOLE if not MONTH + 3 * DAY + 2 * HOUR < at < MONTH + 3 * DAY + 7 * HOUR]


def window() -> Window:
    return Window(since=NOW - DAY, until=NOW, now=NOW, timezone="UTC")


@pytest.mark.parametrize(
    ("looks", "known", "unknown", "spent"),
    [
        pytest.param(WHOLE, "15", "0", 15, id="every day"),
        pytest.param(SILENT, "7", "8", 7, id="no pass for eight days"),
        # the machine ran before the gap and after it
        pytest.param(HOLE, "11.12", "3.88", 15, id="a gap of four days, with a pass in the first and the last"),
        pytest.param(HOURS_OF_A_DAY, "14.83", "0.17", 15, id="five hours per day"),
        pytest.param(DAILY, "0.63", "14.37", 15, id="one pass a day, which covers an hour"),
        pytest.param(DAILY[:8], "0.29", "14.71", 7, id="one pass a day, and none for eight days"),
    ],
)
def test_days_without_a_pass_do_not_count_as_days_without_cost(
    tmp_path: Path, looks: list[datetime], known: str, unknown: str, spent: int
) -> None:
    found = reports.digest(fleet_with(tmp_path, "p5.48xlarge", looks), window(), True)
    day = Decimal("55.04") * 24
    assert (found.month.days_known, found.month.days_unknown) == (Decimal(known), Decimal(unknown))
    assert found.month.spent == day * spent
    assert found.month.expected == day * 30, "each unknown day costs as much as a known one"
    assert found.budget is not None
    assert (found.budget.state is BudgetState.UNKNOWN) is (unknown != "0" and not found.budget.crossed)
    assert bool(found.budget.unknown) is (unknown != "0")


def test_budget_with_unpriced_parts_is_never_reported_as_within(tmp_path: Path) -> None:
    fleet = fleet_with(tmp_path, "x99.giant", WHOLE, budgets=[{"team": "team", "usd_per_month": "1"}])
    found = reports.digest(fleet, window(), True)
    assert found.budget is not None
    assert found.budget.state is BudgetState.UNKNOWN
    assert [use.state for _, use in found.budgets] == [BudgetState.UNKNOWN]
    text = as_text(found)
    assert (
        "budget: at least 0% of 60,000 USD used, unknown in part (no price for x99.giant on-demand in us-east-1a)"
        in text
    )
    assert "cost: at least 0.00" in text
    assert "this month: at least 0.00 USD expected" in text
    listed = reports.digest_json(found)
    assert listed["month"]["at_least"] is True
    assert listed["budget"]["unknown"] == ["no price for x99.giant on-demand in us-east-1a"]


def test_people_are_notified_once_of_a_partly_unknown_budget(tmp_path: Path) -> None:
    fleet = fleet_with(tmp_path, "x99.giant", WHOLE)
    engine = open_ledger(fleet.ledger_url)
    for hours in (0, 1, 2):
        alerts.enqueue_all(fleet, engine, NOW + hours * HOUR)
    texts = [one.message.text for one in messages(engine) if "budget" in one.message.text]
    assert len(texts) == 1
    assert texts[0].endswith("unknown: no price for x99.giant on-demand in us-east-1a")
    assert texts[0].startswith("test: at least 0% of the month's budget is used")


def test_saving_of_a_terminated_instance_without_a_price_is_unknown(tmp_path: Path) -> None:
    fleet = fleet_with(tmp_path, "x99.giant", WHOLE)
    decision = Decision(resource="i-1", pool="batch", action=Action.END, reason=Reason.STILL_IDLE)
    done = Outcome(decision=decision, kind=OutcomeKind.DONE, detail="ended")
    record_outcome(open_ledger(fleet.ledger_url), ledger_name(fleet), "idle", done, NOW - 3 * HOUR)
    found = reports.digest(fleet, window(), True)
    assert [one.amount for one in found.savings.stops] == [None]
    assert found.savings.unpriced_stops == 1
    text = as_text(found)
    assert "at least 0.00" in text.split("by ending 1 idle instance")[0].splitlines()[-1]
    assert "unknown  i-1 (batch), counted until" in text
    saved = reports.digest_json(found)["savings"]
    assert (saved["stops"][0]["usd"], saved["stopped_at_least"]) == (None, True)


LOST = st.tuples(st.decimals(0, 10**4, places=2), st.sampled_from(["0", "0.25", "0.5", "1"]).map(Decimal))


@given(
    known=st.lists(st.decimals(0, 10**4, places=2), min_size=1, max_size=28),
    parts=st.lists(LOST, max_size=10),
    left=st.decimals(0, 31, places=2),
)
def test_missing_time_never_lowers_a_forecast(
    known: list[Decimal], parts: list[tuple[Decimal, Decimal]], left: Decimal
) -> None:
    spent = sum(known, Decimal(0)) + sum((usd for usd, _ in parts), Decimal(0))
    days = [IntervalCost(usd, Decimal(1), Decimal(0)) for usd in known]
    lost = [IntervalCost(usd, Decimal(1), share) for usd, share in parts]
    plain, filled = forecast(spent, days, left), forecast(spent, days, left, [*days, *lost])
    assert plain.expected <= filled.expected
    assert filled.low <= filled.high
    mean = sum(known, Decimal(0)) / len(known)
    most = sum((max(Decimal(0), mean - usd) * share for usd, share in parts), Decimal(0))
    assert abs(filled.expected - plain.expected - most) <= money.CENT


HOLE_OF_HOURS = (MONTH + DAY, MONTH + DAY + 5 * HOUR)


@pytest.mark.parametrize(
    ("month", "text"),
    [
        pytest.param({}, "100 USD expected (90 to 110)", id="all known"),
        pytest.param(
            {"days_unknown": Decimal("4.25"), "not_collected": (HOLE_OF_HOURS,)},
            "100 USD expected (90 to 110, from 6 of 10.25 days)",
            id="time lost",
        ),
        pytest.param({"unpriced": ("x",)}, "at least 100 USD expected (90 to 110)", id="no price"),
        pytest.param(
            {"before": (MONTH, MONTH + DAY)}, "at least 100 USD expected (90 to 110)", id="before the ledger"
        ),
        pytest.param(
            {"days_known": Decimal(0), "not_collected": (HOLE_OF_HOURS,)},
            "at least 50.00 USD so far (no full day known yet)",
            id="no day",
        ),
    ],
)
def test_forecast_states_the_known_part_of_its_basis(month: dict[str, Any], text: str) -> None:
    assert month_text(replace(PLAIN, **month)) == text


PLAIN = Forecast(spent=Decimal(50), expected=Decimal(100), low=Decimal(90), high=Decimal(110), days_known=Decimal(6))


@pytest.mark.parametrize(
    ("unknown", "text", "at_most", "lacking"),
    [
        pytest.param(
            {"not_collected": (HOLE_OF_HOURS,)},
            "5.0 h not collected (2026-11-02 00:00 to 2026-11-02 05:00 UTC)",
            None,
            True,
            id="not collected",
        ),
        pytest.param(
            {"before": (MONTH, MONTH + DAY)}, "not collected before 2026-11-02 00:00 UTC", None, False, id="new"
        ),
        pytest.param({"unpriced": ("x",)}, "no price for x", None, True, id="unpriced"),
        pytest.param(
            {"too_little": Decimal("3.5"), "too_much": Decimal(1)},
            "known between bounds: at most 3.50 USD more, or 1.00 USD less",
            "53.5",
            False,
            id="bounds within the budget",
        ),
        pytest.param(
            {"too_little": Decimal(500)}, "known between bounds: at most 500.00 USD more", "550", True,
            id="bounds above the budget",
        ),
    ],
)  # fmt: skip
def test_budget_with_unknown_parts_is_never_within(
    unknown: dict[str, Any], text: str, at_most: str | None, lacking: bool
) -> None:
    use = budget_use(Decimal(200), replace(PLAIN, **unknown))
    assert (use.state, use.unknown) == (BudgetState.UNKNOWN, (text,))
    assert use.at_most == (None if at_most is None else Decimal(at_most))
    assert use.lacking is lacking, "people are notified"
    assert budget_use(Decimal(200), PLAIN).state is BudgetState.WITHIN


def test_undated_end_bounds_budget_and_month(tmp_path: Path) -> None:
    looks = hourly(NOW - DAY, NOW)
    fleet = fleet_with(tmp_path, "p5.48xlarge", looks)
    name, engine = ledger_name(fleet), open_ledger(fleet.ledger_url)
    ended = RunEnd(
        cloud=Cloud.AWS, instance_id="i-2", started_at=NOW - DAY, ended_at=NOW - 3 * HOUR,
        cause=facts.EndCause.ABSENT, exact=False,
    )  # fmt: skip
    with writing(engine) as connection, engine.connect() as reading:
        (known,) = runs(reading, name, MONTH, NOW)
        one = replace(known, instance_id="i-2", started_at=NOW - DAY, last_seen_at=NOW - 5 * HOUR)
        facts.add_runs(connection, [one])
        facts.add_ends(connection, [ended])
    found = reports.digest(fleet, window(), True)
    assert found.budget is not None
    assert found.month.too_little == Decimal("55.04") * 2
    assert "known between bounds: at most 110.08 USD more" in found.month.unknown
    assert reports.digest_json(found)["month"]["not_collected"] == [
        {"start": "2026-11-01T00:00:00Z", "end": "2026-11-15T00:00:00Z"}
    ]
    alerts.enqueue_all(fleet, engine, NOW)
    assert not [one for one in messages(engine) if "budget" in one.message.text], "even at most it is within"


def test_waste_and_savings_without_a_price_are_lower_bounds(tmp_path: Path) -> None:
    fleet = fleet_with(tmp_path, "x99.giant", WHOLE)
    name, engine = ledger_name(fleet), open_ledger(fleet.ledger_url)
    quiet = [
        facts.ActivityHour(name, "i-1", NOW - DAY + n * HOUR, 0, (1 << 360) - 1) for n in range(24)
    ]  # fmt: skip
    with engine.connect() as reading:
        (known,) = runs(reading, name, MONTH, NOW)
    spot = replace(known, instance_id="i-2", capacity_type=CapacityType.SPOT)
    with writing(engine) as connection:
        facts.add_runs(connection, [spot])
        facts.add_activity(connection, quiet)
    found = reports.digest(fleet, window(), True)
    text = as_text(found)
    assert "idle, starting, unused: at least 0.0000 USD" in text
    assert "at least 0.0000 USD  idle in batch: 1 instance idled 24.0 h in total" in text
    assert "at least 0.0000 USD  spot against on-demand (no price for x99.giant spot in us-east-1a)" in text
    assert "−at least 0.0000 USD  cost of on-demand that replaced spot (no price for x99.giant on-demand" in text
    whole = reports.digest_json(found)
    assert [(one["cause"], one["usd"], one["at_least"]) for one in whole["waste"]] == [("idle", "0.000000000", True)]
    assert whole["savings"]["spot_at_least"] and whole["savings"]["fallback_at_least"]


def test_budget_lists_unknown_parts_and_its_status() -> None:
    month = Forecast(
        spent=Decimal(120),
        expected=Decimal(200),
        low=Decimal(0),
        high=Decimal(0),
        days_known=Decimal(3),
        unpriced=("x",),
    )
    use = budget_use(Decimal(100), month)
    assert use.state is BudgetState.EXCEEDED
    assert budget_text(use) == "at least 120% of 100 USD used, exceeded ‼ (no price for x)"


HOURS = st.builds(
    Hour,
    usd=st.fractions(0, 1000, max_denominator=100),
    instance_hours=st.fractions(0, 10, max_denominator=10),
    tokens=st.integers(0, 1000),
)


@given(
    st.lists(HOURS, min_size=1, max_size=6).flatmap(lambda hours: st.tuples(st.just(hours), st.permutations(hours)))
)
def test_usual_hour_is_a_median_for_any_order(orders: tuple[list[Hour], list[Hour]]) -> None:
    hours, shuffled = orders
    middle = usual(hours)
    assert middle is not None and middle == usual(shuffled)
    below = sum(hour.usd <= middle.usd for hour in hours)
    above = sum(hour.usd >= middle.usd for hour in hours)
    assert 2 * below >= len(hours) and 2 * above >= len(hours)


def test_usual_value_of_two_hours_is_between_them() -> None:
    one, other = (Hour(usd=Fraction(usd), instance_hours=Fraction(1), tokens=0) for usd in (1, 99))
    middle = usual([other, one])
    assert middle is not None and middle.usd == 50


def test_bounds_of_hours_decide_on_an_anomaly() -> None:
    def hour(usd: int, more: int | None = 0, less: int = 0) -> Hour:
        return Hour(
            usd=Fraction(usd), instance_hours=Fraction(1), tokens=0, too_much=Fraction(less),
            too_little=None if more is None else Fraction(more),
        )  # fmt: skip

    def is_far(now: Hour, *before: Hour) -> bool:
        return bool(anomalies(now, before, ""))

    assert is_far(hour(10), hour(2)) and is_far(hour(2), hour(10))
    assert is_far(hour(10, more=None), hour(2)), "at least 10 is an increase"
    assert not is_far(hour(2, more=None), hour(10)), "at least 2 is not a decrease"
    assert not is_far(hour(10), hour(2, more=None))
    assert not is_far(hour(10, less=8), hour(2)) and not is_far(hour(10), hour(2, more=8))
    assert is_far(hour(10), hour(2), hour(2, more=None), hour(2)), "the median of upper bounds is known"


def test_time_without_a_pass_is_described_in_plain_text(tmp_path: Path) -> None:
    fleet = fleet_with(tmp_path, "p5.48xlarge", SILENT)
    made = reports.cost(fleet, replace(window(), since=NOW - 9 * DAY), True)
    text, rows = report_text(made), as_document(made)["unknown"]
    assert "192.0 h were not collected" in text and "not observed since" in text
    assert {(row["why"], row["why_code"]) for row in rows} == {("not observed since", "not_observed")}
