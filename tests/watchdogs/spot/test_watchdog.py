"""Passes of the spot watchdog over a fake fleet."""

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
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, KilledError, idle_fleet
from tests.fixtures.watchdogs.plain import READY, START, document, instance, left_booting
from tests.fixtures.watchdogs.spot import OD, SETTINGS, A, B, make_watchdog, sizes, spread_fleet
from watchdogs import boots
from watchdogs.spot.watchdog import SpotWatchdog
from watchdogs.spot.zones import refusal_pause

TAKEN = replace(READY, phase=Phase.DRAINING, ready=False, draining=True, drain_by=DrainOwner.CLOUD, notice_at=START)


def fail_boot(fake: FakeFleet, key: str) -> None:
    """It was launched ten minutes ago, and its agent says that it gave up."""
    fake.instances[key] = replace(fake.instances[key], launched_at=fake.now - timedelta(minutes=10))
    fake.agents[key] = replace(READY, phase=Phase.FAILED, ready=False)


def failed_boots(fake: FakeFleet, group: str) -> list[str]:
    """Whose boots failed in a group, by the ledger."""
    return [
        boot.instance_id
        for boot in fake.boots.values()
        if boot.group == group and boots.failed(boot, spot=group != OD)
    ]


def test_complete_pool_needs_no_action() -> None:
    fake = spread_fleet()
    done = make_watchdog(fake).apply()
    assert not done.plan.acting and not done.outcomes
    assert {d.resource: d.reason for d in done.plan.decisions} == {
        A: Reason.AS_WANTED,
        B: Reason.AS_WANTED,
        OD: Reason.AS_WANTED,
    }


def test_loss_is_replaced_in_another_zone_before_on_demand() -> None:
    fake = spread_fleet()
    fake.capacity[B] = 1
    fake.lose(instance(1).id)
    make_watchdog(fake).apply()
    assert sizes(fake) == (0, 2, 0)
    assert len(fake.alive(B)) == 2


def test_on_demand_replaces_missing_spot_in_one_pass_and_ends_after_the_hold() -> None:
    fake = spread_fleet()
    watchdog = make_watchdog(fake)
    fake.lose(instance(1).id)
    watchdog.apply()
    assert sizes(fake) == (0, 1, 1)
    assert any("no zone has spot capacity" in text and "0.80 USD/h" in text for text in fake.messages.values())
    fake.boot()

    fake.now += timedelta(minutes=30)
    still = watchdog.apply()
    assert sizes(fake) == (0, 1, 1)
    assert {d.resource: d.reason for d in still.plan.decisions}[OD] is Reason.FALLBACK

    fake.capacity[A] = 1
    fake.now += timedelta(minutes=1)
    watchdog.apply()
    assert sizes(fake) == (1, 1, 1)
    fake.boot()
    fake.now += timedelta(minutes=14)
    held = watchdog.apply()
    assert sizes(fake) == (1, 1, 1)
    assert {d.resource: d.reason for d in held.plan.decisions}[OD] is Reason.HOLDING_FALLBACK

    fake.now += timedelta(minutes=2)
    ended = fake.alive(OD)
    watchdog.apply()
    assert sizes(fake) == (1, 1, 0)
    assert fake.drains == ended == fake.ended


def test_a_long_drain_holds_no_fallback_up_and_is_ended_once() -> None:
    """One of two on demand is given back, its drain takes half an hour; meanwhile spot is lost."""
    fake = spread_fleet()
    watchdog = make_watchdog(fake, drain_deadline="1h")
    fake.lose(instance(1).id)
    watchdog.apply()
    fake.boot()
    fake.capacity[A], fake.drain_takes = 1, timedelta(minutes=30)
    fake.now += timedelta(minutes=5)
    watchdog.apply()
    fake.boot()
    fake.now += timedelta(minutes=20)
    began, (ended,) = fake.now, fake.alive(OD)
    done = watchdog.apply()
    assert fake.now - began < timedelta(minutes=3), "the lease is free again"
    assert [(o.decision.resource, o.kind) for o in done.outcomes] == [(ended, OutcomeKind.WAITING)]
    fake.lose(instance(2).id)
    while fake.now < began + timedelta(minutes=40):
        watchdog.apply()
        fake.boot()
        if fake.now < began + timedelta(minutes=29):
            assert fake.alive(OD)[:1] == [ended] and fake.drains == [ended]
            assert len(fake.alive(OD)) == 2, "it drains, another one replaces it"
        fake.now += timedelta(minutes=1)
    assert (fake.drains, fake.ended) == ([ended], [ended])
    assert sizes(fake) == (1, 0, 1)
    assert sum(ended in text for text in fake.messages.values()) == 1


