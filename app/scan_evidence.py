"""Evidence about instances of a scan from metrics stores that the user runs. GPU metrics prove that an instance is
idle; the engine's own metrics make it likely.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Protocol
from urllib.parse import urlsplit

from app import unmanaged_slices
from app.watched_tasks import WatchedTask, run_all
from gpufleet.clouds.progress import Touch
from gpufleet.clouds.prometheus import Prometheus
from gpufleet.clouds.samples import PrometheusSamples
from gpufleet.costs.samples import RawSeries
from gpufleet.costs.slice_use import SliceUse
from gpufleet.domain.activity import CloudError
from gpufleet.domain.decisions import Objection, Reason
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import Cloud, Instance
from gpufleet.domain.policies import OrphanPolicy
from gpufleet.scan.judge import HOUR, ScanWindows, UseVerdict, combine
from gpufleet.scan.model import (
    SLICE_WINDOW,
    FailureCode,
    ScannedInstance,
    ScanScope,
    ScopeResult,
    Verdict,
    VerdictReason,
)
from serving.metrics import Source
from watchdogs import raw_metrics, signals
from watchdogs.idle import checks
from watchdogs.idle.checks import Case, Check
from watchdogs.machines import machine_facts
from watchdogs.orphans.checks import ENGINE_CHECKS, checks_of, judge_orphan
from watchdogs.orphans.watchdog import of_instances

AT_ONCE: Final = 100
"""Instances in one query: each query must be answered within the limit of the scan."""
DIVIDED_AT_ONCE: Final = 10
"""Instances with slices in one query: each may have hundreds of series."""
STORE: Final = "prometheus"
"""The cloud of a store's scope."""
_WORK: Final = {
    Reason.SERVING: VerdictReason.ENGINE_WORKED,
    Reason.TOKENS_MOVED: VerdictReason.ENGINE_WORKED,
    Reason.GPU_ACTIVE: VerdictReason.GPU_WORKED,
    Reason.GPU_ACTIVE_WITHOUT_WORK: VerdictReason.GPU_WORKED,
}
_ENGINE: Final[tuple[Check, ...]] = (checks.running, checks.old_enough, *ENGINE_CHECKS)


class EvidenceStore(Protocol):
    """A metrics store of the user."""

    missing: CloudError | None
    """After `gather`: what is not in the answer, and why: metrics that prove nothing, or slices."""
    series: Sequence[RawSeries]
    """After `gather`: the samples of instances with slices or shared devices in the last hour."""

    @property
    def name(self) -> str: ...

    def gather(self, ids: Sequence[str], windows: ScanWindows, touch: Touch) -> Mapping[str, Evidence]:
        """Evidence by instance id over the idle window. Raises CloudError if an answer is incomplete."""
        ...


