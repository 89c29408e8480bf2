"""Checks whether an instance is idle. The first check that objects is the reason to keep it.

An instance is idle only when no check objects. Each check covers one documented failure mode; none may be left out
(tests/watchdogs/idle/test_property.py shows for each what goes wrong without it).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.catalogue import working_watts
from gpufleet.domain.decisions import Objection, Reason
from gpufleet.domain.durations import approximate
from gpufleet.domain.evidence import STALE_AFTER, AgentStatus, EngineEvidence, Evidence, GpuEvidence
from gpufleet.domain.model import CapacityType, Instance, InstanceState, Phase
from gpufleet.domain.policies import IdlePolicy
from watchdogs.brakes import kept_by_tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The facts about one instance that the checks use."""

    instance: Instance
    evidence: Evidence | None
    agent: AgentStatus | None
    policy: IdlePolicy
    now: datetime
    gpus_expected: int | None
    """From the machine catalogue; None: an unknown machine type."""
    watts_rated: float | None
    """Rated power of one GPU; None: unknown."""
    kept_by: str | None = None
    """Who asked to keep it, through a brake."""
    in_rollout: bool = False


Check = Callable[[Case], Objection | None]


def judge(case: Case, checks: Sequence[Check] | None = None) -> Objection | None:
    """The first objection to calling the instance idle; None: it is idle."""
    for check in CHECKS if checks is None else checks:
        objection = check(case)
        if objection is not None:
            return objection
    return None


def running(case: Case) -> Objection | None:
    """It runs: it does not start or stop, and has not ended."""
    if case.instance.state is InstanceState.RUNNING:
        return None
    return Objection(reason=Reason.NOT_RUNNING, detail=case.instance.state)


def kept(case: Case) -> Objection | None:
    """People asked to keep it, by tag or by brake. A tag with an invalid value keeps it, too."""
    keeper = case.kept_by or kept_by_tag(case.instance, case.now)
    return None if keeper is None else Objection(reason=Reason.KEPT_BY_PEOPLE, detail=keeper)


def not_prepaid(case: Case) -> Objection | None:
    """It is not reserved capacity, which costs the same when stopped."""
    if case.instance.capacity_type is CapacityType.RESERVED or case.instance.reservation is not None:
        return Objection(reason=Reason.PREPAID, detail=case.instance.reservation or "reserved")
    return None


def old_enough(case: Case) -> Objection | None:
    """It is older than its warm-up and than the window of the evidence."""
    age = case.now - case.instance.launched_at
    least = max(case.policy.min_age, case.policy.window)
    if age < least:
        return Objection(
            reason=Reason.WARMING_UP, detail=f"{approximate(age)} old, not judged before {approximate(least)}"
        )
    return None


def not_in_rollout(case: Case) -> Objection | None:
    """Its group is not being refreshed."""
    return Objection(reason=Reason.IN_ROLLOUT) if case.in_rollout else None


def no_requests(case: Case) -> Objection | None:
    """Nothing in flight, nothing queued."""
    engine = case.evidence.engine if case.evidence else None
    if engine is None:
        return None
    busy = (engine.running_max or 0) + (engine.waiting_max or 0)
    if busy > 0:
        detail = f"{_count(engine.running_max)} running, {_count(engine.waiting_max)} waiting"
        return Objection(reason=Reason.SERVING, detail=detail)
    return None


def counters_flat(case: Case) -> Objection | None:
    """No token and no request was counted. A counter reset counts as a change."""
    engine = case.evidence.engine if case.evidence else None
    if engine is not None and engine.counter_changes is not None and engine.counter_changes > 0:
        return Objection(reason=Reason.TOKENS_MOVED, detail=f"{_count(engine.tokens)} tokens")
    return None