def test_a_market_without_capacity_notifies_once_and_is_asked_after_growing_pauses() -> None:
    """Forty passes of half a minute with no spot anywhere, then some comes back."""
    fake = spread_fleet()
    watchdog = make_watchdog(fake)
    fake.lose(instance(1).id)
    asked: dict[str, list[datetime]] = {A: [], B: []}
    for _ in range(40):
        for outcome in watchdog.apply().outcomes:
            if outcome.decision.reason is Reason.SPOT_WANTED and outcome.decision.action is Action.RESIZE:
                asked[outcome.decision.resource].append(fake.now)
        fake.boot()
        fake.now += timedelta(seconds=30)
    assert sizes(fake) == (0, 1, 1)
    assert sum("no spot capacity" in text for text in fake.messages.values()) == 1
    for zone, times in asked.items():
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert 3 <= len(times) <= 8, f"{zone} was asked {len(times)} times in 40 passes"
        assert gaps[0] <= timedelta(minutes=1)
        assert gaps == sorted(gaps)
        assert max(gaps) <= timedelta(minutes=6)
    fake.capacity |= {A: 5, B: 5}
    for _ in range(12):
        watchdog.apply()
        fake.now += timedelta(seconds=30)
    assert sum(sizes(fake)[:2]) == 2


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
    assert refusal_pause(refusals, timedelta(minutes=20)) == timedelta(minutes=minutes)


def test_on_demand_instances_end_one_at_a_time() -> None:
    fake = spread_fleet()
    watchdog = make_watchdog(fake)
    fake.lose(instance(1).id)
    fake.lose(instance(2).id)
    watchdog.apply()
    assert sizes(fake) == (0, 0, 2)
    fake.capacity |= {A: 1, B: 1}
    fake.boot()
    fake.now += timedelta(minutes=1)
    watchdog.apply()
    fake.boot()
    fake.now += timedelta(minutes=16)
    watchdog.apply()
    assert sizes(fake) == (1, 1, 1)
    watchdog.apply()
    assert sizes(fake) == (1, 1, 0)


def test_a_group_that_does_not_answer_is_taken_for_a_refusal() -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    fake.activities.clear()
    fake.groups[A] = replace(fake.groups[A], desired=1)
    quiet = fake.reconcile
    fake.reconcile = lambda name: quiet(name) if name == OD else None  # type: ignore[method-assign]
    before = fake.now
    make_watchdog(fake).apply()
    assert sizes(fake) == (0, 1, 1)
    assert timedelta(seconds=20) <= fake.now - before < timedelta(seconds=90)


def test_an_instance_under_notice_is_replaced_at_once_and_ended_when_it_has_drained() -> None:
    fake = spread_fleet()
    first = instance(1).id
    fake.agents[first] = TAKEN
    watchdog = make_watchdog(fake)
    watchdog.apply()
    assert sizes(fake) == (1, 1, 1)
    fake.agents[first] = replace(fake.agents[first], phase=Phase.DRAINED, drained=True)
    watchdog.apply()
    assert sizes(fake) == (0, 1, 1)
    assert fake.ended == [first]


def test_instance_that_its_group_already_ends_is_left_to_it() -> None:
    fake = spread_fleet()
    fake.lingers = True
    first = instance(1).id
    fake.agents[first] = replace(TAKEN, phase=Phase.DRAINED, drained=True)
    watchdog = make_watchdog(fake)
    watchdog.apply()
    assert (fake.ended, sizes(fake)) == ([first], (0, 1, 1))
    again = watchdog.apply()
    assert first not in {decision.resource for decision in again.plan.decisions}
    assert (fake.ended, sizes(fake)) == ([first], (0, 1, 1))
    assert fake.alive(A) == [first]

    fake.now += timedelta(hours=2)
    fake.capacity[A] = 1
    fake.boot()
    watchdog.apply()
    assert sizes(fake) == (1, 1, 1), "its place in the group is free, although it still runs"
    assert fake.launched == 2


