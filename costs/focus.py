"""The charges of a report as rows of FOCUS 1.2 (FinOps Open Cost and Usage Specification, 29 May 2025).

One row per charge and UTC day, so that no row crosses a billing period. Costs are list costs, estimated: billed,
effective, contracted and list cost are the same. Quantity times unit price equals cost exactly, in decimals and in
64-bit floats, since validators compare both ways.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from typing import Final

from costs.allocation import Charge, Kind, State
from costs.report import Report
from costs.tokens import EngineTokens
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud

VERSION: Final = "1.2"

MANDATORY: Final = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
)
CONDITIONAL: Final = (
    "AvailabilityZone",
    "CapacityReservationId",
    "CapacityReservationStatus",
    "ChargeFrequency",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "InvoiceId",
    "ListUnitPrice",
    "PricingCategory",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
)
CUSTOM: Final = (
    "x_CachedPromptTokens",
    "x_CostBasis",
    "x_Estimated",
    "x_GeneratedTokens",
    "x_ModelName",
    "x_Pool",
    "x_PriceAsOf",
    "x_PriceSource",
    "x_PromptTokens",
    "x_State",
    "x_Team",
)
COLUMNS: Final = (*MANDATORY, *CONDITIONAL, *CUSTOM)

_PROVIDER: Final = {Cloud.AWS: "AWS", Cloud.GCP: "Google Cloud"}
_SERVICE: Final = {Cloud.AWS: "Amazon Elastic Compute Cloud", Cloud.GCP: "Compute Engine"}
_CATEGORY: Final = {
    CapacityType.SPOT: "Dynamic",
    CapacityType.ON_DEMAND: "Standard",
    CapacityType.FLEX_START: "Standard",
    CapacityType.RESERVED: "Standard",
}
_STEP: Final = Decimal("1e-9")

_NOT_OF_CREDITS: Final = (
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
)
"""Null on credits: they give money back, not hours."""

Row = dict[str, str | None]


class UnpricedError(ValueError):
    """A charge without a price cannot be a FOCUS row: its costs must not be null."""


def rows(reports: Iterable[Report], account: str) -> Iterator[Row]:
    """Rows of reports that cover a UTC day each (or less). Raises UnpricedError."""
    for report in reports:
        served: dict[str, list[EngineTokens]] = {}
        for engine in report.engines:
            served.setdefault(engine.instance_id, []).append(engine)
        for charge in sorted(report.charges, key=_used_first):
            yield _row(charge, account, served.pop(charge.resource, []))


def _used_first(charge: Charge) -> tuple[bool, datetime]:
    """Tokens stand on one row of their instance: its first used one."""
    return charge.state is not State.USED, charge.start


def write_csv(table: Iterable[Row]) -> str:
    """Rows as CSV with a header; null is an empty field."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in table:
        writer.writerow("" if row[name] is None else row[name] for name in COLUMNS)
    return text.getvalue()


