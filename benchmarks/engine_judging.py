"""Judges the runs of `engine_runs`: the idle watchdog's checks of the engine on evidence by contract, and a name map.

`evidence` computes in Python what the queries of `watchdogs.signals` compute in Prometheus.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from benchmarks.engine_runs import WINDOW_S, Run, Scrape
from gpufleet.domain.evidence import EngineEvidence, Evidence
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.domain.policies import IdlePolicy
from serving import metrics
from serving.engines import CONTRACTS
from serving.engines.contract import Contract
from serving.engines.reading import Reading, read, unknown
from serving.exposition import Sample, parse
from serving.metrics import Metric, MetricKind
from serving.releases import Version
from watchdogs.idle import checks

_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_WINDOW: Final = timedelta(seconds=WINDOW_S)
POLICY: Final = IdlePolicy(window=_WINDOW, min_age=timedelta(0))
_CHECKS: Final = (
    checks.no_requests,
    checks.counters_flat,
    checks.engine_known,
    checks.engine_reported,
    checks.engine_covered,
    checks.engine_fresh,
    checks.engine_plausible,
    checks.engine_not_restarted,
)
_INSTANCE: Final = Instance(
    id="i-1",
    cloud=Cloud.AWS,
    region="us-east-1",
    zone="us-east-1a",
    machine_type="g6.xlarge",
    capacity_type=CapacityType.ON_DEMAND,
    state=InstanceState.RUNNING,
    launched_at=_EPOCH - timedelta(days=1),
)
_REQUESTS: Final = (metrics.REQUESTS_RUNNING, metrics.OPEN_REQUESTS, metrics.NODE_ENGINE_REQUESTS)


class Verdict(StrEnum):
    """What a rule says about an engine at a moment."""

    BUSY = "busy"
    IDLE = "idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A scrape that was read."""

    at: float
    version: Version
    started: float
    reading: Reading | None
    samples: Sequence[Sample]


def pages(run: Run) -> list[Page]:
    """Read all pages of a run by its contract."""
    return [_page(CONTRACTS[run.kind], scrape) for scrape in run.scrapes]


def _page(contract: Contract, scrape: Scrape) -> Page:
    samples = () if scrape.text is None else tuple(parse(scrape.text))
    reading = None if scrape.text is None else read(contract, scrape.version, samples)
    if reading is not None:
        gate = {metrics.NODE_ENGINE_REQUESTS: scrape.opened, metrics.NODE_ENGINE_PASSED: scrape.passed}
        values = {**reading.values, **{metric: float(value) for metric, value in gate.items()}}
        reading = replace(reading, values=values)
    return Page(at=scrape.at, version=scrape.version, started=scrape.started, reading=reading, samples=samples)


def evidence(run: Run, read_pages: Sequence[Page], now: float) -> EngineEvidence | None:
    """Return the evidence over the window that ends now; None: the engine did not answer in it."""
    contract = CONTRACTS[run.kind]
    times = [page.at for page in read_pages]
    window = read_pages[bisect_left(times, now - WINDOW_S + 1e-9) : bisect_right(times, now)]
    answered = [page for page in window if page.reading is not None]
    if not answered:
        return None
    newest = answered[-1]
    assert newest.reading is not None
    used = {*contract.evidence.work, *contract.evidence.idle}
    series = {metric: _values(answered, metric) for metric in used}
    gauges = {metric for metric in used if metric.kind is MetricKind.GAUGE}
    counters = used - gauges
    expected = max(1.0, WINDOW_S / run.interval_s)
    reported = [len(values) for metric, values in series.items() if metric in contract.evidence.idle]
    return EngineEvidence(
        coverage=min(1.0, min(reported, default=0) / expected),
        missed=float(max(reported, default=0) - min(reported, default=0)),
        newest_age=timedelta(seconds=now - newest.at),
        interval=timedelta(seconds=run.interval_s),
        running_max=max((value for metric in _REQUESTS if metric in gauges for value in series[metric]), default=0.0),
        waiting_max=max(series.get(metrics.REQUESTS_WAITING, ()), default=0.0),
        tokens=sum(_increase(series[metric]) for metric in counters),
        counter_changes=float(sum(_changes(series[metric]) for metric in counters)),
        started_age=timedelta(seconds=now - newest.started),
        restarts=float(len({page.started for page in answered}) - 1),
        pulse_changes=1.0,
        unknown=unknown(contract, str(newest.version), newest.reading.missing, _WINDOW),
    )


