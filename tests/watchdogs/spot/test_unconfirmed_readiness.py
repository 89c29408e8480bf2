"""Instances without status: how long they count, and what happens to those that do not return."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from app.ledgers import ledger_name
from gpufleet.domain.decisions import Action, Reason
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import CapacityType, Phase
from gpufleet.ledger.fleet import FleetLedger
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.plain import READY, START, document, instance, left_booting, spot_pool
from tests.fixtures.watchdogs.spot import OD, SETTINGS, A, B, make_watchdog, sizes, spread_fleet
from watchdogs.policy import digests
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView
from watchdogs.spot.watchdog import SpotWatchdog

FIRST, SECOND = (instance(n).id for n in (1, 2))
RESTARTED = replace(READY, phase=Phase.CACHE, ready=False)


def report(fake: FakeFleet, status: AgentStatus | None, *ids: str) -> None:
    """These agents report `status`; None: they do not answer."""
    for key in ids:
        if status is None:
            fake.agents.pop(key, None)
        else:
            fake.agents[key] = status


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(None, id="no answer"),
        pytest.param(RESTARTED, id="its agent boots again"),
        pytest.param(replace(READY, ready=False), id="its engine is unwell"),
    ],
)
@pytest.mark.parametrize("ids", [pytest.param([FIRST], id="one"), pytest.param([FIRST, SECOND], id="all")])
def test_one_pass_without_readiness_reports_requests_nothing(status: AgentStatus | None, ids: list[str]) -> None:
    fake = spread_fleet()
    fake.capacity |= {A: 3, B: 3}
    before = dict(fake.agents)
    for _ in range(5):
        report(fake, status, *ids)
        make_watchdog(fake).apply()
        assert sizes(fake) == (1, 1, 0) and not fake.messages
        fake.now += timedelta(minutes=1)
        fake.agents.update(before)
        make_watchdog(fake).apply()  # ready again: missed times do not add up
        assert sizes(fake) == (1, 1, 0) and not fake.ended
        fake.now += timedelta(minutes=1)


@pytest.mark.parametrize(
    ("spot", "there"),
    [
        pytest.param(1, (1, 2, 0), id="from a zone that gives"),
        pytest.param(0, (1, 1, 1), id="on demand where none does"),
    ],
)
def test_silent_instance_is_replaced_after_fallback_after(spot: int, there: tuple[int, int, int]) -> None:
    fake = spread_fleet()
    fake.capacity[B] = spot
    report(fake, None, FIRST)
    make_watchdog(fake).apply()
    assert sizes(fake) == (1, 1, 0)
    fake.now += timedelta(seconds=30)
    make_watchdog(fake).apply()
    assert (len(fake.alive(A)), len(fake.alive(B)), len(fake.alive(OD))) == there
    assert not fake.ended, "a missing answer proves nothing: it may serve"


def test_another_process_knows_since_when_one_is_silent(tmp_path: Path) -> None:
    """Each pass may be a new process: what it must know is in the ledger."""
    fake = spread_fleet()
    fleet = document(watchdogs=SETTINGS)
    report(fake, None, FIRST)
    for bought in (0, 1):
        engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
        ledger = FleetLedger(engine, ledger_name(fleet), "spot", "us")
        assert ledger.take_lease(fake.now) is None
        ledger.see_policy("spot", "batch", digests(fleet, "spot")["batch"], "us", fake.now)
        SpotWatchdog(fleet, replace(fake.ports(), ledger=ledger)).apply()
        engine.dispose()
        assert len(fake.alive(OD)) == bought
        fake.now += timedelta(seconds=30)


def test_a_dry_run_notes_nothing() -> None:
    fake = spread_fleet()
    report(fake, None, FIRST)
    make_watchdog(fake).dry()
    assert not fake.outcomes


def test_an_instance_that_never_reports_is_replaced_once_and_notified() -> None:
    fake = spread_fleet()
    fake.instances[SECOND] = replace(fake.instances[SECOND], launched_at=fake.now - timedelta(minutes=65))
    fake.capacity |= {A: 9, B: 9}
    fake.lose(FIRST)
    done = None
    for _ in range(90):
        report(fake, None, *(key for key in list(fake.agents) if key != SECOND))
        done = make_watchdog(fake).apply()
        fake.now += timedelta(minutes=1)
    assert done is not None
    # wanted are two: one serves, the lost one has a successor that hangs, and that one has one, too; so on demand
    spot, bought = len(fake.alive(A)) + len(fake.alive(B)), len(fake.alive(OD))
    assert (spot, bought) == (4, 2)
    assert sum(d.reason is Reason.NOT_READY for d in done.plan.decisions) == 5, "on-demand hangs, too"
    messages = [text for text in fake.messages.values() if "should be ready by now but are not" in text]
    assert all("gpufleet status" in text for text in messages)
    assert len(messages) == 3, "the first, and each time that twice as many hang"
    assert not fake.ended


def test_hanging_surplus_instance_has_one_decision() -> None:
    """On-demand that never spoke, and spot that has been ready for the hold."""
    groups = [
        GroupView(name=name, capacity_type=kind, zone=None, desired=1, max=4)
        for name, kind in ((A, CapacityType.SPOT), (OD, CapacityType.ON_DEMAND))
    ]
    there = [
        PoolMember(
            id="i-spot", group=A, launched_at=START - timedelta(hours=2), ready_since=START - timedelta(hours=1)
        ),
        PoolMember(id="i-hung", group=OD, launched_at=START - timedelta(hours=2)),
    ]
    decisions = decide([spot_pool(groups, there, target=1)], START).decisions
    assert [(d.action, d.reason) for d in decisions if d.resource == "i-hung"] == [(Action.END, Reason.SPOT_IS_BACK)]


def on_demand_fallback(*ready: bool, desired: int | None = None, most: int = 4, **more: object) -> SpotPoolView:
    """Two wanted, no spot available, and on-demand of two hours: ready, or without status."""
    groups = [
        GroupView(name=A, capacity_type=CapacityType.SPOT, zone="us-east-1a", desired=0, max=0),
        GroupView(name=OD, capacity_type=CapacityType.ON_DEMAND, zone=None, desired=desired or len(ready), max=most),
    ]
    long_ago, since = START - timedelta(hours=2), START - timedelta(hours=1)
    members = [
        PoolMember(id=f"od-{n}", group=OD, launched_at=long_ago, ready_since=since if is_ready else None)
        for n, is_ready in enumerate(ready)
    ]
    return spot_pool(groups, members, **more)


@pytest.mark.parametrize(
    ("pool", "size", "status"),
    [
        pytest.param(on_demand_fallback(True, True), None, "replaces 2 missing", id="both serve"),
        pytest.param(on_demand_fallback(True, False), 3, "no zone has spot capacity for 2 missing", id="one hangs"),
        pytest.param(on_demand_fallback(False, False), 4, "no zone has spot capacity for 2 missing", id="both hang"),
        pytest.param(
            on_demand_fallback(True, *[False] * 3), None, "replaces 2 missing", id="its successors hang, too"
        ),
        pytest.param(on_demand_fallback(*[False] * 4), None, "replaces 2 missing", id="both successors hang, too"),
        pytest.param(
            on_demand_fallback(True, False, most=2), None, "at its maximum size of 2", id="max reached: no successor"
        ),
        pytest.param(
            on_demand_fallback(True, False, desired=3), None, "1 requested", id="the successor is on its way"
        ),
    ],
)
def test_on_demand_that_hangs_has_one_successor(pool: SpotPoolView, size: int | None, status: str) -> None:
    found = next(d for d in decide([pool], START).decisions if d.resource == OD)
    assert (found.to_size, found.reason, found.detail) == (size, Reason.FALLBACK, status)


def test_on_demand_whose_boots_fail_gets_no_successor_either() -> None:
    pool = on_demand_fallback(True, False, boots=left_booting(OD, 1, 2, 3))
    found = next(d for d in decide([pool], START).decisions if d.resource == OD)
    assert (found.action, found.reason) == (Action.KEEP, Reason.BOOTS_FAILING)
