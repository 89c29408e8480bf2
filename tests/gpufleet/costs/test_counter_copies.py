"""Counters with several copies (a second scrape job, federation, two replicas of a store) count once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.costs.samples import MetricNames, RawSeries, readings, team_readings
from gpufleet.costs.slots import ActivitySample
from gpufleet.ledger.teams import TeamTotals

T0 = datetime(2026, 11, 21, 6, tzinfo=UTC)
NAMES = MetricNames(
    prompt="p",
    cached="c",
    generation="g",
    prefill_seconds="pf",
    decode_seconds="dc",
    process_start="start",
    requests=("running",),
    gpu_active=("active",),
)
PLAIN = {"instance_id": "i-1", "instance": "10.0.0.1:8000", "job": "engine"}


def counter(name: str, seconds: range, labels: dict[str, str] | None = None, skew: float = 0) -> RawSeries:
    """A counter that grows by ten each second, scraped at these seconds by a store whose clock is `skew` seconds
    ahead."""
    samples = [ActivitySample(T0 + timedelta(seconds=at + skew), at * 10) for at in seconds]
    return RawSeries({"__name__": name, **PLAIN, **(labels or {})}, samples)


def served(series: list[RawSeries]) -> int:
    """Output tokens as the sum of differences between readings. After a decrease the new value counts from zero."""
    values = [one.generation for one in readings("f", NAMES, series) if one.generation is not None]
    return sum(b - a if b >= a else b for a, b in zip(values, values[1:], strict=False))


ONE = [counter("p", range(0, 601, 10)), counter("g", range(0, 601, 10))]


@pytest.mark.parametrize(
    "copy",
    [
        pytest.param({"job": "vllm"}, id="a second job"),
        pytest.param({"replica": "b"}, id="two replicas of a store"),
        pytest.param({"job": "federate", "exported_job": "engine"}, id="federation"),
        pytest.param(
            {"job": "federate", "instance": "prometheus:9090", "exported_instance": "10.0.0.1:8000"},
            id="federation that puts its own name first",
        ),
        pytest.param({"pod": "chat-0"}, id="a separate label"),
    ],
)
@pytest.mark.parametrize("skew", [0, 0.2, -0.2, 7.5])
def test_copy_of_an_engine_counter_counts_once(copy: dict[str, str], skew: float) -> None:
    again = [counter(name, range(0, 601, 10), copy, skew) for name in ("p", "g")]
    assert served(ONE) == 6000
    assert abs(served([*ONE, *again]) - 6000) <= abs(skew) * 10
    assert abs(served([*again, *ONE]) - 6000) <= abs(skew) * 10


@pytest.mark.parametrize(
    "copy",
    [
        pytest.param({"job": "again"}, id="a second job"),
        pytest.param({"instance": "prometheus:9090", "exported_instance": "10.0.0.9:9101"}, id="federation"),
    ],
)
@pytest.mark.parametrize("skew", [0, 0.2, -0.2, 7.5])
def test_copy_of_a_router_counter_by_key_counts_once(copy: dict[str, str], skew: float) -> None:
    router = {"job": "router", "instance": "10.0.0.9:9101", "key": "red", "model": "m", "pool": "chat"}
    names = replace(NAMES, teams=("seconds", "in", "out", "unmetered"))
    one = [counter(name, range(0, 601, 10), router) for name in ("seconds", "out")]
    again = [counter(name, range(0, 601, 10), router | copy, skew) for name in ("seconds", "out")]
    for every in ([*one, *again], [*again, *one]):
        counted = TeamTotals(T0)
        for reading in sorted(team_readings("f", names, every), key=lambda reading: reading.at):
            counted.take(reading)
        ((place, use),) = counted.uses.items()
        assert place == ("chat", "red", "m")
        assert abs(use.tokens_out - 6_000) <= abs(skew) * 10


def test_copy_fills_gaps_of_the_other_before_and_after() -> None:
    early = counter("g", range(0, 201, 10), {"job": "old"})
    late = counter("g", range(300, 601, 10), {"job": "new"})
    assert served([early, late]) == 6000


def test_prompt_and_generation_are_read_at_the_same_times() -> None:
    more = [counter("p", range(3, 601, 10), {"replica": "b"})]
    found = readings("f", NAMES, [*ONE, *more])
    assert all(one.prompt == one.generation for one in found if one.prompt is not None and one.generation is not None)


def test_start_time_of_a_process_belongs_to_its_own_target() -> None:
    """Where relabelling sets `instance` to the host name, engine and exporter differ only in their job."""
    host = {"instance": "gpu-host-1"}
    samples = [ActivitySample(T0 + timedelta(seconds=at), 1000.0) for at in range(0, 601, 10)]
    engine_start = RawSeries({"__name__": "start", **PLAIN, **host}, samples)
    other = [ActivitySample(at, 5000.0 + n % 2) for n, (at, _) in enumerate(samples)]
    exporter_start = RawSeries({"__name__": "start", **PLAIN, **host, "job": "dcgm"}, other)
    engine = counter("g", range(0, 601, 10), host)
    for order in ([engine, engine_start, exporter_start], [exporter_start, engine_start, engine]):
        assert {one.created_at for one in readings("f", NAMES, order)} == {datetime.fromtimestamp(1000, UTC)}


@given(
    parts=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.floats(-2, 2)), min_size=1, max_size=4),
    restart=st.integers(10, 50),
)
def test_no_set_of_copies_counts_more_than_the_engine_served(
    parts: list[tuple[int, int, float]], restart: int
) -> None:
    """One engine that restarts after `restart` samples. Each copy sees a part of its history."""
    truth = [n if n < restart else n - restart for n in range(61)]
    copies = [
        RawSeries(
            {"__name__": "g", **PLAIN, "replica": str(number)},
            [
                ActivitySample(T0 + timedelta(seconds=10 * n + skew), truth[n] * 100)
                for n in range(min(a, b), max(a, b) + 1)
            ],
        )
        for number, (a, b, skew) in enumerate(parts)
    ]
    most = (restart - 1 + 60 - restart) * 100
    # a copy that starts later, with a clock that dates its first sample early, may count one step twice
    assert served(copies) <= most + 100 * len(copies)