@pytest.mark.parametrize("calls", [pytest.param(n, id=f"before call {n} after the end") for n in (1, 2)])
@pytest.mark.parametrize("lingers", [True, False])
def test_end_of_a_killed_pass_is_recorded_by_the_next(calls: int, lingers: bool) -> None:
    """Also while its group still ends the instance; and the boot that failed counts for its group."""
    fake = spread_fleet()
    fake.lingers = lingers
    first = instance(1).id
    fail_boot(fake, first)
    watchdog, left = make_watchdog(fake), [calls]

    def kill(_: str) -> None:
        left[0] -= bool(fake.ended)
        if left[0] == 0:
            raise KilledError

    fake.before = kill
    with pytest.raises(KilledError):
        watchdog.apply()
    fake.before = lambda _: None
    assert list(fake.intents) == [("spot", first)]
    done = watchdog.apply()
    assert fake.ended == [first] and not fake.intents
    assert (first, OutcomeKind.DONE) in {(outcome.decision.resource, outcome.kind) for outcome in done.outcomes}
    assert f"spot:ended:{first}" in fake.messages
    assert failed_boots(fake, A) == [first]


def test_unfinished_end_of_a_removed_group_does_not_fail_later_passes() -> None:
    """The cloud cannot be asked about a group that the fleet does not know any more."""
    fake = spread_fleet()
    first = instance(1).id
    fake.agents[first] = replace(READY, phase=Phase.FAILED, ready=False)
    watchdog = make_watchdog(fake)
    fake.kill_at("end", watchdog.apply)
    assert list(fake.intents) == [("spot", first)]
    fake.instances[first] = replace(fake.instances[first], group="batch-left-over")
    fake.groups[A] = replace(fake.groups[A], instance_ids=tuple(fake.alive(A)))
    done = watchdog.apply()
    assert (first, OutcomeKind.NO_LONGER_TRUE) in {(o.decision.resource, o.kind) for o in done.outcomes}
    assert first not in fake.ended


@pytest.mark.parametrize("second", range(1, 30))
@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_a_failed_boot_counts_once_however_often_its_passes_are_killed(first: int, second: int) -> None:
    """Killed so many calls after the end, and then, before so many, the pass that would resolve it."""
    fake = spread_fleet()
    one = instance(1).id
    fail_boot(fake, one)
    for calls in (first, second):
        left = [calls]

        def kill(_: str, left: list[int] = left) -> None:
            left[0] -= bool(fake.ended)
            if left[0] == 0:
                raise KilledError

        fake.before = kill
        with suppress(KilledError):
            make_watchdog(fake).apply()
        fake.now += timedelta(minutes=1)
    fake.before = lambda _: None
    make_watchdog(fake).apply()
    assert fake.ended == [one] and not fake.intents
    assert failed_boots(fake, A) == [one]


def test_a_kept_instance_of_an_unfinished_end_is_not_reported_as_ended() -> None:
    fake = spread_fleet()
    first = instance(1).id
    fail_boot(fake, first)
    fake.kill_at("end", make_watchdog(fake).apply)
    assert list(fake.intents) == [("spot", first)]
    fake.brakes.append(Brake(since=START, kind=BrakeKind.KEEP, scope=first, owner="ana", reason="a look", until=None))
    done = make_watchdog(fake).apply()
    assert not fake.ended and not fake.intents
    kinds = [outcome.kind for outcome in done.outcomes if outcome.decision.resource == first]
    assert kinds == [OutcomeKind.NO_LONGER_TRUE]
    assert f"spot:ended:{first}" not in fake.messages
    assert not failed_boots(fake, A), "it may boot yet"


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
def test_instance_drained_by_idle_is_replaced_only_if_the_target_stays(
    owner: DrainOwner, least: int, brakes: Sequence[BrakeKind], bought: tuple[int, int, int]
) -> None:
    fake = spread_fleet()
    fake.brakes += [
        Brake(since=START, kind=kind, scope="batch", owner="ana", reason="launch", until=None) for kind in brakes
    ]
    fake.agents[instance(1).id] = replace(READY, phase=Phase.DRAINING, ready=False, draining=True, drain_by=owner)
    make_watchdog(fake, min=least).apply()
    assert sizes(fake) == bought


