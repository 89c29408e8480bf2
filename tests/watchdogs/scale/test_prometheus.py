"""The scale watchdog's queries against a real Prometheus, its days of history filled in beforehand."""

import shutil
import subprocess
from collections.abc import Generator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpufleet.clouds.prometheus import Prometheus
from gpufleet.domain.policies import ScalePolicy
from tests.fixtures.prometheus import running
from watchdogs.scale import pressure
from watchdogs.scale.pressure import Readings

NOW = datetime.fromtimestamp(datetime.now(UTC).timestamp() // 600 * 600 - 600, UTC)
"""On whole ten minutes: Prometheus steps its looks back so, whatever the time is."""
POLICY = ScalePolicy(requests_per_replica=10, down_after=timedelta(minutes=20))
MOMENTS = [NOW - timedelta(seconds=15 * n) for n in range(120, -1, -1)]
HERE = 'environment="test",pool="chat"'

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus")


def _history() -> Iterator[str]:
    for name in ("running", "waiting"):
        yield f"# TYPE gpufleet:requests_{name}:pool gauge"
        yield from _queued(name, range(180, 60, -1))
    yield "# TYPE gpufleet:engines:pool gauge"
    yield from _queued("engines", range(180, 60, -1))
    for name, late, usual in (("first", 2.0, 0.2), ("inter", 0.03, 0.09)):
        yield f"# TYPE gpufleet:{name}_token_seconds_p95:pool gauge"
        for ago in range(180, 60, -1):
            at = (NOW - timedelta(minutes=ago)).timestamp()
            series = f'gpufleet:{name}_token_seconds_p95:pool{{environment="test",pool="young"}}'
            yield f"{series} {late if ago <= 120 else usual} {at:.0f}"
            # still includes the requests of its first three minutes
            yield f"{series.replace('young', 'brief')} {late if ago > 172 else 0.01} {at:.0f}"


def _queued(name: str, minutes: range) -> Iterator[str]:
    """Pool `young` had three replicas for an hour and two for the next, which ran fewer than came: 20 more waited.

    Pool `brief` ran 16 on its one for three minutes.
    """
    three, two = {"running": 42, "waiting": 0, "engines": 3}, {"running": 32, "waiting": 20, "engines": 2}
    what = "engines" if name == "engines" else f"requests_{name}"
    for ago in minutes:
        value = (three if ago > 120 else two)[name]
        at = (NOW - timedelta(minutes=ago)).timestamp()
        yield f'gpufleet:{what}:pool{{environment="test",pool="young"}} {value} {at:.0f}'
        brief = {"running": 16 if ago > 177 else 0, "waiting": 0, "engines": 1}[name]
        yield f'gpufleet:{what}:pool{{environment="test",pool="brief"}} {brief} {at:.0f}'


FIRST_TOKEN = "gpufleet_engine_time_to_first_token_seconds"


def _engines() -> Iterator[str]:
    """Two replicas over half an hour; one had nine requests running and five waiting ten minutes ago."""
    peak = NOW - timedelta(minutes=10)
    for name, usual, then in (
        ("gpufleet_engine_requests_running", 2.0, 9.0),
        ("gpufleet_engine_requests_waiting", 0.0, 5.0),
        ("gpufleet_engine_kv_cache_usage_ratio", 0.2, 0.6),
    ):
        yield f"# TYPE {name} gauge"
        for number in (1, 2):
            labels = f'{HERE},job="engine",instance_id="i-{number}",engine="0"'
            for at in MOMENTS:
                value = then if number == 1 and at == peak else usual
                yield f"{name}{{{labels}}} {value} {at.timestamp():.0f}"
        for pool in ("young", "brief"):
            for ago in (40, 25, 10):
                labels = f'environment="test",pool="{pool}",job="engine",instance_id="i-{pool}",engine="0"'
                yield f"{name}{{{labels}}} {usual} {(NOW - timedelta(seconds=ago)).timestamp():.0f}"
        yield from _silent_engines(name)
        yield from _engines_with_other_labels(name)
    yield f"# TYPE {FIRST_TOKEN} histogram"
    labels = f'{HERE},job="engine",instance_id="i-1"'
    for le, share in (("0.1", 0.5), ("0.5", 1.0), ("+Inf", 1.0)):
        for n, at in enumerate(MOMENTS):
            count = int(n * 4 * share)
            yield f'{FIRST_TOKEN}_bucket{{{labels},le="{le}"}} {count} {at.timestamp():.0f}'
    for suffix in ("count", "sum"):
        for n, at in enumerate(MOMENTS):
            yield f"{FIRST_TOKEN}_{suffix}{{{labels}}} {n * 4} {at.timestamp():.0f}"


def _silent_engines(name: str) -> Iterator[str]:
    """Pool `mute`: i-1 has an engine without a queue metric, i-2 without running requests, i-3 is complete."""
    for instance, engine, left_out in (("i-1", 0, ""), ("i-1", 1, "waiting"), ("i-2", 0, "running"), ("i-3", 0, "")):
        if not left_out or left_out not in name:
            labels = f'environment="test",pool="mute",job="engine",instance_id="{instance}",engine="{engine}"'
            yield f"{name}{{{labels}}} 2 {NOW.timestamp():.0f}"
    for instance, engine in UNCOUNTED:
        for ago in (40, 25, 10):
            at = (NOW - timedelta(seconds=ago)).timestamp()
            yield f"{name}{{{_uncounted(instance, engine)}}} 0 {at:.0f}"


def _engines_with_other_labels(name: str) -> Iterator[str]:
    """Pool `parts` reports its queue as two numbers, pool `types` names a type of request on each gauge."""
    if "kv_cache" in name:
        return
    waits = "waiting" in name
    parts = [('part="a"', 1), ('part="b"', 3)] if waits else [('engine_type="unified"', 2)]
    types = [(f'request_type="{"waiting" if waits else "active"}"', 4 if waits else 2)]
    for pool, series in (("parts", parts), ("types", types)):
        for labels, value in series:
            own = f'environment="test",pool="{pool}",job="engine",instance_id="i-{pool}",{labels}'
            for ago in (40, 25, 10):
                yield f"{name}{{{own}}} {value} {(NOW - timedelta(seconds=ago)).timestamp():.0f}"


UNCOUNTED = (("i-1", 0), ("i-1", 1), ("i-2", 0), ("i-3", 0), ("i-4", 0))
"""Pool `uncounted`: one of the engines of i-1 has no token counters, i-2 none of what it makes, i-3 none at all."""


def _uncounted(instance: str, engine: int) -> str:
    return f'environment="test",pool="uncounted",job="engine",instance_id="{instance}",engine="{engine}"'


def _tokens() -> Iterator[str]:
    for name, usual in (("prompt", 0), ("generation", 30)):
        yield f"# TYPE gpufleet_engine_{name}_tokens counter"
        for instance, engine in UNCOUNTED:
            if (instance, engine) in (("i-1", 1), ("i-3", 0)) or (instance, name) == ("i-2", "generation"):
                continue
            for ago in (40, 25, 10):
                labels, at = _uncounted(instance, engine), (NOW - timedelta(seconds=ago)).timestamp()
                yield f"gpufleet_engine_{name}_tokens_total{{{labels}}} {900 - ago} {at:.0f}"
        for n, at in enumerate(MOMENTS):
            labels = f'{HERE},job="engine",instance_id="i-1",engine="0"'
            yield f"gpufleet_engine_{name}_tokens_total{{{labels}}} {n * usual} {at.timestamp():.0f}"


GATED = (("gated", "g-1"), ("gated", "g-2"), ("gated", "g-down"), ("unstated", "u-1"), ("ungated", "n-1"))
"""Pools of engines whose gauges keep their last values. The engine of g-down does not answer; n-1 has no gate."""


def _gated() -> Iterator[str]:
    """Gauges at rest at seven running, five waiting and a full cache. The gates counted two, eight, and two again."""
    peak = NOW - timedelta(minutes=10)
    for name, last in (("requests_running", 7), ("requests_waiting", 5), ("kv_cache_usage_ratio", 0.96)):
        yield f"# TYPE kept_{name} gauge"
        for pool, instance in GATED:
            labels = f'environment="test",pool="{pool}",job="engine",instance_id="{instance}",evidence="none"'
            for at in MOMENTS if instance != "g-down" else ():
                yield f"gpufleet_engine_{name}{{{labels}}} {last} {at.timestamp():.0f}"
    for name, job in (("up", "engine"), ("gpufleet_node_engine_requests", "node")):
        yield f"# TYPE {name} gauge"
        for pool, instance in GATED:
            labels = f'environment="test",pool="{pool}",job="{job}",instance_id="{instance}"'
            for at in MOMENTS if name == "up" or pool != "ungated" else ():
                opened = 0 if instance == "g-2" else 8 if at == peak else 2
                value = int(instance != "g-down") if name == "up" else opened
                yield f"{name}{{{labels}}} {value} {at.timestamp():.0f}"


def _held() -> Iterator[str]:
    """Three requests were held by a router, until a quarter of an hour ago; its gauge reported them only then.

    An engine's page claims to hold a thousand, all the time.
    """
    yield "# TYPE gpufleet_held_requests gauge"
    for n in range(60, 121):
        at = (NOW - timedelta(seconds=15 * n)).timestamp()
        yield f'gpufleet_held_requests{{{HERE},job="router",instance="r"}} 3 {at:.0f}'
    for at in MOMENTS:
        yield f'gpufleet_held_requests{{{HERE},job="engine",instance_id="i-1"}} 1000 {at.timestamp():.0f}'


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> Generator[Readings]:
    folder: Path = tmp_path_factory.mktemp("scale")
    text = "\n".join((*_history(), *_engines(), *_tokens(), *_gated(), *_held(), "# EOF", ""))
    (folder / "history.om").write_text(text)
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 15s}\n")
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "history.om", folder / "data"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    with running(folder, "", "--storage.tsdb.retention.time=30d") as url:
        store = Prometheus(url)
        try:
            fast = replace(POLICY, first_token_s=0.5, inter_token_s=0.1)
            policies = dict.fromkeys(("chat", "mute", "other", "parts", "types", "gated", "ungated"), POLICY) | {
                "young": fast,
                "brief": fast,
            }
            policies["unstated"] = replace(POLICY, requests_per_replica=None)
            policies["uncounted"] = replace(POLICY, requests_per_replica=None, tokens_per_second_per_replica=10)
            yield pressure.read(store, "test", policies, NOW)
        finally:
            store.close()


