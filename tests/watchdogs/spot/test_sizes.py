"""The arithmetic of a pool: who counts as what, at the very moments at which that changes."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType
from gpufleet.domain.policies import SpotPolicy
from tests.fixtures.watchdogs.plain import START, spot_pool
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView
from watchdogs.spot.sizes import Sizes

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
BOOT, HOLD = 6 * MINUTE, 15 * MINUTE
SPOT, ON_DEMAND = "spot-a", "od"
READY = PoolMember(id="s", group=SPOT, launched_at=START - HOLD - BOOT, ready_since=START - HOLD)
BOOTS = PoolMember(id="b", group=SPOT, launched_at=START - BOOT + SECOND)
OLDER = replace(BOOTS, launched_at=START - BOOT)
LEAVES = replace(READY, leaving=True, drain_by=DrainOwner.IDLE)
BOUGHT = replace(READY, group=ON_DEMAND)
TAKEN_YOUNG = [
    Activity(id=f"{kind}", group=SPOT, kind=kind, at=START - age, instance_id="gone")
    for kind, age in ((ActivityKind.LAUNCHED, 10 * MINUTE), (ActivityKind.PREEMPTED, 5 * MINUTE))
]


def sizes(*members: PoolMember, **pool: object) -> Sizes:
    return Sizes(seen(*members, **pool), START, 0)


def seen(*members: PoolMember, **pool: object) -> SpotPoolView:
    groups = [
        GroupView(name=SPOT, capacity_type=CapacityType.SPOT, zone="us-east-1a", desired=0, max=9),
        GroupView(name=ON_DEMAND, capacity_type=CapacityType.ON_DEMAND, zone=None, desired=0, max=9),
    ]
    usual = {"boot_expected": BOOT, "policy": SpotPolicy(hold=HOLD, max_surge=2)}
    named = [replace(member, id=f"{member.id}{n}") for n, member in enumerate(members)]
    return spot_pool(groups, named, **usual | pool)


@pytest.mark.parametrize(
    ("since", "stable"),
    [
        pytest.param(START - HOLD, 1, id="for the hold"),
        pytest.param(START - HOLD + SECOND, 0, id="a second less"),
        pytest.param(None, 0, id="not ready"),
    ],
)
def test_which_instances_are_stable(since: object, stable: int) -> None:
    assert sizes(replace(READY, ready_since=since)).stable == stable  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("members", "likely_preempted"),
    [
        pytest.param([BOOTS], 1, id="it boots"),
        pytest.param([OLDER], 0, id="its boot should be over"),
        pytest.param([replace(OLDER, boot_expected=2 * BOOT)], 1, id="boots of its type take longer"),
        pytest.param([replace(BOOTS, ready_since=START - SECOND)], 0, id="it was ready sooner than usual"),
        pytest.param([replace(BOOTS, group=ON_DEMAND)], 0, id="on demand boots, which is never reclaimed"),
        pytest.param([BOOTS, BOOTS], 1, id="two boot, one was taken"),
    ],
)
def test_booting_instances_are_doubtful_up_to_the_number_of_early_losses(
    members: list[PoolMember], likely_preempted: int
) -> None:
    found = sizes(*members, events=TAKEN_YOUNG, target=4)
    assert found.likely_preempted == likely_preempted
    assert found.missing == 4 - sum(member.group == SPOT for member in members) + likely_preempted
    assert sizes(*members, target=4).likely_preempted == 0, "none was taken"


@pytest.mark.parametrize(
    ("target", "least", "ending", "lacks"),
    [
        pytest.param(3, 0, 1, 1, id="the target falls with it"),
        pytest.param(3, 2, 1, 1, id="as far as it may"),
        pytest.param(3, 3, 0, 2, id="not below the least: it is missed"),
        pytest.param(3, 9, 0, 2, id="least above the target: nothing more is missed"),
    ],
)
def test_instance_that_idle_ends_is_missing_only_if_the_target_stays(
    target: int, least: int, ending: int, lacks: int
) -> None:
    found = sizes(READY, LEAVES, target=target, min_target=least)
    assert (found.ending_idle, found.missing, found.spot_missing) == (ending, lacks, lacks)


@pytest.mark.parametrize(
    ("bought", "spot", "asked"),
    [
        pytest.param(0, 0, 4, id="no fallback: all at once"),
        pytest.param(2, 0, 4, id="as many as the surge"),
        pytest.param(3, 0, 3, id="one more"),
        pytest.param(4, 0, 2, id="the whole target: no more than the surge"),
        pytest.param(4, 2, 0, id="the surge is there"),
        pytest.param(4, 3, 0, id="more is there"),
        pytest.param(0, 5, 0, id="more than is wanted"),
    ],
)
def test_spot_returns_next_to_on_demand_within_the_surge(bought: int, spot: int, asked: int) -> None:
    assert sizes(*[BOUGHT] * bought, *[READY] * spot, target=4).spot_missing == asked


def test_idle_ends_and_fallback_both_leave_capacity() -> None:
    """Of four wanted one is ending, so three are missed; three on demand allow three within the surge."""
    assert sizes(LEAVES, *[BOUGHT] * 3, target=4).spot_missing == 3
    assert sizes(*[LEAVES] * 2, *[BOUGHT] * 3, target=4).spot_missing == 2
