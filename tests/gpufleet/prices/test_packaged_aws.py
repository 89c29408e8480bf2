"""The packaged prices of AWS: dated, from named lists, and unknown where no list confirms them."""

from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

import pytest

from gpufleet.domain.catalogue import machines
from gpufleet.domain.model import Cloud
from gpufleet.domain.prices import Price
from gpufleet.domain.regions import REGIONS
from gpufleet.prices.book import MissingPriceError, PriceBook, Sku
from gpufleet.prices.packaged import PackagedPrices

HOME = "us-east-1"
KARPENTER = "packaged: karpenter-provider-aws"
EC2_SHOP = "packaged: ec2.shop"
SKYPILOT = "packaged: skypilot-catalog"
BOTH = "packaged: ec2.shop and skypilot-catalog"
DATES = {
    EC2_SHOP: datetime(2025, 4, 4, 22, 41, 22, tzinfo=UTC),
    SKYPILOT: datetime(2026, 1, 19, 13, 23, 24, tzinfo=UTC),
    BOTH: datetime(2026, 1, 19, 13, 23, 24, tzinfo=UTC),
}
"""When each list was last seen."""
WITHOUT = {
    *("ap-east-2", "ap-south-2", "ap-southeast-4", "ap-southeast-6", "ap-southeast-7"),
    *("ca-west-1", "mx-central-1"),
}
PACKAGED = PackagedPrices()


def histories(region: str) -> dict[str, tuple[Price, ...]]:
    """The history of each machine type with a price in a region."""
    return {sku: tuple(PACKAGED.prices(sku, region)) for sku in PACKAGED.skus(region)}


def test_each_region_has_packaged_prices_except_the_named_ones() -> None:
    assert {region for region in REGIONS[Cloud.AWS] if not PACKAGED.skus(region)} == WITHOUT
    known = {f"aws:ec2:{machine.name}:on-demand" for machine in machines(Cloud.AWS)}
    for region in REGIONS[Cloud.AWS] - {HOME}:
        assert set(PACKAGED.skus(region)) <= known


@pytest.mark.parametrize("region", sorted(REGIONS[Cloud.AWS] - WITHOUT))
def test_packaged_prices_name_their_list_and_dates(region: str) -> None:
    for history in histories(region).values():
        for price in history:
            assert price.valid_from <= price.as_of
            assert price.usd_per_hour > 0
            if region == HOME:
                assert price.source == KARPENTER
            else:
                assert price.as_of == DATES[price.source]
        assert all(one.as_of < other.valid_from for one, other in pairwise(history))


@pytest.mark.parametrize("region", sorted(REGIONS[Cloud.AWS] - WITHOUT - {HOME}))
def test_no_regional_price_is_older_than_a_change_in_us_east_1(region: str) -> None:
    """AWS changes the price of a machine type in all regions at about the same time."""
    home = histories(HOME)
    for sku, history in histories(region).items():
        changes = [price.valid_from for price in home[sku][1:]]
        assert all(price.valid_from >= change for price in history for change in changes), sku


@pytest.mark.parametrize(
    ("name", "region"),
    [
        pytest.param("p5.48xlarge", "sa-east-1", id="P5 before the cut"),
        pytest.param("p4d.24xlarge", "sa-east-1", id="P4 before the cut"),
        pytest.param("p4d.24xlarge", "ap-southeast-1", id="P4 in the older list only"),
        pytest.param("p4de.24xlarge", "il-central-1", id="P4 with 80 GB before the cut"),
        pytest.param("trn2.48xlarge", "us-east-2", id="no price in us-east-1 to compare with"),
        pytest.param("trn1.32xlarge", "ap-south-1", id="listed without a price"),
        pytest.param("p5e.48xlarge", "us-west-2", id="sold in capacity blocks"),
        pytest.param("p6-b300.48xlarge", "eu-west-1", id="not listed in the region"),
        pytest.param("g6.xlarge", "mx-central-1", id="a region without prices"),
    ],
)
def test_a_price_that_no_list_confirms_is_unknown(name: str, region: str) -> None:
    assert PACKAGED.prices(f"aws:ec2:{name}:on-demand", region) == ()


@pytest.mark.parametrize(
    ("name", "region", "usd", "source"),
    [
        pytest.param("p5.48xlarge", "us-west-2", "55.04", SKYPILOT, id="after the cut"),
        pytest.param("p5en.48xlarge", "eu-north-1", "67.72672", SKYPILOT, id="H200"),
        pytest.param("p6-b200.48xlarge", "us-east-2", "113.9328", SKYPILOT, id="B200"),
        pytest.param("g6.xlarge", "eu-central-1", "1.0064", BOTH, id="both lists agree"),
        pytest.param("g5.48xlarge", "eu-west-1", "18.18233", EC2_SHOP, id="the older list only"),
        pytest.param("inf2.xlarge", "sa-east-1", "1.28894", EC2_SHOP, id="a region of the older list only"),
    ],
)
def test_regional_prices(name: str, region: str, usd: str, source: str) -> None:
    price = PriceBook(region=region, packaged=PACKAGED).at(
        Sku(name=f"aws:ec2:{name}:on-demand", region=region), datetime(2026, 11, 1, tzinfo=UTC)
    )
    assert (price.usd_per_hour, price.source, price.region) == (Decimal(usd), source, region)


def test_a_price_of_a_type_that_changed_is_unknown_before_the_newer_list() -> None:
    book = PriceBook(region="us-west-2", packaged=PACKAGED)
    with pytest.raises(MissingPriceError):
        book.at(Sku(name="aws:ec2:p5.48xlarge:on-demand", region="us-west-2"), datetime(2025, 12, 31, tzinfo=UTC))
