"""Checks whether an orphan is idle: those checks of the idle watchdog that apply to an unmanaged machine. Pure.

Its GPUs must be measured, by the GPU exporter or by the CloudWatch agent. If an engine reports, all engine checks
apply. Without an engine it may be idle (a notebook has none), but it is not stopped then. Nor is it stopped by plain
utilization without `gpu_active` (`decide.stop_objection`).
"""

from collections.abc import Sequence
from typing import Final

from gpufleet.domain.decisions import Objection, Reason
from gpufleet.domain.evidence import Evidence
from watchdogs.idle import checks as idle_checks
from watchdogs.idle.checks import Case, Check

QUIET_UTILIZATION: Final = 1.0
"""Percent of `nvidia_smi` utilization below which a GPU is idle: it is the time in which any kernel ran."""


def judge_orphan(case: Case, checks: Sequence[Check] | None = None) -> Objection | None:
    """The first objection to calling an orphan idle; None: it is idle."""
    return idle_checks.judge(case, checks_of(case.evidence) if checks is None else checks)


def checks_of(evidence: Evidence | None) -> tuple[Check, ...]:
    """The checks that this evidence must pass."""
    engine = ENGINE_CHECKS if evidence is not None and evidence.engine is not None else ()
    gpu = None if evidence is None else evidence.gpu
    by_utilization = gpu is not None and gpu.active_max is None and gpu.util_max is not None
    return (*MACHINE_CHECKS, *engine, *(UTILIZATION_CHECKS if by_utilization else EXPORTER_CHECKS))


def utilization_quiet(case: Case) -> Objection | None:
    """Every GPU is below the noise floor by `nvidia_smi`, which has no `gpu_active`."""
    gpu = case.evidence.gpu if case.evidence else None
    if gpu is None or gpu.util_max is None:
        return Objection(reason=Reason.METRICS_MISSING, detail="no GPU utilization in the window")
    if not 0 <= gpu.util_max <= 100:
        return Objection(
            reason=Reason.METRICS_IMPLAUSIBLE, detail=f"GPU utilization = {gpu.util_max:g}, not 0 to 100"
        )
    if gpu.util_max < QUIET_UTILIZATION:
        return None
    return Objection(reason=Reason.GPU_ACTIVE, detail=f"GPU utilization up to {gpu.util_max:g} %")


def utilization_of_all(case: Case) -> Objection | None:
    """As many GPUs report as the machine has."""
    gpu = case.evidence.gpu if case.evidence else None
    reported = 0 if gpu is None else gpu.gpus or 0
    if reported >= (case.gpus_expected or 1):
        return None
    return Objection(reason=Reason.METRICS_MISSING, detail=f"{reported} of {case.gpus_expected or 1} GPUs report")


def newest_known(case: Case) -> Objection | None:
    """The age of the newest sample is known: `gpu_fresh` needs it."""
    gpu = case.evidence.gpu if case.evidence else None
    if gpu is None or gpu.newest_age is None:
        return Objection(reason=Reason.METRICS_MISSING, detail="no newest sample of the GPUs")
    return None


def evidence_summary(evidence: Evidence | None) -> str:
    """The evidence in one line; empty without evidence."""
    gpu = None if evidence is None else evidence.gpu
    if evidence is None or gpu is None:
        return ""
    window = f"for {evidence.window.total_seconds():.0f} s"
    if gpu.active_max is not None:
        summary = f"gpu_active at most {gpu.active_max:.3g} {window}"
    elif gpu.util_max is not None:
        summary = f"GPU utilization at most {gpu.util_max:g} % {window}"
    else:
        return ""
    engine = evidence.engine
    if engine is None:
        return f"{summary}; no engine reports"
    busy = (engine.running_max or 0) + (engine.waiting_max or 0) > 0 or bool(engine.counter_changes)
    return f"{summary}; {'its engine worked' if busy else 'no request and no token'}"


MACHINE_CHECKS: Final[tuple[Check, ...]] = (
    idle_checks.running,
    idle_checks.kept,
    idle_checks.not_prepaid,
    idle_checks.old_enough,
)
ENGINE_CHECKS: Final[tuple[Check, ...]] = (
    idle_checks.no_requests,
    idle_checks.counters_flat,
    idle_checks.engine_known,
    idle_checks.engine_reported,
    idle_checks.engine_covered,
    idle_checks.engine_fresh,
    idle_checks.engine_plausible,
    idle_checks.engine_not_restarted,
)
EXPORTER_CHECKS: Final[tuple[Check, ...]] = (
    idle_checks.gpus_quiet,
    idle_checks.gpu_known,
    idle_checks.gpu_reported,
    idle_checks.gpu_covered,
    idle_checks.gpu_fresh,
    idle_checks.gpu_in_range,
    idle_checks.gpu_not_frozen,
    idle_checks.gpu_not_contradicted,
)
UTILIZATION_CHECKS: Final[tuple[Check, ...]] = (
    utilization_quiet,
    utilization_of_all,
    newest_known,
    idle_checks.gpu_covered,
    idle_checks.gpu_fresh,
    idle_checks.gpu_not_contradicted,
)
