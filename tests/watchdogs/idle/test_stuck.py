"""Failing ends do not block others; budgets and floors count ends that have begun."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError
from gpufleet.domain.decisions import Action, ChangeBudget, OpenAttempts, OutcomeKind, Plan, Reason, Target
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance, InstanceState
from gpufleet.domain.policies import IdlePolicy
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet, mark
from tests.fixtures.watchdogs.fake_ports import FakeAgents, FakeGroups, FakeMetrics
from tests.fixtures.watchdogs.idle import at_call, due, make_watchdog
from tests.fixtures.watchdogs.plain import QUIET, READY, START, FakePrices, document, instance
from watchdogs.attempts import is_stuck
from watchdogs.draining import is_terminated
from watchdogs.idle.decide import UNSCALED, IdleObservation, IdlePoolView, decide
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests

FIRST, SECOND, THIRD, FOURTH = (instance(number).id for number in (1, 2, 3, 4))
FIVE_MINUTES = timedelta(minutes=5)


def rules(**changes: Any) -> dict[str, Any]:
    return {"min": 0, "watchdogs": {"idle": {"max_stops_per_day": None, **changes}}}


def passes(fake: FakeFleet, watchdog: IdleWatchdog, count: int) -> list[Plan]:
    plans: list[Plan] = []
    for _ in range(count):
        plans.append(watchdog.apply().plan)
        fake.now += FIVE_MINUTES
    return plans


@dataclass
class Refuses(FakeAgents):
    """The agents of the first two take no order."""

    def drain(self, instance: Instance, by: DrainOwner, reason: str, deadline: timedelta) -> AgentStatus:
        if instance.id in (FIRST, SECOND):
            raise CloudError("401 the agent refuses the token")
        return super().drain(instance, by, reason, deadline)


def refused(fake: FakeFleet, **changes: Any) -> IdleWatchdog:
    make_watchdog(fake, **rules(**changes))  # its policy is seen
    return IdleWatchdog(document(**rules(**changes)), replace(fake.ports(), agents=Refuses(fake)))


def test_agents_that_refuse_to_drain_do_not_hold_up_the_others() -> None:
    fake = due(4)
    passes(fake, refused(fake), 2)
    assert sorted(fake.ended) == [THIRD, FOURTH]


def test_failing_ends_are_tried_in_turn() -> None:
    fake = due(2)
    plans = passes(fake, refused(fake, max_stops_per_run=1), 4)
    assert [d.resource for plan in plans for d in plan.acting] == [FIRST, SECOND, FIRST, SECOND]


def of_stuck(pools: Mapping[str, int], runs: int, hour: Mapping[str, int]) -> IdleObservation:
    """Drains that have failed for two hours, by pool, and what the hour still allows each."""
    names = [pool for pool, count in pools.items() for _ in range(count)]
    stuck = [instance(number, pool=pool) for number, pool in enumerate(names, start=1)]
    drains = replace(READY, ready=False, draining=True, drain_by=DrainOwner.IDLE)
    policy = IdlePolicy(max_stops_per_hour=10, max_stops_per_run=runs)
    return IdleObservation(
        instances=stuck,
        evidence={one.id: QUIET for one in stuck},
        agents={one.id: drains for one in stuck},
        pools={
            pool: IdlePoolView(
                name=pool, policy=policy, floor=0, target=9, needed=UNSCALED, ended_this_hour=10 - hour.get(pool, 10)
            )
            for pool in pools
        },
        budget=ChangeBudget(per_run=runs, per_hour=100),
        attempts={one.id: OpenAttempts(first=START - timedelta(hours=2), last=START) for one in stuck},
    )


@pytest.mark.parametrize("runs", [0, 1, 2])
def test_stuck_ends_use_only_the_remaining_run_budget(runs: int) -> None:
    plan = decide(of_stuck({"batch": 3}, runs, {}), START)
    expected = [Reason.STILL_IDLE] * runs + [Reason.RUN_BUDGET] * (3 - runs)
    assert [d.reason for d in plan.decisions] == expected and len(plan.acting) == runs


def test_stuck_end_without_hour_budget_uses_no_run_budget() -> None:
    plan = decide(of_stuck({"batch": 1, "chat": 1}, 1, {"batch": 0}), START)
    assert [d.reason for d in plan.decisions] == [Reason.HOUR_BUDGET, Reason.STILL_IDLE]


def of_new(*more: Instance, **changes: Any) -> IdleObservation:
    """One of pool chat that may be ended, among others."""
    seen = of_stuck({"batch": 0, "chat": 0}, 9, {})
    new = instance(9, pool="chat", tags={tags.IDLE_SINCE: tags.write_time(START - timedelta(minutes=20))})
    return replace(
        seen,
        instances=[*more, new],
        evidence={one.id: QUIET for one in (*more, new)},
        agents={**{one.id: replace(READY, draining=True, drain_by=DrainOwner.IDLE) for one in more}, new.id: READY},
        gpus_expected={new.machine_type: 1},
        watts_rated={new.machine_type: 72.0},
        **changes,
    )


@pytest.mark.parametrize(
    ("whole", "other"),
    [
        pytest.param(ChangeBudget(per_run=9, per_hour=1), Reason.HOUR_BUDGET, id="its hour"),
        pytest.param(ChangeBudget(per_run=1, per_hour=9), Reason.STILL_IDLE, id="not its run"),
    ],
)
def test_a_drain_that_may_not_go_counts_in_the_hour_of_all(whole: ChangeBudget, other: Reason) -> None:
    seen = of_new(instance(1), budget=whole)
    full = {**seen.pools, "batch": replace(seen.pools["batch"], ended_this_hour=10)}
    plan = decide(replace(seen, pools=full), START)
    assert [d.reason for d in plan.decisions] == [Reason.HOUR_BUDGET, other]


@pytest.mark.parametrize("pool", ["left", "unwatched"])
def test_an_unfinished_action_of_an_unwatched_pool_does_not_fail_the_pass(pool: str) -> None:
    begun = instance(1, pool=pool)
    seen = of_new(begun, begun=frozenset({begun.id}), budget=ChangeBudget(per_run=9, per_hour=9))
    unwatched = IdlePoolView(name="unwatched", policy=None, floor=0, target=1)
    plan = decide(replace(seen, pools={**seen.pools, "unwatched": unwatched}), START)
    assert [d.action for d in plan.decisions] == [Action.KEEP, Action.END]


@dataclass
class Mute(FakeMetrics):
    """The GPU exporters of the first two die as they drain."""

    def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
        return [
            (labels, value)
            for labels, value in super().query(expression, at)
            if labels.get("stat") != "gpu" or labels["instance_id"] not in (FIRST, SECOND)
        ]


def test_silent_drains_do_not_block_the_others() -> None:
    fake = due(4)
    make_watchdog(fake, **rules())
    watchdog = IdleWatchdog(document(**rules()), replace(fake.ports(), metrics=Mute(fake)))
    passes(fake, watchdog, 5)
    assert sorted(fake.drains) == [FIRST, SECOND]
    passes(fake, watchdog, 8)
    assert sorted(fake.ended) == [THIRD, FOURTH]


def test_an_open_drain_precedes_a_more_expensive_one_and_keeps_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, with a floor of one, the cheaper one drains: an end of the other one would leave none."""
    fake = due(1)
    fake.drain_takes = timedelta(minutes=55)
    fleet = {**rules(max_stops_per_run=2), "min": 1}
    fake.targets["batch"] = Target(pool="batch", value=2, version=1)
    expensive = instance(2, tags={tags.IDLE_SINCE: tags.write_time(START - timedelta(minutes=20))})
    neighbour = replace(expensive, tags={})
    fake.instances[SECOND], fake.evidence[SECOND], fake.agents[SECOND] = neighbour, QUIET, READY
    usd = {FIRST: Decimal(1), SECOND: Decimal(2)}
    monkeypatch.setattr(FakePrices, "usd_per_hour", lambda _, one: usd[one.id])
    watchdog = make_watchdog(fake, **fleet)
    assert [d.resource for d in watchdog.apply().plan.acting if d.action is Action.END] == [FIRST]
    fake.instances[SECOND] = expensive
    again = watchdog.apply().plan
    assert [(d.action, d.reason) for d in again.decisions] == [
        (Action.END, Reason.STILL_IDLE), (Action.KEEP, Reason.POOL_FLOOR),
    ]  # fmt: skip
    assert fake.drains == [FIRST]


