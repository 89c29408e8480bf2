"""Evidence from a store of metrics: two queries for all instances of an environment.

Each query is a union of aggregations, told apart by the label `stat`, so that five thousand instances cost as many
calls as one. Aggregation is by the label `instance_id`, which the scrape configuration sets.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from fleet.activity import CloudError
from serving import metrics
from watchdogs.evidence import EngineEvidence, Evidence, GpuEvidence
from watchdogs.ports import Metrics

_STAT: Final = "stat"
_PULSE: Final = "process_cpu_seconds_total"
_STARTED: Final = "process_start_time_seconds"
_GPU_ACTIVE_RENAMED: Final = "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"
"""The name since DCGM 4.6.0 (release notes: headers keep the old one as an alias)."""
_GPU_UTIL_RENAMED: Final = "DCGM_FI_DEV_GPU_UTIL_RATIO"
_COUNTERS: Final = (metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS, metrics.REQUEST_SUCCESS)

Stats = Mapping[str, Mapping[str, float]]
"""By instance, by stat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Whose series are meant."""

    labels: str
    """Matchers, as `environment="prod"`."""
    engine_job: str = metrics.Source.ENGINE
    gpu_job: str = metrics.Source.DCGM


def of_environment(environment: str) -> Series:
    """Those of a fleet's own instances."""
    return Series(labels=f'environment="{environment}"')


def gather(store: Metrics, series: Series, window: timedelta, now: datetime) -> dict[str, Evidence]:
    """Evidence by instance id over the window that ends now. Raises OSError when the store cannot answer whole."""
    engine_every, gpu_every = _interval(store, series.engine_job), _interval(store, series.gpu_job)
    engine = _ask(store, engine_query(series, window, engine_every), now)
    gpu = _ask(store, gpu_query(series, window, gpu_every), now)
    return {
        instance: Evidence(
            window=window,
            interval=max(engine_every, gpu_every),
            engine=_engine(engine[instance], window, engine_every, now) if instance in engine else None,
            gpu=_gpu(gpu[instance], window, gpu_every, now) if instance in gpu else None,
        )
        for instance in engine.keys() | gpu.keys()
    }


def longest_interval(store: Metrics) -> timedelta:
    """The longer scrape interval of engines and GPU exporters."""
    return max(_interval(store, metrics.Source.ENGINE), _interval(store, metrics.Source.DCGM))


