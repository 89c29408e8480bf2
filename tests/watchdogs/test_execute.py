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
from tests.fixtures.watchdogs.plain import START, instance
from tests.fixtures.watchdogs.worlds import FakeMessages, World, idle_world
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


def executor(world: World, rules: ExecutionRules = IDLE) -> Executor:
    return Executor(world.ports(), rules)


def held(
    rules: ExecutionRules,
    brakes: Sequence[Set],
    *,
    reason: Reason = Reason.SURPLUS,
    drains: bool = False,
    tag: str = "",
) -> str | None:
    """What an end of instance one is held back with; None: it may go on."""
    world = idle_world(2)
    world.brakes = [brake(kind, scope) for kind, scope in brakes]
    one = world.instances[ONE]
    if tag:
        one = replace(one, tags={**one.tags, tags.KEEP_UNTIL: tag})
    found = executor(world, rules).blocked(decided(reason=reason), one, drains=drains)
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
    world = idle_world()
    world.brakes = [brake(kind, "all", until=world.now) for kind in BrakeKind]
    assert executor(world, ALL[name]).blocked(decided(), world.instances[ONE]) is None


def test_of_several_brakes_the_one_that_lasts_longest_is_named() -> None:
    world = idle_world()
    world.brakes = [
        brake(BrakeKind.PAUSE, "batch", until=world.now + timedelta(hours=1), owner="ben"),
        brake(BrakeKind.KEEP, ONE, until=world.now + timedelta(hours=2), owner="eva"),
    ]
    found = executor(world).blocked(decided(), world.instances[ONE])
    assert found is not None
    assert found.detail.startswith("kept by eva")


@pytest.mark.parametrize(
    ("rules", "drains", "holds"),
    [
        pytest.param(IDLE, False, True, id="idle begins no end"),
        pytest.param(IDLE, True, False, id="idle goes on with one that drains"),
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
    assert (held(ALL[name], [], tag="soon") or "").startswith("kept its keep-until tag 'soon'")
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
        pytest.param([(BrakeKind.KEEP, "all"), (BrakeKind.KEEP, ONE)], True, id="its own beside another"),
    ],
)
def test_spot_lets_notices_pass_but_for_pauses_and_its_own_brakes(
    reason: Reason, brakes: Sequence[Set], holds: bool
) -> None:
    assert (held(SPOT, brakes, reason=reason) is not None) is holds


@pytest.mark.parametrize("reason", TAKEN)
def test_spot_drains_what_the_cloud_takes_whatever_its_tag_says(reason: Reason) -> None:
    assert held(SPOT, [], reason=reason, tag=tags.write_time(START + timedelta(days=1))) is None


@pytest.mark.parametrize("rules", [SPOT, SCALE], ids=["spot", "scale"])
@pytest.mark.parametrize("kind", BrakeKind)
@pytest.mark.parametrize("scope", ["all", "batch"])
def test_groups_and_pools_are_held_by_pauses_alone(rules: ExecutionRules, kind: BrakeKind, scope: str) -> None:
    world = idle_world()
    world.brakes = [brake(kind, scope)]
    found = executor(world, rules).blocked(decided("batch-spot-a", Action.RESIZE))
    assert (found is not None) is (kind is BrakeKind.PAUSE)


# the lease


@pytest.mark.parametrize("name", ALL)
def test_without_the_lease_nothing_goes_on(name: str) -> None:
    world = idle_world()
    world.lease_is_ours = False
    run = executor(world, ALL[name])
    found = run.blocked(decided(), world.instances[ONE])
    assert found is not None
    assert (found.kind, found.detail) == (OutcomeKind.NO_LONGER_TRUE, LEASE_OVER)
    assert run.lease_lost


def test_a_brake_is_named_before_a_lost_lease() -> None:
    """And a brake alone says nothing of the lease."""
    world = idle_world()
    world.lease_is_ours = False
    world.brakes = [brake(BrakeKind.PAUSE, "all")]
    run = executor(world)
    found = run.blocked(decided(), world.instances[ONE])
    assert found is not None
    assert found.detail.startswith("paused")
    assert not run.lease_lost


def test_a_lost_lease_is_remembered() -> None:
    world = idle_world()
    run = executor(world)
    assert run.without_lease(decided()) is None
    assert not run.lease_lost
    world.lease_is_ours = False
    assert run.without_lease(decided()) is not None
    world.lease_is_ours = True
    run.without_lease(decided())
    assert run.lease_lost, "what this pass saw is old, whoever has the lease now"


# steps


def step(world: World, run: Executor) -> Callable[[Decision], Outcome]:
    """An end as the watchdogs do it."""

    def end(decision: Decision) -> Outcome:
        run.intend(decision)
        world.ports().groups.end(decision.resource, "batch-spot-a", lower_desired=True)
        run.notify(f"ended:{decision.resource}", "ended")
        return run.done(decision, "ended")

    return end


