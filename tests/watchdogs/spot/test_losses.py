"""Losses that the watchdog was quicker than, and those before anything was ready."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Action, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import CapacityType, Phase
from tests.fixtures.watchdogs.idle import make_watchdog as idle_watchdog
from tests.fixtures.watchdogs.plain import START, spot_pool
from tests.fixtures.watchdogs.spot import OD, A, B, make_watchdog, spread_fleet
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import GroupView, PoolMember
from watchdogs.spot.risk import PRIOR_HOURS, PRIOR_LOSSES
from watchdogs.spot.zones import preempted_while_booting

MINUTE = timedelta(minutes=1)
IDLES = AgentStatus(
    phase=Phase.DRAINED, ready=False, draining=True, drained=True, drain_by=DrainOwner.IDLE, requests_running=0
)
BOOT = 6
"""Minutes."""


@pytest.mark.parametrize(
    ("owner", "noticed", "counts"),
    [
        pytest.param(DrainOwner.CLOUD, True, True, id="under notice"),
        pytest.param(DrainOwner.SPOT, False, False, id="our own move"),
        pytest.param(DrainOwner.SPOT, True, True, id="under notice during our own move"),
        pytest.param(DrainOwner.PERSON, True, True, id="under notice after a person drained it"),
    ],
)
def test_drain_under_a_notice_counts_as_a_loss_of_the_zone(owner: DrainOwner, noticed: bool, counts: bool) -> None:
    fleet = spread_fleet()
    fleet.capacity[A] = 5  # nobody is refused, which would count, too
    (first,) = fleet.groups[A].instance_ids
    fleet.agents[first] = AgentStatus(
        phase=Phase.DRAINED,
        ready=False,
        draining=False,
        drained=True,
        drain_by=owner,
        notice_at=fleet.now if noticed else None,
        phase_since=fleet.now,
    )
    watchdog = make_watchdog(fleet)
    watchdog.apply()
    assert fleet.ended == [first]
    fleet.happened(A, ActivityKind.ENDED, first)
    (pool,) = watchdog.apply().observed
    (zone,) = [group for group in pool.groups if group.name == A]
    assert (zone.losses_per_hour > PRIOR_LOSSES / PRIOR_HOURS) is counts
    assert (ActivityKind.PREEMPTED in {event.kind for event in pool.events_of(A)}) is counts


def test_spot_drained_by_idle_and_then_interrupted_counts_as_a_loss() -> None:
    fleet = spread_fleet()
    fleet.capacity[A] = 5
    (first,) = fleet.groups[A].instance_ids
    fleet.agents[first] = replace(IDLES, notice_at=fleet.now)
    spot = make_watchdog(fleet)
    for _ in range(2):
        spot.apply()
    assert not fleet.ended
    notes = [row.outcome.decision for row in fleet.outcomes if row.outcome.decision.reason is Reason.PREEMPTED]
    assert [(one.resource, one.action) for one in notes] == [(first, Action.KEEP)], "noted once"
    idle_watchdog(fleet).apply()
    assert (fleet.ended, fleet.targets["batch"].value) == ([first], 1)
    fleet.happened(A, ActivityKind.ENDED, first)
    (pool,) = spot.apply().observed
    assert ActivityKind.PREEMPTED in {event.kind for event in pool.events_of(A)}


@pytest.mark.parametrize(
    ("changes", "pool", "reason"),
    [
        pytest.param({}, {}, None, id="idle ends it"),
        pytest.param({"under_notice": False}, {}, None, id="idle ends it without a notice"),
        pytest.param({}, {"idle_ends": False}, Reason.PREEMPTED, id="its pool has no idle watchdog"),
        pytest.param({"under_notice": False}, {"idle_ends": False}, Reason.SURPLUS, id="nor a notice"),
        pytest.param({"kept_by": "ana"}, {}, Reason.PREEMPTED, id="idle ends none that people keep"),
        pytest.param({"drain_by": DrainOwner.SPOT}, {}, Reason.PREEMPTED, id="spot drained it"),
        pytest.param(
            {"drain_by": DrainOwner.SPOT, "kept_by": "ana"}, {}, Reason.PREEMPTED, id="spot did, ana keeps it"
        ),
        pytest.param({"drain_by": DrainOwner.PERSON}, {}, Reason.PREEMPTED, id="a person drained it"),
        pytest.param({"drain_by": DrainOwner.ROLLOUT}, {}, Reason.PREEMPTED, id="a rollout drained it"),
        pytest.param({"drain_by": None}, {}, Reason.PREEMPTED, id="unknown drain owner"),
        pytest.param({"drain_by": DrainOwner.PERSON, "under_notice": False}, {}, None, id="a person's alone"),
        pytest.param({"drain_by": DrainOwner.CLOUD, "under_notice": False}, {}, None, id="its group ends it"),
        pytest.param({"drain_by": None, "under_notice": False}, {}, None, id="no owner, no notice"),
    ],
)
def test_which_drained_instances_spot_ends(
    changes: dict[str, Any], pool: dict[str, Any], reason: Reason | None
) -> None:
    group = GroupView(name=A, capacity_type=CapacityType.SPOT, zone="us-east-1a", desired=1, max=9)
    one = PoolMember(id="i-1", group=A, launched_at=START, leaving=True, drained=True, under_notice=True)
    one = replace(one, **{"drain_by": DrainOwner.IDLE} | changes)
    found = decide([spot_pool([group], [one], **pool)], START).decisions
    assert [d.reason for d in found if d.action is Action.END] == ([] if reason is None else [reason])


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
def test_booting_spot_is_doubtful_after_losses_during_boots(
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
            PoolMember(id=f"i-{n}", group=A, launched_at=START - ago * MINUTE, not_ready_since=START)
            for n, ago in enumerate(booting)
        ],
        events=sorted((event for loss in losses for event in loss), key=lambda event: event.at),
        boot_expected=BOOT * MINUTE,
    )
    (answer,) = [d for d in decide([pool], START).decisions if d.resource == OD]
    assert (answer.to_size or 0) == bought
    assert (answer.action is Action.RESIZE) is (bought > 0)
    assert ("before they were ready" in answer.detail) is (bought > 0)


@pytest.mark.parametrize("launch", [ActivityKind.LAUNCHED, ActivityKind.IN_PROGRESS])
@pytest.mark.parametrize("end", [ActivityKind.PREEMPTED, ActivityKind.ENDED_UNSTATED])
def test_interruption_during_boot_is_an_early_loss(launch: ActivityKind, end: ActivityKind) -> None:
    """Behind a launch hook the launch of such an instance never succeeds, and its group does not say who ended it."""
    group = GroupView(name=A, capacity_type=CapacityType.SPOT, zone="us-east-1a", desired=0, max=9)
    events = [
        Activity(id=f"{kind}", group=A, kind=kind, at=START - ago * MINUTE, instance_id="i-1")
        for kind, ago in ((launch, 5), (end, 2))
    ]
    assert preempted_while_booting(spot_pool([group], [], events=events), START) == 1
