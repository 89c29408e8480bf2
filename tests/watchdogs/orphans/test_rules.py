"""Orphans: whom a rule names, what must be known before one is marked or stopped, and what holds a stop back."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.domain import tags
from gpufleet.domain.decisions import Action, ChangeBudget, Reason
from gpufleet.domain.evidence import Evidence, GpuEvidence
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.domain.policies import OrphanAction, OrphanPolicy
from gpufleet.settings.document import Pool
from tests.fixtures.watchdogs.orphans import DAY, LONG_QUIET, WINDOW, orphan
from tests.fixtures.watchdogs.plain import QUIET_ENGINE, QUIET_GPU, START, document, instance
from watchdogs.orphans.checks import checks_of, judge_orphan
from watchdogs.orphans.decide import case_of, decide
from watchdogs.orphans.view import OrphanObservation, names, unmanaged_instances

UTILIZATION = Evidence(
    window=WINDOW,
    interval=timedelta(minutes=2),
    gpu=GpuEvidence(gpus=1, coverage=1.0, missed=0.0, newest_age=timedelta(minutes=1), util_max=0.0),
)


def stopping(**changes: Any) -> OrphanPolicy:
    return OrphanPolicy(
        **(
            {"name": "forgotten", "action": OrphanAction.STOP, "tags": {"team": "research"}, "lose_local_disks": True}
            | changes
        )
    )


@pytest.mark.parametrize(
    ("changes", "listed"),
    [
        pytest.param({}, False, id="of a pool"),
        pytest.param({"pool": None}, False, id="of a group of a pool, without its tags"),
        pytest.param({"pool": "gone", "group": "gone-a"}, True, id="of a pool that is no more"),
        pytest.param({"group": None}, True, id="of a pool and no group"),
        pytest.param({"group": "batch-spot-a-killed"}, True, id="of a group that its pool has not"),
        pytest.param({"environment": None, "pool": None}, False, id="of an adopted group, without the fleet's tags"),
        pytest.param({"environment": "other"}, True, id="a pool of that name, elsewhere"),
        pytest.param({"environment": None, "pool": None, "group": None}, True, id="without tags"),
        pytest.param({"group": None, "state": InstanceState.STOPPED}, False, id="stopped"),
    ],
)
def test_which_instances_are_outside_all_pools(changes: Mapping[str, Any], listed: bool) -> None:
    assert bool(unmanaged_instances([instance(1, **changes)], [document()])) is listed


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["first", "last"])
def test_two_fleets_of_one_environment_own_their_own_groups(order: slice) -> None:
    def moved(pool: Pool) -> Pool:
        groups = [group.model_copy(update={"name": f"{group.name}-there"}) for group in pool.groups]
        return pool.model_copy(update={"groups": tuple(groups)})

    here = document()
    there = here.model_copy(update={"region": "eu-west-1", "pools": tuple(map(moved, here.pools))})
    ours = instance(1)
    theirs = instance(2, group=f"{ours.group}-there")
    stray = instance(3, group=f"{ours.group}-killed")
    assert unmanaged_instances([ours, theirs, stray], [here, there][order]) == (stray,)


@pytest.mark.parametrize(
    ("rule", "changes", "named"),
    [
        pytest.param({"tags": {"team": "research"}}, {}, True, id="by a tag"),
        pytest.param({"tags": {"team": "res*"}}, {}, True, id="by a pattern"),
        pytest.param({"tags": {"team": "*"}}, {"tags": {}}, False, id="any value of a tag that it has not"),
        pytest.param({"tags": {"team": "research", "stage": "dev"}}, {}, False, id="all tags must hold"),
        pytest.param({"name_like": "note*"}, {}, True, id="by name"),
        pytest.param({"name_like": "note*"}, {"tags": {}}, False, id="without a name"),
        pytest.param({"owner": "ana"}, {"tags": {"Owner": "ana"}}, True, id="by owner"),
        pytest.param({"owner": "ana"}, {}, False, id="without an owner"),
        pytest.param({"older_than": 30 * DAY}, {}, True, id="old enough"),
        pytest.param({"older_than": 41 * DAY}, {}, False, id="too young"),
        pytest.param({"tags": {"team": "research"}, "older_than": 41 * DAY}, {}, False, id="both must hold"),
        pytest.param({}, {}, False, id="a rule without conditions"),
    ],
)
def test_which_instances_a_rule_matches(rule: Mapping[str, Any], changes: Mapping[str, Any], named: bool) -> None:
    assert names(OrphanPolicy(name="r", **rule), orphan(1, **changes), START) is named


def observed(
    one: Instance, rule: OrphanPolicy, evidence: Evidence | None = LONG_QUIET, **more: Any
) -> OrphanObservation:
    """One orphan, marked by this fleet two days ago where it carries the mark."""
    plain: dict[str, Any] = {
        "environment": "test",
        "orphans": (one,),
        "rules": (rule,),
        "evidence": {} if evidence is None else {one.id: evidence},
        "budget": ChangeBudget(per_run=2, per_hour=6),
        "marked_at": {(one.id, rule.name): START - 2 * DAY},
        "gpus_expected": {"g4dn.xlarge": 1},
        "watts_rated": {"g4dn.xlarge": 70.0},
    }
    return OrphanObservation(**(plain | more))


def marked(one: Instance) -> Instance:
    return replace(one, tags={**one.tags, tags.IDLE_SINCE: tags.write_time(START - 2 * DAY)})


CASES: list[Any] = [
    pytest.param(orphan(), stopping(), LONG_QUIET, {}, Action.MARK, Reason.IDLE, id="idle: marked first"),
    pytest.param(marked(orphan()), stopping(), LONG_QUIET, {}, Action.STOP, Reason.STILL_IDLE, id="grace is over"),
    pytest.param(
        marked(orphan()), stopping(grace=3 * DAY), LONG_QUIET, {}, Action.KEEP, Reason.MARKED_WAITING, id="grace"
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        LONG_QUIET,
        {"marked_at": {}},
        Action.MARK,
        Reason.IDLE,
        id="a mark that this fleet did not record starts no grace",
    ),
    pytest.param(
        marked(orphan()),
        stopping(action=OrphanAction.MARK),
        LONG_QUIET,
        {},
        Action.KEEP,
        Reason.MARK_ONLY,
        id="a rule that marks",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        replace(LONG_QUIET, engine=None),
        {},
        Action.KEEP,
        Reason.METRICS_MISSING,
        id="no engine reports: never stopped",
    ),
    pytest.param(
        orphan(),
        stopping(),
        replace(LONG_QUIET, engine=None),
        {},
        Action.MARK,
        Reason.IDLE,
        id="no engine reports: marked all the same",
    ),
    pytest.param(marked(orphan()), stopping(), None, {}, Action.KEEP, Reason.METRICS_MISSING, id="no metrics"),
    pytest.param(orphan(), stopping(), UTILIZATION, {}, Action.MARK, Reason.IDLE, id="CloudWatch: marked"),
    pytest.param(
        marked(orphan()),
        stopping(),
        UTILIZATION,
        {},
        Action.KEEP,
        Reason.METRICS_MISSING,
        id="CloudWatch: never stopped",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        replace(LONG_QUIET, gpu=replace(QUIET_GPU, active_max=None, active_min=None, energy_changes=0.0)),
        {},
        Action.KEEP,
        Reason.METRICS_MISSING,
        id="an exporter without gpu_active: never stopped",
    ),
    pytest.param(
        marked(orphan(group="eks-nodes")),
        stopping(),
        LONG_QUIET,
        {},
        Action.KEEP,
        Reason.NOT_STOPPABLE,
        id="of a group",
    ),
    pytest.param(
        marked(orphan(tags={"team": "research", "karpenter.sh/nodepool": "gpu"})),
        stopping(),
        LONG_QUIET,
        {},
        Action.KEEP,
        Reason.NOT_STOPPABLE,
        id="of an orchestrator",
    ),
    pytest.param(
        marked(orphan(capacity_type=CapacityType.SPOT)),
        stopping(),
        LONG_QUIET,
        {},
        Action.KEEP,
        Reason.NOT_STOPPABLE,
        id="AWS spot",
    ),
    pytest.param(
        marked(orphan(capacity_type=CapacityType.SPOT, cloud=Cloud.GCP)),
        stopping(),
        LONG_QUIET,
        {},
        Action.STOP,
        Reason.STILL_IDLE,
        id="Google spot",
    ),
    pytest.param(
        marked(orphan()),
        stopping(lose_local_disks=False),
        LONG_QUIET,
        {},
        Action.KEEP,
        Reason.NOT_STOPPABLE,
        id="local disks",
    ),
    pytest.param(
        marked(orphan()),
        stopping(lose_local_disks=False),
        LONG_QUIET,
        {"without_local_disks": frozenset({"g4dn.xlarge"})},
        Action.STOP,
        Reason.STILL_IDLE,
        id="no local disks",
    ),
    pytest.param(
        marked(orphan(capacity_type=CapacityType.RESERVED)),
        stopping(),
        LONG_QUIET,
        {},
        Action.UNMARK,
        Reason.PREPAID,
        id="prepaid",
    ),
    pytest.param(
        marked(orphan(environment="other")),
        stopping(),
        LONG_QUIET,
        {},
        Action.KEEP,
        Reason.OUTSIDE_POOLS,
        id="another environment's",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        LONG_QUIET,
        {"unaccepted": frozenset({"forgotten"})},
        Action.KEEP,
        Reason.POLICY_UNSEEN,
        id="its dry run was not seen",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        LONG_QUIET,
        {"paused_by": {"forgotten": "by ana"}},
        Action.KEEP,
        Reason.PAUSED,
        id="paused",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        LONG_QUIET,
        {"stopped_this_hour": {"forgotten": 2}},
        Action.KEEP,
        Reason.HOUR_BUDGET,
        id="its hour is used up",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        LONG_QUIET,
        {"budget": ChangeBudget(per_run=2, per_hour=6, used_this_hour=6)},
        Action.KEEP,
        Reason.HOUR_BUDGET,
        id="all rules' hour is used up",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        replace(LONG_QUIET, engine=replace(QUIET_ENGINE, counter_changes=1.0)),
        {},
        Action.UNMARK,
        Reason.TOKENS_MOVED,
        id="tokens",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        replace(LONG_QUIET, engine=replace(QUIET_ENGINE, unknown="vLLM 9.0.0")),
        {},
        Action.KEEP,
        Reason.ENGINE_UNKNOWN,
        id="a release of its engine without a contract: never stopped",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        replace(LONG_QUIET, gpu=replace(QUIET_GPU, active_max=0.4)),
        {},
        Action.UNMARK,
        Reason.GPU_ACTIVE_WITHOUT_WORK,
        id="a GPU works without a request",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        replace(LONG_QUIET, engine=None, gpu=replace(QUIET_GPU, active_max=0.4)),
        {},
        Action.UNMARK,
        Reason.GPU_ACTIVE,
        id="a GPU works, no engine reports",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        LONG_QUIET,
        {"kept_by": {orphan().id: "by ana"}},
        Action.UNMARK,
        Reason.KEPT_BY_PEOPLE,
        id="kept",
    ),
    pytest.param(
        orphan(state=InstanceState.PENDING), stopping(), LONG_QUIET, {}, Action.KEEP, Reason.NOT_RUNNING, id="pending"
    ),
    pytest.param(
        marked(orphan()),
        stopping(grace=2 * DAY),
        LONG_QUIET,
        {},
        Action.STOP,
        Reason.STILL_IDLE,
        id="grace is over now",
    ),
    pytest.param(
        orphan(),
        stopping(),
        UTILIZATION,
        {"gpus_expected": {"g4dn.xlarge": 4}},
        Action.KEEP,
        Reason.METRICS_MISSING,
        id="CloudWatch: one GPU of four",
    ),
    pytest.param(
        marked(orphan()),
        stopping(),
        None,
        {"unaccepted": frozenset({"forgotten"})},
        Action.KEEP,
        Reason.METRICS_MISSING,
        id="kept for its own reason before any dry run",
    ),
    pytest.param(
        orphan(),
        stopping(),
        replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, gpus=None)),
        {},
        Action.KEEP,
        Reason.METRICS_MISSING,
        id="CloudWatch: number of GPUs unknown",
    ),
    pytest.param(
        orphan(),
        stopping(),
        UTILIZATION,
        {"gpus_expected": {}},
        Action.MARK,
        Reason.IDLE,
        id="CloudWatch: an unknown machine type, marked at most",
    ),
    pytest.param(
        orphan(),
        stopping(),
        replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, util_max=101.0)),
        {},
        Action.KEEP,
        Reason.METRICS_IMPLAUSIBLE,
        id="CloudWatch: no percentage",
    ),
    pytest.param(
        orphan(),
        stopping(),
        replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, util_max=100.0)),
        {},
        Action.KEEP,
        Reason.GPU_ACTIVE,
        id="CloudWatch: full activity",
    ),
    pytest.param(
        orphan(),
        stopping(),
        replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, util_max=-1.0)),
        {},
        Action.KEEP,
        Reason.METRICS_IMPLAUSIBLE,
        id="CloudWatch: below zero",
    ),
    pytest.param(
        marked(orphan(launched_at=START - timedelta(hours=3))),
        stopping(),
        LONG_QUIET,
        {},
        Action.UNMARK,
        Reason.WARMING_UP,
        id="restarted",
    ),
]


@pytest.mark.parametrize(("one", "rule", "evidence", "more", "action", "reason"), CASES)
def test_decision_about_an_orphan(
    one: Instance,
    rule: OrphanPolicy,
    evidence: Evidence | None,
    more: Mapping[str, Any],
    action: Action,
    reason: Reason,
) -> None:
    (decision,) = decide(observed(one, rule, evidence, **more), START).decisions
    assert (decision.action, decision.reason) == (action, reason), decision.detail


TRAPS: list[Any] = [
    pytest.param(replace(LONG_QUIET, engine=replace(QUIET_ENGINE, running_max=1.0)), id="a request"),
    pytest.param(replace(LONG_QUIET, engine=replace(QUIET_ENGINE, counter_changes=2.0)), id="tokens"),
    pytest.param(replace(LONG_QUIET, engine=replace(QUIET_ENGINE, counter_changes=None)), id="no counters"),
    pytest.param(replace(LONG_QUIET, engine=replace(QUIET_ENGINE, coverage=0.5)), id="half of the engine's samples"),
    pytest.param(replace(LONG_QUIET, engine=replace(QUIET_ENGINE, newest_age=DAY)), id="an old engine sample"),
    pytest.param(replace(LONG_QUIET, engine=replace(QUIET_ENGINE, running_max=-1.0)), id="a count below zero"),
    pytest.param(
        replace(LONG_QUIET, engine=replace(QUIET_ENGINE, started_age=WINDOW / 2)), id="the engine restarted"
    ),
    pytest.param(replace(LONG_QUIET, gpu=replace(QUIET_GPU, active_max=0.4)), id="a GPU works"),
    pytest.param(replace(LONG_QUIET, gpu=replace(QUIET_GPU, gpus=0)), id="a GPU is silent"),
    pytest.param(replace(LONG_QUIET, gpu=replace(QUIET_GPU, coverage=0.5)), id="half of the samples"),
    pytest.param(replace(LONG_QUIET, gpu=replace(QUIET_GPU, newest_age=DAY)), id="an old sample"),
    pytest.param(replace(LONG_QUIET, gpu=replace(QUIET_GPU, active_min=-2.0)), id="no share"),
    pytest.param(replace(LONG_QUIET, gpu=replace(QUIET_GPU, energy_changes=0.0)), id="a frozen exporter"),
    pytest.param(replace(LONG_QUIET, gpu=replace(QUIET_GPU, watts_max=60.0)), id="power without activity"),
    pytest.param(replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, util_max=7.0)), id="used GPU"),
    pytest.param(replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, util_max=1.0)), id="hardly used GPU"),
    pytest.param(replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, util_max=2e9)), id="no percentage"),
    pytest.param(replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, gpus=0)), id="fewer GPUs"),
    pytest.param(replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, newest_age=None)), id="no newest"),
    pytest.param(replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, coverage=0.5)), id="gaps"),
    pytest.param(replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, newest_age=DAY)), id="stale"),
    pytest.param(replace(UTILIZATION, gpu=replace(UTILIZATION.gpu or QUIET_GPU, watts_max=69.0)), id="power"),
]


@pytest.mark.parametrize("evidence", TRAPS)
def test_misleading_observation_blocks_mark_and_stop_by_exactly_one_check(evidence: Evidence) -> None:
    for one, allowed in ((orphan(), {Action.KEEP}), (marked(orphan()), {Action.KEEP, Action.UNMARK})):
        (decision,) = decide(observed(one, stopping(), evidence), START).decisions
        assert decision.action in allowed, decision
    # without the check that objects, the same machine would be stopped or (without an engine) marked
    seen = observed(marked(orphan()), stopping(), evidence)
    case = case_of(seen, seen.orphans[0], stopping(), START)
    objecting = [check for check in checks_of(evidence) if check(case) is not None]
    left = [check for check in checks_of(evidence) if check not in objecting]
    assert objecting and judge_orphan(case, left) is None


def test_two_machines_of_one_name_are_left_alone() -> None:
    one, other = orphan(1, zone="us-east-1a"), orphan(1, zone="us-east-1b")
    plan = decide(observed(one, stopping(), orphans=(one, other)), START)
    assert {(d.action, d.reason) for d in plan.decisions} == {(Action.KEEP, Reason.METRICS_IMPLAUSIBLE)}


def test_the_most_expensive_first_after_unknown_prices() -> None:
    cheap, expensive, unknown = orphan(1), orphan(2), orphan(3)
    prices = {cheap.id: Decimal("0.8"), expensive.id: Decimal(98)}
    seen = observed(cheap, OrphanPolicy(name="none"), orphans=(cheap, expensive, unknown), usd_per_hour=prices)
    plan = decide(replace(seen, active={expensive.id: 0.0}), START)
    assert [d.resource for d in plan.decisions] == [unknown.id, expensive.id, cheap.id]
    assert "gpu_active at most 0" in plan.decisions[1].detail
    assert plan.decisions[2].detail.startswith("notebook: g4dn.xlarge")
    assert "40 days old" in plan.decisions[2].detail