def fail(error: BaseException) -> Callable[[Decision], Outcome]:
    def raising(_: Decision) -> Outcome:
        raise error

    return raising


def test_what_a_step_gives_back_is_given_back() -> None:
    world = idle_world()
    run = executor(world)
    assert run.attempt(decided(), lambda decision: (decision.resource, 1)) == (ONE, 1)
    assert not world.outcomes


@pytest.mark.parametrize("rules", [*ALL.values(), SCALE], ids=[*ALL, "scale"])
def test_a_conflict_is_no_error(rules: ExecutionRules) -> None:
    world = idle_world()
    run = executor(world, rules)
    run.attempt(decided(), fail(ConflictError("somebody changed it")))
    assert [(o.kind, o.detail) for o in run.outcomes] == [(OutcomeKind.NO_LONGER_TRUE, "somebody changed it")]
    assert not world.messages


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
    world = idle_world()
    run = executor(world, rules)
    run.attempt(decided(), fail(error))
    run.attempt(decided(TWO), step(world, run))
    assert [(o.decision.resource, o.kind, o.error) for o in run.outcomes] == [
        (ONE, OutcomeKind.FAILED, str(error)),
        (TWO, OutcomeKind.DONE, None),
    ]
    assert [key for key in world.messages if "failed" in key] == keys


def test_a_step_of_scale_that_fails_fails_the_pass() -> None:
    world = idle_world()
    with pytest.raises(CloudError, match="throttled"):
        executor(world, SCALE).attempt(decided("batch", Action.RETARGET), fail(CloudError("throttled")))
    assert not world.outcomes


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a bug")])
@pytest.mark.parametrize("name", ALL)
def test_what_is_no_fault_of_the_world_ends_the_pass(name: str, error: BaseException) -> None:
    world = idle_world()
    with pytest.raises(type(error)):
        executor(world, ALL[name]).attempt(decided(), fail(error))
    assert not world.outcomes


@pytest.mark.parametrize("call", ["end", "tell", "record_outcome"])
def test_a_pass_killed_between_intent_and_outcome_is_settled_by_the_next(call: str) -> None:
    world = idle_world()
    run = executor(world)
    world.kill_at(call, lambda: run.attempt(decided(), step(world, run)))
    assert world.intents == {ONE: decided()}
    following, judged = executor(world), list[Decision]()

    def judge(decision: Decision) -> None:
        judged.append(decision)
        following.done(decision, "seen to be done")

    following.settle(judge)
    assert judged == [decided()]
    assert not world.intents
    assert [outcome.detail for outcome in following.outcomes] == ["seen to be done"]


def test_a_pass_killed_before_its_intent_leaves_nothing_to_settle() -> None:
    world = idle_world()
    run = executor(world)
    world.kill_at("intend", lambda: run.attempt(decided(), step(world, run)))
    assert not world.intents
    assert not world.ended


@pytest.mark.parametrize("finish", [Executor.waiting, Executor.failed])
def test_what_waits_or_failed_stays_open(finish: Callable[[Executor, Decision, str], Outcome]) -> None:
    world = idle_world()
    run = executor(world)
    run.intend(decided())
    finish(run, decided(), "later")
    assert world.intents == {ONE: decided()}


def test_what_settling_gives_no_outcome_stays_open() -> None:
    world = idle_world()
    world.intents = {ONE: decided()}
    run = executor(world)
    run.settle(lambda _: None)
    assert world.intents == {ONE: decided()}
    assert not run.outcomes


# the course of a pass


def plan(*decisions: Decision) -> Plan:
    return Plan(watchdog="idle", at=START, decisions=decisions)


def test_a_plan_is_recorded_whole_with_what_budgets_kept() -> None:
    world = idle_world()
    kept = decided(TWO, Action.KEEP, Reason.HOUR_BUDGET)
    run = executor(world)
    run.record(plan(decided(), kept))
    assert [found.decisions for found in world.plans] == [(decided(), kept)]
    assert [d.resource for d in plan(decided(), kept).acting] == [ONE], "what a budget keeps is not carried out"


def test_a_pass_ends_with_all_its_outcomes_in_their_order() -> None:
    world = idle_world()
    run = executor(world)
    run.cancelled(decided(TWO), "gone")
    run.done(decided())
    run.note(decided(TWO, Action.KEEP, Reason.NOT_READY))
    made = run.finish("what was seen", plan(decided()))
    assert made.observed == "what was seen"
    assert [outcome.decision.resource for outcome in made.outcomes] == [TWO, ONE], "a note is no outcome"
    assert [outcome.decision.reason for _, outcome in world.outcomes][-1] is Reason.NOT_READY


