"""Ten-second activity slots: computed by hand, and properties that hold for any samples."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.costs.slots import SLOTS, ActivitySample, ActivitySignals, ActivityTotals, Measure, slots
from gpufleet.ledger.facts import ActivityHour

T0 = datetime(2026, 11, 21, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
ALL = (1 << SLOTS) - 1
MEASURE = Measure(reach=timedelta(seconds=75))


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def series(*values: tuple[float, float]) -> list[ActivitySample]:
    return [ActivitySample(at(second), value) for second, value in values]


def found(signals: ActivitySignals, measure: Measure = MEASURE) -> list[tuple[datetime, set[int], set[int]]]:
    """Hour, busy slots and idle slots of each hour with activity."""
    return [(one.hour, numbers(one.busy), numbers(one.idle)) for one in slots("e", "i-1", signals, measure)]


def numbers(bits: int) -> set[int]:
    return {n for n in range(SLOTS + 1) if bits >> n & 1}


IDLE = series((0, 0), (30, 0))


@pytest.mark.parametrize(
    ("signals", "busy", "idle"),
    [
        pytest.param(
            ActivitySignals(requests=[IDLE], gpus=[IDLE]),
            set(),
            {0, 1, 2},
            id="idle",
        ),
        pytest.param(
            ActivitySignals(requests=[series((0, 0), (30, 1))], gpus=[IDLE]),
            {0, 1, 2},
            set(),
            id="a request at the end",
        ),
        pytest.param(
            ActivitySignals(requests=[series((0, 1), (30, 0))], gpus=[IDLE]),
            {0, 1, 2},
            set(),
            id="a request at the start",
        ),
        pytest.param(
            ActivitySignals(
                requests=[series((0, 0), (60, 0), (120, 0))],
                gpus=[series((0, 0), (30, math.nan), (60, 0), (90, 0), (120, 0))],
            ),
            set(),
            {6, 7, 8, 9, 10, 11},
            id="a value that is not a measurement",
        ),
        pytest.param(
            ActivitySignals(requests=[IDLE], gpus=[IDLE, series((10, 0.01), (20, 0))]),
            {1},
            set(),
            id="one GPU of two at the noise floor, the other not measured elsewhere",
        ),
        pytest.param(
            ActivitySignals(requests=[IDLE], gpus=[series((0, 0.0099), (30, 0.0099))]),
            set(),
            {0, 1, 2},
            id="below the floor",
        ),
        pytest.param(
            ActivitySignals(requests=[IDLE], gpus=[series((0, 0), (30, 0.5))]),
            {0, 1, 2},
            set(),
            id="the series of a GPU ends",
        ),
        pytest.param(
            ActivitySignals(requests=[IDLE], gpus=[IDLE], tokens=[series((0, 5), (10, 6), (20, 6), (30, 6))]),
            {0},
            {1, 2},
            id="tokens prove work, never idleness",
        ),
        pytest.param(
            ActivitySignals(requests=[IDLE], gpus=[IDLE], tokens=[series((0, 9), (10, 1))]),
            {0},
            {1, 2},
            id="a counter decreased",
        ),
        pytest.param(
            ActivitySignals(requests=[IDLE], gpus=[series((0, 0), (20, 0))]),
            set(),
            {0, 1},
            id="the shorter one",
        ),
    ],
)  # fmt: skip
def test_slots_of_an_hour_by_hand(signals: ActivitySignals, busy: set[int], idle: set[int]) -> None:
    assert found(signals) == [(T0, busy, idle)]


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param(ActivitySignals(), id="nothing"),
        pytest.param(ActivitySignals(gpus=[IDLE]), id="no engine reported"),
        pytest.param(ActivitySignals(requests=[IDLE]), id="no GPU reported"),
        pytest.param(ActivitySignals(requests=[series((0, 0), (75.1, 0))], gpus=[IDLE]), id="too far apart"),
        pytest.param(ActivitySignals(requests=[series((30, 0), (0, 0))], gpus=[IDLE]), id="backwards"),
        pytest.param(ActivitySignals(requests=[series((0, 0), (0, 0))], gpus=[IDLE]), id="at the same time"),
        pytest.param(
            ActivitySignals(requests=[IDLE, series((300, 0), (310, 0))], gpus=[IDLE]), id="engines at different times"
        ),
    ],
)
def test_unknown_time_is_not_idle(signals: ActivitySignals) -> None:
    assert found(signals) == []


def test_samples_at_the_maximum_distance_are_connected() -> None:
    far = series((0, 0), (75, 0))
    assert found(ActivitySignals(requests=[far], gpus=[far])) == [(T0, set(), set(range(8)))]


def test_partly_covered_slot_is_filled_and_hours_end_on_time() -> None:
    late = series((3_584, 1), (3_611, 1))
    assert found(ActivitySignals(requests=[late])) == [(T0, {358, 359}, set()), (T0 + HOUR, {0, 1}, set())]


def test_default_measure_matches_the_reports() -> None:
    assert (Measure().reach, Measure().gpu_active_below) == (timedelta(seconds=75), 0.01)


@pytest.mark.parametrize(
    ("busy", "idle", "start", "end", "expected"),
    [
        pytest.param(ALL, 0, 0, 3_600, (3_600, 0), id="whole hour"),
        pytest.param(0, ALL, 1, 3_599, (0, 3_598), id="cut at both ends"),
        pytest.param(0b1, 0, 3, 7, (4, 0), id="inside one slot"),
        pytest.param(0b11, 0b100, 5, 25, (15, 5), id="cut slots"),
        pytest.param(0b10, 0, 0, 10, (0, 0), id="ends before the slot"),
        pytest.param(0b1, 0, 10, 20, (0, 0), id="begins after the slot"),
        pytest.param(0b101, 0, 5, 21, (6, 0), id="a gap between"),
        pytest.param(0b001, 0, 5, 21, (5, 0), id="only the first is cut"),
        pytest.param(0b100, 0, 5, 21, (1, 0), id="only the last is cut"),
        pytest.param(1 << 359, 0, 3_595, 3_605, (5, 0), id="across the end of the hour"),
    ],
)
def test_known_part_of_an_interval(
    busy: int, idle: int, start: float, end: float, expected: tuple[float, float]
) -> None:
    hour = ActivityHour(environment="e", instance_id="i-1", hour=T0, busy=busy, idle=idle)
    assert ActivityTotals([hour]).measured(at(start), at(end)) == tuple(timedelta(seconds=s) for s in expected)


@given(
    bits=st.lists(st.integers(0, ALL), min_size=2, max_size=2),
    cuts=st.lists(st.integers(0, 3 * 3_600 * 1_000_000), min_size=2, max_size=6),
)
def test_parts_of_an_interval_add_up_to_it(bits: list[int], cuts: list[int]) -> None:
    hours = ActivityTotals(
        ActivityHour(environment="e", instance_id="i-1", hour=T0 + n * HOUR, busy=one, idle=ALL & ~one)
        for n, one in enumerate(bits)
    )
    edges = [T0 + timedelta(microseconds=cut) for cut in sorted(cuts)]
    parts = [hours.measured(a, b) for a, b in zip(edges, edges[1:], strict=False)]
    whole = hours.measured(edges[0], edges[-1])
    assert (sum((b for b, _ in parts), timedelta()), sum((i for _, i in parts), timedelta())) == whole
    inside = max(min(edges[-1], T0 + 2 * HOUR) - edges[0], timedelta())
    assert sum(whole, timedelta()) == inside


@given(samples=st.lists(st.tuples(st.integers(0, 7_200), st.integers(0, 1)), max_size=30, unique_by=lambda s: s[0]))
def test_slot_is_never_both_busy_and_idle(samples: list[tuple[int, int]]) -> None:
    made = series(*sorted(samples))
    for one in slots("e", "i-1", ActivitySignals(requests=[made], gpus=[made]), MEASURE):
        assert not one.busy & one.idle and (one.busy | one.idle) <= ALL
