"""Contract test of the port `Metrics`: a real Prometheus, and `FakeMetrics`.

The port answers PromQL, so the test compares the answers to the queries that watchdogs send (`watchdogs.signals`).
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.fixtures.watchdogs import recordings
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.fake_ports import FakeMetrics
from tests.fixtures.watchdogs.plain import INTERVAL, QUIET, QUIET_ENGINE, QUIET_GPU, WINDOW
from tests.fixtures.watchdogs.recordings import Series, engine, exporter, flat
from watchdogs import signals
from watchdogs.accelerator_queries import highest_active
from watchdogs.ports import Metrics

TEST = signals.of_environment("test")
ALL = ["i-busy", "i-idle", "i-without-exporter"]


@dataclass(kw_only=True)
class Store:
    """A store with the metrics of three instances until `at`; the newest are five seconds old."""

    metrics: Metrics
    at: datetime


@pytest.fixture(
    scope="module",
    params=[
        "fake",
        pytest.param(
            "real",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus"),
            ],
        ),
    ],
)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    at = datetime.now(UTC)
    if request.param == "fake":
        yield Store(metrics=FakeMetrics(_fleet(at)), at=at)
        return
    up = {job: Series(job=job, name="up", value=flat(1)) for job in ("engine", "accelerator")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordings, "START", at)
        recorded = {
            "i-idle": [*engine(busy=False), *exporter(busy=False), *up.values()],
            "i-busy": [*engine(busy=True), *exporter(busy=True), *up.values()],
            "i-without-exporter": [*engine(busy=False), up["engine"]],
        }
        with recordings.prometheus(recorded, tmp_path_factory.mktemp("prometheus")) as metrics:
            yield Store(metrics=metrics, at=at)


def _fleet(at: datetime) -> FakeFleet:
    """The evidence of the recorded series (`tests/fixtures/watchdogs/recordings.py`)."""
    idle_gpu = replace(QUIET_GPU, active_min=0.0, watts_max=28.0)
    idle = replace(QUIET, gpu=idle_gpu)
    busy = replace(
        QUIET,
        engine=replace(QUIET_ENGINE, running_max=3.0, tokens=882_000.0, counter_changes=360.0),
        gpu=replace(QUIET_GPU, active_max=0.6, active_min=0.6, util_max=85.0, watts_max=60.0),
    )
    return FakeFleet(
        now=at, evidence={"i-idle": idle, "i-busy": busy, "i-without-exporter": replace(QUIET, gpu=None)}
    )


def test_evidence_is_found_for_the_instances_that_report(store: Store) -> None:
    found = signals.gather(store.metrics, TEST, WINDOW, store.at)
    assert sorted(found) == ALL
    for one in found.values():
        assert (one.window, one.interval) == (WINDOW, INTERVAL)
        assert one.engine is not None
        assert one.engine.coverage == pytest.approx(1, abs=0.02) and one.engine.missed == 0
        assert one.engine.newest_age is not None
        assert one.engine.newest_age.total_seconds() == pytest.approx(5, abs=2)
        assert one.engine.started_age is not None
        assert one.engine.started_age.total_seconds() == pytest.approx(5 * 3600, abs=60)
    assert found["i-without-exporter"].gpu is None, "a source that does not report is missing, not zero"


def test_an_idle_instance_has_zeros_and_a_busy_one_has_its_load(store: Store) -> None:
    found = signals.gather(store.metrics, TEST, WINDOW, store.at)
    idle, busy = found["i-idle"], found["i-busy"]
    assert idle.engine is not None and idle.gpu is not None and busy.engine is not None and busy.gpu is not None
    assert (idle.engine.running_max, idle.engine.waiting_max) == (0, 0)
    assert (idle.engine.tokens, idle.engine.counter_changes, idle.engine.restarts) == (0, 0, 0)
    assert (idle.gpu.gpus, idle.gpu.metered, idle.gpu.active_max, idle.gpu.util_max) == (1, 1, 0, 0)
    assert busy.engine.running_max == 3
    assert busy.engine.tokens == pytest.approx(490 * WINDOW.total_seconds(), rel=0.05), "tokens of the whole window"
    assert busy.engine.counter_changes is not None and busy.engine.counter_changes > 100
    assert (busy.gpu.active_max, busy.gpu.util_max) == (pytest.approx(0.6), 85), "a share, and a percentage"
    assert (idle.gpu.watts_max, busy.gpu.watts_max) == (pytest.approx(28, rel=0.05), pytest.approx(60, rel=0.05))


def test_series_of_another_environment_are_not_found(store: Store) -> None:
    assert signals.gather(store.metrics, signals.of_environment("other"), WINDOW, store.at) == {}
    assert signals.reached(store.metrics, "other", ["i-idle"], WINDOW, store.at) == set()
    assert signals.scrapes(store.metrics, signals.of_environment("other"), ["i-idle"]) == {}


def test_only_the_instances_of_a_query_are_found(store: Store) -> None:
    assert signals.reached(store.metrics, "test", ["i-idle", "i-unknown"], WINDOW, store.at) == {"i-idle"}
    assert signals.scrapes(store.metrics, TEST, ["i-busy", "i-unknown"]).keys() == {"i-busy"}


def test_scrapes_are_dated_by_the_clock_of_the_store(store: Store) -> None:
    found = signals.scrapes(store.metrics, TEST, ALL)
    now = store.metrics.now()
    assert now.utcoffset() == timedelta() and abs(now - store.at) < timedelta(minutes=5)
    for one in found.values():
        assert one.engine is not None and one.engine_answers
        assert (store.at - one.engine).total_seconds() == pytest.approx(5, abs=2)
    assert found["i-idle"].gpu is not None and found["i-without-exporter"].gpu is None


def test_the_highest_activity_of_a_gpu_is_found(store: Store) -> None:
    rows = store.metrics.query(highest_active('environment="test"', WINDOW), store.at)
    assert {labels["instance_id"]: value for labels, value in rows} == {"i-idle": 0, "i-busy": pytest.approx(0.6)}


def test_a_job_has_an_interval_and_an_unknown_job_has_none(store: Store) -> None:
    assert store.metrics.interval("engine") == store.metrics.interval("accelerator") == INTERVAL
    assert store.metrics.interval("no-such-job") is None