@pytest.mark.parametrize("limit", ["max_stops_per_hour", "max_stops_per_day"])
def test_failed_end_counts_toward_the_budget(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = due(5)

    def throttled(*_: object, **__: object) -> None:
        raise CloudError("Throttling")

    allowed = {"max_stops_per_hour": 1} if limit == "max_stops_per_hour" else {"max_stops_per_day": 0.2}
    watchdog = make_watchdog(fake, **rules(**allowed))
    with monkeypatch.context() as patched:
        patched.setattr(FakeGroups, "end", throttled)
        passes(fake, watchdog, 4)
    assert len(fake.drains) == len(fake.intents) == 1
    fake.agents.pop(FIRST)  # whatever is known of it
    passes(fake, watchdog, 1)
    assert fake.drains == [FIRST] and not fake.ended


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"target": 40, "max": 40, "watchdogs": {"idle": {}}}, id="a larger pool lends none"),
        pytest.param({"target": 0, "watchdogs": {"idle": {"max_stops_per_day": None}}}, id="nor one without a limit"),
    ],
)
def test_a_pools_day_is_its_own(other: dict[str, Any]) -> None:
    fake = due(2)
    fleet = document(min=0, watchdogs={"idle": {"max_stops_per_day": 0.5}})
    fleet = fleet.model_copy(
        update={"pools": (*fleet.pools, *document(name="other", min=0, groups=[], **other).pools)}
    )
    for pool in fleet.pools:
        fake.seen.add(("idle", pool.name, digests(fleet, "idle")[pool.name]))
    done = IdleWatchdog(fleet, fake.ports()).apply()
    assert sorted(d.reason for d in done.plan.decisions) == sorted([Reason.STILL_IDLE, Reason.DAY_BUDGET])


