"""Lifecycle hooks are completed by the spot watchdog's pass, from what agents report."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Phase
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.fake_ports import FakeGroups
from tests.fixtures.watchdogs.hooks import ONE, TWO, of, waiting
from tests.fixtures.watchdogs.plain import READY, START, document, instance
from tests.fixtures.watchdogs.spot import A, B, make_watchdog, spread_fleet
from watchdogs import hooks
from watchdogs.spot.watchdog import SpotWatchdog

LOADING = replace(READY, phase=Phase.ENGINE, ready=False)
DRAINING = replace(READY, phase=Phase.DRAINING, ready=False, draining=True)
DRAINED = replace(READY, phase=Phase.DRAINED, ready=False, draining=False, drained=True)


@pytest.mark.parametrize(
    ("status", "completed"),
    [
        pytest.param(READY, True, id="ready"),
        pytest.param(LOADING, False, id="loading"),
        pytest.param(replace(READY, ready=False), False, id="its engine is not well"),
        pytest.param(replace(DRAINING, has_served=True), True, id="served, drains"),
        pytest.param(replace(DRAINED, has_served=True), True, id="served, drained"),
        pytest.param(DRAINED, False, id="drained before it served"),
        pytest.param(replace(LOADING, phase=Phase.FAILED), False, id="failed"),
        pytest.param(None, False, id="silent"),
    ],
)
def test_a_launch_hook_is_completed_when_its_instance_serves(status: AgentStatus | None, completed: bool) -> None:
    fleet = waiting(to_serve=[ONE])
    fleet.agents.pop(ONE)
    if status is not None:
        fleet.agents[ONE] = status
    make_watchdog(fleet).apply()
    assert fleet.hooks == ([(of(fleet, ONE), ONE)] if completed else [])


@pytest.mark.parametrize(
    ("status", "completed"),
    [
        pytest.param(DRAINED, True, id="drained"),
        pytest.param(DRAINING, False, id="draining"),
        pytest.param(READY, False, id="has not noticed yet"),
        pytest.param(None, False, id="silent"),
    ],
)
def test_a_hook_on_ends_is_completed_when_its_instance_has_drained(
    status: AgentStatus | None, completed: bool
) -> None:
    fleet = waiting(to_end=[ONE])
    fleet.agents.pop(ONE)
    if status is not None:
        fleet.agents[ONE] = status
    make_watchdog(fleet).apply()
    assert fleet.hooks == ([(of(fleet, ONE), ONE)] if completed else [])


def test_an_agent_completes_nothing_of_another_instance() -> None:
    """Whatever it reports, group and instance are those that the cloud reports."""
    fleet = waiting(to_serve=[TWO], to_end=[])
    fleet.agents |= {ONE: replace(DRAINED, has_served=True), TWO: LOADING}
    make_watchdog(fleet).apply()
    assert fleet.hooks == []


def test_a_dry_pass_completes_nothing() -> None:
    fleet = waiting(to_serve=[ONE])
    make_watchdog(fleet).dry()
    assert fleet.hooks == []


def test_a_pause_holds_no_hook() -> None:
    """People pause watchdogs while they update: what boots meanwhile is to serve, what drains is to end."""
    fleet = waiting(to_serve=[ONE], to_end=[TWO])
    fleet.agents[TWO] = DRAINED
    fleet.brakes.append(
        Brake(since=START, kind=BrakeKind.PAUSE, scope="all", owner="ana", reason="update", until=None)
    )
    make_watchdog(fleet).apply()
    assert sorted(key for _, key in fleet.hooks) == [ONE, TWO]


def test_pools_without_a_spot_watchdog_have_their_hooks_completed() -> None:
    fleet = waiting(to_serve=[ONE])
    plain = document()
    pools = [
        pool.model_copy(update={"watchdogs": pool.watchdogs.model_copy(update={"spot": None})})
        for pool in plain.pools
    ]
    SpotWatchdog(plain.model_copy(update={"pools": tuple(pools)}), fleet.ports()).apply()
    assert fleet.hooks == [(of(fleet, ONE), ONE)]


def test_a_pass_completes_no_more_than_its_share() -> None:
    fleet = FakeFleet()
    some = [instance(number, group=A) for number in range(1, hooks.MAX_INSTANCES + 21)]
    fleet.instances = {one.id: one for one in some}
    fleet.agents = {one.id: READY for one in some}
    fleet.groups[A] = replace(spread_fleet().groups[A], waiting_to_serve=frozenset(fleet.instances))
    for expected in (hooks.MAX_INSTANCES, hooks.MAX_INSTANCES + 20):
        assert hooks.complete(fleet.ports(), fleet.groups.values(), fleet.instances, {}) == {}
        assert len(fleet.hooks) == expected
    assert len(set(fleet.hooks)) == hooks.MAX_INSTANCES + 20, "each once"


class Refusing(FakeGroups):
    """A cloud that refuses to complete the hooks of one group, as it does before `pulumi up` of this release."""

    def complete_hooks(self, name: str, *, serving: Collection[str], drained: Collection[str]) -> Mapping[str, str]:
        if name == A:
            return dict.fromkeys((*serving, *drained), "AccessDenied: autoscaling:CompleteLifecycleAction")
        return super().complete_hooks(name, serving=serving, drained=drained)


def test_a_group_whose_hooks_are_refused_stops_no_other_and_people_are_notified_once() -> None:
    fleet = waiting(to_serve=[ONE, TWO])
    assert {of(fleet, ONE), of(fleet, TWO)} == {A, B}
    ports = replace(fleet.ports(), groups=Refusing(fleet))
    for _ in range(2):
        SpotWatchdog(document(), ports).apply()
        fleet.now += timedelta(minutes=1)
    (other,) = [key for key in (ONE, TWO) if of(fleet, key) == B]
    assert fleet.hooks == [(B, other)]
    (text,) = [text for key, text in fleet.messages.items() if key.startswith(f"spot:hooks:{A}:")]
    assert "AccessDenied" in text
    assert "pulumi up" in text


def test_a_group_that_cannot_be_read_holds_no_other_up() -> None:
    class Broken(FakeGroups):
        def readable(self, names: Collection[str]) -> Any:
            found = super().readable([name for name in names if name != A])
            return replace(found, errors={A: "its tag is wrong"})

    fleet = waiting(to_serve=[ONE, TWO])
    SpotWatchdog(document(), replace(fleet.ports(), groups=Broken(fleet))).apply()
    assert [name for name, _ in fleet.hooks] == [B]
