"""The cost of a preview: hours × price at the lowest, the desired and the highest size of each pool.

- reserved capacity is paid whether it is used or not, so its cost is the same at every size;
- spot is a range: p5 to p95 of its past prices, weighted by time, over the machine types that it may start;
- the highest size is the pool's `max`, with as much on-demand fallback for spot as the pool allows.
"""

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.money import ZERO, total
from gpufleet.domain.prices import Price
from gpufleet.prices.book import MissingPriceError, PriceBook, Sku
from gpufleet.prices.plan import blocks
from gpufleet.prices.plan.extras import Extra, extras, root_disk_units
from gpufleet.prices.plan.groups import PlannedGroup, PlannedReservation, groups, reservations
from gpufleet.prices.plan.lines import CostLine, Priced
from gpufleet.prices.plan.preview import PlannedResource, Preview
from gpufleet.prices.plan.slices import SlicePrice, slice_prices
from gpufleet.settings import reading
from gpufleet.settings.environment import PoolSettings
from gpufleet.settings.problems import SettingsError
from gpufleet.settings.reading import Parts

HISTORY: Final = timedelta(days=30)
SHARED: Final = "(shared)"


class PlanCostError(ValueError):
    """The plan cannot be priced. Each of `problems` names a resource and the remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """The fallback of a pool, and its cost, when all its spot capacity is lost."""

    pool: str
    kind: CapacityType
    """On-demand or flex-start."""
    on_demand: int
    missing: int
    """Replicas of the target that have no fallback."""
    usd_per_hour: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCost:
    """The cost of a set of resources."""

    lines: tuple[CostLine, ...]
    fallbacks: tuple[Fallback, ...]
    by_use: tuple[str, ...]
    """Types of resources that are billed by use, which a plan cannot know."""
    slices: tuple[SlicePrice, ...] = ()
    """Prices of slices, of pools whose GPUs are divided."""

    @property
    def usd_per_hour(self) -> Decimal:
        return total(line.usd_per_hour for line in self.lines)

    @property
    def usd_per_hour_low(self) -> Decimal:
        return total(line.usd_per_hour_low for line in self.lines)

    @property
    def usd_per_hour_high(self) -> Decimal:
        return total(line.usd_per_hour_high for line in self.lines)

    @property
    def usd_per_month(self) -> Decimal:
        """At the desired size, for 730 hours, or for the hours that capacity was bought for."""
        return total(line.usd_per_month for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The prices of one cloud and region."""

    book: PriceBook
    cloud: Cloud
    region: str
    now: datetime

    def machine(self, machine_type: str, capacity_type: CapacityType, zone: str | None) -> Priced:
        """Raises MissingPriceError."""
        sku = self.book.machine(self.cloud, machine_type, capacity_type, region=self.region, zone=zone)
        return self._priced(sku)

    def named(self, name: str) -> Priced:
        """Raises MissingPriceError."""
        return self._priced(Sku(name=name, region=self.region))

    def _priced(self, sku: Sku) -> Priced:
        price = self.book.at(sku, self.now)
        low, high = price.usd_per_hour, price.usd_per_hour
        if sku.name.endswith(f":{CapacityType.SPOT}"):
            low, high = self._range(sku, price)
        return Priced(usd_per_hour=price.usd_per_hour, low=low, high=high, prices=(price,))

    def _range(self, sku: Sku, price: Price) -> tuple[Decimal, Decimal]:
        try:
            history = self.book.over(sku, self.now - HISTORY, self.now)
        except MissingPriceError:
            return price.usd_per_hour, price.usd_per_hour
        spans = sorted((part.price.usd_per_hour, (part.end - part.start).total_seconds()) for part in history)
        # the current price applies even outside the usual range
        return min(_quantile(spans, 0.05), price.usd_per_hour), max(_quantile(spans, 0.95), price.usd_per_hour)


def _quantile(spans: Sequence[tuple[Decimal, float]], share: float) -> Decimal:
    goal, reached = share * sum(length for _, length in spans), 0.0
    for value, length in spans:
        reached += length
        if reached >= goal:
            return value
    return spans[-1][0]


def parts_of(config: Mapping[str, Any]) -> Parts:
    """The settings in a preview's configuration. Raises PlanCostError."""
    try:
        found = reading.parts(config)
    except SettingsError as error:
        raise PlanCostError([f"this is not a plan of gpu-fleet: {problem}" for problem in error.problems]) from error
    if found.problems:
        raise PlanCostError([str(problem) for problem in found.problems])
    return found


