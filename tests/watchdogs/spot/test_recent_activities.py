"""Which groups are asked what happened to them, and from when on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpufleet.domain.activity import Activity, ActivityKind, CloudError, GroupActivities
from gpufleet.domain.model import CapacityType, Group
from tests.fixtures.watchdogs.plain import START
from watchdogs.observe.activities import LATE, OVERLAP, RecentActivities, is_stable

SINCE = START - timedelta(days=3)
MINUTE = timedelta(minutes=1)
STABLE = Group(
    name="a", pool="p", capacity_type=CapacityType.SPOT, zone="z", desired=1, min=0, max=4, instance_ids=("i-1",)
)


@dataclass
class Asked:
    """Groups that return a given answer, and record the start times of reads."""

    answer: Sequence[Activity] = ()
    since: list[datetime] = field(default_factory=list[datetime])
    broken: bool = False

    def activities(self, names: Sequence[str], since: datetime) -> Sequence[Activity]:
        self.since.append(since)
        if self.broken:
            raise CloudError("throttled")
        return [event for event in self.answer if event.group in names and event.at >= since]


def look(happened: RecentActivities, *asked: Any) -> dict[str, str]:
    """The first look of a pass."""
    happened.begin()
    return happened.read_new(*asked)


def event(id_: str, at: datetime, kind: ActivityKind = ActivityKind.NO_CAPACITY) -> Activity:
    return Activity(id=id_, group="a", kind=kind, at=at)


def test_a_stable_group_is_read_once_if_its_history_is_needed() -> None:
    groups, happened = Asked(), RecentActivities()
    for minute in range(5):
        look(happened, groups, [STABLE], ["a"], SINCE, START + minute * MINUTE)
    assert groups.since == [SINCE]


def test_a_stable_group_whose_history_is_not_needed_is_not_read() -> None:
    groups, happened = Asked(), RecentActivities()
    look(happened, groups, [STABLE], [], SINCE, START)
    assert groups.since == []
    look(happened, groups, [STABLE], ["a"], SINCE, START + MINUTE)
    assert groups.since == [SINCE], "now it is read, from the beginning"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda group: replace(group, desired=2), id="it looks for one"),
        pytest.param(lambda group: replace(group, desired=0, instance_ids=()), id="it is smaller"),
        pytest.param(lambda group: replace(group, instance_ids=("i-2",)), id="another member"),
        pytest.param(lambda group: replace(group, leaving=frozenset({"i-3"})), id="one leaves"),
    ],
)
def test_a_group_that_changed_is_asked_since_the_last_time(change: Callable[[Group], Group]) -> None:
    groups, happened = Asked(), RecentActivities()
    look(happened, groups, [STABLE], ["a"], SINCE, START)
    look(happened, groups, [change(STABLE)], ["a"], SINCE, START + MINUTE)
    assert groups.since == [SINCE, START - OVERLAP]


def test_a_group_that_did_not_answer_is_asked_until_no_answer_can_come_any_more() -> None:
    groups, happened = Asked(), RecentActivities()
    look(happened, groups, [STABLE], ["a"], SINCE, START)
    happened.silent("a", START)
    for seconds in (1, LATE.total_seconds(), LATE.total_seconds() + 1):
        look(happened, groups, [STABLE], [], SINCE, START + timedelta(seconds=seconds))
    assert len(groups.since) == 3


def test_a_group_that_was_made_smaller_raises_no_question() -> None:
    groups, happened = Asked(), RecentActivities()
    look(happened, groups, [STABLE], ["a"], SINCE, START)
    happened.resized("a")
    happened.shrunk("a", 0)
    look(happened, groups, [replace(STABLE, desired=0)], ["a"], SINCE, START + MINUTE)
    assert len(groups.since) == 2, "it still has one, and ends it"
    look(happened, groups, [replace(STABLE, instance_ids=(), desired=0)], ["a"], SINCE, START + MINUTE)
    assert len(groups.since) == 3, "and that one has left"
    happened.shrunk("a", 0)
    look(happened, groups, [replace(STABLE, instance_ids=(), desired=0)], ["a"], SINCE, START + MINUTE)
    assert len(groups.since) == 3


def test_activities_read_while_waiting_are_not_read_again() -> None:
    groups, happened = Asked(), RecentActivities()
    asking = replace(STABLE, desired=2)
    look(happened, groups, [asking], ["a"], SINCE, START)
    happened.resized("a")
    happened.wait(groups, [asking], START)
    happened.read_new(groups, [asking], ["a"], SINCE, START)
    assert len(groups.since) == 2
    look(happened, groups, [asking], ["a"], SINCE, START + MINUTE)
    assert len(groups.since) == 3


def test_an_open_launch_is_read_again_from_its_begin_and_replaced() -> None:
    began = START - 3 * OVERLAP
    groups, happened = Asked(answer=[event("1", began, ActivityKind.IN_PROGRESS)]), RecentActivities()
    look(happened, groups, [STABLE], ["a"], SINCE, START)
    groups.answer = [event("1", began, ActivityKind.FAILED_BOOT)]
    look(happened, groups, [replace(STABLE, desired=2)], ["a"], SINCE, START + MINUTE)
    assert groups.since == [SINCE, began]
    assert [one.kind for one in happened.events(["a"], SINCE)] == [ActivityKind.FAILED_BOOT]


def test_activities_are_kept_within_their_time_span() -> None:
    old = event("old", SINCE + MINUTE)
    groups, happened = Asked(answer=[old, event("new", START)]), RecentActivities()
    look(happened, groups, [STABLE], ["a"], SINCE, START)
    groups.answer = [event("new", START), event("newer", START + MINUTE)]
    look(happened, groups, [replace(STABLE, desired=2)], ["a"], SINCE, START + MINUTE)
    assert [one.id for one in happened.events(["a"], SINCE)] == ["old", "new", "newer"]
    assert [one.id for one in happened.events(["a"], SINCE + 2 * MINUTE)] == ["new", "newer"]
    assert happened.events(["b"], SINCE) == []


def test_awaited_activities_are_added_to_known_ones() -> None:
    groups, happened = Asked(answer=[event("1", START - 2 * OVERLAP)]), RecentActivities()
    look(happened, groups, [STABLE], ["a"], SINCE, START)
    groups.answer = [*groups.answer, event("2", START)]
    happened.wait(groups, [replace(STABLE, desired=2)], START)
    assert [one.id for one in happened.events(["a"], SINCE)] == ["1", "2"]


def test_a_group_that_cannot_be_asked_keeps_what_is_known_and_is_asked_again() -> None:
    groups, happened = Asked(answer=[event("1", START)]), RecentActivities()
    look(happened, groups, [STABLE], ["a"], SINCE, START)
    groups.broken, wanting = True, replace(STABLE, desired=2)
    assert look(happened, groups, [wanting], [], SINCE, START + MINUTE) == {"a": "throttled"}
    happened.wait(groups, [wanting], START + MINUTE)
    assert [one.id for one in happened.events(["a"], SINCE)] == ["1"]
    groups.broken = False
    assert look(happened, groups, [wanting], [], SINCE, START + MINUTE) == {}
    assert len(groups.since) == 4


@pytest.mark.parametrize(
    ("group", "wanted", "expected"),
    [
        (STABLE, 1, True),
        (STABLE, 2, False),
        (replace(STABLE, desired=2), 1, False),
        (replace(STABLE, desired=0), 0, False),
    ],
)
def test_a_complete_pool_is_stable(group: Group, wanted: int, expected: bool) -> None:
    assert is_stable({"a": group}, ["a", "missing"], wanted) is expected


def test_activity_that_spans_two_reads_is_kept() -> None:
    """A launch that its hook gave up has the time of that end, and groups list it by the time it began."""
    cancelled = replace(event("1", START + OVERLAP / 2, ActivityKind.FAILED_BOOT), instance_id="i-1")
    groups, happened = Asked([cancelled]), RecentActivities()
    look(happened, groups, [STABLE], ["a"], SINCE, START + OVERLAP)
    groups.answer = ()
    look(happened, groups, [replace(STABLE, desired=2)], ["a"], SINCE, START + OVERLAP + MINUTE)
    assert len(groups.since) == 2
    assert happened.events(["a"], SINCE) == [cancelled]


def test_a_new_process_continues_where_the_previous_one_stopped() -> None:
    """By what the ledger keeps: the same is asked, from the same moment on, and the same is known."""
    kept: dict[str, GroupActivities] = {}

    def moments(*, of_its_own: bool) -> tuple[list[datetime], list[Activity]]:
        groups, happened = Asked(answer=[event("1", START - MINUTE), event("2", START + MINUTE)]), RecentActivities()
        kept.clear()
        for minute, group in enumerate([STABLE, STABLE, replace(STABLE, desired=2), STABLE, STABLE]):
            happened = RecentActivities() if of_its_own else happened
            happened.recall(lambda: list(kept.values()))
            look(happened, groups, [group], ["a"], SINCE, START + minute * MINUTE)
            if minute == 2:
                happened.silent("a", START + minute * MINUTE)
            for one in happened.unsaved():
                before = kept[one.group].events if one.group in kept else ()
                kept[one.group] = replace(one, events=(*before, *one.events))
            happened.saved()
        return groups.since, happened.events(["a"], SINCE)

    since, known = moments(of_its_own=False)
    assert (since, known) == moments(of_its_own=True)
    assert (len(since), [one.id for one in known]) == (4, ["1", "2", "unanswered:a"])


def test_known_activities_are_not_saved_again() -> None:
    groups, happened = Asked(answer=[event("1", START - MINUTE)]), RecentActivities()
    look(happened, groups, [STABLE], ["a"], SINCE, START)
    assert [len(one.events) for one in happened.unsaved()] == [1]
    happened.saved()
    look(happened, groups, [STABLE], ["a"], SINCE, START + MINUTE)
    assert happened.unsaved() == [], "it was not asked"
    look(happened, groups, [replace(STABLE, desired=2)], ["a"], SINCE, START + 2 * MINUTE)
    assert [len(one.events) for one in happened.unsaved()] == [0], "it was read, without new activities"


def test_a_clock_that_was_ahead_skips_nothing() -> None:
    groups, happened = Asked(), RecentActivities()
    look(happened, groups, [STABLE], ["a"], SINCE, START + timedelta(hours=9))
    look(happened, groups, [replace(STABLE, desired=2)], ["a"], SINCE, START)
    look(happened, groups, [STABLE], ["a"], SINCE, START + MINUTE)
    assert groups.since == [SINCE, SINCE, START - OVERLAP]
