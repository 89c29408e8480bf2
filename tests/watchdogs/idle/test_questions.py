"""What an idle pass asks its ledger, its cloud and its agents, however many instances it looks at."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance, InstanceState
from tests.fixtures.watchdogs.plain import QUIET, QUIET_ENGINE, START, FakePrices, document, instance
from tests.fixtures.watchdogs.worlds import FakeAgents, FakeGroups, World, idle_world, mark
from watchdogs.idle.watchdog import IdleWatchdog

BUSY = replace(QUIET, engine=replace(QUIET_ENGINE, running_max=3.0))


@pytest.mark.parametrize("instances", [1, 20])
def test_nothing_is_asked_twice(instances: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = idle_world(instances), Counter[str]()
    monkeypatch.setattr(world, "before", lambda step: asked.update([step]))
    IdleWatchdog(document(), world.ports()).dry()
    once = ("instances", "brakes", "targets", "policy_seen", "unfinished", "boots", "statuses")
    assert {step: asked[step] for step in once} == dict.fromkeys(once, 1)
    assert asked["ended_since"] == 2, "of the last hour and of the day"


class Asking:
    """A pass whose questions about single instances are kept."""

    def __init__(self, world: World, **changes: object) -> None:
        agents, priced, wanted = self.agents, self.priced, self.required = set[str](), set[str](), set[str]()

        class Agents(FakeAgents):
            def statuses(self, instances: Sequence[Instance]) -> Mapping[str, AgentStatus]:
                agents.update(one.id for one in instances)
                return super().statuses(instances)

        class Prices(FakePrices):
            def usd_per_hour(self, instance: Instance) -> None:
                priced.add(instance.id)

        class Groups(FakeGroups):
            def in_rollout(self, names: Sequence[str], required: Collection[str] = ()) -> frozenset[str]:
                wanted.update(required)
                return super().in_rollout(names, required)

        ports = replace(world.ports(), agents=Agents(world), prices=Prices(), groups=Groups(world))
        IdleWatchdog(document(**changes), ports).dry()


def test_only_agents_of_the_quiet_and_the_marked_are_asked() -> None:
    """Metrics alone keep the others, and at thousands of instances each call counts."""
    world = idle_world(4)
    quiet, busy, marked, dead = (instance(n).id for n in range(1, 5))
    world.evidence[busy] = world.evidence[marked] = BUSY
    mark(world, 3, START)
    mark(world, 4, START)
    world.instances[dead] = replace(world.instances[dead], state=InstanceState.STOPPING)
    assert Asking(world).agents == {quiet, marked}
    assert Asking(world, watchdogs={"spot": {}}).agents == set()


def test_those_that_may_stay_are_asked_when_one_may_end() -> None:
    world = idle_world(2)
    first, second = instance(1).id, instance(2).id
    world.evidence[second] = BUSY
    mark(world, 1, START)
    assert Asking(world).agents == {first}
    world.now += timedelta(hours=1)
    assert Asking(world).agents == {first, second}


def test_prices_are_asked_of_the_watched_and_of_the_living_that_nobody_watches() -> None:
    world = idle_world(4)
    watched, stray, gone, other = (instance(n).id for n in range(1, 5))
    world.instances[stray] = replace(world.instances[stray], pool=None, group="left-over")
    world.instances[gone] = replace(world.instances[stray], id=gone, state=InstanceState.STOPPED)
    del world.instances[other]
    world.groups["batch-spot-a"] = replace(world.groups["batch-spot-a"], instance_ids=(watched,))
    del world.evidence[other]
    assert Asking(world).priced == {watched, stray}
    assert Asking(world, watchdogs={"spot": {}}).priced == {stray}


def test_a_rollout_is_asked_about_for_certain_where_one_may_end() -> None:
    world = idle_world(2)
    assert Asking(world).required == set()
    mark(world, 1, START)
    assert Asking(world).required == set()
    world.now += timedelta(hours=1)
    assert Asking(world).required == {"batch-spot-a"}


def test_no_rollout_is_asked_about_where_nobody_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = idle_world(2), Counter[str]()
    world.evidence = dict.fromkeys(world.evidence, BUSY)
    monkeypatch.setattr(world, "before", lambda step: asked.update([step]))
    IdleWatchdog(document(), world.ports()).dry()
    assert asked["in_rollout"] == 0 and asked["statuses"] == 1