def plan_cost(preview: Preview, declared: Sequence[PlannedResource], rates: Rates) -> PlanCost:
    """The cost of `declared` (the preview's `before` or `after`). PlanCostError names resources without a price."""
    settings = parts_of(preview.config)
    pools, terms = {pool.name: pool for pool in settings.pools}, blocks.terms(settings)
    with _as_the_program_writes():
        planned, paid = list(groups(declared)), list(reservations(declared))
        priced, by_use, unknown = extras(declared)
    problems: list[str] = []
    lines: list[CostLine] = []
    fallbacks: list[Fallback] = []
    by_pool: dict[str, list[PlannedGroup]] = defaultdict(list)
    for group in planned:
        if term := terms.get(group.reservation or ""):
            lines += _block(group, term, rates, problems)
        else:
            by_pool[group.pool].append(group)
    held: dict[str, list[PlannedReservation]] = defaultdict(list)
    for reservation in paid:
        held[reservation.pool].append(reservation)
    for pool in sorted(by_pool.keys() | held.keys()):
        if pool not in pools:
            problems.append(f"pool {pool}: the settings do not have this pool; add it, or create the preview again")
            continue
        of_pool = _Pool(pools[pool], by_pool[pool], held[pool], rates, problems)
        lines += of_pool.lines()
        fallbacks += of_pool.fallback()
    lines += _extra_lines(priced, rates, problems)
    lines += _root_disks(declared, lines, rates, problems)
    problems += [
        f"{resource.name}: no price is defined for the type {resource.type};"
        " add the type to gpufleet/prices/plan/extras.py"
        for resource in unknown
    ]
    if problems:
        raise PlanCostError(problems)
    names = tuple(sorted({resource.type for resource in by_use}))
    return PlanCost(
        lines=tuple(lines),
        fallbacks=tuple(fallbacks),
        by_use=names,
        slices=tuple(dict.fromkeys(slice_prices(pools, lines, rates.cloud))),
    )


@contextmanager
def _as_the_program_writes() -> Generator[None]:
    """Raises PlanCostError if a resource lacks a field that the Pulumi program always writes (an edited preview)."""
    try:
        yield
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        message = (
            "a resource of the preview was not written by the Pulumi program: a field is missing or has the wrong"
            " type; create the preview with `pulumi preview --json --show-sames`"
        )
        raise PlanCostError((message,)) from error


def _block(group: PlannedGroup, term: blocks.BlockTerm, rates: Rates, problems: list[str]) -> Iterator[CostLine]:
    """The cost of a block, which is paid whether it is used or not. It does not count for the size of its pool."""
    if term.block.ends <= rates.now:
        return
    sku = term.sku(rates.cloud)
    try:
        price = term.declared(sku, rates.region) or rates.named(sku)
    except MissingPriceError:
        problems.append(
            f"{group.name}: the block {term.reservation} has no price: declare its fee under commitments.blocks of"
            f" the settings, or state {sku} under prices, with source and as_of"
        )
        return
    except (ValueError, ArithmeticError) as error:
        problems.append(f"{group.name}: the fee of the block {term.reservation}: {error}")
        return
    yield term.line(group.pool, sku, price)


def _extra_lines(priced: Sequence[Extra], rates: Rates, problems: list[str]) -> Iterator[CostLine]:
    for extra in priced:
        try:
            price = rates.named(extra.sku)
        except MissingPriceError as error:
            problems.append(f"{extra.name}: {error}")
            continue
        yield CostLine(
            pool=SHARED,
            what=f"{extra.what} {extra.name}",
            sku=extra.sku,
            least=extra.units,
            desired=extra.units,
            most=extra.units,
            price=price,
        )


def _root_disks(
    declared: Sequence[PlannedResource], machines: Sequence[CostLine], rates: Rates, problems: list[str]
) -> list[CostLine]:
    """The root disks of all instances, with the sizes of the largest launch template."""
    units: dict[str, Decimal] = {}
    for template in declared:
        for sku, amount in root_disk_units(template):
            units[sku] = max(units.get(sku, ZERO), amount)
    instances = [line for line in machines if line.what in set(CapacityType)]
    found: list[CostLine] = []
    for sku, amount in units.items():
        try:
            price = rates.named(sku)
        except MissingPriceError as error:
            problems.append(f"root disks: {error}")
            continue
        for hours in sorted({line.hours_per_month for line in instances}, reverse=True):
            of_them = [line for line in instances if line.hours_per_month == hours]
            found.append(
                CostLine(
                    pool=SHARED,
                    what="root disks",
                    sku=sku,
                    least=amount * total(line.least for line in of_them),
                    desired=amount * total(line.desired for line in of_them),
                    most=amount * total(line.most for line in of_them),
                    price=price,
                    hours_per_month=hours,
                )
            )
    return found


