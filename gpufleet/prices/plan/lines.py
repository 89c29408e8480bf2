"""A row of a plan's cost: a number of units at a price."""

from dataclasses import dataclass
from decimal import Decimal

from gpufleet.domain.money import HOURS_PER_MONTH
from gpufleet.domain.prices import Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A price for planning: its current value and its past bounds."""

    usd_per_hour: Decimal
    low: Decimal
    high: Decimal
    prices: tuple[Price, ...]
    """The sources of the figures."""

    @property
    def unverified(self) -> bool:
        return any(price.unverified for price in self.prices)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """One row: a number of units, at the lowest, the desired and the highest size, and their price."""

    pool: str
    what: str
    """A capacity type, or the kind of the extra."""
    sku: str
    least: Decimal
    desired: Decimal
    most: Decimal
    price: Priced
    note: str = ""
    hours_per_month: Decimal = Decimal(HOURS_PER_MONTH)
    """Less for capacity that was bought for a shorter time."""

    @property
    def usd_per_hour(self) -> Decimal:
        return self.desired * self.price.usd_per_hour

    @property
    def usd_per_month(self) -> Decimal:
        return self.usd_per_hour * self.hours_per_month

    @property
    def usd_per_hour_low(self) -> Decimal:
        return self.least * self.price.low

    @property
    def usd_per_hour_high(self) -> Decimal:
        return self.most * self.price.high
