"""The data of the ledger for screens."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine

from gpufleet.console import ledger_data
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger import decisions, facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import EndCause, Run, RunEnd
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.console.fleet import NOW


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = open_ledger("sqlite://")
    yield made
    made.dispose()


def _done(engine: Engine, resource: str, reason: Reason, *, minutes: int, watchdog: str = "idle") -> None:
    decision = Decision(resource=resource, pool="chat", action=Action.MARK, reason=reason, usd_per_hour=None)
    outcome = Outcome(decision=decision, kind=OutcomeKind.DONE, detail="", error=None)
    decisions.record_outcome(engine, "prod", watchdog, outcome, NOW + timedelta(minutes=minutes))


def test_last_outcome_of_each_instance_has_its_reason(engine: Engine) -> None:
    _done(engine, "i-1", Reason.IDLE, minutes=0)
    _done(engine, "i-1", Reason.STILL_IDLE, minutes=10)
    _done(engine, "i-2", Reason.SAFER_ZONE, minutes=5, watchdog="spot")
    many = [f"i-{number}" for number in range(1200)]
    assert ledger_data.reasons(engine, "prod", many) == {
        "i-1": "idle: still idle after its grace",
        "i-2": "spot: a safer zone",
    }
    assert ledger_data.reasons(engine, "prod", ["i-2", "i-3"]) == {"i-2": "spot: a safer zone"}
    assert ledger_data.reasons(engine, "other", many) == {}
    assert ledger_data.reasons(engine, "prod", []) == {}


def test_preemptions_include_instances_that_were_drained_in_time(engine: Engine) -> None:
    ended = {"i-taken": EndCause.PREEMPTED, "i-drained": EndCause.ENDED, "i-both": EndCause.PREEMPTED}
    ended |= {"i-idle": EndCause.ENDED}
    began = NOW - timedelta(hours=2)
    runs = [
        Run(
            cloud=Cloud.AWS,
            instance_id=name,
            started_at=began,
            environment="prod",
            region="us-east-1",
            zone="us-east-1a",
            machine_type="g6.xlarge",
            capacity_type=CapacityType.SPOT,
            last_seen_at=NOW,
            pool="chat",
        )
        for name in (*ended, "i-lives")
    ]
    ends = [
        RunEnd(cloud=Cloud.AWS, instance_id=name, started_at=began, ended_at=NOW, cause=cause, exact=True)
        for name, cause in ended.items()
    ]
    with writing(engine) as connection:
        facts.add_runs(connection, runs)
        facts.add_ends(connection, ends)
    for name in ("i-drained", "i-both"):
        _done(engine, name, Reason.PREEMPTED, minutes=0, watchdog="spot")
    _done(engine, "i-idle", Reason.STILL_IDLE, minutes=0)
    assert ledger_data.preemptions(engine, "prod") == {"chat": 3}