# tags


class Tagging:
    """A write of tags that fails for some."""

    def __init__(self, world: World, **errors: str) -> None:
        self.world, self.errors, self.asked = world, errors, list[Sequence[str]]()

    def __call__(self, ids: Sequence[str]) -> Mapping[str, str]:
        self.world.before("write")
        self.asked.append(ids)
        return self.errors


def written(world: World, run: Executor, tagging: Tagging, **how: Any) -> None:
    marks = [decided(ONE, Action.MARK), decided(TWO, Action.MARK)]
    run.write(marks, tagging, lambda decision: run.notify(f"marked:{decision.resource}", "marked", decision), **how)


def test_tags_are_written_together_and_one_that_fails_fails_alone() -> None:
    world = idle_world()
    run, tagging = executor(world), Tagging(world, **{ONE: "denied"})
    written(world, run, tagging)
    assert tagging.asked == [[ONE, TWO]]
    assert [(o.decision.resource, o.kind, o.error) for o in run.outcomes] == [
        (ONE, OutcomeKind.FAILED, "denied"),
        (TWO, OutcomeKind.DONE, None),
    ]
    assert list(world.messages) == [f"marked:{TWO}"]


def test_no_tag_is_written_without_the_lease_or_without_a_decision() -> None:
    world = idle_world()
    run, tagging = executor(world), Tagging(world)
    run.write([], tagging, lambda _: None)
    world.lease_is_ours = False
    written(world, run, tagging)
    assert not tagging.asked
    assert [outcome.detail for outcome in run.outcomes] == [LEASE_OVER, LEASE_OVER]


@pytest.mark.parametrize(
    ("how", "calls"),
    [
        pytest.param(
            {"intent": lambda decision: replace(decision, detail="noted")},
            ["hold", "intend", "intend", "write", "tell", "record_outcome", "tell", "record_outcome"],
            id="idle: intended, and the message first",
        ),
        pytest.param({}, ["hold", "write", "tell", "record_outcome", "tell", "record_outcome"], id="orphans: unmark"),
        pytest.param(
            {"at": START - timedelta(seconds=1)},
            ["hold", "write", "record_outcome", "tell", "record_outcome", "tell"],
            id="orphans: a mark counts once it is recorded",
        ),
    ],
)
def test_in_which_order_tags_are_written(how: dict[str, Any], calls: list[str]) -> None:
    world, made = idle_world(), list[str]()
    world.before = made.append
    written(world, executor(world), Tagging(world), **how)
    assert made == calls
    assert {at for at, _ in world.outcomes} == {how.get("at", START)}


# messages


class Mail(FakeMessages):
    """Remembers what buttons are told."""

    def notify(self, key: str, text: str, detail: Mapping[str, Any]) -> None:
        super().notify(f"{key} {detail}", text, detail)


@pytest.mark.parametrize(
    ("rules", "key"),
    [(IDLE, "ended"), (ORPHANS, "ended"), (SPOT, "spot:ended"), (SCALE, "scale:ended")],
    ids=["idle", "orphans", "spot", "scale"],
)
def test_keys_of_messages_keep_their_prefix(rules: ExecutionRules, key: str) -> None:
    world = idle_world()
    Executor(replace(world.ports(), messages=Mail(world)), rules).notify("ended", "ended")
    assert list(world.messages) == [f"{key} {{}}"]


def test_a_message_about_an_instance_says_which_one_can_be_kept() -> None:
    world = idle_world()
    Executor(replace(world.ports(), messages=Mail(world)), IDLE).notify("ended", "ended", decided())
    detail = {"instance": ONE, "pool": "batch", "action": "end"}
    assert list(world.messages) == [f"ended {detail}"]


def test_a_message_that_cannot_be_written_fails_the_step_and_not_the_pass() -> None:
    """The end has happened: the next pass sees that it has, notifies and settles it."""
    world = idle_world()
    run = executor(world)
    faults = iter([True])

    def broken(name: str) -> None:
        if name == "tell" and next(faults, False):
            raise CloudError("the outbox is full")

    world.before = broken
    run.attempt(decided(), step(world, run))
    assert [(outcome.kind, outcome.error) for outcome in run.outcomes] == [(OutcomeKind.FAILED, "the outbox is full")]
    assert world.ended == [ONE]
    assert world.intents == {ONE: decided()}


def test_an_instance_is_looked_at_as_it_is_now() -> None:
    """The caller reads it anew: a tag set since the plan was made counts."""
    world = idle_world()
    seen: Instance = world.instances[ONE]
    now = replace(seen, tags={**seen.tags, tags.KEEP_UNTIL: tags.write_time(START + timedelta(days=1))})
    assert executor(world).blocked(decided(), seen) is None
    assert executor(world).blocked(decided(), now) is not None
