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
from functools import cache
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
    total_there = sum(counts.values())
    spare = total_there - needed if total_there > needed else 0
    held = [(p.losses_per_hour, n, p.region) for p in places if (n := counts.get(p.name, 0)) > 0]
    every = 0.0
    for rate, _, _ in held:
        every += rate
    total = 0.0
    for index, (rate, count, region) in enumerate(held, start=1):
        if count > spare:
            total += rate * (1 + DEPTH * (count - spare))
            continue
        total += rate * (SINGLE + SOON_AFTER * (every - rate))
        for other_rate, others, other_region in held[index:]:
            if other_region == region and others <= spare < count + others:
                total += TOGETHER * (rate if rate < other_rate else other_rate)
    return total


@cache
def region_of(zone: str) -> str:
    """`us-east-1a` -> `us-east-1`, `us-central1-b` -> `us-central1`."""
    return zone[:-2] if zone[-2:-1] == "-" else zone[:-1]


def with_one_more(counts: Counts, place: str) -> dict[str, int]:
    return {**counts, place: counts.get(place, 0) + 1}


def with_one_less(counts: Counts, place: str) -> dict[str, int]:
    return {**counts, place: counts.get(place, 0) - 1}


def crowding(place: Place, count: int, spare: int) -> float:
    """A place's part of the risk of a placement that is still being filled: what is more than the spare there."""
    return place.losses_per_hour * ((1 + DEPTH * count if count > spare else 0) + 5 * SINGLE * count)


def best_addition(
    able: Sequence[Place], places: Sequence[Place], counts: Counts, needed: int, spare: int
) -> str | None:
    """Which of those that are able one more does most good in, beside what all places hold: the first of equals.

    None: nowhere to go.
    """
    if len(able) == 1:
        return able[0].name
    filled = sum(counts.values()) + 1 >= needed
    after = dict(counts)
    # what the others hold is the same wherever it goes
    parts = [] if filled else [crowding(place, counts.get(place.name, 0), spare) for place in able]
    best: tuple[float, str] | None = None
    for index, place in enumerate(able):
        there = counts.get(place.name, 0)
        if filled:
            after[place.name] = there + 1
            badness = risk(places, after, needed)
            after[place.name] = there
        else:
            before, parts[index] = parts[index], crowding(place, there + 1, spare)
            badness = sum(parts)
            parts[index] = before
        if best is None or badness < best[0]:
            best = (badness, place.name)
    return None if best is None else best[1]


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
    now = risk(places, counts, needed)
    if now <= least_gain:
        return None  # there is not that much to spare
    best: tuple[float, Decimal, str] | None = None
    prices = {place.name: place.usd_per_hour for place in places}
    after = dict(counts)
    for source in [place.name for place in places if counts.get(place.name, 0) > 0]:
        after[source] -= 1
        for goal in reachable:
            if goal == source:
                continue
            after[goal] = after.get(goal, 0) + 1
            left = risk(places, after, needed)
            after[goal] -= 1
            if left < now - least_gain and (best is None or (left, prices[goal], goal) < best):
                best = (left, prices[goal], goal)
        after[source] += 1
    return None if best is None else best[-1]
