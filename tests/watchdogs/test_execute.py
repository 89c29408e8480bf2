"""The executor itself: brakes, lease, faults, kills and messages, and each way in which watchdogs differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError, ConflictError
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Plan, Reason
from gpufleet.domain.model import Instance
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet
from tests.fixtures.watchdogs.fake_ports import FakeMessages
from tests.fixtures.watchdogs.plain import START, instance
from watchdogs.execute import ExecutionRules, Executor
from watchdogs.idle.acting import RULES as IDLE
from watchdogs.orphans.acting import RULES as ORPHANS
from watchdogs.ports import LEASE_OVER
from watchdogs.scale.watchdog import RULES as SCALE
from watchdogs.spot.acting import RULES as SPOT

ONE, TWO = instance(1).id, instance(2).id
ALL = {"idle": IDLE, "orphans": ORPHANS, "spot": SPOT}
TAKEN = (Reason.PREEMPTED, Reason.RUN_ENDS, Reason.TERM_ENDS)
Set = tuple[BrakeKind, str]
"""A brake: its kind and its scope."""


def decided(resource: str = ONE, action: Action = Action.END, reason: Reason = Reason.STILL_IDLE) -> Decision:
    return Decision(resource=resource, pool="batch", action=action, reason=reason)


def brake(kind: BrakeKind, scope: str, until: datetime | None = None, owner: str = "ana") -> Brake:
    return Brake(since=START, kind=kind, scope=scope, owner=owner, reason="demo", until=until)


def executor(fleet: FakeFleet, rules: ExecutionRules = IDLE) -> Executor:
    return Executor(fleet.ports(), rules)


def held(
    rules: ExecutionRules,
    brakes: Sequence[Set],
    *,
    reason: Reason = Reason.SURPLUS,
    drains: bool = False,
    tag: str = "",
) -> str | None:
    """Why an end of instance one is blocked; None: it may proceed."""
    fleet = idle_fleet(2)
    fleet.brakes = [brake(kind, scope) for kind, scope in brakes]
    one = fleet.instances[ONE]
    if tag:
        one = replace(one, tags={**one.tags, tags.KEEP_UNTIL: tag})
    found = executor(fleet, rules).cancel_if_blocked(decided(reason=reason), one, drains=drains)
    assert found is None or found.kind is OutcomeKind.NO_LONGER_TRUE
    return None if found is None else found.detail


# brakes


@pytest.mark.parametrize("scope", ["all", "batch", ONE])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", [BrakeKind.PAUSE, BrakeKind.KEEP])
def test_pauses_and_keeps_hold_an_instance(name: str, kind: BrakeKind, scope: str) -> None:
    verb = "paused" if kind is BrakeKind.PAUSE else "kept"
    assert held(ALL[name], [(kind, scope)]) == f"{verb} by ana until `gpufleet resume`: demo"


@pytest.mark.parametrize("name", ALL)
def test_brakes_of_others_hold_nothing(name: str) -> None:
    others = [(kind, scope) for kind in BrakeKind for scope in ("chat", TWO)]
    assert held(ALL[name], others) is None


@pytest.mark.parametrize("name", ALL)
def test_a_brake_that_is_over_holds_nothing(name: str) -> None:
    fleet = idle_fleet()
    fleet.brakes = [brake(kind, "all", until=fleet.now) for kind in BrakeKind]
    assert executor(fleet, ALL[name]).cancel_if_blocked(decided(), fleet.instances[ONE]) is None


def test_longest_of_several_brakes_is_named() -> None:
    fleet = idle_fleet()
    fleet.brakes = [
        brake(BrakeKind.PAUSE, "batch", until=fleet.now + timedelta(hours=1), owner="ben"),
        brake(BrakeKind.KEEP, ONE, until=fleet.now + timedelta(hours=2), owner="eva"),
    ]
    found = executor(fleet).cancel_if_blocked(decided(), fleet.instances[ONE])
    assert found is not None
    assert found.detail.startswith("kept by eva")


@pytest.mark.parametrize(
    ("rules", "drains", "holds"),
    [
        pytest.param(IDLE, False, True, id="idle begins no end"),
        pytest.param(IDLE, True, False, id="idle continues with one that drains"),
        pytest.param(SPOT, False, False, id="spot"),
    ],
)
def test_a_held_target(rules: ExecutionRules, drains: bool, holds: bool) -> None:
    found = held(rules, [(BrakeKind.TARGET, "batch")], drains=drains)
    assert found == ("its pool's target is held by ana until `gpufleet resume`: demo" if holds else None)


@pytest.mark.parametrize("kind", [BrakeKind.PAUSE, BrakeKind.KEEP])
def test_idle_ends_nothing_that_drains_while_people_hold_it(kind: BrakeKind) -> None:
    assert held(IDLE, [(kind, ONE)], drains=True) is not None


@pytest.mark.parametrize("name", ["idle", "spot"])
def test_the_tag_keeps_an_instance(name: str) -> None:
    until = tags.write_time(START + timedelta(days=1))
    assert (held(ALL[name], [], tag=until) or "").startswith("kept until")
    assert (held(ALL[name], [], tag="soon") or "").startswith("kept by its keep-until tag 'soon'")
    assert held(ALL[name], [], tag=tags.write_time(START - timedelta(hours=1))) is None


def test_the_tag_of_an_orphan_is_judged_with_its_evidence() -> None:
    assert held(ORPHANS, [], tag=tags.write_time(START + timedelta(days=1))) is None


@pytest.mark.parametrize("reason", TAKEN)
@pytest.mark.parametrize(
    ("brakes", "holds"),
    [
        pytest.param([(BrakeKind.PAUSE, "all")], True, id="a pause of all"),
        pytest.param([(BrakeKind.PAUSE, "batch")], True, id="a pause of its pool"),
        pytest.param([(BrakeKind.PAUSE, ONE)], True, id="its own pause"),
        pytest.param([(BrakeKind.KEEP, ONE)], True, id="its own keep"),
        pytest.param([(BrakeKind.KEEP, "batch")], False, id="a keep of its pool"),
        pytest.param([(BrakeKind.KEEP, "all")], False, id="a keep of all"),
        pytest.param([(BrakeKind.KEEP, "all"), (BrakeKind.KEEP, ONE)], True, id="its own next to another"),
    ],
)
def test_spot_lets_notices_pass_but_for_pauses_and_its_own_brakes(
    reason: Reason, brakes: Sequence[Set], holds: bool
) -> None:
    assert (held(SPOT, brakes, reason=reason) is not None) is holds


@pytest.mark.parametrize("reason", TAKEN)
def test_reclaimed_spot_drains_whatever_its_tag(reason: Reason) -> None:
    assert held(SPOT, [], reason=reason, tag=tags.write_time(START + timedelta(days=1))) is None


@pytest.mark.parametrize("rules", [SPOT, SCALE], ids=["spot", "scale"])
@pytest.mark.parametrize("kind", BrakeKind)
@pytest.mark.parametrize("scope", ["all", "batch"])
def test_groups_and_pools_are_held_by_pauses_alone(rules: ExecutionRules, kind: BrakeKind, scope: str) -> None:
    fleet = idle_fleet()
    fleet.brakes = [brake(kind, scope)]
    found = executor(fleet, rules).cancel_if_blocked(decided("batch-spot-a", Action.RESIZE))
    assert (found is not None) is (kind is BrakeKind.PAUSE)


# the lease


@pytest.mark.parametrize("name", ALL)
def test_without_the_lease_nothing_continues(name: str) -> None:
    fleet = idle_fleet()
    fleet.lease_is_ours = False
    run = executor(fleet, ALL[name])
    found = run.cancel_if_blocked(decided(), fleet.instances[ONE])
    assert found is not None
    assert (found.kind, found.detail) == (OutcomeKind.NO_LONGER_TRUE, LEASE_OVER)
    assert run.lease_lost


def test_a_brake_is_named_before_a_lost_lease() -> None:
    """And a brake alone says nothing of the lease."""
    fleet = idle_fleet()
    fleet.lease_is_ours = False
    fleet.brakes = [brake(BrakeKind.PAUSE, "all")]
    run = executor(fleet)
    found = run.cancel_if_blocked(decided(), fleet.instances[ONE])
    assert found is not None
    assert found.detail.startswith("paused")
    assert not run.lease_lost


def test_a_lost_lease_is_remembered() -> None:
    fleet = idle_fleet()
    run = executor(fleet)
    assert run.cancel_without_lease(decided()) is None
    assert not run.lease_lost
    fleet.lease_is_ours = False
    assert run.cancel_without_lease(decided()) is not None
    fleet.lease_is_ours = True
    run.cancel_without_lease(decided())
    assert run.lease_lost, "what this pass saw is old, whoever has the lease now"


# steps


def step(fleet: FakeFleet, run: Executor) -> Callable[[Decision], Outcome]:
    """An end as the watchdogs do it."""

    def end(decision: Decision) -> Outcome:
        run.intend(decision)
        fleet.ports().groups.end(decision.resource, "batch-spot-a", lower_desired=True)
        run.notify(f"ended:{decision.resource}", "ended")
        return run.record_done(decision, "ended")

    return end


def fail(error: BaseException) -> Callable[[Decision], Outcome]:
    def raising(_: Decision) -> Outcome:
        raise error

    return raising


def test_attempt_returns_the_result_of_its_step() -> None:
    fleet = idle_fleet()
    run = executor(fleet)
    assert run.attempt(decided(), lambda decision: (decision.resource, 1)) == (ONE, 1)
    assert not fleet.outcomes


@pytest.mark.parametrize("rules", [*ALL.values(), SCALE], ids=[*ALL, "scale"])
def test_a_conflict_is_not_an_error(rules: ExecutionRules) -> None:
    fleet = idle_fleet()
    run = executor(fleet, rules)
    run.attempt(decided(), fail(ConflictError("another process changed it")))
    assert [(o.kind, o.detail) for o in run.outcomes] == [(OutcomeKind.NO_LONGER_TRUE, "another process changed it")]
    assert not fleet.messages


@pytest.mark.parametrize(
    ("rules", "keys"),
    [
        pytest.param(IDLE, [f"failed:{ONE}:end"], id="idle: once per action"),
        pytest.param(ORPHANS, [f"failed:{ONE}:{START:%Y%m%d}"], id="orphans: once per day"),
        pytest.param(SPOT, [], id="spot: recorded only"),
    ],
)
@pytest.mark.parametrize("error", [CloudError("throttled"), TimeoutError("no answer")])
def test_a_step_that_fails_fails_alone(rules: ExecutionRules, keys: list[str], error: OSError) -> None:
    fleet = idle_fleet()
    run = executor(fleet, rules)
    run.attempt(decided(), fail(error))
    run.attempt(decided(TWO), step(fleet, run))
    assert [(o.decision.resource, o.kind, o.error) for o in run.outcomes] == [
        (ONE, OutcomeKind.FAILED, str(error)),
        (TWO, OutcomeKind.DONE, None),
    ]
    assert [key for key in fleet.messages if "failed" in key] == keys


def test_a_step_of_scale_that_fails_fails_the_pass() -> None:
    fleet = idle_fleet()
    with pytest.raises(CloudError, match="throttled"):
        executor(fleet, SCALE).attempt(decided("batch", Action.RETARGET), fail(CloudError("throttled")))
    assert not fleet.outcomes


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a bug")])
@pytest.mark.parametrize("name", ALL)
def test_an_unexpected_error_ends_the_pass(name: str, error: BaseException) -> None:
    fleet = idle_fleet()
    with pytest.raises(type(error)):
        executor(fleet, ALL[name]).attempt(decided(), fail(error))
    assert not fleet.outcomes


@pytest.mark.parametrize("call", ["end", "notify", "record_outcome"])
def test_a_pass_killed_between_intent_and_outcome_is_recovered_by_the_next(call: str) -> None:
    fleet = idle_fleet()
    run = executor(fleet)
    fleet.kill_at(call, lambda: run.attempt(decided(), step(fleet, run)))
    assert fleet.intents == {("idle", ONE): decided()}
    following, judged = executor(fleet), list[Decision]()

    def judge(decision: Decision) -> None:
        judged.append(decision)
        following.record_done(decision, "seen to be done")

    following.recover(judge)
    assert judged == [decided()]
    assert not fleet.intents
    assert [outcome.detail for outcome in following.outcomes] == ["seen to be done"]


def test_a_pass_killed_before_its_intent_leaves_nothing_to_recover() -> None:
    fleet = idle_fleet()
    run = executor(fleet)
    fleet.kill_at("intend", lambda: run.attempt(decided(), step(fleet, run)))
    assert not fleet.intents
    assert not fleet.ended


@pytest.mark.parametrize("finish", [Executor.record_waiting, Executor.record_failed])
def test_waiting_or_failed_action_stays_unfinished(finish: Callable[[Executor, Decision, str], Outcome]) -> None:
    fleet = idle_fleet()
    run = executor(fleet)
    run.intend(decided())
    finish(run, decided(), "later")
    assert fleet.intents == {("idle", ONE): decided()}


def test_an_action_without_an_outcome_in_recovery_stays_open() -> None:
    fleet = idle_fleet()
    fleet.intents = {("idle", ONE): decided()}
    run = executor(fleet)
    run.recover(lambda _: None)
    assert fleet.intents == {("idle", ONE): decided()}
    assert not run.outcomes


# the course of a pass


def plan(*decisions: Decision) -> Plan:
    return Plan(watchdog="idle", at=START, decisions=decisions)


def test_a_plan_is_recorded_whole_with_what_budgets_kept() -> None:
    fleet = idle_fleet()
    kept = decided(TWO, Action.KEEP, Reason.HOUR_BUDGET)
    run = executor(fleet)
    run.record(plan(decided(), kept))
    assert [found.decisions for found in fleet.plans] == [(decided(), kept)]
    assert [d.resource for d in plan(decided(), kept).acting] == [ONE], "what a budget keeps is not carried out"


def test_a_pass_ends_with_all_its_outcomes_in_their_order() -> None:
    fleet = idle_fleet()
    run = executor(fleet)
    run.record_no_longer_true(decided(TWO), "gone")
    run.record_done(decided())
    run.note(decided(TWO, Action.KEEP, Reason.NOT_READY))
    made = run.finish("what was seen", plan(decided()))
    assert made.observed == "what was seen"
    assert [outcome.decision.resource for outcome in made.outcomes] == [TWO, ONE], "a note is not an outcome"
    assert fleet.outcomes[-1].outcome.decision.reason is Reason.NOT_READY


# tags


class Tagging:
    """A write of tags that fails for some."""

    def __init__(self, fleet: FakeFleet, **errors: str) -> None:
        self.fleet, self.errors, self.asked = fleet, errors, list[Sequence[str]]()

    def __call__(self, ids: Sequence[str]) -> Mapping[str, str]:
        self.fleet.before("write")
        self.asked.append(ids)
        return self.errors


def written(fleet: FakeFleet, run: Executor, tagging: Tagging, **how: Any) -> None:
    marks = [decided(ONE, Action.MARK), decided(TWO, Action.MARK)]
    run.write(marks, tagging, lambda decision: run.notify(f"marked:{decision.resource}", "marked", decision), **how)


def test_tags_are_written_together_and_one_that_fails_fails_alone() -> None:
    fleet = idle_fleet()
    run, tagging = executor(fleet), Tagging(fleet, **{ONE: "denied"})
    written(fleet, run, tagging)
    assert tagging.asked == [[ONE, TWO]]
    assert [(o.decision.resource, o.kind, o.error) for o in run.outcomes] == [
        (ONE, OutcomeKind.FAILED, "denied"),
        (TWO, OutcomeKind.DONE, None),
    ]
    assert list(fleet.messages) == [f"marked:{TWO}"]


def test_no_tag_is_written_without_the_lease_or_without_a_decision() -> None:
    fleet = idle_fleet()
    run, tagging = executor(fleet), Tagging(fleet)
    run.write([], tagging, lambda _: None)
    fleet.lease_is_ours = False
    written(fleet, run, tagging)
    assert not tagging.asked
    assert [outcome.detail for outcome in run.outcomes] == [LEASE_OVER, LEASE_OVER]


@pytest.mark.parametrize(
    ("how", "calls"),
    [
        pytest.param(
            {"intent": lambda decision: replace(decision, detail="noted")},
            ["hold", "intend", "intend", "write", "notify", "record_outcome", "notify", "record_outcome"],
            id="idle: intended, and the message first",
        ),
        pytest.param(
            {}, ["hold", "write", "notify", "record_outcome", "notify", "record_outcome"], id="orphans: unmark"
        ),
        pytest.param(
            {"at": START - timedelta(seconds=1)},
            ["hold", "write", "record_outcome", "notify", "record_outcome", "notify"],
            id="orphans: a mark counts once it is recorded",
        ),
    ],
)
def test_order_of_tag_writes_and_records(how: dict[str, Any], calls: list[str]) -> None:
    fleet, made = idle_fleet(), list[str]()
    fleet.before = made.append
    written(fleet, executor(fleet), Tagging(fleet), **how)
    assert made == calls
    assert {row.at for row in fleet.outcomes} == {how.get("at", START)}


# messages


class Mail(FakeMessages):
    """Records the details of messages."""

    def notify(self, key: str, text: str, detail: Mapping[str, Any]) -> None:
        super().notify(f"{key} {detail}", text, detail)


@pytest.mark.parametrize(
    ("rules", "key"),
    [(IDLE, "ended"), (ORPHANS, "ended"), (SPOT, "spot:ended"), (SCALE, "scale:ended")],
    ids=["idle", "orphans", "spot", "scale"],
)
def test_keys_of_messages_keep_their_prefix(rules: ExecutionRules, key: str) -> None:
    fleet = idle_fleet()
    Executor(replace(fleet.ports(), messages=Mail(fleet)), rules).notify("ended", "ended")
    assert list(fleet.messages) == [f"{key} {{}}"]


def test_message_names_the_instance_for_the_keep_command() -> None:
    fleet = idle_fleet()
    Executor(replace(fleet.ports(), messages=Mail(fleet)), IDLE).notify("ended", "ended", decided())
    detail = {"instance": ONE, "pool": "batch", "action": "end"}
    assert list(fleet.messages) == [f"ended {detail}"]


def test_a_message_that_cannot_be_written_fails_the_step_and_not_the_pass() -> None:
    """The end has happened: the next pass sees that it has, notifies and resolves it."""
    fleet = idle_fleet()
    run = executor(fleet)
    faults = iter([True])

    def broken(name: str) -> None:
        if name == "notify" and next(faults, False):
            raise CloudError("the outbox is full")

    fleet.before = broken
    run.attempt(decided(), step(fleet, run))
    assert [(outcome.kind, outcome.error) for outcome in run.outcomes] == [(OutcomeKind.FAILED, "the outbox is full")]
    assert fleet.ended == [ONE]
    assert fleet.intents == {("idle", ONE): decided()}


def test_an_instance_is_looked_at_as_it_is_now() -> None:
    """The caller reads it again: a tag set since the plan was made counts."""
    fleet = idle_fleet()
    seen: Instance = fleet.instances[ONE]
    now = replace(seen, tags={**seen.tags, tags.KEEP_UNTIL: tags.write_time(START + timedelta(days=1))})
    assert executor(fleet).cancel_if_blocked(decided(), seen) is None
    assert executor(fleet).cancel_if_blocked(decided(), now) is not None
