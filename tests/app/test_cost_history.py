"""The console's history of costs has the numbers of the cost report."""

from datetime import timedelta
from pathlib import Path

import pytest

from app.cost_history import cost_history
from app.fleets import load
from app.reports import cost
from app.windows import Window
from gpufleet.console.history import CostHistory, Grouping, Period, series, totals
from gpufleet.costs.report import By
from gpufleet.costs.waste import WasteCause
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import FleetDocument
from tests.fixtures.small_fleet import HOUR, T0, document, fill

NOW = T0 + 6 * HOUR


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> FleetDocument:
    folder = tmp_path_factory.mktemp("fleet")
    engine = open_ledger(f"sqlite:///{folder}/ledger.db")
    fill(engine)
    engine.dispose()
    (found,) = load([str(document(folder))])
    return found


@pytest.mark.parametrize(
    ("by", "group"), [(Grouping.POOL, By.POOL), (Grouping.MODEL, By.MODEL), (Grouping.TEAM, By.TEAM)]
)
def test_each_interval_costs_what_the_report_of_the_same_time_states(
    fleet: FleetDocument, by: Grouping, group: By
) -> None:
    found = cost_history(fleet, Period.DAY, NOW)
    every, whole = series(found, by), totals(found)
    for number, one in enumerate(found.intervals):
        report = cost(fleet, Window(since=one.start, until=one.end, now=NOW, timezone="UTC"), True)
        assert whole[number].dollar_seconds == report.total.allocation
        shown = {part.name: part.amounts[number].dollar_seconds for part in every}
        expected = {name: figure.allocation for name, figure in report.groups[group].items() if figure.allocation}
        assert {name: usd for name, usd in shown.items() if usd} == expected
    assert sum(one.dollar_seconds for one in whole) > 0


def test_hours_without_a_pass_are_not_known(fleet: FleetDocument) -> None:
    found = cost_history(fleet, Period.DAY, NOW)
    # passes at T0 - 10 h and at T0 + 6 h: instances that started and ended in between were not seen
    assert not any(one.is_collected for one in found.intervals)
    known = [one.is_known for one in totals(found)]
    assert known == [False] * 18 + [True] * 6, "what ran before and after it was charged: at least that"


def test_an_interval_after_the_last_pass_is_not_known(fleet: FleetDocument) -> None:
    found = cost_history(fleet, Period.DAY, NOW + timedelta(minutes=2))
    assert not totals(found)[-1].is_known


def test_actions_and_waste_are_those_of_the_ledger(fleet: FleetDocument) -> None:
    found: CostHistory = cost_history(fleet, Period.DAY, NOW)
    assert [(one.watchdog, one.decision.resource) for one in found.acts] == [("idle", "i-idle")]
    assert (WasteCause.IDLE, "batch") in {(one.cause, one.pool) for one in found.waste}


def test_a_ledger_without_a_pass_has_no_known_cost(tmp_path: Path) -> None:
    (fleet,) = load([str(document(tmp_path))])
    open_ledger(fleet.ledger_url).dispose()
    found = cost_history(fleet, Period.MONTH, NOW)
    assert found.known_until is None
    assert not any(one.is_known for one in totals(found))
