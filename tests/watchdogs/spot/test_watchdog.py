"""Passes of the spot watchdog over a small world."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from gpufleet.domain.activity import ActivityKind, CloudError
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Action, OutcomeKind, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType, Phase
from tests.fixtures.watchdogs.plain import READY, START, document, instance, left_booting
from tests.fixtures.watchdogs.worlds import KilledError, World, idle_world
from watchdogs import boots
from watchdogs.policy import digests
from watchdogs.spot.watchdog import SpotWatchdog
from watchdogs.spot.zones import pause

A, B, OD = "batch-spot-a", "batch-spot-b", "batch-od"
SETTINGS = {"idle": {}, "spot": {"fallback_after": "20s", "hold": "15m"}}
TAKEN = replace(READY, phase=Phase.DRAINING, ready=False, draining=True, drain_by=DrainOwner.CLOUD, notice_at=START)


def watchdog(world: World, **pool: object) -> SpotWatchdog:
    """One whose policy was seen."""
    fleet = document(**({"watchdogs": SETTINGS} | pool))
    world.seen.add(("spot", "batch", digests(fleet, "spot")["batch"]))
    return SpotWatchdog(fleet, world.ports())


def spread_world() -> World:
    """Two ready spot instances, one in each zone; no capacity but on demand."""
    world = idle_world(2)
    first, second = (instance(n).id for n in (1, 2))
    world.instances[second] = replace(world.instances[second], group=B, zone="us-east-1b")
    world.groups[A] = replace(world.groups[A], desired=1, instance_ids=(first,))
    world.groups[B] = replace(world.groups[B], desired=1, instance_ids=(second,))
    for key in world.agents:
        world.agents[key] = replace(READY, phase_since=world.now - timedelta(hours=1))
    world.capacity = {A: 0, B: 0, OD: 2}
    return world


def fail_boot(world: World, key: str) -> None:
    """It was launched ten minutes ago, and its agent says that it gave up."""
    world.instances[key] = replace(world.instances[key], launched_at=world.now - timedelta(minutes=10))
    world.agents[key] = replace(READY, phase=Phase.FAILED, ready=False)


def failed_boots(world: World, group: str) -> list[str]:
    """Whose boots failed in a group, by the ledger."""
    return [
        boot.instance_id
        for boot in world.boots.values()
        if boot.group == group and boots.failed(boot, spot=group != OD)
    ]


def sizes(world: World) -> tuple[int, int, int]:
    return world.groups[A].desired, world.groups[B].desired, world.groups[OD].desired


def test_as_wanted_nothing_is_done() -> None:
    world = spread_world()
    done = watchdog(world).apply()
    assert not done.plan.acting and not done.outcomes
    assert {d.resource: d.reason for d in done.plan.decisions} == {
        A: Reason.AS_WANTED,
        B: Reason.AS_WANTED,
        OD: Reason.AS_WANTED,
    }


def test_a_loss_is_replaced_in_another_zone_before_anything_is_bought() -> None:
    world = spread_world()
    world.capacity[B] = 1
    world.lose(instance(1).id)
    watchdog(world).apply()
    assert sizes(world) == (0, 2, 0)
    assert len(world.alive(B)) == 2


def test_no_zone_has_spot_so_on_demand_stands_in_within_one_pass_and_goes_back_after_the_hold() -> None:
    world = spread_world()
    dog = watchdog(world)
    world.lose(instance(1).id)
    dog.apply()
    assert sizes(world) == (0, 1, 1)
    assert any("no zone has spot capacity" in text and "0.80 USD/h" in text for text in world.messages.values())
    world.boot()

    world.now += timedelta(minutes=30)
    still = dog.apply()
    assert sizes(world) == (0, 1, 1)
    assert {d.resource: d.reason for d in still.plan.decisions}[OD] is Reason.FALLBACK

    world.capacity[A] = 1
    world.now += timedelta(minutes=1)
    dog.apply()
    assert sizes(world) == (1, 1, 1)
    world.boot()
    world.now += timedelta(minutes=14)
    held = dog.apply()
    assert sizes(world) == (1, 1, 1)
    assert {d.resource: d.reason for d in held.plan.decisions}[OD] is Reason.HOLDING_FALLBACK

    world.now += timedelta(minutes=2)
    gone = world.alive(OD)
    dog.apply()
    assert sizes(world) == (1, 1, 0)
    assert world.drains == gone == world.ended


def test_a_long_drain_holds_no_fallback_up_and_is_ended_once() -> None:
    """One of two on demand is given back, its drain takes half an hour; meanwhile spot is lost."""
    world = spread_world()
    dog = watchdog(world, drain_deadline="1h")
    world.lose(instance(1).id)
    dog.apply()
    world.boot()
    world.capacity[A], world.drain_takes = 1, timedelta(minutes=30)
    world.now += timedelta(minutes=5)
    dog.apply()
    world.boot()
    world.now += timedelta(minutes=20)
    began, (gone,) = world.now, world.alive(OD)
    done = dog.apply()
    assert world.now - began < timedelta(minutes=3), "the lease is free again"
    assert [(o.decision.resource, o.kind) for o in done.outcomes] == [(gone, OutcomeKind.WAITING)]
    world.lose(instance(2).id)
    while world.now < began + timedelta(minutes=40):
        dog.apply()
        world.boot()
        if world.now < began + timedelta(minutes=29):
            assert world.alive(OD)[:1] == [gone] and world.drains == [gone]
            assert len(world.alive(OD)) == 2, "it drains, another one stands in"
        world.now += timedelta(minutes=1)
    assert (world.drains, world.ended) == ([gone], [gone])
    assert sizes(world) == (1, 0, 1)
    assert sum(gone in text for text in world.messages.values()) == 1


def test_a_dry_market_is_said_once_and_asked_after_growing_pauses() -> None:
    """Forty passes of half a minute with no spot anywhere, then some comes back."""
    world = spread_world()
    dog = watchdog(world)
    world.lose(instance(1).id)
    asked: dict[str, list[datetime]] = {A: [], B: []}
    for _ in range(40):
        for outcome in dog.apply().outcomes:
            if outcome.decision.reason is Reason.SPOT_WANTED and outcome.decision.action is Action.RESIZE:
                asked[outcome.decision.resource].append(world.now)
        world.boot()
        world.now += timedelta(seconds=30)
    assert sizes(world) == (0, 1, 1)
    assert sum("no spot capacity" in text for text in world.messages.values()) == 1
    for zone, times in asked.items():
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert 3 <= len(times) <= 8, f"{zone} was asked {len(times)} times in 40 passes"
        assert gaps[0] <= timedelta(minutes=1)
        assert gaps == sorted(gaps)
        assert max(gaps) <= timedelta(minutes=6)
    world.capacity |= {A: 5, B: 5}
    for _ in range(12):
        dog.apply()
        world.now += timedelta(seconds=30)
    assert sum(sizes(world)[:2]) == 2


@pytest.mark.parametrize(
    ("refusals", "minutes"),
    [
        pytest.param(0, 0, id="never"),
        pytest.param(1, 0.5, id="once"),
        pytest.param(2, 1, id="twice"),
        pytest.param(4, 4, id="four times"),
        pytest.param(5, 5, id="at most a quarter of the back-off"),
        pytest.param(100_000, 5, id="for ever"),
    ],
)
def test_a_pause_doubles_up_to_its_limit(refusals: int, minutes: float) -> None:
    assert pause(refusals, timedelta(minutes=20)) == timedelta(minutes=minutes)


def test_one_is_given_back_at_a_time() -> None:
    world = spread_world()
    dog = watchdog(world)
    world.lose(instance(1).id)
    world.lose(instance(2).id)
    dog.apply()
    assert sizes(world) == (0, 0, 2)
    world.capacity |= {A: 1, B: 1}
    world.boot()
    world.now += timedelta(minutes=1)
    dog.apply()
    world.boot()
    world.now += timedelta(minutes=16)
    dog.apply()
    assert sizes(world) == (1, 1, 1)
    dog.apply()
    assert sizes(world) == (1, 1, 0)


def test_a_group_that_does_not_answer_is_taken_for_a_refusal() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.activities.clear()
    world.groups[A] = replace(world.groups[A], desired=1)
    quiet = world.reconcile
    world.reconcile = lambda name: quiet(name) if name == OD else None  # type: ignore[method-assign]
    before = world.now
    watchdog(world).apply()
    assert sizes(world) == (0, 1, 1)
    assert timedelta(seconds=20) <= world.now - before < timedelta(seconds=90)


def test_an_instance_under_notice_is_replaced_at_once_and_ended_when_it_has_drained() -> None:
    world = spread_world()
    first = instance(1).id
    world.agents[first] = TAKEN
    dog = watchdog(world)
    dog.apply()
    assert sizes(world) == (1, 1, 1)
    world.agents[first] = replace(world.agents[first], phase=Phase.DRAINED, drained=True)
    dog.apply()
    assert sizes(world) == (0, 1, 1)
    assert world.ended == [first]


def test_what_its_group_is_ending_already_is_left_to_it() -> None:
    world = spread_world()
    world.lingers = True
    first = instance(1).id
    world.agents[first] = replace(TAKEN, phase=Phase.DRAINED, drained=True)
    dog = watchdog(world)
    dog.apply()
    assert (world.ended, sizes(world)) == ([first], (0, 1, 1))
    again = dog.apply()
    assert first not in {decision.resource for decision in again.plan.decisions}
    assert (world.ended, sizes(world)) == ([first], (0, 1, 1))
    assert world.alive(A) == [first]

    world.now += timedelta(hours=2)
    world.capacity[A] = 1
    world.boot()
    dog.apply()
    assert sizes(world) == (1, 1, 1), "its place in the group is free, though it lives"
    assert world.launched == 2


@pytest.mark.parametrize("calls", [pytest.param(n, id=f"before call {n} after the end") for n in (1, 2)])
@pytest.mark.parametrize("lingers", [True, False])
def test_an_end_of_a_killed_pass_is_settled(calls: int, lingers: bool) -> None:
    """Also while its group still ends the instance; and the boot that failed counts for its group."""
    world = spread_world()
    world.lingers = lingers
    first = instance(1).id
    fail_boot(world, first)
    dog, left = watchdog(world), [calls]

    def kill(_: str) -> None:
        left[0] -= bool(world.ended)
        if left[0] == 0:
            raise KilledError

    world.before = kill
    with pytest.raises(KilledError):
        dog.apply()
    world.before = lambda _: None
    assert list(world.intents) == [first]
    done = dog.apply()
    assert world.ended == [first] and not world.intents
    assert (first, OutcomeKind.DONE) in {(outcome.decision.resource, outcome.kind) for outcome in done.outcomes}
    assert f"spot:ended:{first}" in world.messages
    assert failed_boots(world, A) == [first]


def test_an_end_whose_group_left_the_settings_fails_no_later_pass() -> None:
    """The cloud cannot be asked about a group that the fleet does not know any more."""
    world = spread_world()
    first = instance(1).id
    world.agents[first] = replace(READY, phase=Phase.FAILED, ready=False)
    dog = watchdog(world)
    world.kill_at("end", dog.apply)
    assert list(world.intents) == [first]
    world.instances[first] = replace(world.instances[first], group="batch-left-over")
    world.groups[A] = replace(world.groups[A], instance_ids=tuple(world.alive(A)))
    done = dog.apply()
    assert (first, OutcomeKind.NO_LONGER_TRUE) in {(o.decision.resource, o.kind) for o in done.outcomes}
    assert first not in world.ended


@pytest.mark.parametrize("second", range(1, 30))
@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_a_failed_boot_counts_once_however_often_its_passes_are_killed(first: int, second: int) -> None:
    """Killed so many calls after the end, and then, before so many, the pass that would settle it."""
    world = spread_world()
    one = instance(1).id
    fail_boot(world, one)
    for calls in (first, second):
        left = [calls]

        def kill(_: str, left: list[int] = left) -> None:
            left[0] -= bool(world.ended)
            if left[0] == 0:
                raise KilledError

        world.before = kill
        with suppress(KilledError):
            watchdog(world).apply()
        world.now += timedelta(minutes=1)
    world.before = lambda _: None
    watchdog(world).apply()
    assert world.ended == [one] and not world.intents
    assert failed_boots(world, A) == [one]


def test_what_a_killed_pass_did_not_end_and_people_keep_now_is_not_told_as_ended() -> None:
    world = spread_world()
    first = instance(1).id
    fail_boot(world, first)
    world.kill_at("end", watchdog(world).apply)
    assert list(world.intents) == [first]
    world.brakes.append(
        Brake(since=START, kind=BrakeKind.KEEP, scope=first, owner="ana", reason="a look", until=None)
    )
    done = watchdog(world).apply()
    assert not world.ended and not world.intents
    kinds = [outcome.kind for outcome in done.outcomes if outcome.decision.resource == first]
    assert kinds == [OutcomeKind.NO_LONGER_TRUE]
    assert f"spot:ended:{first}" not in world.messages
    assert not failed_boots(world, A), "it may boot yet"


@pytest.mark.parametrize(
    ("owner", "least", "brakes", "bought"),
    [
        pytest.param(DrainOwner.IDLE, 0, (), (1, 1, 0), id="idle: the target falls with it"),
        pytest.param(DrainOwner.IDLE, 2, (), (1, 1, 1), id="idle: the target is at the pool's min"),
        pytest.param(DrainOwner.IDLE, 0, (BrakeKind.TARGET,), (1, 1, 1), id="idle: a person holds the target"),
        pytest.param(DrainOwner.IDLE, 0, (BrakeKind.KEEP,), (1, 1, 1), id="idle: a person keeps what drains"),
        pytest.param(DrainOwner.PERSON, 0, (), (1, 1, 1), id="a person"),
    ],
)
def test_what_the_idle_watchdog_drains_is_replaced_only_where_the_target_stays(
    owner: DrainOwner, least: int, brakes: Sequence[BrakeKind], bought: tuple[int, int, int]
) -> None:
    world = spread_world()
    world.brakes += [
        Brake(since=START, kind=kind, scope="batch", owner="ana", reason="launch", until=None) for kind in brakes
    ]
    world.agents[instance(1).id] = replace(READY, phase=Phase.DRAINING, ready=False, draining=True, drain_by=owner)
    watchdog(world, min=least).apply()
    assert sizes(world) == bought


def test_the_zone_under_notice_is_asked_last() -> None:
    world = spread_world()
    first = instance(1).id
    world.agents[first] = TAKEN
    world.capacity |= {A: 5, B: 5}
    watchdog(world).apply()
    assert sizes(world) == (1, 2, 0)


def test_a_quota_is_no_lack_of_capacity_and_no_other_zone_is_asked() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.happened(B, ActivityKind.QUOTA, None)
    world.capacity[B] = 3
    done = watchdog(world).apply()
    assert sizes(world) == (0, 1, 1)
    assert {d.resource: d.reason for d in done.plan.decisions}[B] is Reason.QUOTA
    assert any("quota" in text for text in world.messages.values())


@pytest.mark.parametrize(
    ("kind", "reason", "said"),
    [
        pytest.param(ActivityKind.QUOTA, Reason.QUOTA, "", id="its quota: people must raise it"),
        pytest.param(ActivityKind.NO_CAPACITY, Reason.FALLBACK, "1 requested, the cloud refuses", id="no machine"),
    ],
)
def test_on_demand_that_is_refused_is_not_told_to_be_on_its_way(
    kind: ActivityKind, reason: Reason, said: str
) -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.capacity[OD] = 0
    world.reconcile = lambda name: world.happened(name, kind if name == OD else ActivityKind.NO_CAPACITY, None)  # type: ignore[method-assign]
    dog = watchdog(world)
    for _ in range(5):
        done = dog.apply()
        world.now += timedelta(minutes=1)
        decision = {d.resource: d for d in done.plan.decisions}[OD]
        assert decision.reason is reason and decision.detail.startswith(said) and decision.usd_per_hour is None
    alerts = [text for key, text in world.messages.items() if key.startswith("spot:alert:")]
    assert len(alerts) == (1 if kind is ActivityKind.QUOTA else 0)
    assert all(OD in text and "quota reached" in text for text in alerts)


@pytest.mark.parametrize("group", [A, OD])
def test_each_way_of_buying_has_its_own_quota(group: str) -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.happened(group, ActivityKind.QUOTA, None)
    world.capacity |= {B: 1}
    watchdog(world).apply()
    assert sizes(world)[1:] == ((1, 1) if group == A else (2, 0))


def test_three_failed_boots_stop_a_groups_growth() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.boots = {boot.key: boot for boot in left_booting(A, 5, 15, 25, why=ActivityKind.FAILED_BOOT)}
    world.capacity |= {A: 3, B: 0}
    done = watchdog(world).apply()
    assert sizes(world) == (0, 1, 1)
    assert {d.resource: d.reason for d in done.plan.decisions}[A] is Reason.BOOTS_FAILING
    assert any("boots keep failing" in text for text in world.messages.values())


def test_a_failed_boot_is_replaced_by_one_that_is_asked_for_where_there_is_spot() -> None:
    world = spread_world()
    first = instance(1).id
    world.agents[first] = replace(READY, phase=Phase.FAILED, ready=False)
    world.capacity[B] = 5
    watchdog(world).apply()
    assert world.ended == [first]
    assert sizes(world) == (0, 2, 0)


def test_a_failed_boot_is_replaced_without_lowering_its_group() -> None:
    """Of a reserved group, which runs in full: its size says how much is paid for."""
    world = spread_world()
    first = instance(1).id
    world.instances[first] = replace(world.instances[first], group="batch-res", capacity_type=CapacityType.RESERVED)
    world.groups["batch-res"] = replace(world.groups[A], name="batch-res", capacity_type=CapacityType.RESERVED)
    world.groups[A] = replace(world.groups[A], desired=0, instance_ids=())
    world.agents[first] = replace(READY, phase=Phase.FAILED, ready=False)
    groups = [
        {"type": "reserved", "zone": "us-east-1a", "name": "batch-res", "max": 1, "reservation": "cr-1"},
        {"type": "spot", "zone": "us-east-1b", "name": B, "max": 4, "machine_types": ["g6.xlarge"]},
    ]
    done = watchdog(world, groups=groups).apply()
    assert (first, Action.REPLACE) in {(d.resource, d.action) for d in done.plan.acting}
    assert world.ended == [first] and world.groups["batch-res"].desired == 1


def test_a_lower_target_ends_the_marked_one_drained() -> None:
    world = spread_world()
    world.targets["batch"] = replace(world.targets["batch"], value=1)
    from tests.fixtures.watchdogs.worlds import mark

    mark(world, 2, world.now)
    watchdog(world).apply()
    assert world.ended == [instance(2).id] == world.drains
    assert sizes(world) == (1, 0, 0)


@pytest.mark.parametrize("scope", ["all", "batch"])
def test_paused_nothing_moves(scope: str) -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.brakes.append(
        Brake(since=START, kind=BrakeKind.PAUSE, scope=scope, owner="ana", reason="freeze", until=None)
    )
    done = watchdog(world).apply()
    assert not done.plan.acting
    assert {d.reason for d in done.plan.decisions} == {Reason.PAUSED}


def test_an_unseen_policy_moves_nothing() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    done = SpotWatchdog(document(watchdogs=SETTINGS), world.ports()).apply()
    assert not done.plan.acting
    assert Reason.POLICY_UNSEEN in {d.reason for d in done.plan.decisions}


def test_reserved_capacity_runs_in_full() -> None:
    world = spread_world()
    groups = [
        {"type": "reserved", "zone": "us-east-1a", "name": "batch-res", "max": 1, "reservation": "cr-1"},
        {"type": "spot", "zone": "us-east-1a", "name": A, "max": 4, "machine_types": ["g6.xlarge"]},
        {"type": "spot", "zone": "us-east-1b", "name": B, "max": 4, "machine_types": ["g6.xlarge"]},
        {"type": "on-demand", "zone": None, "name": OD, "max": 2, "machine_types": ["g6.xlarge"]},
    ]
    world.groups["batch-res"] = replace(world.groups[A], name="batch-res", desired=0, instance_ids=())
    world.groups["batch-res"] = replace(world.groups["batch-res"], capacity_type=CapacityType.RESERVED)
    world.capacity["batch-res"] = 1
    done = watchdog(world, groups=groups).apply()
    assert world.groups["batch-res"].desired == 1
    assert OutcomeKind.DONE in {outcome.kind for outcome in done.outcomes}


@pytest.mark.parametrize(
    ("given", "bought"), [pytest.param(1, 0, id="it starts"), pytest.param(0, 1, id="the cloud refuses it")]
)
def test_reserved_capacity_answers_before_anything_is_bought_beside_it(given: int, bought: int) -> None:
    world = idle_world(1)
    world.instances.clear()
    groups = [
        {"type": "reserved", "zone": "us-east-1a", "name": "batch-res", "max": 1, "reservation": "cr-1"},
        {"type": "on-demand", "zone": None, "name": OD, "max": 2, "machine_types": ["g6.xlarge"]},
    ]
    empty = replace(world.groups[A], desired=0, instance_ids=())
    world.groups["batch-res"] = replace(empty, name="batch-res", capacity_type=CapacityType.RESERVED)
    world.capacity = {"batch-res": given, OD: 2}
    watchdog(world, groups=groups, target=1).apply()
    assert (world.groups["batch-res"].desired, world.groups[OD].desired) == (1, bought)


@pytest.mark.parametrize("call", ["instances", "groups", "targets", "brakes", "statuses"])
def test_a_part_of_the_picture_is_no_picture(call: str) -> None:
    world = spread_world()
    world.lose(instance(1).id)

    def before(called: str) -> None:
        if called == call:
            raise CloudError("half a page")

    world.before = before
    with pytest.raises(CloudError, match="half a page"):
        watchdog(world).apply()
    assert sizes(world) == (1, 1, 0) and not world.ended
