"""Refusals that do not pass, sentences that nobody knows, and processes of a group that are suspended."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Action, Outcome, OutcomeKind, Reason
from gpufleet.domain.model import SuspendedProcess
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.plain import START, document, instance
from tests.fixtures.watchdogs.spot import OD, SETTINGS, A, B, make_watchdog, sizes, spread_fleet
from watchdogs.spot import lifecycle, view_builder
from watchdogs.spot.watchdog import SpotWatchdog

MINUTE = timedelta(minutes=1)
LASTING = [ActivityKind.UNSUPPORTED, ActivityKind.PERMISSION, ActivityKind.CONFIGURATION]
LAUNCH_BY_PERSON = SuspendedProcess(process="Launch", reason="User suspended at 2026-11-20", by_cloud=False)
LAUNCH_BY_CLOUD = SuspendedProcess(process="Launch", reason="Administratively suspended", by_cloud=True)


def refused(fake: FakeFleet, group: str, kind: ActivityKind, detail: str = "the message of the cloud") -> None:
    fake.happened(group, kind, None)
    fake.activities[-1] = replace(fake.activities[-1], detail=detail)


def refusing(fake: FakeFleet, group: str, kind: ActivityKind) -> list[int]:
    """The group refuses each ask in this way; how often it was asked."""
    asked: list[int] = []
    quiet = fake.reconcile

    def reconcile(name: str) -> None:
        if name != group:
            quiet(name)
        elif fake.groups[name].desired > len(fake.groups[name].instance_ids):
            asked.append(fake.groups[name].desired)
            refused(fake, name, kind)

    fake.reconcile = reconcile  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("kind", LASTING)
def test_a_zone_that_refuses_for_good_is_not_asked_again_and_people_are_notified_once(kind: ActivityKind) -> None:
    fake = spread_fleet()
    asked = refusing(fake, B, kind)
    fake.lose(instance(1).id)
    watchdog = make_watchdog(fake)
    done = watchdog.apply()
    for _ in range(200):
        fake.boot()
        fake.now += timedelta(minutes=30)
        done = watchdog.apply()
    assert len(asked) == 1
    decision = {d.resource: d for d in done.plan.decisions}[B]
    assert (decision.action, decision.reason) == (Action.KEEP, Reason.CANNOT_LAUNCH)
    assert kind.sentence in decision.detail and "the message of the cloud" in decision.detail
    assert fake.groups[OD].desired == 1
    (text,) = (text for key, text in fake.messages.items() if key.startswith("spot:cannot_launch:"))
    assert "gpufleet resume batch" in text and kind.sentence in text


def resume(fake: FakeFleet) -> None:
    note = lifecycle.retry_requested("batch", "ana")
    outcome = Outcome(decision=note, kind=OutcomeKind.DONE, detail=note.detail)
    fake.record_outcome("spot", outcome, fake.now)


@pytest.mark.parametrize("by", ["a person", "new settings"])
def test_refused_group_is_requested_again_after_a_change(by: str) -> None:
    fake = spread_fleet()
    asked = refusing(fake, B, ActivityKind.PERMISSION)
    fake.lose(instance(1).id)
    make_watchdog(fake).apply()
    fake.now += timedelta(hours=1)
    make_watchdog(fake).apply()
    assert len(asked) == 1
    fake.now += MINUTE
    fleet = document(watchdogs=SETTINGS)
    if by == "a person":
        resume(fake)
    else:
        origin = fleet.generated_by.model_copy(update={"at": fake.now})
        fleet = fleet.model_copy(update={"generated_by": origin})
    fake.now += MINUTE
    SpotWatchdog(fleet, fake.ports()).apply()
    assert len(asked) == 2


def test_permanently_refused_on_demand_is_not_requested_again() -> None:
    fake = spread_fleet()
    asked = refusing(fake, OD, ActivityKind.CONFIGURATION)
    fake.lose(instance(1).id)
    watchdog = make_watchdog(fake)
    done = watchdog.apply()
    for _ in range(5):
        fake.now += timedelta(minutes=5)
        done = watchdog.apply()
    assert len(asked) == 1 and fake.groups[OD].desired == 0
    assert {d.resource: d.reason for d in done.plan.decisions}[OD] is Reason.CANNOT_LAUNCH


@pytest.mark.parametrize("kind", [ActivityKind.THROTTLED, ActivityKind.LATER, ActivityKind.RESERVATION_FULL])
def test_activities_other_than_refusals_do_not_close_a_zone(kind: ActivityKind) -> None:
    fake = spread_fleet()
    fake.capacity[B] = 1
    refused(fake, "batch-res" if kind is ActivityKind.RESERVATION_FULL else B, kind)
    fake.lose(instance(1).id)
    make_watchdog(fake).apply()
    assert sizes(fake) == (0, 2, 0)


def event(kind: ActivityKind, minutes: int, detail: str = "") -> Activity:
    return Activity(id=str(minutes), group="a", kind=kind, at=START + minutes * MINUTE, detail=detail)


@pytest.mark.parametrize(
    ("events", "closed"),
    [
        ([event(ActivityKind.UNSUPPORTED, 1)], True),
        ([event(ActivityKind.UNSUPPORTED, 1), event(ActivityKind.LAUNCHED, 2)], False),
        ([event(ActivityKind.UNSUPPORTED, 1), event(ActivityKind.NO_CAPACITY, 2)], False),
        ([event(ActivityKind.NO_CAPACITY, 1), event(ActivityKind.UNSUPPORTED, 2)], True),
        ([event(ActivityKind.UNSUPPORTED, 1), event(ActivityKind.THROTTLED, 2)], True),
        ([event(ActivityKind.UNSUPPORTED, -1)], False),
        ([], False),
    ],
    ids=[
        "refused",
        "launched since",
        "another machine type",
        "last",
        "throttled since",
        "before the change",
        "nothing",
    ],
)
def test_latest_answer_decides_whether_a_group_is_closed(events: list[Activity], closed: bool) -> None:
    assert (view_builder.refused_for_good("a", events, [], START) is not None) is closed


def test_an_unknown_message_is_reported_once_and_does_not_count_as_missing_capacity() -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    fake.activities.clear()
    for number in (1, 2, 3):
        refused(fake, A, ActivityKind.UNKNOWN, f"Launch of i-0{number} failed at 10:0{number}: the moon is full.")
        refused(fake, B, ActivityKind.UNKNOWN, "Something else.")
    watchdog = make_watchdog(fake)
    done = watchdog.apply()
    for _ in range(5):
        fake.now += MINUTE
        done = watchdog.apply()
    texts = [text for key, text in fake.messages.items() if key.startswith("spot:unknown:")]
    assert len(texts) == 2
    assert any("the moon is full" in text for text in texts)
    spot = {d.reason for d in done.plan.decisions if d.resource in (A, B)}
    assert Reason.CANNOT_LAUNCH not in spot


def test_a_group_that_its_cloud_suspended_is_resumed_when_it_is_asked() -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    fake.capacity[B] = 1
    fake.groups[B] = replace(fake.groups[B], suspended=(LAUNCH_BY_CLOUD,))
    calls: list[str] = []
    fake.before = calls.append
    done = make_watchdog(fake).apply()
    assert sizes(fake) == (0, 2, 0)
    assert calls.index("resume_processes") < calls.index("resize", calls.index("resume_processes"))
    assert any("Administratively suspended" in text for text in fake.messages.values())
    assert any("suspended by its cloud" in d.detail for plan in fake.plans for d in plan.decisions)
    assert done.plan


def test_a_group_that_a_person_suspended_is_not_touched() -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    fake.capacity |= {A: 0, B: 5}
    fake.groups[B] = replace(fake.groups[B], suspended=(LAUNCH_BY_PERSON,))
    calls: list[str] = []
    fake.before = calls.append
    done = make_watchdog(fake).apply()
    for _ in range(3):
        fake.boot()
        fake.now += timedelta(hours=1)
        done = make_watchdog(fake).apply()
    assert sizes(fake)[1:] == (1, 1) and "resume_processes" not in calls
    decision = {d.resource: d for d in done.plan.decisions}[B]
    assert (decision.action, decision.reason) == (Action.KEEP, Reason.SUSPENDED)
    assert "User suspended" in decision.detail
    assert sum(key.startswith("spot:suspended:") for key in fake.messages) == 1


def test_another_process_that_a_person_suspended_is_only_shown() -> None:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    fake.capacity[B] = 1
    fake.groups[B] = replace(fake.groups[B], suspended=(replace(LAUNCH_BY_PERSON, process="HealthCheck"),))
    make_watchdog(fake).apply()
    assert sizes(fake) == (0, 2, 0)
    assert any("HealthCheck is suspended by a person" in text for text in fake.messages.values())
