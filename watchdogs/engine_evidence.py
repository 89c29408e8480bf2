"""Evidence of engines: the query for all instances of a selector, and what its answer proves."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.evidence import EngineEvidence
from serving import metrics
from serving.engines import CONTRACTS
from serving.engines.contract import Contract
from serving.engines.reading import EVIDENCE, NO_EVIDENCE, unknown
from watchdogs.ports import Metrics
from watchdogs.promql import (
    STAT,
    SeriesSelector,
    age_of,
    coverage_of,
    intervals_of,
    recent,
    seconds,
    sum_of,
    together,
    union,
    unless_nan,
)

_ENGINE: Final = "instance, engine, model_name"
"""Labels that distinguish the engines of an instance. Engines without them count as one."""
_IN_FLIGHT: Final = (metrics.REQUESTS_RUNNING, metrics.OPEN_REQUESTS)
"""Gauges of the engine's page; the node agent's count of requests is a third one. The highest counts."""
_COUNTERS: Final = (
    metrics.PROMPT_TOKENS,
    metrics.GENERATION_TOKENS,
    metrics.REQUEST_SUCCESS,
    metrics.LIVE_TOKENS,
    metrics.WORK_STEPS,
)
"""A change of any of them proves work."""
_OF_GATE: Final = {metrics.NODE_ENGINE_REQUESTS: "requests", metrics.NODE_ENGINE_PASSED: "passed"}
"""What the gate counts, and its stats. A request that came and left between two scrapes changes the counter."""
_SIGNALS: Final = (*_IN_FLIGHT, metrics.REQUESTS_WAITING, *_COUNTERS)
_BY_DEFAULT: Final = (
    metrics.REQUESTS_RUNNING,
    metrics.REQUESTS_WAITING,
    metrics.PROMPT_TOKENS,
    metrics.GENERATION_TOKENS,
)
"""The signals that prove idleness where the agent does not report its engine (release 0.1)."""


def engine_query(series: SeriesSelector, window: timedelta, interval: timedelta) -> str:
    """All engine signals, in one expression."""
    whole, late = seconds(window), seconds(recent(window, interval))
    chosen = f'{{job="{series.engine_job}",{series.labels}}}'
    # numbers that prove nothing by the engine's contract carry this label
    proving = f'{{job="{series.engine_job}",{series.labels},{EVIDENCE}!="{NO_EVIDENCE}"}}'
    waiting = f"{metrics.REQUESTS_WAITING}{proving}"
    started = f"{metrics.PROCESS_STARTED}{chosen}"
    gauges = [f"{gauge}{proving}" for gauge in _IN_FLIGHT]
    gauges.append(f'{metrics.NODE_ENGINE_REQUESTS}{{job="{series.node_job}",{series.labels}}}')
    counters = [f"{counter}{proving}" for counter in _COUNTERS]

    def over(function: str) -> str:
        return together(*(f"{function}({gauge}[{whole}])" for gauge in gauges))

    flows = {f"changes{n}": f"sum by (instance_id) (changes({c}[{whole}]))" for n, c in enumerate(counters)}
    tokens = {f"tokens{n}": f"sum by (instance_id) (increase({c}[{whole}]))" for n, c in enumerate(counters[:2])}
    # a signal that one engine does not report must not be hidden by another engine that reports it
    reporting = {
        f"reporting:{metric}": "count by (instance_id)"
        f" (count by (instance_id, {_ENGINE}) (count_over_time({metric}{proving}[{whole}])))"
        for metric in _SIGNALS
    }
    # a counter that appeared in the window may have counted before its first scrape without a later change
    counts = [f"count_over_time({metric}{proving}[{whole}])" for metric in _SIGNALS]
    answered = f"sum_over_time(up{chosen}[{whole}])"
    return union(
        {
            "running": f"max by (instance_id) ({over('max_over_time')})",
            "waiting": f"max by (instance_id) (max_over_time({waiting}[{whole}]))",
            "below0": f"min by (instance_id) ({over('min_over_time')}) < 0",
            "below1": f"min by (instance_id) (min_over_time({waiting}[{whole}])) < 0",
            "sum": sum_of(whole, *gauges, waiting, *counters),
            "count": f"min by (instance_id) ({together(*counts, answered)})",
            "scrapes": f"max by (instance_id) ({together(*counts, f'count_over_time({started}[{whole}])')})",
            "intervals": f"min by (instance_id) "
            f"({together(*(intervals_of(gauge, window, interval) for gauge in gauges))})",
            "newest": f"min by (instance_id) ({together(*(f'timestamp({gauge})' for gauge in gauges))})",
            "started": f"max by (instance_id) ({started})",
            "restarts": f"max by (instance_id) (changes({started}[{whole}])) > 0",
            "pulse": f"min by (instance_id) (changes({metrics.PROCESS_CPU}{chosen}[{late}]))",
        }
        | flows
        | tokens
        | reporting
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What a node agent reports about its engine."""

    contract: Contract | None = None
    unknown: str | None = None
    """Why the engine's numbers prove nothing."""
    stats: Mapping[str, float] = field(default_factory=dict[str, float])
    """Times of the engine's process, and its open requests. The times on an engine's own page precede these."""


