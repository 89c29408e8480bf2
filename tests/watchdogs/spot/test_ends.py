"""Reasons of ends that the group does not state."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpufleet.domain.activity import Activity, ActivityKind, CloudError
from gpufleet.domain.boots import Boot
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.domain.model import InstanceState
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.plain import START, instance
from tests.fixtures.watchdogs.spot import A, make_watchdog, spread_fleet
from watchdogs import boots
from watchdogs.observe.end_reasons import ASK_AGAIN, DESCRIBED_FOR, ended_why

K = ActivityKind
MINUTE = timedelta(minutes=1)
FIRST = instance(1).id


@pytest.mark.parametrize(
    ("kind", "lost", "by_us", "stated", "why"),
    [
        pytest.param(K.ENDED_UNSTATED, False, False, None, K.ENDED_UNSTATED, id="no stated cause"),
        pytest.param(K.ENDED_UNSTATED, False, False, K.ENDED_UNSTATED, K.ENDED_UNSTATED, id="it powered off"),
        pytest.param(K.ENDED_UNSTATED, False, False, K.PREEMPTED, K.PREEMPTED, id="EC2 took it"),
        pytest.param(K.ENDED_UNSTATED, False, False, K.ENDED_BY_PERSON, K.ENDED_BY_PERSON, id="a person ended it"),
        pytest.param(K.ENDED_UNSTATED, False, False, K.UNHEALTHY, K.UNHEALTHY, id="EC2 failed"),
        pytest.param(
            K.ENDED_UNSTATED,
            False,
            True,
            K.ENDED_BY_PERSON,
            K.ENDED,
            id="a watchdog ended it: EC2 cannot distinguish it",
        ),
        pytest.param(K.ENDED_UNSTATED, False, True, None, K.ENDED, id="we ended it, EC2 has forgotten it"),
        pytest.param(K.ENDED_UNSTATED, False, True, K.PREEMPTED, K.PREEMPTED, id="EC2 was quicker than we"),
        pytest.param(K.ENDED_UNSTATED, True, False, None, K.PREEMPTED, id="under notice"),
        pytest.param(K.ENDED_UNSTATED, True, False, K.ENDED_BY_PERSON, K.PREEMPTED, id="a person, under notice"),
        pytest.param(K.ENDED, True, True, None, K.PREEMPTED, id="ended by us under notice"),
        pytest.param(K.ENDED, False, True, None, K.ENDED, id="ended by us"),
        pytest.param(K.ENDED, False, False, K.ENDED_BY_PERSON, K.ENDED, id="its group states more than EC2"),
        pytest.param(K.FAILED_BOOT, True, False, None, K.PREEMPTED, id="its boot was over under notice"),
        pytest.param(K.FAILED_BOOT, False, True, None, K.FAILED_BOOT, id="its boot failed, and we ended it"),
        pytest.param(K.UNHEALTHY, False, False, K.ENDED_BY_PERSON, K.UNHEALTHY, id="unhealthy"),
        pytest.param(K.LAUNCHED, True, False, K.PREEMPTED, K.LAUNCHED, id="its launch"),
        pytest.param(K.NO_CAPACITY, True, True, K.PREEMPTED, K.NO_CAPACITY, id="a refusal"),
        pytest.param(K.UNKNOWN, False, False, K.PREEMPTED, K.UNKNOWN, id="an unknown message"),
    ],
)
def test_end_cause_from_activity_and_description(kind: K, lost: bool, by_us: bool, stated: K | None, why: K) -> None:
    assert ended_why(kind, lost=lost, by_us=by_us, stated=stated) is why


def with_end(ago: timedelta = MINUTE, stated: K | None = None) -> FakeFleet:
    """The first instance left; its group says what it says of all that did not go through it."""
    fleet = spread_fleet()
    event = Activity(id="1", group=A, kind=K.ENDED_UNSTATED, at=START - ago, instance_id=FIRST)
    fleet.activities.append(event)
    there = fleet.instances[FIRST]
    fleet.instances[FIRST] = replace(there, state=InstanceState.TERMINATED, end_reason=stated)
    fleet.groups[A] = replace(fleet.groups[A], instance_ids=())
    return fleet


def kinds(fleet: FakeFleet) -> list[K]:
    (pool,) = make_watchdog(fleet).dry().observed
    return [event.kind for event in pool.events if event.instance_id == FIRST]


@pytest.mark.parametrize("stated", [K.PREEMPTED, K.ENDED_BY_PERSON, K.UNHEALTHY])
def test_the_description_states_the_reason(stated: K) -> None:
    assert kinds(with_end(stated=stated)) == [stated]


def test_an_unexplained_end_stays_unstated() -> None:
    assert kinds(with_end()) == [K.ENDED_UNSTATED]


def test_end_by_another_watchdog_is_known() -> None:
    fleet = with_end(stated=K.ENDED_BY_PERSON)
    ended = Decision(resource=FIRST, pool="batch", action=Action.END, reason=Reason.SURPLUS)
    fleet.record_outcome("spot", Outcome(decision=ended, kind=OutcomeKind.DONE), START - 2 * MINUTE)
    assert kinds(fleet) == [K.ENDED]


def test_recorded_end_cause_is_used_when_the_cloud_has_forgotten_it() -> None:
    fleet = with_end(ago=2 * DESCRIBED_FOR)
    del fleet.instances[FIRST]
    seen = Boot(
        instance_id=FIRST, pool="batch", group=A, machine_type="g6.xlarge", launched_at=START - 9 * DESCRIBED_FOR,
        first_seen_at=START - 9 * DESCRIBED_FOR, last_seen_at=START - 9 * DESCRIBED_FOR, ended_why=K.ENDED_BY_PERSON,
    )  # fmt: skip
    fleet.boots[seen.key] = seen
    assert kinds(fleet) == [K.ENDED_BY_PERSON]


@pytest.mark.parametrize(
    ("ago", "calls"),
    [pytest.param(MINUTE, 1, id="lately"), pytest.param(DESCRIBED_FOR, 0, id="EC2 has forgotten it")],
)
def test_end_descriptions_are_read_at_most_once_per_interval(ago: timedelta, calls: int) -> None:
    fleet, made = with_end(ago), list[str]()
    fleet.before = made.append
    watchdog = make_watchdog(fleet)
    for _ in range(3):
        watchdog.dry()
    assert made.count("ended") == calls
    fleet.now += ASK_AGAIN
    watchdog.dry()
    assert made.count("ended") == 2 * calls


def test_descriptions_that_cannot_be_read_stop_nothing() -> None:
    def fail(call: str) -> None:
        if call == "ended":
            raise CloudError("ec2:describe_instances was refused")

    fleet = with_end(stated=K.PREEMPTED)
    fleet.before = fail
    assert kinds(fleet) == [K.ENDED_UNSTATED]


def test_an_unexplained_spot_end_is_replaced_and_not_a_failed_boot() -> None:
    fleet = with_end()
    plan = make_watchdog(fleet).dry().plan
    assert [d.reason for d in plan.acting if d.action is Action.RESIZE] == [Reason.SPOT_WANTED]
    assert not any(d.reason in (Reason.BOOTS_FAILING, Reason.BOOT_FAILED) for d in plan.decisions)


@pytest.mark.parametrize(
    ("stated", "failed"),
    [
        pytest.param(None, False, id="no stated cause"),
        pytest.param(K.ENDED_UNSTATED, True, id="it powered itself off"),
        pytest.param(K.PREEMPTED, False, id="EC2 took it"),
        pytest.param(K.ENDED_BY_PERSON, False, id="a person ended it"),
    ],
)
def test_a_spot_end_during_boot_is_a_failure_only_by_its_description(stated: K | None, *, failed: bool) -> None:
    fleet = spread_fleet()
    fleet.agents.pop(FIRST)
    fleet.instances[FIRST] = replace(fleet.instances[FIRST], launched_at=START - 3 * MINUTE)
    make_watchdog(fleet).apply()
    fleet.now += MINUTE
    event = Activity(id="1", group=A, kind=K.ENDED_UNSTATED, at=fleet.now, instance_id=FIRST)
    fleet.activities.append(event)
    there = fleet.instances[FIRST]
    fleet.instances[FIRST] = replace(there, state=InstanceState.TERMINATED, end_reason=stated)
    fleet.groups[A] = replace(fleet.groups[A], instance_ids=())
    make_watchdog(fleet).apply()
    (boot,) = [boot for boot in fleet.boots.values() if boot.instance_id == FIRST]
    assert boot.left_at == fleet.now and boots.failed(boot, spot=True) is failed