def _values(answered: Sequence[Page], metric: Metric) -> list[float]:
    return [page.reading.values[metric] for page in answered if page.reading and metric in page.reading.values]


def counter_total(values: Sequence[Mapping[Metric, float]], metric: Metric) -> float:
    """Return what a counter counted over a whole run, which starts with a new process."""
    return _increase([0.0, *(page[metric] for page in values if metric in page)])


def _changes(values: Sequence[float]) -> int:
    return sum(before != after for before, after in zip(values, values[1:], strict=False))


def _increase(values: Sequence[float]) -> float:
    """Increase of a counter. After a reset it starts at 0."""
    return sum(
        after - before if after >= before else after for before, after in zip(values, values[1:], strict=False)
    )


def judge(found: EngineEvidence | None, now: float) -> Verdict:
    """Return what the idle watchdog's checks of the engine decide."""
    moment = _EPOCH + timedelta(seconds=now)
    interval = timedelta(seconds=15) if found is None or found.interval is None else found.interval
    case = checks.Case(
        instance=_INSTANCE,
        evidence=Evidence(window=_WINDOW, interval=interval, engine=found),
        agent=None,
        policy=POLICY,
        now=moment,
        gpus_expected=1,
        watts_rated=None,
    )
    objection = checks.judge(case, _CHECKS)
    if objection is None:
        return Verdict.IDLE
    work = (checks.no_requests, checks.counters_flat)
    return Verdict.BUSY if any(check(case) for check in work) else Verdict.UNKNOWN


_OTHER_NAMES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "triton": (
        ("nv_inference_pending_request_count",),
        ("nv_llm_input_token_len_sum", "nv_llm_output_token_len_sum"),
    ),
    "lmdeploy": (
        ("lmdeploy:num_requests_running", "lmdeploy:num_requests_waiting"),
        ("lmdeploy:prompt_tokens_total", "lmdeploy:generation_tokens_total"),
    ),
}
"""Engines whose contract reads other or more gauges than tools that map names."""
NAIVE_WINDOW_S: Final = 300


def name_map(contract: Contract) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the baseline: gauges of requests and counters of tokens by name, as other tools map them."""
    gauges = _names(contract, metrics.REQUESTS_RUNNING, metrics.REQUESTS_WAITING)
    counters = _names(contract, metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS)
    return _OTHER_NAMES.get(contract.kind, (gauges, counters))


def _names(contract: Contract, *measures: Metric) -> tuple[str, ...]:
    return tuple(series.name for series in contract.series if series.measures in measures)


def naive(run: Run, read_pages: Sequence[Page], now: float) -> Verdict:
    """Judge by names alone: idle when all gauges are 0 now and no counter increased in five minutes.

    A name that the page lacks counts as 0, as in the tools that map names.
    """
    gauges, counters = name_map(CONTRACTS[run.kind])
    recent = [page for page in read_pages if now - NAIVE_WINDOW_S < page.at <= now and page.reading is not None]
    if not recent:
        return Verdict.UNKNOWN
    if any(_total(recent[-1], name) for name in gauges):
        return Verdict.BUSY
    moved = any(_total(recent[0], name) != _total(recent[-1], name) for name in counters)
    return Verdict.BUSY if moved else Verdict.IDLE


def _total(page: Page, name: str) -> float:
    return sum(sample.value for sample in page.samples if sample.name == name)
