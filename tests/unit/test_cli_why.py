"""`gpufleet watch why`: the cause of an alert at night is in its last lines."""

from datetime import timedelta
from pathlib import Path

from typer.testing import CliRunner

from cli.main import build
from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.settings.document import render
from ledger import decisions
from ledger.schema import open_ledger
from tests.console import fleet as fleets


def said(*words: str) -> str:
    done = CliRunner().invoke(build("watch"), ["watch", "why", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_pools_history_ends_with_the_last_reason_of_each_of_its_groups(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    written = fleets.document("chat", "batch").model_copy(update={"ledger_url": url})
    groups = [group.name for group in written.pools[0].groups]
    path = tmp_path / "fleet.json"
    path.write_text(render(written))
    engine = open_ledger(url)
    for minute, reason in enumerate([Reason.AS_WANTED, Reason.NO_SPOT]):
        rows = [
            Decision(resource=name, pool="chat", action=Action.KEEP, reason=reason, usd_per_hour=None)
            for name in (*groups, f"i-{minute}")
        ]
        decisions.record_decisions(engine, "aws/prod/us-east-1", "spot", rows, fleets.NOW + timedelta(minutes=minute))
    engine.dispose()
    lines = said("chat", "--fleet", str(path)).splitlines()
    at = (fleets.NOW + timedelta(minutes=1)).isoformat(timespec="seconds")
    assert groups and lines[-len(groups) :] == [f"last of {name}, {at}: keep, no spot to be had" for name in groups]
    assert not any(line.startswith("last of") for line in lines[: -len(groups)])
    assert "last of" not in said(groups[0], "--fleet", str(path))
