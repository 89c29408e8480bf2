"""Instances that their cloud takes while they are young: it charges nothing for them, unless we end them first."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain.decisions import Action, OutcomeKind, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus, is_termination_left_to_cloud
from gpufleet.domain.model import CapacityType, Cloud, InstanceState, Phase
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.plain import READY, START, instance, spot_pool
from tests.fixtures.watchdogs.spot import A, B, make_watchdog, spread_fleet
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import GroupView, PoolMember

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("age", "changes", "noticed", "left"),
    [
        pytest.param(20 * MINUTE, {}, True, True, id="young"),
        pytest.param(timedelta(minutes=59, seconds=59), {}, True, True, id="just young"),
        pytest.param(60 * MINUTE, {}, True, False, id="an hour old"),
        pytest.param(20 * MINUTE, {"cloud": Cloud.GCP}, True, False, id="on Google Cloud"),
        pytest.param(timedelta(seconds=59), {"cloud": Cloud.GCP}, True, True, id="just young on Google Cloud"),
        pytest.param(20 * MINUTE, {"capacity_type": CapacityType.ON_DEMAND}, True, False, id="on demand"),
        pytest.param(20 * MINUTE, {}, False, False, id="no notice"),
    ],
)
def test_which_interrupted_instances_are_left_to_the_cloud(
    age: timedelta, changes: dict[str, Any], *, noticed: bool, left: bool
) -> None:
    one = instance(1, launched_at=START - age, **changes)
    agent = replace(READY, ready=False, draining=True, notice_at=START if noticed else None)
    assert is_termination_left_to_cloud(one, agent, START) is left
    assert not is_termination_left_to_cloud(one, None, START), "it does not answer: no notice is known"


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        pytest.param({"left_to_its_cloud": True}, Action.KEEP, id="its cloud takes it for nothing"),
        pytest.param({}, Action.END, id="it is charged"),
        pytest.param({"under_notice": False, "drain_by": DrainOwner.SPOT}, Action.END, id="no notice"),
        pytest.param({"left_to_its_cloud": True, "drain_by": DrainOwner.SPOT}, Action.KEEP, id="drained by spot"),
    ],
)
def test_interrupted_spot_in_its_free_hour_is_left_to_the_cloud(changes: dict[str, Any], action: Action) -> None:
    usual: dict[str, Any] = {"under_notice": True, "drain_by": DrainOwner.CLOUD}
    member = PoolMember(id="i-1", group="a", launched_at=START, leaving=True, drained=True, **(usual | changes))
    group = GroupView(name="a", capacity_type=CapacityType.SPOT, zone="us-east-1a", desired=1, max=4)
    plan = decide([spot_pool([group], [member], target=0)], START)
    [decision] = [one for one in plan.decisions if one.resource == "i-1"]
    assert decision.action is action


def noticed(fleet: FakeFleet) -> str:
    """An instance of zone A, 20 minutes old, that has drained under a notice; zone A gives nothing more."""
    (key,) = fleet.groups[A].instance_ids
    fleet.instances[key] = replace(fleet.instances[key], launched_at=fleet.now - 20 * MINUTE)
    fleet.agents[key] = AgentStatus(
        phase=Phase.DRAINED, ready=False, draining=True, drained=True, drain_by=DrainOwner.CLOUD, notice_at=fleet.now
    )
    fleet.capacity[B] = 5
    return key


def take(fleet: FakeFleet, key: str) -> None:
    """Its cloud ends it; its group has not noticed yet."""
    fleet.instances[key] = replace(fleet.instances[key], state=InstanceState.TERMINATED)


def test_interrupted_instance_is_replaced_and_stays_in_its_group() -> None:
    fleet = spread_fleet()
    key = noticed(fleet)
    watchdog = make_watchdog(fleet)
    for _ in range(3):
        watchdog.apply()
        fleet.now += 30 * timedelta(seconds=1)
    assert fleet.ended == []
    assert (fleet.groups[A].desired, fleet.groups[A].instance_ids) == (1, (key,))
    assert len(fleet.alive(B)) == 2, "another one takes its place elsewhere"


def test_group_is_lowered_by_the_pass_that_finds_the_reclaim() -> None:
    fleet = spread_fleet()
    key = noticed(fleet)
    watchdog = make_watchdog(fleet)
    watchdog.apply()
    take(fleet, key)
    fleet.capacity[A] = 5  # its group would find another one there
    fleet.now += MINUTE
    done = watchdog.apply()
    assert (fleet.groups[A].desired, fleet.groups[A].instance_ids) == (0, ())
    assert [(o.decision.reason, o.kind) for o in done.outcomes if o.decision.resource == key] == [
        (Reason.PREEMPTED, OutcomeKind.DONE)
    ]
    assert fleet.alive(A) == []
    assert any("preempted by its cloud" in text for text in fleet.messages.values())


def test_a_group_that_has_noticed_itself_is_lowered_as_before() -> None:
    fleet = spread_fleet()
    key = noticed(fleet)
    watchdog = make_watchdog(fleet)
    watchdog.apply()
    take(fleet, key)
    fleet.groups[A] = replace(fleet.groups[A], instance_ids=())
    fleet.now += MINUTE
    watchdog.apply()
    assert fleet.groups[A].desired == 0
    assert fleet.ended == []


def test_an_instance_beyond_its_free_hour_is_ended() -> None:
    fleet = spread_fleet()
    key = noticed(fleet)
    watchdog = make_watchdog(fleet)
    watchdog.apply()
    fleet.now += 45 * MINUTE
    watchdog.apply()
    assert fleet.ended == [key]
