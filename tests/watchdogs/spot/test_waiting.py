"""For whose answer a pass of the spot watchdog waits before it looks again, and for whose it does not."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from gpufleet.domain.activity import ActivityKind, CloudError
from gpufleet.domain.decisions import OutcomeKind, Target
from gpufleet.domain.model import InstanceState
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet
from tests.fixtures.watchdogs.plain import instance
from tests.fixtures.watchdogs.spot import OD, A, B, make_watchdog, sizes, spread_fleet

GROUPS = [
    {"name": A, "type": "spot", "zone": "us-east-1a", "max": 6, "machine_types": ["g6.xlarge"]},
    {"name": B, "type": "spot", "zone": "us-east-1b", "max": 6, "machine_types": ["g6.xlarge"]},
    {"name": OD, "type": "on-demand", "zone": None, "max": 6, "machine_types": ["g6.xlarge"]},
]
WAIT = timedelta(seconds=20)
"""`fallback_after` of these pools."""


def silent(fleet: FakeFleet, *names: str) -> None:
    """Those groups neither launch nor refuse."""
    loud = fleet.reconcile
    fleet.reconcile = lambda name: None if name in names else loud(name)  # type: ignore[method-assign]


def failing(fleet: FakeFleet, call: int) -> None:
    """One of the size writes is lost."""
    calls = iter(range(1, 1000))

    def before(name: str) -> None:
        if name == "resize" and next(calls) == call:
            raise CloudError("RequestLimitExceeded")

    fleet.before = before


def test_a_pass_does_not_wait_for_fallback() -> None:
    fleet = spread_fleet()
    fleet.lose(instance(1).id)
    silent(fleet, OD)
    before = fleet.now
    make_watchdog(fleet).apply()
    assert sizes(fleet) == (0, 1, 1)
    assert fleet.now == before


def test_pass_waits_once_for_a_silent_zone() -> None:
    fleet = spread_fleet()
    fleet.lose(instance(1).id)
    silent(fleet, A, B)
    before = fleet.now
    make_watchdog(fleet).apply()
    assert sizes(fleet)[2] == 1
    assert WAIT <= fleet.now - before < 2 * WAIT


def test_another_process_knows_which_zones_were_silent() -> None:
    """Each pass may be a process of its own: a group without an answer is not asked again, like one that refused."""
    fleet = spread_fleet()
    fleet.lose(instance(1).id)
    silent(fleet, A, B)
    make_watchdog(fleet).apply()
    before = fleet.now
    make_watchdog(fleet).apply()
    assert fleet.now == before, "nothing was asked, so nothing is waited for"
    assert sizes(fleet)[2] == 1


def test_pass_does_not_wait_for_a_failed_request() -> None:
    fleet = spread_fleet()
    fleet.lose(instance(1).id)
    fleet.capacity[B] = 1
    failing(fleet, call=2)  # the first one gives up the place in zone A
    before = fleet.now
    make_watchdog(fleet).apply()
    assert (B, OutcomeKind.FAILED) in fleet.kinds()
    assert (fleet.now, sizes(fleet)) == (before, (0, 2, 0))


def test_after_a_lost_ask_the_others_answers_are_still_acted_on() -> None:
    """Both zones are asked for one; the ask of zone A is lost, and zone B has none."""
    fleet = spread_fleet()
    fleet.targets["batch"] = replace(fleet.targets["batch"], value=4)
    fleet.capacity[A] = 2
    failing(fleet, call=1)
    make_watchdog(fleet).apply()
    assert (A, OutcomeKind.FAILED) in fleet.kinds()
    assert sizes(fleet) == (3, 1, 0)


def test_a_zone_that_refused_in_an_earlier_pass_is_waited_for_when_it_is_asked_again() -> None:
    """Its old refusal is not an answer to the new request, which the cloud answers after some seconds."""
    fleet = spread_fleet()
    fleet.lose(instance(1).id)
    make_watchdog(fleet).apply()
    assert sizes(fleet) == (0, 1, 1), "both zones refused, and on-demand replaces spot"
    fleet.now += timedelta(minutes=2)
    fleet.targets["batch"] = replace(fleet.targets["batch"], value=3)
    fleet.capacity |= {A: 1, B: 1}
    answer, answers_at = fleet.reconcile, fleet.now + timedelta(seconds=8)
    fleet.reconcile = lambda name: None  # type: ignore[method-assign]

    def answer_late(_: str) -> None:
        if fleet.now >= answers_at:
            for name in fleet.groups:
                answer(name)

    fleet.before = answer_late
    make_watchdog(fleet).apply()
    assert sum(sizes(fleet)[:2]) >= 2, "spot came"
    assert sizes(fleet)[2] == 1, "nothing more was bought on demand"


def unnoticed(fleet: FakeFleet, number: int) -> str:
    """It lives no more, and its group still lists it. It is a name."""
    key = instance(number).id
    fleet.instances[key] = replace(fleet.instances[key], state=InstanceState.TERMINATED)
    return key


@pytest.mark.parametrize(
    ("capacity", "left"),
    [
        pytest.param({A: 0, B: 1, OD: 2}, (1, 2, 0), id="another zone gives"),
        pytest.param({A: 0, B: 0, OD: 2}, (1, 1, 1), id="none gives"),
    ],
)
def test_loss_unnoticed_by_its_group_is_replaced_once(capacity: dict[str, int], left: tuple[int, int, int]) -> None:
    fleet = spread_fleet()
    fleet.capacity = capacity
    lost = unnoticed(fleet, 1)
    watchdog, began = make_watchdog(fleet), fleet.now
    looks = Counter[str]()
    fleet.before = lambda name: looks.update([name])
    watchdog.apply()
    assert sizes(fleet) == left
    assert looks["instances"] <= 4 and looks["resize"] <= 4
    assert WAIT <= fleet.now - began < 2 * WAIT, "its group has that long to notice"
    for _ in range(5):
        fleet.now += timedelta(minutes=1)
        watchdog.apply()
    assert sizes(fleet) == left
    assert fleet.launched == 1
    assert not fleet.ended and not fleet.drains

    fleet.groups[A] = replace(fleet.groups[A], instance_ids=())
    fleet.happened(A, ActivityKind.PREEMPTED, lost)
    fleet.reconcile(A)
    watchdog.apply()
    assert sizes(fleet) == (0, *left[1:]), "now that a smaller size cannot end another instance"


def test_a_group_that_notices_its_loss_while_the_pass_waits_has_answered() -> None:
    fleet = spread_fleet()
    fleet.capacity = {A: 1, B: 1, OD: 1}
    lost, began = unnoticed(fleet, 1), fleet.now

    def notices(name: str) -> None:
        if name == "groups" and fleet.now - began >= WAIT / 4 and lost in fleet.groups[A].instance_ids:
            fleet.groups[A] = replace(fleet.groups[A], instance_ids=())
            fleet.reconcile(A)

    fleet.before = notices
    make_watchdog(fleet).apply()
    assert (sizes(fleet), fleet.launched) == ((1, 1, 0), 1)
    assert WAIT / 4 <= fleet.now - began < WAIT / 2


@pytest.mark.parametrize(
    ("target", "capacity", "asked"),
    [
        pytest.param(4, {}, 4, id="all are needed still"),
        pytest.param(1, {}, 1, id="the target has fallen"),
        pytest.param(4, {A: 3}, 1, id="spot is back"),
        pytest.param(4, {A: 4}, 0, id="spot is back for all"),
    ],
)
def test_unneeded_on_demand_requests_are_withdrawn(target: int, capacity: dict[str, int], asked: int) -> None:
    fleet = idle_fleet(0)
    fleet.targets["batch"] = Target(pool="batch", value=4, version=1)
    fleet.capacity = {A: 0, B: 0, OD: 0}
    watchdog = make_watchdog(fleet, target=4, groups=GROUPS)
    watchdog.apply()
    assert sizes(fleet)[2] == 4
    fleet.targets["batch"] = Target(pool="batch", value=target, version=2)
    fleet.capacity |= capacity
    fleet.now += timedelta(minutes=10)
    watchdog.apply()
    assert sizes(fleet)[2] == asked
    fleet.capacity[OD] = 4
    fleet.reconcile(OD)
    assert len(fleet.alive(OD)) == asked
