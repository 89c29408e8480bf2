"""What is reckoned of all ticks at once is what is reckoned look by look, to the last bit."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from replay import series
from watchdogs.scale.forecast import Level, Pattern, Peak, Swings

Numbers = Sequence[float]


def even(chance: random.Random, count: int, step: float) -> Numbers:
    return [step * tick for tick in range(count)]


def uneven(chance: random.Random, count: int, step: float) -> Numbers:
    found = [chance.choice([0.0, -500.25, 1.7e9])]
    while len(found) < count:
        found.append(found[-1] + step * chance.choice([1, 1, 1, 0.3, 2.7, 40]))
    return found


def noise(chance: random.Random, count: int) -> Numbers:
    return [round(max(0.0, chance.gauss(1.5, 1.5)), 6) for _ in range(count)]


def spells(chance: random.Random, count: int) -> Numbers:
    found: list[float] = []
    while len(found) < count:
        found += [chance.choice([0.0, 0.0, 1.0, 2.5, 40.0])] * chance.randrange(1, 90)
    return found[:count]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [1, 2, 900])
@pytest.mark.parametrize("step", [60.0, 7.3, 1800.0], ids=["minutes", "fractions", "half hours"])
@pytest.mark.parametrize("times_of", [even, uneven])
@pytest.mark.parametrize("demand_of", [noise, spells])
def test_series_are_what_looks_one_by_one_say(
    demand_of: Callable[[random.Random, int], Numbers],
    times_of: Callable[[random.Random, int, float], Numbers],
    step: float,
    count: int,
    seed: int,
) -> None:
    chance = random.Random(seed)
    times, demand = times_of(chance, count, step), demand_of(chance, count)
    at, work, ahead = np.array(times), np.array(demand), step + chance.choice([0.0, 180.0, 90_000.0])
    peak, level, pattern = Peak(span=900.0), Level(span=7200.0), Pattern(ahead=ahead)
    swing = Swings(horizon=ahead, grain=1.0)
    looked: list[tuple[float, float, float, float]] = []
    for moment, one in zip(times, demand, strict=True):
        usual = level.saw(moment, one)
        swing.saw(moment, one, usual)
        pattern.saw(moment, one)
        before = pattern.expected(moment)
        looked.append((peak.saw(moment, one), usual, -np.inf if before is None else before, swing.expected()))
    levels = series.levels(at, work, 7200.0)
    told = (series.peaks(at, work, 900.0), levels, series.expected(at, work, ahead))
    assert np.array_equal(
        np.array(looked), np.column_stack([*told, series.swings(at, work, levels, ahead, 1.0)]), equal_nan=True
    )


def test_weights_that_are_counted_anew_change_no_quantile() -> None:
    """Forty half-lives, some three weeks, after the beginning."""
    chance = random.Random(5)
    times, demand = even(chance, 1500, 3600.0), noise(chance, 1500)
    swing, level = Swings(horizon=3600.0, grain=1.0), np.full(1500, 1.5)
    looked: list[float] = []
    for moment, one in zip(times, demand, strict=True):
        swing.saw(moment, one, 1.5)
        looked.append(swing.expected())
    assert series.swings(np.array(times), np.array(demand), level, 3600.0, 1.0).tolist() == looked


def test_numbers_are_rounded_as_python_rounds_them() -> None:
    chance = random.Random(3)
    numbers = [chance.uniform(0, 10) for _ in range(2000)]
    numbers += [n / 2e6 for n in range(200)] + [n * 1e-6 + 5e-7 for n in range(200)] + [2.675, 1e15 / 7, 0.1 + 0.2]
    assert series.rounded(np.array(numbers)).tolist() == [round(number, 6) for number in numbers]
