"""A pass whose lease is over acts no more: what it saw is old, and others may be at work. One that waits keeps it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.ledgers import ledger_name
from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.ledger.fleet import LEASE_TERM, FleetLedger
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.watchdogs.fake_fleet import idle_fleet
from tests.fixtures.watchdogs.plain import START, document, instance
from watchdogs import signals
from watchdogs.draining import PendingDrain, until_drained
from watchdogs.idle.final_check import FinalChecks
from watchdogs.ports import Ports

OTHER = "another-host/b/c/1/2"
SOON, LATE = START + timedelta(minutes=1), START + LEASE_TERM + timedelta(minutes=1)
LONG = timedelta(hours=1)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    yield made
    made.dispose()


def seen_by(engine: Engine, holder: str) -> FleetLedger:
    return FleetLedger(engine, ledger_name(document()), "idle", holder)


def _nothing(other: FleetLedger) -> None:
    pass


def _taken(other: FleetLedger) -> None:
    assert other.take_lease(LATE) is None


def _taken_and_given_back(other: FleetLedger) -> None:
    assert other.take_lease(LATE) is None
    other.release_lease()


@pytest.mark.parametrize(
    ("meanwhile", "at", "held"),
    [
        pytest.param(_nothing, SOON, True, id="in its term"),
        pytest.param(_nothing, LATE, False, id="woken after its term"),
        pytest.param(_taken, LATE, False, id="another is at work"),
        pytest.param(_taken_and_given_back, LATE, False, id="another was at work"),
    ],
)
def test_a_pass_continues_only_within_its_lease(
    engine: Engine, meanwhile: Callable[[FleetLedger], None], at: datetime, held: bool
) -> None:
    ours, other = seen_by(engine, "us/b/c/1/2"), seen_by(engine, OTHER)
    assert ours.take_lease(START) is None
    meanwhile(other)
    assert ours.renew_lease(at) is held
    assert ours.renew_lease(at) is held, "asked again, it is as it was"
    # renewed, it keeps the other one out beyond its first term; else it is the other's to take
    assert (other.take_lease(START + LEASE_TERM + timedelta(seconds=30)) is None) is not held


def _spot(ports: Ports, drains: list[PendingDrain]) -> None:
    assert [done for _, done in until_drained(ports, drains, LONG)] == [False]


def _idle(ports: Ports, drains: list[PendingDrain]) -> None:
    looks = FinalChecks(ports, signals.of_environment("test"))
    assert len(list(looks.wait(drains, LONG))) == 1


@pytest.mark.parametrize("wait", [_spot, _idle])
def test_a_pass_that_waits_for_a_long_drain_keeps_its_lease(
    engine: Engine, wait: Callable[[Ports, list[PendingDrain]], None]
) -> None:
    fleet = idle_fleet(1)
    ours = seen_by(engine, "us/b/c/1/2")
    assert ours.take_lease(fleet.now) is None
    decision = Decision(resource=instance(1).id, pool="batch", action=Action.END, reason=Reason.STILL_IDLE)
    wait(replace(fleet.ports(), ledger=ours), [(decision, instance(1))])
    assert fleet.now > START + LONG
    assert seen_by(engine, OTHER).take_lease(fleet.now) is not None and ours.renew_lease(fleet.now)
