"""For whose answer a pass of the spot watchdog waits before it looks again, and for whose it does not."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from gpufleet.domain.activity import ActivityKind, CloudError
from gpufleet.domain.decisions import OutcomeKind, Target
from gpufleet.domain.model import InstanceState
from tests.fixtures.watchdogs.plain import instance
from tests.fixtures.watchdogs.worlds import World, idle_world
from tests.watchdogs.spot.test_watchdog import OD, A, B, sizes, spread_world, watchdog

GROUPS = [
    {"name": A, "type": "spot", "zone": "us-east-1a", "max": 6, "machine_types": ["g6.xlarge"]},
    {"name": B, "type": "spot", "zone": "us-east-1b", "max": 6, "machine_types": ["g6.xlarge"]},
    {"name": OD, "type": "on-demand", "zone": None, "max": 6, "machine_types": ["g6.xlarge"]},
]
WAIT = timedelta(seconds=20)
"""`fallback_after` of these pools."""


def silent(world: World, *names: str) -> None:
    """Those groups neither launch nor refuse."""
    loud = world.reconcile
    world.reconcile = lambda name: None if name in names else loud(name)  # type: ignore[method-assign]


def failing(world: World, call: int) -> None:
    """One of the size writes is lost."""
    calls = iter(range(1, 1000))

    def before(name: str) -> None:
        if name == "resize" and next(calls) == call:
            raise CloudError("RequestLimitExceeded")

    world.before = before


def test_nobody_waits_for_what_stands_in() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    silent(world, OD)
    before = world.now
    watchdog(world).apply()
    assert sizes(world) == (0, 1, 1)
    assert world.now == before


def test_a_silent_zone_is_waited_for_once() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    silent(world, A, B)
    before = world.now
    watchdog(world).apply()
    assert sizes(world)[2] == 1
    assert WAIT <= world.now - before < 2 * WAIT


def test_another_process_knows_which_zones_were_silent() -> None:
    """Each pass may be a process of its own: what was waited for in vain is left alone, as what has refused."""
    world = spread_world()
    world.lose(instance(1).id)
    silent(world, A, B)
    watchdog(world).apply()
    before = world.now
    watchdog(world).apply()
    assert world.now == before, "nothing was asked, so nothing is waited for"
    assert sizes(world)[2] == 1


def test_an_ask_that_got_lost_is_not_waited_for() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.capacity[B] = 1
    failing(world, call=2)  # the first one gives up the place in zone A
    before = world.now
    watchdog(world).apply()
    assert (B, OutcomeKind.FAILED) in world.kinds()
    assert (world.now, sizes(world)) == (before, (0, 2, 0))


def test_after_a_lost_ask_the_others_answers_are_still_acted_on() -> None:
    """Both zones are asked for one; the ask of zone A is lost, and zone B has none."""
    world = spread_world()
    world.targets["batch"] = replace(world.targets["batch"], value=4)
    world.capacity[A] = 2
    failing(world, call=1)
    watchdog(world).apply()
    assert (A, OutcomeKind.FAILED) in world.kinds()
    assert sizes(world) == (3, 1, 0)


def test_a_zone_that_refused_in_an_earlier_pass_is_waited_for_when_it_is_asked_again() -> None:
    """Its old refusal is no answer to the new ask, which the cloud answers after some seconds."""
    world = spread_world()
    world.lose(instance(1).id)
    watchdog(world).apply()
    assert sizes(world) == (0, 1, 1), "both zones refused, and on-demand stands in"
    world.now += timedelta(minutes=2)
    world.targets["batch"] = replace(world.targets["batch"], value=3)
    world.capacity |= {A: 1, B: 1}
    answer, answers_at = world.reconcile, world.now + timedelta(seconds=8)
    world.reconcile = lambda name: None  # type: ignore[method-assign]

    def answer_late(_: str) -> None:
        if world.now >= answers_at:
            for name in world.groups:
                answer(name)

    world.before = answer_late
    watchdog(world).apply()
    assert sum(sizes(world)[:2]) >= 2, "spot came"
    assert sizes(world)[2] == 1, "nothing more was bought on demand"


def unnoticed(world: World, number: int) -> str:
    """It lives no more, and its group still lists it. It is a name."""
    key = instance(number).id
    world.instances[key] = replace(world.instances[key], state=InstanceState.TERMINATED)
    return key


@pytest.mark.parametrize(
    ("room", "left"),
    [
        pytest.param({A: 0, B: 1, OD: 2}, (1, 2, 0), id="another zone gives"),
        pytest.param({A: 0, B: 0, OD: 2}, (1, 1, 1), id="none gives"),
    ],
)
def test_a_loss_that_its_group_has_not_noticed_is_made_up_for_once(
    room: dict[str, int], left: tuple[int, int, int]
) -> None:
    world = spread_world()
    world.capacity = room
    gone = unnoticed(world, 1)
    dog, began = watchdog(world), world.now
    looks = Counter[str]()
    world.before = lambda name: looks.update([name])
    dog.apply()
    assert sizes(world) == left
    assert looks["instances"] <= 4 and looks["resize"] <= 4
    assert WAIT <= world.now - began < 2 * WAIT, "its group has that long to notice"
    for _ in range(5):
        world.now += timedelta(minutes=1)
        dog.apply()
    assert sizes(world) == left
    assert world.launched == 1
    assert not world.ended and not world.drains

    world.groups[A] = replace(world.groups[A], instance_ids=())
    world.happened(A, ActivityKind.PREEMPTED, gone)
    world.reconcile(A)
    dog.apply()
    assert sizes(world) == (0, *left[1:]), "now that nobody else could be ended by a smaller size"


def test_a_group_that_notices_its_loss_while_the_pass_waits_has_answered() -> None:
    world = spread_world()
    world.capacity = {A: 1, B: 1, OD: 1}
    gone, began = unnoticed(world, 1), world.now

    def notices(name: str) -> None:
        if name == "groups" and world.now - began >= WAIT / 4 and gone in world.groups[A].instance_ids:
            world.groups[A] = replace(world.groups[A], instance_ids=())
            world.reconcile(A)

    world.before = notices
    watchdog(world).apply()
    assert (sizes(world), world.launched) == ((1, 1, 0), 1)
    assert WAIT / 4 <= world.now - began < WAIT / 2


@pytest.mark.parametrize(
    ("target", "room", "asked"),
    [
        pytest.param(4, {}, 4, id="all are needed still"),
        pytest.param(1, {}, 1, id="the target has fallen"),
        pytest.param(4, {A: 3}, 1, id="spot is back"),
        pytest.param(4, {A: 4}, 0, id="spot is back for all"),
    ],
)
def test_what_was_asked_for_on_demand_and_is_needed_no_more_is_given_up(
    target: int, room: dict[str, int], asked: int
) -> None:
    world = idle_world(0)
    world.targets["batch"] = Target(pool="batch", value=4, version=1)
    world.capacity = {A: 0, B: 0, OD: 0}
    dog = watchdog(world, target=4, groups=GROUPS)
    dog.apply()
    assert sizes(world)[2] == 4
    world.targets["batch"] = Target(pool="batch", value=target, version=2)
    world.capacity |= room
    world.now += timedelta(minutes=10)
    dog.apply()
    assert sizes(world)[2] == asked
    world.capacity[OD] = 4
    world.reconcile(OD)
    assert len(world.alive(OD)) == asked
