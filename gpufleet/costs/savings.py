"""Savings: spot compared with on-demand, and idle instances that were ended. Pure.

The end of an idle instance saves money until its pool launches the next one, or until a fixed horizon, whichever is
first. Ending prepaid capacity saves nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from gpufleet.costs.allocation import Charge, ChargeKind
from gpufleet.costs.report import By, Report
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType
from gpufleet.ledger.facts import Run
from gpufleet.prices.book import MissingPriceError, PriceBook

HORIZON: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """An instance that a watchdog ended because it was idle."""

    instance_id: str
    pool: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidedCost:
    """The saving of ending one instance."""

    stop: Stop
    until: datetime
    because: str
    amount: Decimal | None
    """In dollar-seconds. None: its price is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """The savings in a window."""

    spot: Decimal
    """Against on-demand, as far as both prices are known; in dollar-seconds, like all of these."""
    spot_by_pool: dict[str, Decimal]
    stops: Sequence[AvoidedCost]
    fallback: Decimal
    """The cost of on-demand in pools that have spot."""
    uncompared: tuple[str, ...] = ()
    """Spot capacity without one of the two prices: `spot` excludes it."""
    unpriced_fallback: tuple[str, ...] = ()
    """On-demand capacity without a price: `fallback` excludes it."""

    @property
    def stopped(self) -> Decimal:
        """The saving by ending idle instances; a lower bound if some of them have no price."""
        return money.total(one.amount for one in self.stops if one.amount is not None)

    @property
    def unpriced_stops(self) -> int:
        """Ended instances whose price is unknown."""
        return sum(one.amount is None for one in self.stops)


def savings(report: Report, stops: Sequence[Stop], runs: Sequence[Run], book: PriceBook) -> Savings:
    """The savings in the report's window. `runs`: all runs since its start, including launches after stops."""
    pools = report.groups[By.POOL]
    with_spot = {charge.pool for charge in report.charges if charge.capacity_type is CapacityType.SPOT}
    return Savings(
        spot=report.total.spot_saving,
        spot_by_pool={pool: figure.spot_saving for pool, figure in pools.items() if figure.spot_saving},
        stops=avoided(stops, runs, book, report.scope.until),
        fallback=money.total(
            charge.amount
            for charge in report.charges
            if charge.amount is not None and _is_fallback(charge, with_spot)
        ),
        uncompared=_names(
            charge
            for charge in report.charges
            if charge.capacity_type is CapacityType.SPOT and None in (charge.amount, charge.on_demand)
        ),
        unpriced_fallback=_names(
            charge for charge in report.charges if charge.amount is None and _is_fallback(charge, with_spot)
        ),
    )


def _names(charges: Iterable[Charge]) -> tuple[str, ...]:
    return tuple(sorted({charge.priced_as for charge in charges}))


def _is_fallback(charge: Charge, pools: set[str | None]) -> bool:
    is_fallback = charge.capacity_type in (CapacityType.ON_DEMAND, CapacityType.FLEX_START)
    return is_fallback and charge.kind is not ChargeKind.SHARED and charge.pool is not None and charge.pool in pools


def avoided(
    stops: Sequence[Stop], runs: Sequence[Run], book: PriceBook, until: datetime, horizon: timedelta = HORIZON
) -> list[AvoidedCost]:
    """The saving of each stop. A launch ends the saving of the pool's earliest stop that is still saving."""
    by_id = {run.instance_id: run for run in runs}
    launches: dict[str | None, list[datetime]] = {}
    for run in sorted(runs, key=lambda run: run.started_at):
        launches.setdefault(run.pool, []).append(run.started_at)
    found: list[AvoidedCost] = []
    for stop in sorted(stops, key=lambda stop: (stop.at, stop.instance_id)):
        run = by_id.get(stop.instance_id)
        if run is None:
            continue
        later = [at for at in launches.get(stop.pool, []) if at > stop.at]
        if later:
            launches[stop.pool].remove(later[0])
        ends = {
            "the next launch of the pool": later[0] if later else None,
            "horizon": stop.at + horizon,
            "now": until,
        }
        because, end = min(((why, at) for why, at in ends.items() if at is not None), key=lambda pair: pair[1])
        amount = money.ZERO if run.capacity_type is CapacityType.RESERVED else _price_of(run, book, stop.at, end)
        if run.capacity_type is CapacityType.RESERVED:
            because = "prepaid capacity: ending it saved nothing"
        found.append(AvoidedCost(stop=stop, until=end, because=because, amount=amount))
    return found


def _price_of(run: Run, book: PriceBook, start: datetime, end: datetime) -> Decimal | None:
    if start >= end:
        return money.ZERO
    sku = book.machine(run.cloud, run.machine_type, run.capacity_type, region=run.region, zone=run.zone)
    try:
        parts = book.over(sku, start, end)
    except MissingPriceError:
        return None
    return money.total(money.dollar_seconds(part.price.usd_per_hour, part.end - part.start) for part in parts)
