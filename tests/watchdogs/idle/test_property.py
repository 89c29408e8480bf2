"""No instance that works, that may work or that is not ours to end is ever ended, whatever its evidence looks like.

The generator knows the truth: it starts from an idle instance whose grace is over and injects faults. The fast form
runs always, 200,000 decisions are a slow proof, a million a long one. For each condition there is a fault that it
alone catches.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.domain import tags
from gpufleet.domain.decisions import Action, ChangeBudget, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus, EngineEvidence, Evidence, GpuEvidence
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState, Phase
from gpufleet.domain.policies import IdlePolicy
from watchdogs.idle import checks
from watchdogs.idle.decide import UNSCALED, IdleObservation, IdlePoolView, decide
from watchdogs.idle.timer import Timer

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
POLICY = IdlePolicy(max_stops_per_run=10**9, max_stops_per_hour=10**9)
BUDGET = ChangeBudget(per_run=10**9, per_hour=10**9)
COLD_START = 5 * MINUTE
GRACE = Timer(policy=POLICY, cold_start=COLD_START).grace
"""Of the price of a stop: longer than the policy's own."""
POOL = IdlePoolView(name="chat", policy=POLICY, floor=0, target=10**9, needed=UNSCALED, cold_start=COLD_START)
PLENTY = 5_000


@dataclass(slots=True)
class Draft:
    """One instance with all that is known of it; faults change it."""

    instance: dict[str, Any]
    engine: dict[str, Any] | None
    gpu: dict[str, Any] | None
    agent: dict[str, Any] | None
    in_rollout: bool = False
    kept_by: str | None = None
    tags: dict[str, str] = field(default_factory=dict[str, str])


def idle_draft(number: int, chance: random.Random) -> Draft:
    """Idle beyond doubt, marked, its grace over."""
    return Draft(
        instance={"id": f"i-{number}", "launched_at": NOW - timedelta(hours=1 + 40 * chance.random())},
        engine={
            "coverage": 0.9 + 0.1 * chance.random(),
            "missed": float(chance.randrange(3)),
            "newest_age": timedelta(seconds=30 * chance.random()),
            "running_max": 0.0,
            "waiting_max": 0.0,
            "tokens": 0.0,
            "counter_changes": 0.0,
            "started_age": timedelta(hours=1 + chance.random()),
            "restarts": 0.0,
            "pulse_changes": 5.0,
        },
        gpu={
            "gpus": 4,
            "metered": 4,
            "coverage": 0.9 + 0.1 * chance.random(),
            "missed": 0.0,
            "newest_age": timedelta(seconds=30 * chance.random()),
            "active_max": 0.009 * chance.random(),
            "active_min": 0.0,
            "util_max": 0.0,
            "energy_changes": 3.0,
            "watts_max": 30.0,
        },
        agent={"phase": Phase.READY, "ready": True, "draining": False, "drained": False, "requests_running": 0.0},
        tags={tags.IDLE_SINCE: tags.write_time(NOW - GRACE - MINUTE)},
    )


Fault = Callable[[Draft, random.Random], None]


def engine(**values: Any) -> Fault:
    def inject(draft: Draft, chance: random.Random) -> None:
        del chance
        if draft.engine is not None:
            draft.engine |= values

    return inject


def gpu(**values: Any) -> Fault:
    def inject(draft: Draft, chance: random.Random) -> None:
        del chance
        if draft.gpu is not None:
            draft.gpu |= values

    return inject


def machine(**values: Any) -> Fault:
    return lambda draft, _: draft.instance.update(values)


def agent(**values: Any) -> Fault:
    def inject(draft: Draft, chance: random.Random) -> None:
        del chance
        if draft.agent is not None:
            draft.agent |= values

    return inject


def dropped(part: str) -> Fault:
    return lambda draft, _: setattr(draft, part, None)


def marked(ago: timedelta) -> Fault:
    return lambda draft, _: draft.tags.update({tags.IDLE_SINCE: tags.write_time(NOW - ago)})


def never_marked(draft: Draft, chance: random.Random) -> None:
    del chance
    draft.tags.pop(tags.IDLE_SINCE, None)


