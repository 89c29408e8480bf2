"""Refusals that do not pass, sentences that nobody knows, and processes of a group that are suspended."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Action, Outcome, OutcomeKind, Reason
from gpufleet.domain.model import SuspendedProcess
from tests.fixtures.watchdogs.plain import START, document, instance
from tests.fixtures.watchdogs.worlds import World
from tests.watchdogs.spot.test_watchdog import OD, SETTINGS, A, B, sizes, spread_world, watchdog
from watchdogs.spot import lifecycle, view_builder
from watchdogs.spot.watchdog import SpotWatchdog

MINUTE = timedelta(minutes=1)
LASTING = [ActivityKind.UNSUPPORTED, ActivityKind.PERMISSION, ActivityKind.CONFIGURATION]
LAUNCH_BY_PERSON = SuspendedProcess(process="Launch", reason="User suspended at 2026-11-20", by_cloud=False)
LAUNCH_BY_CLOUD = SuspendedProcess(process="Launch", reason="Administratively suspended", by_cloud=True)


def refused(world: World, group: str, kind: ActivityKind, detail: str = "the cloud's words") -> None:
    world.happened(group, kind, None)
    world.activities[-1] = replace(world.activities[-1], detail=detail)


def refusing(world: World, group: str, kind: ActivityKind) -> list[int]:
    """The group refuses each ask in this way; how often it was asked."""
    asked: list[int] = []
    quiet = world.reconcile

    def reconcile(name: str) -> None:
        if name != group:
            quiet(name)
        elif world.groups[name].desired > len(world.groups[name].instance_ids):
            asked.append(world.groups[name].desired)
            refused(world, name, kind)

    world.reconcile = reconcile  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("kind", LASTING)
def test_a_zone_that_refuses_for_good_is_not_asked_again_and_people_are_notified_once(kind: ActivityKind) -> None:
    world = spread_world()
    asked = refusing(world, B, kind)
    world.lose(instance(1).id)
    dog = watchdog(world)
    done = dog.apply()
    for _ in range(200):
        world.boot()
        world.now += timedelta(minutes=30)
        done = dog.apply()
    assert len(asked) == 1
    decision = {d.resource: d for d in done.plan.decisions}[B]
    assert (decision.action, decision.reason) == (Action.KEEP, Reason.CANNOT_LAUNCH)
    assert kind.sentence in decision.detail and "the cloud's words" in decision.detail
    assert world.groups[OD].desired == 1
    (text,) = (text for key, text in world.messages.items() if key.startswith("spot:cannot_launch:"))
    assert "gpufleet resume batch" in text and kind.sentence in text


def resume(world: World) -> None:
    said = lifecycle.fixed("batch", "ana")
    world.outcomes.append((world.now, Outcome(decision=said, kind=OutcomeKind.DONE, detail=said.detail)))


@pytest.mark.parametrize("by", ["a person", "new settings"])
def test_it_is_asked_again_when_something_was_changed(by: str) -> None:
    world = spread_world()
    asked = refusing(world, B, ActivityKind.PERMISSION)
    world.lose(instance(1).id)
    watchdog(world).apply()
    world.now += timedelta(hours=1)
    watchdog(world).apply()
    assert len(asked) == 1
    world.now += MINUTE
    fleet = document(watchdogs=SETTINGS)
    if by == "a person":
        resume(world)
    else:
        origin = fleet.generated_by.model_copy(update={"at": world.now})
        fleet = fleet.model_copy(update={"generated_by": origin})
    world.now += MINUTE
    SpotWatchdog(fleet, world.ports()).apply()
    assert len(asked) == 2


def test_on_demand_that_is_refused_for_good_is_not_asked_for_again() -> None:
    world = spread_world()
    asked = refusing(world, OD, ActivityKind.CONFIGURATION)
    world.lose(instance(1).id)
    dog = watchdog(world)
    done = dog.apply()
    for _ in range(5):
        world.now += timedelta(minutes=5)
        done = dog.apply()
    assert len(asked) == 1 and world.groups[OD].desired == 0
    assert {d.resource: d.reason for d in done.plan.decisions}[OD] is Reason.CANNOT_LAUNCH


@pytest.mark.parametrize("kind", [ActivityKind.THROTTLED, ActivityKind.LATER, ActivityKind.RESERVATION_FULL])
def test_what_is_no_answer_about_a_zone_does_not_close_it(kind: ActivityKind) -> None:
    world = spread_world()
    world.capacity[B] = 1
    refused(world, "batch-res" if kind is ActivityKind.RESERVATION_FULL else B, kind)
    world.lose(instance(1).id)
    watchdog(world).apply()
    assert sizes(world) == (0, 2, 0)


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
    ids=["refused", "launched since", "another machine type", "last", "throttled since", "before the change", "calm"],
)
def test_the_last_answer_counts(events: list[Activity], closed: bool) -> None:
    assert (view_builder.refused_for_good("a", events, [], START) is not None) is closed


def test_a_sentence_that_nobody_knows_is_reported_once_with_its_text_and_is_no_lack_of_capacity() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.activities.clear()
    for number in (1, 2, 3):
        refused(world, A, ActivityKind.UNKNOWN, f"Launch of i-0{number} failed at 10:0{number}: the moon is full.")
        refused(world, B, ActivityKind.UNKNOWN, "Something else.")
    dog = watchdog(world)
    done = dog.apply()
    for _ in range(5):
        world.now += MINUTE
        done = dog.apply()
    texts = [text for key, text in world.messages.items() if key.startswith("spot:unknown:")]
    assert len(texts) == 2
    assert any("the moon is full" in text for text in texts)
    spot = {d.reason for d in done.plan.decisions if d.resource in (A, B)}
    assert Reason.CANNOT_LAUNCH not in spot


def test_a_group_that_its_cloud_suspended_is_resumed_when_it_is_asked() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.capacity[B] = 1
    world.groups[B] = replace(world.groups[B], suspended=(LAUNCH_BY_CLOUD,))
    calls: list[str] = []
    world.before = calls.append
    done = watchdog(world).apply()
    assert sizes(world) == (0, 2, 0)
    assert calls.index("resume_processes") < calls.index("resize", calls.index("resume_processes"))
    assert any("Administratively suspended" in text for text in world.messages.values())
    assert any("suspended by its cloud" in d.detail for plan in world.plans for d in plan.decisions)
    assert done.plan


def test_a_group_that_a_person_suspended_is_not_touched() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.capacity |= {A: 0, B: 5}
    world.groups[B] = replace(world.groups[B], suspended=(LAUNCH_BY_PERSON,))
    calls: list[str] = []
    world.before = calls.append
    done = watchdog(world).apply()
    for _ in range(3):
        world.boot()
        world.now += timedelta(hours=1)
        done = watchdog(world).apply()
    assert sizes(world)[1:] == (1, 1) and "resume_processes" not in calls
    decision = {d.resource: d for d in done.plan.decisions}[B]
    assert (decision.action, decision.reason) == (Action.KEEP, Reason.SUSPENDED)
    assert "User suspended" in decision.detail
    assert sum(key.startswith("spot:suspended:") for key in world.messages) == 1


def test_another_process_that_a_person_suspended_is_only_shown() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.capacity[B] = 1
    world.groups[B] = replace(world.groups[B], suspended=(replace(LAUNCH_BY_PERSON, process="HealthCheck"),))
    watchdog(world).apply()
    assert sizes(world) == (0, 2, 0)
    assert any("HealthCheck is suspended by a person" in text for text in world.messages.values())