def test_current_and_peak_load_are_read(readings: Readings) -> None:
    seen = readings.pressure("chat")
    assert seen is not None
    assert (seen.reporting, seen.waiting, seen.waiting_peak, seen.running_peak) == (2, 0, 5, 11)
    assert (seen.kv_cache, seen.kv_cache_peak) == (pytest.approx(0.2), pytest.approx(0.4))
    assert seen.first_token_s == pytest.approx(0.46, abs=0.02)
    assert seen.inter_token_s is None


def test_replicas_without_metrics_and_coverage_are_read(readings: Readings) -> None:
    assert readings.without_metrics("chat", {"i-1", "i-2"}) == 0
    assert readings.without_metrics("chat", {"i-1", "i-3"}) == 1
    seen = [readings.pressure(pool) for pool in ("chat", "young")]
    assert [one.coverage for one in seen if one is not None] == [
        pytest.approx(1.0, abs=0.02),
        pytest.approx(40 / 1200, abs=0.02),
    ]


def test_an_instance_of_which_an_engine_keeps_a_gauge_to_itself_is_not_read(readings: Readings) -> None:
    assert readings.without_metrics("mute", {"i-1", "i-2", "i-3"}) == 2
    seen = readings.pressure("mute")
    assert seen is not None and seen.reporting == 1


