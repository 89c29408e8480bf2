"""What came between a look and its action: sizes and instances are left as they are by then."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain.activity import ConflictError
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import OutcomeKind
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType, Group, InstanceState, Phase
from tests.fixtures.watchdogs.plain import READY, START, document, instance
from tests.fixtures.watchdogs.worlds import FakeGroups, World
from tests.watchdogs.spot.test_keeps import THIRD, with_on_demand
from tests.watchdogs.spot.test_watchdog import OD, A, B, sizes, spread_world, watchdog
from watchdogs.policy import digests
from watchdogs.ports import LEASE_OVER
from watchdogs.spot.watchdog import ROUNDS, SpotWatchdog

FIRST = instance(1).id


def once_planned(world: World, change: Callable[[World], None]) -> None:
    """The change comes between the look of a pass and what it does."""

    def before(call: str) -> None:
        if world.plans:
            world.before = lambda _: None
            change(world)

    world.before = before


def pause(world: World) -> None:
    world.brakes.append(
        Brake(since=START, kind=BrakeKind.PAUSE, scope="batch", owner="ana", reason="look", until=None)
    )


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
    assert len(world.plans) == (1 if said == LEASE_OVER else 2), "who lost the lease looks no further"


def test_sizes_that_somebody_else_sets_all_the_time_end_a_pass_after_some_looks() -> None:
    world = missing_one()
    world.capacity[A] = 3

    class Contested(FakeGroups):
        def resize(self, group: Group, size: int) -> None:
            raise ConflictError(f"{group.name} has changed")

    fleet = document()
    world.seen.add(("spot", "batch", digests(fleet, "spot")["batch"]))
    done = SpotWatchdog(fleet, replace(world.ports(), groups=Contested(world))).apply()
    assert len(world.plans) == ROUNDS
    assert {(o.kind, o.detail) for o in done.outcomes} == {(OutcomeKind.NO_LONGER_TRUE, f"{A} has changed")}


def test_a_dry_run_makes_the_policy_seen() -> None:
    world, fleet = missing_one(), document()
    SpotWatchdog(fleet, world.ports()).dry()
    assert world.seen == {("spot", "batch", digests(fleet, "spot")["batch"])}


def test_a_size_below_what_is_there_by_now_is_not_set() -> None:
    """The cloud would choose whom to end."""
    world = spread_world()
    world.groups[OD] = replace(world.groups[OD], desired=2)  # asked for, not there yet, and no more needed
    once_planned(world, two_arrive)
    done = watchdog(world).apply()
    (first, *_) = done.outcomes
    assert (first.decision.resource, first.kind) == (OD, OutcomeKind.NO_LONGER_TRUE)
    assert "2 instances now" in first.detail
    assert len(world.alive(OD)) == 2 - len(world.ended)


def once_drained(world: World, change: Callable[[World], None]) -> None:
    """The change comes between the drain of a pass and its end."""

    def before(call: str) -> None:
        if world.drains and call == "instance":
            world.before = lambda _: None
            change(world)

    world.before = before


def keep(world: World) -> None:
    world.brakes.append(Brake(since=START, kind=BrakeKind.KEEP, scope=THIRD, owner="ana", reason="look", until=None))


def lose_it(world: World) -> None:
    world.instances[THIRD] = replace(world.instances[THIRD], state=InstanceState.STOPPING)


def forget_it(world: World) -> None:
    del world.instances[THIRD]


def detach_it(world: World) -> None:
    world.instances[THIRD] = replace(world.instances[THIRD], group=None)


def group_ends_it(world: World) -> None:
    world.groups[OD] = replace(world.groups[OD], leaving=frozenset({THIRD}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(pause, "paused by ana", id="a pause"),
        pytest.param(keep, "kept by ana", id="a keep"),
        pytest.param(lose_the_lease, LEASE_OVER, id="the lease is over"),
        pytest.param(lose_it, "gone already", id="it is on its way out"),
        pytest.param(forget_it, "gone already", id="it is gone"),
    ],
)
@pytest.mark.parametrize(
    ("when", "drains"), [(once_planned, []), (once_drained, [THIRD])], ids=["planned", "drained"]
)
def test_what_was_to_go_is_left_as_it_is(
    when: Callable[[World, Callable[[World], None]], None],
    drains: list[str],
    change: Callable[[World], None],
    said: str,
) -> None:
    world = with_on_demand()
    when(world, change)
    done = watchdog(world).apply()
    (found,) = [outcome for outcome in done.outcomes if outcome.decision.resource == THIRD]
    assert (found.kind, said in found.detail) == (OutcomeKind.NO_LONGER_TRUE, True), found
    assert (world.ended, world.drains, world.intents) == ([], drains, {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(detach_it, "gone already", id="it is in no group any more"),
        pytest.param(group_ends_it, "its group is ending it already", id="its group is ending it"),
    ],
)
def test_what_its_group_has_let_go_is_not_ended(change: Callable[[World], None], said: str) -> None:
    world = with_on_demand()
    once_drained(world, change)
    done = watchdog(world).apply()
    (found,) = [outcome for outcome in done.outcomes if outcome.decision.resource == THIRD]
    assert (found.kind, said in found.detail) == (OutcomeKind.NO_LONGER_TRUE, True), found
    assert not world.ended


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"phase": Phase.DRAINING, "draining": True}, id="it drains"),
        pytest.param({"phase": Phase.DRAINED, "draining": False, "drained": True}, id="it has drained"),
    ],
)
def test_what_drains_already_is_not_asked_again(state: dict[str, Any]) -> None:
    world = with_on_demand()

    def drained_by_somebody(world: World) -> None:
        world.agents[THIRD] = replace(READY, ready=False, drain_by=DrainOwner.SPOT, **state)
        world.drained_at[THIRD] = world.now + timedelta(seconds=2)

    once_planned(world, drained_by_somebody)
    watchdog(world).apply()
    assert (world.ended, world.drains) == ([THIRD], [])


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
