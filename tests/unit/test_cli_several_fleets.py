"""Commands over several fleets: what one of them lacks stops none of the others."""

from pathlib import Path

import pytest
import typer

from cli import watch_cost
from cli.fleets import load_one
from cli.output import STDERR, Exit, UserError
from cli.report import _all_sent  # pyright: ignore[reportPrivateUsage]
from cli.watch_pass import SPOT, Options, kinds, over_fleets
from fleet.document import FleetDocument
from tests.unit.small_fleet import document


@pytest.fixture
def lost(tmp_path: Path) -> list[FleetDocument]:
    """Two fleets whose ledgers are no databases."""
    found: list[FleetDocument] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ledger.db").write_bytes(b"this is no database, whatever its name says" * 100)
        found.append(load_one(str(document(tmp_path / name, environment=name))))
    return found


def test_a_ledger_that_is_lost_stops_no_other_fleet_s_pass(lost: list[FleetDocument]) -> None:
    code, answers = over_fleets(kinds()[SPOT], lost, Options(show=False))
    assert code is Exit.FAILED
    assert [one["environment"] for one in answers] == ["one", "two"]
    assert all("not a database" in one["error"] for one in answers)
    with pytest.raises(UserError, match="not a database"):
        over_fleets(kinds()[SPOT], lost[:1], Options(show=False))


def test_a_ledger_that_is_lost_stops_no_other_fleet_s_costs(lost: list[FleetDocument]) -> None:
    with STDERR.capture() as said:
        whole, done = watch_cost.over_fleets(lost, show=False)
    assert (whole, done) == (False, [])
    text = said.get()
    assert "one: cost: " in text
    assert "two: cost: " in text
    assert text.count("nothing was written") == 2


def test_a_post_that_waits_stops_no_other_fleet_s_post() -> None:
    tried: list[int] = []

    def post(number: int) -> bool:
        tried.append(number)
        return number != 0

    with pytest.raises(typer.Exit) as ended:
        _all_sent(post(number) for number in range(3))
    assert (tried, ended.value.exit_code) == ([0, 1, 2], Exit.FAILED)
    _all_sent(post(number) for number in range(1, 3))
