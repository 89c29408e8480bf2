"""Estimates the loss rate of zones from their history, and finds the placement with the lowest risk. Pure.

The risk is that ready instances fall below the target. A zone that fails takes all of its instances at once, so what
matters is whether one loss exceeds the spare. With one spare, five instances are safest either one per zone or all in
the zone that fails least; two per zone is worse than both. Zones of one region fail together more often than others.

The constants were chosen on generated markets (benchmarks/markets.py: nine zones in three regions, correlated
within the region), seeds 0 to 3, and checked on others; docs/watchdog-defaults.md has the figures. None was
fitted to a recorded trace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from math import inf
from typing import Final, NamedTuple

from gpufleet.domain.activity import Activity, ActivityKind

# history of a zone

HALF_LIFE: Final = timedelta(hours=24)
"""After this time an observation counts half: spot markets change within days."""
PRIOR_LOSSES: Final = 1.0
PRIOR_HOURS: Final = 10.0
"""Prior: a zone without history counts as one with a loss every ten hours."""
SAME_LOSS: Final = timedelta(minutes=1)
"""Losses of a zone this close together count as one."""
TROUBLE: Final = 5.0
"""Increase of the loss rate right after a loss or refusal, relative to the average of the zone: shortages come in
clusters."""
TROUBLE_HALF_LIFE: Final = timedelta(hours=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneHistory:
    """Losses and instance hours of a zone at a time, with exponential decay."""

    at: datetime
    losses: float = 0.0
    hours: float = 0.0
    failed_at: datetime | None = None
    """Time of the last loss or refusal; None: none known."""

    def passed(self, now: datetime, *, present: bool) -> "ZoneHistory":
        """The history at a later time. `present`: whether instances ran there meanwhile."""
        if now <= self.at:
            return self
        fading = 0.5 ** ((now - self.at) / HALF_LIFE)
        spent = (now - self.at) / timedelta(hours=1) if present else 0.0
        return replace(self, at=now, losses=self.losses * fading, hours=self.hours * fading + spent)

    def lost(self) -> "ZoneHistory":
        """The history after a loss."""
        return replace(self, losses=self.losses + 1, failed_at=self.at)

    def refused(self) -> "ZoneHistory":
        """The history after the zone had no capacity for one more."""
        return replace(self, failed_at=self.at)

    @property
    def losses_per_hour(self) -> float:
        """Expected losses per hour."""
        usual = (self.losses + PRIOR_LOSSES) / (self.hours + PRIOR_HOURS)
        if self.failed_at is None:
            return usual
        return usual * (1 + TROUBLE * 0.5 ** ((self.at - self.failed_at) / TROUBLE_HALF_LIFE))


LOSSES: Final = frozenset({ActivityKind.PREEMPTED, ActivityKind.ENDED_UNSTATED})
"""Ends that count as losses of a spot zone. The most likely cause of an unstated end is the cloud (EC2 deletes the
description of an instance after an hour). If an end by a person counts as a loss, the zone looks riskier for a day.
If a loss does not count, instances are placed where they are lost."""
_CHANGES: Final = {
    ActivityKind.LAUNCHED: 1,
    ActivityKind.PREEMPTED: -1,
    ActivityKind.ENDED: -1,
    ActivityKind.ENDED_BY_PERSON: -1,
    ActivityKind.ENDED_UNSTATED: -1,
    ActivityKind.UNHEALTHY: -1,
    ActivityKind.FAILED_BOOT: -1,
    ActivityKind.NO_CAPACITY: 0,
}
"""Change of the number of instances in the zone by each kind of activity."""


def recall(events: Sequence[Activity], present_since: Sequence[datetime], now: datetime) -> ZoneHistory:
    """The history of a zone, from the activities of its group (oldest first) and its current instances."""
    edges = [(event.at, event.kind) for event in events if event.kind in _CHANGES]
    launched = {at for at, kind in edges if kind is ActivityKind.LAUNCHED}
    begun = min((edges[0][0] if edges else now), *(present_since or (now,)))
    # instances launched before the first known activity
    known = [at for at in present_since if all(abs(at - there) > SAME_LOSS for there in launched)]
    edges += [(at, ActivityKind.LAUNCHED) for at in known]
    memory, there, last_loss = ZoneHistory(at=begun), 0, None
    for at, kind in sorted(edges, key=lambda edge: edge[0]):
        memory = memory.passed(at, present=there > 0)
        there = max(0, there + _CHANGES[kind])
        if kind is ActivityKind.NO_CAPACITY:
            memory = memory.refused()
        elif kind in LOSSES and (last_loss is None or at - last_loss > SAME_LOSS):
            memory, last_loss = memory.lost(), at
    return memory.passed(now, present=there > 0 or bool(present_since))


# risk of a placement

SAME_REGION_LOSS_SHARE: Final = 0.3
"""Of two zones of a region: share of the losses of the safer one that coincide with losses of the other."""
DEPTH: Final = 0.1
"""Added weight of each further instance lost at once."""
SINGLE: Final = 0.01
"""Weight of a loss that the spare covers: its cost is one boot."""
SOON_AFTER: Final = 0.03
"""Share of an hour in which the spare is used up after a loss: about one boot."""

UNKNOWN_PRICE: Final = Decimal("Infinity")
"""An unknown price counts as the most expensive."""


class ZonePlacement(NamedTuple):
    """A zone as an input of the risk functions."""

    name: str
    region: str
    losses_per_hour: float
    usd_per_hour: Decimal = UNKNOWN_PRICE
    """Price of one instance."""


Counts = Mapping[str, int]
"""Instances by zone placement."""


def risk(places: Sequence[ZonePlacement], counts: Counts, needed: int) -> float:
    """Expected drops below `needed` per hour. With fewer instances than needed: as with a spare of 0."""
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
                total += SAME_REGION_LOSS_SHARE * min(rate, other.losses_per_hour)
    return total


def region_of(zone: str) -> str:
    """`us-east-1a` -> `us-east-1`, `us-central1-b` -> `us-central1`."""
    return zone[:-2] if zone[-2:-1] == "-" else zone[:-1]


def with_one_more(counts: Counts, place: str) -> dict[str, int]:
    return {**counts, place: counts.get(place, 0) + 1}


def with_one_less(counts: Counts, place: str) -> dict[str, int]:
    return {**counts, place: counts.get(place, 0) - 1}


def crowding(places: Sequence[ZonePlacement], counts: Counts, spare: int) -> float:
    """The risk of an incomplete placement: instances of one zone beyond the spare count."""
    there = [(place.losses_per_hour, counts.get(place.name, 0)) for place in places]
    return sum(rate * ((1 + DEPTH * n if n > spare else 0) + 5 * SINGLE * n) for rate, n in there)


def best_addition(
    able: Sequence[ZonePlacement], places: Sequence[ZonePlacement], counts: Counts, needed: int, spare: int
) -> str | None:
    """The zone of `able` where one more instance lowers the risk most; of equals the first.

    `places`: all zones that hold instances. None: `able` is empty.
    """
    filled = sum(counts.values()) + 1 >= needed

    def cost_of_placement(place: ZonePlacement) -> float:
        after = with_one_more(counts, place.name)
        # the risk of the other zones is the same for each choice
        return risk(places, after, needed) if filled else crowding(able, after, spare)

    return min(able, key=cost_of_placement).name if able else None


def best_removal(places: Sequence[ZonePlacement], counts: Counts, needed: int) -> str:
    """The zone where one instance less adds the least risk; of equals the most expensive."""
    held = [place for place in places if counts.get(place.name, 0) > 0]
    return min(
        held, key=lambda p: (risk(places, with_one_less(counts, p.name), needed), -p.usd_per_hour, p.name)
    ).name


def best_move(
    places: Sequence[ZonePlacement], counts: Counts, needed: int, reachable: Sequence[str], min_gain: float
) -> str | None:
    """The zone to which a move of one instance lowers the risk most; of equals the cheapest.

    None: no move lowers it by `min_gain`.
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
    return goal if left < risk(places, counts, needed) - min_gain else None