def test_the_zone_under_notice_is_asked_last() -> None:
    fake = spread_fleet()
    first = instance(1).id
    fake.agents[first] = TAKEN
    fake.capacity |= {A: 5, B: 5}
    make_watchdog(fake).apply()
    assert sizes(fake) == (1, 2, 0)


def test_a_quota_is_not_missing_capacity_and_no_other_zone_is_asked() -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    fake.happened(B, ActivityKind.QUOTA, None)
    fake.capacity[B] = 3
    done = make_watchdog(fake).apply()
    assert sizes(fake) == (0, 1, 1)
    assert {d.resource: d.reason for d in done.plan.decisions}[B] is Reason.QUOTA
    assert any("quota" in text for text in fake.messages.values())


@pytest.mark.parametrize(
    ("kind", "reason", "detail"),
    [
        pytest.param(ActivityKind.QUOTA, Reason.QUOTA, "", id="its quota: people must raise it"),
        pytest.param(ActivityKind.NO_CAPACITY, Reason.FALLBACK, "1 requested, the cloud refuses", id="no machine"),
    ],
)
def test_refused_on_demand_is_not_reported_as_requested(kind: ActivityKind, reason: Reason, detail: str) -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    fake.capacity[OD] = 0
    fake.reconcile = lambda name: fake.happened(name, kind if name == OD else ActivityKind.NO_CAPACITY, None)  # type: ignore[method-assign]
    watchdog = make_watchdog(fake)
    for _ in range(5):
        done = watchdog.apply()
        fake.now += timedelta(minutes=1)
        decision = {d.resource: d for d in done.plan.decisions}[OD]
        assert decision.reason is reason and decision.detail.startswith(detail) and decision.usd_per_hour is None
    alerts = [text for key, text in fake.messages.items() if key.startswith("spot:alert:")]
    assert len(alerts) == (1 if kind is ActivityKind.QUOTA else 0)
    assert all(OD in text and "quota reached" in text for text in alerts)


@pytest.mark.parametrize("group", [A, OD])
def test_each_way_of_buying_has_its_own_quota(group: str) -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    fake.happened(group, ActivityKind.QUOTA, None)
    fake.capacity |= {B: 1}
    make_watchdog(fake).apply()
    assert sizes(fake)[1:] == ((1, 1) if group == A else (2, 0))


def test_three_failed_boots_stop_a_groups_growth() -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    fake.boots = {boot.key: boot for boot in left_booting(A, 5, 15, 25, why=ActivityKind.FAILED_BOOT)}
    fake.capacity |= {A: 3, B: 0}
    done = make_watchdog(fake).apply()
    assert sizes(fake) == (0, 1, 1)
    assert {d.resource: d.reason for d in done.plan.decisions}[A] is Reason.BOOTS_FAILING
    assert any("boots keep failing" in text for text in fake.messages.values())


def test_a_failed_boot_is_replaced_by_one_that_is_asked_for_where_there_is_spot() -> None:
    fake = spread_fleet()
    first = instance(1).id
    fake.agents[first] = replace(READY, phase=Phase.FAILED, ready=False)
    fake.capacity[B] = 5
    make_watchdog(fake).apply()
    assert fake.ended == [first]
    assert sizes(fake) == (0, 2, 0)


def test_a_failed_boot_is_replaced_without_lowering_its_group() -> None:
    """Of a reserved group, which runs in full: its size says how much is paid for."""
    fake = spread_fleet()
    first = instance(1).id
    fake.instances[first] = replace(fake.instances[first], group="batch-res", capacity_type=CapacityType.RESERVED)
    fake.groups["batch-res"] = replace(fake.groups[A], name="batch-res", capacity_type=CapacityType.RESERVED)
    fake.groups[A] = replace(fake.groups[A], desired=0, instance_ids=())
    fake.agents[first] = replace(READY, phase=Phase.FAILED, ready=False)
    groups = [
        {"type": "reserved", "zone": "us-east-1a", "name": "batch-res", "max": 1, "reservation": "cr-1"},
        {"type": "spot", "zone": "us-east-1b", "name": B, "max": 4, "machine_types": ["g6.xlarge"]},
    ]
    done = make_watchdog(fake, groups=groups).apply()
    assert (first, Action.REPLACE) in {(d.resource, d.action) for d in done.plan.acting}
    assert fake.ended == [first] and fake.groups["batch-res"].desired == 1


