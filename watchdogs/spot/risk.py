"""What a zone's past says about its future, and which placement is least likely to fall below its target. Pure.

A zone that fails takes all of its instances at once, so what counts is not how many losses there are but whether one
loss takes more than the spare. With one spare, five instances are safest either one to a zone or all in the zone
that fails least; two here and two there is worse than both. Zones of a region fail together more often than others.

The constants were chosen on generated markets (benchmarks/markets.py: nine zones in three regions, correlated
within the region), seeds 0 to 3, and checked on others; docs/watchdogs.md has the figures. None was fitted to a
recorded trace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from math import inf
from typing import Final, NamedTuple

from gpufleet.domain.activity import Activity, ActivityKind

# what a zone remembers

HALF_LIFE: Final = timedelta(hours=24)
"""After this time an hour counts half, since markets move by the day."""
PRIOR_LOSSES: Final = 1.0
PRIOR_HOURS: Final = 10.0
"""A zone that nobody knows is taken for one that loses us every ten hours."""
SAME_LOSS: Final = timedelta(minutes=1)
"""Losses of a zone this close together are one."""
TROUBLE: Final = 5.0
"""A zone that has just lost or refused us is this much likelier to lose us than its average says: trouble comes in
spells, and a run of capacity that has lasted goes on."""
TROUBLE_HALF_LIFE: Final = timedelta(hours=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneHistory:
    """Losses and hours of presence of a zone, faded, as of a moment."""

    at: datetime
    losses: float = 0.0
    hours: float = 0.0
    failed_at: datetime | None = None
    """When it last lost or refused us; None: never seen."""

    def passed(self, now: datetime, *, present: bool) -> "ZoneHistory":
        """The memory after some more time, with us there or not."""
        if now <= self.at:
            return self
        fading = 0.5 ** ((now - self.at) / HALF_LIFE)
        spent = (now - self.at) / timedelta(hours=1) if present else 0.0
        return replace(self, at=now, losses=self.losses * fading, hours=self.hours * fading + spent)

    def lost(self) -> "ZoneHistory":
        """The memory after a loss."""
        return replace(self, losses=self.losses + 1, failed_at=self.at)

    def refused(self) -> "ZoneHistory":
        """The memory after the zone had no room for one more."""
        return replace(self, failed_at=self.at)

    @property
    def losses_per_hour(self) -> float:
        """How often the zone is expected to lose us from now on."""
        usual = (self.losses + PRIOR_LOSSES) / (self.hours + PRIOR_HOURS)
        if self.failed_at is None:
            return usual
        return usual * (1 + TROUBLE * 0.5 ** ((self.at - self.failed_at) / TROUBLE_HALF_LIFE))


LOSSES: Final = frozenset({ActivityKind.PREEMPTED, ActivityKind.ENDED_UNSTATED})
"""Ends that a spot zone is remembered for. Of an end that nobody explains (EC2 forgets an instance after an hour) the
cloud is the likeliest cause. To take a person's end for a loss makes a zone look riskier for a day; to take a loss
for a person's end puts instances where they are lost."""
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
"""By how many instances a zone has more of us after it."""


def recall(events: Sequence[Activity], present_since: Sequence[datetime], now: datetime) -> ZoneHistory:
    """The memory of a zone from its group's activities (oldest first) and from who is there now."""
    edges = [(event.at, event.kind) for event in events if event.kind in _CHANGES]
    launched = {at for at, kind in edges if kind is ActivityKind.LAUNCHED}
    begun = min((edges[0][0] if edges else now), *(present_since or (now,)))
    # who is there but whose launch lies before the first activity that we know
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


# what a placement risks

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


class ZonePlacement(NamedTuple):
    """A zone, as the arithmetic wants it."""

    name: str
    region: str
    losses_per_hour: float
    usd_per_hour: Decimal = UNKNOWN_PRICE
    """Of one instance."""


Counts = Mapping[str, int]
"""Instances by place."""


def risk(places: Sequence[ZonePlacement], counts: Counts, needed: int) -> float:
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


def crowding(places: Sequence[ZonePlacement], counts: Counts, spare: int) -> float:
    """The risk of a placement that is still being filled: what is more than the spare in one place."""
    there = [(place.losses_per_hour, counts.get(place.name, 0)) for place in places]
    return sum(rate * ((1 + DEPTH * n if n > spare else 0) + 5 * SINGLE * n) for rate, n in there)


def best_addition(
    able: Sequence[ZonePlacement], places: Sequence[ZonePlacement], counts: Counts, needed: int, spare: int
) -> str | None:
    """Which of those that are able one more does most good in, beside what all places hold: the first of equals.

    None: nowhere to go.
    """
    filled = sum(counts.values()) + 1 >= needed

    def badness(place: ZonePlacement) -> float:
        after = with_one_more(counts, place.name)
        # what the others hold is the same wherever it goes
        return risk(places, after, needed) if filled else crowding(able, after, spare)

    return min(able, key=badness).name if able else None


def best_removal(places: Sequence[ZonePlacement], counts: Counts, needed: int) -> str:
    """Where one less does least harm: the dearest of equals."""
    held = [place for place in places if counts.get(place.name, 0) > 0]
    return min(
        held, key=lambda p: (risk(places, with_one_less(counts, p.name), needed), -p.usd_per_hour, p.name)
    ).name


def best_move(
    places: Sequence[ZonePlacement], counts: Counts, needed: int, reachable: Sequence[str], least_gain: float
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
