"""The evidence queries against a real Prometheus, its minute of scrapes filled in beforehand."""

import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from gpufleet.clouds.prometheus import Prometheus
from gpufleet.domain.evidence import Evidence
from tests.fixtures import prometheus
from watchdogs import signals

WINDOW = timedelta(seconds=8)
NOW = datetime.fromtimestamp(datetime.now(UTC).timestamp() // 600 * 600 - 600, UTC)
BEGAN = NOW.timestamp() - 60
Page = Callable[[float], str]
"""What an exporter says so many seconds after the scrapes began."""

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus")


def _engine(running: float, tokens: Callable[[float], float]) -> Page:
    def page(at: float) -> str:
        return (
            f'gpufleet_engine_requests_running{{engine="0",model_name="m"}} {running}\n'
            f'gpufleet_engine_requests_running{{engine="1",model_name="m"}} 0\n'
            f'gpufleet_engine_requests_waiting{{engine="0",model_name="m"}} 0\n'
            f'gpufleet_engine_requests_waiting{{engine="1",model_name="m"}} 0\n'
            f'gpufleet_engine_prompt_tokens_total{{engine="0",model_name="m"}} {tokens(at)}\n'
            f'gpufleet_engine_prompt_tokens_total{{engine="1",model_name="m"}} 7\n'
            f'gpufleet_engine_generation_tokens_total{{engine="0",model_name="m"}} {tokens(at)}\n'
            f'gpufleet_engine_generation_tokens_total{{engine="1",model_name="m"}} 7\n'
            f'gpufleet_engine_requests_finished_total{{engine="0",finished_reason="stop",model_name="m"}} 3\n'
            f"process_start_time_seconds {BEGAN - 3600}\n"
            f"process_cpu_seconds_total {at}\n"
        )

    return page


def _dcgm(active: float, name: str = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", frozen: bool = False) -> Page:
    def page(at: float) -> str:
        energy = 1e6 if frozen else 1e6 + at * 30_000
        lines = [
            f'{name}{{gpu="{gpu}",UUID="GPU-{gpu}",modelName="L4"}} {active}\n'
            f'DCGM_FI_DEV_GPU_UTIL{{gpu="{gpu}",UUID="GPU-{gpu}",modelName="L4"}} 0\n'
            f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="{gpu}",UUID="GPU-{gpu}",modelName="L4"}} {energy}\n'
            for gpu in range(2)
        ]
        return "".join(lines)

    return page


def _agent(kind: str, version: str, missing: str = "") -> Page:
    lines = [f'gpufleet_node_engine_info{{kind="{kind}",version="{version}"}} 1\n']
    if missing:
        lines.append(f'gpufleet_node_engine_missing{{name="{missing}"}} 1\n')
    return lambda _: "".join(lines)


PAGES: Mapping[tuple[str, str], Page] = {
    ("engine", "i-idle"): _engine(0, lambda _: 100),
    ("dcgm", "i-idle"): _dcgm(0.0),
    ("node", "i-idle"): _agent("vllm", "0.32.0"),
    ("engine", "i-new-release"): _engine(0, lambda _: 100),
    ("node", "i-new-release"): _agent("vllm", "9.1.0"),
    ("engine", "i-new-engine"): _engine(0, lambda _: 100),
    ("node", "i-new-engine"): _agent("other", "1.0.0"),
    ("engine", "i-lacks-a-name"): _engine(0, lambda _: 100),
    ("node", "i-lacks-a-name"): _agent("vllm", "0.32.0", "vllm:num_requests_waiting"),
    ("engine", "i-no-release"): _engine(0, lambda _: 100),
    ("node", "i-no-release"): _agent("vllm", ""),
    ("engine", "i-busy"): _engine(2, lambda at: 100 + 10 * at),
    ("dcgm", "i-busy"): _dcgm(0.6),
    ("engine", "i-renamed"): _engine(0, lambda _: 100),
    ("dcgm", "i-renamed"): _dcgm(0.002, name="DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
    ("engine", "i-frozen"): _engine(0, lambda _: 100),
    ("dcgm", "i-frozen"): _dcgm(0.0, frozen=True),
    ("engine", "i-deaf"): _engine(0, lambda _: 100),
    ("dcgm", "i-blank"): _dcgm(9223372036854775794),
}


def _history() -> Iterator[str]:
    """A scrape of every page each second of the last minute, as OpenMetrics."""
    for (job, instance), page in PAGES.items():
        own = f'job="{job}",instance="{instance}:1",instance_id="{instance}",environment="test",pool="batch"'
        for second in range(61):
            for line in (*page(second).splitlines(), "up 1"):
                series, _, value = line.rpartition(" ")
                name, _, labels = series.partition("{")
                yield f"{name}{{{own}{',' if labels else ''}{labels or '}'} {value} {BEGAN + second:.0f}"


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Evidence]]:
    """Evidence of instances, each with its own manner."""
    folder: Path = tmp_path_factory.mktemp("prometheus")
    (folder / "history.om").write_text("\n".join((*_history(), "# EOF", "")))
    jobs = [{"job_name": job} for job in ("engine", "dcgm", "node")]
    (folder / "prometheus.yml").write_text(
        yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs})
    )
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "history.om", folder / "data"],
        check=True,
        capture_output=True,
        timeout=180,
    )
    with (
        prometheus.running(folder, "", "--storage.tsdb.retention.time=30d") as url,
        closing(Prometheus(url)) as store,
    ):
        yield signals.gather(store, signals.of_environment("test"), WINDOW, NOW)


