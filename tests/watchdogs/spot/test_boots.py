"""Repeated boot failures: what stops, who is notified, and when it begins again."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Action, Outcome, OutcomeKind, PastAction, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType, Phase
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.fake_ports import FakeLedger
from tests.fixtures.watchdogs.plain import START, instance, left_booting, spot_pool
from tests.fixtures.watchdogs.spot import OD, A, B, make_watchdog, spread_fleet
from watchdogs.spot import lifecycle, zones
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import GroupView, PoolMember

MINUTE = timedelta(minutes=1)


def passes(fleet: FakeFleet, minutes: int, *, failing: Sequence[str] = ()) -> None:
    """A pass each minute; what boots in these groups has failed by the next one."""
    for _ in range(minutes):
        make_watchdog(fleet).apply()
        fleet.now += MINUTE
        for name in failing:
            for key in fleet.alive(name):
                if not fleet.agents[key].ready:
                    fleet.agents[key] = replace(fleet.agents[key], phase=Phase.FAILED)


@pytest.mark.parametrize(
    ("failing", "capacity"),
    [
        pytest.param(OD, {}, id="on demand"),
        pytest.param(A, {A: 99, OD: 0}, id="spot"),
    ],
)
def test_an_image_that_never_boots_is_not_started_for_ever(failing: str, capacity: dict[str, int]) -> None:
    fleet = spread_fleet()
    fleet.capacity |= {OD: 99} | capacity
    fleet.lose(instance(1).id)
    passes(fleet, 30, failing=[failing])
    tries = fleet.launched
    assert 3 <= tries <= 4
    assert fleet.alive(failing) == []
    passes(fleet, 20, failing=[failing])
    assert fleet.launched == tries, "it waits until the failures are an hour old"
    alerts = [text for key, text in fleet.messages.items() if key.startswith("spot:alert:")]
    assert len(alerts) == 1 and failing in alerts[0] and "3 boots failed" in alerts[0]

    for _ in range(60):  # the image is fixed
        passes(fleet, 1)
        fleet.boot()
    assert len(fleet.alive(failing)) == 1


def test_a_fixed_image_is_retried_before_the_hour_ends() -> None:
    fleet = spread_fleet()
    fleet.capacity[OD] = 99
    fleet.lose(instance(1).id)
    passes(fleet, 20, failing=[OD])
    tries = fleet.launched
    times = lifecycle.retry_requested("batch", "anna")
    FakeLedger(fleet).record_outcome(
        "spot", Outcome(decision=times, kind=OutcomeKind.DONE, detail=times.detail), fleet.now
    )
    passes(fleet, 1)
    assert fleet.launched == tries + 1
    passes(fleet, 20, failing=[OD])
    assert fleet.launched == tries + 3, "three more, and it stops again"


def test_one_failed_boot_has_one_replacement() -> None:
    fleet = spread_fleet()
    fleet.lose(instance(1).id)
    fleet.capacity[B] = 9
    passes(fleet, 1, failing=[B])
    passes(fleet, 1)
    assert (fleet.launched, len(fleet.alive(B)), fleet.alive(OD)) == (2, 2, [])


@pytest.mark.parametrize(
    ("kind", "before", "changes", "decided"),
    [
        pytest.param(
            CapacityType.SPOT,
            0,
            {},
            [(Action.END, Reason.BOOT_FAILED)],
            id="spot: another is asked for where it is best",
        ),
        pytest.param(
            CapacityType.ON_DEMAND, 0, {}, [(Action.END, Reason.BOOT_FAILED)], id="on demand: another if it is missed"
        ),
        pytest.param(
            CapacityType.RESERVED, 0, {}, [(Action.REPLACE, Reason.BOOT_FAILED)], id="reserved: runs in full"
        ),
        pytest.param(
            CapacityType.RESERVED, 1, {}, [(Action.REPLACE, Reason.BOOT_FAILED)], id="reserved, the second one"
        ),
        pytest.param(
            CapacityType.RESERVED, 2, {}, [(Action.END, Reason.BOOTS_FAILING)], id="reserved, the third one: no more"
        ),
        pytest.param(
            CapacityType.RESERVED, 2, {"kept_by": "by ana"}, [(Action.KEEP, Reason.KEPT_BY_PEOPLE)], id="kept"
        ),
        pytest.param(
            CapacityType.SPOT,
            0,
            {"leaving": True, "drained": True, "drain_by": DrainOwner.SPOT},
            [(Action.END, Reason.SURPLUS)],
            id="it has drained already: reported once",
        ),
    ],
)
def test_decision_about_a_failed_boot(
    kind: CapacityType, before: int, changes: dict[str, Any], decided: list[tuple[Action, Reason]]
) -> None:
    there = replace(PoolMember(id="i-1", group=B, launched_at=START, failed=True), **changes)
    before_it = left_booting(B, *range(10, 10 + before))
    plan = decide([spot_pool([replace(GROUP, capacity_type=kind)], [there], target=1, boots=before_it)], START)
    assert [(d.action, d.reason) for d in plan.decisions if d.resource == there.id] == decided


GROUP = GroupView(name=B, capacity_type=CapacityType.SPOT, zone="us-east-1b", desired=1, max=4)


def ready(launched: float, since: float) -> PoolMember:
    """One that was launched and became ready that many minutes before `START`."""
    return PoolMember(id="i-1", group=B, launched_at=START - launched * MINUTE, ready_since=START - since * MINUTE)


@pytest.mark.parametrize(
    ("ended", "reported", "members", "failed"),
    [
        pytest.param([], [], [], 0, id="none"),
        pytest.param([50, 40, 30], [], [], 3, id="ended"),
        pytest.param([50, 40], [30], [], 3, id="ended, and one that only its group knows of"),
        pytest.param([90, 70, 61, 30], [80], [], 1, id="older ones are forgotten"),
        pytest.param([50, 40, 30], [], [ready(25, 20)], 0, id="one has booted since"),
        pytest.param([50, 40, 30], [], [ready(45, 35)], 1, id="one has booted in between"),
        pytest.param([50, 40, 30], [], [ready(600, 20)], 3, id="an old one has switched its revision since"),
        pytest.param([50], [], [PoolMember(id="i-1", group=B, launched_at=START, failed=True)], 2, id="one is there"),
        pytest.param(
            [50],
            [],
            [PoolMember(id="i-1", group=B, launched_at=START, failed=True, crashed_at=START)],
            1,
            id="one has crashed",
        ),
        pytest.param(
            [],
            [],
            [PoolMember(id=f"i-{n}", group=B, launched_at=START, failed=n > 0) for n in range(4)],
            3,
            id="three are there, and one boots",
        ),
    ],
)
def test_failed_boots_are_counted_once_from_ledger_and_activities(
    ended: list[float], reported: list[float], members: list[PoolMember], failed: int
) -> None:
    ended_boots = left_booting(B, *ended, why=ActivityKind.FAILED_BOOT)
    times = [(boot.instance_id, START - 30 * MINUTE) for boot in ended_boots]
    times += [(f"i-unseen-{ago}", START - ago * MINUTE) for ago in reported]
    events = [
        Activity(id=key, group=B, kind=ActivityKind.FAILED_BOOT, at=at, instance_id=key)
        for key, at in (*times, *times)
    ]
    pool = spot_pool([GROUP], members, events=events, boots=ended_boots)
    assert zones.failed_boots(pool, GROUP, START) == failed, "each instance counts once"
    found = zones.boots_objection(pool, GROUP, START)
    assert (found is not None and found.reason is Reason.BOOTS_FAILING) == (failed >= 3)


def test_a_successful_boot_counts_after_its_instance_ended() -> None:
    well = left_booting(B, 20, ready_at=START - 22 * MINUTE)
    assert zones.failed_boots(spot_pool([GROUP], [], boots=[*left_booting(B, 50, 40, 30), *well]), GROUP, START) == 0


def test_a_person_may_request_that_boots_are_tried_again() -> None:
    noted = [
        ("i-2", Reason.NOT_READY),
        ("batch", Reason.NOT_READY),
        ("i-2", Reason.AS_WANTED),  # ready again, which does not fix the image
        ("batch", Reason.AS_WANTED),
    ]
    actions = [
        PastAction(resource=resource, pool="batch", action=Action.KEEP, reason=reason, at=START + n * MINUTE)
        for n, (resource, reason) in enumerate(noted)
    ]
    assert lifecycle.retry_requested_at(actions) == {"batch": START + 3 * MINUTE}
    assert lifecycle.retry_requested_at(actions[:-1]) == {}
