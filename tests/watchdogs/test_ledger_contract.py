"""Contract test of `watchdogs.ports.Ledger`: the ledger on SQLite and on PostgreSQL, and `FakeLedger`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.activity import Activity, ActivityKind, ConflictError, GroupActivities
from gpufleet.domain.boots import Boot
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import (
    Action,
    Decision,
    OpenAttempts,
    Outcome,
    OutcomeKind,
    PastAction,
    Plan,
    Reason,
    Target,
)
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.last_lists import CachedAnswer, LastLists
from gpufleet.domain.model import CapacityType, Group, GroupList, Phase, SuspendedProcess
from gpufleet.ledger import operations
from gpufleet.ledger.fleet import FleetLedger
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.ledgers import create_database
from tests.fixtures.watchdogs.fake_fleet import idle_fleet
from tests.fixtures.watchdogs.fake_ports import FakeLedger
from tests.fixtures.watchdogs.plain import START, instance
from watchdogs.ports import Ledger

_DATABASES = count()
END = Decision(resource="i-1", pool="batch", action=Action.END, reason=Reason.STILL_IDLE, detail="quiet")
LATER = START + timedelta(minutes=1)


@dataclass
class Both:
    """One implementation, with pool `batch` at target 2."""

    ledger: Ledger
    pull: Callable[[Brake], object]
    """What a person does by `gpufleet pause`, `keep` or `target`."""


@pytest.fixture(params=["fake", "sqlite", "postgresql"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Both]:
    if request.param == "fake":
        fleet = idle_fleet(2)
        yield Both(FakeLedger(fleet), fleet.brakes.append)
        return
    url = f"sqlite:///{tmp_path}/ledger.db"
    if request.param == "postgresql":
        url = create_database(request.getfixturevalue("server"), f"contract{next(_DATABASES)}")
    engine = open_ledger(url)
    operations.seed_target(engine, "fleet", "batch", 2, START)
    ledger = FleetLedger(engine, "fleet", "idle", "us")
    assert ledger.take_lease(START) is None
    yield Both(ledger, lambda brake: operations.set_brake(engine, "fleet", brake))
    engine.dispose()


def test_a_target_is_set_by_who_saw_it_last(both: Both) -> None:
    seen = both.ledger.targets()["batch"]
    assert (seen.value, seen.version) == (2, 1)
    there = both.ledger.set_target(seen, 3, "scale", "load", START)
    assert there == replace(seen, value=3, version=2) == both.ledger.targets()["batch"]
    with pytest.raises(ConflictError):
        both.ledger.set_target(seen, 4, "scale", "load", START)


def test_a_target_is_lowered_once_for_each_reason_and_not_below_its_floor(both: Both) -> None:
    lowered = [both.ledger.lower_target("batch", 0, because, START).value for because in ("a", "a", "b", "c")]
    assert lowered == [1, 1, 0, 0]


def test_a_target_that_a_person_holds_is_not_lowered(both: Both) -> None:
    brake = Brake(kind=BrakeKind.TARGET, scope="batch", owner="ann", reason="launch", since=START, until=None)
    both.pull(brake)
    assert both.ledger.lower_target("batch", 0, "a", START).value == 2
    assert [replace(one, id=0) for one in both.ledger.brakes(START)] == [brake]


def test_a_pool_without_a_target_has_none_to_change(both: Both) -> None:
    assert "other" not in both.ledger.targets()
    with pytest.raises(ConflictError):
        both.ledger.set_target(Target(pool="other", value=1, version=1), 2, "scale", "load", START)
    with pytest.raises(ConflictError):
        both.ledger.lower_target("other", 0, "a", START)
    assert "other" not in both.ledger.targets()


def test_a_brake_holds_until_its_end(both: Both) -> None:
    brake = Brake(kind=BrakeKind.TARGET, scope="batch", owner="ann", reason="launch", since=START, until=LATER)
    both.pull(brake)
    assert [one.until for one in both.ledger.brakes(START)] == [LATER]
    assert list(both.ledger.brakes(LATER)) == [], "the end itself is not included"
    assert both.ledger.lower_target("batch", 0, "a", START).value == 2
    assert both.ledger.lower_target("batch", 0, "a", LATER).value == 1, "a held change counts as not made"


def test_brakes_are_in_the_order_in_which_they_were_pulled(both: Both) -> None:
    scopes = ["batch", "all", "i-1"]
    for scope in scopes:
        both.pull(Brake(kind=BrakeKind.PAUSE, scope=scope, owner="ann", reason="x", since=START, until=None))
    assert [one.scope for one in both.ledger.brakes(LATER)] == scopes


def test_a_policy_is_seen_by_its_digest(both: Both) -> None:
    assert not both.ledger.policy_seen("idle", "batch", "x")
    both.ledger.see_policy("idle", "batch", "x", "ann", START)
    assert both.ledger.policy_seen("idle", "batch", "x")
    assert not both.ledger.policy_seen("idle", "batch", "y") and not both.ledger.policy_seen("spot", "batch", "x")


@pytest.mark.parametrize("kind", OutcomeKind)
def test_begun_action_stays_unfinished_until_its_outcome(both: Both, kind: OutcomeKind) -> None:
    both.ledger.record(Plan(watchdog="idle", at=START, decisions=(END,)))
    both.ledger.intend("idle", END, START)
    both.ledger.intend("idle", replace(END, detail="another look"), START)
    assert list(both.ledger.unfinished("idle")) == [END], "the first intent stays"
    error = "refused" if kind is OutcomeKind.FAILED else None
    both.ledger.record_outcome("idle", Outcome(decision=END, kind=kind, error=error), START)
    open_kinds = (OutcomeKind.WAITING, OutcomeKind.FAILED)
    assert list(both.ledger.unfinished("idle")) == ([END] if kind in open_kinds else [])


def test_the_actions_of_each_watchdog_are_separate(both: Both) -> None:
    both.ledger.intend("idle", END, START)
    both.ledger.intend("spot", replace(END, reason=Reason.SURPLUS), START)
    both.ledger.record_outcome("idle", Outcome(decision=END, kind=OutcomeKind.FAILED, error="refused"), START)
    both.ledger.record_outcome("spot", Outcome(decision=END, kind=OutcomeKind.DONE), START)
    assert list(both.ledger.unfinished("idle")) == [END] and list(both.ledger.unfinished("spot")) == []
    assert both.ledger.ended_since("idle", START) == {} and list(both.ledger.done_since("idle", START)) == []
    assert both.ledger.ended_since("spot", START) == {"batch": 1} and len(both.ledger.done_since("spot", START)) == 1
    assert both.ledger.open_attempts_since("spot", START) == {} and both.ledger.open_attempts_since(
        "idle", START
    ).keys() == {"i-1"}


def test_unfinished_actions_are_oldest_first(both: Both) -> None:
    begun = [replace(END, resource=name) for name in ("i-9", "i-2", "i-5")]
    for decision, at in zip(begun, (LATER, START, START), strict=True):
        both.ledger.intend("idle", decision, at)
    assert [one.resource for one in both.ledger.unfinished("idle")] == ["i-2", "i-5", "i-9"]


def test_an_end_counts_once_and_every_stop_counts(both: Both) -> None:
    stop = replace(END, resource="i-2", action=Action.STOP)
    for at in (START, LATER):
        for decision in (END, stop):
            both.ledger.record_outcome("idle", Outcome(decision=decision, kind=OutcomeKind.DONE), at)
    assert both.ledger.ended_since("idle", START) == {"batch": 3}
    assert both.ledger.ended_since("idle", LATER) == {"batch": 1}, "the end that was recorded before"


def test_done_actions_are_oldest_first_whatever_was_recorded_first(both: Both) -> None:
    for resource, at in (("i-1", LATER), ("i-2", START)):
        decision = replace(END, resource=resource)
        both.ledger.record_outcome("idle", Outcome(decision=decision, kind=OutcomeKind.DONE), at)
    assert [past.resource for past in both.ledger.done_since("idle", START)] == ["i-2", "i-1"]


def test_done_actions_are_counted_since_a_time(both: Both) -> None:
    stop = replace(END, resource="i-2", action=Action.STOP, pool=None)
    for decision, kind, at in (
        (END, OutcomeKind.DONE, START),
        (replace(END, action=Action.MARK), OutcomeKind.DONE, START),
        (stop, OutcomeKind.DONE, LATER),
        (replace(END, resource="i-3"), OutcomeKind.NO_LONGER_TRUE, LATER),
    ):
        both.ledger.record_outcome("idle", Outcome(decision=decision, kind=kind, detail="so"), at)
    assert both.ledger.ended_since("idle", START) == {"batch": 1, "": 1}
    assert both.ledger.ended_since("idle", LATER) == {"": 1}
    (stopped,) = both.ledger.done_since("idle", LATER)
    assert stopped == PastAction(
        resource="i-2", pool=None, action=Action.STOP, reason=Reason.STILL_IDLE, at=LATER, detail="so"
    )
    assert [past.action for past in both.ledger.done_since("idle", START)] == [Action.END, Action.MARK, Action.STOP]


def test_failed_attempts_have_a_first_and_a_last(both: Both) -> None:
    for kind, at in ((OutcomeKind.FAILED, START), (OutcomeKind.WAITING, LATER), (OutcomeKind.DONE, LATER)):
        error = "refused" if kind is OutcomeKind.FAILED else None
        both.ledger.record_outcome("idle", Outcome(decision=END, kind=kind, error=error), at)
        mark = replace(END, resource="i-2", action=Action.MARK)
        both.ledger.record_outcome("idle", Outcome(decision=mark, kind=kind, error=error), at)
    assert both.ledger.open_attempts_since("idle", START) == {"i-1": OpenAttempts(first=START, last=LATER)}
    assert both.ledger.open_attempts_since("idle", LATER) == {"i-1": OpenAttempts(first=LATER, last=LATER)}


def boot(number: int, **changes: Any) -> Boot:
    plain = Boot(
        instance_id=f"i-{number}",
        pool="batch",
        group="batch-spot-a",
        machine_type="g6.xlarge",
        launched_at=START + timedelta(minutes=number),
        first_seen_at=START + timedelta(minutes=number, seconds=20),
        last_seen_at=START + timedelta(minutes=number, seconds=20),
    )
    return replace(plain, **changes)


def test_read_activities_are_added_to_known_ones(both: Both) -> None:
    since = START - timedelta(days=3)
    assert list(both.ledger.activities(since)) == []
    refused = Activity(
        id="1", group="a", kind=ActivityKind("of_a_newer_release"), at=START, detail="no", zones_available=("z",),
        account_wide=True,
    )  # fmt: skip
    begins = Activity(id="2", group="a", kind=ActivityKind.IN_PROGRESS, at=LATER, instance_id="i-2")
    old = replace(refused, id="0", at=since)
    first = GroupActivities(
        group="a", desired=1, members=frozenset({"i-1"}), leaving=frozenset(), read_at=START,
        events=(old, refused, begins),
    )  # fmt: skip
    never = GroupActivities(group="b", desired=0, members=frozenset(), leaving=frozenset())
    both.ledger.note_activities([first, never], since)
    assert sorted(both.ledger.activities(since), key=lambda one: one.group) == [first, never]
    over = replace(begins, kind=ActivityKind.LAUNCHED)
    later = replace(first, desired=2, leaving=frozenset({"i-1"}), read_at=LATER, silent_at=LATER)
    both.ledger.note_activities([replace(later, events=(over,))], START)
    known = {one.group: one for one in both.ledger.activities(since)}
    assert known == {"a": replace(later, events=(refused, over)), "b": never}, "what is old is forgotten"
    both.ledger.note_activities([], LATER)
    assert {one.group: one for one in both.ledger.activities(since)} == known
    (newer,) = (one for one in both.ledger.activities(LATER) if one.group == "a")
    assert newer.events == (over,)


def test_recorded_lists_are_found_by_another_process(both: Both) -> None:
    assert both.ledger.last_lists() == LastLists()
    one = instance(1, tags={"idle-since": "x"}, reservation="cr-1", ends_at=LATER)
    group = Group(
        name="a", pool="batch", capacity_type=CapacityType.SPOT, zone="us-east-1a", desired=1, min=0, max=2,
        instance_ids=(one.id,), leaving=frozenset({"i-9"}),
        suspended=(SuspendedProcess(process="Launch", reason="a person", by_cloud=False),),
    )  # fmt: skip
    status = AgentStatus(phase=Phase.READY, ready=True, draining=False, drained=False, phase_since=START)
    noted = LastLists(
        groups=CachedAnswer(value=GroupList(groups={"a": group}, errors={"b": "throttled"}), at=START),
        instances=CachedAnswer(value=(one,), at=START),
        statuses=CachedAnswer(value={one.id: status}, at=LATER),
    )
    for lists in (LastLists(), noted):
        both.ledger.note_last_lists(lists, LATER)
    found = both.ledger.last_lists()
    assert (found.groups, found.statuses) == (noted.groups, noted.statuses)
    assert found.instances is not None
    assert tuple(found.instances.value) == (one,)
    both.ledger.note_last_lists(LastLists(), START)
    assert both.ledger.last_lists().groups == noted.groups, "a slow pass that began before replaces nothing newer"


def test_boots_are_written_again_when_an_observation_changes_them(both: Both) -> None:
    assert list(both.ledger.boots()) == []
    both.ledger.note_boots([boot(2), boot(1)], LATER)
    ready = boot(1, last_seen_at=START + timedelta(minutes=4), ready_at=START + timedelta(minutes=5))
    both.ledger.note_boots([ready], LATER)
    assert list(both.ledger.boots()) == [ready, boot(2)], "by launch, and what a look did not see stays"
    left = replace(ready, left_at=START + timedelta(minutes=9), ended_why=ActivityKind.PREEMPTED)
    both.ledger.note_boots([left], LATER)
    both.ledger.note_boots([], LATER)
    assert list(both.ledger.boots()) == [left, boot(2)]


def test_an_instance_that_starts_again_has_a_boot_of_its_own(both: Both) -> None:
    again = boot(1, launched_at=START + timedelta(hours=1))
    both.ledger.note_boots([boot(1)], LATER)
    both.ledger.note_boots([again], LATER)
    assert list(both.ledger.boots()) == [boot(1), again]


def test_a_lease_that_is_ours_is_held(both: Both) -> None:
    assert both.ledger.renew_lease(LATER)
