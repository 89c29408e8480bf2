"""Pictures of the documentation: the example fleet is valid, and a missing or failing browser is reported."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.cost_history import cost_history
from app.fleets import load_one
from gpufleet.console.history import Period
from scripts import pictures


def test_example_fleet_has_costs_and_an_action(tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    found = cost_history(load_one(str(pictures.write_fleet(tmp_path, now))), Period.DAY, now)
    assert found.known_until == now
    assert [act.decision.resource for act in found.acts] == [pictures.MACHINES[-1].name]
    assert sum(bool(interval.spend) for interval in found.intervals) > 20


def test_missing_chromium_is_reported_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pictures.shutil, "which", lambda _: None)
    pictures.main()
    assert "none, because Chromium is missing (`make setup-tests` installs it)" in capsys.readouterr().err


@pytest.mark.parametrize("browser", ["false", "no-such-browser"])
def test_a_failing_browser_is_reported(
    browser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pages(folder: Path, _: datetime) -> Iterator[tuple[str, str]]:
        yield "report", folder.as_uri()

    chromium = shutil.which(browser) or str(tmp_path / browser)
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    monkeypatch.setattr(pictures, "pages", pages)
    monkeypatch.setattr(pictures.shutil, "which", lambda _: chromium)
    pictures.main()
    assert "the site lacks some of them: " in capsys.readouterr().err
    assert not list((tmp_path / ".local" / "site" / "pictures").iterdir())


def test_a_console_that_ends_is_an_error_and_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures.sys, "executable", "false")
    with pytest.raises(OSError):
        pictures.console_page(tmp_path, {}, datetime.now(UTC))
