"""What a pool learns of its rises."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain.policies import ScalePolicy
from replay.forecast import Faded, Pattern, Rises, Swings
from watchdogs.scale.decide import CHANCE
from watchdogs.scale.pressure import RISE_QUANTILE, Readings


@given(st.lists(st.floats(min_value=0, max_value=40), max_size=60))
def test_asking_at_each_look_changes_no_answer(demands: list[float]) -> None:
    """It goes on from its last answer; one that was never asked before counts from the beginning."""
    asked = Rises(horizon=180.0)
    for number, demand in enumerate(demands):
        asked.saw(60.0 * number, demand)
        fresh = Rises(horizon=180.0)
        for earlier, seen in enumerate(demands[: number + 1]):
            fresh.saw(60.0 * earlier, seen)
        assert asked.expected() == fresh.expected()


@given(
    st.lists(st.floats(min_value=0, max_value=40), min_size=1, max_size=60), st.floats(min_value=0.01, max_value=1)
)
def test_a_quantile_is_at_least_what_its_share_of_the_numbers_is(numbers: list[float], share: float) -> None:
    seen = Faded(share=share)
    for number in numbers:
        seen.put(number)
    enough = sum(number <= seen.quantile() * (1 + 1e-9) for number in numbers)
    assert enough >= share * len(numbers) - 1e-6


def learned(demands: list[float]) -> list[float]:
    """Swings by the hour, of looks of a minute about a level of 4."""
    swings = Swings(horizon=240.0, grain=1.0)
    found: list[float] = []
    for number, demand in enumerate(demands):
        swings.saw(60.0 * number, demand, 4.0)
        if number % 60 == 0:
            found.append(swings.expected())
    return found


def test_of_an_unknown_pool_swings_are_those_of_chance() -> None:
    assert learned([4.0] * 61) == [pytest.approx(CHANCE, rel=0.05)] * 2


def test_a_pool_that_varies_little_learns_it_within_half_a_day_and_one_that_jumps_does_not() -> None:
    random.seed(1)
    calm = [4 + random.uniform(-2, 2) for _ in range(1440)]
    jumping = [20.0 if number % 100 < 2 else demand for number, demand in enumerate(calm)]
    assert learned(calm)[-1] < CHANCE / 2
    assert learned(jumping)[-1] == pytest.approx(8.0, rel=0.05)


def test_a_rise_is_the_highest_demand_within_a_start() -> None:
    """Of a peak that comes every ten looks: a start of three looks sees it at each of the three before it."""
    rises, share = Rises(horizon=180.0), Rises(horizon=0.0)
    for number in range(2000):
        demand = 9.0 if number % 10 == 9 else 1.0
        rises.saw(60.0 * number, demand)
        share.saw(60.0 * number, demand)
    assert RISE_QUANTILE > 0.7
    assert rises.expected() == pytest.approx(8.0, rel=0.03)
    assert share.expected() < 2.0, "a start that takes no time has no rise"


DAY = 86400.0


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        pytest.param([5.0], None, id="one day"),
        pytest.param([5.0, 3.0], 3.0, id="of two the lower"),
        pytest.param([5.0, 3.0, 9.0], 3.0, id="the two last, not the one before"),
        pytest.param([1.0, 9.0, 9.0, 9.0, 9.0, 5.0, 3.0], 3.0, id="a week: the middle of three"),
        pytest.param([6.0, 9.0, 9.0, 9.0, 9.0, 8.0, 3.0], 6.0, id="a week: its first day"),
    ],
)
def test_what_earlier_days_had_at_this_time(days: list[float], expected: float | None) -> None:
    pattern = Pattern(ahead=600.0)
    for number, peak in enumerate(days):
        for minute, demand in ((0, 0.5), (10, peak), (11, 50.0)):
            pattern.saw(number * DAY + 60.0 * minute, demand)
    assert pattern.expected(len(days) * DAY) == expected


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({1: 40.0}, None, id="one day"),
        pytest.param({1: 400.0, 2: 8.0}, 1.0, id="of two the lower: yesterday was odd"),
        pytest.param({1: 8.0, 7: 400.0}, 1.0, id="last week was odd"),
        pytest.param({1: 8.0, 2: 24.0, 7: 16.0}, 2.0, id="the middle of three"),
    ],
)
def test_production_expects_the_same(days: dict[int, float], expected: float | None) -> None:
    readings = Readings(
        present={"batch": {"requests": 8.0, "requests_peak": 8.0}},
        past={"batch": {f"requests_{day}d": number for day, number in days.items()}},
        policies={"batch": ScalePolicy(requests_per_replica=8)},
        engines={},
    )
    demand = readings.demand("batch")
    assert demand is not None and demand.expected == expected


def test_nothing_is_expected_of_a_pool_without_a_past() -> None:
    assert Pattern(ahead=600.0).expected(0.0) is None
