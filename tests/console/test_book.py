"""What the ledger tells the screens."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine

from console import book
from ledger import decisions
from ledger.decisions import DecisionRow, OutcomeRow
from ledger.schema import open_ledger
from tests.console.fleet import NOW


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = open_ledger("sqlite://")
    yield made
    made.dispose()


def _done(engine: Engine, resource: str, reason: str, *, minutes: int, watchdog: str = "idle") -> None:
    decision = DecisionRow(resource=resource, pool="chat", action="mark", reason=reason, usd_per_hour=None)
    outcome = OutcomeRow(decision=decision, kind="done", detail="", error=None)
    decisions.record_outcome(engine, "prod", watchdog, outcome, NOW + timedelta(minutes=minutes))


def test_the_last_thing_done_about_each_instance_says_why(engine: Engine) -> None:
    _done(engine, "i-1", "idle", minutes=0)
    _done(engine, "i-1", "still idle after its grace", minutes=10)
    _done(engine, "i-2", "a safer zone", minutes=5, watchdog="spot")
    many = [f"i-{number}" for number in range(1200)]
    assert book.reasons(engine, "prod", many) == {
        "i-1": "idle: still idle after its grace",
        "i-2": "spot: a safer zone",
    }
    assert book.reasons(engine, "prod", ["i-2", "i-3"]) == {"i-2": "spot: a safer zone"}
    assert book.reasons(engine, "other", many) == {}
    assert book.reasons(engine, "prod", []) == {}
