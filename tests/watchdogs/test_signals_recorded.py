"""Further queries of the metrics store: scrape intervals and answers so far. On a real Prometheus."""

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fixtures.watchdogs.plain import START, WINDOW
from tests.fixtures.watchdogs.recordings import Series, Value, engine, exporter, flat, prometheus
from watchdogs import signals
from watchdogs.accelerator_queries import highest_active

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus"),
]


@pytest.mark.parametrize(
    ("engine_every", "gpu_every"),
    [pytest.param(15, 60, id="engines more often"), pytest.param(60, 15, id="exporters more often")],
)
def test_each_source_is_held_against_its_own_interval(engine_every: int, gpu_every: int, tmp_path: Path) -> None:
    page = [replace(one, every=engine_every) for one in engine(busy=False)]
    page += [replace(one, every=gpu_every) for one in exporter(busy=False)]
    with prometheus({"i-1": page}, tmp_path, engine_every=engine_every, gpu_every=gpu_every) as store:
        longest = signals.longest_interval(store)
        found = signals.gather(store, signals.of_environment("test"), WINDOW, START)["i-1"]
    assert longest == found.interval == timedelta(seconds=60)
    assert found.engine is not None and found.gpu is not None
    assert (found.engine.interval, found.gpu.interval) == (
        timedelta(seconds=engine_every),
        timedelta(seconds=gpu_every),
    )
    assert (found.engine.coverage, found.gpu.coverage) == (1, 1)
    # whether it still moves is looked up over four intervals, and over a minute and a half
    lately = {15: 5, 60: 3}
    assert (found.engine.pulse_changes, found.gpu.energy_changes) == (lately[engine_every], lately[gpu_every])


def _up(value: Value, job: str = "engine", **labels: str) -> list[Series]:
    return [Series(job=job, name="up", value=value, labels=labels)]


def _late(ago: float) -> Value:
    """It answered until so many seconds ago."""
    return lambda at: None if at < ago else 1.0


def test_an_instance_with_two_of_a_kind_was_scraped_when_the_later_one_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = {
        "i-two": [
            *_up(flat(0), instance="a"),
            *_up(_late(60), instance="b"),
            *_up(_late(90), "accelerator", instance="a"),
            *_up(_late(30), "accelerator", instance="b"),
        ],
        "i-dead": _up(flat(0), instance="a") + _up(flat(0), instance="b") + _up(flat(0), "accelerator"),
    }
    with prometheus(recorded, tmp_path) as store:
        monkeypatch.setattr(store, "now", lambda: START)
        found = signals.scrapes(store, signals.of_environment("test"), list(recorded))
    assert found["i-two"] == signals.Scrapes(
        engine=START - timedelta(seconds=65), gpu=START - timedelta(seconds=95), engine_answers=True
    )
    assert found["i-dead"] == signals.Scrapes(engine=START - timedelta(seconds=5), gpu=None, engine_answers=False)


def test_reached_are_those_whose_engine_answered_once_in_the_span(tmp_path: Path) -> None:
    recorded = {
        "i-once": _up(lambda ago: float(ago == 600), instance="a") + _up(flat(0), instance="b"),
        "i-never": _up(flat(0)),
        "i-before": _up(lambda ago: float(ago > 1800)),
        "i-exporter": _up(flat(1), "accelerator"),
        "i-elsewhere": _up(flat(1), environment="other"),
        "i-others": _up(flat(1)),
        "": _up(flat(1)),
    }
    asked = sorted(recorded.keys() - {"i-others", ""})
    with prometheus(recorded, tmp_path) as store:
        assert signals.reached(store, "test", [*asked, "i-unheard-of"], timedelta(minutes=30), START) == {"i-once"}
        assert signals.reached(store, "test", [], timedelta(minutes=30), START) == set()