def gpus_quiet(case: Case) -> Objection | None:
    """Every unit is below the noise floor by each number. One that works without a request is reported as waste,
    unless the engine's numbers have no contract: then its requests are not known.
    """
    gpu = case.evidence.gpu if case.evidence else None
    work = None if gpu is None else _work(gpu, case.policy)
    if work is None:
        return None
    engine = case.evidence.engine if case.evidence else None
    reason = Reason.GPU_ACTIVE_WITHOUT_WORK if _requests_known(engine) else Reason.GPU_ACTIVE
    return Objection(reason=reason, detail=work)


def _requests_known(engine: EngineEvidence | None) -> bool:
    if engine is None or engine.unknown is not None:
        return False
    return engine.running_max is not None and engine.counter_changes is not None


def _work(gpu: GpuEvidence, policy: IdlePolicy) -> str | None:
    """The number that shows work of a GPU. Profiling fields can read 0 under load (DCGM issue 303)."""
    if gpu.active_max is not None and policy.gpu_active_below <= gpu.active_max <= 1:
        return f"gpu_active up to {gpu.active_max:.3f}"
    if gpu.util_max is not None and policy.gpu_active_below <= gpu.util_max / 100 <= 1:
        return f"GPU utilization up to {gpu.util_max:g} %"
    if gpu.work_changes > 0:
        return f"{_count(gpu.work_changes)} changes of counters or clocks that only work changes"
    if gpu.computed_ago is not None and gpu.computed_ago < policy.window:
        return f"a unit computed {approximate(gpu.computed_ago)} ago"
    return None


def engine_known(case: Case) -> Objection | None:
    """The engine's numbers have a contract: engine, release and names are known, and the window is long enough."""
    engine = case.evidence.engine if case.evidence else None
    if engine is None or engine.unknown is None:
        return None
    return Objection(reason=Reason.ENGINE_UNKNOWN, detail=engine.unknown)


def engine_reported(case: Case) -> Objection | None:
    """The engine answered and reported every signal."""
    evidence = case.evidence
    engine = evidence.engine if evidence else None
    if engine is None:
        if evidence is not None and evidence.reached is False:
            return Objection(reason=Reason.NEVER_REACHABLE, detail="the engine never answered")
        return Objection(reason=Reason.METRICS_MISSING, detail="no samples of the engine in the window")
    signals = {
        "requests running": engine.running_max,
        "requests waiting": engine.waiting_max,
        "token counters": engine.counter_changes,
        "start time": engine.started_age,
        "CPU counter": engine.pulse_changes,
        "newest sample": engine.newest_age,
    }
    return _absent("engine", signals)


def engine_covered(case: Case) -> Objection | None:
    """Enough samples of every engine over the whole window."""
    return _thin("engine", case.evidence.engine if case.evidence else None, case.policy.coverage)


def engine_fresh(case: Case) -> Objection | None:
    """The newest sample of the engine is at most two intervals old."""
    return _stale(case, "engine", case.evidence.engine if case.evidence else None)