def reached(store: Metrics, environment: str, instances: Sequence[str], span: timedelta, now: datetime) -> set[str]:
    """Those of the instances whose engine answered at least once in the span before now."""
    if not instances:
        return set()
    chosen = "|".join(sorted(instances))
    selector = f'up{{job="engine",environment="{environment}",instance_id=~"{chosen}"}}'
    rows = store.query(f"max by (instance_id) (max_over_time({selector}[{_seconds(span)}]))", now)
    return {labels["instance_id"] for labels, value in rows if value == 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrapes:
    """When an instance was scraped last, by the store's clock, whether or not it answered."""

    engine: datetime | None = None
    """None: not within the store's memory, or no target of it."""
    gpu: datetime | None = None
    engine_answers: bool = False

    def silent_since(self, moment: datetime) -> tuple[str, ...]:
        """The sources that were not scraped after that moment."""
        times = {"engine": self.engine, "GPU exporter": self.gpu}
        return tuple(name for name, at in times.items() if at is None or at <= moment)


def scrapes(store: Metrics, series: Series, instances: Sequence[str]) -> dict[str, Scrapes]:
    """The last scrapes of these instances as the store has them now. One query; raises OSError.

    An exporter of GPUs that did not answer has told nothing: its time is that of its last answer. An engine that does
    not answer any more has told that it is gone.
    """
    chosen = f'{series.labels},instance_id=~"{"|".join(instances)}"'
    engine, gpu = f'up{{job="{series.engine_job}",{chosen}}}', f'up{{job="{series.gpu_job}",{chosen}}}'
    query = _union(
        {
            "engine": f"min by (instance_id) (timestamp({engine}))",
            "gpu": f"min by (instance_id) (timestamp({gpu}) and ({gpu} == 1))",
            "answers": f"max by (instance_id) ({engine})",
        }
    )
    return {
        instance: Scrapes(
            engine=_moment(stats.get("engine")),
            gpu=_moment(stats.get("gpu")),
            engine_answers=stats.get("answers") != 0,
        )
        for instance, stats in _ask(store, query, store.now()).items()
    }


def engine_query(series: Series, window: timedelta, interval: timedelta) -> str:
    """What the engines say, in one expression."""
    whole, late = _seconds(window), _seconds(_recent(window, interval))
    chosen = f'{{job="{series.engine_job}",{series.labels}}}'
    running = f"{metrics.REQUESTS_RUNNING}{chosen}"
    waiting = f"{metrics.REQUESTS_WAITING}{chosen}"
    flows = {f"changes{n}": f"sum by (instance_id) (changes({c}{chosen}[{whole}]))" for n, c in enumerate(_COUNTERS)}
    # a counter that was born in the window has counted before anybody looked, and never changed since
    counted = {
        f"counted{n}": f"min by (instance_id) (count_over_time({c}{chosen}[{whole}]))"
        for n, c in enumerate(_COUNTERS[:2])
    }
    tokens = {
        f"tokens{n}": f"sum by (instance_id) (increase({c}{chosen}[{whole}]))" for n, c in enumerate(_COUNTERS[:2])
    }
    # what one engine keeps to itself must not hide behind another one that tells; other engines than vLLM name none
    telling = {
        f"telling{n}": f"count by (instance_id) (count by (instance_id, engine) (count_over_time({name}[{whole}])))"
        for n, name in enumerate((running, waiting, *(f"{c}{chosen}" for c in _COUNTERS[:2])))
    }
    return _union(
        {
            "running": f"max by (instance_id) (max_over_time({running}[{whole}]))",
            "waiting": f"max by (instance_id) (max_over_time({waiting}[{whole}]))",
            "lowest": f"min by (instance_id) (min_over_time({running}[{whole}]))",
            # a sum is NaN where one sample is; the highest and the lowest pass over it
            "sum": f"sum by (instance_id) (sum_over_time({running}[{whole}]))",
            "sum_waiting": f"sum by (instance_id) (sum_over_time({waiting}[{whole}]))",
            "count": f"min by (instance_id) (count_over_time({running}[{whole}]))",
            "count_waiting": f"min by (instance_id) (count_over_time({waiting}[{whole}]))",
            "newest": f"min by (instance_id) (timestamp({running}))",
            "started": f"max by (instance_id) ({_STARTED}{chosen})",
            "pulse": f"min by (instance_id) (changes({_PULSE}{chosen}[{late}]))",
        }
        | flows
        | counted
        | tokens
        | telling
    )


def gpu_query(series: Series, window: timedelta, interval: timedelta) -> str:
    """What the GPU exporters say, in one expression."""
    whole, late = _seconds(window), _seconds(_recent(window, interval))
    chosen = f'{{job="{series.gpu_job}",{series.labels}}}'
    active = (f"{metrics.GPU_ACTIVE}{chosen}", f"{_GPU_ACTIVE_RENAMED}{chosen}")
    util = f"{metrics.GPU_UTILIZATION}{chosen}"
    util_ratio = f"{_GPU_UTIL_RENAMED}{chosen}"
    energy = f"{metrics.ENERGY}{chosen}"

    def over(function: str, aggregate: str) -> str:
        return f"{aggregate} by (instance_id) ({_beside(*(f'{function}({name}[{whole}])' for name in active))})"

    return _union(
        {
            "active": over("max_over_time", "max"),
            "lowest": over("min_over_time", "min"),
            "sum": over("sum_over_time", "sum"),
            "count": over("count_over_time", "min"),
            "newest": f"min by (instance_id) (timestamp({active[0]}) or timestamp({active[1]}))",
            "gpus": "count by (instance_id) (count by (instance_id, gpu, UUID)"
            f" (timestamp({active[0]}) or timestamp({active[1]})))",
            "util": f"max by (instance_id) ("
            f"{_beside(f'max_over_time({util}[{whole}])', f'100 * max_over_time({util_ratio}[{whole}])')})",
            "util_sum": f"sum by (instance_id) (sum_over_time({util}[{whole}]))",
            "energy": f"min by (instance_id) (changes({energy}[{late}]))",
            "metered": f"count by (instance_id) (count by (instance_id, gpu, UUID) (timestamp({energy})))",
            "millijoules": f"max by (instance_id) (increase({energy}[{whole}]))",
        }
    )


def highest_active(labels: str, window: timedelta) -> str:
    """Query for the highest `gpu_active` by instance, by either name of the field, whatever job scrapes it."""
    field = f'{{__name__=~"{metrics.GPU_ACTIVE}|{_GPU_ACTIVE_RENAMED}",{labels}}}'
    return f"max by (instance_id) (max_over_time({field}[{_seconds(window)}]))"


def _beside(old: str, new: str) -> str:
    """Both names of a field. Without a label of its own the new one is lost while the old one is remembered."""
    return f'{old} or label_replace({new}, "named", "anew", "", "")'


def _union(parts: Mapping[str, str]) -> str:
    return " or ".join(f'label_replace({part}, "{_STAT}", "{name}", "", "")' for name, part in parts.items())


def _ask(store: Metrics, query: str, now: datetime) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for labels, value in store.query(query, now):
        if "instance_id" in labels:
            found.setdefault(labels["instance_id"], {})[labels[_STAT]] = value
    return found


def _interval(store: Metrics, job: str) -> timedelta:
    interval = store.interval(job)
    if interval is None or interval <= timedelta(0):
        raise CloudError(f"the metrics store has no job {str(job)!r}: add the scrape configuration of monitoring/")
    return interval


def _recent(window: timedelta, interval: timedelta) -> timedelta:
    """Long enough that a living counter has moved, exporters that collect each 30 s included; not over the window."""
    return min(window, max(window / 4, 4 * interval))


def _engine(stats: Mapping[str, float], window: timedelta, interval: timedelta, now: datetime) -> EngineEvidence:
    lowest = stats.get("lowest")
    running = stats.get("running")
    engines, queues, *counters = (stats.get(f"telling{n}", 0.0) for n in range(4))
    return EngineEvidence(
        coverage=_coverage(_least(stats, "count"), window, interval),
        newest_age=_age(stats.get("newest"), now),
        interval=interval,
        # a negative gauge is no measurement, and NaN must not hide behind a maximum
        running_max=lowest if lowest is not None and not lowest >= 0 else _unless_nan(running, stats.get("sum")),
        waiting_max=None if queues < engines else _unless_nan(stats.get("waiting"), stats.get("sum_waiting")),
        tokens=_sum(stats, "tokens"),
        counter_changes=None if min(counters) < engines else _sum(stats, "changes", least=2),
        started_age=_age(stats.get("started"), now),
        pulse_changes=stats.get("pulse"),
    )


def _gpu(stats: Mapping[str, float], window: timedelta, interval: timedelta, now: datetime) -> GpuEvidence:
    gpus, metered = stats.get("gpus"), stats.get("metered")
    millijoules = stats.get("millijoules")
    return GpuEvidence(
        gpus=None if gpus is None else int(gpus),
        metered=None if metered is None else int(metered),
        coverage=_coverage(stats.get("count"), window, interval),
        newest_age=_age(stats.get("newest"), now),
        interval=interval,
        active_max=stats.get("active"),
        active_min=_unless_nan(stats.get("lowest"), stats.get("sum")),
        util_max=_unless_nan(stats.get("util"), stats.get("util_sum")),
        energy_changes=stats.get("energy"),
        watts_max=None if millijoules is None else millijoules / 1000 / window.total_seconds(),
    )


def _coverage(count: float | None, window: timedelta, interval: timedelta) -> float | None:
    if count is None or math.isnan(count):
        return None
    return min(1.0, count / max(1.0, window / interval))


def _unless_nan(value: float | None, total: float | None) -> float | None:
    """The value, or NaN where a sum over all samples is: one of them was no number."""
    return total if value is not None and total is not None and math.isnan(total) else value


def _age(stamp: float | None, now: datetime) -> timedelta | None:
    if stamp is None or not math.isfinite(stamp):
        return None
    return timedelta(seconds=now.timestamp() - stamp)


def _moment(stamp: float | None) -> datetime | None:
    return None if stamp is None or not math.isfinite(stamp) else datetime.fromtimestamp(stamp, UTC)


def _least(stats: Mapping[str, float], prefix: str) -> float | None:
    """The least of all stats of that prefix; None without any."""
    return min((value for name, value in stats.items() if name.startswith(prefix)), default=None)


def _sum(stats: Mapping[str, float], prefix: str, *, least: int = 1) -> float | None:
    """The sum of all stats of that prefix; None unless the first `least` of them were reported."""
    if any(f"{prefix}{n}" not in stats for n in range(least)):
        return None
    return sum(value for name, value in stats.items() if name.startswith(prefix))


def _seconds(span: timedelta) -> str:
    return f"{max(1, round(span.total_seconds()))}s"
