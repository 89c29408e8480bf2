"""Evidence from a metrics store: three queries for all instances of an environment.

Each query is a union of aggregations, distinguished by the label `stat`, so that five thousand instances cost as many
calls as one. Aggregation is by the label `instance_id`, which the scrape configuration sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpufleet.domain.activity import CloudError
from gpufleet.domain.evidence import Evidence
from serving import metrics
from watchdogs.accelerator_evidence import accelerator_evidence, ask_accelerators
from watchdogs.engine_evidence import EngineReport, agent_reports, engine_evidence, engine_query
from watchdogs.ports import Metrics
from watchdogs.promql import STAT, SeriesSelector, moment_of, seconds, union


def of_environment(environment: str) -> SeriesSelector:
    """The series of the instances of a fleet."""
    return SeriesSelector(labels=f'environment="{environment}"')


def gather(store: Metrics, series: SeriesSelector, window: timedelta, now: datetime) -> dict[str, Evidence]:
    """Evidence by instance id over the window that ends now. Raises OSError if the store cannot answer completely."""
    engine_every, gpu_every = _interval(store, series.engine_job), _interval(store, series.gpu_job)
    engine = _ask(store, engine_query(series, window, engine_every), now)
    gpu = ask_accelerators(store, series, window, gpu_every, now)
    agents = agent_reports(store, series, window, engine_every, now)
    return {
        instance: Evidence(
            window=window,
            interval=max(engine_every, gpu_every),
            engine=engine_evidence(engine[instance], agents.get(instance, EngineReport()), window, engine_every, now)
            if instance in engine
            else None,
            gpu=accelerator_evidence(gpu[instance], window, gpu_every, now) if instance in gpu else None,
        )
        for instance in engine.keys() | gpu.keys()
    }


def longest_interval(store: Metrics) -> timedelta:
    """The longer scrape interval of engines and GPU exporters."""
    return max(_interval(store, metrics.Source.ENGINE), _interval(store, metrics.Source.ACCELERATOR))


def reached(store: Metrics, environment: str, instances: Sequence[str], span: timedelta, now: datetime) -> set[str]:
    """Those of the instances whose engine answered at least once in the span before now."""
    if not instances:
        return set()
    chosen = "|".join(sorted(instances))
    selector = f'up{{job="engine",environment="{environment}",instance_id=~"{chosen}"}}'
    rows = store.query(f"max by (instance_id) (max_over_time({selector}[{seconds(span)}]))", now)
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
    query = union(
        {
            "engine": f"min by (instance_id) (timestamp({engine}))",
            "gpu": f"min by (instance_id) (timestamp({gpu}) and ({gpu} == 1))",
            "answers": f"max by (instance_id) ({engine})",
        }
    )
    return {
        instance: Scrapes(
            engine=moment_of(stats.get("engine")),
            gpu=moment_of(stats.get("gpu")),
            engine_answers=stats.get("answers") != 0,
        )
        for instance, stats in _ask(store, query, store.now()).items()
    }


def _ask(store: Metrics, query: str, now: datetime) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for labels, value in store.query(query, now):
        if "instance_id" in labels:
            found.setdefault(labels["instance_id"], {})[labels[STAT]] = value
    return found


def _interval(store: Metrics, job: str) -> timedelta:
    interval = store.interval(job)
    if interval is None or interval <= timedelta(0):
        raise CloudError(
            f"the metrics store has no job {str(job)!r}: add it (`gpufleet monitoring render` writes an example)"
        )
    return interval
