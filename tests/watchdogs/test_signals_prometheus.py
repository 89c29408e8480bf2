"""The evidence queries against a real Prometheus, its minute of scrapes filled in beforehand."""

import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from gpufleet.clouds.prometheus import Prometheus
from gpufleet.domain.evidence import Evidence
from serving import metrics
from serving.accelerators import CONTRACTS
from serving.accelerators.relabelling import relabelling
from serving.exposition import parse
from tests.fixtures import prometheus
from tests.fixtures.relabelling import relabel
from watchdogs import signals

WINDOW = timedelta(seconds=8)
NOW = datetime.fromtimestamp(datetime.now(UTC).timestamp() // 600 * 600 - 600, UTC)
BEGAN = NOW.timestamp() - 60
Page = Callable[[float], str]
"""What an exporter says so many seconds after the scrapes began."""
RULES = relabelling(CONTRACTS.values())

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


def _counted_at_the_end(opened: int, live: Callable[[float], float]) -> Page:
    """An engine that counts tokens at a request's end and reports neither its start nor its CPU time."""

    def page(at: float) -> str:
        return (
            "gpufleet_engine_requests_running 0\n"
            "gpufleet_engine_requests_waiting 0\n"
            f"gpufleet_engine_open_requests {opened}\n"
            "gpufleet_engine_prompt_tokens_total 7\n"
            "gpufleet_engine_generation_tokens_total 7\n"
            "gpufleet_engine_requests_finished_total 1\n"
            f"gpufleet_engine_live_tokens_total {live(at)}\n"
        )

    return page


def _counted_at_the_end_with_stale_gauges(_: float) -> str:
    """TensorRT-LLM: its gauges keep their last value. The scrape marks them as no evidence."""
    return (
        'gpufleet_engine_requests_running{evidence="none"} 2\n'
        'gpufleet_engine_requests_waiting{evidence="none"} 1\n'
        "gpufleet_engine_prompt_tokens_total 7\n"
        "gpufleet_engine_generation_tokens_total 7\n"
        "gpufleet_engine_requests_finished_total 1\n"
    )


def _counts_steps_only(_: float) -> str:
    """Triton with a model that reports no tokens."""
    return 'gpufleet_engine_work_steps_total{model="m",version="1"} 40\n'


def _gate(
    kind: str,
    version: str,
    requests: Callable[[float], int | None],
    passed: Callable[[float], int] = lambda _: 9,
) -> Page:
    """The agent of an engine whose gate counts requests. None: the gate does not answer."""

    def page(at: float) -> str:
        opened = requests(at)
        counts = f"{metrics.NODE_ENGINE_REQUESTS} {opened}\n{metrics.NODE_ENGINE_PASSED} {passed(at)}\n"
        own = "".join(_process(at).splitlines(keepends=True)[1:])
        return _agent(kind, version)(at) + ("" if opened is None else counts) + own

    return page


def _process(at: float) -> str:
    return (
        f'gpufleet_node_engine_info{{kind="sglang",version="0.5.23"}} 1\n'
        f"gpufleet_node_engine_start_time_seconds {BEGAN - 3600}\n"
        f"gpufleet_node_engine_cpu_seconds_total {at}\n"
    )


PAGES: Mapping[tuple[str, str], Page] = {
    ("engine", "i-idle"): _engine(0, lambda _: 100),
    ("accelerator", "i-idle"): _dcgm(0.0),
    ("node", "i-idle"): _agent("vllm", "0.32.0"),
    ("engine", "i-new-release"): _engine(0, lambda _: 100),
    ("node", "i-new-release"): _agent("vllm", "9.1.0"),
    ("engine", "i-silent-agent"): _engine(0, lambda _: 100),
    ("node", "i-silent-agent"): lambda at: _agent("vllm", "9.1.0")(at) if at < 56 else "",
    ("engine", "i-silent-lacking"): _engine(0, lambda _: 100),
    ("node", "i-silent-lacking"): lambda at: _agent("vllm", "0.32.0", "vllm:x")(at) if at < 56 else "",
    ("engine", "i-lacks-no-more"): _engine(0, lambda _: 100),
    ("node", "i-lacks-no-more"): lambda at: _agent("vllm", "0.32.0", "vllm:x" if at < 56 else "")(at),
    ("engine", "i-changed-engine"): _engine(0, lambda _: 100),
    ("node", "i-changed-engine"): lambda at: _agent("vllm" if at < 55 else "sglang", "0.32.0")(at) if at < 56 else "",
    ("engine", "i-new-engine"): _engine(0, lambda _: 100),
    ("node", "i-new-engine"): _agent("other", "1.0.0"),
    ("engine", "i-lacks-a-name"): _engine(0, lambda _: 100),
    ("node", "i-lacks-a-name"): _agent("vllm", "0.32.0", "vllm:num_requests_waiting"),
    ("engine", "i-no-release"): _engine(0, lambda _: 100),
    ("node", "i-no-release"): _agent("vllm", ""),
    ("engine", "i-sglang-idle"): _counted_at_the_end(0, lambda _: 14),
    ("node", "i-sglang-idle"): _process,
    ("engine", "i-sglang-open"): _counted_at_the_end(1, lambda _: 14),
    ("engine", "i-sglang-long"): _counted_at_the_end(0, lambda at: 14 + 30 * at),
    ("engine", "i-trtllm-idle"): _counted_at_the_end_with_stale_gauges,
    ("node", "i-trtllm-idle"): _gate("trtllm", "1.3.0", lambda _: 0),
    ("engine", "i-trtllm-busy"): _counted_at_the_end_with_stale_gauges,
    ("node", "i-trtllm-busy"): _gate("trtllm", "1.3.0", lambda _: 3),
    ("engine", "i-trtllm-uncounted"): _counted_at_the_end_with_stale_gauges,
    ("node", "i-trtllm-uncounted"): _gate("trtllm", "1.3.0", lambda _: None),
    ("engine", "i-trtllm-short"): _counted_at_the_end_with_stale_gauges,
    ("node", "i-trtllm-short"): _gate("trtllm", "1.3.0", lambda _: 0, lambda at: 9 + (at >= 55)),
    ("engine", "i-trtllm-patchy"): _counted_at_the_end_with_stale_gauges,
    ("node", "i-trtllm-patchy"): _gate("trtllm", "1.3.0", lambda at: None if at % 2 else 0),
    ("engine", "i-triton-idle"): _counts_steps_only,
    ("node", "i-triton-idle"): _gate("triton", "2.51.0", lambda _: 0),
    ("engine", "i-busy"): _engine(2, lambda at: 100 + 10 * at),
    ("accelerator", "i-busy"): _dcgm(0.6),
    ("engine", "i-renamed"): _engine(0, lambda _: 100),
    ("accelerator", "i-renamed"): _dcgm(0.002, name="DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
    ("engine", "i-frozen"): _engine(0, lambda _: 100),
    ("accelerator", "i-frozen"): _dcgm(0.0, frozen=True),
    ("engine", "i-deaf"): _engine(0, lambda _: 100),
    ("accelerator", "i-blank"): _dcgm(9223372036854775794),
}


def _history() -> Iterator[str]:
    """A scrape of every page each second of the last minute, as OpenMetrics."""
    for (job, instance), page in PAGES.items():
        target = {"job": job, "instance": f"{instance}:1", "instance_id": instance, "environment": "test"}
        for second in range(61):
            for sample in parse(page(second) + "up 1\n"):
                labels = relabel(replace(sample, labels={**sample.labels, **target}), RULES)
                name = labels.pop("__name__")
                shown = ",".join(f'{label}="{value}"' for label, value in labels.items())
                yield f"{name}{{{shown}}} {sample.value!r} {BEGAN + second:.0f}"


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Evidence]]:
    """Evidence of instances, each with its own manner."""
    folder: Path = tmp_path_factory.mktemp("prometheus")
    (folder / "history.om").write_text("\n".join((*_history(), "# EOF", "")))
    jobs = [{"job_name": job} for job in ("engine", "accelerator", "node")]
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
        # these blocks have no marks that a series ended, which Prometheus writes when a scrape fails
        prometheus.running(folder, "", "--storage.tsdb.retention.time=30d", "--query.lookback-delta=3s") as url,
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
        pytest.param(
            "i-silent-agent", "vLLM 9.1.0: the contract covers 0.11.1 or later, before 0.33.0", id="its last report"
        ),
        pytest.param("i-silent-lacking", "vLLM 0.32.0 does not report vllm:x", id="name of its last report"),
        pytest.param("i-lacks-no-more", None, id="a name that is reported again"),
        pytest.param("i-changed-engine", "its engine changed within the window", id="another engine"),
        pytest.param("i-no-release", "the release of vLLM is not known", id="no release"),
    ],
)
def test_an_engine_without_a_contract_is_unknown(
    evidence: dict[str, Evidence], instance: str, reason: str | None
) -> None:
    found = evidence[instance].engine
    assert found is not None
    assert found.unknown == reason


