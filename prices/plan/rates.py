"""The rates of a plan: the packaged price lists under the overrides of the settings it was made with."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from gpufleet.domain.model import Cloud
from prices.book import Override, Price, PriceBook, parse_as_of
from prices.packaged import PackagedPrices
from prices.plan.cost import PlanCostError, Rates, settings_of
from prices.plan.preview import as_list, as_map


def rates_of(config: Mapping[str, Any], now: datetime, observed: Iterable[Price] = ()) -> Rates:
    """Rates for the cloud and region that a preview's configuration names. Raises PlanCostError."""
    settings = settings_of(config)
    cloud = settings.get("cloud")
    if cloud not in list(Cloud):
        raise PlanCostError((f"the settings name no cloud that is known: {cloud!r}",))
    region = config.get(f"{cloud}:region")
    if not region:
        raise PlanCostError((f"the settings have no {cloud}:region, so no price can be looked up; add it",))
    stated = [_override(index, as_map(raw)) for index, raw in enumerate(as_list(settings.get("prices")))]
    try:
        book = PriceBook(region=str(region), overrides=stated, observed=observed, packaged=PackagedPrices())
    except ValueError as error:
        raise PlanCostError((f"prices: {error}",)) from error
    return Rates(book=book, cloud=Cloud(cloud), region=str(region), now=now)


def _override(index: int, raw: Mapping[str, Any]) -> Override:
    try:
        return Override(
            sku=str(raw["sku"]),
            usd_per_hour=Decimal(str(raw["usd_per_hour"])),
            source=str(raw["source"]),
            as_of=parse_as_of(str(raw["as_of"])),
            unverified=bool(raw.get("unverified", False)),
        )
    except KeyError as error:
        raise PlanCostError((f"prices.{index}: lacks {error.args[0]}",)) from error
    except InvalidOperation as error:
        raise PlanCostError((f"prices.{index}: usd_per_hour {raw['usd_per_hour']!r:.80} is no amount",)) from error
    except ValueError as error:
        raise PlanCostError((f"prices.{index}: {error}",)) from error