def agent_reports(
    store: Metrics, series: SeriesSelector, window: timedelta, interval: timedelta, now: datetime
) -> dict[str, EngineReport]:
    """Read the reports of node agents, by instance. Raises OSError.

    An agent of release 0.1 does not report its engine. It runs a vLLM release whose contract applies. The last report
    of an agent that does not answer now counts.
    """
    whole, late = seconds(window), seconds(recent(window, interval))
    chosen = f'{{job="{series.node_job}",{series.labels}}}'
    info, lacking = f"{metrics.NODE_ENGINE_INFO}{chosen}", f"{metrics.NODE_ENGINE_MISSING}{chosen}"
    started = f"{metrics.NODE_ENGINE_STARTED}{chosen}"
    requests = f"{metrics.NODE_ENGINE_REQUESTS}{chosen}"
    query = union(
        {
            "engine": "max by (instance_id, kind, version)"
            f" ({info} or on (instance_id) last_over_time({info}[{whole}]))",
            "missing": "max by (instance_id, name)"
            f" ({lacking} or (last_over_time({lacking}[{whole}]) unless on (instance_id) {info}))",
            "started": f"max by (instance_id) ({started})",
            "restarts": f"max by (instance_id) (changes({started}[{whole}])) > 0",
            "pulse": f"min by (instance_id) (changes({metrics.NODE_ENGINE_CPU}{chosen}[{late}]))",
            "requests": f"count by (instance_id) ({requests})",
            "passed": f"sum by (instance_id) (changes({metrics.NODE_ENGINE_PASSED}{chosen}[{whole}]))",
            "unanswered": f"max by (instance_id) (sum_over_time(up{chosen}[{whole}]))"
            f" - min by (instance_id) (count_over_time({requests}[{whole}]))",
        }
    )
    engines: dict[str, set[tuple[str, str]]] = {}
    missing: dict[str, list[str]] = {}
    stats: dict[str, dict[str, float]] = {}
    for labels, value in store.query(query, now):
        instance, stat = labels.get("instance_id", ""), labels.get(STAT, "")
        if stat == "engine":
            engines.setdefault(instance, set()).add((labels.get("kind", ""), labels.get("version", "")))
        elif stat == "missing":
            missing.setdefault(instance, []).append(labels.get("name", ""))
        else:
            stats.setdefault(instance, {})[stat] = value
    return {
        instance: _engine_report(
            engines.get(instance, set()), missing.get(instance, ()), stats.get(instance, {}), window
        )
        for instance in engines.keys() | stats.keys()
    }


def _engine_report(
    engines: Collection[tuple[str, str]], missing: Iterable[str], stats: Mapping[str, float], window: timedelta
) -> EngineReport:
    """The report of one agent. `engines`: kind and version; several if they changed before an agent fell silent."""
    if not engines:
        return EngineReport(stats=stats)
    if len({kind for kind, _ in engines}) > 1:
        return EngineReport(unknown="its engine changed within the window", stats=stats)
    named = sorted(missing)
    reasons = [unknown(CONTRACTS.get(kind), version or None, named, window) for kind, version in sorted(engines)]
    kind = next(iter(engines))[0]
    return EngineReport(contract=CONTRACTS.get(kind), unknown=next(filter(None, reasons), None), stats=stats)


def engine_evidence(
    stats: Mapping[str, float], report: EngineReport, window: timedelta, interval: timedelta, now: datetime
) -> EngineEvidence:
    contract, stats = report.contract, {**report.stats, **stats}
    idle = _BY_DEFAULT if contract is None else contract.evidence.idle
    reporting = {metric: stats.get(f"reporting:{metric}", 0.0) for metric in _SIGNALS}
    most = max(1.0, *reporting.values())
    # a signal is missing unless every engine of the instance reports it
    missing = {metric for metric in idle if metric in reporting and reporting[metric] < most}
    missing |= {metric for metric, stat in _OF_GATE.items() if metric in idle and stat not in stats}
    running = stats.get("below0", unless_nan(stats.get("running", 0.0), stats.get("sum")))
    waiting = stats.get("below1", stats.get("waiting", 0.0))
    changes = _sum(stats, "changes")
    if changes is not None:
        changes += stats.get("passed", 0.0)
    return EngineEvidence(
        coverage=coverage_of(stats, window, interval),
        missed=missed_of(stats, stats.get("unanswered") if metrics.NODE_ENGINE_REQUESTS in idle else 0.0),
        newest_age=age_of(stats.get("newest"), now),
        interval=interval,
        # a negative gauge is not a measurement, and NaN must not be hidden by a maximum
        running_max=None if missing.intersection((*_IN_FLIGHT, metrics.NODE_ENGINE_REQUESTS)) else running,
        waiting_max=None if metrics.REQUESTS_WAITING in missing else waiting,
        tokens=_sum(stats, "tokens"),
        counter_changes=None if missing.intersection((*_COUNTERS, *_OF_GATE)) else changes,
        started_age=age_of(stats.get("started"), now),
        restarts=stats.get("restarts", 0.0),
        pulse_changes=stats.get("pulse"),
        unknown=report.unknown,
    )


def missed_of(stats: Mapping[str, float], unanswered: float | None = 0.0) -> float | None:
    """On how many scrapes a series was missing while others were reported.

    `unanswered`: on how many scrapes of the agent the gate did not answer.
    """
    scrapes, count = stats.get("scrapes"), stats.get("count")
    return None if scrapes is None or count is None or unanswered is None else max(scrapes - count, unanswered)


def _sum(stats: Mapping[str, float], prefix: str) -> float | None:
    """The sum of all stats of that prefix; None without one."""
    found = [value for name, value in stats.items() if name.startswith(prefix)]
    return sum(found) if found else None