def both(*faults: Fault) -> Fault:
    def inject(draft: Draft, chance: random.Random) -> None:
        for fault in faults:
            fault(draft, chance)

    return inject


def of_type(machine_type: str, **values: Any) -> Fault:
    """What is a fault of this machine type and would be none of a larger one, which another fault may have chosen."""
    return both(machine(machine_type=machine_type), gpu(**values))


NAN = float("nan")
WATTS = {"g6.12xlarge": 72.0, "large": 250.0, "not large": 249.0}
"""Rated, of one GPU, by machine type."""
UNRATED = "g7.24xlarge"
"""A machine type of the catalogue. The rated power of its GPU is not."""
DECIDE = "decide itself"
"""No check of `judge`: the conditions that `decide.py` has of its own."""
OURS = {"phase": Phase.DRAINING, "ready": False, "draining": True, "drain_by": DrainOwner.IDLE}
FAULTS: dict[str, tuple[Fault, str]] = {
    "stopping already": (machine(state=InstanceState.STOPPING), "running"),
    "kept by tag": (lambda d, _: d.tags.update({tags.KEEP_UNTIL: tags.write_time(NOW + MINUTE)}), "kept"),
    "kept by an unreadable tag": (lambda d, _: d.tags.update({tags.KEEP_UNTIL: "tomorrow"}), "kept"),
    "kept by brake": (lambda d, _: setattr(d, "kept_by", "anna"), "kept"),
    "reserved": (machine(capacity_type=CapacityType.RESERVED), "not_prepaid"),
    "in a capacity block": (machine(reservation="cr-1"), "not_prepaid"),
    "young": (machine(launched_at=NOW - 5 * MINUTE), "old_enough"),
    "younger than the window": (machine(launched_at=NOW - 25 * MINUTE), "old_enough"),
    "in a rollout": (lambda d, _: setattr(d, "in_rollout", True), "not_in_rollout"),
    "a long prefill: running, no token yet": (engine(running_max=1.0), "no_requests"),
    "queued": (engine(waiting_max=2.0), "no_requests"),
    "one short request between samples": (engine(counter_changes=1.0), "counters_flat"),
    "one GPU of four computes": (gpu(active_max=0.4), "gpus_quiet"),
    "a GPU computes without a pause": (gpu(active_max=1.0), "gpus_quiet"),
    "as active as the noise floor": (gpu(active_max=POLICY.gpu_active_below), "gpus_quiet"),
    "no token counters": (engine(counter_changes=None), "engine_reported"),
    "the gauge was renamed": (engine(running_max=None), "engine_reported"),
    "half of the engine's samples": (engine(coverage=0.5), "engine_covered"),
    "coverage of the engine unknown": (engine(coverage=None), "engine_covered"),
    "one engine of two was off the page": (engine(missed=3.0), "engine_covered"),
    "missing series of the engine unknown": (engine(missed=None), "engine_covered"),
    "the queue was renamed": (engine(waiting_max=None), "engine_reported"),
    "no start time": (engine(started_age=None), "engine_reported"),
    "no time of the engine's newest sample": (engine(newest_age=None), "engine_reported"),
    "no CPU counter": (engine(pulse_changes=None), "engine_reported"),
    "no engine at all": (dropped("engine"), "engine_covered and engine_reported"),
    "a release without a contract": (engine(unknown="vLLM 9.0.0"), "engine_known"),
    "the engine's samples stopped": (engine(newest_age=2 * MINUTE), "engine_fresh"),
    "running is not a number": (engine(running_max=NAN), "engine_plausible"),
    "a negative queue": (engine(waiting_max=-1.0), "engine_plausible"),
    "token counters not finite": (engine(counter_changes=NAN), "engine_plausible"),
    "tokens not finite": (engine(tokens=NAN), "engine_plausible"),
    "a frozen proxy of the engine": (engine(pulse_changes=0.0), "engine_plausible"),
    "counters reset by a restart": (engine(started_age=3 * MINUTE), "engine_not_restarted"),
    "restarted, by a clock that is behind": (engine(restarts=1.0), "engine_not_restarted"),
    "an unknown machine type": (machine(machine_type="x9.huge"), "gpu_not_contradicted and gpu_reported"),
    "a GPU without a known rated power": (machine(machine_type=UNRATED), "gpu_not_contradicted"),
    "three of four GPUs report": (gpu(gpus=3), "gpu_reported"),
    "three of four GPUs report their energy": (gpu(metered=3), "gpu_reported"),
    "number of GPUs with energy unknown": (gpu(metered=None), "gpu_reported"),
    "no gpu_active": (gpu(active_max=None), "gpu_reported"),
    "no number of GPUs": (gpu(gpus=None), "gpu_reported"),
    "no time of the GPUs' newest sample": (gpu(newest_age=None), "gpu_reported"),
    "no energy counter": (gpu(energy_changes=None), "gpu_reported"),
    "no GPU at all": (dropped("gpu"), "gpu_covered and gpu_reported"),
    "no metrics at all": (both(dropped("engine"), dropped("gpu")), "engine_reported and gpu_reported"),
    "half of the GPU's samples": (gpu(coverage=0.5), "gpu_covered"),
    "coverage of the GPU unknown": (gpu(coverage=None), "gpu_covered"),
    "one GPU of four was off the page": (gpu(missed=3.0), "gpu_covered"),
    "missing series of the GPU unknown": (gpu(missed=None), "gpu_covered"),
    "the GPU's samples stopped": (gpu(newest_age=2 * MINUTE), "gpu_fresh"),
    "blank as a double": (gpu(active_max=140737488355328.0), "gpu_in_range"),
    "blank as 32 bits": (gpu(active_max=float(0x7FFFFFF0)), "gpu_in_range"),
    "blank as 64 bits": (gpu(active_max=float(0x7FFFFFFFFFFFFFF0)), "gpu_in_range"),
    "gpu_active was negative": (gpu(active_min=-1.0), "gpu_in_range"),
    "gpu_active in percent": (gpu(active_max=37.0), "gpu_in_range"),
    "gpu_active a little above 1": (gpu(active_max=1.01), "gpu_in_range"),
    "gpu_active is not a number": (gpu(active_max=NAN), "gpu_in_range"),
    "a frozen exporter": (gpu(energy_changes=0.0), "gpu_not_frozen"),
    "profiling reads 0 under load": (gpu(util_max=80.0), "gpus_quiet"),
    "utilization is negative": (gpu(util_max=-1.0), "gpu_in_range"),
    "utilization is a blank": (gpu(util_max=101.0), "gpu_in_range"),
    "used as much as the noise floor": (gpu(util_max=1.0), "gpus_quiet"),
    "executions were counted": (gpu(work_changes=1.0), "gpus_quiet"),
    "it computed a minute ago": (gpu(computed_ago=MINUTE), "gpus_quiet"),
    "a shared device": (gpu(unknown=("shared_device",)), "gpu_known"),
    "power in another unit": (gpu(implausible=("implausible_value",)), "gpu_not_contradicted"),
    "one page lacked a GPU": (gpu(missed=1.0), "gpu_covered"),
    "a GPU draws power": (of_type("g6.12xlarge", watts_max=60.0), "gpu_not_contradicted"),
    "a GPU draws as much as none at rest": (of_type("g6.12xlarge", watts_max=43.2), "gpu_not_contradicted"),
    "a large GPU draws as much as none at rest": (of_type("large", watts_max=100.0), "gpu_not_contradicted"),
    "power not finite": (gpu(watts_max=NAN), "gpu_not_contradicted"),
    "its agent is silent": (dropped("agent"), "agent_ready"),
    "its model loads": (agent(phase=Phase.ENGINE, ready=False), "agent_ready"),
    "its phase is not ready, whatever else it reports": (agent(phase=Phase.ENGINE), "agent_ready"),
    "it changes its revision": (agent(ready=False), "agent_ready"),
    "its agent does not know": (agent(requests_running=None), "agent_ready"),
    "drained by a person": (agent(draining=True, reason="anna looks at it"), "agent_ready"),
    "it drains for its group": (agent(phase=Phase.DRAINING), "agent_ready"),
    "it was drained": (agent(drained=True), "agent_ready"),
    "its agent sees a request": (agent(requests_running=1.0), "agent_ready"),
    "request count of its agent not finite": (agent(requests_running=NAN), "agent_ready"),
    "its agent counts less than none": (agent(requests_running=-1.0), "agent_ready"),
    "never marked": (never_marked, DECIDE),
    "its mark cannot be read": (lambda d, _: d.tags.update({tags.IDLE_SINCE: "yesterday"}), DECIDE),
    "marked just now": (marked(MINUTE), DECIDE),
    "its grace has a minute left": (marked(GRACE - MINUTE), DECIDE),
    "marked by a clock that is ahead": (marked(-timedelta(hours=1)), DECIDE),
    "it has cost less than a stop": (marked(POLICY.grace + MINUTE), DECIDE),
    "drained by us, then kept by tag": (
        both(agent(**OURS), lambda d, _: d.tags.update({tags.KEEP_UNTIL: tags.write_time(NOW + MINUTE)})),
        DECIDE,
    ),
    "drained by us, then kept by brake": (both(agent(**OURS), lambda d, _: setattr(d, "kept_by", "anna")), DECIDE),
    "drained by us, and stopping": (both(agent(**OURS), machine(state=InstanceState.STOPPING)), DECIDE),
    "of an unknown pool": (machine(pool="forgotten"), DECIDE),
}
ALONE = {name: caught for name, (_, caught) in FAULTS.items() if " and " not in caught and caught != DECIDE}