def test_times_of_the_engines_process_come_from_its_agent(evidence: dict[str, Evidence]) -> None:
    idle = evidence["i-sglang-idle"].engine
    assert idle is not None
    assert (idle.running_max, idle.counter_changes, idle.restarts) == (0, 0, 0)
    assert idle.unknown == "SGLang proves idleness over 60 s or more, the window is 8 s"
    assert idle.started_age is not None and idle.started_age > timedelta(minutes=50)
    assert idle.pulse_changes is not None and idle.pulse_changes > 0


def test_a_request_that_the_scheduler_has_not_reported_is_work(evidence: dict[str, Evidence]) -> None:
    opened, long = evidence["i-sglang-open"].engine, evidence["i-sglang-long"].engine
    assert opened is not None and long is not None
    assert (opened.running_max, opened.counter_changes) == (1, 0)
    assert long.running_max == 0
    assert long.counter_changes is not None and long.counter_changes > 0, "live tokens"


@pytest.mark.parametrize("instance", ["i-trtllm-idle", "i-triton-idle"])
def test_an_engine_is_idle_by_the_numbers_of_its_contract(evidence: dict[str, Evidence], instance: str) -> None:
    idle = evidence[instance].engine
    assert idle is not None
    assert (idle.unknown, idle.running_max, idle.waiting_max, idle.counter_changes) == (None, 0, 0, 0)
    assert idle.coverage is not None and idle.coverage == pytest.approx(1, abs=0.13)
    assert idle.newest_age is not None and idle.newest_age < timedelta(seconds=1)
    assert idle.missed is not None and idle.missed <= 1


def test_a_request_that_came_and_left_between_two_scrapes_is_work(evidence: dict[str, Evidence]) -> None:
    """No number of the engine shows a request whose client left."""
    short = evidence["i-trtllm-short"].engine
    assert short is not None
    assert (short.running_max, short.counter_changes) == (0, 1)


def test_a_gate_that_answers_only_at_times_is_incomplete_evidence(evidence: dict[str, Evidence]) -> None:
    patchy = evidence["i-trtllm-patchy"].engine
    assert patchy is not None
    assert patchy.missed is not None and patchy.missed >= 3


def test_requests_that_only_the_agent_counts_are_work(evidence: dict[str, Evidence]) -> None:
    busy, uncounted = evidence["i-trtllm-busy"].engine, evidence["i-trtllm-uncounted"].engine
    assert busy is not None and uncounted is not None
    assert busy.running_max == 3
    assert (uncounted.running_max, uncounted.counter_changes, uncounted.missed) == (None, None, None), (
        "no idleness without the gate's count"
    )


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
