"""The history of a resource in the ledger: its decisions and outcomes; of a pool, those of all its resources."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.ledgers import ledger_name
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.ledger.decisions import ended_since, history, record_decisions, record_outcome
from gpufleet.ledger.fleet import FleetLedger
from gpufleet.ledger.history import ended_by_idle
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.watchdogs.fake_fleet import idle_fleet
from tests.fixtures.watchdogs.plain import document, instance
from watchdogs.idle.watchdog import IdleWatchdog

NOW = datetime(2026, 11, 21, 3, tzinfo=UTC)
SPOT = Decision(resource="chat-spot-a", pool="chat", action=Action.KEEP, reason=Reason.ZONE_BACKING_OFF)
FALLBACK = Decision(resource="chat-on-demand", pool="chat", action=Action.RESIZE, reason=Reason.FALLBACK)
OTHER = Decision(resource="batch-spot-a", pool="batch", action=Action.KEEP, reason=Reason.AS_WANTED)


@pytest.mark.parametrize(
    ("asked", "evidence"),
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
def test_evidence_in_watch_why(tmp_path: Path, asked: str, evidence: list[tuple[str, str | None]]) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    record_decisions(engine, "fleet", "spot", [FALLBACK, SPOT, OTHER], NOW)
    outcome = Outcome(decision=FALLBACK, kind=OutcomeKind.DONE, detail="0 → 1", error=None)
    record_outcome(engine, "fleet", "spot", outcome, NOW + timedelta(seconds=1))
    record_decisions(engine, "another fleet", "spot", [SPOT], NOW)
    found = history(engine, "fleet", asked)
    engine.dispose()
    assert [(past.decision.resource, past.outcome and past.outcome.kind) for past in found] == evidence


def test_an_end_recorded_twice_counts_once(tmp_path: Path) -> None:
    """A group that took its time to end an instance was asked again by each pass, and each said `done`."""
    engine = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    for minute, resource in ((0, "i-1"), (1, "i-1"), (2, "i-2")):
        end = Decision(resource=resource, pool="chat", action=Action.END, reason=Reason.STILL_IDLE)
        outcome = Outcome(decision=end, kind=OutcomeKind.DONE, detail="ended", error=None)
        record_outcome(engine, "fleet", "idle", outcome, NOW + timedelta(minutes=minute))
    stops = [("i-1", "chat", NOW), ("i-2", "chat", NOW + timedelta(minutes=2))]
    with engine.connect() as connection:
        assert ended_by_idle(connection, "fleet", NOW, NOW + timedelta(hours=1)) == stops
        later = ended_by_idle(connection, "fleet", NOW + timedelta(minutes=1), NOW + timedelta(hours=1))
    assert later == stops[1:], "its first word counts, also where a window begins after it"
    assert ended_since(engine, "fleet", "idle", NOW) == {"chat": 2}
    engine.dispose()


@pytest.mark.parametrize(
    ("later", "rows"),
    [
        pytest.param(SPOT, 0, id="the same"),
        pytest.param(replace(SPOT, detail="penalty 0.40, fading", evidence={"losses": "2"}), 0, id="other evidence"),
        pytest.param(replace(SPOT, reason=Reason.NO_SPOT), 1, id="another reason"),
        pytest.param(
            replace(SPOT, action=Action.RESIZE, reason=Reason.SPOT_WANTED, from_size=1, to_size=2), 1, id="an action"
        ),
        pytest.param(OTHER, 1, id="another resource"),
    ],
)
def test_a_decision_row_is_written_when_action_or_reason_changes_not_each_pass(
    tmp_path: Path, later: Decision, rows: int
) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    assert record_decisions(engine, "fleet", "spot", [SPOT], NOW) == 1
    passes = [NOW + timedelta(minutes=n) for n in range(1, 6)]
    written = [record_decisions(engine, "fleet", "spot", [later], at) for at in passes]
    assert written == [rows, 0, 0, 0, 0]
    back = record_decisions(engine, "fleet", "spot", [SPOT], NOW + timedelta(minutes=6))
    assert back == (rows if later.resource == SPOT.resource else 0), "a change back is a change"
    assert record_decisions(engine, "fleet", "idle", [SPOT], NOW) == 1, "each watchdog has its own"
    assert record_decisions(engine, "another", "spot", [SPOT], NOW) == 1, "and each fleet"
    engine.dispose()


def test_passes_in_which_nothing_changes_write_no_decision_row(tmp_path: Path) -> None:
    """The idle watchdog's own passes: marked, then waiting for its grace for as long as that lasts."""
    fleet, fake = document(), idle_fleet(1)
    engine = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger = FleetLedger(engine, ledger_name(fleet), "idle", "test")
    assert ledger.take_lease(fake.now) is None
    watchdog = IdleWatchdog(fleet, replace(fake.ports(), ledger=ledger))
    watchdog.dry()
    for _ in range(5):
        watchdog.apply()
        fake.now += timedelta(seconds=10)
    past = history(engine, ledger_name(fleet), instance(1).id)
    engine.dispose()
    rows = [(row.decision.action, row.decision.reason) for row in past if row.outcome is None]
    assert rows == [(Action.MARK, Reason.IDLE), (Action.KEEP, Reason.MARKED_WAITING)]
