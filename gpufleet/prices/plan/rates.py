"""The rates of a plan: the packaged price lists with the overrides of its settings."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from gpufleet.domain.prices import Price
from gpufleet.prices.book import PriceBook, stated_price
from gpufleet.prices.packaged import PackagedPrices
from gpufleet.prices.plan.cost import PlanCostError, Rates, parts_of


def rates_of(config: Mapping[str, Any], now: datetime, observed: Iterable[Price] = ()) -> Rates:
    """Rates for the cloud and region that a preview's configuration names. Raises PlanCostError."""
    settings = parts_of(config)
    cloud, region = settings.cloud, settings.region
    if cloud is None:
        raise PlanCostError(("the settings do not name a cloud; add it",))
    if not region:
        raise PlanCostError((f"the settings have no {cloud}:region, which prices need; add it",))
    try:
        overrides = [stated_price(price, region) for price in settings.prices]
        book = PriceBook(region=region, overrides=overrides, observed=observed, packaged=PackagedPrices())
    except ValueError as error:
        raise PlanCostError((f"prices: {error}",)) from error
    return Rates(book=book, cloud=cloud, region=region, now=now)
