"""Losses that the watchdog was quicker than: what drained under a notice and was ended before the cloud came."""

import pytest

from fleet.activity import ActivityKind
from fleet.model import Phase
from tests.watchdogs.test_spot_watchdog import A, spread_world, watchdog
from watchdogs.evidence import AgentStatus
from watchdogs.spot.memory import PRIOR_HOURS, PRIOR_LOSSES


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
