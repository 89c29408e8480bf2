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
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.fake_ports import FakeGroups
from tests.fixtures.watchdogs.plain import READY, START, document, instance
from tests.fixtures.watchdogs.spot import OD, THIRD, A, B, make_watchdog, sizes, spread_fleet, with_on_demand
from watchdogs.policy import digests
from watchdogs.ports import LEASE_OVER
from watchdogs.spot.watchdog import ROUNDS, SpotWatchdog

FIRST = instance(1).id


def once_planned(fake: FakeFleet, change: Callable[[FakeFleet], None]) -> None:
    """The change comes between the look of a pass and what it does."""

    def before(call: str) -> None:
        if fake.plans:
            fake.before = lambda _: None
            change(fake)

    fake.before = before


def pause(fake: FakeFleet) -> None:
    fake.brakes.append(
        Brake(since=START, kind=BrakeKind.PAUSE, scope="batch", owner="ana", reason="look", until=None)
    )


def lose_the_lease(fake: FakeFleet) -> None:
    fake.lease_is_ours = False


def two_arrive(fake: FakeFleet) -> None:
    """Somebody else let the group on demand grow, and its size is what the watchdog saw again."""
    two = [instance(n, group=OD, capacity_type=CapacityType.ON_DEMAND) for n in (8, 9)]
    fake.instances |= {one.id: one for one in two}
    fake.agents |= {one.id: READY for one in two}
    fake.groups[OD] = replace(fake.groups[OD], instance_ids=tuple(one.id for one in two))


def missing_one() -> FakeFleet:
    """One of two was lost and no zone gives another."""
    fake = spread_fleet()
    fake.lose(FIRST)
    fake.groups[A] = replace(fake.groups[A], desired=0)
    fake.activities.clear()
    return fake


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(pause, "paused by ana", id="a pause"),
        pytest.param(lose_the_lease, LEASE_OVER, id="the lease is over"),
    ],
)
def test_size_is_not_set_after_a_change_during_the_pass(change: Callable[[FakeFleet], None], expected: str) -> None:
    fake = missing_one()
    fake.capacity[A] = 3
    once_planned(fake, change)
    done = make_watchdog(fake).apply()
    assert sizes(fake) == (0, 1, 0)
    assert {o.kind for o in done.outcomes} == {OutcomeKind.NO_LONGER_TRUE}
    assert expected in done.outcomes[0].detail
    assert len(fake.plans) == (1 if expected == LEASE_OVER else 2), "who lost the lease looks no further"


def test_sizes_that_another_process_keeps_changing_end_a_pass_after_some_observations() -> None:
    fake = missing_one()
    fake.capacity[A] = 3

    class Contested(FakeGroups):
        def resize(self, group: Group, size: int) -> None:
            raise ConflictError(f"{group.name} has changed")

    fleet = document()
    fake.seen.add(("spot", "batch", digests(fleet, "spot")["batch"]))
    done = SpotWatchdog(fleet, replace(fake.ports(), groups=Contested(fake))).apply()
    assert len(fake.plans) == ROUNDS
    assert {(o.kind, o.detail) for o in done.outcomes} == {(OutcomeKind.NO_LONGER_TRUE, f"{A} has changed")}


def test_a_dry_run_makes_the_policy_seen() -> None:
    fake, fleet = missing_one(), document()
    SpotWatchdog(fleet, fake.ports()).dry()
    assert fake.seen == {("spot", "batch", digests(fleet, "spot")["batch"])}


def test_a_size_below_what_is_there_by_now_is_not_set() -> None:
    """The cloud would choose the instance to end."""
    fake = spread_fleet()
    fake.groups[OD] = replace(fake.groups[OD], desired=2)  # asked for, not there yet, and no more needed
    once_planned(fake, two_arrive)
    done = make_watchdog(fake).apply()
    (first, *_) = done.outcomes
    assert (first.decision.resource, first.kind) == (OD, OutcomeKind.NO_LONGER_TRUE)
    assert "2 instances now" in first.detail
    assert len(fake.alive(OD)) == 2 - len(fake.ended)


