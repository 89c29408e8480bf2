"""Samples of accelerators' energy counters become readings: units, copies, resets, and counters in another unit."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cost_sources import ENERGY_NAMES
from gpufleet.costs.energy_samples import energy_readings
from gpufleet.costs.samples import RawSeries
from gpufleet.costs.slots import ActivitySample
from gpufleet.ledger.energy import EnergyReading, use_of
from serving.accelerators import metrics
from serving.accelerators.contract import SeriesUnit

T0 = datetime(2026, 7, 1, 6, 0, tzinfo=UTC)
FLEET = "aws/test/us-east-1"
KINDS = {
    SeriesUnit.MILLIJOULES: ("nvidia", 1000.0),
    SeriesUnit.JOULES: ("nvidia", 1.0),
    SeriesUnit.MICROJOULES: ("amd", 1e6),
}
"""Unit to an accelerator whose exporter has it, and its number for one joule."""


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def counter(
    values: Sequence[tuple[float, float]], of: SeriesUnit = SeriesUnit.MILLIJOULES, /, **labels: str
) -> RawSeries:
    """A counter. `values`: seconds and joules."""
    kind, per_joule = KINDS[of]
    samples = [ActivitySample(at(second), joules * per_joule) for second, joules in values]
    return RawSeries(_labels(metrics.ENERGY.name, kind, of, labels), samples)


def power(values: Sequence[tuple[float, float]], **labels: str) -> RawSeries:
    """A power gauge. `values`: seconds and watts."""
    samples = [ActivitySample(at(second), watts) for second, watts in values]
    return RawSeries(_labels(metrics.POWER.name, "nvidia", SeriesUnit.WATTS, labels), samples)


def _labels(name: str, kind: str, unit: SeriesUnit, more: dict[str, str]) -> dict[str, str]:
    known = {"instance_id": "i-1", "job": "accelerators", "instance": "10.0.0.1:9400"}
    return {
        "__name__": name,
        "accelerator": kind,
        "accelerator_device": "GPU-a",
        "unit": unit.value,
        **known,
        **more,
    }


def steady(watts: float, until: int, since: int = 0, every: int = 15, base: float = 0) -> list[tuple[float, float]]:
    """A counter that grows with this power."""
    return [(second, base + watts * (second - since)) for second in range(since, until + 1, every)]


def joules(series: Sequence[RawSeries]) -> float:
    """The energy of the hour."""
    found, notes = energy_readings(FLEET, ENERGY_NAMES, series)
    assert notes == []
    return use_of(found, {}, T0, at(3601)).millijoules / 1000


@pytest.mark.parametrize("unit", KINDS)
def test_units_are_converted_to_millijoules(unit: SeriesUnit) -> None:
    assert joules([counter(steady(300, 3600), unit)]) == 300 * 3600


def test_one_reading_every_five_minutes_is_kept() -> None:
    found, _ = energy_readings(FLEET, ENERGY_NAMES, [counter(steady(300, 3600))])
    assert [reading.at for reading in found] == [at(300 * n) for n in range(13)]


def test_both_sides_of_a_reset_are_kept() -> None:
    values = [*steady(300, 1000, base=500_000, every=20), *steady(300, 3600, 1020, every=20)]
    found, _ = energy_readings(FLEET, ENERGY_NAMES, [counter(values)])
    use = use_of(found, {}, T0, at(3601))
    assert (use.millijoules, use.resets) == (300 * (1000 + 2580) * 1000, 1)
    assert use.measured_us == 3580 * 1_000_000


@pytest.mark.parametrize(
    "copies",
    [
        pytest.param([{"pod": "a"}, {"pod": "b"}], id="pods"),
        pytest.param([{"vgpu": "0"}, {"vgpu": "1"}], id="time slices"),
        pytest.param([{"accelerator_slice": "1", "GPU_I_ID": "1"}, {"accelerator_slice": "2"}], id="MIG instances"),
        pytest.param([{"exported_pod": "a"}, {"exported_namespace": "b"}], id="labels that Prometheus renamed"),
        pytest.param([{}, {"replica": "second"}], id="a second store"),
        pytest.param([{}, {"job": "federate", "exported_instance": "10.0.0.1:9400"}], id="a federated store"),
        pytest.param([{"part": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"}, {"part": "other"}], id="two names"),
    ],
)
def test_copies_count_once(copies: Sequence[dict[str, str]]) -> None:
    assert joules([counter(steady(300, 3600), **labels) for labels in copies]) == 300 * 3600


def test_device_whose_pods_change_is_measured_throughout() -> None:
    first, rest = counter(steady(300, 1200), pod="a"), counter(steady(300, 2400, 1200, base=360_000), pod="b")
    last = counter(steady(300, 3600, 2400, base=720_000), pod="a")
    again = RawSeries(first.labels, [*first.samples, *last.samples])
    assert joules([again, rest]) == 300 * 3600


def test_second_store_with_another_clock_shows_no_reset() -> None:
    late = [(second + 2, value) for second, value in steady(300, 3000)]
    found, _ = energy_readings(FLEET, ENERGY_NAMES, [counter(steady(300, 3600)), counter(late, replica="second")])
    assert use_of(found, {}, T0, at(3601)).resets == 0


@pytest.mark.parametrize(
    ("series", "why"),
    [
        pytest.param([counter(steady(300_000, 600))], "a mean power of 300,000.0 W", id="a thousand times too high"),
        pytest.param([counter(steady(0.3, 600))], "a mean power of 0.3 W", id="a thousand times too low"),
        pytest.param(
            [counter(steady(2_000, 600)), power([(0, 9), (300, 9)])],
            "its counter shows 2,000.0 W, its power 9.0 to 9.0 W",
            id="plausible alone, but not with its power",
        ),
        pytest.param(
            [counter(steady(4, 600)), power([(0, 900), (300, 1200)])],
            "its counter shows 4.0 W, its power 900.0 to 1,200.0 W",
            id="too low for its power",
        ),
    ],
)
def test_counter_in_another_unit_is_rejected_with_a_note(series: Sequence[RawSeries], why: str) -> None:
    healthy = counter(steady(300, 600), accelerator_device="GPU-b")
    found, (note,) = energy_readings(FLEET, ENERGY_NAMES, [*series, healthy])
    assert {reading.device for reading in found} == {"GPU-b"}
    assert note.startswith(f"energy of 1 devices was rejected: i-1 GPU-a: {why}")


def test_power_that_changes_with_the_load_contradicts_nothing() -> None:
    values = [*steady(60, 600), *steady(700, 1200, 615, base=36_000 + 700 * 15)]
    assert joules([counter(values), power([(0, 60), (600, 60), (615, 700), (1200, 700)])]) > 0


def test_implausible_power_contradicts_nothing() -> None:
    assert joules([counter(steady(300, 3600)), power([(0, 300_000), (300, 300_000)])]) == 300 * 3600


@pytest.mark.parametrize(
    "series",
    [
        pytest.param([power([(0, 300), (300, 300)])], id="power without a counter"),
        pytest.param([counter([(0, 5)])], id="a single reading"),
        pytest.param([counter(steady(0, 600))], id="a counter that stands still"),
        pytest.param([counter([(0, float("nan")), (60, float("inf")), (120, -1)])], id="no numbers"),
        pytest.param(
            [counter([(0, (2**64 - 1) / 1e6), (300, (2**64 - 1) / 1e6)], SeriesUnit.MICROJOULES)], id="blank values"
        ),
        pytest.param(
            [counter([(0, 0), (300, 0)], SeriesUnit.MICROJOULES, gpu_compute_partition_type="CPX")],
            id="partitions that are not measured",
        ),
        pytest.param([counter(steady(300, 600), unit="furlongs")], id="unknown unit"),
        pytest.param([counter(steady(300, 600), accelerator="unknown")], id="unknown accelerator"),
        pytest.param([counter(steady(300, 600), accelerator_device="")], id="no device"),
        pytest.param([counter(steady(300, 600), instance_id="")], id="no instance"),
    ],
)
def test_what_was_not_measured_has_no_energy(series: Sequence[RawSeries]) -> None:
    found, notes = energy_readings(FLEET, ENERGY_NAMES, series)
    assert (use_of(found, {}, T0, at(3601)).measured_us, notes) == (0, [])


@given(st.lists(st.integers(3, 2_900), min_size=2, max_size=60), st.integers(0, 59))
def test_thinning_keeps_the_sum(powers: list[int], reset_at: int) -> None:
    energy, values = 0, list[tuple[float, float]]()
    for index, watts in enumerate(powers):
        energy = 0 if index == reset_at else energy + watts * 60
        values.append((60 * index, energy))
    series = counter(values)
    every = [
        EnergyReading(
            environment=FLEET, instance_id="i-1", device="GPU-a", at=sample.at, millijoules=round(sample.value)
        )
        for sample in series.samples
    ]
    thinned, notes = energy_readings(FLEET, ENERGY_NAMES, [series])
    assert notes == []
    whole, kept = (use_of(readings, {}, T0, at(3601)) for readings in (every, thinned))
    assert (kept.millijoules, kept.resets) == (whole.millijoules, whole.resets)
