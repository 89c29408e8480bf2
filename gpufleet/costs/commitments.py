"""What people declare: shared resources, prices, Capacity Blocks, Savings Plans and CUDs. Pure.

The ledger keeps what was declared when (`gpufleet.costs.declarations`): a report of the past reads what held then.

Rules, each constant at every instant, so that sums over any partition of a window are equal:
- a *shared* resource of the environment is split over the pools by the declared weight (the most replicas that a pool
  may have), in nano-dollars per hour, the rest to the last pool; one that belongs to each instance goes with it;
- a *Capacity Block*'s upfront fee is spread evenly over its instances and its time;
- a *spend commitment* (Savings Plan, CUD) covers the oldest on-demand instances first, at the committed rate of their
  machine type; the one at the edge is covered in part, and what nobody uses is a row of its own.
AWS applies Savings Plans hour by hour to the usage with the highest saving; our order, age, is simpler and stated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final

from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Committed, Price, Rank
from gpufleet.ledger.facts import Run
from gpufleet.prices.book import PricedInterval

_DIVIDE: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)

PricePart = PricedInterval[Price | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCost:
    """Something beside the GPU instances that costs money by the hour."""

    name: str
    sku: str
    units: Decimal
    per_instance: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCommitment:
    """A Capacity Block: paid at once, for some instances and a time."""

    reservation: str
    instances: int
    upfront_usd: Decimal
    starts: datetime
    ends: datetime
    source: str
    as_of: datetime

    def price(self, machine_type: str, region: str) -> Price:
        """The fee per instance and hour, to the nano-dollar."""
        hours = _DIVIDE.divide(money.seconds(self.ends - self.starts), Decimal(money.SECONDS_PER_HOUR))
        rate = _DIVIDE.divide(self.upfront_usd, _DIVIDE.multiply(hours, Decimal(self.instances)))
        return Price(
            sku=f"block:{self.reservation}:{machine_type}",
            region=region,
            usd_per_hour=rate.quantize(money.NANO, context=_DIVIDE),
            source=f"{self.source}; {self.upfront_usd} USD upfront, spread over its time",
            as_of=self.as_of,
            valid_from=self.starts,
            rank=Rank.OVERRIDE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendCommitment:
    """A Savings Plan or CUD: so many USD an hour are paid, used or not."""

    name: str
    cloud: Cloud
    usd_per_hour: Decimal
    rates: Mapping[str, Decimal]
    """Machine type to the committed rate."""
    starts: datetime
    ends: datetime
    source: str
    as_of: datetime

    def price(self, sku: str, region: str, usd_per_hour: Decimal, words: str) -> Price:
        return Price(
            sku=sku,
            region=region,
            usd_per_hour=usd_per_hour,
            source=f"{self.source}; {words}",
            as_of=self.as_of,
            valid_from=self.starts,
            rank=Rank.OVERRIDE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredCosts:
    """All of it, as the fleet document says at one time."""

    shared: Sequence[SharedCost] = ()
    weights: Mapping[str, int] = field(default_factory=dict[str, int])
    """Pool to its weight in the split of what is shared."""
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Model to where it comes from (`hf://…`), by which it is compared with what others measured."""
    owners: Mapping[str, str] = field(default_factory=dict[str, str])
    split_by_team: frozenset[str] = frozenset()
    """Pools whose cost is split over teams by engine seconds."""
    blocks: Sequence[BlockCommitment] = ()
    spends: Sequence[SpendCommitment] = ()
    prices: Sequence[Price] = ()
    """Prices that people state."""
    gpu_active_below: Mapping[str, float] = field(default_factory=dict[str, float])
    """Pool to the share of its GPUs' time below which they count as idle, in reports and for the idle watchdog. What
    instances did is judged by it when it is read, so reports of the past keep the threshold of then."""


@dataclass(frozen=True, slots=True)
class CommitmentInterval:
    """A time in which the same runs share a spend commitment."""

    start: datetime
    end: datetime
    covered: Mapping[tuple[str, datetime], Decimal]
    """Run to the USD per hour that the commitment pays of it."""
    free: Decimal
    """USD per hour that nobody uses."""