class _Pool:
    """The rows of one pool."""

    def __init__(
        self,
        settings: PoolSettings,
        of_pool: Sequence[PlannedGroup],
        held: Sequence[PlannedReservation],
        rates: Rates,
        problems: list[str],
    ) -> None:
        self._settings, self._groups, self._held = settings, of_pool, held
        self._rates, self._problems = rates, problems
        self._reserved = sum(reservation.count for reservation in held) or sum(
            group.desired for group in of_pool if group.capacity_type is CapacityType.RESERVED
        )

        fallback = settings.capacity.fallback
        self._fallback_max = fallback.max if fallback else 0

    def lines(self) -> Iterator[CostLine]:
        yield from self._prepaid()
        limits = self._settings
        on_demand_most = max(min(self._fallback_max, limits.max - self._reserved), 0)
        spot, on_demand = self._of(CapacityType.SPOT), self._fallback_groups()
        least = max(limits.min - self._reserved, 0)
        if spot:
            most = max(limits.max + limits.spare - self._reserved - on_demand_most, 0)
            yield from self._line(spot, least, most)
        if on_demand:
            yield from self._line(on_demand, 0 if spot else least, on_demand_most)

    def _prepaid(self) -> Iterator[CostLine]:
        used = sum(group.desired for group in self._of(CapacityType.RESERVED))
        bought = [(r.name, r.pool, r.machine_type, r.count, r.zone) for r in self._held] or [
            (g.name, g.pool, g.machine_types[0], g.desired, g.zone)
            for g in self._of(CapacityType.RESERVED)
            if g.machine_types
        ]
        for name, pool, machine_type, count, zone in bought:
            price = self._price(name, machine_type, CapacityType.RESERVED, zone)
            if price is not None:
                units = Decimal(count)
                note = f"{min(used, count)} used, {max(count - used, 0)} unused"
                used = max(used - count, 0)
                yield CostLine(
                    pool=pool,
                    what=CapacityType.RESERVED.value,
                    sku=price.prices[0].sku,
                    least=units,
                    desired=units,
                    most=units,
                    price=price,
                    note=note,
                )

    def fallback(self) -> Iterator[Fallback]:
        """The fallback when all spot is lost at once."""
        spot, on_demand = self._of(CapacityType.SPOT), self._fallback_groups()
        if not spot:
            return
        wanted = max(self._settings.target - self._reserved, 0)
        fallback_count = min(wanted, self._fallback_max) if on_demand else 0
        price = self._mixed(on_demand) if fallback_count else None
        cost = fallback_count * price.usd_per_hour if price else ZERO
        kind = on_demand[0].capacity_type if on_demand else CapacityType.ON_DEMAND
        missing = wanted - fallback_count
        yield Fallback(pool=spot[0].pool, kind=kind, on_demand=fallback_count, missing=missing, usd_per_hour=cost)

    def _fallback_groups(self) -> list[PlannedGroup]:
        """The groups that replace lost spot: on-demand, or flex-start if the pool has that instead."""
        return self._of(CapacityType.ON_DEMAND) or self._of(CapacityType.FLEX_START)

    def _of(self, kind: CapacityType) -> list[PlannedGroup]:
        return [group for group in self._groups if group.capacity_type is kind]

    def _line(self, of_kind: Sequence[PlannedGroup], least: int, most: int) -> Iterator[CostLine]:
        price = self._mixed(of_kind)
        if price is not None:
            yield CostLine(
                pool=of_kind[0].pool,
                what=of_kind[0].capacity_type.value,
                sku=", ".join(dict.fromkeys(p.sku for p in price.prices)),
                least=Decimal(least),
                desired=Decimal(sum(group.desired for group in of_kind)),
                most=Decimal(most),
                price=price,
            )

    def _mixed(self, of_kind: Sequence[PlannedGroup]) -> Priced | None:
        """The price of a capacity type: the current one of the first choice, and the range of all machine types."""
        found = [
            price
            for group in of_kind
            for machine in group.machine_types
            if (price := self._price(group.name, machine, group.capacity_type, group.zone)) is not None
        ]
        if not found:
            self._problems.extend(f"{g.name}: has no machine type" for g in of_kind if not g.machine_types)
            return None
        return Priced(
            usd_per_hour=found[0].usd_per_hour,
            low=min(price.low for price in found),
            high=max(price.high for price in found),
            prices=tuple(p for price in found for p in price.prices),
        )

    def _price(self, name: str, machine: str, kind: CapacityType, zone: str | None) -> Priced | None:
        try:
            return self._rates.machine(machine, kind, zone)
        except MissingPriceError as error:
            self._problems.append(f"{name}: {error}")
            return None
