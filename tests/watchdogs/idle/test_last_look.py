"""What the idle watchdog does not believe: `drained` of an engine that works, and a list that metrics contradict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from gpufleet.domain.decisions import Action, Decision, OutcomeKind, Reason
from gpufleet.domain.evidence import AgentStatus, EngineEvidence, Evidence, GpuEvidence
from gpufleet.domain.model import Instance, InstanceState, Phase
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet, mark
from tests.fixtures.watchdogs.fake_ports import FakeInventory
from tests.fixtures.watchdogs.idle import case
from tests.fixtures.watchdogs.plain import QUIET, QUIET_ENGINE, QUIET_GPU, START, document, instance
from watchdogs.draining import drained
from watchdogs.idle.final_check import DrainConfirmed, objection
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests

FIRST, SECOND = instance(1).id, instance(2).id


def due(count: int) -> FakeFleet:
    fleet = idle_fleet(count)
    for number in range(1, count + 1):
        mark(fleet, number, START - timedelta(hours=1))
    fleet.seen.add(("idle", "batch", digests(document(), "idle")["batch"]))
    return fleet


def engine(fleet: FakeFleet, key: str, **changes: float) -> None:
    seen = fleet.evidence[key]
    assert isinstance(seen.engine, EngineEvidence)
    fleet.evidence[key] = replace(seen, engine=replace(seen.engine, **changes))


@pytest.mark.parametrize(
    ("work", "detail"),
    [({"running_max": 2.0}, "2 running"), ({"waiting_max": 1.0}, "1 waiting"), ({"counter_changes": 4.0}, "tokens")],
    ids=["runs", "waits", "counts"],
)
def test_a_working_engine_is_not_ended_whatever_its_agent_reports(work: dict[str, float], detail: str) -> None:
    fleet = due(1)
    fleet.drain_takes = timedelta(0)  # `drained` at once

    def work_begins(name: str) -> None:
        if name == "drain":
            engine(fleet, FIRST, **work)

    fleet.before = work_begins
    watchdog = IdleWatchdog(document(), fleet.ports())
    first = watchdog.apply()
    assert [outcome.kind for outcome in first.outcomes] == [OutcomeKind.WAITING]
    assert detail in first.outcomes[0].detail
    for _ in range(3):
        fleet.now += timedelta(minutes=1)
        watchdog.apply()
    assert fleet.drains == [FIRST] and not fleet.ended and fleet.targets["batch"].value == 1
    engine(fleet, FIRST, running_max=0.0, waiting_max=0.0, counter_changes=0.0)
    fleet.now += timedelta(minutes=1)
    assert [outcome.kind for outcome in watchdog.apply().outcomes] == [OutcomeKind.DONE]
    assert fleet.ended == [FIRST]


def test_an_instance_with_a_stopped_engine_is_ended_after_its_drain() -> None:
    fleet = due(1)

    def engine_stops(name: str) -> None:
        if name == "drain":
            fleet.evidence[FIRST] = replace(fleet.evidence[FIRST], engine=None)

    fleet.before = engine_stops
    IdleWatchdog(document(), fleet.ports()).apply()
    assert fleet.ended == [FIRST]


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param({"active_max": 0.6}, id="it computes"),
        pytest.param({"util_max": 95.0}, id="PROF reads 0, utilization does not"),
        pytest.param({"watts_max": 70.0}, id="PROF reads 0 at full power"),
    ],
)
def test_a_gpu_that_works_after_its_engine_stopped_is_not_ended(gpu: dict[str, float]) -> None:
    fleet = due(1)

    def engine_stops(name: str) -> None:
        if name == "drain":
            old = fleet.evidence[FIRST]
            assert old.gpu is not None
            fleet.evidence[FIRST] = replace(old, engine=None, gpu=replace(old.gpu, **gpu))

    fleet.before = engine_stops
    (outcome,) = IdleWatchdog(document(), fleet.ports()).apply().outcomes
    assert (outcome.kind, fleet.ended) == (OutcomeKind.WAITING, [])


AGO = timedelta(seconds=30)
NAN = float("nan")
LOOKS = [
    pytest.param(QUIET, True, None, id="at rest"),
    pytest.param(replace(QUIET, engine=None), False, None, id="its engine is missing"),
    pytest.param(
        replace(QUIET, engine=replace(QUIET_ENGINE, running_max=None, newest_age=AGO)),
        False,
        None,
        id="its engine is missing and its history is partial",
    ),
    pytest.param(replace(QUIET, engine=replace(QUIET_ENGINE, pulse_changes=0.0)), True, None, id="its CPU is idle"),
    pytest.param(
        replace(QUIET, engine=replace(QUIET_ENGINE, running_max=1.0)),
        False,
        Reason.SERVING,
        id="it served and is missing",
    ),
    pytest.param(
        replace(QUIET, engine=replace(QUIET_ENGINE, counter_changes=1.0)), True, Reason.TOKENS_MOVED, id="tokens"
    ),
    pytest.param(replace(QUIET, engine=None), True, Reason.METRICS_MISSING, id="its engine answers without metrics"),
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
    pytest.param(
        replace(QUIET, gpu=replace(QUIET_GPU, util_max=80.0)), True, Reason.GPU_ACTIVE_WITHOUT_WORK, id="util"
    ),
    pytest.param(
        replace(QUIET, gpu=replace(QUIET_GPU, newest_age=AGO)), True, Reason.METRICS_STALE, id="exporter stale"
    ),
    pytest.param(
        replace(QUIET, gpu=GpuEvidence(unknown=("no_workload",))), False, None, id="series ended with the engine"
    ),
    pytest.param(
        replace(QUIET, gpu=GpuEvidence(unknown=("no_workload",), active_max=0.4)),
        False,
        Reason.GPU_ACTIVE_WITHOUT_WORK,
        id="worked before its series ended",
    ),
    pytest.param(
        replace(QUIET, gpu=GpuEvidence(unknown=("missing_series",))), False, Reason.METRICS_MISSING, id="no series"
    ),
]


@pytest.mark.parametrize(("evidence", "answers", "reason"), LOOKS)
def test_objections_to_an_end_after_drained_was_received(
    evidence: Evidence, answers: bool, reason: Reason | None
) -> None:
    decision = Decision(resource=FIRST, pool="batch", action=Action.END, reason=Reason.STILL_IDLE)
    confirmed = DrainConfirmed(decision=decision, since=START - AGO, engine_answers=answers)
    found = objection(case(evidence=evidence), confirmed, START)
    assert (None if found is None else found.reason) is reason


@pytest.mark.parametrize(
    ("running", "expected"),
    [(0, True), (None, True), (3, False), (float("nan"), False)],
    ids=["0", "unknown", "3", "NaN"],
)
def test_drained_with_running_requests_is_not_drained(running: float | None, expected: bool) -> None:
    status = AgentStatus(phase=Phase.DRAINED, ready=False, draining=True, drained=True, requests_running=running)
    assert drained(status) is expected
    assert not drained(replace(status, drained=False)) and not drained(None)


@dataclass
class Half(FakeInventory):
    """A list without an error that lacks an instance."""

    without: str

    def instances(self) -> Sequence[Instance]:
        return [one for one in super().instances() if one.id != self.without]


def half(fleet: FakeFleet) -> IdleWatchdog:
    return IdleWatchdog(document(), replace(fleet.ports(), inventory=Half(fleet, SECOND)))


def test_half_a_list_ends_nothing_of_the_pool_when_what_it_lacks_reports() -> None:
    fleet = due(2)
    done = half(fleet).apply()
    assert {decision.reason for decision in done.plan.decisions} == {Reason.NOT_LISTED}
    assert not fleet.ended and not fleet.drains
    assert any(f"{SECOND} is running but is not in the list" in text for text in fleet.messages.values())


def ended(fleet: FakeFleet) -> None:
    fleet.instances[SECOND] = replace(fleet.instances[SECOND], state=InstanceState.TERMINATED)


def new(fleet: FakeFleet) -> None:
    fleet.instances[SECOND] = replace(fleet.instances[SECOND], launched_at=START - timedelta(minutes=1))


def elsewhere(fleet: FakeFleet) -> None:
    fleet.instances[SECOND] = replace(fleet.instances[SECOND], environment="other")


def unknown(fleet: FakeFleet) -> None:
    del fleet.instances[SECOND]


def old_scrapes(fleet: FakeFleet) -> None:
    seen = fleet.evidence[SECOND]
    assert seen.engine is not None and seen.gpu is not None
    age = 10 * seen.interval
    fleet.evidence[SECOND] = replace(
        seen, engine=replace(seen.engine, newest_age=age), gpu=replace(seen.gpu, newest_age=age)
    )


@pytest.mark.parametrize("change", [ended, new, elsewhere, unknown, old_scrapes], ids=lambda change: change.__name__)
def test_terminated_instance_that_still_reports_does_not_fail_the_pass(change: Callable[[FakeFleet], None]) -> None:
    fleet = due(2)
    change(fleet)
    done = half(fleet).dry()
    assert [(d.resource, d.reason) for d in done.plan.decisions] == [(FIRST, Reason.STILL_IDLE)]


def test_a_list_that_agrees_with_the_metrics_costs_no_call() -> None:
    fleet, calls = idle_fleet(2), list[str]()
    fleet.before = calls.append
    IdleWatchdog(document(), fleet.ports()).dry()
    assert QUIET in fleet.evidence.values()
    assert "instance" not in calls
