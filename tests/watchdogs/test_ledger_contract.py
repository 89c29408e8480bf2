"""What watchdogs expect of a ledger: held by the real one, and by the fake one that other tests run on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.activity import Activity, ActivityKind, ConflictError, GroupActivities
from gpufleet.domain.boots import Boot
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Action, Decision, FailedAttempts, Outcome, OutcomeKind, PastAction, Plan, Reason
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.last_lists import CachedAnswer, LastLists
from gpufleet.domain.model import CapacityType, Group, GroupList, Phase, SuspendedProcess
from gpufleet.ledger import operations
from gpufleet.ledger.fleet import FleetLedger
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.watchdogs.fake_fleet import idle_fleet
from tests.fixtures.watchdogs.fake_ports import FakeLedger
from tests.fixtures.watchdogs.plain import START, instance
from watchdogs.ports import Ledger

END = Decision(resource="i-1", pool="batch", action=Action.END, reason=Reason.STILL_IDLE, detail="quiet")
LATER = START + timedelta(minutes=1)


@dataclass
class Both:
    """One of the two, with pool `batch` at target 2."""

    ledger: Ledger
    pull: Callable[[Brake], object]
    """What a person does by `gpufleet pause`, `keep` or `target`."""


@pytest.fixture(params=["fake", "real"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Both]:
    if request.param == "fake":
        fleet = idle_fleet(2)
        yield Both(FakeLedger(fleet), fleet.brakes.append)
        return
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
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


def test_a_policy_is_seen_by_its_digest(both: Both) -> None:
    assert not both.ledger.policy_seen("idle", "batch", "x")
    both.ledger.see_policy("idle", "batch", "x", "ann", START)
    assert both.ledger.policy_seen("idle", "batch", "x")
    assert not both.ledger.policy_seen("idle", "batch", "y") and not both.ledger.policy_seen("spot", "batch", "x")


@pytest.mark.parametrize("kind", OutcomeKind)
def test_what_was_begun_stays_open_until_it_is_over(both: Both, kind: OutcomeKind) -> None:
    both.ledger.record(Plan(watchdog="idle", at=START, decisions=(END,)))
    both.ledger.intend("idle", END, START)
    both.ledger.intend("idle", replace(END, detail="another look"), START)
    assert list(both.ledger.unfinished("idle")) == [END], "the first intent stays"
    error = "refused" if kind is OutcomeKind.FAILED else None
    both.ledger.record_outcome("idle", Outcome(decision=END, kind=kind, error=error), START)
    open_kinds = (OutcomeKind.WAITING, OutcomeKind.FAILED)
    assert list(both.ledger.unfinished("idle")) == ([END] if kind in open_kinds else [])


def test_what_was_done_is_counted_since_a_time(both: Both) -> None:
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
    assert both.ledger.failed_since("idle", START) == {"i-1": FailedAttempts(first=START, last=LATER)}
    assert both.ledger.failed_since("idle", LATER) == {"i-1": FailedAttempts(first=LATER, last=LATER)}


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


def test_what_was_read_of_groups_is_added_to_what_is_known(both: Both) -> None:
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


def test_the_lists_that_were_noted_last_are_found_by_another_process(both: Both) -> None:
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
    assert both.ledger.hold(LATER)