def test_day_budget_is_free_again_24_hours_after_an_end() -> None:
    fake = due(4)
    watchdog = make_watchdog(fake, min=0, watchdogs={"idle": {"max_stops_per_day": 0.25}})  # one, of a target of four
    ended = [len(fake.ended)]
    for passed in (timedelta(0), timedelta(hours=2), timedelta(hours=21, minutes=50), timedelta(minutes=30)):
        fake.now += passed
        passes(fake, watchdog, 1)
        ended.append(len(fake.ended))
    assert ended == [0, 1, 1, 1, 2]


def test_a_leftover_of_a_killed_update_is_not_a_member_of_the_pool() -> None:
    """It is not ended, its end would lower the target of those that serve, and no floor is kept by it."""
    fake = due(2)
    fake.instances[FIRST] = replace(fake.instances[FIRST], group="batch-left-over")
    done = make_watchdog(fake, **{**rules(), "min": 1}).apply()
    assert [(d.resource, d.action, d.reason) for d in done.plan.decisions] == [
        (FIRST, Action.KEEP, Reason.OUTSIDE_POOLS), (SECOND, Action.KEEP, Reason.POOL_FLOOR),
    ]  # fmt: skip
    assert done.plan.decisions[0].usd_per_hour is not None and not fake.drains


def test_an_end_in_a_removed_group_is_resolved_once_the_instance_has_ended() -> None:
    fake = due(1)
    watchdog = make_watchdog(fake, **rules())
    fake.kill_at("end", watchdog.apply)
    assert fake.intents
    fake.instances[FIRST] = replace(fake.instances[FIRST], group="batch-left-over")
    fake.groups.clear()
    assert not watchdog.apply().outcomes and fake.intents
    fake.instances[FIRST] = replace(fake.instances[FIRST], state=InstanceState.TERMINATED)
    assert [outcome.kind for outcome in watchdog.apply().outcomes] == [OutcomeKind.DONE]


