"""An unreadable pool, group or instance stops decisions about itself; other pools decide the same."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.domain.activity import Activity, CloudError
from gpufleet.domain.decisions import Action, Decision, Reason, Target
from gpufleet.domain.model import CapacityType, Group, GroupList, Instance, InstanceList, Phase
from gpufleet.settings.document import FleetDocument
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, mark
from tests.fixtures.watchdogs.fake_ports import FakeGroups, FakeInventory, FakeMetrics
from tests.fixtures.watchdogs.plain import QUIET, READY, START, FakePrices, document, instance
from tests.fixtures.watchdogs.scale import BUSY, Store
from tests.fixtures.watchdogs.spot import SETTINGS
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.observe.fleet import SharedLists
from watchdogs.policy import digests
from watchdogs.ports import Ports
from watchdogs.scale.watchdog import ScaleWatchdog
from watchdogs.spot.watchdog import SpotWatchdog

ONE, OTHER = "batch", "chat"
A, B, OD = "batch-spot-a", "batch-spot-b", "batch-od"
LARGE_BUDGET = {"max_stops_per_run": 9, "max_stops_per_hour": 20}
"""No pool takes of what another one may end."""


def fleet() -> FleetDocument:
    """Two pools of the same shape."""
    first = document(watchdogs=SETTINGS | {"idle": LARGE_BUDGET, "scale": {"requests_per_replica": 10}})
    pool = first.pools[0]
    groups = [group.model_copy(update={"name": group.name.replace(ONE, OTHER)}) for group in pool.groups]
    return first.model_copy(update={"pools": [pool, pool.model_copy(update={"name": OTHER, "groups": groups})]})


FLEET = fleet()


def two_pools() -> FakeFleet:
    """Each with two ready spot instances, one in each zone; in each one has been lost, and only on-demand is left."""
    fake = FakeFleet()
    for index, pool in enumerate((ONE, OTHER)):
        fake.targets[pool] = Target(pool=pool, value=2, version=1)
        for number, zone in ((1, "a"), (2, "b")):
            group = f"{pool}-spot-{zone}"
            one = instance(10 * index + number, pool=pool, group=group, zone=f"us-east-1{zone}")
            fake.instances[one.id] = one
            fake.evidence[one.id] = QUIET
            fake.agents[one.id] = replace(READY, phase_since=START - timedelta(hours=1))
            fake.groups[group] = Group(
                name=group,
                pool=pool,
                capacity_type=CapacityType.SPOT,
                zone=f"us-east-1{zone}",
                desired=1,
                min=0,
                max=4,
                instance_ids=(one.id,),
            )
        name = f"{pool}-od"
        fake.groups[name] = Group(
            name=name, pool=pool, capacity_type=CapacityType.ON_DEMAND, zone=None, desired=0, min=0, max=2
        )
        fake.capacity[name] = 2
    fake.seen |= {
        (kind, pool, digest) for kind in ("idle", "spot", "scale") for pool, digest in digests(FLEET, kind).items()
    }
    return fake


def losing() -> FakeFleet:
    fake = two_pools()
    for number in (1, 11):
        fake.lose(instance(number).id)
    return fake


def idling() -> FakeFleet:
    fake = two_pools()
    for number in (1, 2, 11, 12):
        mark(fake, number, START - timedelta(hours=1))
    return fake


@dataclass
class Broken(FakeInventory, FakeGroups):
    """An inventory and groups of which one member is broken."""

    group: str | None = None
    """It is missing, or its tag is wrong."""
    silent: str | None = None
    """The activities and rollouts of this group cannot be read."""
    unlisted: str | None = None
    """The list lacks this instance."""
    unreadable: str | None = None
    """This instance cannot be read by itself, nor does the list have it."""
    malformed: str | None = None
    """What the cloud says of this instance makes no sense, in the list and alone."""

    def instances(self) -> Sequence[Instance]:
        return [i for i in super().instances() if i.id not in (self.unlisted, self.unreadable, self.malformed)]

    def listed(self) -> InstanceList:
        errors = {} if self.malformed is None else {self.malformed: f"{self.malformed} has no zone"}
        return InstanceList(instances=self.instances(), errors=errors)

    def instance(self, instance_id: str) -> Instance | None:
        if instance_id in (self.unreadable, self.malformed):
            raise CloudError("it cannot be read")
        return super().instance(instance_id)

    def groups(self, names: Sequence[str]) -> Sequence[Group]:
        if self.group in names:
            raise CloudError(f"{self.group}: its tag is wrong")
        return super().groups(names)

    def readable(self, names: Sequence[str]) -> GroupList:
        found = super().readable([name for name in names if name != self.group])
        errors = {name: "its tag is wrong" for name in names if name == self.group}
        return GroupList(groups=found.groups, errors={**found.errors, **errors})

    def activities(self, names: Sequence[str], since: Any) -> Sequence[Activity]:
        if self.silent in names:
            raise CloudError("its activities cannot be read")
        return super().activities(names, since)

    def in_rollout(self, names: Sequence[str], required: Any = ()) -> frozenset[str]:
        if self.silent in names or self.group in names:
            raise CloudError("its refreshes cannot be read")
        return super().in_rollout(names, required)


FAULTS = [
    pytest.param({"group": A}, id="a group is missing, or its tag is broken"),
    pytest.param({"group": OD}, id="the fallback group is missing"),
    pytest.param({"silent": A}, id="the activities of a group"),
    pytest.param({"unlisted": instance(2).id}, id="an instance lost its tag"),
    pytest.param({"unreadable": instance(2).id}, id="an instance cannot be read"),
    pytest.param({"malformed": instance(2).id}, id="a malformed instance"),
    pytest.param({"agent": instance(2).id}, id="an agent is silent"),
    pytest.param({"hangs": instance(2).id}, id="an agent drains for ever"),
    pytest.param({"price": instance(2).id}, id="a price is unknown"),
]


@dataclass
class Unpriced(FakePrices):
    """Nobody knows the price of one instance."""

    instance: str = ""

    def usd_per_hour(self, instance: Instance) -> Decimal | None:
        return None if instance.id == self.instance else super().usd_per_hour(instance)


def broken(fake: FakeFleet, fault: Mapping[str, str]) -> Ports:
    fake.agents.pop(fault.get("agent", ""), None)
    if "hangs" in fault:
        fake.agents[fault["hangs"]] = replace(
            READY, phase=Phase.DRAINING, ready=False, draining=True, phase_since=START
        )
    prices = Unpriced(instance=fault.get("price", ""))
    there = Broken(fake, **{key: value for key, value in fault.items() if key not in ("agent", "price", "hangs")})
    if "unlisted" in fault:
        key = fault["unlisted"]
        fake.instances[key] = replace(fake.instances[key], environment=None)
    return replace(fake.ports(), inventory=there, groups=there, prices=prices)


def spot(ports: Ports) -> Any:
    return SpotWatchdog(FLEET, ports).apply()


def idle(ports: Ports) -> Any:
    return IdleWatchdog(FLEET, ports).apply()


def scale(ports: Ports) -> Any:
    store = Store(ports.metrics.fleet, BUSY)  # type: ignore[attr-defined]
    return ScaleWatchdog(FLEET, replace(ports, metrics=store)).apply()


def about(decisions: Sequence[Decision], pool: str) -> list[tuple[object, ...]]:
    return [(d.resource, d.action, d.reason, d.detail, d.to_size) for d in decisions if d.pool == pool]


@pytest.mark.parametrize(
    ("make", "watch"),
    [
        pytest.param(losing, spot, id="spot"),
        pytest.param(idling, idle, id="idle"),
        pytest.param(losing, scale, id="scale"),
    ],
)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_other_pool_decides_the_same(
    make: Callable[[], FakeFleet], watch: Callable[[Ports], Any], fault: Mapping[str, str]
) -> None:
    whole, fake = make(), make()
    undisturbed, disturbed = watch(whole.ports()), watch(broken(fake, fault))
    assert about(disturbed.plan.decisions, OTHER) == about(undisturbed.plan.decisions, OTHER)
    others = [key for key, one in whole.instances.items() if one.pool == OTHER]
    assert [key for key in fake.ended if key in others] == [key for key in whole.ended if key in others]
    for name, group in whole.groups.items():
        if name.startswith(OTHER):
            assert fake.groups[name].desired == group.desired
    assert set(fake.ended) <= set(whole.ended), "nothing is ended because of it"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_member_that_is_broken_for_a_day_changes_nothing_for_the_other_pool(fault: Mapping[str, str]) -> None:
    """It loses an instance every three hours; zones have spot again after the first."""
    whole, fake = two_pools(), two_pools()
    healthy, ports = whole.ports(), broken(fake, fault)
    kept, known = SharedLists(), SharedLists()
    for hour in range(24):
        for each in (whole, fake):
            each.capacity |= {"chat-spot-a": hour % 2, "chat-spot-b": 1}
            if hour % 3 == 0 and (alive := each.alive("chat-spot-a") or each.alive("chat-spot-b")):
                each.lose(alive[0])
        undisturbed = SpotWatchdog(FLEET, healthy, kept).apply()
        disturbed = SpotWatchdog(FLEET, ports, known).apply()
        assert about(disturbed.plan.decisions, OTHER) == about(undisturbed.plan.decisions, OTHER), hour
        for each in (whole, fake):
            for key, status in each.agents.items():
                if status.phase is Phase.CACHE:
                    each.agents[key] = replace(READY, phase_since=each.now)
            each.now = START + timedelta(hours=hour + 1)
    assert fake.launched <= whole.launched + 4, "its fallback"
    sent = [key for key in fake.messages.keys() - whole.messages.keys() if "chat" not in key]
    assert len(sent) <= 8, sent


def test_a_malformed_instance_marks_its_pool_partial_so_idle_ends_nothing_of_it() -> None:
    fake = idling()
    done = idle(broken(fake, {"malformed": instance(2).id}))
    own = [decision for decision in done.plan.decisions if decision.pool == "batch"]
    assert [(one.resource, one.reason, one.detail) for one in own] == [
        (instance(1).id, Reason.NOT_LISTED, f"{instance(2).id} has no zone")
    ]
    assert not set(fake.ended) & {instance(1).id, instance(2).id}


@dataclass
class Senseless(FakeMetrics):
    """All values reported for one instance, and for one pool, are the same invalid one."""

    number: float = 0.0

    def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
        rows = super().query(expression, at)
        odd = instance(2).id
        return [
            (labels, self.number if labels.get("instance_id") == odd or labels.get("pool") == ONE else value)
            for labels, value in rows
        ]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e308, -1e308, -1.0])
def test_invalid_numbers_keep_their_instance_and_do_not_affect_other_pools(number: float) -> None:
    whole, fake = idling(), idling()
    undisturbed = IdleWatchdog(FLEET, whole.ports()).apply()
    disturbed = IdleWatchdog(FLEET, replace(fake.ports(), metrics=Senseless(fake, number))).apply()
    assert about(disturbed.plan.decisions, OTHER) == about(undisturbed.plan.decisions, OTHER)
    assert instance(2).id in whole.ended, "with sound numbers it is ended"
    assert instance(2).id not in fake.ended


@pytest.mark.parametrize(
    ("fault", "resource", "reason"),
    [
        ({"group": A}, A, Reason.GROUP_UNREADABLE),
        ({"unlisted": instance(2).id}, instance(2).id, Reason.NOT_LISTED),
        ({"unreadable": instance(2).id}, instance(2).id, Reason.NOT_LISTED),
        ({"malformed": instance(2).id}, instance(2).id, Reason.NOT_LISTED),
    ],
)
def test_a_broken_member_has_a_decision_and_people_are_notified_once_a_day(
    fault: Mapping[str, str], resource: str, reason: Reason
) -> None:
    fake = losing()
    ports = broken(fake, fault)
    done = spot(ports)
    for _ in range(24 * 4 - 1):
        fake.boot()
        fake.now += timedelta(minutes=15)
        done = spot(ports)
    assert {d.resource: (d.action, d.reason) for d in done.plan.decisions}[resource] == (Action.KEEP, reason)
    assert sum(key.startswith(f"spot:{reason}:") for key in fake.messages) == 1
    assert fake.groups[OD].desired == 1, "what was lost is replaced all the same"
    assert not {i for i in fake.ended if i in (instance(1).id, instance(2).id)}


def test_an_untagged_member_counts_as_present_and_is_not_ended() -> None:
    fake = two_pools()
    ports = broken(fake, {"unlisted": instance(2).id})
    spot(ports)
    assert fake.launched == 0
    fake.targets[ONE] = Target(pool=ONE, value=1, version=2)
    for _ in range(4):
        spot(ports)
        fake.now += timedelta(minutes=1)
    assert fake.ended == [instance(1).id], "the instance with tags is ended"
    fake.targets[ONE] = Target(pool=ONE, value=0, version=3)
    for _ in range(4):
        spot(ports)
        fake.now += timedelta(minutes=1)
    assert fake.ended == [instance(1).id]


def test_pool_with_an_unreadable_group_has_no_voluntary_ends() -> None:
    fake = two_pools()
    fake.targets |= {pool: Target(pool=pool, value=1, version=2) for pool in (ONE, OTHER)}
    done = spot(broken(fake, {"group": A}))
    assert [i for i in fake.ended if fake.instances[i].pool == ONE] == []
    assert any(d.pool == ONE and d.reason is Reason.GROUP_UNREADABLE for d in done.plan.decisions)
    assert [fake.instances[i].pool for i in fake.ended] == [OTHER]


# lists that all pools share


def failing(fake: FakeFleet, *calls: str) -> None:
    def before(name: str) -> None:
        if name in calls:
            raise CloudError("throttled")

    fake.before = before


@pytest.mark.parametrize("is_daemon", [True, False], ids=["a daemon", "a process for each pass"])
@pytest.mark.parametrize("call", ["instances", "groups", "statuses"])
def test_a_shared_list_that_fails_ends_nothing_and_the_last_one_serves_for_five_minutes(
    call: str, is_daemon: bool
) -> None:
    fake, lists = two_pools(), SharedLists()

    def watch() -> Any:
        return SpotWatchdog(FLEET, fake.ports(), lists if is_daemon else None).apply()

    watch()
    fake.targets[OTHER] = Target(pool=OTHER, value=1, version=2)
    fake.lose(instance(1).id)
    fake.now += timedelta(minutes=1)
    failing(fake, call)
    done = watch()
    assert not fake.ended
    assert {d.reason for d in done.plan.decisions if d.pool == OTHER and d.action is Action.KEEP} >= {
        Reason.LIST_INCOMPLETE
    }
    if call != "groups":
        assert fake.groups[OD].desired == 1, "what was lost is replaced"
    fake.now += timedelta(minutes=5)
    with pytest.raises(CloudError, match="throttled"):
        watch()
    fake.before = lambda _: None
    watch()
    assert len(fake.ended) == 1


def test_a_process_that_has_read_no_list_fails() -> None:
    fake = losing()
    failing(fake, "instances")
    with pytest.raises(CloudError, match="throttled"):
        spot(fake.ports())
    assert fake.launched == 0


def test_half_a_list_ends_nothing_even_of_a_group_that_cannot_be_read() -> None:
    fake = two_pools()
    ports = broken(fake, {"group": A, "unlisted": instance(2).id})
    fake.targets[ONE] = Target(pool=ONE, value=1, version=2)
    spot(ports)
    assert not [i for i in fake.ended if i in (instance(1).id, instance(2).id)]


def test_unfinished_end_of_an_unreadable_instance_stays_open() -> None:
    fake = losing()
    fake.agents[instance(2).id] = replace(READY, phase_since=START)
    terminated = instance(2).id
    fake.intents["spot", terminated] = Decision(
        resource=terminated, pool=ONE, action=Action.END, reason=Reason.SURPLUS
    )
    done = spot(broken(fake, {"unreadable": terminated}))
    assert ("spot", terminated) in fake.intents
    assert fake.groups["chat-od"].desired == 1 and done.plan.acting is not None
