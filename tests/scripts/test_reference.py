"""Tests of the command line of `python -m scripts.reference`."""

from pathlib import Path

import pytest

from scripts import reference


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    monkeypatch.setattr(reference, "pages", lambda: {"alerts.md": "# Alerts\n", "metrics.md": "# Metrics\n"})
    return tmp_path


@pytest.mark.parametrize("asked", ["--help", "--chek"], ids=["help", "a word that there is not"])
def test_invalid_or_help_arguments_write_no_pages(folder: Path, asked: str) -> None:
    with pytest.raises(SystemExit):
        reference.main([asked])
    assert list(folder.iterdir()) == []


def test_check_reports_stale_or_missing_pages_and_writes_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "alerts.md").write_text("# Alerts, of before\n")
    assert reference.main(["--check"]) == 1
    output = capsys.readouterr().err
    assert "docs/reference/alerts.md is not current" in output
    assert "docs/reference/metrics.md is not current" in output
    assert (folder / "alerts.md").read_text() == "# Alerts, of before\n"
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
