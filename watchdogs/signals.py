"""Evidence from a metrics store: three queries for all instances of an environment.

Each query is a union of aggregations, distinguished by the label `stat`, so that five thousand instances cost as many
calls as one. Aggregation is by the label `instance_id`, which the scrape configuration sets.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from gpufleet.domain.activity import CloudError
from gpufleet.domain.evidence import EngineEvidence, Evidence, GpuEvidence
from serving import metrics
from serving.engines import CONTRACTS, EngineKind
from serving.engines.contract import Contract
from serving.engines.reading import unknown
from watchdogs.ports import Metrics

_STAT: Final = "stat"
_SLOWEST: Final = timedelta(seconds=90)
"""A working exporter has new values by then: slow exporters collect every 30 or 60 s."""
_ENGINE: Final = "instance, engine, model_name"
"""Labels that distinguish the engines of an instance; only vLLM has them."""
_COUNTERS: Final = (metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS, metrics.REQUEST_SUCCESS)

Stats = Mapping[str, Mapping[str, float]]
"""By instance, by stat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSelector:
    """Selects the series of instances."""

    labels: str
    """Matchers, as `environment="prod"`."""
    engine_job: str = metrics.Source.ENGINE
    gpu_job: str = metrics.Source.DCGM
    node_job: str = metrics.Source.NODE


def of_environment(environment: str) -> SeriesSelector:
    """The series of the instances of a fleet."""
    return SeriesSelector(labels=f'environment="{environment}"')