def observed(drafts: list[Draft]) -> IdleObservation:
    instances = [
        Instance(
            **(
                {
                    "cloud": Cloud.AWS,
                    "region": "us-east-1",
                    "zone": "us-east-1a",
                    "machine_type": "g6.12xlarge",
                    "capacity_type": CapacityType.ON_DEMAND,
                    "state": InstanceState.RUNNING,
                    "pool": "chat",
                    "group": "rolling" if d.in_rollout else "stable",
                    "tags": d.tags,
                }
                | d.instance
            )
        )
        for d in drafts
    ]
    return IdleObservation(
        instances=instances,
        evidence={
            i.id: Evidence(
                window=POLICY.window,
                interval=timedelta(seconds=15),
                engine=None if d.engine is None else EngineEvidence(**d.engine),
                gpu=None if d.gpu is None else GpuEvidence(**d.gpu),
                reached=True,
            )
            for i, d in zip(instances, drafts, strict=True)
            if d.engine is not None or d.gpu is not None
        },
        agents={i.id: AgentStatus(**d.agent) for i, d in zip(instances, drafts, strict=True) if d.agent is not None},
        pools={"chat": POOL},
        budget=BUDGET,
        gpus_expected=dict.fromkeys((*WATTS, UNRATED), 4),
        watts_rated=WATTS,
        kept_by={i.id: d.kept_by for i, d in zip(instances, drafts, strict=True) if d.kept_by is not None},
        rollouts=frozenset({"rolling"}),
    )


