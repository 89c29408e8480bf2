"""What an idle pass asks its ledger, its cloud and its agents, however many instances it looks at."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance, InstanceState
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet, mark
from tests.fixtures.watchdogs.fake_ports import FakeAgents, FakeGroups
from tests.fixtures.watchdogs.plain import QUIET, QUIET_ENGINE, START, FakePrices, document, instance
from watchdogs.idle.watchdog import IdleWatchdog

BUSY = replace(QUIET, engine=replace(QUIET_ENGINE, running_max=3.0))


@pytest.mark.parametrize("instances", [1, 20])
def test_each_question_is_asked_once_per_pass(instances: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, asked = idle_fleet(instances), Counter[str]()
    monkeypatch.setattr(fleet, "before", lambda step: asked.update([step]))
    IdleWatchdog(document(), fleet.ports()).dry()
    once = ("instances", "brakes", "targets", "policy_seen", "unfinished", "boots", "statuses")
    assert {step: asked[step] for step in once} == dict.fromkeys(once, 1)
    assert asked["ended_since"] == 2, "of the last hour and of the day"


class Asking:
    """A pass whose questions about single instances are kept."""

    def __init__(self, fleet: FakeFleet, **changes: object) -> None:
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

        ports = replace(fleet.ports(), agents=Agents(fleet), prices=Prices(), groups=Groups(fleet))
        IdleWatchdog(document(**changes), ports).dry()


def test_only_agents_of_the_quiet_and_the_marked_are_asked() -> None:
    """Metrics alone keep the others, and at thousands of instances each call counts."""
    fleet = idle_fleet(4)
    quiet, busy, marked, dead = (instance(n).id for n in range(1, 5))
    fleet.evidence[busy] = fleet.evidence[marked] = BUSY
    mark(fleet, 3, START)
    mark(fleet, 4, START)
    fleet.instances[dead] = replace(fleet.instances[dead], state=InstanceState.STOPPING)
    assert Asking(fleet).agents == {quiet, marked}
    assert Asking(fleet, watchdogs={"spot": {}}).agents == set()


def test_agents_of_remaining_instances_are_asked_when_one_may_end() -> None:
    fleet = idle_fleet(2)
    first, second = instance(1).id, instance(2).id
    fleet.evidence[second] = BUSY
    mark(fleet, 1, START)
    assert Asking(fleet).agents == {first}
    fleet.now += timedelta(hours=1)
    assert Asking(fleet).agents == {first, second}


def test_prices_are_read_for_watched_and_running_unwatched_instances() -> None:
    fleet = idle_fleet(4)
    watched, stray, terminated, other = (instance(n).id for n in range(1, 5))
    fleet.instances[stray] = replace(fleet.instances[stray], pool=None, group="left-over")
    fleet.instances[terminated] = replace(fleet.instances[stray], id=terminated, state=InstanceState.STOPPED)
    del fleet.instances[other]
    fleet.groups["batch-spot-a"] = replace(fleet.groups["batch-spot-a"], instance_ids=(watched,))
    del fleet.evidence[other]
    assert Asking(fleet).priced == {watched, stray}
    assert Asking(fleet, watchdogs={"spot": {}}).priced == {stray}


def test_a_rollout_is_asked_about_for_certain_where_one_may_end() -> None:
    fleet = idle_fleet(2)
    assert Asking(fleet).required == set()
    mark(fleet, 1, START)
    assert Asking(fleet).required == set()
    fleet.now += timedelta(hours=1)
    assert Asking(fleet).required == {"batch-spot-a"}


def test_rollouts_are_not_read_when_nothing_may_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, asked = idle_fleet(2), Counter[str]()
    fleet.evidence = dict.fromkeys(fleet.evidence, BUSY)
    monkeypatch.setattr(fleet, "before", lambda step: asked.update([step]))
    IdleWatchdog(document(), fleet.ports()).dry()
    assert asked["in_rollout"] == 0 and asked["statuses"] == 1
