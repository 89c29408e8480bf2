"""What the ledger tells of a resource: its own decisions and outcomes; of a pool, those of everything in it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ledger.decisions import DecisionRow, OutcomeRow, history, record_decisions, record_outcome
from ledger.schema import open_ledger

NOW = datetime(2026, 11, 21, 3, tzinfo=UTC)
SPOT = DecisionRow(resource="chat-spot-a", pool="chat", action="keep", reason="zone backing off")
FALLBACK = DecisionRow(
    resource="chat-on-demand", pool="chat", action="resize", reason="on-demand stands in for missing spot"
)
OTHER = DecisionRow(resource="batch-spot-a", pool="batch", action="keep", reason="as wanted")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        pytest.param("chat-spot-a", [("chat-spot-a", None)], id="a group"),
        pytest.param(
            "chat",
            [("chat-on-demand", None), ("chat-spot-a", None), ("chat-on-demand", "done")],
            id="a pool: all that it has",
        ),
        pytest.param("chat-spot", [], id="no such thing"),
    ],
)
def test_what_is_told(tmp_path: Path, asked: str, told: list[tuple[str, str | None]]) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    record_decisions(engine, "fleet", "spot", [FALLBACK, SPOT, OTHER], NOW)
    outcome = OutcomeRow(decision=FALLBACK, kind="done", detail="0 → 1", error=None)
    record_outcome(engine, "fleet", "spot", outcome, NOW + timedelta(seconds=1))
    record_decisions(engine, "another fleet", "spot", [SPOT], NOW)
    found = history(engine, "fleet", asked)
    engine.dispose()
    assert [(past.decision.resource, past.outcome and past.outcome.kind) for past in found] == told
