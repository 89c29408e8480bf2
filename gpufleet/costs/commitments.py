"""Declared costs: shared resources, prices, Capacity Blocks, Savings Plans and CUDs. Pure.

The ledger stores each declaration with its time (`gpufleet.costs.declarations`): a report of the past uses the
declarations of that time.

Rules, each constant at every instant, so that sums over any partition of a window are equal:
- a *shared* resource of the environment is split over the pools by the declared weight (the most replicas that a pool
  may have), in nano-dollars per hour, the remainder to the last pool; one of a single instance is charged with it;
- a *Capacity Block*'s upfront fee is spread evenly over its instances and its time;
- a *spend commitment* (Savings Plan, CUD) covers the oldest on-demand instances first, at the committed rate of their
  machine type; the last one may be covered in part, and the unused part is a separate row.
AWS applies Savings Plans hour by hour to the usage with the highest saving. Ordering by age is simpler.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final

from gpufleet.domain import money
from gpufleet.domain.energy import GridFactor
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Committed, Price, Rank
from gpufleet.ledger.facts import Run
from gpufleet.prices.book import PricedInterval

_DIVIDE: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)

PricePart = PricedInterval[Price | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCost:
    """A resource other than a GPU instance that is charged per hour."""

    name: str
    sku: str
    units: Decimal
    per_instance: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCommitment:
    """A Capacity Block: an upfront fee for a number of instances and a time."""

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
    """A Savings Plan or CUD: a fixed rate in USD per hour is paid, used or not."""

    name: str
    cloud: Cloud
    usd_per_hour: Decimal
    rates: Mapping[str, Decimal]
    """Machine type to the committed rate."""
    starts: datetime
    ends: datetime
    source: str
    as_of: datetime

    def price(self, sku: str, region: str, usd_per_hour: Decimal, description: str) -> Price:
        return Price(
            sku=sku,
            region=region,
            usd_per_hour=usd_per_hour,
            source=f"{self.source}; {description}",
            as_of=self.as_of,
            valid_from=self.starts,
            rank=Rank.OVERRIDE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredCosts:
    """All declared costs of the fleet document at one time."""

    shared: Sequence[SharedCost] = ()
    weights: Mapping[str, int] = field(default_factory=dict[str, int])
    """Pool to its weight in the split of shared resources."""
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Model to its source (`hf://…`), which selects the reference measurement."""
    engines: Mapping[str, str] = field(default_factory=dict[str, str])
    """Pool to the code of its engine."""
    owners: Mapping[str, str] = field(default_factory=dict[str, str])
    split_by_team: frozenset[str] = frozenset()
    """Pools whose cost is split over teams by engine seconds."""
    adapters: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Pool to the names of its LoRA adapters in requests; only pools with adapters."""
    blocks: Sequence[BlockCommitment] = ()
    spends: Sequence[SpendCommitment] = ()
    prices: Sequence[Price] = ()
    """Prices stated in the settings."""
    carbon: GridFactor | None = None
    """The stated grid factor; None: CO2e is unknown."""
    gpu_active_below: Mapping[str, float] = field(default_factory=dict[str, float])
    """Pool to the GPU activity below which a GPU counts as idle, in reports and for the idle watchdog. Passes
    apply it when they read activity, so reports of the past keep the threshold of their time."""


@dataclass(frozen=True, slots=True)
class CommitmentInterval:
    """A time in which a spend commitment covers the same runs."""

    start: datetime
    end: datetime
    covered: Mapping[tuple[str, datetime], Decimal]
    """Run to the USD per hour that the commitment pays of it."""
    free: Decimal
    """USD per hour that no run uses."""


class Coverage:
    """Which runs each commitment covers. Built once over all runs of a window."""

    def __init__(self, declared: DeclaredCosts, runs: Iterable[Run]) -> None:
        self._blocks = {block.reservation: block for block in declared.blocks}
        known = sorted(runs, key=lambda run: (run.started_at, run.instance_id)) if declared.spends else []
        self.spends: list[tuple[SpendCommitment, list[CommitmentInterval]]] = []
        taken: set[str] = set()
        for spend in declared.spends:
            types = set(spend.rates) - taken
            taken |= types
            mine = [r for r in known if r.capacity_type is CapacityType.ON_DEMAND and r.machine_type in types]
            self.spends.append((spend, list(_intervals(spend, mine))))

    def block(self, reservation: str | None) -> BlockCommitment | None:
        """The declared Capacity Block of that id."""
        return self._blocks.get(reservation or "")

    def parts(self, run: Run, found: Sequence[PricePart]) -> Iterator[PricePart]:
        """The prices of a run, with prepaid parts at their committed rate."""
        block = self.block(run.reservation)
        if block is not None:
            own = block.price(run.machine_type, run.region)
            for _, start, end in _cut(found, block.starts, block.ends, inside=True):
                yield PricedInterval(own, start, end)
            yield from _cut(found, block.starts, block.ends, inside=False)
            return
        rest = list(found)
        if run.capacity_type is CapacityType.ON_DEMAND:
            for spend, intervals in self.spends:
                if run.machine_type in spend.rates:
                    rest = list(_covered(run, rest, spend, intervals))
        yield from rest


def end_of(run: Run) -> datetime:
    """When a run's cost ends: at its end; if the cloud does not date the end, when the run was last seen."""
    if run.ended_at is None:
        return run.last_seen_at
    return run.ended_at if run.end_exact else min(run.ended_at, run.last_seen_at)


def _intervals(spend: SpendCommitment, runs: Sequence[Run]) -> Iterator[CommitmentInterval]:
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
    run: Run, found: Sequence[PricePart], spend: SpendCommitment, intervals: Sequence[CommitmentInterval]
) -> Iterator[PricePart]:
    rate = spend.rates[run.machine_type]
    for price, start, end in found:
        at = start
        for interval in intervals:
            begin, finish = max(interval.start, at), min(interval.end, end)
            pays = interval.covered.get((run.instance_id, run.started_at))
            if begin >= finish or pays is None or price is None:
                continue
            if at < begin:
                yield PricedInterval(price, at, begin)
            yield PricedInterval(_mixed(spend, price, pays, rate), begin, finish)
            at = finish
        if at < end:
            yield PricedInterval(price, at, end)


def _mixed(spend: SpendCommitment, price: Price, pays: Decimal, rate: Decimal) -> Price:
    """The committed rate; for a run that is covered in part, the remaining share at its list price."""
    if pays == rate:
        share, usd, description = Decimal(1), rate, f"covered by {spend.name}"
    else:
        share = _DIVIDE.divide(pays, rate)
        usd = _DIVIDE.add(pays, _DIVIDE.multiply(price.usd_per_hour, 1 - share)).quantize(money.NANO, context=_DIVIDE)
        description = f"{share:.4%} covered by {spend.name}, the rest at list price"
    return replace(
        spend.price(price.sku, price.region, usd, description),
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
    """Pool to its part of a rate and the reason. The parts add up to the rate; without pools, None has all of it."""
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
