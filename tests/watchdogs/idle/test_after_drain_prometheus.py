"""An agent that says `drained` at once while its engine begins to work: real Prometheus, real agents' HTTP."""

import json
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.adapters import FleetAgents
from gpufleet.clouds.agents import NodeAgents
from gpufleet.clouds.prometheus import Prometheus
from gpufleet.domain.decisions import OutcomeKind, Reason
from serving.accelerators import CONTRACTS
from serving.accelerators.relabelling import relabelling
from tests.fixtures import prometheus, signing
from tests.fixtures.networks import served
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet, mark
from tests.fixtures.watchdogs.fake_ports import FakeClock
from tests.fixtures.watchdogs.plain import document, instance
from watchdogs import signals
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests
from watchdogs.ports import Ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs the Debian package prometheus"),
]
FIRST = instance(1).id
EVERY_S = 3
"""Seconds from scrape to scrape: within them work begins, and `drained` is said and asked for."""
FLEET = document(watchdogs={"idle": {"window": "30s", "grace": "1s", "min_age": "12s", "coverage": 0.2}})
BEGAN = time.time()


class WallClock(FakeClock):
    def now(self) -> datetime:
        self.fleet.now = datetime.now(UTC)
        return self.fleet.now

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass
class Machine:
    """An instance whose agent says `drained` as soon as it is asked; `at_drain` is what happens then."""

    running: int = 0
    engine_answers: bool = True
    exporter_answers: bool = True
    drains: list[str] = field(default_factory=list[str])
    at_drain: Callable[[], None] = lambda: None

    def engine(self) -> str | None:
        if not self.engine_answers:
            return None
        return (
            f'gpufleet_engine_requests_running{{model_name="m"}} {self.running}\n'
            f'gpufleet_engine_requests_waiting{{model_name="m"}} 0\n'
            f'gpufleet_engine_prompt_tokens_total{{model_name="m"}} 10\n'
            f'gpufleet_engine_generation_tokens_total{{model_name="m"}} 10\n'
            f"process_start_time_seconds {BEGAN - 3600}\n"
            f"process_cpu_seconds_total {time.time() - BEGAN}\n"
        )

    def gpu(self) -> str | None:
        if not self.exporter_answers:
            return None
        of = '{gpu="0",UUID="GPU-0"}'
        energy = 1e6 + (time.time() - BEGAN) * 30_000
        return f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{of} 0\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{of} {energy}\n"

    def status(self) -> str | None:
        drained = bool(self.drains)
        reported: dict[str, Any] = {"version": 1, "instance": FIRST, "pool": "batch", "ready": not drained}
        reported |= {"phase": "drained" if drained else "ready", "draining": drained, "drained": drained}
        return json.dumps(reported | {"by": self.drains[0] if drained else None, "requests_running": 0})

    def drain(self, by: str) -> None:
        self.drains.append(by)
        self.at_drain()


@contextmanager
def serving(page: Callable[[], str | None], machine: Machine) -> Generator[int]:
    """That page, or a 503 without one, on a free port; a POST asks the machine to drain."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page()
            self._send(503 if body is None else 200, body or "")

        def do_POST(self) -> None:
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            machine.drain(order["by"])
            self._send(202, page() or "")

        def _send(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield server.server_address[1]


@dataclass
class Watched:
    machine: Machine
    fleet: FakeFleet
    ports: Ports
    store: Prometheus

    def watch(self) -> OutcomeKind:
        (outcome,) = IdleWatchdog(FLEET, self.ports).apply().outcomes
        self.detail = outcome.detail
        return outcome.kind

    detail: str = ""


@pytest.fixture
def watched(tmp_path: Path) -> Generator[Watched]:
    """A marked instance that is judged idle, and has a moment until its next scrape."""
    machine, fleet = Machine(), idle_fleet(1)
    now = datetime.now(UTC)
    mine = instance(1, launched_at=now - timedelta(hours=5), private_address="127.0.0.1")
    fleet.instances[FIRST] = mine
    fleet.seen.add(("idle", "batch", digests(FLEET, "idle")["batch"]))
    with ExitStack() as stack:
        agent = stack.enter_context(serving(machine.status, machine))
        labels = {"instance_id": FIRST, "environment": "test", "pool": "batch"}
        jobs = [
            {
                "job_name": job,
                "metric_relabel_configs": relabelling(CONTRACTS.values()),
                "static_configs": [
                    {
                        "targets": [f"127.0.0.1:{stack.enter_context(serving(page, machine))}"],
                        "labels": labels,
                    }
                ],
            }
            for job, page in (("engine", machine.engine), ("accelerator", machine.gpu))
        ]
        configuration = {"global": {"scrape_interval": f"{EVERY_S}s"}, "scrape_configs": jobs}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        store = Prometheus(stack.enter_context(prometheus.running(tmp_path)))
        stack.callback(store.close)
        agents = NodeAgents(signing.key, port=agent)
        stack.callback(agents.close)
        ports = replace(fleet.ports(), metrics=store, agents=FleetAgents(agents), clock=WallClock(fleet))
        made = Watched(machine, fleet, ports, store)
        _until_due(made)
        yield made


def _until_due(made: Watched) -> None:
    watchdog, limit = IdleWatchdog(FLEET, made.ports), time.monotonic() + 90
    while time.monotonic() < limit:
        (decision,) = watchdog.dry().plan.decisions
        if decision.reason is Reason.STILL_IDLE:
            break
        if decision.reason is Reason.IDLE:
            mark(made.fleet, 1, datetime.now(UTC) - timedelta(seconds=2))
        time.sleep(0.5)
    else:
        raise AssertionError("never judged idle")
    series = signals.of_environment("test")
    while min(_ages(made, series)) > 1 or max(_ages(made, series)) > EVERY_S - 1:
        time.sleep(0.1)


def _ages(made: Watched, series: signals.SeriesSelector) -> list[float]:
    """Seconds since the last scrapes."""
    found = signals.scrapes(made.store, series, [FIRST])[FIRST]
    now = made.store.now()
    return [(now - at).total_seconds() for at in (found.engine, found.gpu) if at is not None]


def test_work_that_began_after_the_last_scrape_is_seen(watched: Watched) -> None:
    machine = watched.machine

    def work_begins() -> None:
        machine.running = 2

    machine.at_drain = work_begins
    assert watched.watch() is OutcomeKind.WAITING
    assert "its agent reports `drained`, but requests in flight: 2 running" in watched.detail
    assert not watched.fleet.ended and len(machine.drains) == 1


def test_a_stopped_engine_allows_the_end_and_a_silent_exporter_does_not(watched: Watched) -> None:
    machine = watched.machine

    def both_end() -> None:
        machine.engine_answers = machine.exporter_answers = False

    machine.at_drain = both_end
    assert watched.watch() is OutcomeKind.WAITING
    assert "no scrape of its GPU exporter since it reported `drained`" in watched.detail
    assert not watched.fleet.ended
    machine.exporter_answers = True
    assert watched.watch() is OutcomeKind.DONE
    assert watched.fleet.ended == [FIRST] and len(machine.drains) == 1


def test_the_stores_clock_is_asked_to_the_millisecond(watched: Watched) -> None:
    before, reported, after = datetime.now(UTC), watched.store.now(), datetime.now(UTC)
    slack = timedelta(milliseconds=2)
    assert before - slack <= reported <= after + slack
