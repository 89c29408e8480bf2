"""Recorded metrics of instances, written straight into the blocks of a Prometheus: whole windows without waiting."""

import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from gpufleet.clouds.prometheus import Prometheus
from tests.prometheus import running
from tests.watchdogs.plain import INTERVAL, START

SPAN = 45 * 60
"""Seconds of history before START."""
STEP = int(INTERVAL.total_seconds())

Value = Callable[[float], float | None]
"""What a series says so many seconds before START; None: it was not on the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of one instance."""

    job: str
    name: str
    value: Value
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    every: int = STEP
    """Seconds from one scrape to the next."""

    def named(self, name: str) -> "Series":
        return replace(self, name=name)

    def saying(self, value: Value) -> "Series":
        return replace(self, value=value)

    def with_labels(self, **labels: str) -> "Series":
        return replace(self, labels={**self.labels, **labels})


def flat(value: float) -> Value:
    return lambda _: value


def growing(per_second: float, start: float = 1000.0) -> Value:
    return lambda ago: start + per_second * (SPAN - ago)


def engine(*, busy: bool, number: str = "0") -> list[Series]:
    """A page of vLLM: three requests at a time, or none in the whole window."""
    labels = {"engine": number, "model_name": "m"}
    flows = (("prompt_tokens_total", 400.0), ("generation_tokens_total", 90.0), ("request_success_total", 0.5))
    return [
        Series(job="engine", name="vllm:num_requests_running", value=flat(3.0 * busy), labels=labels),
        Series(job="engine", name="vllm:num_requests_waiting", value=flat(0), labels=labels),
        *(Series(job="engine", name=f"vllm:{n}", value=growing(rate * busy), labels=labels) for n, rate in flows),
        Series(job="engine", name="process_start_time_seconds", value=flat(START.timestamp() - 5 * 3600)),
        Series(job="engine", name="process_cpu_seconds_total", value=growing(0.1)),
    ]


def exporter(*, busy: bool) -> list[Series]:
    """A page of dcgm-exporter for one L4."""
    labels = {"gpu": "0", "UUID": "GPU-0", "modelName": "NVIDIA L4", "Hostname": "h"}
    active, util, watts = (0.6, 85.0, 60.0) if busy else (0.0, 0.0, 28.0)
    return [
        Series(job="dcgm", name="DCGM_FI_PROF_GR_ENGINE_ACTIVE", value=flat(active), labels=labels),
        Series(job="dcgm", name="DCGM_FI_DEV_GPU_UTIL", value=flat(util), labels=labels),
        Series(
            job="dcgm", name="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", value=growing(1000 * watts, 1e9), labels=labels
        ),
    ]


@contextmanager
def prometheus(
    recorded: Mapping[str, Iterable[Series]], folder: Path, *, engine_every: int = STEP, gpu_every: int = STEP
) -> Iterator[Prometheus]:
    """A store that holds these series, by instance, and says that it scrapes engines and exporters so often."""
    with (
        holding(recorded, folder, engine_every=engine_every, gpu_every=gpu_every) as url,
        closing(Prometheus(url)) as store,
    ):
        yield store


@contextmanager
def holding(
    recorded: Mapping[str, Iterable[Series]], folder: Path, *, engine_every: int = STEP, gpu_every: int = STEP
) -> Iterator[str]:
    """The same store's address."""
    text = folder / "recorded.txt"
    text.write_text("\n".join([*_lines(recorded), "# EOF"]) + "\n")
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")]
    subprocess.run(made, check=True, capture_output=True, timeout=120)
    every = {"engine": engine_every, "dcgm": gpu_every}
    jobs = [{"job_name": job, "scrape_interval": f"{seconds}s"} for job, seconds in every.items()]
    configuration = {"scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    with running(folder, "", "--storage.tsdb.retention.time=100y") as url:
        yield url


def _lines(recorded: Mapping[str, Iterable[Series]]) -> Sequence[str]:
    lines: list[str] = []
    for instance, page in recorded.items():
        for series in page:
            own = {"job": series.job, "environment": "test", "instance_id": instance, **series.labels}
            head = series.name + "{" + ",".join(f'{key}="{value}"' for key, value in own.items()) + "}"
            # the newest sample is five seconds old
            for ago in range(SPAN + 5, 4, -series.every):
                value = series.value(ago - 5)
                if value is not None:
                    lines.append(f"{head} {value!r} {START.timestamp() - ago:.0f}")
    return lines
