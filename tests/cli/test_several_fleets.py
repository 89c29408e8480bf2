"""Commands over several fleets: a failure of one fleet does not stop the others."""

import json
from pathlib import Path

import pytest
import typer

from app.errors import AppError
from app.fleets import load_one
from app.passes import SPOT, Options, kinds
from cli import watch_cost, watch_orphans
from cli.output import STDERR, Exit
from cli.report import _all_sent  # pyright: ignore[reportPrivateUsage]
from cli.watch_pass import Show, over_fleets
from gpufleet.settings.document import FleetDocument, render
from tests.fixtures.small_fleet import document


@pytest.fixture
def lost(tmp_path: Path) -> list[FleetDocument]:
    """Two fleets whose ledgers are not valid databases."""
    found: list[FleetDocument] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ledger.db").write_bytes(b"this is no database, whatever its name says" * 100)
        found.append(load_one(str(document(tmp_path / name, environment=name))))
    return found


def test_invalid_ledger_does_not_stop_passes_of_other_fleets(lost: list[FleetDocument]) -> None:
    code, answers = over_fleets(kinds()[SPOT], lost, Options(), Show.PROBLEMS)
    assert code is Exit.FAILED
    assert [one["environment"] for one in answers] == ["one", "two"]
    assert all("not a database" in one["error"] for one in answers)
    with pytest.raises(AppError, match="not a database"):
        over_fleets(kinds()[SPOT], lost[:1], Options(), Show.PROBLEMS)


def test_invalid_ledger_does_not_stop_orphan_lists_of_other_fleets(
    lost: list[FleetDocument], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    two = lost[1].model_copy(update={"region": "us-west-2"})
    (tmp_path / "two.json").write_text(render(two), "utf-8")
    with pytest.raises(typer.Exit) as ended:
        watch_orphans.orphans([str(tmp_path / "one" / "fleet.json"), str(tmp_path / "two.json")], as_json=True)
    assert ended.value.exit_code == Exit.FAILED
    answers = json.loads(capfd.readouterr().out)
    assert [one["region"] for one in answers] == [lost[0].region, "us-west-2"]
    assert all("not a database" in one["error"] and "usd_per_hour" not in one for one in answers)


def test_invalid_ledger_does_not_stop_costs_of_other_fleets(lost: list[FleetDocument]) -> None:
    with STDERR.capture() as captured:
        code, answers = watch_cost.over_fleets(lost, show=False)
    assert code is Exit.FAILED
    assert [one["environment"] for one in answers] == ["one", "two"]
    assert all("not a database" in one["error"] for one in answers)
    text = captured.get()
    assert "one: cost: " in text
    assert "two: cost: " in text
    assert text.count("nothing was written") == 2


def test_waiting_post_does_not_stop_posts_of_other_fleets() -> None:
    tried: list[int] = []

    def post(number: int) -> bool:
        tried.append(number)
        return number != 0

    with pytest.raises(typer.Exit) as ended:
        _all_sent(post(number) for number in range(3))
    assert (tried, ended.value.exit_code) == ([0, 1, 2], Exit.FAILED)
    _all_sent(post(number) for number in range(1, 3))