def wrong_stops(seed: int, count: int, checks: tuple[checks.Check, ...] = checks.CHECKS) -> tuple[int, int]:
    """Ends of instances that must not end, and ends in all, among `count` decisions."""
    chance = random.Random(seed)
    names = list(FAULTS)
    drafts: list[Draft] = []
    sound: list[bool] = []
    for number in range(count):
        draft = idle_draft(number, chance)
        # a fifth is sound; most have one fault, for a second one would hide what the first needs
        chosen = [] if chance.random() < 0.2 else chance.sample(names, 1 if chance.random() < 0.8 else 3)
        for name in chosen:
            FAULTS[name][0](draft, chance)
        drafts.append(draft)
        sound.append(not chosen)
    plan = decide(observed(drafts), NOW, checks)
    ended = [d.action is Action.END for d in plan.decisions]
    return sum(e and not s for e, s in zip(ended, sound, strict=True)), sum(ended)


def test_only_idle_instances_are_ended() -> None:
    wrong, ended = wrong_stops(1, PLENTY)
    assert wrong == 0
    assert ended > PLENTY / 10


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_each_condition_is_required_to_protect_busy_instances(check: checks.Check) -> None:
    left = tuple(other for other in checks.CHECKS if other is not check)
    wrong, _ = wrong_stops(1, 2_000, left)
    assert wrong > 0


