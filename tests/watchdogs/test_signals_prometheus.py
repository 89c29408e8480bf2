"""The evidence queries against a real Prometheus that scrapes small servers of ours on loopback."""

import shutil
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from gpufleet.clouds.prometheus import Prometheus
from gpufleet.domain.evidence import Evidence
from tests.fixtures import prometheus
from tests.fixtures.networks import served
from watchdogs import signals

WINDOW = timedelta(seconds=8)
STARTED = time.time()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs the Debian package prometheus"),
]


def _engine(running: float, tokens: Callable[[], float]) -> Callable[[], str]:
    def page() -> str:
        return (
            f'vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
            f'vllm:num_requests_running{{engine="1",model_name="m"}} 0\n'
            f'vllm:num_requests_waiting{{engine="0",model_name="m"}} 0\n'
            f'vllm:num_requests_waiting{{engine="1",model_name="m"}} 0\n'
            f'vllm:prompt_tokens_total{{engine="0",model_name="m"}} {tokens()}\n'
            f'vllm:prompt_tokens_total{{engine="1",model_name="m"}} 7\n'
            f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens()}\n'
            f'vllm:generation_tokens_total{{engine="1",model_name="m"}} 7\n'
            f'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} 3\n'
            f"process_start_time_seconds {STARTED - 3600}\n"
            f"process_cpu_seconds_total {time.time() - STARTED}\n"
        )

    return page


def _dcgm(active: float, name: str = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", frozen: bool = False) -> Callable[[], str]:
    def page() -> str:
        energy = 1e6 if frozen else 1e6 + (time.time() - STARTED) * 30_000
        lines = [
            f'{name}{{gpu="{gpu}",UUID="GPU-{gpu}",modelName="L4"}} {active}\n'
            f'DCGM_FI_DEV_GPU_UTIL{{gpu="{gpu}",UUID="GPU-{gpu}",modelName="L4"}} 0\n'
            f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="{gpu}",UUID="GPU-{gpu}",modelName="L4"}} {energy}\n'
            for gpu in range(2)
        ]
        return "".join(lines)

    return page


@contextmanager
def serving(page: Callable[[], str]) -> Generator[int]:
    """A /metrics page on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield server.server_address[1]


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Evidence]]:
    """Evidence of five instances, each with its own manner."""
    folder: Path = tmp_path_factory.mktemp("prometheus")
    began = time.time()
    pages = {
        ("engine", "i-idle"): _engine(0, lambda: 100),
        ("dcgm", "i-idle"): _dcgm(0.0),
        ("engine", "i-busy"): _engine(2, lambda: 100 + 10 * (time.time() - began)),
        ("dcgm", "i-busy"): _dcgm(0.6),
        ("engine", "i-renamed"): _engine(0, lambda: 100),
        ("dcgm", "i-renamed"): _dcgm(0.002, name="DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
        ("engine", "i-frozen"): _engine(0, lambda: 100),
        ("dcgm", "i-frozen"): _dcgm(0.0, frozen=True),
        ("engine", "i-deaf"): _engine(0, lambda: 100),
        ("dcgm", "i-blank"): _dcgm(9223372036854775794),
    }
    with ExitStack() as stack:
        targets: dict[str, list[dict[str, object]]] = {"engine": [], "dcgm": [], "node": []}
        for (job, instance), page in pages.items():
            port = stack.enter_context(serving(page))
            labels = {"instance_id": instance, "environment": "test", "pool": "batch"}
            targets[job].append({"targets": [f"127.0.0.1:{port}"], "labels": labels})
        configuration = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": job, "static_configs": entries} for job, entries in targets.items()],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        store = Prometheus(stack.enter_context(prometheus.running(folder)))
        stack.callback(store.close)
        _wait_for(store)
        time.sleep(WINDOW.total_seconds() + 2)
        yield signals.gather(store, signals.of_environment("test"), WINDOW, datetime.now(UTC))


def _wait_for(store: Prometheus) -> None:
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        if store.query('up{job="engine"}', datetime.now(UTC)):
            return
        time.sleep(0.2)
    raise AssertionError("no engine was scraped within 30 s")


def test_an_idle_instance_is_well_covered_and_flat(evidence: dict[str, Evidence]) -> None:
    idle = evidence["i-idle"]
    assert idle.engine is not None and idle.gpu is not None
    assert idle.interval == timedelta(seconds=1)
    assert idle.engine.coverage is not None and idle.engine.coverage > 0.6  # a loaded machine scrapes late
    assert idle.engine.newest_age is not None and idle.engine.newest_age < timedelta(seconds=6)
    assert (idle.engine.running_max, idle.engine.waiting_max) == (0, 0)
    assert (idle.engine.tokens, idle.engine.counter_changes) == (0, 0)
    assert idle.engine.started_age is not None and idle.engine.started_age > timedelta(minutes=50)
    assert idle.engine.pulse_changes is not None and idle.engine.pulse_changes > 0
    assert idle.gpu.gpus == 2
    assert (idle.gpu.active_max, idle.gpu.active_min, idle.gpu.util_max) == (0, 0, 0)
    assert idle.gpu.energy_changes is not None and idle.gpu.energy_changes > 0
    assert idle.gpu.watts_max == pytest.approx(30, rel=0.4)


def test_a_busy_engine_next_to_an_idle_one_is_detected(evidence: dict[str, Evidence]) -> None:
    busy = evidence["i-busy"]
    assert busy.engine is not None and busy.gpu is not None
    assert busy.engine.running_max == 2
    assert busy.engine.counter_changes is not None and busy.engine.counter_changes > 0
    assert busy.engine.tokens == pytest.approx(160, rel=0.3)
    assert busy.gpu.active_max == pytest.approx(0.6)


def test_the_renamed_field_of_dcgm_is_read(evidence: dict[str, Evidence]) -> None:
    renamed = evidence["i-renamed"].gpu
    assert renamed is not None
    assert renamed.active_max == pytest.approx(0.002)
    assert renamed.gpus == 2 and renamed.coverage == pytest.approx(1, abs=0.13)


def test_a_frozen_exporter_shows(evidence: dict[str, Evidence]) -> None:
    frozen = evidence["i-frozen"].gpu
    assert frozen is not None and frozen.energy_changes == 0


def test_what_does_not_report_is_absent(evidence: dict[str, Evidence]) -> None:
    assert evidence["i-deaf"].gpu is None
    assert evidence["i-blank"].engine is None
    blank = evidence["i-blank"].gpu
    assert blank is not None and blank.active_max is not None and blank.active_max > 1