def test_token_counters_are_counted_per_engine(tmp_path: Path) -> None:
    """Not by series, nor by samples: one engine splits its tokens by label, another one missed a scrape."""
    quiet = engine(busy=False)
    parts = [one.with_labels(source="cache") for one in quiet if one.name.endswith("_tokens_total")]
    hole = [
        replace(one, value=lambda ago: None if ago == 600 else 0.0)
        if one.name == "gpufleet_engine_requests_waiting"
        else one
        for one in engine(busy=False, number="1")
    ]
    untold = [one for one in engine(busy=False, number="1") if one.name != "gpufleet_engine_requests_waiting"]
    recorded = {"i-parts": [*quiet, *parts], "i-hole": [*quiet, *hole], "i-untold": [*quiet, *untold]}
    with prometheus(recorded, tmp_path) as store:
        found = signals.gather(store, signals.of_environment("test"), WINDOW, START)
    expected = {key: one.engine for key, one in found.items() if one.engine is not None}
    measured = {
        key: (one.running_max, one.waiting_max, one.tokens, one.counter_changes) for key, one in expected.items()
    }
    assert measured == {"i-parts": (0, 0, 0, 0), "i-hole": (0, 0, 0, 0), "i-untold": (0, None, 0, 0)}


def _briefly(value: float, else_: float = 0.0) -> Value:
    """So much on one page early in the window."""
    return lambda ago: value if ago == 1500 else else_


def _pair(**second: Value) -> list[Series]:
    """Two quiet engines, of which the second says this instead, by the end of a metric's name."""
    first = [one.with_labels(instance="a") for one in engine(busy=False)]
    other = [one.with_labels(instance="b") for one in engine(busy=False)]
    for name, value in second.items():
        assert any(one.name.endswith(name) for one in other)
        other = [one.with_value(value) if one.name.endswith(name) else one for one in other]
    return first + other


BOOTED = START.timestamp() - 5 * 3600
ENGINES = {
    "quiet": (_pair(), {"running_max": 0, "waiting_max": 0, "tokens": 0, "counter_changes": 0, "restarts": 0}),
    "ran": (_pair(requests_running=_briefly(3)), {"running_max": 3}),
    "queued": (_pair(requests_waiting=_briefly(2)), {"waiting_max": 2}),
    "below 0": (_pair(requests_running=_briefly(-1)), {"running_max": -1}),
    "queue below 0": (_pair(requests_waiting=_briefly(-1)), {"waiting_max": -1}),
    "served": (_pair(prompt_tokens_total=lambda ago: 1000.0 + 60 * (ago <= 1500)), {"counter_changes": 1}),
    "hangs": (_pair(cpu_seconds_total=flat(7)), {"pulse_changes": 0}),
    "hangs of late": (_pair(cpu_seconds_total=lambda ago: 999.0 - max(ago, 120)), {"pulse_changes": 0}),
    "young": (_pair(start_time_seconds=flat(START.timestamp() - 600)), {"started_age": timedelta(minutes=10)}),
    "restarted": (_pair(start_time_seconds=_briefly(BOOTED - 60, BOOTED)), {"restarts": 2}),
    "fell silent": (_pair(requests_running=_late(120)), {"newest_age": timedelta(seconds=125)}),
    "untold at times": (_pair(requests_running=lambda ago: None if ago % 60 == 0 else 0.0), {"coverage": 0.75}),
}


def test_busier_and_worse_covered_of_two_engines_counts(tmp_path: Path) -> None:
    with prometheus({name: page for name, (page, _) in ENGINES.items()}, tmp_path) as store:
        found = signals.gather(store, signals.of_environment("test"), WINDOW, START)
    measured = {
        name: {field: getattr(found[name].engine, field) for field in expected}
        for name, (_, expected) in ENGINES.items()
    }
    assert measured == {name: expected for name, (_, expected) in ENGINES.items()}