@pytest.mark.parametrize("name", sorted(ALONE))
def test_each_fault_is_caught_by_the_condition_that_is_there_for_it(name: str) -> None:
    draft = idle_draft(0, random.Random(0))
    FAULTS[name][0](draft, random.Random(0))
    left = tuple(check for check in checks.CHECKS if check.__name__ != ALONE[name])
    # next to another one, since the last healthy instance of a pool is never ended
    both = observed([draft, idle_draft(1, random.Random(0))])
    assert decide(both, NOW).decisions[0].action is not Action.END
    assert decide(both, NOW, left).decisions[0].action is Action.END


@pytest.mark.parametrize("name", sorted(name for name, (_, caught) in FAULTS.items() if caught == DECIDE))
def test_each_fault_that_no_check_sees_is_seen_by_decide(name: str) -> None:
    drafts = [idle_draft(0, random.Random(0)), idle_draft(1, random.Random(0))]
    assert {d.action for d in decide(observed(drafts), NOW).decisions} == {Action.END}
    FAULTS[name][0](drafts[0], random.Random(0))
    faulty, sound = decide(observed(drafts), NOW).decisions
    assert faulty.action is not Action.END and sound.action is Action.END


@pytest.mark.parametrize(
    "nearly",
    [
        pytest.param(lambda d, _: d.tags.update({tags.KEEP_UNTIL: tags.write_time(NOW)}), id="kept until now"),
        pytest.param(machine(launched_at=NOW - POLICY.window), id="as old as the window"),
        pytest.param(engine(started_age=POLICY.window), id="its engine as old as the window"),
        pytest.param(engine(coverage=0.9, missed=2.0, newest_age=timedelta(seconds=30)), id="engine just covered"),
        pytest.param(gpu(coverage=0.9, newest_age=timedelta(seconds=30)), id="GPUs just covered"),
        pytest.param(gpu(active_max=0.0099), id="under the noise floor"),
        pytest.param(both(engine(pulse_changes=1.0), gpu(energy_changes=1.0)), id="counters that moved once"),
        pytest.param(gpu(util_max=0.9), id="hardly used"),
        pytest.param(gpu(util_max=None, watts_max=None), id="no second opinion"),
        pytest.param(gpu(energy_changes=None, without_pulse=True), id="no number that changes at rest"),
        pytest.param(gpu(computed_ago=POLICY.window), id="last computed before the window"),
        pytest.param(gpu(watts_max=43.1), id="warm"),
        pytest.param(of_type("large", watts_max=99.9), id="a large one, warm"),
        pytest.param(of_type("not large", watts_max=149.0), id="not quite a large one, warm"),
        pytest.param(agent(drain_by=OURS["drain_by"]), id="ready again, with the owner of an old drain"),
        pytest.param(marked(GRACE), id="its grace is over now"),
    ],
)
def test_values_just_within_limits_do_not_prevent_an_end(nearly: Fault) -> None:
    drafts = [idle_draft(0, random.Random(0)), idle_draft(1, random.Random(0))]
    nearly(drafts[0], random.Random(0))
    assert decide(observed(drafts), NOW).decisions[0].action is Action.END


