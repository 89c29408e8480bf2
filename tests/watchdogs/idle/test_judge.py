"""Each trap of DCGM and vLLM metrics that is documented in this field, one row each."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain import tags
from gpufleet.domain.decisions import Reason
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import CapacityType, InstanceState, Phase
from tests.fixtures.watchdogs.idle import case
from tests.fixtures.watchdogs.plain import QUIET, READY, START, instance
from watchdogs.idle.checks import CHECKS, Case, judge

NAN = float("nan")


def engine(**changes: Any) -> Evidence:
    assert QUIET.engine is not None
    return replace(QUIET, engine=replace(QUIET.engine, **changes))


def gpu(**changes: Any) -> Evidence:
    assert QUIET.gpu is not None
    return replace(QUIET, gpu=replace(QUIET.gpu, **changes))


def test_idle_instance_passes_all_checks() -> None:
    assert judge(case()) is None


TRAPS = [
    # engine
    pytest.param(case(evidence=engine(running_max=1.0)), Reason.SERVING, id="one request in flight"),
    pytest.param(case(evidence=engine(waiting_max=2.0)), Reason.SERVING, id="requests queued, none running"),
    pytest.param(case(evidence=engine(counter_changes=1.0)), Reason.TOKENS_MOVED, id="tokens between two samples"),
    pytest.param(case(evidence=engine(counter_changes=1.0, tokens=0.0)), Reason.TOKENS_MOVED, id="counter reset"),
    pytest.param(
        case(evidence=engine(started_age=timedelta(minutes=3))),
        Reason.WARMING_UP,
        id="engine restarted",
    ),
    pytest.param(case(evidence=engine(running_max=None)), Reason.METRICS_MISSING, id="gauge renamed"),
    pytest.param(case(evidence=engine(waiting_max=None)), Reason.METRICS_MISSING, id="queue gauge gone"),
    pytest.param(case(evidence=engine(counter_changes=None)), Reason.METRICS_MISSING, id="counters renamed"),
    pytest.param(case(evidence=engine(started_age=None)), Reason.METRICS_MISSING, id="no process start time"),
    pytest.param(
        case(evidence=engine(unknown="SGLang 9.0.0: the contract covers 0.5.8 or later, before 0.5.24")),
        Reason.ENGINE_UNKNOWN,
        id="engine of a release without a contract",
    ),
    pytest.param(
        case(evidence=replace(gpu(active_max=0.5), engine=engine(unknown="SGLang 9.0.0").engine)),
        Reason.GPU_ACTIVE,
        id="engine without a contract, GPU works",
    ),
    pytest.param(case(evidence=engine(coverage=0.89)), Reason.METRICS_MISSING, id="one engine of several thin"),
    pytest.param(case(evidence=engine(coverage=None)), Reason.METRICS_MISSING, id="coverage unknown"),
    pytest.param(case(evidence=engine(missed=3.0)), Reason.METRICS_MISSING, id="one engine off the page for a while"),
    pytest.param(case(evidence=engine(missed=None)), Reason.METRICS_MISSING, id="not known what the page lacked"),
    pytest.param(case(evidence=engine(restarts=1.0)), Reason.WARMING_UP, id="restarted, by a clock that is behind"),
    pytest.param(case(evidence=engine(pulse_changes=None)), Reason.METRICS_MISSING, id="no CPU counter"),
    pytest.param(case(evidence=engine(coverage=NAN)), Reason.METRICS_MISSING, id="coverage NaN"),
    pytest.param(case(evidence=engine(newest_age=timedelta(seconds=31))), Reason.METRICS_STALE, id="engine stale"),
    pytest.param(case(evidence=engine(running_max=NAN)), Reason.METRICS_IMPLAUSIBLE, id="gauge NaN"),
    pytest.param(case(evidence=engine(running_max=-1.0)), Reason.METRICS_IMPLAUSIBLE, id="gauge negative"),
    pytest.param(case(evidence=engine(waiting_max=NAN)), Reason.METRICS_IMPLAUSIBLE, id="queue NaN"),
    pytest.param(case(evidence=engine(counter_changes=NAN)), Reason.METRICS_IMPLAUSIBLE, id="counter NaN"),
    pytest.param(case(evidence=engine(pulse_changes=0.0)), Reason.METRICS_IMPLAUSIBLE, id="frozen engine exporter"),
    pytest.param(case(evidence=replace(QUIET, engine=None)), Reason.METRICS_MISSING, id="engine silent"),
    pytest.param(
        case(evidence=replace(QUIET, engine=None, reached=False)), Reason.NEVER_REACHABLE, id="engine never answered"
    ),
    pytest.param(
        case(evidence=replace(gpu(active_max=0.5), engine=None)), Reason.GPU_ACTIVE, id="engine silent, GPU works"
    ),
    # DCGM
    pytest.param(case(evidence=None), Reason.METRICS_MISSING, id="nothing at all"),
    pytest.param(case(evidence=replace(QUIET, gpu=None)), Reason.METRICS_MISSING, id="exporter silent"),
    pytest.param(case(evidence=gpu(active_max=0.35)), Reason.GPU_ACTIVE_WITHOUT_WORK, id="tensor-parallel spin"),
    pytest.param(case(evidence=gpu(active_max=1.0)), Reason.GPU_ACTIVE_WITHOUT_WORK, id="full spin"),
    pytest.param(case(evidence=gpu(active_max=0.01)), Reason.GPU_ACTIVE_WITHOUT_WORK, id="at the noise floor"),
    pytest.param(case(evidence=gpu(active_max=2147483632.0)), Reason.METRICS_IMPLAUSIBLE, id="blank of 32 bits"),
    pytest.param(case(evidence=gpu(active_max=9.223372036854775794e18)), Reason.METRICS_IMPLAUSIBLE, id="blank 64"),
    pytest.param(case(evidence=gpu(active_max=140737488355328.0)), Reason.METRICS_IMPLAUSIBLE, id="blank double"),
    pytest.param(case(evidence=gpu(active_max=NAN)), Reason.METRICS_IMPLAUSIBLE, id="gpu_active NaN"),
    pytest.param(case(evidence=gpu(active_min=-1.0)), Reason.METRICS_IMPLAUSIBLE, id="gpu_active negative"),
    pytest.param(case(evidence=gpu(active_max=37.0)), Reason.METRICS_IMPLAUSIBLE, id="percent, not a share"),
    pytest.param(case(evidence=gpu(util_max=97.0)), Reason.GPU_ACTIVE_WITHOUT_WORK, id="PROF reads 0 under load"),
    pytest.param(case(evidence=gpu(work_changes=2.0)), Reason.GPU_ACTIVE_WITHOUT_WORK, id="executions counted"),
    pytest.param(
        case(evidence=gpu(computed_ago=timedelta(minutes=29))), Reason.GPU_ACTIVE_WITHOUT_WORK, id="idle clock"
    ),
    pytest.param(
        case(evidence=gpu(unknown=("no_workload",), active_max=None, newest_age=None)),
        Reason.ACCELERATOR_UNKNOWN,
        id="series ended with the workload",
    ),
    pytest.param(case(evidence=gpu(unknown=("shared_device",))), Reason.ACCELERATOR_UNKNOWN, id="shared"),
    pytest.param(
        case(evidence=gpu(implausible=("implausible_value",))), Reason.METRICS_IMPLAUSIBLE, id="another unit"
    ),
    pytest.param(case(evidence=gpu(missed=1.0)), Reason.METRICS_MISSING, id="one page lacked a GPU"),
    pytest.param(case(evidence=gpu(util_max=4294967295.0)), Reason.METRICS_IMPLAUSIBLE, id="utilization blank"),
    pytest.param(case(evidence=gpu(watts_max=60.0)), Reason.METRICS_IMPLAUSIBLE, id="0 activity at full power"),
    pytest.param(case(evidence=gpu(watts_max=NAN)), Reason.METRICS_IMPLAUSIBLE, id="energy NaN"),
    pytest.param(case(watts_rated=None), Reason.METRICS_MISSING, id="rated power unknown"),
    pytest.param(case(evidence=gpu(energy_changes=0.0)), Reason.METRICS_IMPLAUSIBLE, id="frozen exporter"),
    pytest.param(case(evidence=gpu(energy_changes=None)), Reason.METRICS_MISSING, id="no energy counter"),
    pytest.param(case(evidence=gpu(active_max=None)), Reason.METRICS_MISSING, id="PROF fields absent"),
    pytest.param(case(evidence=gpu(coverage=0.5)), Reason.METRICS_MISSING, id="half the samples"),
    pytest.param(case(evidence=gpu(missed=3.0)), Reason.METRICS_MISSING, id="one GPU off the page for a while"),
    pytest.param(case(evidence=gpu(util_max=-1.0)), Reason.METRICS_IMPLAUSIBLE, id="utilization negative"),
    pytest.param(case(gpus_expected=None), Reason.METRICS_MISSING, id="unknown machine type"),
    pytest.param(case(evidence=gpu(newest_age=timedelta(minutes=2))), Reason.METRICS_STALE, id="exporter stale"),
    pytest.param(case(evidence=gpu(gpus=7), gpus_expected=8), Reason.METRICS_MISSING, id="seven of eight GPUs"),
    pytest.param(case(evidence=gpu(gpus=None)), Reason.METRICS_MISSING, id="number of GPUs unknown"),
    pytest.param(
        case(evidence=gpu(gpus=8, metered=7), gpus_expected=8), Reason.METRICS_MISSING, id="energy of seven of eight"
    ),
    pytest.param(
        case(evidence=gpu(watts_max=350.0), watts_rated=700.0), Reason.METRICS_IMPLAUSIBLE, id="half of a large card"
    ),
    pytest.param(
        case(
            evidence=replace(
                engine(newest_age=timedelta(seconds=50), interval=timedelta(seconds=15)),
                interval=timedelta(minutes=1),
            )
        ),
        Reason.METRICS_STALE,
        id="stale by its own interval",
    ),
    pytest.param(case(evidence=engine(tokens=NAN)), Reason.METRICS_IMPLAUSIBLE, id="tokens NaN"),
    # the instance and its people
    pytest.param(case(instance=instance(state=InstanceState.PENDING)), Reason.NOT_RUNNING, id="pending"),
    pytest.param(
        case(instance=instance(launched_at=START - timedelta(minutes=19))), Reason.WARMING_UP, id="too young"
    ),
    pytest.param(
        case(instance=instance(launched_at=START - timedelta(minutes=25))), Reason.WARMING_UP, id="window not full"
    ),
    pytest.param(case(instance=instance(reservation="cr-1")), Reason.PREPAID, id="reservation"),
    pytest.param(
        case(instance=instance(capacity_type=CapacityType.RESERVED)), Reason.PREPAID, id="reserved capacity"
    ),
    pytest.param(
        case(instance=instance(tags={tags.KEEP_UNTIL: "20261121t0900z"})), Reason.KEPT_BY_PEOPLE, id="keep tag"
    ),
    pytest.param(
        case(instance=instance(tags={tags.KEEP_UNTIL: "tomorrow"})),
        Reason.KEPT_BY_PEOPLE,
        id="keep tag with an invalid time",
    ),
    pytest.param(case(kept_by="by ana: demo"), Reason.KEPT_BY_PEOPLE, id="keep brake"),
    pytest.param(case(in_rollout=True), Reason.IN_ROLLOUT, id="instance refresh"),
    pytest.param(case(agent=None), Reason.METRICS_MISSING, id="agent silent"),
    pytest.param(case(agent=replace(READY, phase=Phase.CACHE)), Reason.LOADING, id="loading its model"),
    pytest.param(case(agent=replace(READY, ready=False)), Reason.LOADING, id="changing its revision"),
    pytest.param(
        case(agent=replace(READY, requests_running=None)), Reason.METRICS_MISSING, id="agent knows no requests"
    ),
    pytest.param(case(agent=replace(READY, draining=True)), Reason.DRAINING, id="draining for a notice"),
    pytest.param(case(agent=replace(READY, drained=True)), Reason.DRAINING, id="drained"),
    pytest.param(case(agent=replace(READY, phase=Phase.DRAINING)), Reason.DRAINING, id="in the phase of its drain"),
    pytest.param(case(agent=replace(READY, phase=Phase.DRAINED)), Reason.DRAINING, id="in the phase after it"),
    pytest.param(case(agent=replace(READY, requests_running=1)), Reason.SERVING, id="agent sees a request"),
    pytest.param(case(agent=replace(READY, requests_running=NAN)), Reason.METRICS_IMPLAUSIBLE, id="agent counts NaN"),
    pytest.param(
        case(agent=replace(READY, requests_running=-1)), Reason.METRICS_IMPLAUSIBLE, id="agent counts less than none"
    ),
]


@pytest.mark.parametrize(("given", "reason"), TRAPS)
def test_each_misleading_observation_keeps_the_instance(given: Case, reason: Reason) -> None:
    objection = judge(given)
    assert objection is not None
    assert objection.reason is reason


def test_a_keep_tag_of_the_past_keeps_no_longer() -> None:
    assert judge(case(instance=instance(tags={tags.KEEP_UNTIL: "20261121t0759z"}))) is None


@pytest.mark.parametrize("left_out", CHECKS, ids=lambda check: check.__name__)
def test_each_check_is_required(left_out: Any) -> None:
    rest = tuple(check for check in CHECKS if check is not left_out)
    assert any(judge(param.values[0], rest) is None for param in TRAPS)  # type: ignore[arg-type]
