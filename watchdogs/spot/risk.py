"""How likely a placement falls below its target, and which step makes that least likely. Pure arithmetic.

A zone that fails takes all of its instances at once, so what counts is not how many losses there are but whether one
loss takes more than the spare. With one spare, five instances are safest either one to a zone or all in the zone
that fails least; two here and two there is worse than both. Zones of a region fail together more often than others.

The constants were chosen on generated markets (benchmarks/markets.py: nine zones in three regions, correlated
within the region), seeds 0 to 3, and checked on others; docs/watchdogs.md has the figures. None was fitted to a
recorded trace.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import inf
from typing import Final, NamedTuple

TOGETHER: Final = 0.3
"""Share of the losses of the safer of two zones of a region that come with the other's."""
DEPTH: Final = 0.1
"""How much worse each further instance lost at once makes a loss."""
SINGLE: Final = 0.01
"""Weight of a loss that the spare covers: it costs a boot."""
SOON_AFTER: Final = 0.03
"""Share of an hour in which a second loss finds the spare used up: about a boot."""

UNKNOWN_PRICE: Final = Decimal("Infinity")
"""Of equals, what nobody knows the price of is taken for the dearest."""


class Place(NamedTuple):
    """A zone, as the arithmetic wants it."""

    name: str
    region: str
    losses_per_hour: float
    usd_per_hour: Decimal = UNKNOWN_PRICE
    """Of one instance."""


Counts = Mapping[str, int]
"""Instances by place."""


def risk(places: Sequence[Place], counts: Counts, needed: int) -> float:
    """Expected falls below `needed` per hour. With fewer than needed: as if the spare were 0."""
    spare = max(0, sum(counts.values()) - needed)
    held = [(place, counts[place.name]) for place in places if counts.get(place.name, 0) > 0]
    every = sum(place.losses_per_hour for place, _ in held)
    total = 0.0
    for index, (place, count) in enumerate(held, start=1):
        rate = place.losses_per_hour
        if count > spare:
            total += rate * (1 + DEPTH * (count - spare))
            continue
        total += rate * (SINGLE + SOON_AFTER * (every - rate))
        for other, others in held[index:]:
            if other.region == place.region and others <= spare < count + others:
                total += TOGETHER * min(rate, other.losses_per_hour)
    return total


def region_of(zone: str) -> str:
    """`us-east-1a` -> `us-east-1`, `us-central1-b` -> `us-central1`."""
    return zone[:-2] if zone[-2:-1] == "-" else zone[:-1]


def with_one_more(counts: Counts, place: str) -> dict[str, int]:
    return {**counts, place: counts.get(place, 0) + 1}


def with_one_less(counts: Counts, place: str) -> dict[str, int]:
    return {**counts, place: counts.get(place, 0) - 1}


def crowding(places: Sequence[Place], counts: Counts, spare: int) -> float:
    """The risk of a placement that is still being filled: what is more than the spare in one place."""
    there = [(place.losses_per_hour, counts.get(place.name, 0)) for place in places]
    return sum(rate * ((1 + DEPTH * n if n > spare else 0) + 5 * SINGLE * n) for rate, n in there)


def best_addition(
    able: Sequence[Place], places: Sequence[Place], counts: Counts, needed: int, spare: int
) -> str | None:
    """Which of those that are able one more does most good in, beside what all places hold: the first of equals.

    None: nowhere to go.
    """
    filled = sum(counts.values()) + 1 >= needed

    def badness(place: Place) -> float:
        after = with_one_more(counts, place.name)
        # what the others hold is the same wherever it goes
        return risk(places, after, needed) if filled else crowding(able, after, spare)

    return min(able, key=badness).name if able else None


def best_removal(places: Sequence[Place], counts: Counts, needed: int) -> str:
    """Where one less does least harm: the dearest of equals."""
    held = [place for place in places if counts.get(place.name, 0) > 0]
    return min(
        held, key=lambda p: (risk(places, with_one_less(counts, p.name), needed), -p.usd_per_hour, p.name)
    ).name


def best_move(
    places: Sequence[Place], counts: Counts, needed: int, reachable: Sequence[str], least_gain: float
) -> str | None:
    """The place to which a move of one instance lowers the risk most: the cheapest of equals.

    None: no move lowers it by `least_gain`.
    """
    prices = {place.name: place.usd_per_hour for place in places}
    moves = [
        (risk(places, with_one_more(with_one_less(counts, source.name), goal), needed), prices[goal], goal)
        for source in places
        if counts.get(source.name, 0) > 0
        for goal in reachable
        if goal != source.name
    ]
    left, _, goal = min(moves, default=(inf, UNKNOWN_PRICE, None))
    return goal if left < risk(places, counts, needed) - least_gain else None