@pytest.mark.parametrize(
    "neighbour",
    [
        machine(state=InstanceState.STOPPING),
        dropped("engine"),
        engine(newest_age=2 * MINUTE),
        agent(ready=False),
        agent(draining=True),
        agent(drained=True),
    ],
    ids=["stopping", "silent", "stale", "not ready", "draining", "drained"],
)
def test_a_floor_counts_only_healthy_instances(neighbour: Fault) -> None:
    drafts = [idle_draft(0, random.Random(0)), idle_draft(1, random.Random(0))]
    floor = {"chat": replace(POOL, floor=1)}
    two = decide(replace(observed(drafts), pools=floor), NOW).decisions
    assert [d.action for d in two].count(Action.END) == 1, "one may go while the other is well"
    neighbour(drafts[1], random.Random(0))
    assert decide(replace(observed(drafts), pools=floor), NOW).decisions[0].action is Action.KEEP


@pytest.mark.parametrize("going", ["begun", "leaving"])
def test_a_floor_does_not_count_instances_that_already_end(going: str) -> None:
    drafts = [idle_draft(0, random.Random(0)), idle_draft(1, random.Random(0))]
    seen = replace(observed(drafts), pools={"chat": replace(POOL, floor=1)})
    one, other = decide(seen, NOW).decisions
    assert (one.action, other.action) == (Action.END, Action.KEEP)
    assert decide(replace(seen, **{going: frozenset({"i-1"})}), NOW).decisions[0].action is Action.KEEP


@pytest.mark.parametrize(
    ("fault", "marked_one", "plain_one"),
    [
        (engine(running_max=1.0), Action.UNMARK, Action.KEEP),
        (engine(counter_changes=3.0), Action.UNMARK, Action.KEEP),
        (gpu(active_max=0.4), Action.UNMARK, Action.KEEP),
        (both(dropped("engine"), gpu(active_max=0.4)), Action.UNMARK, Action.KEEP),
        (lambda d, _: setattr(d, "kept_by", "anna"), Action.UNMARK, Action.KEEP),
        (engine(started_age=3 * MINUTE), Action.UNMARK, Action.KEEP),
        (lambda d, _: setattr(d, "in_rollout", True), Action.UNMARK, Action.KEEP),
        (machine(reservation="cr-1"), Action.UNMARK, Action.KEEP),
        (dropped("engine"), Action.KEEP, Action.KEEP),
        (dropped("agent"), Action.KEEP, Action.KEEP),
    ],
    ids=[
        "work",
        "tokens",
        "a GPU at work",
        "a GPU at work, no engine",
        "people",
        "a restart",
        "a rollout",
        "prepaid",
        "no metrics",
        "no agent",
    ],
)
def test_which_observations_remove_a_mark(fault: Fault, marked_one: Action, plain_one: Action) -> None:
    drafts = [idle_draft(0, random.Random(0)), idle_draft(1, random.Random(0))]
    never_marked(drafts[1], random.Random(0))
    for draft in drafts:
        fault(draft, random.Random(0))
    found = decide(observed(drafts), NOW).decisions
    assert [d.action for d in found] == [marked_one, plain_one]
    assert found[1].reason is not Reason.WORK_IS_BACK, "an instance without a mark was never idle"


def test_a_serving_instance_with_an_old_drain_owner_is_not_our_drain() -> None:
    drafts = [idle_draft(0, random.Random(0)), idle_draft(1, random.Random(0))]
    both(agent(drain_by=OURS["drain_by"]), engine(running_max=1.0))(drafts[0], random.Random(0))
    assert decide(observed(drafts), NOW).decisions[0].action is Action.UNMARK


def test_an_end_of_an_earlier_pass_uses_no_budget_again() -> None:
    draft = idle_draft(0, random.Random(0))
    agent(**OURS)(draft, random.Random(0))
    seen = replace(observed([draft]), budget=replace(BUDGET, per_run=0))
    assert decide(seen, NOW).decisions[0].action is Action.KEEP
    assert decide(replace(seen, begun=frozenset({"i-0"})), NOW).decisions[0].action is Action.END


def test_a_keep_states_its_own_reason_before_an_unseen_policy() -> None:
    draft = idle_draft(0, random.Random(0))
    engine(running_max=1.0)(draft, random.Random(0))
    never_marked(draft, random.Random(0))
    seen = replace(observed([draft]), pools={"chat": replace(POOL, policy_seen=False)})
    assert decide(seen, NOW).decisions[0].reason is Reason.SERVING