def gather(store: Metrics, series: SeriesSelector, window: timedelta, now: datetime) -> dict[str, Evidence]:
    """Evidence by instance id over the window that ends now. Raises OSError if the store cannot answer completely."""
    engine_every, gpu_every = _interval(store, series.engine_job), _interval(store, series.gpu_job)
    engine = _ask(store, engine_query(series, window, engine_every), now)
    gpu = _ask(store, gpu_query(series, window, gpu_every), now)
    unknown_engines = _unknown_engines(store, series, window, now)
    return {
        instance: Evidence(
            window=window,
            interval=max(engine_every, gpu_every),
            engine=(
                replace(_engine(engine[instance], window, engine_every, now), unknown=unknown_engines.get(instance))
                if instance in engine
                else None
            ),
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
    """When an instance was scraped last, by the clock of the metrics store, whether or not it answered."""

    engine: datetime | None = None
    """None: no sample in the store, or not a scrape target."""
    gpu: datetime | None = None
    engine_answers: bool = False

    def silent_since(self, moment: datetime) -> tuple[str, ...]:
        """The sources that were not scraped after that moment."""
        times = {"engine": self.engine, "GPU exporter": self.gpu}
        return tuple(name for name, at in times.items() if at is None or at <= moment)


def scrapes(store: Metrics, series: SeriesSelector, instances: Sequence[str]) -> dict[str, Scrapes]:
    """The last scrapes of these instances, in one query. Raises OSError.

    For GPU exporters only scrapes with an answer count. For engines a scrape without an answer counts, too: it shows
    that the engine was stopped.
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


def engine_query(series: SeriesSelector, window: timedelta, interval: timedelta) -> str:
    """All engine signals, in one expression."""
    whole, late = _seconds(window), _seconds(_recent(window, interval))
    chosen = f'{{job="{series.engine_job}",{series.labels}}}'
    running = f"{metrics.REQUESTS_RUNNING}{chosen}"
    waiting = f"{metrics.REQUESTS_WAITING}{chosen}"
    started = f"{metrics.PROCESS_STARTED}{chosen}"
    counters = [f"{counter}{chosen}" for counter in _COUNTERS]
    flows = {f"changes{n}": f"sum by (instance_id) (changes({c}[{whole}]))" for n, c in enumerate(counters)}
    tokens = {f"tokens{n}": f"sum by (instance_id) (increase({c}[{whole}]))" for n, c in enumerate(counters[:2])}
    # a signal that one engine does not report must not be hidden by another engine that reports it
    reporting = {
        f"reporting{n}": "count by (instance_id)"
        f" (count by (instance_id, {_ENGINE}) (count_over_time({name}[{whole}])))"
        for n, name in enumerate((running, waiting, *counters[:2]))
    }
    # a counter that appeared in the window may have counted before its first scrape without a later change
    counts = [f"count_over_time({name}[{whole}])" for name in (running, waiting, *counters)]
    answered = f"sum_over_time(up{chosen}[{whole}])"
    return _union(
        {
            "running": f"max by (instance_id) (max_over_time({running}[{whole}]))",
            "waiting": f"max by (instance_id) (max_over_time({waiting}[{whole}]))",
            "below0": f"min by (instance_id) (min_over_time({running}[{whole}])) < 0",
            "below1": f"min by (instance_id) (min_over_time({waiting}[{whole}])) < 0",
            "sum": _sum_of(whole, running, waiting, *counters),
            "count": f"min by (instance_id) ({_together(*counts, answered)})",
            "scrapes": f"max by (instance_id) ({_together(*counts, f'count_over_time({started}[{whole}])')})",
            "intervals": f"min by (instance_id) ({_intervals(running, window, interval)})",
            "newest": f"min by (instance_id) (timestamp({running}))",
            "started": f"max by (instance_id) ({started})",
            "restarts": f"max by (instance_id) (changes({started}[{whole}])) > 0",
            "pulse": f"min by (instance_id) (changes({metrics.PROCESS_CPU}{chosen}[{late}]))",
        }
        | flows
        | tokens
        | reporting
    )


def gpu_query(series: SeriesSelector, window: timedelta, interval: timedelta) -> str:
    """All GPU signals, in one expression."""
    whole, late = _seconds(window), _seconds(_recent(window, interval))
    chosen = f'{{job="{series.gpu_job}",{series.labels}}}'
    active = (f"{metrics.GPU_ACTIVE}{chosen}", f"{metrics.GPU_ACTIVE_RENAMED}{chosen}")
    util = f"{metrics.GPU_UTILIZATION}{chosen}"
    util_ratio = f"{metrics.GPU_UTILIZATION_RENAMED}{chosen}"
    energy = f"{metrics.ENERGY}{chosen}"

    reported = f"timestamp({active[0]}) or timestamp({active[1]})"
    counts = [f"count_over_time({name}[{whole}])" for name in (*active, energy)]
    answered = f"sum_over_time(up{chosen}[{whole}])"
    others = [f"count_over_time({name}[{whole}])" for name in (util, util_ratio)]

    def over(function: str, aggregate: str) -> str:
        return f"{aggregate} by (instance_id) ({_together(*(f'{function}({name}[{whole}])' for name in active))})"

    return _union(
        {
            "active": over("max_over_time", "max"),
            "lowest": over("min_over_time", "min"),
            "sum": _sum_of(whole, *active, util, util_ratio, energy),
            "count": f"min by (instance_id) ({_together(*counts, answered)})",
            "scrapes": f"max by (instance_id) ({_together(*counts, *others)})",
            "intervals": f"min by (instance_id) "
            f"({_together(*(_intervals(name, window, interval) for name in active))})",
            "newest": f"min by (instance_id) ({reported})",
            "gpus": _gpus(reported),
            "util": f"max by (instance_id) ("
            f"{_together(f'max_over_time({util}[{whole}])', f'100 * max_over_time({util_ratio}[{whole}])')})",
            "energy": f"min by (instance_id) (changes({energy}[{late}]))",
            "metered": _gpus(f"timestamp({energy})"),
            "milliwatts": f"max by (instance_id) ({_power(energy, window, interval)})",
        }
    )


def _unknown_engines(store: Metrics, series: SeriesSelector, window: timedelta, now: datetime) -> dict[str, str]:
    """By instance: why the numbers of its engine prove nothing, from what its agent reports.

    An agent of release 0.1 does not report its engine. It runs a vLLM release whose contract applies.
    """
    chosen = f'{{job="{series.node_job}",{series.labels}}}'
    query = _union(
        {
            "engine": f"max by (instance_id, kind, version) ({metrics.NODE_ENGINE_INFO}{chosen})",
            "missing": f"max by (instance_id, name) ({metrics.NODE_ENGINE_MISSING}{chosen})",
        }
    )
    engines: dict[str, tuple[str, str]] = {}
    missing: dict[str, list[str]] = {}
    for labels, _ in store.query(query, now):
        instance = labels.get("instance_id", "")
        match labels.get(_STAT):
            case "engine":
                engines[instance] = (labels.get("kind", ""), labels.get("version", ""))
            case "missing":
                missing.setdefault(instance, []).append(labels.get("name", ""))
            case _:
                continue
    found = {
        instance: unknown(_contract(kind), version or None, sorted(missing.get(instance, ())), window)
        for instance, (kind, version) in engines.items()
    }
    return {instance: reason for instance, reason in found.items() if reason is not None}


def _contract(kind: str) -> Contract | None:
    try:
        return CONTRACTS[EngineKind(kind)]
    except ValueError:
        return None


def highest_active(labels: str, window: timedelta) -> str:
    """Query for the highest `gpu_active` by instance, by either name of the field, from any job."""
    field = f'{{__name__=~"{metrics.GPU_ACTIVE}|{metrics.GPU_ACTIVE_RENAMED}",{labels}}}'
    return f"max by (instance_id) (max_over_time({field}[{_seconds(window)}]))"


def _together(first: str, *others: str) -> str:
    """Several vectors as one. Each gets a label of its own: `or` drops series with equal labels."""
    labelled = (f'label_replace({other}, "gpufleet_part", "{n}", "", "")' for n, other in enumerate(others))
    return " or ".join((first, *labelled))


def _sum_of(whole: str, *names: str) -> str:
    """Sum that is NaN where one sample is NaN: maximum and minimum ignore NaN."""
    return f"sum by (instance_id) ({_together(*(f'sum_over_time({name}[{whole}])' for name in names))})"


def _intervals(name: str, window: timedelta, interval: timedelta) -> str:
    """In how many scrape intervals of the window each series has a sample. Several samples in one count once."""
    # a scrape may come a little early or late
    near = _milliseconds(1.5 * interval)
    return f"count_over_time(count_over_time({name}[{near}])[{_seconds(window)}:{_milliseconds(interval)}])"


def _gpus(reported: str) -> str:
    """Number of GPUs in these series. A GPU with two names counts once, and so do two GPUs with one name."""
    names = (f"count by (instance_id) (count by (instance_id, {label}) ({reported}))" for label in ("UUID", "gpu"))
    return f"min by (instance_id) ({_together(*names)})"


def _power(energy: str, window: timedelta, interval: timedelta) -> str:
    """Highest mean power of each GPU over a fifth of the window: a mean over the whole window hides short peaks."""
    span = max(window / 5, 8 * interval)
    if span >= window:
        return f"rate({energy}[{_seconds(window)}])"
    # a gap that coverage allows is half as long: one of the steps covers both its ends
    rest, step = _milliseconds(window - span), _milliseconds(span / 4)
    return f"max_over_time(rate({energy}[{_milliseconds(span)}])[{rest}:{step}])"


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
        raise CloudError(
            f"the metrics store has no job {str(job)!r}: add the scrape configuration of hosts/monitoring/"
        )
    return interval


def _recent(window: timedelta, interval: timedelta) -> timedelta:
    """Long enough for a working counter to change, also of exporters that collect every 30 s. At most the window."""
    return min(window, max(4 * interval, min(window / 4, _SLOWEST)))


def _engine(stats: Mapping[str, float], window: timedelta, interval: timedelta, now: datetime) -> EngineEvidence:
    reporting = [stats.get(f"reporting{n}", 0.0) for n in range(4)]
    # None unless every engine reports it
    running, waiting, *counters = (number >= max(reporting) for number in reporting)
    return EngineEvidence(
        coverage=_coverage(stats, window, interval),
        missed=_missed(stats),
        newest_age=_age(stats.get("newest"), now),
        interval=interval,
        # a negative gauge is not a measurement, and NaN must not be hidden by a maximum
        running_max=stats.get("below0", _unless_nan(stats.get("running"), stats.get("sum"))) if running else None,
        waiting_max=stats.get("below1", stats.get("waiting")) if waiting else None,
        tokens=_sum(stats, "tokens"),
        counter_changes=_sum(stats, "changes", least=2) if all(counters) else None,
        started_age=_age(stats.get("started"), now),
        restarts=stats.get("restarts", 0.0),
        pulse_changes=stats.get("pulse"),
    )


def _gpu(stats: Mapping[str, float], window: timedelta, interval: timedelta, now: datetime) -> GpuEvidence:
    milliwatts = stats.get("milliwatts")
    return GpuEvidence(
        gpus=_whole(stats.get("gpus")),
        metered=_whole(stats.get("metered")),
        coverage=_coverage(stats, window, interval),
        missed=_missed(stats),
        newest_age=_age(stats.get("newest"), now),
        interval=interval,
        active_max=stats.get("active"),
        active_min=_unless_nan(stats.get("lowest"), stats.get("sum")),
        util_max=_percent(stats.get("util")),
        energy_changes=stats.get("energy"),
        watts_max=None if milliwatts is None else milliwatts / 1000,
    )


def _coverage(stats: Mapping[str, float], window: timedelta, interval: timedelta) -> float | None:
    """Coverage by number of samples and by time: the lower of the two."""
    reported = [stats.get(name, math.nan) for name in ("count", "intervals")]
    if any(math.isnan(number) for number in reported):
        return None
    return min(1.0, min(reported) / max(1.0, window / interval))


def _missed(stats: Mapping[str, float]) -> float | None:
    """On how many scrapes a series was missing while others were reported."""
    scrapes, count = stats.get("scrapes"), stats.get("count")
    return None if scrapes is None or count is None else scrapes - count


def _percent(util: float | None) -> float | None:
    """Utilization in percent.

    Percentages are whole numbers: a value below 1 is a ratio under the name of a percentage.
    """
    return 100 * util if util is not None and 0 < util < 1 else util


def _unless_nan(value: float | None, total: float | None) -> float | None:
    """The value, or NaN if the sum over all samples is NaN: then one sample is NaN."""
    return total if value is not None and total is not None and math.isnan(total) else value


def _age(stamp: float | None, now: datetime) -> timedelta | None:
    moment = _moment(stamp)
    return None if moment is None else now - moment


def _moment(stamp: float | None) -> datetime | None:
    """The time of a timestamp; None also for invalid ones: exporters report some of these values themselves."""
    if stamp is None:
        return None
    try:
        return datetime.fromtimestamp(stamp, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _whole(number: float | None) -> int | None:
    return None if number is None or not math.isfinite(number) else int(number)


def _sum(stats: Mapping[str, float], prefix: str, *, least: int = 1) -> float | None:
    """The sum of all stats of that prefix; None unless the first `least` of them were reported."""
    if any(f"{prefix}{n}" not in stats for n in range(least)):
        return None
    return sum(value for name, value in stats.items() if name.startswith(prefix))


def _seconds(span: timedelta) -> str:
    return f"{max(1, round(span.total_seconds()))}s"


def _milliseconds(span: timedelta) -> str:
    return f"{max(1, round(span / timedelta(milliseconds=1)))}ms"