def once_drained(fake: FakeFleet, change: Callable[[FakeFleet], None]) -> None:
    """The change comes between the drain of a pass and its end."""

    def before(call: str) -> None:
        if fake.drains and call == "instance":
            fake.before = lambda _: None
            change(fake)

    fake.before = before


def keep(fake: FakeFleet) -> None:
    fake.brakes.append(Brake(since=START, kind=BrakeKind.KEEP, scope=THIRD, owner="ana", reason="look", until=None))


def lose_it(fake: FakeFleet) -> None:
    fake.instances[THIRD] = replace(fake.instances[THIRD], state=InstanceState.STOPPING)


def forget_it(fake: FakeFleet) -> None:
    del fake.instances[THIRD]


def detach_it(fake: FakeFleet) -> None:
    fake.instances[THIRD] = replace(fake.instances[THIRD], group=None)


def group_ends_it(fake: FakeFleet) -> None:
    fake.groups[OD] = replace(fake.groups[OD], leaving=frozenset({THIRD}))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(pause, "paused by ana", id="a pause"),
        pytest.param(keep, "kept by ana", id="a keep"),
        pytest.param(lose_the_lease, LEASE_OVER, id="the lease is over"),
        pytest.param(lose_it, "already terminated", id="it is shutting down"),
        pytest.param(forget_it, "already terminated", id="it is no longer listed"),
    ],
)
@pytest.mark.parametrize(
    ("when", "drains"), [(once_planned, []), (once_drained, [THIRD])], ids=["planned", "drained"]
)
def test_planned_end_is_dropped_after_a_change(
    when: Callable[[FakeFleet, Callable[[FakeFleet], None]], None],
    drains: list[str],
    change: Callable[[FakeFleet], None],
    expected: str,
) -> None:
    fake = with_on_demand()
    when(fake, change)
    done = make_watchdog(fake).apply()
    (found,) = [outcome for outcome in done.outcomes if outcome.decision.resource == THIRD]
    assert (found.kind, expected in found.detail) == (OutcomeKind.NO_LONGER_TRUE, True), found
    assert (fake.ended, fake.drains, fake.intents) == ([], drains, {})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(detach_it, "already terminated", id="it left its group"),
        pytest.param(group_ends_it, "its group is ending it already", id="its group is ending it"),
    ],
)
def test_instance_removed_from_its_group_is_not_ended(change: Callable[[FakeFleet], None], expected: str) -> None:
    fake = with_on_demand()
    once_drained(fake, change)
    done = make_watchdog(fake).apply()
    (found,) = [outcome for outcome in done.outcomes if outcome.decision.resource == THIRD]
    assert (found.kind, expected in found.detail) == (OutcomeKind.NO_LONGER_TRUE, True), found
    assert not fake.ended


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"phase": Phase.DRAINING, "draining": True}, id="it drains"),
        pytest.param({"phase": Phase.DRAINED, "draining": False, "drained": True}, id="it has drained"),
    ],
)
def test_draining_instance_is_not_asked_to_drain_again(state: dict[str, Any]) -> None:
    fake = with_on_demand()

    def drained_by_a_person(fake: FakeFleet) -> None:
        fake.agents[THIRD] = replace(READY, ready=False, drain_by=DrainOwner.SPOT, **state)
        fake.drained_at[THIRD] = fake.now + timedelta(seconds=2)

    once_planned(fake, drained_by_a_person)
    make_watchdog(fake).apply()
    assert (fake.ended, fake.drains) == ([THIRD], [])


def test_instance_that_never_served_is_ended_without_a_drain() -> None:
    fake = spread_fleet()
    fake.agents[FIRST] = replace(READY, phase=Phase.FAILED, ready=False)
    fake.capacity[B] = 5
    make_watchdog(fake).apply()
    assert (fake.ended, fake.drains) == ([FIRST], [])


def test_zones_that_have_answered_are_waited_for_no_longer() -> None:
    fake = missing_one()
    fake.capacity[A] = 3
    before = fake.now
    make_watchdog(fake).apply()
    assert sizes(fake) == (1, 1, 0) and fake.now == before