def test_an_instance_of_which_an_engine_counts_no_tokens_is_not_read_where_tokens_are_what_a_replica_carries(
    readings: Readings,
) -> None:
    names = {"i-1", "i-2", "i-3", "i-4"}
    assert readings.demand("uncounted") is not None, "the others count"
    assert readings.without_metrics("uncounted", names) == 3
    assert readings.without_metrics("chat", {"i-1", "i-2"}) == 0, (
        "requests are what its replicas carry; i-2 counts no tokens"
    )


@pytest.mark.parametrize("pool", ["parts", "types"])
def test_engines_whose_gauges_have_different_labels_are_read(readings: Readings, pool: str) -> None:
    assert readings.without_metrics(pool, {f"i-{pool}"}) == 0
    seen, demand = readings.pressure(pool), readings.demand(pool)
    assert seen is not None and demand is not None
    assert (seen.reporting, seen.waiting, seen.running_peak, seen.kv_cache) == (1, 4, 2, None)
    assert demand.now == pytest.approx(0.6)


def test_requests_per_replica_at_full_queues_are_read(readings: Readings) -> None:
    seen = [readings.pressure(pool) for pool in ("chat", "young")]
    assert [one.full for one in seen if one is not None] == [None, 16.0]


def test_requests_per_replica_at_missed_latency_are_read(readings: Readings) -> None:
    seen = [readings.pressure(pool) for pool in ("chat", "young", "brief")]
    assert [one.slow for one in seen if one is not None] == [None, 16.0, 16.0]


