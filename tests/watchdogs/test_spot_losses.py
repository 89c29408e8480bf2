"""Losses that the watchdog was quicker than, and those before anything was ready."""

from datetime import timedelta

import pytest

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Action
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import CapacityType, Phase
from tests.watchdogs.plain import START, spot_pool
from tests.watchdogs.test_spot_watchdog import OD, A, B, spread_world, watchdog
from watchdogs.spot.decide import decide
from watchdogs.spot.memory import PRIOR_HOURS, PRIOR_LOSSES
from watchdogs.spot.view import GroupView, Member

MINUTE = timedelta(minutes=1)
BOOT = 6
"""Minutes."""


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        pytest.param("preempted by its cloud", True, id="under notice"),
        pytest.param("spot: a safer zone", False, id="our own move"),
    ],
)
def test_what_drained_under_a_notice_counts_among_its_zones_losses(reason: str, counts: bool) -> None:
    world = spread_world()
    world.capacity[A] = 5  # nobody is refused, which would count, too
    (first,) = world.groups[A].instance_ids
    world.agents[first] = AgentStatus(
        phase=Phase.DRAINED, ready=False, draining=False, drained=True, reason=reason, phase_since=world.now
    )
    dog = watchdog(world)
    dog.apply()
    assert world.ended == [first]
    world.happened(A, ActivityKind.ENDED, first)
    (pool,) = dog.apply().observed
    (zone,) = [group for group in pool.groups if group.name == A]
    assert (zone.losses_per_hour > PRIOR_LOSSES / PRIOR_HOURS) is counts
    assert (ActivityKind.PREEMPTED in {event.kind for event in pool.events_of(A)}) is counts


def lost(name: str, launched: float, taken: float, group: str = A) -> list[Activity]:
    """Launched and taken that many minutes ago."""
    return [
        Activity(id=f"{name}-{kind}", group=group, kind=kind, at=START - ago * MINUTE, instance_id=name)
        for kind, ago in ((ActivityKind.LAUNCHED, launched), (ActivityKind.PREEMPTED, taken))
    ]


@pytest.mark.parametrize(
    ("losses", "booting", "bought"),
    [
        pytest.param([lost("x", 5, 2)], [1, 1], 1, id="one was taken young: of two that boot, one is counted on"),
        pytest.param([lost("x", 5, 2), lost("y", 4, 1, B)], [1, 1], 2, id="one in each of two zones"),
        pytest.param([lost(n, 5, 2) for n in "uvwxy"], [1, 1], 2, id="no more than boot"),
        pytest.param([lost("x", 1 + BOOT, 2)], [1, 1], 1, id="a minute before it was ready"),
        pytest.param([lost("x", 2 + BOOT, 2)], [1, 1], 0, id="it had just become ready"),
        pytest.param([lost("x", 124, 119)], [1, 1], 1, id="launched two hours ago, taken within them"),
        pytest.param([lost("x", 125, 120)], [1, 1], 0, id="two hours ago"),
        pytest.param([lost("x", 5, 2)], [BOOT + 1, 30], 0, id="those there are past their boot: one silent poll"),
        pytest.param([], [1, 1], 0, id="nothing was taken"),
    ],
)
def test_what_boots_is_not_counted_on_where_others_were_taken_before_they_were_ready(
    losses: list[list[Activity]], booting: list[float], bought: int
) -> None:
    groups = [
        GroupView(name=name, capacity_type=CapacityType.SPOT, zone=f"us-east-1{letter}", desired=len(there), max=9)
        for name, letter, there in ((A, "a", booting), (B, "b", []))
    ]
    groups.append(GroupView(name=OD, capacity_type=CapacityType.ON_DEMAND, zone=None, desired=0, max=9))
    pool = spot_pool(
        groups,
        [
            Member(id=f"i-{n}", group=A, launched_at=START - ago * MINUTE, missed_since=START)
            for n, ago in enumerate(booting)
        ],
        events=sorted((event for loss in losses for event in loss), key=lambda event: event.at),
        boot_expected=BOOT * MINUTE,
    )
    (answer,) = [d for d in decide([pool], START).decisions if d.resource == OD]
    assert (answer.to_size or 0) == bought
    assert (answer.action is Action.RESIZE) is (bought > 0)
    assert ("before they were ready" in answer.detail) is (bought > 0)
