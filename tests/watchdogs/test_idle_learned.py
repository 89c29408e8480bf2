"""What production's idle watchdog learns from its own actions: how long an instance is to be left alone."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledgers import ledger_name
from gpufleet.domain.decisions import Action, Decision, FailedAttempts, Outcome, OutcomeKind, PastAction, Plan, Reason
from gpufleet.domain.policies import IdlePolicy
from ledger.fleet import FleetLedger
from ledger.schema import open_ledger
from tests.watchdogs.plain import START, document, instance
from tests.watchdogs.worlds import World, idle_world, mark
from watchdogs.idle import learned
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests

POLICY = IdlePolicy()
MINUTE = timedelta(minutes=1)
FIRST = instance(1).id
LEAST = POLICY.window + POLICY.grace


def past_action(at: datetime, action: Action, reason: Reason, who: str = FIRST) -> PastAction:
    return PastAction(resource=who, pool="batch", action=action, reason=reason, at=at)


def clockwork(days: float, every: timedelta, rest: timedelta, who: str = FIRST) -> list[PastAction]:
    """Rests of one length, one after the other, up to START."""
    found: list[PastAction] = []
    at = START - timedelta(days=days)
    while at + rest < START:
        found.append(past_action(at + POLICY.window, Action.MARK, Reason.IDLE, who))
        found.append(past_action(at + rest, Action.UNMARK, Reason.WORK_IS_BACK, who))
        at += every
    return found


def learn(actions: list[PastAction], policy: IdlePolicy = POLICY, count: int = 2) -> dict[str, timedelta]:
    there = [instance(number) for number in range(1, count + 1)]
    return learned.patience(there, actions, {"batch": policy}, START)


def test_a_rest_is_what_passed_from_before_the_mark_to_the_work() -> None:
    found = learned.rests(
        [
            past_action(START, Action.MARK, Reason.IDLE),
            past_action(START + 25 * MINUTE, Action.UNMARK, Reason.WORK_IS_BACK),
            past_action(START + 90 * MINUTE, Action.MARK, Reason.IDLE),
            past_action(START + 110 * MINUTE, Action.UNMARK, Reason.KEPT_BY_PEOPLE),
            past_action(START + 200 * MINUTE, Action.MARK, Reason.IDLE),
            past_action(START + 215 * MINUTE, Action.END, Reason.STILL_IDLE),
            past_action(START + 300 * MINUTE, Action.UNMARK, Reason.WORK_IS_BACK),
        ],
        POLICY.window,
    )
    assert [(rest.seconds / 60, rest.cut) for rest in found] == [(55.0, False), (45.0, True)]


def test_rests_that_come_by_a_clock_are_waited_for_by_the_whole_pool() -> None:
    """Rests of 100 minutes, twelve a day: an end after 40 would buy an hour, for a stop each time."""
    actions = clockwork(3, every=timedelta(hours=2), rest=100 * MINUTE)
    found = learn(actions)
    assert found[FIRST] >= 100 * MINUTE
    assert found[instance(2).id] >= LEAST


@pytest.mark.parametrize(
    ("actions", "policy"),
    [
        ([], POLICY),
        (clockwork(0.9, timedelta(hours=2), 100 * MINUTE), POLICY),
        (clockwork(3, timedelta(hours=2), 100 * MINUTE), replace(POLICY, max_stops_per_day=None)),
        ([replace(one, pool="chat") for one in clockwork(3, timedelta(hours=2), 100 * MINUTE)], POLICY),
    ],
    ids=["nothing known", "less than a day", "stops not limited", "of another pool"],
)
def test_where_nothing_is_known_nothing_is_said(actions: list[PastAction], policy: IdlePolicy) -> None:
    assert learn(actions, policy) == {}


REASONS = [(Action.MARK, Reason.IDLE), (Action.UNMARK, Reason.WORK_IS_BACK), (Action.END, Reason.STILL_IDLE)]


@given(
    steps=st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 4), st.sampled_from(REASONS)), max_size=60),
    window=st.integers(1, 3000),
    budget=st.floats(0.01, 50),
)
def test_nobody_is_ended_sooner_than_the_policy_says(
    steps: list[tuple[int, int, tuple[Action, Reason]]], window: int, budget: float
) -> None:
    """Whatever the ledger holds, and with instances that are gone."""
    at, actions = START - timedelta(days=7), list[PastAction]()
    for minutes, who, (action, reason) in steps:
        at = min(at + minutes * MINUTE, START)
        actions.append(past_action(at, action, reason, instance(who).id))
    policy = replace(POLICY, window=window * MINUTE, max_stops_per_day=budget)
    found = learn(actions, policy)
    assert all(wait >= policy.window + policy.grace for wait in found.values())
    assert set(found) <= {instance(1).id, instance(2).id}


def test_ends_of_the_past_do_not_teach_to_end_sooner_and_sooner() -> None:
    """A pool whose every rest was cut off an hour in: what came after is not known, and is not taken for nothing."""
    actions: list[PastAction] = []
    for number in range(12):
        at = START - timedelta(days=3) + number * timedelta(hours=6)
        who = instance(3 + number).id
        actions.append(past_action(at, Action.MARK, Reason.IDLE, who))
        actions.append(past_action(at + 30 * MINUTE, Action.END, Reason.STILL_IDLE, who))
    generous, strict = (learn(actions, replace(POLICY, max_stops_per_day=n))[FIRST] for n in (4.0, 0.5))
    assert LEAST <= generous < strict


def watchdog(world: World) -> IdleWatchdog:
    fleet = document(min=0)
    world.seen.add(("idle", "batch", digests(fleet, "idle")["batch"]))
    return IdleWatchdog(fleet, world.ports())


def remember(world: World, actions: list[PastAction]) -> None:
    for one in actions:
        done = Decision(resource=one.resource, pool=one.pool, action=one.action, reason=one.reason)
        world.outcomes.append((one.at, Outcome(decision=done, kind=OutcomeKind.DONE)))


def test_a_pass_waits_for_the_work_that_past_rests_promise() -> None:
    world = idle_world(1)
    mark(world, 1, START - 15 * MINUTE)
    remember(world, clockwork(3, timedelta(hours=2), 100 * MINUTE))
    assert [d.reason for d in watchdog(world).apply().plan.decisions] == [Reason.MARKED_WAITING]
    (told,) = (text for key, text in world.messages.items() if key.startswith("marked:"))
    assert "likely about" in told and "after 07:55:00 UTC" in told
    world.now += timedelta(days=1)
    assert [d.action for d in watchdog(world).apply().plan.decisions] == [Action.END]


def test_without_a_history_window_and_grace_decide() -> None:
    world = idle_world(1)
    mark(world, 1, START - 15 * MINUTE)
    assert [d.action for d in watchdog(world).apply().plan.decisions] == [Action.END]


def test_the_ledger_gives_back_what_was_done_and_only_that(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger = FleetLedger(engine, ledger_name(document()), "idle", "me")
    marked = Decision(resource=FIRST, pool="batch", action=Action.MARK, reason=Reason.IDLE)
    ended = replace(marked, action=Action.END, reason=Reason.STILL_IDLE)
    ledger.record(Plan(watchdog="idle", at=START, decisions=(marked,)))
    for at, watchdog_name, decision, kind in (
        (START - timedelta(hours=2), "idle", marked, OutcomeKind.DONE),
        (START + 2 * MINUTE, "idle", ended, OutcomeKind.DONE),
        (START + MINUTE, "idle", marked, OutcomeKind.DONE),
        (START + MINUTE, "idle", ended, OutcomeKind.WAITING),
        (START + MINUTE, "spot", ended, OutcomeKind.DONE),
    ):
        ledger.record_outcome(watchdog_name, Outcome(decision=decision, kind=kind), at)
    assert list(ledger.done_since("idle", START)) == [
        past_action(START + MINUTE, Action.MARK, Reason.IDLE),
        past_action(START + 2 * MINUTE, Action.END, Reason.STILL_IDLE),
    ]


def test_the_ledger_tells_first_and_last_of_what_came_to_nothing(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger = FleetLedger(engine, ledger_name(document()), "idle", "me")
    ended = Decision(resource=FIRST, pool="batch", action=Action.END, reason=Reason.STILL_IDLE)
    for minutes, watchdog_name, action, kind in (
        (-1, "idle", Action.END, OutcomeKind.FAILED),
        (1, "idle", Action.END, OutcomeKind.WAITING),
        (3, "idle", Action.STOP, OutcomeKind.FAILED),
        (2, "idle", Action.END, OutcomeKind.FAILED),
        (0, "spot", Action.END, OutcomeKind.FAILED),
        (4, "idle", Action.MARK, OutcomeKind.FAILED),
        (5, "idle", Action.END, OutcomeKind.NO_LONGER_TRUE),
        (6, "idle", Action.END, OutcomeKind.DONE),
    ):
        error = "refused" if kind is OutcomeKind.FAILED else None
        outcome = Outcome(decision=replace(ended, action=action), kind=kind, error=error)
        ledger.record_outcome(watchdog_name, outcome, START + minutes * MINUTE)
    assert ledger.failed_since("idle", START) == {
        FIRST: FailedAttempts(first=START + MINUTE, last=START + 3 * MINUTE)
    }
    assert ledger.failed_since("idle", START + 4 * MINUTE) == {}
