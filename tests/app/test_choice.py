"""Prices for choosing machines: a fleet's own take precedence over the packaged lists, and none is invented."""

from decimal import Decimal
from pathlib import Path

from app.choice import OfferPrices
from gpufleet.domain import catalogue
from gpufleet.domain.model import CapacityType, Cloud
from serving.sizing.choice import Offer
from tests.fixtures.small_fleet import T0, document

MACHINE = catalogue.machine(Cloud.AWS, "g6.xlarge")


def test_own_price_of_a_fleet_precedes_the_packaged_one(tmp_path: Path) -> None:
    stated = {
        "sku": "aws:ec2:g6.xlarge:on-demand", "usd_per_hour": "0.1", "source": "contract", "as_of": "2026-01-02"
    }  # fmt: skip
    fleet = document(tmp_path, prices={"overrides": [stated]})
    offer = OfferPrices([str(fleet)], None, T0).offer(MACHINE, CapacityType.ON_DEMAND)
    assert isinstance(offer, Offer)
    assert offer.usd_per_hour == Decimal("0.1")
    assert offer.price_source == "contract, us-east-1, as of 2026-01-02"


def test_a_cloud_without_a_named_fleet_has_the_packaged_prices(tmp_path: Path) -> None:
    prices = OfferPrices([str(document(tmp_path))], "europe-west4", T0)
    offer = prices.offer(catalogue.machine(Cloud.GCP, "g2-standard-4"), CapacityType.ON_DEMAND)
    assert isinstance(offer, Offer)
    assert "europe-west4" in offer.price_source


def test_a_missing_price_is_named(tmp_path: Path) -> None:
    offer = OfferPrices([str(document(tmp_path))], None, T0).offer(MACHINE, CapacityType.SPOT)
    assert isinstance(offer, str)
    assert "no price for aws:ec2:g6.xlarge:spot in us-east-1" in offer