def days(since: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
    """A window cut at each UTC midnight."""
    cuts = [since]
    midnight = since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    while midnight < until:
        cuts.append(midnight)
        midnight += timedelta(days=1)
    return list(zip(cuts, [*cuts[1:], until], strict=True))


def _row(charge: Charge, account: str, engines: list[EngineTokens]) -> Row:
    if charge.amount is None or charge.price is None:
        raise UnpricedError(
            f"{charge.resource} ({charge.machine_type}, {charge.capacity_type}) has no price, and FOCUS knows no"
            " unknown cost: run `gpufleet prices refresh` or state the price"
        )
    start = charge.start.astimezone(UTC).replace(microsecond=0)
    end = max(charge.end.astimezone(UTC).replace(microsecond=0), start + timedelta(seconds=1))
    sign = -1 if charge.amount < 0 else 1
    quantity, cost = quantity_and_cost(charge.duration, charge.price.usd_per_hour, sign)
    row: Row = dict.fromkeys(COLUMNS)
    row |= _costs(cost, quantity, charge.price.usd_per_hour)
    row |= _account(charge, account) | _time(start, end) | _what(charge) | _ours(charge, engines)
    if row["ChargeCategory"] == "Credit":
        row |= dict.fromkeys(_NOT_OF_CREDITS)
    return row


def quantity_and_cost(duration: timedelta, usd_per_hour: Decimal, sign: int = 1) -> tuple[Decimal, Decimal]:
    """Hours and their cost so that the product holds exactly in decimals and in 64-bit floats.

    The hours are those of the duration to nine decimals, moved by as few trillionths of an hour as it takes.
    """
    hours = (money.seconds(duration) / money.SECONDS_PER_HOUR).quantize(_STEP) * sign
    tiny = Decimal("1e-12")
    for away in range(2_000):
        quantity = hours + tiny * away * sign
        cost = money.EXACT.multiply(quantity, usd_per_hour)
        if float(quantity) * float(usd_per_hour) == float(cost):
            return quantity, cost
    raise ArithmeticError(f"no quantity near {hours} h whose cost at {usd_per_hour} USD/h is exact in floats")


def _costs(cost: Decimal, quantity: Decimal, usd_per_hour: Decimal) -> Row:
    return {
        **dict.fromkeys(("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"), _number(cost)),
        **dict.fromkeys(("ListUnitPrice", "ContractedUnitPrice"), _number(usd_per_hour)),
        **dict.fromkeys(("PricingQuantity", "ConsumedQuantity"), _number(quantity)),
        **dict.fromkeys(("PricingUnit", "ConsumedUnit"), "Hours"),
        "BillingCurrency": "USD",
    }


def _account(charge: Charge, account: str) -> Row:
    provider = _PROVIDER[charge.cloud]
    return {
        "BillingAccountId": account,
        "BillingAccountName": account,
        "SubAccountId": account,
        "SubAccountName": account,
        **dict.fromkeys(("ProviderName", "PublisherName", "InvoiceIssuerName"), provider),
        "ServiceName": _SERVICE[charge.cloud],
        "ServiceCategory": "Compute",
        "ServiceSubcategory": "Virtual Machines",
        "RegionId": charge.region,
        "RegionName": charge.region,
        "AvailabilityZone": charge.zone or None,
    }


def _time(start: datetime, end: datetime) -> Row:
    month = start.replace(day=1, hour=0, minute=0, second=0)
    return {
        "BillingPeriodStart": _moment(month),
        "BillingPeriodEnd": _moment((month + timedelta(days=32)).replace(day=1)),
        "ChargePeriodStart": _moment(start),
        "ChargePeriodEnd": _moment(end),
    }


def _what(charge: Charge) -> Row:
    assert charge.price is not None
    reserved = charge.capacity_type is CapacityType.RESERVED
    unused = charge.kind is Kind.RESERVATION
    tags = {"gpu-fleet:pool": charge.pool, "gpu-fleet:owner": charge.owner}
    details = {"InstanceType": charge.machine_type, "OperatingSystem": "Linux"}
    machine = charge.kind not in (Kind.SHARED, Kind.COMMITTED)
    if not machine:
        details = {"Sku": charge.machine_type}
    return {
        "ChargeCategory": "Credit" if charge.kind is Kind.INTERRUPTED else "Usage",
        "ChargeDescription": f"{charge.machine_type} {charge.capacity_type}: {charge.kind}, {charge.state}",
        "ChargeFrequency": "Usage-Based",
        "PricingCategory": _CATEGORY[charge.capacity_type],
        "CapacityReservationId": charge.resource if unused else charge.reservation if reserved else None,
        "CapacityReservationStatus": "Unused" if unused else "Used" if reserved and charge.reservation else None,
        "ResourceId": charge.resource,
        "ResourceType": _type(charge),
        "SkuId": charge.price.sku,
        "SkuPriceId": f"{charge.price.sku}:{charge.price.zone or charge.price.region}",
        "SkuMeter": "Instance hours" if machine else "Hours",
        "SkuPriceDetails": json.dumps(details),
        "Tags": json.dumps({key: value for key, value in tags.items() if value is not None}),
    }


def _type(charge: Charge) -> str:
    words = {
        Kind.RESERVATION: "Capacity Reservation",
        Kind.SHARED: "Shared Resource",
        Kind.COMMITTED: "Spend Commitment",
    }
    return words.get(charge.kind, "Virtual Machine")


def _ours(charge: Charge, engines: list[EngineTokens]) -> Row:
    assert charge.price is not None
    return {
        "x_CostBasis": "allocation",
        "x_Estimated": "true",
        "x_ModelName": charge.model,
        "x_Pool": charge.pool,
        "x_Team": charge.owner,
        "x_State": charge.state.value,
        "x_PriceSource": charge.price.source,
        "x_PriceAsOf": _moment(charge.price.as_of),
        "x_PromptTokens": _sum(engine.tokens.prompt for engine in engines),
        "x_CachedPromptTokens": _sum(engine.tokens.cached for engine in engines),
        "x_GeneratedTokens": _sum(engine.tokens.generation for engine in engines),
    }


def _sum(values: Iterable[int | None]) -> str | None:
    known = [value for value in values if value is not None]
    return str(sum(known)) if known else None


def _number(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _moment(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