def test_a_late_end_is_notified_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call timed out, and was carried out while the next pass looked."""
    fake = due(1)
    watchdog = make_watchdog(fake, **rules())

    def timed_out(*_: object, **__: object) -> None:
        raise CloudError("read timeout")

    def terminate() -> None:
        fake.instances[FIRST] = replace(fake.instances[FIRST], state=InstanceState.STOPPING)

    with monkeypatch.context() as patched:
        patched.setattr(FakeGroups, "end", timed_out)
        assert [outcome.kind for outcome in watchdog.apply().outcomes] == [OutcomeKind.FAILED]
    fake.before = at_call("store_now", terminate)
    assert [outcome.kind for outcome in watchdog.apply().outcomes] == [OutcomeKind.WAITING]
    fake.before = lambda name: None
    assert [outcome.kind for outcome in watchdog.apply().outcomes] == [OutcomeKind.DONE]
    assert sum(key.startswith("ended:") for key in fake.messages) == 1 and not fake.intents


@pytest.mark.parametrize("works", [False, True], ids=["mark", "unmark"])
def test_a_mark_of_a_killed_pass_is_recorded_and_notified(works: bool) -> None:
    fake = idle_fleet(1)
    watchdog = make_watchdog(fake, **rules())
    if works:
        mark(fake, 1, START - FIVE_MINUTES)
        assert QUIET.engine is not None
        fake.evidence[FIRST] = replace(QUIET, engine=replace(QUIET.engine, running_max=1.0))
    fake.kill_at("notify", watchdog.apply)
    passes(fake, watchdog, 2)
    action, word = (Action.UNMARK, "stays:") if works else (Action.MARK, "marked:")
    done = [row.outcome.decision.action for row in fake.outcomes if row.outcome.kind is OutcomeKind.DONE]
    assert done == [action] and not fake.intents
    assert [key.split(":")[0] + ":" for key in fake.messages] == [word]


def test_a_mark_of_an_ended_instance_is_resolved() -> None:
    fake = idle_fleet(1)
    watchdog = make_watchdog(fake, **rules())
    fake.kill_at("tag", watchdog.apply)
    del fake.instances[FIRST]
    fake.groups = {name: replace(group, instance_ids=(), desired=0) for name, group in fake.groups.items()}
    assert [outcome.kind for outcome in watchdog.apply().outcomes] == [OutcomeKind.NO_LONGER_TRUE]
    assert not fake.intents


def test_a_mark_that_was_never_written_is_judged_again() -> None:
    fake = idle_fleet(1)
    watchdog = make_watchdog(fake, **rules())
    fake.kill_at("tag", watchdog.apply)
    kinds = [outcome.kind for outcome in watchdog.apply().outcomes]
    assert kinds == [OutcomeKind.NO_LONGER_TRUE, OutcomeKind.DONE]


def test_an_unseen_policy_allows_the_removal_of_a_mark() -> None:
    fake = idle_fleet(1)
    mark(fake, 1, START - FIVE_MINUTES)
    assert QUIET.engine is not None
    fake.evidence[FIRST] = replace(QUIET, engine=replace(QUIET.engine, running_max=1.0))
    IdleWatchdog(document(), fake.ports()).apply()
    assert tags.IDLE_SINCE not in fake.instances[FIRST].tags


@pytest.mark.parametrize(
    ("ahead", "action"),
    [
        pytest.param(timedelta(minutes=10), Action.KEEP, id="as a clock may be off"),
        pytest.param(timedelta(minutes=11), Action.MARK, id="more than the grace"),
        pytest.param(timedelta(days=365), Action.MARK, id="a year"),
    ],
)
def test_a_mark_in_the_future_is_replaced(ahead: timedelta, action: Action) -> None:
    fake = idle_fleet(1)
    mark(fake, 1, START + ahead)
    (decision,) = make_watchdog(fake, **rules()).apply().plan.decisions
    assert decision.action is action


def test_a_gpu_that_works_without_requests_is_kept_with_what_it_costs() -> None:
    fake = idle_fleet(1)
    assert QUIET.gpu is not None
    fake.evidence[FIRST] = replace(QUIET, gpu=replace(QUIET.gpu, active_max=0.97))
    (decision,) = make_watchdog(fake, **rules()).apply().plan.decisions
    assert decision.reason is Reason.GPU_ACTIVE_WITHOUT_WORK and decision.usd_per_hour == Decimal("0.25")


@pytest.mark.parametrize(
    ("other", "ends"),
    [
        pytest.param({"running_max": 3.0}, False, id="serves"),
        pytest.param({"coverage": 0.1}, False, id="is not known to rest"),
        pytest.param({}, True, id="idle, too"),
    ],
)
def test_last_instance_of_a_target_stays_while_the_spare_may_be_busy(other: dict[str, Any], *, ends: bool) -> None:
    """At a target of 0 there is no spare: the spot watchdog would end it with its requests."""
    fake = due(2)
    fake.targets["batch"] = Target(pool="batch", value=1, version=1)
    assert QUIET.engine is not None
    fake.evidence[SECOND] = replace(QUIET, engine=replace(QUIET.engine, **other))
    make_watchdog(fake, **rules()).apply()
    assert (fake.ended == [FIRST]) is ends
    assert fake.targets["batch"].value == (0 if ends else 1)


def test_the_last_instance_of_a_target_ends_although_another_has_ended() -> None:
    fake = due(2)
    fake.targets["batch"] = Target(pool="batch", value=1, version=1)
    fake.instances[SECOND] = replace(fake.instances[SECOND], state=InstanceState.STOPPING)
    make_watchdog(fake, **rules()).apply()
    assert fake.ended == [FIRST] and fake.targets["batch"].value == 0


@pytest.mark.parametrize(
    ("first", "stuck"),
    [
        pytest.param(timedelta(minutes=59, seconds=59), False, id="as long as a drain may take"),
        pytest.param(timedelta(hours=1), True, id="an hour"),
    ],
)
def test_end_that_fails_for_an_hour_is_stuck(first: timedelta, *, stuck: bool) -> None:
    assert is_stuck({FIRST: OpenAttempts(first=START - first, last=START)}, FIRST, START) is stuck


def test_an_instance_that_is_no_longer_listed_has_ended() -> None:
    assert is_terminated(FakeFleet().ports(), document(), None)
