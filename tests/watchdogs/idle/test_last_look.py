"""What the idle watchdog does not believe: `drained` of an engine that works, and a list that metrics contradict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from gpufleet.domain.decisions import Action, Decision, OutcomeKind, Reason
from gpufleet.domain.evidence import AgentStatus, EngineEvidence, Evidence
from gpufleet.domain.model import Instance, InstanceState, Phase
from tests.fixtures.watchdogs.plain import QUIET, QUIET_ENGINE, QUIET_GPU, START, document, instance
from tests.fixtures.watchdogs.worlds import FakeInventory, World, idle_world, mark
from tests.watchdogs.idle.test_judge import case
from watchdogs.draining import drained
from watchdogs.idle.final_check import DrainConfirmed, objection
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests

FIRST, SECOND = instance(1).id, instance(2).id


def due(count: int) -> World:
    world = idle_world(count)
    for number in range(1, count + 1):
        mark(world, number, START - timedelta(hours=1))
    world.seen.add(("idle", "batch", digests(document(), "idle")["batch"]))
    return world


def engine(world: World, key: str, **changes: float) -> None:
    seen = world.evidence[key]
    assert isinstance(seen.engine, EngineEvidence)
    world.evidence[key] = replace(seen, engine=replace(seen.engine, **changes))


@pytest.mark.parametrize(
    ("work", "words"),
    [({"running_max": 2.0}, "2 running"), ({"waiting_max": 1.0}, "1 waiting"), ({"counter_changes": 4.0}, "tokens")],
    ids=["runs", "waits", "counts"],
)
def test_an_engine_that_works_is_not_ended_whatever_its_agent_says(work: dict[str, float], words: str) -> None:
    world = due(1)
    world.drain_takes = timedelta(0)  # `drained` at once

    def work_begins(name: str) -> None:
        if name == "drain":
            engine(world, FIRST, **work)

    world.before = work_begins
    dog = IdleWatchdog(document(), world.ports())
    first = dog.apply()
    assert [outcome.kind for outcome in first.outcomes] == [OutcomeKind.WAITING]
    assert words in first.outcomes[0].detail
    for _ in range(3):
        world.now += timedelta(minutes=1)
        dog.apply()
    assert world.drains == [FIRST] and not world.ended and world.targets["batch"].value == 1
    engine(world, FIRST, running_max=0.0, waiting_max=0.0, counter_changes=0.0)
    world.now += timedelta(minutes=1)
    assert [outcome.kind for outcome in dog.apply().outcomes] == [OutcomeKind.DONE]
    assert world.ended == [FIRST]


def test_an_engine_that_is_gone_after_its_drain_is_ended() -> None:
    world = due(1)

    def engine_stops(name: str) -> None:
        if name == "drain":
            world.evidence[FIRST] = replace(world.evidence[FIRST], engine=None)

    world.before = engine_stops
    IdleWatchdog(document(), world.ports()).apply()
    assert world.ended == [FIRST]


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param({"active_max": 0.6}, id="it computes"),
        pytest.param({"util_max": 95.0}, id="PROF reads 0, utilization does not"),
        pytest.param({"watts_max": 70.0}, id="PROF reads 0 at full power"),
    ],
)
def test_a_gpu_that_works_after_its_engine_is_gone_is_not_ended(gpu: dict[str, float]) -> None:
    world = due(1)

    def engine_stops(name: str) -> None:
        if name == "drain":
            old = world.evidence[FIRST]
            assert old.gpu is not None
            world.evidence[FIRST] = replace(old, engine=None, gpu=replace(old.gpu, **gpu))

    world.before = engine_stops
    (outcome,) = IdleWatchdog(document(), world.ports()).apply().outcomes
    assert (outcome.kind, world.ended) == (OutcomeKind.WAITING, [])


AGO = timedelta(seconds=30)
NAN = float("nan")
LOOKS = [
    pytest.param(QUIET, True, None, id="at rest"),
    pytest.param(replace(QUIET, engine=None), False, None, id="its engine is gone"),
    pytest.param(
        replace(QUIET, engine=replace(QUIET_ENGINE, running_max=None, newest_age=AGO)),
        False,
        None,
        id="its engine is gone, and half of it remembered",
    ),
    pytest.param(replace(QUIET, engine=replace(QUIET_ENGINE, pulse_changes=0.0)), True, None, id="its CPU rests"),
    pytest.param(
        replace(QUIET, engine=replace(QUIET_ENGINE, running_max=1.0)),
        False,
        Reason.SERVING,
        id="it served, and is gone",
    ),
    pytest.param(
        replace(QUIET, engine=replace(QUIET_ENGINE, counter_changes=1.0)), True, Reason.TOKENS_MOVED, id="tokens"
    ),
    pytest.param(
        replace(QUIET, engine=None), True, Reason.METRICS_MISSING, id="its engine answers and tells nothing"
    ),
    pytest.param(
        replace(QUIET, engine=replace(QUIET_ENGINE, running_max=None)), True, Reason.METRICS_MISSING, id="no gauge"
    ),
    pytest.param(
        replace(QUIET, engine=replace(QUIET_ENGINE, running_max=NAN)), True, Reason.METRICS_IMPLAUSIBLE, id="NaN"
    ),
    pytest.param(
        replace(QUIET, engine=replace(QUIET_ENGINE, newest_age=AGO)), True, Reason.METRICS_STALE, id="engine stale"
    ),
    pytest.param(replace(QUIET, gpu=None), True, Reason.METRICS_MISSING, id="no exporter"),
    pytest.param(replace(QUIET, gpu=replace(QUIET_GPU, gpus=0)), True, Reason.METRICS_MISSING, id="a GPU is silent"),
    pytest.param(
        replace(QUIET, gpu=replace(QUIET_GPU, active_max=0.4)), True, Reason.GPU_ACTIVE_WITHOUT_WORK, id="GPU active"
    ),
    pytest.param(
        replace(QUIET, gpu=replace(QUIET_GPU, active_min=-1.0)), True, Reason.METRICS_IMPLAUSIBLE, id="blank"
    ),
    pytest.param(replace(QUIET, gpu=replace(QUIET_GPU, util_max=80.0)), True, Reason.METRICS_IMPLAUSIBLE, id="util"),
    pytest.param(
        replace(QUIET, gpu=replace(QUIET_GPU, newest_age=AGO)), True, Reason.METRICS_STALE, id="exporter stale"
    ),
]


@pytest.mark.parametrize(("evidence", "answers", "reason"), LOOKS)
def test_what_speaks_against_an_end_since_drained_was_heard(
    evidence: Evidence, answers: bool, reason: Reason | None
) -> None:
    decision = Decision(resource=FIRST, pool="batch", action=Action.END, reason=Reason.STILL_IDLE)
    heard = DrainConfirmed(decision=decision, since=START - AGO, engine_answers=answers)
    found = objection(case(evidence=evidence), heard, START)
    assert (None if found is None else found.reason) is reason


@pytest.mark.parametrize(
    ("running", "said"),
    [(0, True), (None, True), (3, False), (float("nan"), False)],
    ids=["0", "unknown", "3", "NaN"],
)
def test_drained_beside_requests_that_run_is_not_drained(running: float | None, said: bool) -> None:
    status = AgentStatus(phase=Phase.DRAINED, ready=False, draining=True, drained=True, requests_running=running)
    assert drained(status) is said
    assert not drained(replace(status, drained=False)) and not drained(None)


@dataclass
class Half(FakeInventory):
    """A list without an error that lacks an instance."""

    without: str

    def instances(self) -> Sequence[Instance]:
        return [one for one in super().instances() if one.id != self.without]


def half(world: World) -> IdleWatchdog:
    return IdleWatchdog(document(), replace(world.ports(), inventory=Half(world, SECOND)))


def test_half_a_list_ends_nothing_of_the_pool_when_what_it_lacks_reports() -> None:
    world = due(2)
    done = half(world).apply()
    assert {decision.reason for decision in done.plan.decisions} == {Reason.NOT_LISTED}
    assert not world.ended and not world.drains
    assert any(f"{SECOND} is running but is not in the list" in text for text in world.messages.values())


def ended(world: World) -> None:
    world.instances[SECOND] = replace(world.instances[SECOND], state=InstanceState.TERMINATED)


def new(world: World) -> None:
    world.instances[SECOND] = replace(world.instances[SECOND], launched_at=START - timedelta(minutes=1))


def elsewhere(world: World) -> None:
    world.instances[SECOND] = replace(world.instances[SECOND], environment="other")


def unknown(world: World) -> None:
    del world.instances[SECOND]


def old_news(world: World) -> None:
    seen = world.evidence[SECOND]
    assert seen.engine is not None and seen.gpu is not None
    age = 10 * seen.interval
    world.evidence[SECOND] = replace(
        seen, engine=replace(seen.engine, newest_age=age), gpu=replace(seen.gpu, newest_age=age)
    )


@pytest.mark.parametrize("change", [ended, new, elsewhere, unknown, old_news], ids=lambda change: change.__name__)
def test_what_reports_for_a_little_longer_or_is_new_fails_no_pass(change: Callable[[World], None]) -> None:
    world = due(2)
    change(world)
    done = half(world).dry()
    assert [(d.resource, d.reason) for d in done.plan.decisions] == [(FIRST, Reason.STILL_IDLE)]


def test_a_list_that_agrees_with_the_metrics_costs_no_call() -> None:
    world, calls = idle_world(2), list[str]()
    world.before = calls.append
    IdleWatchdog(document(), world.ports()).dry()
    assert QUIET in world.evidence.values()
    assert "instance" not in calls
