"""Contract test of the port `Prices`: the price book, and `FakePrices`."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from app.adapters import FleetPrices
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price, Rank
from gpufleet.prices.book import PriceBook, machine_sku
from tests.fixtures.watchdogs.plain import START, FakePrices, instance
from watchdogs.ports import Prices

KNOWN, UNKNOWN = "g6.xlarge", "x99.metal"
A, B = "us-east-1a", "us-east-1b"
ON_DEMAND, SPOT_A, SPOT_B = Decimal("0.80"), Decimal("0.25"), Decimal("0.31")


def _price(kind: CapacityType, zone: str | None, usd: Decimal) -> Price:
    return Price(
        sku=machine_sku(Cloud.AWS, KNOWN, kind),
        region="us-east-1",
        zone=zone,
        usd_per_hour=usd,
        source="test",
        as_of=START,
        valid_from=START - timedelta(days=1),
        rank=Rank.LIVE,
    )


def _book() -> PriceBook:
    observed = [
        _price(CapacityType.ON_DEMAND, None, ON_DEMAND),
        _price(CapacityType.SPOT, A, SPOT_A),
        _price(CapacityType.SPOT, B, SPOT_B),
    ]
    return PriceBook(region="us-east-1", observed=observed)


@pytest.fixture(params=["fake", "real"])
def prices(request: pytest.FixtureRequest) -> Prices:
    """On-demand capacity has one price in the region; the price of spot capacity depends on the zone."""
    if request.param == "fake":
        return FakePrices(spot={A: SPOT_A, B: SPOT_B}, unknown={UNKNOWN})
    return FleetPrices(_book(), Cloud.AWS, "us-east-1", START)


def test_an_instance_costs_what_its_capacity_type_costs_in_its_zone(prices: Prices) -> None:
    one = instance(1, zone=B)
    assert prices.usd_per_hour(one) == SPOT_B
    assert prices.usd_per_hour(replace(one, zone=A)) == SPOT_A
    assert prices.usd_per_hour(replace(one, capacity_type=CapacityType.ON_DEMAND)) == ON_DEMAND
    assert prices.usd_per_hour(replace(one, capacity_type=CapacityType.RESERVED)) == ON_DEMAND, "no price of its own"


def test_prices_before_a_launch_are_those_of_the_instance(prices: Prices) -> None:
    assert prices.spot_usd_per_hour(KNOWN, B) == SPOT_B
    assert prices.on_demand_usd_per_hour(KNOWN) == ON_DEMAND
    assert prices.list_usd_per_hour(KNOWN, CapacityType.SPOT, B) == SPOT_B
    for zone in (A, None):
        assert prices.list_usd_per_hour(KNOWN, CapacityType.ON_DEMAND, zone) == ON_DEMAND


def test_an_unknown_price_is_none_and_never_zero(prices: Prices) -> None:
    assert prices.usd_per_hour(instance(1, machine_type=UNKNOWN)) is None
    assert prices.spot_usd_per_hour(UNKNOWN, A) is None
    assert prices.on_demand_usd_per_hour(UNKNOWN) is None
    assert prices.list_usd_per_hour(UNKNOWN, CapacityType.SPOT, A) is None
    assert prices.list_usd_per_hour(KNOWN, CapacityType.SPOT, None) is None, "its price depends on the zone"
