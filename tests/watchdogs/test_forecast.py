"""What a pool learns of its rises."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdogs.scale.decide import CHANCE
from watchdogs.scale.forecast import Faded, Rises, Swings


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
