"""Prices of the embedded cloud: plausible, always below on-demand, and stable within an hour.

On-demand prices are the public list prices of us-east-1 (Linux, shared) as published on 2026-07-20. Spot prices are
made up from them: a share of list price per zone that moves slowly with the hour, as real ones do; no market data.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from moto.core.responses import ActionResult
from moto.ec2.responses._base_response import EC2BaseResponse

from localcloud.addresses import ZONES
from localcloud.documents import items

ON_DEMAND: Final = {
    "g4dn.xlarge": Decimal("0.526"),
    "g5.xlarge": Decimal("1.006"),
    "g5.2xlarge": Decimal("1.212"),
    "g5.12xlarge": Decimal("5.672"),
    "g6.xlarge": Decimal("0.8048"),
    "g6.2xlarge": Decimal("0.9776"),
    "g6.12xlarge": Decimal("4.6016"),
    "g6e.xlarge": Decimal("1.861"),
    "g6e.2xlarge": Decimal("2.24208"),
    "g6e.12xlarge": Decimal("10.49264"),
    "p4d.24xlarge": Decimal("21.957642"),
    "p5.48xlarge": Decimal("55.04"),
    "p5en.48xlarge": Decimal("63.296"),
}
_ZONE_SHARE: Final = {"us-east-1a": Decimal("0.38"), "us-east-1b": Decimal("0.42"), "us-east-1c": Decimal("0.47")}
_STEP: Final = timedelta(hours=1)
_LONGEST: Final = timedelta(days=90)


def spot_price(machine_type: str, zone: str, at: datetime) -> Decimal | None:
    """USD per hour of a spot instance; None for a type or zone that is not offered."""
    listed, share = ON_DEMAND.get(machine_type), _ZONE_SHARE.get(zone)
    if listed is None or share is None:
        return None
    hour = int(at.timestamp() // _STEP.total_seconds())
    # a triangle wave of two days, ±10 % of list price, out of step between zones and types
    phase = (hour + 7 * ZONES.index(zone) + 5 * len(machine_type)) % 48
    sway = Decimal(abs(phase - 24) - 12) / 120
    return (listed * (share + sway)).quantize(Decimal("0.0001"))


def history(
    machine_types: list[str], zones: list[str], since: datetime, until: datetime
) -> Iterator[tuple[datetime, str, str, Decimal]]:
    """Changes, newest first, and for each type and zone the price in force at `since`."""
    start = max(since, until - _LONGEST)
    for machine_type in machine_types or sorted(ON_DEMAND):
        for zone in zones or list(ZONES):
            at = datetime.fromtimestamp(until.timestamp() // 3600 * 3600, UTC)
            while True:
                price = spot_price(machine_type, zone, at)
                if price is None:
                    break
                yield at, machine_type, zone, price
                if at <= start:
                    break
                at -= _STEP


class SpotPriceCalls(EC2BaseResponse):
    """The EC2 operation on spot prices."""

    def describe_spot_price_history(self) -> ActionResult:
        params = self._get_params()
        now = datetime.now(UTC)
        filters = {str(given["Name"]): items(given, "Values") for given in items(params, "Filters")}
        products = items(params, "ProductDescriptions") or items(filters, "product-description") or ["Linux/UNIX"]
        zones = (
            [params["AvailabilityZone"]] if params.get("AvailabilityZone") else items(filters, "availability-zone")
        )
        types = items(params, "InstanceTypes") or items(filters, "instance-type")
        if not set(products) & {"Linux/UNIX", "Linux/UNIX (Amazon VPC)"}:
            return ActionResult({"SpotPriceHistory": [], "NextToken": ""})
        rows = list(history(types, zones, _aware(params.get("StartTime"), now), _aware(params.get("EndTime"), now)))
        start = int(params.get("NextToken") or 0)
        size = int(params.get("MaxResults") or 1000)
        shown = [
            {
                "Timestamp": at,
                "InstanceType": machine_type,
                "AvailabilityZone": zone,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": f"{price}00",
            }
            for at, machine_type, zone, price in rows[start : start + size]
        ]
        more = str(start + size) if len(rows) > start + size else ""
        return ActionResult({"SpotPriceHistory": shown, "NextToken": more})


def _aware(value: datetime | str | None, default: datetime) -> datetime:
    if value is None:
        return default
    found = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
    return found if found.tzinfo else found.replace(tzinfo=UTC)