def test_an_idle_instance_is_well_covered_and_flat(evidence: dict[str, Evidence]) -> None:
    idle = evidence["i-idle"]
    assert idle.engine is not None and idle.gpu is not None
    assert idle.interval == timedelta(seconds=1)
    assert idle.engine.coverage is not None and idle.engine.coverage == pytest.approx(1, abs=0.13)
    assert idle.engine.newest_age is not None and idle.engine.newest_age < timedelta(seconds=1)
    assert (idle.engine.running_max, idle.engine.waiting_max) == (0, 0)
    assert (idle.engine.tokens, idle.engine.counter_changes) == (0, 0)
    assert idle.engine.started_age is not None and idle.engine.started_age > timedelta(minutes=50)
    assert idle.engine.pulse_changes is not None and idle.engine.pulse_changes > 0
    assert idle.gpu.gpus == 2
    assert (idle.gpu.active_max, idle.gpu.active_min, idle.gpu.util_max) == (0, 0, 0)
    assert idle.gpu.energy_changes is not None and idle.gpu.energy_changes > 0
    assert idle.gpu.watts_max == pytest.approx(30)


@pytest.mark.parametrize(
    ("instance", "reason"),
    [
        pytest.param("i-idle", None, id="a release that the contract covers"),
        pytest.param("i-busy", None, id="an agent of release 0.1, which reports no engine"),
        pytest.param("i-new-release", "vLLM 9.1.0: the contract covers 0.11.1 or later, before 0.33.0", id="release"),
        pytest.param("i-new-engine", "its engine is not known", id="engine"),
        pytest.param("i-lacks-a-name", "vLLM 0.32.0 does not report vllm:num_requests_waiting", id="name"),
        pytest.param("i-no-release", "the release of vLLM is not known", id="no release"),
    ],
)
def test_an_engine_without_a_contract_is_unknown(
    evidence: dict[str, Evidence], instance: str, reason: str | None
) -> None:
    found = evidence[instance].engine
    assert found is not None
    assert found.unknown == reason


def test_a_busy_engine_next_to_an_idle_one_is_detected(evidence: dict[str, Evidence]) -> None:
    busy = evidence["i-busy"]
    assert busy.engine is not None and busy.gpu is not None
    assert busy.engine.running_max == 2
    assert busy.engine.counter_changes is not None and busy.engine.counter_changes > 0
    assert busy.engine.tokens == pytest.approx(160)
    assert busy.gpu.active_max == pytest.approx(0.6)


def test_the_renamed_field_of_dcgm_is_read(evidence: dict[str, Evidence]) -> None:
    renamed = evidence["i-renamed"].gpu
    assert renamed is not None
    assert renamed.active_max == pytest.approx(0.002)
    assert renamed.gpus == 2 and renamed.coverage == pytest.approx(1, abs=0.13)


def test_a_frozen_exporter_shows(evidence: dict[str, Evidence]) -> None:
    frozen = evidence["i-frozen"].gpu
    assert frozen is not None and frozen.energy_changes == 0


def test_sources_without_reports_are_absent(evidence: dict[str, Evidence]) -> None:
    assert evidence["i-deaf"].gpu is None
    assert evidence["i-blank"].engine is None
    blank = evidence["i-blank"].gpu
    assert blank is not None and blank.active_max is not None and blank.active_max > 1
