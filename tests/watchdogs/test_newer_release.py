"""Passes over a ledger with codes of a newer release: none of them raises, and each counts on the safe side."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from app.ledgers import ledger_name
from cli.commands import build
from gpufleet.console import ledger_data
from gpufleet.console.text import brake as brake_text
from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.ledger import decisions, operations
from gpufleet.ledger.database import writing
from gpufleet.ledger.fleet import FleetLedger
from gpufleet.ledger.history import ended_by_idle
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import FleetDocument, render
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.idle import due
from tests.fixtures.watchdogs.orphans import ONE, orphan_fleet, ruled
from tests.fixtures.watchdogs.plain import START, document, instance
from tests.fixtures.watchdogs.scale import BUSY, scaled
from tests.fixtures.watchdogs.spot import SETTINGS, A, B, sizes, spread_fleet
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.orphans.watchdog import OrphanWatchdog
from watchdogs.policy import digests
from watchdogs.spot.limits import chosen_ends
from watchdogs.spot.watchdog import SpotWatchdog

NEW = "of_a_newer_one"
SHOWN = "unknown (of_a_newer_one)"
ENDED = Decision(resource="i-gone", pool="batch", action=Action.END, reason=Reason(NEW))
UNKNOWN_ENDS = [
    pytest.param(ENDED, OutcomeKind.DONE, id="reason"),
    pytest.param(replace(ENDED, action=Action(NEW)), OutcomeKind.DONE, id="action"),
    pytest.param(replace(ENDED, reason=Reason.SURPLUS), OutcomeKind(NEW), id="outcome"),
]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    yield made
    made.dispose()


def ledger_of(engine: Engine, fake: FakeFleet, fleet: FleetDocument, watchdog: str) -> FleetLedger:
    """The targets and seen policies of the fake fleet in a real ledger."""
    ledger = FleetLedger(engine, ledger_name(fleet), watchdog, "us")
    assert ledger.take_lease(fake.now) is None
    for name, target in fake.targets.items():
        operations.seed_target(engine, ledger_name(fleet), name, target.value, fake.now)
    for name, digest in digests(fleet, watchdog).items():
        ledger.see_policy(watchdog, name, digest, "us", fake.now)
    return ledger


def wrote(engine: Engine, fleet: FleetDocument, watchdog: str, at: datetime) -> None:
    """Every kind of row, as a newer release writes them."""
    for number, (action, reason, kind) in enumerate(
        [(Action.KEEP, Reason(NEW), OutcomeKind.DONE), (Action(NEW), Reason(NEW), OutcomeKind(NEW))]
    ):
        made = Decision(resource=f"i-{number}", pool="batch", action=action, reason=reason, detail="new")
        decisions.record_decisions(engine, ledger_name(fleet), watchdog, [made], at)
        decisions.record_outcome(engine, ledger_name(fleet), watchdog, Outcome(decision=made, kind=kind), at)
        with_error = Outcome(decision=made, kind=OutcomeKind(NEW), error="what may come with it")
        decisions.record_outcome(engine, ledger_name(fleet), watchdog, with_error, at)


def idle(fake: FakeFleet, ledger: FleetLedger, fleet: FleetDocument) -> None:
    IdleWatchdog(fleet, replace(fake.ports(), ledger=ledger)).apply()


def spot(fake: FakeFleet, ledger: FleetLedger, fleet: FleetDocument) -> None:
    SpotWatchdog(fleet, replace(fake.ports(), ledger=ledger)).apply()


def orphans(fake: FakeFleet, ledger: FleetLedger, fleet: FleetDocument) -> None:
    OrphanWatchdog(fleet, replace(fake.ports(), ledger=ledger)).apply()


@pytest.mark.parametrize(
    ("watchdog", "run", "fake", "fleet"),
    [
        ("idle", idle, due(2), document(min=0)),
        ("spot", spot, spread_fleet(), document(watchdogs=SETTINGS)),
        ("orphans", orphans, orphan_fleet(), ruled()),
    ],
)
def test_a_pass_continues(
    engine: Engine,
    watchdog: str,
    run: Callable[[FakeFleet, FleetLedger, FleetDocument], None],
    fake: FakeFleet,
    fleet: FleetDocument,
) -> None:
    ledger = ledger_of(engine, fake, fleet, watchdog)
    wrote(engine, fleet, watchdog, START - timedelta(minutes=10))
    begun = Decision(resource="i-begun", pool="batch", action=Action(NEW), reason=Reason(NEW))
    decisions.intend(engine, ledger_name(fleet), watchdog, begun, START)
    run(fake, ledger, fleet)
    found = decisions.history(engine, ledger_name(fleet), "i-0")
    assert {past.decision.reason for past in found} == {Reason(NEW)}


def test_a_scale_pass_continues(engine: Engine) -> None:
    fake, watchdog, fleet = scaled(BUSY)
    ledger = ledger_of(engine, fake, fleet, "scale")
    wrote(engine, fleet, "scale", START - timedelta(minutes=10))
    watchdog._ports = replace(watchdog._ports, ledger=ledger)  # pyright: ignore[reportPrivateUsage]
    watchdog.apply()
    assert ledger.targets()["batch"].value == 4


@pytest.mark.parametrize(("ended", "kind"), UNKNOWN_ENDS)
def test_an_unknown_end_counts_toward_every_limit_of_ends(engine: Engine, ended: Decision, kind: OutcomeKind) -> None:
    fake, fleet = due(2), document(min=0, watchdogs={"idle": {"max_stops_per_hour": 1}, "spot": {}})
    ledger = ledger_of(engine, fake, fleet, "idle")
    ledger.record_outcome("idle", Outcome(decision=ended, kind=kind), START)
    ledger.record_outcome("spot", Outcome(decision=ended, kind=kind), START)
    assert ledger.ended_since("idle", START) == {"batch": 1}
    assert chosen_ends(ledger.done_since("spot", START)) == {"batch": 1}
    idle(fake, ledger, fleet)
    assert fake.ended == [], "it took the hour's only one"


def test_an_unknown_outcome_is_not_a_saving_and_leaves_nothing_unfinished(engine: Engine) -> None:
    fleet = document()
    ledger = FleetLedger(engine, ledger_name(fleet), "idle", "us")
    ledger.intend("idle", ENDED, START)
    ledger.record_outcome("idle", Outcome(decision=ENDED, kind=OutcomeKind(NEW)), START)
    with engine.connect() as connection:
        assert ended_by_idle(connection, ledger_name(fleet), START, START + timedelta(hours=1)) == []


@pytest.mark.parametrize("scope", ["all", "batch", instance(1).id])
def test_an_unknown_brake_holds(engine: Engine, scope: str) -> None:
    fake, fleet = due(1), document(min=0)
    ledger = ledger_of(engine, fake, fleet, "idle")
    operations.set_brake(engine, ledger_name(fleet), brake(scope))
    idle(fake, ledger, fleet)
    assert not fake.drains and not fake.ended
    assert operations.lower_target(engine, ledger_name(fleet), "batch", 0, change()).value == (
        1 if scope == "batch" else 0
    )


@pytest.mark.parametrize("scope", ["all", "batch"])
def test_an_unknown_brake_holds_scale_and_spot(engine: Engine, scope: str) -> None:
    fake, watchdog, fleet = scaled(BUSY)
    fake.brakes = [brake(scope)]
    watchdog.dry()
    watchdog.apply()
    assert fake.targets["batch"].value == 2
    spread, fleet = spread_fleet(), document(watchdogs=SETTINGS)
    ledger = ledger_of(engine, spread, fleet, "spot")
    operations.set_brake(engine, ledger_name(fleet), brake(scope))
    spread.lose(instance(1).id)
    spot(spread, ledger, fleet)
    assert sizes(spread) == (1, 1, 0)


def test_an_unknown_brake_holds_an_orphan(engine: Engine) -> None:
    fake, fleet = orphan_fleet(), ruled()
    ledger = ledger_of(engine, fake, fleet, "orphans")
    orphans(fake, ledger, fleet)
    operations.set_brake(engine, ledger_name(fleet), brake(ONE))
    fake.now += timedelta(days=2)
    assert ledger.take_lease(fake.now) is None
    orphans(fake, ledger, fleet)
    assert fake.stopped == []


def test_an_unknown_activity_ends_no_spot_pass() -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    fleet = document(watchdogs=SETTINGS)
    fake.seen.add(("spot", "batch", digests(fleet, "spot")["batch"]))
    for group in (A, B):
        result = Activity(id=f"{group}/new", group=group, kind=ActivityKind(NEW), at=fake.now, detail="new")
        fake.activities.append(result)
    SpotWatchdog(fleet, fake.ports()).apply()
    assert sizes(fake)[2] == 1, "on-demand replaces spot"


def brake(scope: str) -> Brake:
    return Brake(kind=BrakeKind(NEW), scope=scope, owner="ann", reason="a freeze", since=START, until=None)


def change() -> operations.TargetChange:
    return operations.TargetChange(by="idle", reason="ended", at=START, because="idle:i-1")


def test_people_see_unknown_codes_as_such(engine: Engine, tmp_path: Path) -> None:
    fleet = document().model_copy(update={"ledger_url": f"sqlite:///{tmp_path}/ledger.db"})
    name, path = ledger_name(fleet), tmp_path / "fleet.json"
    path.write_text(render(fleet))
    wrote(engine, fleet, "idle", START)
    operations.set_brake(engine, name, brake("batch"))
    (newest, *_) = ledger_data.about(engine, name, "i-1")
    assert (newest.outcome is not None and newest.outcome.kind.sentence, newest.decision.reason.sentence) == (
        SHOWN,
        SHOWN,
    )
    assert ledger_data.reasons(engine, name, ["i-1"]) == {"i-1": f"idle: {SHOWN}"}
    (held,) = operations.brakes(engine, name, START)
    assert brake_text(held).startswith(f"{SHOWN} batch by ann")
    result = CliRunner().invoke(build("watch"), ["watch", "why", "i-1", "--fleet", str(path)])
    assert result.exit_code == 0 and f"{SHOWN}, {SHOWN}" in result.stdout and f"→ {SHOWN}" in result.stdout
    freed = CliRunner().invoke(build("brakes"), ["resume", "batch", "--fleet", str(path)])
    assert freed.stdout == "1 brake of batch released\n"
    assert operations.brakes(engine, name, START) == ()


def test_unknown_codes_are_written_back_unchanged(engine: Engine) -> None:
    ledger = FleetLedger(engine, ledger_name(document()), "idle", "us")
    ledger.intend("idle", replace(ENDED, action=Action(NEW)), START)
    (begun,) = ledger.unfinished("idle")
    assert begun == replace(ENDED, action=Action(NEW))
    ledger.record_outcome("idle", Outcome(decision=begun, kind=OutcomeKind.DONE), START)
    with writing(engine) as connection:
        assert connection.execute(text("select action, reason from outcomes")).one() == (NEW, NEW)
