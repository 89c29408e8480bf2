"""AWS prices: spot prices by zone (EC2) and list prices (Price List service)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.domain.activity import CloudError
from gpufleet.domain.prices import Price

PRODUCT: Final = "Linux/UNIX"
SPOT_SOURCE: Final = "AWS DescribeSpotPriceHistory"
LIST_SOURCE: Final = "AWS Price List"
_AT_ONCE: Final = 50


class AwsPrices:
    """Prices of one region."""

    def __init__(self, calls: AwsCalls, region: str, list_calls: AwsCalls | None = None) -> None:
        self._calls = calls
        self._region = region
        self._list_calls = list_calls
        """Calls to a region with the Price List service (only few have it; us-east-1 does). None: no list prices."""

    def prices(self, machine_types: Sequence[str], since: datetime, until: datetime) -> Sequence[Price]:
        """Spot prices that applied in the time span, including the price that applied at its start.

        Raises CloudError if a page fails.
        """
        found: list[Price] = []
        for start in range(0, len(machine_types), _AT_ONCE):
            rows = self._calls.pages(
                "ec2",
                "describe_spot_price_history",
                "SpotPriceHistory",
                InstanceTypes=list(machine_types[start : start + _AT_ONCE]),
                ProductDescriptions=[PRODUCT],
                StartTime=since,
                EndTime=until,
            )
            found += [self._spot(row, until) for row in rows]
        return found

    def list_prices(self, machine_types: Sequence[str], now: datetime) -> Sequence[Price]:
        """On-demand prices for Linux with shared tenancy. Machine types without a price are omitted.

        Raises CloudError if a page fails or a machine type has several prices.
        """
        if self._list_calls is None:
            return ()
        return [price for name in machine_types for price in self._listed(name, now)]

    def refresh(self, machine_types: Sequence[str], now: datetime) -> tuple[list[Price], list[str]]:
        """Current list prices, spot prices of the last day, and the messages of failed requests."""
        found: list[Price] = []
        errors: list[str] = []
        asks = (
            lambda: self.prices(machine_types, now - timedelta(days=1), now),
            lambda: self.list_prices(machine_types, now),
        )
        for ask in asks:
            try:
                found += ask()
            except CloudError as error:
                errors.append(str(error))
        return found, errors

    def _spot(self, row: Mapping[str, Any], now: datetime) -> Price:
        return Price(
            sku=f"aws:ec2:{row['InstanceType']}:spot",
            region=self._region,
            zone=row["AvailabilityZone"],
            usd_per_hour=Decimal(row["SpotPrice"]).normalize(),
            valid_from=row["Timestamp"].astimezone(UTC),
            as_of=now,
            source=SPOT_SOURCE,
        )

    def _listed(self, machine_type: str, now: datetime) -> Iterator[Price]:
        assert self._list_calls is not None
        wanted = {
            "instanceType": machine_type,
            "regionCode": self._region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
        rows = self._list_calls.pages(
            "pricing", "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters
        )
        prices = {price for row in rows for price in on_demand_of(json.loads(row, parse_float=Decimal))}
        if len(prices) > 1:
            raise CloudError(
                f"{machine_type} in {self._region}: expected one on-demand price in the Price List, got {len(prices)}"
            )
        for usd, effective_at in prices:
            yield Price(
                sku=f"aws:ec2:{machine_type}:on-demand",
                region=self._region,
                zone=None,
                usd_per_hour=usd,
                valid_from=min(effective_at, now),
                as_of=now,
                source=LIST_SOURCE,
            )


def on_demand_of(product: Mapping[str, Any]) -> Iterator[tuple[Decimal, datetime]]:
    """On-demand prices of one Price List product: USD per hour, and the start of validity."""
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            usd = dimension["pricePerUnit"].get("USD")
            if dimension["unit"] == "Hrs" and usd is not None and Decimal(usd) > 0:
                yield Decimal(usd).normalize(), datetime.fromisoformat(term["effectiveDate"]).astimezone(UTC)
