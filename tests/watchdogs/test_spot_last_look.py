"""What came between a look and its deed: sizes and instances are left as they are by then."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fleet.model import CapacityType, Phase
from tests.watchdogs.plain import READY, instance
from tests.watchdogs.test_spot_watchdog import OD, A, B, sizes, spread_world, watchdog
from tests.watchdogs.worlds import World
from watchdogs.plan import OutcomeKind
from watchdogs.ports import LEASE_OVER, Brake, BrakeKind

FIRST = instance(1).id


def once_planned(world: World, change: Callable[[World], None]) -> None:
    """The change comes between the look of a pass and what it does."""

    def before(call: str) -> None:
        if world.plans:
            world.before = lambda _: None
            change(world)

    world.before = before


def pause(world: World) -> None:
    world.brakes.append(Brake(kind=BrakeKind.PAUSE, scope="batch", owner="ana", reason="look", until=None))


def lose_the_lease(world: World) -> None:
    world.lease_is_ours = False


def two_arrive(world: World) -> None:
    """Somebody else let the group on demand grow, and its size is what the watchdog saw again."""
    two = [instance(n, group=OD, capacity_type=CapacityType.ON_DEMAND) for n in (8, 9)]
    world.instances |= {one.id: one for one in two}
    world.agents |= {one.id: READY for one in two}
    world.groups[OD] = replace(world.groups[OD], instance_ids=tuple(one.id for one in two))


def missing_one() -> World:
    """One of two was lost and no zone gives another."""
    world = spread_world()
    world.lose(FIRST)
    world.groups[A] = replace(world.groups[A], desired=0)
    world.activities.clear()
    return world


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(pause, "paused by ana", id="a pause"),
        pytest.param(lose_the_lease, LEASE_OVER, id="the lease is over"),
    ],
)
def test_no_size_is_set_any_more(change: Callable[[World], None], said: str) -> None:
    world = missing_one()
    world.capacity[A] = 3
    once_planned(world, change)
    done = watchdog(world).apply()
    assert sizes(world) == (0, 1, 0)
    assert {o.kind for o in done.outcomes} == {OutcomeKind.NO_LONGER_TRUE}
    assert said in done.outcomes[0].detail


def test_a_size_below_what_is_there_by_now_is_not_set() -> None:
    """The cloud would choose whom to end."""
    world = spread_world()
    world.groups[OD] = replace(world.groups[OD], desired=2)  # asked for, not there yet, and no more needed
    once_planned(world, two_arrive)
    done = watchdog(world).apply()
    (first, *_) = done.outcomes
    assert (first.decision.resource, first.kind) == (OD, OutcomeKind.NO_LONGER_TRUE)
    assert "2 instances by now" in first.detail
    assert len(world.alive(OD)) == 2 - len(world.ended)


def test_what_never_served_is_not_drained() -> None:
    world = spread_world()
    world.agents[FIRST] = replace(READY, phase=Phase.FAILED, ready=False)
    world.capacity[B] = 5
    watchdog(world).apply()
    assert (world.ended, world.drains) == ([FIRST], [])


def test_zones_that_have_answered_are_waited_for_no_longer() -> None:
    world = missing_one()
    world.capacity[A] = 3
    before = world.now
    watchdog(world).apply()
    assert sizes(world) == (1, 1, 0) and world.now == before
