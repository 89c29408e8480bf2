"""Passes of the idle watchdog over a fake fleet, with faults and kills."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Action, OutcomeKind, Reason, Target
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import CapacityType, Instance, InstanceState, Phase
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, KilledError, idle_fleet, mark
from tests.fixtures.watchdogs.fake_ports import FakeAgents, FakeInventory, FakeMetrics
from tests.fixtures.watchdogs.idle import FIRST, at_call, due, make_watchdog
from tests.fixtures.watchdogs.plain import QUIET, QUIET_ENGINE, QUIET_GPU, READY, START, document, instance
from watchdogs.idle.acting import LONGEST_REQUEST
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests
from watchdogs.ports import LEASE_OVER

SECOND = instance(2).id


def test_idle_instance_is_marked_drained_and_ended() -> None:
    fake = idle_fleet(2)
    watchdog = make_watchdog(fake, min=1)

    watchdog.apply()
    assert all(one.idle_since == START for one in fake.instances.values())
    marks = [text for key, text in fake.messages.items() if key.startswith("marked:")]
    assert len(marks) == 2
    assert "0.25 USD/h" in marks[0] and "gpufleet keep" in marks[0] and "is idle" in marks[0]

    fake.now += timedelta(minutes=5)
    second = watchdog.apply()
    assert {d.reason for d in second.plan.decisions} == {Reason.MARKED_WAITING}

    fake.now += timedelta(minutes=5)
    third = watchdog.apply()
    assert sorted((d.action, d.reason) for d in third.plan.decisions) == [
        (Action.END, Reason.STILL_IDLE),
        (Action.KEEP, Reason.POOL_FLOOR),
    ]
    assert len(fake.ended) == 1
    assert fake.drains == fake.ended
    assert fake.targets["batch"].value == 1
    assert fake.groups["batch-spot-a"].desired == 1
    assert any("saves 0.25 USD/h" in text for text in fake.messages.values())
    assert fake.with_button == {key for key in fake.messages if key.startswith("marked:")}


@pytest.mark.parametrize("allowed", [pytest.param(n, id=f"{n} of four") for n in range(1, 5)])
def test_ends_per_day_are_limited(allowed: int) -> None:
    fake = idle_fleet(4)
    rules = {"max_stops_per_day": allowed / 4, "max_stops_per_run": 4, "max_stops_per_hour": 4}
    watchdog = make_watchdog(fake, min=0, watchdogs={"idle": rules})
    watchdog.apply()
    fake.now += timedelta(minutes=10)
    assert sorted((d.action, d.reason) for d in watchdog.apply().plan.decisions) == [
        *[(Action.END, Reason.STILL_IDLE)] * allowed,
        *[(Action.KEEP, Reason.DAY_BUDGET)] * (4 - allowed),
    ]
    assert len(fake.ended) == allowed


def test_a_dry_run_changes_nothing_but_makes_the_policy_seen() -> None:
    fake = idle_fleet(1)
    watchdog = IdleWatchdog(document(), fake.ports())
    blocked = watchdog.apply()
    assert [d.reason for d in blocked.plan.decisions] == [Reason.POLICY_UNSEEN]
    assert not fake.messages
    dry = watchdog.dry()
    assert [d.action for d in dry.plan.decisions] == [Action.MARK]  # what an apply would do once this was read
    assert not fake.messages and not fake.plans[1:]
    watchdog.apply()
    assert fake.instances[FIRST].idle_since == START


def test_work_takes_the_mark_away() -> None:
    fake = idle_fleet(1)
    mark(fake, 1, START - timedelta(minutes=20))
    assert QUIET.engine is not None
    fake.evidence[FIRST] = replace(QUIET, engine=replace(QUIET.engine, running_max=1.0))
    done = make_watchdog(fake).apply()
    assert [(d.action, d.reason) for d in done.plan.decisions] == [(Action.UNMARK, Reason.WORK_IS_BACK)]
    assert tags.IDLE_SINCE not in fake.instances[FIRST].tags


def _work(fake: FakeFleet) -> None:
    assert QUIET.engine is not None
    fake.evidence[FIRST] = replace(QUIET, engine=replace(QUIET.engine, running_max=3.0))


@pytest.mark.parametrize("call", ["statuses", "query", "in_rollout"])
def test_a_lease_lost_during_the_second_check_drains_nothing(call: str) -> None:
    fake = due(1)

    def over(step: str) -> None:
        if step == call and fake.plans:
            fake.lease_is_ours = False

    fake.before = over
    done = make_watchdog(fake).apply()
    assert [(o.kind, o.detail) for o in done.outcomes] == [(OutcomeKind.NO_LONGER_TRUE, LEASE_OVER)]
    assert not fake.agents[FIRST].draining


def test_a_lease_lost_during_a_drain_ends_nothing() -> None:
    fake = due(1)
    fake.before = at_call("instance", lambda: setattr(fake, "lease_is_ours", False), nth=2)
    done = make_watchdog(fake).apply()
    assert [(o.kind, o.detail) for o in done.outcomes] == [(OutcomeKind.NO_LONGER_TRUE, LEASE_OVER)]
    assert fake.drains == [FIRST] and not fake.ended and fake.targets["batch"].value == 1


def test_a_running_instance_of_an_unfinished_end_is_not_reported_as_ended() -> None:
    fake = due(1)
    (begun,) = make_watchdog(fake).dry().plan.acting
    fake.intents["idle", FIRST] = begun
    _work(fake)
    done = make_watchdog(fake).apply()
    assert [(o.decision.action, o.kind) for o in done.outcomes] == [(Action.UNMARK, OutcomeKind.DONE)]
    assert not any(key.startswith("ended:") for key in fake.messages)


@pytest.mark.parametrize("marked", [False, True], ids=["mark", "unmark"])
def test_a_pass_whose_lease_is_over_writes_no_marks(marked: bool) -> None:
    fake = due(1)
    if marked:
        fake.evidence[FIRST] = replace(QUIET, engine=replace(QUIET_ENGINE, running_max=1.0))
    else:
        old = fake.instances[FIRST]
        fake.instances[FIRST] = replace(old, tags={k: v for k, v in old.tags.items() if k != tags.IDLE_SINCE})
    before = dict(fake.instances[FIRST].tags)
    fake.lease_is_ours = False
    done = make_watchdog(fake).apply()
    assert [(o.decision.action, o.kind) for o in done.outcomes] == [
        (Action.UNMARK if marked else Action.MARK, OutcomeKind.NO_LONGER_TRUE)
    ]
    assert fake.instances[FIRST].tags == before and not fake.messages


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        pytest.param(_work, "requests in flight", id="work came"),
        pytest.param(lambda w: w.instances.pop(FIRST), "already terminated", id="terminated"),
        pytest.param(lambda w: w.rollouts.add("batch-spot-a"), Reason.IN_ROLLOUT.sentence, id="a rollout began"),
        pytest.param(
            lambda w: w.instances.__setitem__(FIRST, replace(w.instances[FIRST], tags={})), "mark", id="unmarked"
        ),
        pytest.param(
            lambda w: w.brakes.append(
                Brake(since=START, kind=BrakeKind.PAUSE, scope="all", owner="ana", reason="launch day", until=None)
            ),
            "paused by ana",
            id="paused",
        ),
        pytest.param(
            lambda w: w.brakes.append(
                Brake(since=START, kind=BrakeKind.KEEP, scope=FIRST, owner="ana", reason="debugging", until=None)
            ),
            "kept by ana",
            id="kept",
        ),
        pytest.param(
            lambda w: w.brakes.append(
                Brake(since=START, kind=BrakeKind.PAUSE, scope="batch", owner="ana", reason="launch day", until=None)
            ),
            "paused by ana",
            id="its pool paused",
        ),
        pytest.param(
            lambda w: w.brakes.append(
                Brake(since=START, kind=BrakeKind.TARGET, scope="batch", owner="ana", reason="launch day", until=None)
            ),
            "its pool's target is held by ana",
            id="its pool's target held",
        ),
        pytest.param(lambda w: setattr(w, "lease_is_ours", False), "lease", id="lease lost"),
        pytest.param(lambda w: w.evidence.pop(FIRST), "metrics missing", id="no metrics"),
        pytest.param(lambda w: w.agents.pop(FIRST), "node agent", id="no agent"),
    ],
)
def test_instance_is_checked_again_before_its_drain(change: Callable[[FakeFleet], None], detail: str) -> None:
    fake = due(1)
    # the first `instance` call is the second look
    fake.before = at_call("instance", lambda: change(fake))
    done = make_watchdog(fake).apply()
    assert [outcome.kind for outcome in done.outcomes] == [OutcomeKind.NO_LONGER_TRUE]
    assert detail in done.outcomes[0].detail
    assert not fake.drains and not fake.ended


def keep_by_brake(fake: FakeFleet) -> None:
    fake.brakes.append(
        Brake(since=START, kind=BrakeKind.KEEP, scope=FIRST, owner="ana", reason="debugging", until=None)
    )


def keep_by_tag(fake: FakeFleet) -> None:
    old = fake.instances[FIRST]
    until = tags.write_time(fake.now + timedelta(hours=4))
    fake.instances[FIRST] = replace(old, tags={**old.tags, tags.KEEP_UNTIL: until})


@pytest.mark.parametrize("keep", [keep_by_brake, keep_by_tag])
def test_instance_is_checked_again_after_its_drain_and_a_keep_blocks_the_end(
    keep: Callable[[FakeFleet], None],
) -> None:
    fake = due(1)
    fake.before = at_call("instance", lambda: keep(fake), nth=2)
    watchdog = make_watchdog(fake)
    done = watchdog.apply()
    assert fake.drains == [FIRST]
    assert [outcome.kind for outcome in done.outcomes] == [OutcomeKind.NO_LONGER_TRUE]
    fake.before = lambda name: None
    fake.now += timedelta(minutes=5)
    again = watchdog.apply()
    assert [(d.action, d.reason) for d in again.plan.decisions] == [(Action.KEEP, Reason.KEPT_BY_PEOPLE)]
    assert not fake.ended and fake.targets["batch"].value == 1


def test_instance_without_a_group_is_not_drained() -> None:
    fake = due(1)
    fake.instances[FIRST] = replace(fake.instances[FIRST], group=None)
    done = make_watchdog(fake).apply()
    assert [(d.action, d.reason) for d in done.plan.decisions] == [(Action.KEEP, Reason.OUTSIDE_POOLS)]
    assert not fake.drains and not fake.ended


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        pytest.param({"group": None}, True, id="tags alone"),
        pytest.param({"group": "dev-chat-a"}, True, id="another environment's group"),
        pytest.param({}, False, id="a member"),
        pytest.param({"group": None, "tags": {}}, False, id="without a pool's tag"),
        pytest.param({"group": "new", "launched_at": START}, False, id="a pulumi up is at work"),
    ],
)
def test_people_are_notified_once_a_day_of_who_claims_a_pool_by_tags(
    changes: dict[str, Any], *, reported: bool
) -> None:
    fake = idle_fleet(2)
    claim = {"tags": {tags.POOL: "batch", tags.ENVIRONMENT: "test"}} | changes
    fake.instances[FIRST] = replace(fake.instances[FIRST], **claim)
    for _ in range(2):
        make_watchdog(fake).apply()
    claims = [text for key, text in fake.messages.items() if key.startswith("claims:")]
    assert len(claims) == reported
    assert all(FIRST in text and "gpu-fleet:pool = batch" in text and "End it" in text for text in claims)
    assert not fake.drains and not fake.ended


def test_people_are_notified_of_who_claims_a_pool_and_no_environment() -> None:
    """The inventory of an environment is asked by its tag, so it lacks such an instance."""
    fake = idle_fleet(2)
    unmanaged = replace(fake.instances[FIRST], id="i-unmanaged", pool=None, group=None, environment=None)
    fake.claiming = [replace(unmanaged, tags={tags.POOL: "batch"})]
    for _ in range(2):
        make_watchdog(fake).apply()
    (message,) = [text for key, text in fake.messages.items() if key.startswith("claims:")]
    assert "i-unmanaged" in message and "without an environment's tag" in message


@pytest.mark.parametrize(
    ("machines", "reported"),
    [(["i-router"], False), ([], True), (["i-other"], True), (None, False)],
    ids=["one of ours", "there are none", "another", "a document of before"],
)
def test_people_are_notified_of_who_claims_to_be_a_router(machines: list[str] | None, *, reported: bool) -> None:
    fake = idle_fleet(2)
    claim = {tags.ROLE: tags.ROUTER, tags.ENVIRONMENT: "test"}
    fake.instances["i-router"] = replace(fake.instances[FIRST], id="i-router", pool=None, group=None, tags=claim)
    fleet = document()
    router = fleet.router.model_copy(update={"machines": None if machines is None else tuple(machines)})
    fleet = fleet.model_copy(update={"router": router})
    fake.seen.add(("idle", "batch", digests(fleet, "idle")["batch"]))
    IdleWatchdog(fleet, fake.ports()).apply()
    claims = [text for key, text in fake.messages.items() if key.startswith("claims:")]
    assert len(claims) == reported
    assert all("gpu-fleet:role = router" in text for text in claims)


def test_claims_that_cannot_be_listed_stop_no_pass() -> None:
    fake = idle_fleet(2)

    def refuse(call: str) -> None:
        if call == "claiming":
            raise CloudError("describe_instances: 503")

    fake.before = refuse
    make_watchdog(fake).apply()
    assert all(one.idle_since == START for one in fake.instances.values())


def test_instance_that_left_its_group_after_the_plan_is_not_drained() -> None:
    fake = due(1)

    def detach() -> None:
        fake.instances[FIRST] = replace(fake.instances[FIRST], group=None)

    fake.before = at_call("instance", detach)
    done = make_watchdog(fake).apply()
    assert [outcome.kind for outcome in done.outcomes] == [OutcomeKind.FAILED]
    assert "no group" in (done.outcomes[0].error or "")
    assert not fake.drains and not fake.ended


def test_an_instance_that_two_pages_name_counts_once_for_the_floor() -> None:
    fake = due(2)

    class Twice(FakeInventory):
        def instances(self) -> Sequence[Instance]:
            found = [*super().instances()]
            return [*found, *found]

    fleet = document(min=1, target=1)
    fake.seen.add(("idle", "batch", digests(fleet, "idle")["batch"]))
    done = IdleWatchdog(fleet, replace(fake.ports(), inventory=Twice(fake))).apply()
    assert len(done.plan.decisions) == 2
    assert len(fake.ended) == 1


def test_an_empty_list_of_a_running_pool_ends_nothing() -> None:
    fake = due(2)

    class Empty(FakeInventory):
        def instances(self) -> Sequence[Instance]:
            return []

    watchdog = make_watchdog(fake)
    ports = replace(fake.ports(), inventory=Empty(fake))
    done = IdleWatchdog(document(), ports).apply()
    assert done.plan.decisions == () and not fake.ended and not fake.drains
    assert [text for text in fake.messages.values() if "missing from the list of instances" in text]
    for key in fake.instances:
        fake.instances[key] = replace(fake.instances[key], state=InstanceState.TERMINATED)
    assert IdleWatchdog(document(), ports).apply().plan.decisions == (), "they are terminated"
    assert watchdog.apply().outcomes == ()


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        pytest.param({}, True, id="it is watched"),
        pytest.param({"watchdogs": {"idle": {}}}, True, id="by this watchdog alone"),
        pytest.param({"watchdogs": {"spot": {}}}, False, id="nothing of it could be ended"),
        pytest.param({"target": 0, "min": 0}, False, id="it shall have none"),
    ],
)
def test_an_empty_list_is_detected_without_any_metrics(changes: Mapping[str, Any], reported: bool) -> None:
    fake = due(2)
    fake.evidence.clear()
    fake.targets.clear()

    class Empty(FakeInventory):
        def instances(self) -> Sequence[Instance]:
            return []

    ports = replace(fake.ports(), inventory=Empty(fake))
    IdleWatchdog(document(**changes), ports).apply()
    assert not fake.ended
    assert any("missing from the list of instances" in text for text in fake.messages.values()) is reported


def test_a_later_pass_continues_a_slow_drain() -> None:
    fake = due(1)
    fake.drain_takes = timedelta(minutes=3)
    watchdog = make_watchdog(fake)
    first = watchdog.apply()
    assert [(o.kind, o.detail) for o in first.outcomes] == [
        (OutcomeKind.WAITING, "its agent has not reported `drained` yet; the next pass continues")
    ]
    assert not fake.ended and not any(key.startswith("unheard:") for key in fake.messages)
    fake.now += timedelta(minutes=3)
    second = watchdog.apply()
    assert [outcome.kind for outcome in second.outcomes] == [OutcomeKind.DONE]
    assert fake.ended == [FIRST] and fake.drains == [FIRST]


@pytest.mark.parametrize(
    "call",
    ["instances", "query", "interval", "statuses", "brakes", "targets", "ended_since", "boots"],
)
def test_an_incomplete_observation_fails_the_pass(call: str) -> None:
    fake = due(2)

    def fail() -> None:
        raise CloudError("half a page")

    fake.before = at_call(call, fail)
    with pytest.raises(CloudError, match="half a page"):
        make_watchdog(fake).apply()
    assert not fake.ended and not fake.drains and not fake.plans


def test_a_group_whose_rollouts_cannot_be_read_is_left_alone() -> None:
    fake = due(2)

    def fail(name: str) -> None:
        if name == "in_rollout":
            raise CloudError("throttled")

    fake.before = fail
    done = make_watchdog(fake).apply()
    assert {d.reason for d in done.plan.decisions} == {Reason.GROUP_UNREADABLE}
    assert not fake.ended and not fake.drains


def test_a_refused_step_fails_alone() -> None:
    fake = due(2)

    def fail() -> None:
        raise CloudError("throttled")

    fake.before = at_call("drain", fail)
    done = make_watchdog(fake).apply()
    assert sorted(outcome.kind for outcome in done.outcomes) == [OutcomeKind.DONE, OutcomeKind.FAILED]
    assert len(fake.ended) == 1


def _calls_of_a_pass(make: Callable[[], FakeFleet]) -> int:
    fake = make()
    count = [0]

    def tally(_: str) -> None:
        count[0] += 1

    fake.before = tally
    make_watchdog(fake).apply()
    return count[0]


@pytest.mark.parametrize("stage", ["marking", "ending", "ending what takes its time to go"])
def test_after_a_kill_at_any_call_the_next_pass_continues(stage: str) -> None:
    def make() -> FakeFleet:
        fake = idle_fleet(2) if stage == "marking" else due(2)
        fake.lingers = stage not in ("marking", "ending")
        return fake

    for nth in range(1, _calls_of_a_pass(make) + 1):
        fake = make()
        left = [nth]

        def kill(_: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise KilledError

        fake.before = kill
        watchdog = make_watchdog(fake)
        with pytest.raises(KilledError):
            watchdog.apply()
        fake.before = lambda _: None
        watchdog.apply()
        if stage == "marking":
            assert all(one.idle_since is not None for one in fake.instances.values()), nth
            shown = [key for key in fake.messages if key.startswith("marked:")]
            watchdog.apply()  # marked in the killed pass, notified in this one at the latest
            shown = [key for key in fake.messages if key.startswith("marked:")]
            assert len(shown) == 2, nth
            continue
        assert sorted(fake.ended) == [FIRST, SECOND], nth
        assert fake.targets["batch"].value == 0, nth
        assert fake.groups["batch-spot-a"].desired == 0, nth
        done = {r for r, kind in fake.kinds() if kind is OutcomeKind.DONE}
        assert done == {FIRST, SECOND}, nth
        assert {key for key in fake.messages if key.startswith("ended:")} == {f"ended:{FIRST}", f"ended:{SECOND}"}
        assert not fake.intents


def test_instance_that_its_group_already_ends_is_left_to_it() -> None:
    fake = due(2)
    fake.lingers = True
    watchdog = make_watchdog(fake, watchdogs={"idle": {"max_stops_per_run": 1}})
    first = watchdog.apply()
    assert [outcome.kind for outcome in first.outcomes] == [OutcomeKind.DONE]
    ended = fake.ended[0]
    second = watchdog.apply()
    shown = {d.resource: (d.action, d.reason, d.detail) for d in second.plan.decisions}
    assert shown[ended] == (Action.KEEP, Reason.DRAINING, "drained; its group is ending it")
    assert sorted(fake.ended) == [FIRST, SECOND], "the other one had the whole budget of its run"
    assert watchdog.apply().outcomes == ()
    assert (fake.groups["batch-spot-a"].desired, fake.targets["batch"].value) == (0, 0)


def left_by_its_group(fake: FakeFleet) -> None:
    group = fake.groups["batch-spot-a"]
    fake.groups["batch-spot-a"] = replace(group, instance_ids=(), leaving=frozenset({FIRST}))


def changed(**changes: Any) -> Callable[[FakeFleet], None]:
    return lambda fake: fake.instances.update({FIRST: replace(fake.instances[FIRST], **changes)})


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        pytest.param(left_by_its_group, OutcomeKind.NO_LONGER_TRUE, "its group is ending it already", id="leaving"),
        pytest.param(
            changed(state=InstanceState.TERMINATED),
            OutcomeKind.NO_LONGER_TRUE,
            "it is already terminated",
            id="ended",
        ),
        pytest.param(
            lambda fake: fake.instances.pop(FIRST),
            OutcomeKind.NO_LONGER_TRUE,
            "it is already terminated",
            id="not there",
        ),
        pytest.param(
            changed(group=None), OutcomeKind.FAILED, "it belongs to no group, so it cannot be ended", id="of no group"
        ),
    ],
)
def test_instance_whose_owner_changed_during_its_drain_is_not_ended(
    change: Callable[[FakeFleet], None], kind: OutcomeKind, message: str
) -> None:
    fake = due(1)
    fake.before = at_call("instance", lambda: change(fake), nth=2)
    done = make_watchdog(fake).apply()
    assert [(outcome.kind, outcome.error or outcome.detail) for outcome in done.outcomes] == [(kind, message)]
    assert not fake.ended and not fake.intents and fake.targets["batch"].value == 1


def test_a_store_failure_in_the_final_check_ends_nothing_and_notifies() -> None:
    fake = due(1)

    def fail(name: str) -> None:
        if name == "query" and fake.drains:
            raise CloudError("no route to host")

    fake.before = fail
    done = make_watchdog(fake).apply()
    assert [(outcome.kind, outcome.error) for outcome in done.outcomes] == [(OutcomeKind.FAILED, "no route to host")]
    assert not fake.ended and any("no route to host" in text for text in fake.messages.values())


@dataclass
class RefusesTags(FakeInventory):
    """A cloud that writes no tag and takes none away, and says so for each instance."""

    def tag(self, instance_ids: Sequence[str], values: Mapping[str, str]) -> Mapping[str, str]:
        return dict.fromkeys(instance_ids, "throttled")

    def untag(self, instance_ids: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
        return dict.fromkeys(instance_ids, "throttled")


@pytest.mark.parametrize(
    ("marked", "works", "kind"),
    [
        pytest.param(False, "not", OutcomeKind.FAILED, id="mark"),
        pytest.param(True, "before the pass", OutcomeKind.FAILED, id="unmark"),
        pytest.param(True, "at the second look", OutcomeKind.NO_LONGER_TRUE, id="unmark at the second look"),
    ],
)
def test_a_refused_mark_is_not_reported_as_written(marked: bool, works: str, kind: OutcomeKind) -> None:
    fake = due(1) if marked else idle_fleet(1)
    if works == "before the pass":
        _work(fake)
    elif works == "at the second look":
        fake.before = at_call("instance", lambda: _work(fake))
    make_watchdog(fake)  # its policy is seen
    (outcome,) = IdleWatchdog(document(), replace(fake.ports(), inventory=RefusesTags(fake))).apply().outcomes
    assert outcome.kind is kind
    assert not fake.messages and not fake.drains


def test_an_end_begun_by_a_killed_pass_still_uses_its_budget() -> None:
    fake = due(2)
    fake.kill_at("lower_target", make_watchdog(fake, min=1).apply)
    ((_, begun),) = fake.intents
    # of the other one it is known by now that it has been idle for longer, so its turn comes first
    mark(fake, 2 if begun == FIRST else 1, START - timedelta(hours=1))
    make_watchdog(fake, min=1).apply()
    assert fake.drains == fake.ended == [begun], "the last one serves on: there is no way back from a drain"
    assert fake.targets["batch"].value == 1


def test_budgets_block_ends_with_their_reason() -> None:
    fake = due(4)
    done = make_watchdog(fake).apply()
    assert sorted(d.reason for d in done.plan.decisions) == [Reason.RUN_BUDGET] * 2 + [Reason.STILL_IDLE] * 2
    assert len(fake.ended) == 2


def test_the_hours_budget_counts_earlier_passes() -> None:
    fake = due(4)
    watchdog = make_watchdog(fake, watchdogs={"idle": {"max_stops_per_hour": 3}, "spot": {}})
    watchdog.apply()
    second = watchdog.apply()
    assert len(fake.ended) == 3
    assert Reason.HOUR_BUDGET in {d.reason for d in watchdog.apply().plan.decisions}
    assert len(second.plan.acting) == 1
    fake.now += timedelta(hours=1, minutes=1)
    watchdog.apply()
    assert len(fake.ended) == 4


def test_instance_without_metrics_is_kept_and_does_not_count_for_the_floor() -> None:
    fake = due(2)
    fake.evidence[SECOND] = replace(QUIET, engine=None)
    done = make_watchdog(fake, min=1).apply()
    assert {d.resource: d.reason for d in done.plan.decisions} == {
        FIRST: Reason.POOL_FLOOR,
        SECOND: Reason.METRICS_MISSING,
    }


@pytest.mark.parametrize(
    ("third", "ended"),
    [
        pytest.param({"running_max": 1.0}, True, id="a busy one"),
        pytest.param({"newest_age": timedelta(minutes=5)}, False, id="one whose engine does not report"),
    ],
)
def test_second_check_uses_the_same_instances_as_the_plan(third: dict[str, Any], ended: bool) -> None:
    fake = due(2)
    other = instance(9)
    assert QUIET.engine is not None
    fake.instances[other.id], fake.agents[other.id] = other, READY
    fake.evidence[other.id] = replace(QUIET, engine=replace(QUIET.engine, **third))

    def the_neighbour_leaves(name: str) -> None:
        if name == "record":
            fake.agents[SECOND] = replace(READY, ready=False)

    fake.before = the_neighbour_leaves
    make_watchdog(fake, min=1).apply()
    assert (FIRST in fake.drains) is ended


@pytest.mark.parametrize(
    ("scope", "until", "ended"),
    [
        pytest.param("batch", None, False, id="until a person resumes"),
        pytest.param("batch", timedelta(hours=4), False, id="until later"),
        pytest.param("batch", timedelta(0), True, id="over"),
        pytest.param("other", None, True, id="another pool's"),
    ],
)
def test_a_held_target_is_not_lowered_by_an_end(scope: str, until: timedelta | None, ended: bool) -> None:
    fake = due(1)
    end = None if until is None else fake.now + until
    fake.brakes.append(
        Brake(since=START, kind=BrakeKind.TARGET, scope=scope, owner="ana", reason="launch", until=end)
    )
    done = make_watchdog(fake).apply()
    assert (fake.ended == [FIRST]) is ended
    if not ended:
        (decision,) = done.plan.decisions
        assert decision.reason is Reason.KEPT_BY_PEOPLE and decision.detail.startswith("target held by ana until ")
        assert fake.targets["batch"].value == 1 and not fake.drains


HELD = Brake(since=START, kind=BrakeKind.TARGET, scope="batch", owner="ana", reason="launch", until=None)


def test_a_target_held_during_a_drain_is_not_lowered_and_the_end_proceeds() -> None:
    fake = due(1)
    fake.before = at_call("instance", lambda: fake.brakes.append(HELD), nth=2)
    make_watchdog(fake).apply()
    assert fake.ended == [FIRST] and fake.targets["batch"].value == 1


def test_a_target_held_after_a_drain_began_does_not_stop_the_drain() -> None:
    """It serves nothing any more: keeping it would prevent what the person asked for."""
    fake = due(2)
    drained = replace(READY, phase=Phase.DRAINED, ready=False, drained=True, drain_by=DrainOwner.IDLE)
    fake.agents[FIRST] = drained
    fake.brakes.append(HELD)
    make_watchdog(fake).apply()
    assert fake.ended == [FIRST] and fake.targets["batch"].value == 2


def test_a_drain_continues_when_the_target_has_reached_the_floor() -> None:
    """Scale may have lowered it meanwhile; what drains serves nothing, and would cost for ever."""
    fake = due(2)
    fake.agents[FIRST] = replace(READY, phase=Phase.DRAINED, ready=False, drained=True, drain_by=DrainOwner.IDLE)
    fake.targets["batch"] = Target(pool="batch", value=1, version=9)
    make_watchdog(fake, min=1).apply()
    assert fake.ended == [FIRST] and fake.targets["batch"].value == 1


@pytest.mark.parametrize(
    ("age", "ends"),
    [pytest.param(20, [], id="billed for nothing"), pytest.param(90, [FIRST], id="billed for what it ran")],
)
def test_drained_spot_under_notice_in_its_free_hour_is_left_to_the_cloud(age: int, ends: list[str]) -> None:
    fake = due(1)
    fake.instances[FIRST] = replace(fake.instances[FIRST], launched_at=START - timedelta(minutes=age))
    drained = replace(READY, phase=Phase.DRAINED, ready=False, drained=True, drain_by=DrainOwner.IDLE)
    fake.agents[FIRST] = replace(drained, notice_at=START)
    done = make_watchdog(fake).apply()
    assert fake.ended == ends
    (decision,) = [one for one in done.plan.decisions if one.resource == FIRST]
    assert (decision.reason is Reason.PREEMPTED) == (not ends)


def test_a_notice_that_comes_while_idle_drains_leaves_the_end_to_its_cloud() -> None:
    fake = due(1)
    fake.instances[FIRST] = replace(fake.instances[FIRST], launched_at=START - timedelta(minutes=40))
    drained = replace(READY, phase=Phase.DRAINED, ready=False, drained=True, drain_by=DrainOwner.IDLE)
    fake.agents[FIRST] = drained

    def notice(call: str) -> None:
        if call == "instance":
            fake.agents[FIRST] = replace(drained, notice_at=fake.now)

    fake.before = notice
    before = fake.targets["batch"].value
    make_watchdog(fake).apply()
    assert not fake.ended and not fake.intents and fake.targets["batch"].value == before


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        pytest.param({"launched_at": START - timedelta(minutes=40)}, 1, id="its cloud may take it for nothing"),
        pytest.param({"launched_at": START - timedelta(minutes=90)}, 0, id="it is charged"),
        pytest.param(
            {"launched_at": START - timedelta(minutes=40), "capacity_type": CapacityType.ON_DEMAND}, 0, id="on demand"
        ),
    ],
)
def test_an_agent_is_asked_about_a_notice_only_where_that_keeps_its_instance(
    changes: dict[str, Any], more: int
) -> None:
    fake = due(1)
    fake.instances[FIRST] = replace(fake.instances[FIRST], **changes)
    drained = replace(READY, phase=Phase.DRAINED, ready=False, drained=True, drain_by=DrainOwner.IDLE)
    fake.agents[FIRST] = drained
    calls: list[str] = []
    fake.before = calls.append
    make_watchdog(fake).apply()
    assert fake.ended == [FIRST]
    assert calls[: calls.index("end")][-6:].count("statuses") == more


def test_a_paused_pool_is_unchanged_and_names_who_paused_it() -> None:
    fake = due(1)
    fake.brakes.append(
        Brake(since=START, kind=BrakeKind.PAUSE, scope="batch", owner="ana", reason="load test", until=None)
    )
    done = make_watchdog(fake).apply()
    assert [(d.action, d.reason) for d in done.plan.decisions] == [(Action.KEEP, Reason.PAUSED)]
    assert "ana" in done.plan.decisions[0].detail


def test_every_instance_gets_one_decision() -> None:
    fake = due(3)
    unmanaged = instance(9, pool=None, group=None)
    fake.instances[unmanaged.id] = unmanaged
    done = make_watchdog(fake).apply()
    assert sorted(d.resource for d in done.plan.decisions) == sorted(fake.instances)
    shown = next(d for d in done.plan.decisions if d.resource == unmanaged.id)
    assert (shown.action, shown.reason) == (Action.KEEP, Reason.OUTSIDE_POOLS)
    assert shown.usd_per_hour is not None, "listed with its price"
    assert fake.agents[FIRST] is not READY


BUSY = replace(
    QUIET,
    engine=replace(QUIET_ENGINE, running_max=3.0, tokens=9e5, counter_changes=100.0),
    gpu=replace(QUIET_GPU, active_max=0.7),
)


def silent(fake: FakeFleet) -> None:
    old = timedelta(minutes=20)
    engine, gpu = replace(QUIET_ENGINE, newest_age=old), replace(QUIET_GPU, newest_age=old)
    fake.evidence[SECOND] = replace(BUSY, engine=engine, gpu=gpu)


def lost_meanwhile(fake: FakeFleet) -> None:
    """Its agent is asked a second time, right before the other one is to be drained."""
    asked: list[str] = []

    def before(name: str) -> None:
        asked.append(name)
        if asked.count("statuses") == 2:
            fake.agents.pop(SECOND, None)

    fake.before = before


def lost_next_to_a_silent_one(fake: FakeFleet) -> None:
    third = instance(3)
    fake.instances[third.id], fake.agents[third.id] = third, READY
    silent(fake)
    fake.evidence[third.id], fake.evidence[SECOND] = fake.evidence[SECOND], BUSY
    lost_meanwhile(fake)


def reports(status: AgentStatus) -> Callable[[FakeFleet], None]:
    return lambda fake: fake.agents.update({SECOND: status})


LEAVES = replace(READY, phase=Phase.DRAINING, draining=True, ready=False, requests_running=3)
TAKEN = replace(LEAVES, drain_by=DrainOwner.CLOUD, notice_at=START)


@pytest.mark.parametrize(
    ("change", "ended"),
    [
        pytest.param(lambda _: None, True, id="it serves"),
        pytest.param(reports(TAKEN), False, id="it is taken, and still busy"),
        pytest.param(reports(replace(LEAVES, drained=True, drain_by=DrainOwner.PERSON)), False, id="drained by hand"),
        pytest.param(reports(replace(READY, phase=Phase.FAILED, ready=False)), False, id="its boot failed"),
        pytest.param(reports(replace(READY, ready=False)), False, id="it changes its revision"),
        pytest.param(lambda fake: fake.agents.pop(SECOND), False, id="its agent is silent"),
        pytest.param(silent, False, id="silent for twenty minutes"),
        pytest.param(lost_meanwhile, False, id="lost between plan and drain"),
        pytest.param(lost_next_to_a_silent_one, False, id="lost, next to one whose engine is silent"),
    ],
)
def test_last_instance_stays_unless_another_serves_the_pool(change: Callable[[FakeFleet], None], ended: bool) -> None:
    fake = idle_fleet(2)
    fake.evidence[SECOND] = BUSY
    mark(fake, 1, START - timedelta(hours=1))
    change(fake)
    make_watchdog(fake, min=1).apply()
    assert (fake.ended == [FIRST]) is ended
    assert (fake.drains == [FIRST]) is ended


def test_the_second_check_counts_only_the_same_pool() -> None:
    fake = idle_fleet(2)
    mark(fake, 1, START - timedelta(hours=1))
    fleet = document(min=1)
    (batch,) = fleet.pools
    there = [group.model_copy(update={"name": f"chat-{group.name}"}) for group in batch.groups]
    chat = batch.model_copy(update={"name": "chat", "groups": tuple(there)})
    for name, group in list(fake.groups.items()):
        fake.groups[f"chat-{name}"] = replace(group, name=f"chat-{name}", pool="chat", instance_ids=())
    # agents of a pool are asked where one of it may be idle
    for number, evidence in ((3, BUSY), (4, QUIET)):
        other = instance(number, pool="chat", group="chat-batch-spot-a")
        fake.instances[other.id], fake.agents[other.id], fake.evidence[other.id] = other, READY, evidence
    fake.evidence[SECOND] = BUSY
    fake.targets["chat"] = Target(pool="chat", value=1, version=1)
    fake.seen.add(("idle", "batch", digests(fleet, "idle")["batch"]))
    lost_meanwhile(fake)
    watchdog = IdleWatchdog(fleet.model_copy(update={"pools": (batch, chat)}), fake.ports())
    (outcome,) = watchdog.apply().outcomes
    assert (outcome.kind, fake.drains) == (OutcomeKind.NO_LONGER_TRUE, [])
    assert Reason.POOL_FLOOR.sentence in outcome.detail


def slow_at_the_second_look(seconds: float) -> FakeFleet:
    """Marked an hour ago; each later query takes this long."""
    fake, asked = idle_fleet(1), list[str]()
    mark(fake, 1, START - timedelta(hours=1))

    def before(name: str) -> None:
        asked.append(name)
        if asked.count("instance") and name == "query":
            fake.now += timedelta(seconds=seconds)

    fake.before = before
    return fake


def test_work_that_begins_while_a_slow_store_answers_is_seen() -> None:
    fake = slow_at_the_second_look(10)
    slow = fake.before

    def work_begins(name: str) -> None:
        at = fake.now
        slow(name)
        if fake.now > at:
            fake.agents[FIRST] = replace(READY, requests_running=3)

    fake.before = work_begins
    (outcome,) = make_watchdog(fake).apply().outcomes
    assert (outcome.kind, "3 running" in outcome.detail) == (OutcomeKind.NO_LONGER_TRUE, True)
    assert not fake.drains


def test_a_check_that_took_too_long_drains_nothing() -> None:
    fake = slow_at_the_second_look(40)
    (outcome,) = make_watchdog(fake).apply().outcomes
    assert outcome.kind is OutcomeKind.NO_LONGER_TRUE
    assert outcome.detail == "metrics stale the check before the end took 120 s"
    assert not fake.drains


def test_a_mark_older_than_work_that_no_pass_saw_is_taken_away_and_a_new_grace_begins() -> None:
    """Marked, then paused (or blind, or switched off) for hours of work: the window before now is quiet again."""
    fake = idle_fleet(1)
    mark(fake, 1, START - timedelta(hours=5))
    fleet = document()
    fake.seen.add(("idle", "batch", digests(fleet, "idle")["batch"]))
    watchdog = IdleWatchdog(fleet, replace(fake.ports(), metrics=Remembering(fake)))
    (outcome,) = watchdog.apply().outcomes
    assert outcome.kind is OutcomeKind.NO_LONGER_TRUE
    assert "100 tokens" in outcome.detail or "running" in outcome.detail
    assert fake.instances[FIRST].idle_since is None
    assert [text for key, text in fake.messages.items() if key.startswith("stays:")]
    assert not fake.drains
    fake.now += timedelta(minutes=1)
    assert [d.action for d in watchdog.apply().plan.decisions] == [Action.MARK]
    fake.now += timedelta(minutes=9)
    watchdog.apply()
    assert not fake.ended
    fake.now += timedelta(minutes=1)
    watchdog.apply()
    assert fake.ended == [FIRST]


class Remembering(FakeMetrics):
    """A store whose instance worked until one hour before the start: only a longer window shows it."""

    def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
        spans = [int(seconds) for seconds in re.findall(r"\[(\d+)s\]", expression)]
        seen = bool(spans) and at - timedelta(seconds=max(spans)) < START - timedelta(hours=1)
        self.fleet.evidence[FIRST] = BUSY if seen else QUIET
        return super().query(expression, at)


def test_a_request_that_comes_at_the_moment_of_the_drain_may_finish() -> None:
    fake = idle_fleet(1)
    mark(fake, 1, START - timedelta(hours=1))
    deadlines: list[timedelta] = []
    ports = fake.ports()

    class Patient(FakeAgents):
        def drain(self, instance: Instance, by: DrainOwner, reason: str, deadline: timedelta) -> AgentStatus:
            deadlines.append(deadline)
            return super().drain(instance, by, reason, deadline)

    fleet = document(drain_deadline="90s")
    fake.seen.add(("idle", "batch", digests(fleet, "idle")["batch"]))
    IdleWatchdog(fleet, replace(ports, agents=Patient(fake))).apply()
    assert deadlines == [LONGEST_REQUEST]
    assert fake.ended == [FIRST]


@pytest.mark.parametrize(("start", "ended"), [("07:00", False), ("09:00", True)], ids=["within its hours", "before"])
def test_instances_that_the_schedule_requires_are_not_ended(start: str, ended: bool) -> None:
    """Scale would launch it again at once. The time is a Saturday at 08:00."""
    fake = idle_fleet(2)
    for number in (1, 2):
        mark(fake, number, START - timedelta(hours=1))
    hours = {"days": ["sat"], "start": start, "end": "20:00", "target": 2, "timezone": "UTC"}
    make_watchdog(fake, watchdogs={"idle": {}, "scale": {"schedule": [hours]}}).apply()
    assert bool(fake.ended) is ended