class Coverage:
    """Which run each commitment pays. Built once over all runs of a window."""

    def __init__(self, declared: DeclaredCosts, runs: Iterable[Run]) -> None:
        self._blocks = {block.reservation: block for block in declared.blocks}
        known = sorted(runs, key=lambda run: (run.started_at, run.instance_id)) if declared.spends else []
        self.spends: list[tuple[SpendCommitment, list[CommitmentInterval]]] = []
        taken: set[str] = set()
        for spend in declared.spends:
            types = set(spend.rates) - taken
            taken |= types
            mine = [r for r in known if r.capacity_type is CapacityType.ON_DEMAND and r.machine_type in types]
            self.spends.append((spend, list(_stretches(spend, mine))))

    def block(self, reservation: str | None) -> BlockCommitment | None:
        """The declared Capacity Block of that id."""
        return self._blocks.get(reservation or "")

    def parts(self, run: Run, found: Sequence[PricePart]) -> Iterator[PricePart]:
        """The prices of a run, with what is prepaid at its own rate."""
        block = self.block(run.reservation)
        if block is not None:
            own = block.price(run.machine_type, run.region)
            for _, start, end in _cut(found, block.starts, block.ends, inside=True):
                yield PricedInterval(own, start, end)
            yield from _cut(found, block.starts, block.ends, inside=False)
            return
        rest = list(found)
        if run.capacity_type is CapacityType.ON_DEMAND:
            for spend, stretches in self.spends:
                if run.machine_type in spend.rates:
                    rest = list(_covered(run, rest, spend, stretches))
        yield from rest


def end_of(run: Run) -> datetime:
    """Until when a run is known to have cost money: of an end that no cloud dated, until it was last seen."""
    if run.ended_at is None:
        return run.last_seen_at
    return run.ended_at if run.end_exact else min(run.ended_at, run.last_seen_at)


def _stretches(spend: SpendCommitment, runs: Sequence[Run]) -> Iterator[CommitmentInterval]:
    cuts = {spend.starts, spend.ends}
    for run in runs:
        cuts |= {at for at in (run.started_at, end_of(run)) if spend.starts < at < spend.ends}
    ordered = sorted(cuts)
    for start, end in zip(ordered, ordered[1:], strict=False):
        left = spend.usd_per_hour
        covered: dict[tuple[str, datetime], Decimal] = {}
        for run in runs:
            if run.started_at <= start < end_of(run) and left > 0:
                pays = min(left, spend.rates[run.machine_type])
                covered[run.instance_id, run.started_at] = pays
                left -= pays
        yield CommitmentInterval(start, end, covered, left)


def _covered(
    run: Run, found: Sequence[PricePart], spend: SpendCommitment, stretches: Sequence[CommitmentInterval]
) -> Iterator[PricePart]:
    rate = spend.rates[run.machine_type]
    for price, start, end in found:
        at = start
        for stretch in stretches:
            begin, finish = max(stretch.start, at), min(stretch.end, end)
            pays = stretch.covered.get((run.instance_id, run.started_at))
            if begin >= finish or pays is None or price is None:
                continue
            if at < begin:
                yield PricedInterval(price, at, begin)
            yield PricedInterval(_mixed(spend, price, pays, rate), begin, finish)
            at = finish
        if at < end:
            yield PricedInterval(price, at, end)


def _mixed(spend: SpendCommitment, price: Price, pays: Decimal, rate: Decimal) -> Price:
    """The committed rate; for one at the edge the rest of its time at the usual price."""
    if pays == rate:
        share, usd, words = Decimal(1), rate, f"covered by {spend.name}"
    else:
        share = _DIVIDE.divide(pays, rate)
        usd = _DIVIDE.add(pays, _DIVIDE.multiply(price.usd_per_hour, 1 - share)).quantize(money.NANO, context=_DIVIDE)
        words = f"{share:.4%} covered by {spend.name}, the rest at list price"
    return replace(
        spend.price(price.sku, price.region, usd, words),
        list_usd_per_hour=price.usd_per_hour,
        committed=Committed(name=spend.name, usd_per_hour=pays, share=share),
    )


def _cut(found: Sequence[PricePart], starts: datetime, ends: datetime, *, inside: bool) -> Iterator[PricePart]:
    for price, start, end in found:
        if inside:
            pieces = [(max(start, starts), min(end, ends))]
        else:
            pieces = [(start, min(end, starts)), (max(start, ends), end)]
        yield from (PricedInterval(price, begin, finish) for begin, finish in pieces if begin < finish)


def shares(usd_per_hour: Decimal, weights: Mapping[str, int]) -> dict[str | None, tuple[Decimal, str]]:
    """Pool to its part of a rate, which add up to it; without pools all of it stays with none."""
    if not weights:
        return {None: (usd_per_hour, "no pools to split it over")}
    names = sorted(weights)
    given = [Decimal(weights[name]) for name in names]
    if not any(given):
        given = [Decimal(1)] * len(names)
    whole = sum(given, money.ZERO)
    parts = money.split(usd_per_hour, given)
    return {
        name: (part, f"{weight} of {whole} parts")
        for name, part, weight in zip(names, parts, given, strict=True)
        if part
    }
