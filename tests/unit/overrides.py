"""Prices that people state, at any instant."""

from datetime import datetime
from decimal import Decimal

from gpufleet.domain.prices import Price
from gpufleet.prices.book import stated_price
from gpufleet.settings.document.money import PriceOverride


def override(sku: str, usd: str, as_of: datetime, *, unverified: bool = False) -> Price:
    """What the settings of a fleet in us-east-1 state."""
    entry = PriceOverride(
        sku=sku, usd_per_hour=Decimal(usd), source="t", as_of=as_of.isoformat(), unverified=unverified
    )
    return stated_price(entry, "us-east-1")
