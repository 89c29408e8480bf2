"""The arithmetic of risk against the rule as docs/watchdog-defaults.md has it, and each choice against all others."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from watchdogs.spot import risk
from watchdogs.spot.risk import ZonePlacement

ZONES = ("r1a", "r1b", "r1c", "r2a", "r2b", "r3a")
NEAR = 1e-9

NONE = dict.fromkeys(ZONES, 0)


def alike(zone: str, rate: float) -> ZonePlacement:
    return ZonePlacement(name=zone, region=zone[:-1], losses_per_hour=rate)


RATES = st.lists(st.sampled_from([0.0, 0.001, 0.05, 0.1, 0.11, 0.6, 2.0]), min_size=len(ZONES), max_size=len(ZONES))
PLACES = RATES.map(lambda rates: [alike(zone, rate) for zone, rate in zip(ZONES, rates, strict=True)])
COUNTS = st.lists(st.integers(0, 3), min_size=len(ZONES), max_size=len(ZONES)).map(
    lambda numbers: dict(zip(ZONES, numbers, strict=True))
)
NEAR_ENOUGH = st.integers(-3, 3)
"""How many more are needed than there are: decisions change where that is about none."""
SOME = st.lists(st.sampled_from(ZONES), min_size=1, unique=True)


def needs(counts: Mapping[str, int], missing: int) -> int:
    return max(0, sum(counts.values()) + missing)


def expected_falls(places: Sequence[ZonePlacement], counts: Mapping[str, int], needed: int) -> float:
    """A zone that takes more than the spare makes a fall, the deeper the worse; so do two of a region together.

    What the spare covers costs a boot, in which any other loss is a fall.
    """
    spare = max(0, sum(counts.values()) - needed)
    held = {p.name: p for p in places if counts[p.name]}
    covered = [name for name in held if counts[name] <= spare]
    total = 0.0
    for name, place in held.items():
        rate = place.losses_per_hour
        if name in covered:
            others = sum(p.losses_per_hour for p in held.values() if p is not place)
            total += rate * (0.01 + 0.03 * others)
        else:
            total += rate * (1 + 0.1 * (counts[name] - spare))
    for one, two in combinations(covered, 2):
        if one[:-1] == two[:-1] and counts[one] + counts[two] > spare:
            total += 0.3 * min(held[one].losses_per_hour, held[two].losses_per_hour)
    return total


def crowded(rate: float, count: int, spare: int) -> float:
    """What a zone's instances add while a pool still fills."""
    return rate * ((1 + 0.1 * count) * (count > spare) + 0.05 * count) if count else 0.0


def added(counts: Mapping[str, int], zone: str, number: int = 1) -> dict[str, int]:
    return {**counts, zone: counts[zone] + number}


@given(PLACES, COUNTS, NEAR_ENOUGH)
def test_the_risk_of_a_placement(places: list[ZonePlacement], counts: dict[str, int], missing: int) -> None:
    needed = needs(counts, missing)
    assert risk.risk(places, counts, needed) == pytest.approx(expected_falls(places, counts, needed))


@settings(max_examples=500)
@given(PLACES, COUNTS, NEAR_ENOUGH, st.integers(0, 2), SOME)
def test_added_instance_lowers_the_risk_most(
    places: list[ZonePlacement], counts: dict[str, int], missing: int, spare: int, names: list[str]
) -> None:
    needed = needs(counts, missing)
    able = [place for place in places if place.name in names]
    fills = sum(counts.values()) + 1 < needed

    def badness(place: ZonePlacement) -> float:
        if not fills:
            return expected_falls(places, added(counts, place.name), needed)
        there, rate = counts[place.name], place.losses_per_hour
        return crowded(rate, there + 1, spare) - crowded(rate, there, spare)

    chosen = risk.best_addition(able, places, counts, needed, spare)
    scores = {place.name: badness(place) for place in able}
    assert chosen is not None
    assert scores[chosen] <= min(scores.values()) + NEAR


def test_without_zones_there_is_no_placement() -> None:
    assert risk.best_addition([], [], {}, 3, 0) is None


@given(PLACES, COUNTS, NEAR_ENOUGH)
@example([alike(zone, 0.0) for zone in ZONES], {**NONE, "r2a": 1}, 0)
def test_removed_instance_raises_the_risk_least(
    places: list[ZonePlacement], counts: dict[str, int], missing: int
) -> None:
    assume(any(counts.values()))
    needed = needs(counts, missing)
    scores = {zone: expected_falls(places, added(counts, zone, -1), needed) for zone in ZONES if counts[zone]}
    chosen = risk.best_removal(places, counts, needed)
    assert scores[chosen] <= min(scores.values()) + NEAR


@given(PLACES, COUNTS, NEAR_ENOUGH, SOME, st.sampled_from([0.01, 0.1, 0.5]))
@example([alike(zone, 0.1) for zone in ZONES], {**NONE, "r1a": 2}, -1, ["r1a", "r3a"], 0.01)
def test_a_move_is_the_best_of_those_that_gain_enough(
    places: list[ZonePlacement], counts: dict[str, int], missing: int, goals: list[str], min_gain: float
) -> None:
    needed = needs(counts, missing)
    now = expected_falls(places, counts, needed)
    gains = {
        goal: max(now - expected_falls(places, added(added(counts, source, -1), goal), needed) for source in sources)
        for goal in goals
        if (sources := [zone for zone in ZONES if counts[zone] and zone != goal])
    }
    assume(all(abs(gain - min_gain) > NEAR for gain in gains.values()))
    chosen = risk.best_move(places, counts, needed, goals, min_gain)
    enough = [goal for goal, gain in gains.items() if gain > min_gain]
    if not enough:
        assert chosen is None
    else:
        assert chosen is not None
        assert gains[chosen] >= max(gains.values()) - NEAR