def test_a_lower_target_ends_the_marked_one_drained() -> None:
    fake = spread_fleet()
    fake.targets["batch"] = replace(fake.targets["batch"], value=1)
    from tests.fixtures.watchdogs.fake_fleet import mark

    mark(fake, 2, fake.now)
    make_watchdog(fake).apply()
    assert fake.ended == [instance(2).id] == fake.drains
    assert sizes(fake) == (1, 0, 0)


@pytest.mark.parametrize("scope", ["all", "batch"])
def test_paused_pool_has_no_actions(scope: str) -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    fake.brakes.append(
        Brake(since=START, kind=BrakeKind.PAUSE, scope=scope, owner="ana", reason="freeze", until=None)
    )
    done = make_watchdog(fake).apply()
    assert not done.plan.acting
    assert {d.reason for d in done.plan.decisions} == {Reason.PAUSED}


def test_an_unseen_policy_moves_nothing() -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    done = SpotWatchdog(document(watchdogs=SETTINGS), fake.ports()).apply()
    assert not done.plan.acting
    assert Reason.POLICY_UNSEEN in {d.reason for d in done.plan.decisions}


def test_reserved_capacity_runs_in_full() -> None:
    fake = spread_fleet()
    groups = [
        {"type": "reserved", "zone": "us-east-1a", "name": "batch-res", "max": 1, "reservation": "cr-1"},
        {"type": "spot", "zone": "us-east-1a", "name": A, "max": 4, "machine_types": ["g6.xlarge"]},
        {"type": "spot", "zone": "us-east-1b", "name": B, "max": 4, "machine_types": ["g6.xlarge"]},
        {"type": "on-demand", "zone": None, "name": OD, "max": 2, "machine_types": ["g6.xlarge"]},
    ]
    fake.groups["batch-res"] = replace(fake.groups[A], name="batch-res", desired=0, instance_ids=())
    fake.groups["batch-res"] = replace(fake.groups["batch-res"], capacity_type=CapacityType.RESERVED)
    fake.capacity["batch-res"] = 1
    done = make_watchdog(fake, groups=groups).apply()
    assert fake.groups["batch-res"].desired == 1
    assert OutcomeKind.DONE in {outcome.kind for outcome in done.outcomes}


@pytest.mark.parametrize(
    ("given", "bought"), [pytest.param(1, 0, id="it starts"), pytest.param(0, 1, id="the cloud refuses it")]
)
def test_reserved_capacity_answers_before_anything_else_is_bought(given: int, bought: int) -> None:
    fake = idle_fleet(1)
    fake.instances.clear()
    groups = [
        {"type": "reserved", "zone": "us-east-1a", "name": "batch-res", "max": 1, "reservation": "cr-1"},
        {"type": "on-demand", "zone": None, "name": OD, "max": 2, "machine_types": ["g6.xlarge"]},
    ]
    empty = replace(fake.groups[A], desired=0, instance_ids=())
    fake.groups["batch-res"] = replace(empty, name="batch-res", capacity_type=CapacityType.RESERVED)
    fake.capacity = {"batch-res": given, OD: 2}
    make_watchdog(fake, groups=groups, target=1).apply()
    assert (fake.groups["batch-res"].desired, fake.groups[OD].desired) == (1, bought)


@pytest.mark.parametrize("call", ["instances", "groups", "targets", "brakes", "statuses"])
def test_an_incomplete_observation_fails_the_pass(call: str) -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)

    def before(called: str) -> None:
        if called == call:
            raise CloudError("half a page")

    fake.before = before
    with pytest.raises(CloudError, match="half a page"):
        make_watchdog(fake).apply()
    assert sizes(fake) == (1, 1, 0) and not fake.ended