class PrometheusStore:
    """A Prometheus whose series have the label `instance_id`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self.missing: CloudError | None = None
        self.series: Sequence[RawSeries] = ()
        place = urlsplit(self._url)
        user, _, server = place.netloc.rpartition("@")
        self.name = self._url.replace(f"{user}@", "", 1) if user else self._url
        """Its address without a password."""
        hosts = (server, place.hostname or "")
        self.names = [self.name, *(one for one in hosts if "." in one or ":" in one)]
        """What identifies it in a message. A host as `prometheus` does not."""

    def gather(self, ids: Sequence[str], windows: ScanWindows, touch: Touch) -> Mapping[str, Evidence]:
        """Evidence by instance id over the idle window. Raises CloudError if an answer is incomplete."""
        found: dict[str, Evidence] = {}
        store = PrometheusSamples(self._url)
        touched = _Touched(store, touch)
        try:
            jobs = [job for job in (Source.ENGINE, Source.ACCELERATOR) if touched.interval(job) is not None]
            raw = raw_metrics.find(touched, windows.now)
            advice = "; ".join(one.sentence for one in raw)
            self.missing = CloudError(advice, FailureCode.NOT_USABLE) if raw else None
            if not jobs:
                lacking = f"Prometheus at {self._url} has neither the job engine nor the job accelerator"
                raise CloudError(f"{lacking}; {advice}", FailureCode.NOT_USABLE) if raw else CloudError(lacking)
            for start in range(0, len(ids), AT_ONCE):
                labels = of_instances(ids[start : start + AT_ONCE])
                series = signals.SeriesSelector(labels=labels, engine_job=jobs[0], gpu_job=jobs[-1])
                for key, one in signals.gather(touched, series, windows.idle, windows.now).items():
                    found[key] = replace(
                        one,
                        engine=one.engine if Source.ENGINE in jobs else None,
                        gpu=one.gpu if Source.ACCELERATOR in jobs else None,
                    )
            self._read_slices(store, ids, windows.now, touch)
        except CloudError as error:
            raise CloudError(self._without_password(error), error.code) from None
        finally:
            store.close()
        return found

    def _read_slices(self, store: PrometheusSamples, ids: Sequence[str], now: datetime, touch: Touch) -> None:
        """Read the samples of instances with slices or shared devices. Each query counts as progress."""
        divided: set[str] = set()
        found: list[RawSeries] = []
        try:
            for start in range(0, len(ids), AT_ONCE):
                touch()
                rows = store.query(unmanaged_slices.divided_query(of_instances(ids[start : start + AT_ONCE])), now)
                divided |= {labels["instance_id"] for labels, _ in rows}
            chosen = sorted(divided)
            for start in range(0, len(chosen), DIVIDED_AT_ONCE):
                touch()
                found += unmanaged_slices.read(store, chosen[start : start + DIVIDED_AT_ONCE], SLICE_WINDOW, now)
        except CloudError as error:
            # what is known about whole instances is still good
            lacking = f"the use of slices cannot be read: {self._without_password(error)}"
            self.missing = self.missing or CloudError(lacking, error.code)
        self.series = found

    def _without_password(self, error: CloudError) -> str:
        return str(error).replace(self._url, self.name)


class _Touched:
    """A store whose queries count as progress."""

    def __init__(self, store: Prometheus, touch: Touch) -> None:
        self._store, self._touch = store, touch

    def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
        self._touch()
        return self._store.query(expression, at)

    def interval(self, job: str) -> timedelta | None:
        self._touch()
        return self._store.interval(job)

    def now(self) -> datetime:
        self._touch()
        return self._store.now()


def with_evidence(
    results: Sequence[ScopeResult], stores: Sequence[EvidenceStore], windows: ScanWindows, limit_s: float
) -> tuple[list[ScopeResult], dict[ScanScope, CloudError]]:
    """Return the results with the evidence of all stores, and the error of each store that failed, even in part."""
    alive = [one.instance for result in results for one in result.instances if one.instance.alive]
    # two projects may have instances of the same name: nothing is known about either
    ids = sorted(name for name, count in Counter(one.id for one in alive).items() if count == 1)
    failed: dict[ScanScope, CloudError] = {}
    evidence: list[Mapping[str, Evidence]] = []
    series: list[RawSeries] = []
    tasks = [
        WatchedTask(store.name, lambda touch, store=store: store.gather(ids, windows, touch)) for store in stores
    ]
    for name, found in run_all(tasks, limit_s):
        if isinstance(found, CloudError):
            failed[ScanScope(STORE, name)] = found
        else:
            evidence.append({key: found[key] for key in ids if key in found})
            for store in stores:
                if store.name == name:
                    series += store.series
                    failed |= {} if store.missing is None else {ScanScope(STORE, name): store.missing}
    for found in evidence:
        results = [replace(one, instances=[_with(each, found, windows) for each in one.instances]) for one in results]
    return list(_with_slices(results, series, windows.now)), failed


def _with_slices(results: Sequence[ScopeResult], series: Iterable[RawSeries], now: datetime) -> Iterator[ScopeResult]:
    """The results with the use of each slice in the last hour. Instances of the same name have none."""
    alive = [one for result in results for one in result.instances if one.instance.alive]
    usd = {one.instance.id: one.usd_per_hour for one in alive if one.usd_per_hour is not None}
    found: dict[str, list[SliceUse]] = {}
    for use in unmanaged_slices.find([one.instance for one in alive], series, usd, SLICE_WINDOW, now).uses:
        found.setdefault(use.instance_id, []).append(use)
    for result in results:
        instances = [replace(one, slices=found.get(one.instance.id, ())) for one in result.instances]
        yield replace(result, instances=instances)


def _with(one: ScannedInstance, found: Mapping[str, Evidence], windows: ScanWindows) -> ScannedInstance:
    evidence = found.get(one.instance.id)
    stated = None if evidence is None else verdict_of(one.instance, evidence, windows)
    if stated is None:
        return one
    known = UseVerdict(
        verdict=one.verdict, reason=one.reason, idle_hours=one.idle_hours, measured_hours=one.measured_hours
    )
    both = combine(known, stated)
    return replace(
        one,
        verdict=both.verdict,
        reason=both.reason,
        idle_hours=both.idle_hours,
        measured_hours=both.measured_hours,
    )


def verdict_of(instance: Instance, evidence: Evidence, windows: ScanWindows) -> UseVerdict | None:
    """Return what the evidence of a store shows; None: nothing."""
    known = machine_facts(Cloud(instance.cloud), [instance])
    case = Case(
        instance=instance,
        evidence=evidence,
        agent=None,
        policy=OrphanPolicy(name="scan", window=windows.idle, min_age=windows.idle).idle(),
        now=windows.now,
        gpus_expected=known.gpus_expected.get(instance.machine_type),
        watts_rated=known.watts_rated.get(instance.machine_type),
    )
    gpu = _judged(case, replace(evidence, engine=None)) if evidence.gpu is not None else _NOT_REPORTED
    engine = checks.judge(case, _ENGINE) if evidence.engine is not None else _NOT_REPORTED
    for objection in (gpu, engine):
        if objection is not None and objection.reason in _WORK:
            return UseVerdict(verdict=Verdict.IN_USE, reason=_WORK[objection.reason])
    if engine not in (None, _NOT_REPORTED):
        return None
    if gpu is None and case.gpus_expected is not None:
        hours = windows.idle // HOUR
        return UseVerdict(verdict=Verdict.IDLE, reason=VerdictReason.GPU_IDLE, idle_hours=hours, measured_hours=hours)
    if engine is None:
        return UseVerdict(verdict=Verdict.LIKELY_IDLE, reason=VerdictReason.ENGINE_IDLE)
    return None


_NOT_REPORTED: Final = Objection(reason=Reason.METRICS_MISSING, detail="not reported")


def _judged(case: Case, gpu: Evidence) -> Objection | None:
    """The first objection of the checks of GPUs. A keep tag or a paid reservation does not make it busy."""
    of_gpus = [one for one in checks_of(gpu) if one not in (checks.kept, checks.not_prepaid)]
    return judge_orphan(replace(case, evidence=gpu), of_gpus)