def test_peaks_of_held_requests_and_tokens_are_read(readings: Readings) -> None:
    seen = readings.pressure("chat")
    assert seen is not None
    assert seen.tokens_peak == pytest.approx(2.0, rel=0.05)
    assert (readings.held_requests("chat"), readings.held_requests_peak("chat")) == (0.0, 3.0)


def test_demand_is_current_and_highest_within_the_window(readings: Readings) -> None:
    demand = readings.demand("chat")
    assert demand is not None
    assert demand.now == pytest.approx(0.4)
    # eleven ran and five waited, ten minutes ago
    assert demand.peak == pytest.approx(1.6)


def test_a_pool_without_reports_is_unknown(readings: Readings) -> None:
    assert (readings.pressure("other"), readings.demand("other"), readings.held_requests("other")) == (
        None,
        None,
        0.0,
    )


def test_load_is_the_count_of_the_gate_where_gauges_keep_their_last_values(readings: Readings) -> None:
    seen, demand = readings.pressure("gated"), readings.demand("gated")
    assert seen is not None and demand is not None
    assert (seen.reporting, seen.running_peak, seen.waiting, seen.waiting_peak) == (2, 8, 0, 0)
    assert (demand.now, demand.peak) == (pytest.approx(0.2), pytest.approx(0.8))
    assert seen.coverage == pytest.approx(1.0, abs=0.02)
    # nothing is in the cache of a replica without requests
    assert seen.kv_cache == pytest.approx(0.48)
    assert readings.without_metrics("gated", {"g-1", "g-2", "g-down"}) == 1


def test_a_queue_at_a_gate_is_unknown(readings: Readings) -> None:
    """A policy that does not state what a replica carries needs it."""
    assert readings.pressure("unstated") is None
    assert readings.without_metrics("unstated", {"u-1"}) == 1


def test_load_is_unknown_with_neither_a_gate_nor_gauges_that_prove_it(readings: Readings) -> None:
    assert (readings.pressure("ungated"), readings.demand("ungated")) == (None, None)