def test_instance_that_its_group_is_ending_is_not_ended_again() -> None:
    draft = idle_draft(0, random.Random(0))
    agent(**OURS)(draft, random.Random(0))
    seen = observed([draft])
    assert decide(seen, NOW).decisions[0].action is Action.END
    assert decide(replace(seen, leaving=frozenset({"i-0"})), NOW).decisions[0].action is Action.KEEP


@pytest.mark.parametrize(
    ("view", "budget"),
    [
        (replace(POOL, policy=replace(POLICY, max_stops_per_run=1)), BUDGET),
        (replace(POOL, target=1), BUDGET),
        (replace(POOL, floor=2), BUDGET),
        (replace(POOL, policy=replace(POLICY, max_stops_per_hour=1)), BUDGET),
        (POOL, replace(BUDGET, per_run=1)),
        (POOL, replace(BUDGET, per_hour=1)),
        (POOL, replace(BUDGET, left_today=1)),
    ],
    ids=["the pool's run", "the target", "the floor", "the pool's hour", "the run", "the hour", "the day"],
)
def test_each_end_takes_its_share_of_what_is_left(view: IdlePoolView, budget: ChangeBudget) -> None:
    drafts = [idle_draft(number, random.Random(0)) for number in range(3)]
    seen = replace(observed(drafts), pools={"chat": view}, budget=budget)
    assert [d.action for d in decide(seen, NOW).decisions].count(Action.END) == 1


def test_the_most_expensive_ends_first_and_of_equals_the_longest_idle() -> None:
    drafts = [idle_draft(number, random.Random(0)) for number in range(3)]
    marked(GRACE + timedelta(hours=5))(drafts[1], random.Random(0))
    seen = replace(observed(drafts), budget=replace(BUDGET, per_run=1))
    for usd, ended in (({}, "i-1"), ({"i-2": Decimal(3), "i-1": Decimal(1)}, "i-2")):
        found = decide(replace(seen, usd_per_hour=usd), NOW).decisions
        assert [d.resource for d in found if d.action is Action.END] == [ended]


@pytest.mark.parametrize(
    ("view", "budget"),
    [
        (replace(POOL, paused_by="anna"), BUDGET),
        (replace(POOL, policy_seen=False), BUDGET),
        (replace(POOL, floor=1, target=1), BUDGET),
        (POOL, ChangeBudget(per_run=0, per_hour=10)),
        (POOL, ChangeBudget(per_run=10, per_hour=3, used_this_hour=3)),
        (replace(POOL, policy=None), BUDGET),
        (replace(POOL, policy=replace(POLICY, max_stops_per_run=0)), BUDGET),
        (replace(POOL, policy=replace(POLICY, max_stops_per_hour=2), ended_this_hour=2), BUDGET),
        (POOL, replace(BUDGET, left_today=0)),
        (replace(POOL, floor=1), BUDGET),
        (replace(POOL, target=0), BUDGET),
        (replace(POOL, target_held_by="anna"), BUDGET),
        (replace(POOL, policy=replace(POLICY, min_age=timedelta(days=3))), BUDGET),
    ],
    ids=[
        "paused",
        "policy unseen",
        "floor",
        "run budget",
        "hour budget",
        "no watchdog",
        "pool's run budget",
        "pool's hour budget",
        "day budget",
        "no other instance is there",
        "the target is at the floor",
        "the target is held",
        "younger than the pool's least age",
    ],
)
def test_brakes_of_pool_and_fleet_block_an_instance_too(view: IdlePoolView, budget: ChangeBudget) -> None:
    seen = replace(observed([idle_draft(0, random.Random(0))]), pools={"chat": view}, budget=budget)
    assert decide(seen, NOW).decisions[0].action in (Action.KEEP, Action.UNMARK)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("decisions", [200_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_many_decisions_end_nothing_that_may_work(decisions: int) -> None:
    found = [wrong_stops(seed, PLENTY) for seed in range(decisions // PLENTY)]
    assert sum(wrong for wrong, _ in found) == 0
    assert sum(ended for _, ended in found) > decisions // 10
