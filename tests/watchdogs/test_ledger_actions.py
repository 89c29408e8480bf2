"""Past actions in the ledger: completed ones, and failed attempts."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from app.ledgers import ledger_name
from gpufleet.domain.decisions import Action, Decision, OpenAttempts, Outcome, OutcomeKind, PastAction, Plan, Reason
from gpufleet.ledger.fleet import FleetLedger
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.watchdogs.plain import START, document, instance

MINUTE = timedelta(minutes=1)
FIRST = instance(1).id


def past_action(at: datetime, action: Action, reason: Reason) -> PastAction:
    return PastAction(resource=FIRST, pool="batch", action=action, reason=reason, at=at)


def test_the_ledger_gives_back_what_was_done_and_only_that(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger = FleetLedger(engine, ledger_name(document()), "idle", "me")
    marked = Decision(resource=FIRST, pool="batch", action=Action.MARK, reason=Reason.IDLE)
    ended = replace(marked, action=Action.END, reason=Reason.STILL_IDLE)
    ledger.record(Plan(watchdog="idle", at=START, decisions=(marked,)))
    for at, watchdog_name, decision, kind in (
        (START - timedelta(hours=2), "idle", marked, OutcomeKind.DONE),
        (START + 2 * MINUTE, "idle", ended, OutcomeKind.DONE),
        (START + MINUTE, "idle", marked, OutcomeKind.DONE),
        (START + MINUTE, "idle", ended, OutcomeKind.WAITING),
        (START + MINUTE, "spot", ended, OutcomeKind.DONE),
    ):
        ledger.record_outcome(watchdog_name, Outcome(decision=decision, kind=kind), at)
    assert list(ledger.done_since("idle", START)) == [
        past_action(START + MINUTE, Action.MARK, Reason.IDLE),
        past_action(START + 2 * MINUTE, Action.END, Reason.STILL_IDLE),
    ]


def test_the_ledger_has_the_first_and_last_failed_attempt(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger = FleetLedger(engine, ledger_name(document()), "idle", "me")
    ended = Decision(resource=FIRST, pool="batch", action=Action.END, reason=Reason.STILL_IDLE)
    for minutes, watchdog_name, action, kind in (
        (-1, "idle", Action.END, OutcomeKind.FAILED),
        (1, "idle", Action.END, OutcomeKind.WAITING),
        (3, "idle", Action.STOP, OutcomeKind.FAILED),
        (2, "idle", Action.END, OutcomeKind.FAILED),
        (0, "spot", Action.END, OutcomeKind.FAILED),
        (4, "idle", Action.MARK, OutcomeKind.FAILED),
        (5, "idle", Action.END, OutcomeKind.NO_LONGER_TRUE),
        (6, "idle", Action.END, OutcomeKind.DONE),
    ):
        error = "refused" if kind is OutcomeKind.FAILED else None
        outcome = Outcome(decision=replace(ended, action=action), kind=kind, error=error)
        ledger.record_outcome(watchdog_name, outcome, START + minutes * MINUTE)
    assert ledger.open_attempts_since("idle", START) == {
        FIRST: OpenAttempts(first=START + MINUTE, last=START + 3 * MINUTE)
    }
    assert ledger.open_attempts_since("idle", START + 4 * MINUTE) == {}