def engine_plausible(case: Case) -> Objection | None:
    """Gauges are valid counts, and the CPU counter of the process still increases."""
    engine = case.evidence.engine if case.evidence else None
    if engine is None:
        return None
    for name, value in (("running", engine.running_max), ("waiting", engine.waiting_max)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            return Objection(reason=Reason.METRICS_IMPLAUSIBLE, detail=f"requests {name} = {value}")
    if not all(math.isfinite(value) for value in (engine.counter_changes, engine.tokens) if value is not None):
        return Objection(reason=Reason.METRICS_IMPLAUSIBLE, detail="the token counters are not finite numbers")
    if engine.pulse_changes is not None and not engine.pulse_changes > 0:
        return Objection(reason=Reason.METRICS_IMPLAUSIBLE, detail="the CPU counter of the engine does not increase")
    return None


def engine_not_restarted(case: Case) -> Objection | None:
    """No engine started within the window: it would have lost the counts from before."""
    engine = case.evidence.engine if case.evidence else None
    if engine is None:
        return None
    if engine.started_age is not None and engine.started_age < case.policy.window:
        return Objection(reason=Reason.WARMING_UP, detail=f"its engine started {approximate(engine.started_age)} ago")
    if engine.restarts > 0:
        return Objection(reason=Reason.WARMING_UP, detail="its engine restarted within the window")
    return None


def gpu_known(case: Case) -> Objection | None:
    """The numbers of each unit can prove idleness: not of shared or partitioned devices, for example."""
    gpu = case.evidence.gpu if case.evidence else None
    if gpu is None or not gpu.unknown:
        return None
    return Objection(reason=Reason.ACCELERATOR_UNKNOWN, detail=", ".join(gpu.unknown))


def gpu_reported(case: Case) -> Objection | None:
    """Every GPU of the machine reported every signal."""
    gpu = case.evidence.gpu if case.evidence else None
    if gpu is None:
        return Objection(reason=Reason.METRICS_MISSING, detail="no samples of the GPU exporter in the window")
    signals = {
        "gpu_active": gpu.active_max,
        "number of GPUs": gpu.gpus,
        "energy": 0.0 if gpu.without_pulse else gpu.energy_changes,
        "newest sample": gpu.newest_age,
    }
    missing = _absent("GPU exporter", signals)
    if missing is not None:
        return missing
    if case.gpus_expected is None:
        detail = f"the number of GPUs of {case.instance.machine_type} is unknown"
        return Objection(reason=Reason.METRICS_MISSING, detail=detail)
    for number, what in ((gpu.gpus, "report"), (gpu.metered, "report their energy")):
        if (number or 0) < case.gpus_expected:
            detail = f"{number or 0} of {case.gpus_expected} GPUs {what}"
            return Objection(reason=Reason.METRICS_MISSING, detail=detail)
    return None


def gpu_covered(case: Case) -> Objection | None:
    """Enough samples of every GPU over the whole window, and no page without one of them."""
    gpu = case.evidence.gpu if case.evidence else None
    thin = _thin("GPU exporter", gpu, case.policy.coverage)
    if thin is not None or gpu is None or gpu.active_max is None or gpu.missed == 0:
        return thin
    detail = f"GPU exporter: a series was missing on {_count(gpu.missed)} pages that had others"
    return Objection(reason=Reason.METRICS_MISSING, detail=detail)


def gpu_fresh(case: Case) -> Objection | None:
    """The newest sample of the GPU exporter is at most two intervals old."""
    return _stale(case, "GPU exporter", case.evidence.gpu if case.evidence else None)


def gpu_in_range(case: Case) -> Objection | None:
    """Activity is a share or a percentage: a blank sentinel, another unit or NaN is not a measurement."""
    gpu = case.evidence.gpu if case.evidence else None
    if gpu is None:
        return None
    for value in (gpu.active_max, gpu.active_min):
        if value is not None and not 0 <= value <= 1:
            return Objection(reason=Reason.METRICS_IMPLAUSIBLE, detail=f"gpu_active = {value:g}, not 0 to 1")
    if gpu.util_max is not None and not 0 <= gpu.util_max <= 100:
        detail = f"GPU utilization = {gpu.util_max:g} %, not 0 to 100"
        return Objection(reason=Reason.METRICS_IMPLAUSIBLE, detail=detail)
    return None


def gpu_not_frozen(case: Case) -> Objection | None:
    """An idle GPU draws power, too: if its energy counter does not increase, the exporter repeats old values."""
    gpu = case.evidence.gpu if case.evidence else None
    if gpu is not None and gpu.energy_changes is not None and not gpu.energy_changes > 0:
        return Objection(reason=Reason.METRICS_IMPLAUSIBLE, detail="the energy counter of a GPU does not increase")
    return None


def gpu_not_contradicted(case: Case) -> Objection | None:
    """Power shows no work while profiling fields are 0 (exporter issue 662), and no number has another unit."""
    gpu = case.evidence.gpu if case.evidence else None
    if gpu is None:
        return None
    if gpu.implausible:
        detail = f"{', '.join(gpu.implausible)}: power, energy, memory or a clock has another unit"
        return Objection(reason=Reason.METRICS_IMPLAUSIBLE, detail=detail)
    rated = case.watts_rated
    if gpu.watts_max is None:
        return None
    if rated is None:
        detail = f"the rated power of a GPU of {case.instance.machine_type} is unknown, so power cannot show work"
        return Objection(reason=Reason.METRICS_MISSING, detail=detail)
    if not gpu.watts_max < working_watts(rated):
        detail = f"gpu_active is {gpu.active_max} but a GPU drew {gpu.watts_max:.0f} W of {rated:.0f} W"
        return Objection(reason=Reason.METRICS_IMPLAUSIBLE, detail=detail)
    return None


def agent_ready(case: Case) -> Objection | None:
    """The node agent answers and reports that the instance is in service: not loading, switching or draining."""
    agent = case.agent
    if agent is None:
        return Objection(reason=Reason.METRICS_MISSING, detail="the node agent does not answer")
    if agent.draining or agent.drained or agent.phase in (Phase.DRAINING, Phase.DRAINED):
        return Objection(reason=Reason.DRAINING, detail=agent.reason or "")
    if agent.phase is not Phase.READY:
        return Objection(reason=Reason.LOADING, detail=f"phase {agent.phase}")
    if not agent.ready:
        # it switches its revision or checks itself: the router sends it nothing meanwhile
        return Objection(reason=Reason.LOADING, detail="its agent reports that it is not ready")
    if agent.requests_running is None:
        return Objection(
            reason=Reason.METRICS_MISSING, detail="its agent does not report the number of running requests"
        )
    if agent.requests_running > 0:
        return Objection(
            reason=Reason.SERVING, detail=f"{_count(agent.requests_running)} running, as its agent reports"
        )
    if agent.requests_running != 0:
        detail = f"its agent counts {_count(agent.requests_running)} requests"
        return Objection(reason=Reason.METRICS_IMPLAUSIBLE, detail=detail)
    return None


METRIC_CHECKS: Final[tuple[Check, ...]] = (
    no_requests,
    counters_flat,
    gpus_quiet,
    engine_known,
    engine_reported,
    engine_covered,
    engine_fresh,
    engine_plausible,
    engine_not_restarted,
    gpu_known,
    gpu_reported,
    gpu_covered,
    gpu_fresh,
    gpu_in_range,
    gpu_not_frozen,
    gpu_not_contradicted,
)
"""The checks that need metrics only. Work comes first: it is the most useful reason to keep an instance."""

CHECKS: Final[tuple[Check, ...]] = (
    running,
    kept,
    not_prepaid,
    old_enough,
    not_in_rollout,
    *METRIC_CHECKS,
    agent_ready,
)


def _absent(source: str, signals: dict[str, float | int | timedelta | None]) -> Objection | None:
    missing = [name for name, value in signals.items() if value is None]
    if missing:
        return Objection(reason=Reason.METRICS_MISSING, detail=f"{source}: no {', '.join(missing)}")
    return None


def _thin(source: str, side: EngineEvidence | GpuEvidence | None, least: float) -> Objection | None:
    coverage = side.coverage if side else None
    if coverage is None or not coverage >= least:
        share = "unknown" if coverage is None else f"{coverage:.0%}"
        return Objection(reason=Reason.METRICS_MISSING, detail=f"{source}: coverage {share}, needs {least:.0%}")
    # no engine or GPU may be missing on scrapes on which others report
    if side is None or side.missed is None or not side.missed <= STALE_AFTER:
        missed = _count(side.missed if side else None)
        detail = f"{source}: a series was missing on {missed} scrapes that had others"
        return Objection(reason=Reason.METRICS_MISSING, detail=detail)
    return None


def _stale(case: Case, source: str, side: EngineEvidence | GpuEvidence | None) -> Objection | None:
    if case.evidence is None or side is None or side.newest_age is None or case.evidence.is_new(side):
        return None
    return Objection(
        reason=Reason.METRICS_STALE, detail=f"{source}: newest sample is {approximate(side.newest_age)} old"
    )


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
