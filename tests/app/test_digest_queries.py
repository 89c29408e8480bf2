"""A digest reads each fact once: its number of queries is independent of days, budgets and teams."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from app import alerts, reports
from app.fleets import load_one
from app.windows import Window
from gpufleet.costs.digest import Digest
from gpufleet.domain.model import CapacityType
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import CostPass
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.teams import TeamReading, add_team_readings
from tests.fixtures.small_fleet import FLEET, HOUR, T0, document, fill, run

DAY = timedelta(days=1)
END = T0 + 6 * HOUR
SELECTS = 27
"""The number of a digest's queries, for every window and every set of budgets."""


@pytest.fixture(params=[1, 10], ids=["one team", "ten teams"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A ledger of sixty days, with several teams that share a pool."""
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    with writing(engine) as connection:
        facts.add_runs(connection, [run("i-old", -60 * 24, CapacityType.ON_DEMAND)])
        for at in (T0 - 60 * DAY + n * HOUR for n in range(61 * 24)):
            facts.add_pass(
                connection, CostPass(environment=FLEET, at=at, host="h", metrics_from=None, metrics_until=None)
            )
        for step in range(30 * 6):
            add_team_readings(connection, [_reading(team, step) for team in range(request.param)])
    engine.dispose()
    return tmp_path


def _reading(team: int, step: int) -> TeamReading:
    """One reading every four hours of thirty days."""
    return TeamReading(
        fleet=FLEET, router="r1", team=f"team-{team}", model="chat", pool="chat", at=END - (30 * 6 - step) * 4 * HOUR,
        replica_ms=step * (team + 1), tokens_in=0, tokens_out=0, unmetered=0,
    )  # fmt: skip


@contextmanager
def _counted() -> Generator[list[str]]:
    """Collects the SELECT statements of every engine."""
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT"):
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def _fleet(folder: Path, budgets: int) -> Any:
    path = document(folder, budgets=[_budget(number) for number in range(budgets)])
    whole = path.read_text().replace('"name": "chat"', '"team_split": "engine-seconds", "name": "chat"')
    path.write_text(whole)
    return load_one(str(path))


def _budget(number: int) -> dict[str, str]:
    part = {"pool": "chat"} if number == 0 else {"team": f"team-{number - 1}"}
    return part | {"usd_per_month": "100"}


def _digest(folder: Path, days: int, budgets: int) -> tuple[Digest, int]:
    """The digest of some days, and its number of SELECT statements."""
    window = Window(since=END - days * DAY, until=END, now=END, timezone="UTC")
    with _counted() as asked:
        return reports.digest(_fleet(folder, budgets), window, True), len(asked)


def test_number_of_queries_is_independent_of_days_budgets_and_teams(folder: Path) -> None:
    counts = {(days, budgets): _digest(folder, days, budgets)[1] for days in (1, 28) for budgets in (0, 5)}
    assert set(counts.values()) == {SELECTS}, counts


def test_number_of_queries_is_independent_of_days_of_a_larger_fleet(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    with writing(engine) as connection:
        facts.add_runs(connection, [run(f"i-{number}", -60 * 24, CapacityType.ON_DEMAND) for number in range(40)])
        first = CostPass(environment=FLEET, at=T0 - 60 * DAY, host="h", metrics_from=None, metrics_until=None)
        facts.add_pass(connection, first)
    engine.dispose()
    counts = {days: _digest(tmp_path, days, 0)[1] for days in (1, 7, 28)}
    assert len(set(counts.values())) == 1, counts


def test_budgets_of_teams_are_in_the_digest(folder: Path) -> None:
    found, _ = _digest(folder, 28, 5)
    assert found.before is not None and found.month.days_known == 27
    assert [name for name, _ in found.budgets][:2] == ["pool chat", "team team-0"]
    assert found.budgets[0][1].spent >= found.budgets[1][1].spent > 0


def test_number_of_alert_queries_is_independent_of_budgets(folder: Path, tmp_path: Path) -> None:
    counts: list[int] = []
    for budgets in (1, 5):
        copy = tmp_path / f"{budgets}"
        copy.mkdir()
        shutil.copy(folder / "ledger.db", copy)
        fleet = _fleet(copy, budgets)
        with _counted() as asked:
            assert alerts.enqueue_all(fleet, open_ledger(fleet.ledger_url), END)
        counts.append(len(asked))
    assert counts[0] == counts[1], counts
