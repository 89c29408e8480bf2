"""Prices of machine types, computed from components in the Billing Catalog."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.clouds.gcp.prices import GooglePrices, components, price_of
from gpufleet.domain.activity import CloudError
from gpufleet.domain.catalogue import machine
from gpufleet.domain.model import Cloud

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def sku(description: str, nanos: int, unit: str = "h", usage: str = "OnDemand", region: str = "us-central1") -> Any:
    return {
        "description": description,
        "category": {"usageType": usage},
        "serviceRegions": [region],
        "pricingInfo": [
            {
                "effectiveTime": "2026-11-01T00:00:00Z",
                "pricingExpression": {
                    "usageUnit": unit,
                    "tieredRates": [{"unitPrice": {"currencyCode": "USD", "units": "0", "nanos": nanos}}],
                },
            }
        ],
    }


CATALOG = [
    sku("G2 Instance Core running in Americas", 24_988_000),
    sku("G2 Instance Ram running in Americas", 2_927_000, "GiBy.h"),
    sku("Nvidia L4 GPU running in Americas", 560_000_000),
    sku("Spot Preemptible G2 Instance Core running in Americas", 9_000_000, usage="Preemptible"),
    sku("Spot Preemptible G2 Instance Ram running in Americas", 1_000_000, "GiBy.h", "Preemptible"),
    sku("Spot Preemptible Nvidia L4 GPU running in Americas", 200_000_000, usage="Preemptible"),
    sku("Nvidia L4 GPU running in Frankfurt", 999_000_000, region="europe-west3"),
    sku("Commitment: Nvidia L4 GPU running in Americas for 1 Year", 1_000_000, usage="Commit1Yr"),
]


class Catalog:
    """Replaces the service object of google-api-python-client; returns these pages."""

    def __init__(self, pages: list[dict[str, Any]]) -> None:
        self._pages = pages

    def services(self) -> "Catalog":
        return self

    def skus(self) -> "Catalog":
        return self

    def list(self, parent: str, pageSize: int) -> "Request":  # noqa: N803 - Google's name
        assert parent == "services/6F81-5844-456A" and pageSize == 5000
        return Request(self._pages, 0)

    def list_next(self, request: "Request", page: dict[str, Any]) -> "Request | None":
        return Request(self._pages, request.number + 1) if "nextPageToken" in page else None


class Request:
    def __init__(self, pages: list[dict[str, Any]], number: int) -> None:
        self.pages, self.number = pages, number

    def execute(self) -> dict[str, Any]:
        return self.pages[self.number]


def test_a_price_is_the_sum_of_its_components() -> None:
    pages = [{"skus": CATALOG[:2], "nextPageToken": "2"}, {"skus": CATALOG[2:]}]
    prices, errors = GooglePrices("us-central1", Catalog(pages)).refresh(["g2-standard-4"], NOW)
    assert errors == []
    # 4 x 0.024988 + 16 x 0.002927 + 0.56 = 0.706784 (list price of 2026: 0.7068)
    assert {p.sku: p.usd_per_hour for p in prices} == {
        "gcp:compute:g2-standard-4:on-demand": Decimal("0.706784"),
        "gcp:compute:g2-standard-4:spot": Decimal("0.252"),
    }
    assert prices[0].valid_from == datetime(2026, 11, 1, tzinfo=UTC)


def test_a_fraction_of_a_gpu_has_that_part_of_its_price() -> None:
    (gpus,) = [
        part for part in components(machine(Cloud.GCP, "g4-standard-6"), "spot") if "96GB" in part.pattern.pattern
    ]
    assert gpus.quantity == Decimal("0.125")


@pytest.mark.parametrize("name", ["ct6e-standard-4t", "a4x-highgpu-4g"])
def test_a_device_without_a_known_catalog_name_is_an_error(name: str) -> None:
    with pytest.raises(CloudError, match=f"{name}: the catalog's name for .* is unknown"):
        list(components(machine(Cloud.GCP, name), "on-demand"))


@pytest.mark.parametrize(
    ("catalog", "message"),
    [
        pytest.param(CATALOG[1:], "got 0 .*G2 Instance Core", id="a part is missing"),
        pytest.param(
            [*CATALOG, sku("G2 Instance Core running in Americas", 1)],
            "expected one price in the catalog, got 2",
            id="two prices",
        ),
    ],
)
def test_a_component_without_exactly_one_price_is_an_error(catalog: list[Any], message: str) -> None:
    here = [one for one in catalog if "us-central1" in one["serviceRegions"]]
    with pytest.raises(CloudError, match=message):
        price_of(machine(Cloud.GCP, "g2-standard-4"), "on-demand", here, "us-central1", NOW)


def test_an_incomplete_list_is_an_error() -> None:
    prices, errors = GooglePrices("us-central1", Catalog([{}])).refresh(["g2-standard-4"], NOW)
    assert prices == [] and "incomplete" in errors[0]


def test_a_component_with_price_zero_is_an_error() -> None:
    free = [
        sku("Nvidia L4 GPU running in Americas", 0) if "Nvidia L4" in one["description"] else one for one in CATALOG
    ]
    with pytest.raises(CloudError, match="the catalog's price of Nvidia L4 GPU running in Americas is 0"):
        price_of(machine(Cloud.GCP, "g2-standard-4"), "on-demand", free, "us-central1", NOW)