def _gpus(**second: Value) -> list[Series]:
    """Two quiet GPUs, of which the second says this instead, by the end of a field's name."""
    first = exporter(busy=False)
    other = [one.with_labels(gpu="1", UUID="GPU-1") for one in first]
    for name, value in second.items():
        assert any(one.name.endswith(name) for one in other)
        other = [one.with_value(value) if one.name.endswith(name) else one for one in other]
    return first + other


def _renamed(one: Series) -> Series:
    return one.named(one.name.replace("GPU_UTIL", "GPU_UTIL_RATIO").replace("ENGINE_ACTIVE", "ENGINE_UTIL_RATIO"))


WATTS = 28.0
METERED = 1e9
GPUS = {
    "quiet": (
        _gpus(),
        {"gpus": 2, "metered": 2, "coverage": 1, "active_max": 0, "active_min": 0, "util_max": 0, "watts_max": WATTS},
    ),
    "worked": (_gpus(ENGINE_ACTIVE=_briefly(0.6)), {"active_max": 0.6, "active_min": 0}),
    "below 0": (_gpus(ENGINE_ACTIVE=_briefly(-1)), {"active_max": 0, "active_min": -1}),
    "used": (_gpus(GPU_UTIL=_briefly(85)), {"util_max": 85}),
    "worked, renamed": (
        [_renamed(one) for one in _gpus(ENGINE_ACTIVE=_briefly(0.6), GPU_UTIL=_briefly(0.85))],
        {"gpus": 2, "coverage": 1, "active_max": 0.6, "active_min": 0, "util_max": 85},
    ),
    "repeats itself": (_gpus(TOTAL_ENERGY_CONSUMPTION=flat(METERED)), {"energy_changes": 0}),
    "repeats itself of late": (
        _gpus(TOTAL_ENERGY_CONSUMPTION=lambda ago: METERED - 1000 * WATTS * max(ago, 120)),
        {"energy_changes": 0},
    ),
    "collects each minute": (
        _gpus(TOTAL_ENERGY_CONSUMPTION=lambda ago: METERED - 60_000 * WATTS * (ago // 60)),
        {"energy_changes": 1},
    ),
    "draws power": (
        _gpus(TOTAL_ENERGY_CONSUMPTION=lambda ago: METERED - 1000 * (WATTS * ago + 100 * min(max(ago, 900), 1500))),
        {"watts_max": WATTS + 100},
    ),
    "meters one": (_gpus(TOTAL_ENERGY_CONSUMPTION=lambda _: None), {"gpus": 2, "metered": 1}),
    "fell silent": (_gpus(ENGINE_ACTIVE=_late(120)), {"newest_age": timedelta(seconds=125)}),
    "is gone": (_gpus(ENGINE_ACTIVE=_late(600)), {"gpus": 1}),
    "untold at times": (_gpus(ENGINE_ACTIVE=lambda ago: None if ago % 60 == 0 else 0.0), {"coverage": 0.75}),
}


def test_busier_and_worse_covered_of_two_gpus_counts(tmp_path: Path) -> None:
    with prometheus({name: page for name, (page, _) in GPUS.items()}, tmp_path) as store:
        found = signals.gather(store, signals.of_environment("test"), WINDOW, START)
    measured = {
        name: {field: getattr(found[name].gpu, field) for field in expected} for name, (_, expected) in GPUS.items()
    }
    assert measured == {name: pytest.approx(expected) for name, (_, expected) in GPUS.items()}


def test_an_orphan_is_as_active_as_its_busiest_gpu_was_at_its_busiest_moment(tmp_path: Path) -> None:
    recorded = {name: GPUS[name][0] for name in ("quiet", "worked", "worked, renamed")}
    with prometheus({**recorded, "none": engine(busy=True)}, tmp_path) as store:
        rows = store.query(highest_active('instance_id=~".+"', WINDOW), START)
    assert {labels["instance_id"]: value for labels, value in rows} == {
        "quiet": 0,
        "worked": 0.6,
        "worked, renamed": 0.6,
    }
