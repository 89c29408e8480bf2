"""The charges of a report as rows of FOCUS 1.2 (FinOps Open Cost and Usage Specification, 29 May 2025).

One row per charge and UTC day, so that no row crosses a billing period. Costs are estimated. List and contracted cost
are the price book's price times the quantity: it holds exactly, in decimals and in 64-bit floats, since validators
compare both ways. The effective cost is that of the report.

Commitments: the part of an instance that a Savings Plan or CUD pays is a separate row (billed cost 0, effective cost
at the committed rate), and its unused part is another; a purchase row bills both, at an effective cost of 0. So the
sums of both costs equal the report's. Rules: "Discount Handling" and the commitment discount columns of the
specification.
"""

import csv
import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from io import StringIO
from typing import Final

from gpufleet.costs import bill_skus
from gpufleet.costs.allocation import Charge, ChargeKind, UseState
from gpufleet.costs.csv_cells import cell
from gpufleet.costs.energy import Energy, energy_of, joules
from gpufleet.costs.report import Report
from gpufleet.costs.slice_bills import SliceCost
from gpufleet.costs.slice_view import part_name
from gpufleet.costs.slot_parts import PartState
from gpufleet.costs.teams import Part, UseShare, split_time
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import CURRENCY, Committed, Price
from gpufleet.ledger.counters import Tokens
from gpufleet.prices.book import machine_sku

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
    "BillingAccountType",
    "CapacityReservationId",
    "CapacityReservationStatus",
    "ChargeFrequency",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountQuantity",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "CommitmentDiscountUnit",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "InvoiceId",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
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
    "SubAccountType",
    "Tags",
)
CUSTOM: Final = (
    "x_CachedPromptTokens",
    "x_CarbonGrams",
    "x_ChargeKind",
    "x_CostBasis",
    "x_EnergyJoules",
    "x_EnergyMeasuredSeconds",
    "x_Estimated",
    "x_GeneratedTokens",
    "x_IdleEnergyJoules",
    "x_ModelName",
    "x_Pool",
    "x_PriceAsOf",
    "x_PriceSource",
    "x_PromptTokens",
    "x_RequestedModel",
    "x_SliceDevice",
    "x_SliceId",
    "x_SliceProfile",
    "x_SliceRule",
    "x_SliceShare",
    "x_SliceState",
    "x_SliceUsers",
    "x_State",
    "x_Team",
)
COLUMNS: Final = (*MANDATORY, *CONDITIONAL, *CUSTOM)

PURCHASE: Final = "commitment purchase"
"""`x_ChargeKind` of the rows that bill commitments; the other kinds are those of `ChargeKind`."""

_PROVIDER: Final = {Cloud.AWS: "AWS", Cloud.GCP: "Google Cloud"}
_ACCOUNT_TYPE: Final = {Cloud.AWS: "Account", Cloud.GCP: "Project"}
_COMMITMENT: Final = {Cloud.AWS: "Savings Plan", Cloud.GCP: "Committed Use Discount"}
_PRICING: Final = {
    CapacityType.SPOT: "Dynamic",
    CapacityType.ON_DEMAND: "Standard",
    CapacityType.FLEX_START: "Standard",
    CapacityType.RESERVED: "Standard",
}
_STEP: Final = Decimal("1e-9")
_TINY: Final = Decimal("1e-12")
_DIVIDE: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)

_NOT_OF_CREDITS: Final = (
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyListUnitPrice",
    "PricingQuantity",
    "PricingUnit",
    "SkuPriceDetails",
    "SkuPriceId",
)
"""Null for credits: they return money, not hours."""

Row = dict[str, str | None]


class UnpricedError(ValueError):
    """A charge has no price, but the costs of a FOCUS row must not be null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A charge, or the part of it with one discount."""

    quantity: Decimal
    unit_price: Decimal
    """The cost at list price."""
    list_cost: Decimal
    effective: Decimal
    billed: Decimal
    committed: Committed | None = None


@dataclass(slots=True, kw_only=True)
class _Purchase:
    """The amounts that rows paid with one commitment."""

    cloud: Cloud
    usd: Decimal
    start: str
    end: str


def rows(reports: Iterable[Report], account: str, fleet: str = "", *, by_team: bool = False) -> Iterator[Row]:
    """Rows of reports that cover a UTC day each (or less). Raises UnpricedError.

    `fleet` makes the ids of shared resources unique. `by_team`: charges of pools that the report splits over teams or
    LoRA adapters are split by the same weights; tokens are then written once for each part, as in the report. A pool
    that it splits over both is split over teams. Other charges of nodes with slices or shared devices are split by
    the amounts of the report by slice.
    """
    for report in reports:
        bought: dict[str, _Purchase] = {}
        teams = {share.pool for share in report.teams}
        shares = [*report.teams, *(share for share in report.adapters if share.pool not in teams)]
        for charge, whose, served in _split(report, shares if by_team else ()):
            for row in _rows(charge, f"{account}/{fleet}" if fleet else account, served):
                row |= _account(charge.cloud, account) | whose
                _buy(bought, charge.cloud, row)
                yield row
        for name, purchase in bought.items():
            yield _purchase(name, purchase) | _account(purchase.cloud, account)


@dataclass(slots=True)
class _Served:
    """The tokens and the energy of a row."""

    tokens: list[Tokens] = field(default_factory=list[Tokens])
    energy: Energy = Energy()


def _split(report: Report, shares: Iterable[UseShare]) -> Iterator[tuple[Charge, Row, _Served]]:
    """Each charge with its team, requested model and slice, and the tokens and the energy of its row: those of its
    instance or part. The energy of a node with slices is on all its rows, divided like their cost.
    """
    of_pool: dict[str | None, list[UseShare]] = {}
    of_part: dict[tuple[str, str], _Served] = {}
    for share in shares:
        of_pool.setdefault(share.pool, []).append(share)
        of_part[share.pool, share.name] = _Served([share.figure.tokens], share.figure.energy)
    of_instance: dict[str, _Served] = {}
    for engine in report.engines:
        of_instance.setdefault(engine.instance_id, _Served()).tokens.append(engine.tokens)
    for run, one in report.energies:
        if run is not None:
            of_instance.setdefault(one.instance_id, _Served()).energy += energy_of(one.use, one.factor)
    of_node = _by_node(report.slices.rows)
    of_divided = _divided_energies(report, of_pool, of_instance)
    for charge in sorted(report.charges, key=_used_first):
        split = of_pool.get(charge.pool, [])
        if not split:
            served = of_instance.pop(charge.resource, _Served())
            slices = _by_slice(charge, of_node.get((charge.resource, charge.pool, charge.owner), []))
            yield from _of_instance(charge, slices, served, of_divided.get(charge.resource))
            continue
        parts = split_time(charge.duration, [share.weight for share in split])
        for share, duration in zip(split, parts, strict=True):
            if duration:
                served = of_part.pop((share.pool, share.name), _Served())
                yield replace(charge, duration=duration), _whose(charge, share), served


def _of_instance(
    charge: Charge, slices: Iterable[tuple[Row, timedelta]], served: _Served, node: "_Undivided | None"
) -> Iterator[tuple[Charge, Row, _Served]]:
    """The parts of a charge that no team or adapter shares. `node`: None without slices."""
    for row, duration in slices:
        if node is not None:
            served.energy = node.take(_weight(charge, duration))
        yield replace(charge, duration=duration), {"x_Team": charge.owner, **row}, served
        served = _Served()  # once


@dataclass(slots=True)
class _Undivided:
    """The energy of a node that no row has yet, and the cost of the rows that are left, in dollar-seconds."""

    energy: Energy
    weight: Decimal = money.ZERO

    def take(self, weight: Decimal) -> Energy:
        """The part of a row. All parts add up to the whole, because the last row gets what is left."""
        if not weight:
            return Energy()
        self.weight = money.EXACT.subtract(self.weight, weight)
        part, self.energy = self.energy.split([weight, self.weight])
        return part


def _divided_energies(
    report: Report, split: Container[str | None], of_instance: Mapping[str, _Served]
) -> dict[str, _Undivided]:
    """Take the energy of the nodes with slices from their instances, except from those whose rows all cost nothing.

    `split`: pools that are split by team or adapter.
    """
    found = {
        one.instance_id: _Undivided(of_instance[one.instance_id].energy)
        for one in report.slices.rows
        if one.instance_id in of_instance
    }
    for charge in report.charges:
        if charge.resource in found and charge.pool not in split:
            node = found[charge.resource]
            node.weight = money.EXACT.add(node.weight, _weight(charge, charge.duration))
    divided = {name: node for name, node in found.items() if node.weight}
    for name in divided:
        of_instance[name].energy = Energy()
    return divided


def _weight(charge: Charge, duration: timedelta) -> Decimal:
    """The cost of running for this part of a charge, in dollar-seconds; 0 for minimum charges and credits."""
    if charge.kind is not ChargeKind.TIME or charge.price is None:
        return money.ZERO
    return money.dollar_seconds(charge.price.usd_per_hour, duration)


def _by_node(slices: Iterable[SliceCost]) -> dict[tuple[str, str | None, str | None], list[SliceCost]]:
    found: dict[tuple[str, str | None, str | None], list[SliceCost]] = {}
    for one in slices:
        found.setdefault((one.instance_id, one.pool, one.owner), []).append(one)
    return found


_NOT_OF_SLICES: Final = (PartState.STARTING, PartState.FIXED)


def _by_slice(charge: Charge, slices: Iterable[SliceCost]) -> Iterator[tuple[Row, timedelta]]:
    """The slices of a charge with their time: by their amounts in the report, so that both add up to the same."""
    parts = [
        (_slice(one, state), amount)
        for one in slices
        for state, amount in one.figure.amounts.items()
        if state not in _NOT_OF_SLICES and amount > 0
    ]
    if charge.kind is not ChargeKind.TIME or charge.state is UseState.STARTING or not parts:
        yield {}, charge.duration
        return
    times = split_time(charge.duration, [amount for _, amount in parts])
    yield from ((row, time) for (row, _), time in zip(parts, times, strict=True) if time)


def _slice(one: SliceCost, state: PartState) -> Row:
    return {
        "x_ModelName": one.model,
        "x_SliceDevice": one.key.device or None,
        "x_SliceId": one.key.slice or None,
        "x_SliceProfile": one.key.profile or None,
        "x_SliceRule": "inseparable" if len(one.key.users) > 1 else part_name(one),
        "x_SliceShare": one.key.size,
        "x_SliceState": state.value,
        "x_SliceUsers": " ".join(one.key.users) or None,
    }


def _whose(charge: Charge, share: UseShare) -> Row:
    if share.part is Part.TEAM:
        return {"x_Team": share.name}
    name = None if share.part is Part.NOT_RECORDED else share.name
    return {"x_Team": charge.owner, "x_RequestedModel": name}


def _used_first(charge: Charge) -> tuple[bool, datetime]:
    """The row of an instance that gets its tokens: its first used one."""
    return charge.state is not UseState.USED, charge.start


def write_csv(table: Iterable[Row]) -> str:
    """Rows as CSV with a header; null is an empty field."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in table:
        writer.writerow(cell(row[name]) for name in COLUMNS)
    return text.getvalue()


def days(since: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
    """A window cut at each UTC midnight."""
    cuts = [since]
    midnight = since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    while midnight < until:
        cuts.append(midnight)
        midnight += timedelta(days=1)
    return list(zip(cuts, [*cuts[1:], until], strict=True))


def _rows(charge: Charge, scope: str, served: _Served) -> Iterator[Row]:
    """One row, or two where a commitment pays for a part of the charge."""
    if charge.amount is None or charge.price is None:
        raise UnpricedError(
            f"{charge.resource} ({charge.machine_type}, {charge.capacity_type}) has no price, and FOCUS cannot"
            " express an unknown cost: run `gpufleet prices refresh` or state the price"
        )
    start = charge.start.astimezone(UTC).replace(microsecond=0)
    end = max(charge.end.astimezone(UTC).replace(microsecond=0), start + timedelta(seconds=1))
    for number, part in enumerate(_parts(charge, charge.price)):
        row: Row = dict.fromkeys(COLUMNS)
        row |= _place(charge) | _time(start, end) | _what(charge, charge.price, scope)
        row |= _costs(part, str(row["PricingUnit"])) | _ours(charge, charge.price, _Served() if number else served)
        row |= _commitment(charge, part, scope)
        if row["ChargeCategory"] == "Credit":
            row |= dict.fromkeys(_NOT_OF_CREDITS)
        yield row


def quantity_and_cost(duration: timedelta, usd_per_hour: Decimal, sign: int = 1) -> tuple[Decimal, Decimal]:
    """Hours and their cost, so that the product is exact in decimals and in 64-bit floats.

    The hours are those of the duration to nine decimals, adjusted by as few trillionths of an hour as necessary.
    """
    return _exact(_hours(duration) * sign, usd_per_hour)


def _hours(duration: timedelta) -> Decimal:
    return (money.seconds(duration) / money.SECONDS_PER_HOUR).quantize(_STEP)


def _exact(wanted: Decimal, price: Decimal) -> tuple[Decimal, Decimal]:
    """The nearest quantity whose product with the price is also exact in floats."""
    sign = -1 if wanted < 0 else 1
    for away in range(2_000):
        quantity = wanted + _TINY * away * sign
        cost = money.EXACT.multiply(quantity, price)
        if float(quantity) * float(price) == float(cost):
            return quantity, cost
    raise ArithmeticError(f"no quantity near {wanted} whose cost at {price} USD is exact in floats")


def _parts(charge: Charge, price: Price) -> Iterator[_Part]:
    hours, paid = _hours(charge.duration), price.committed
    if charge.kind is ChargeKind.COMMITTED:
        usd = money.EXACT.multiply(hours, price.usd_per_hour)
        own = Committed(name=charge.resource, usd_per_hour=price.usd_per_hour, share=Decimal(1))
        # an unused part has no list cost, because nothing ran
        yield _Part(
            quantity=usd, unit_price=money.ZERO, list_cost=money.ZERO, effective=usd, billed=money.ZERO, committed=own
        )
        return
    listed = price.list_usd_per_hour or price.usd_per_hour
    if paid is None:
        if listed != price.usd_per_hour:  # the price is for several units or a share of one
            hours = _DIVIDE.divide(_DIVIDE.multiply(hours, price.usd_per_hour), listed).quantize(_STEP)
        yield _at_list_price(hours if (charge.amount or 0) >= 0 else -hours, listed)
        return
    covered = _DIVIDE.multiply(hours, paid.share).quantize(_STEP)
    quantity, cost = _exact(covered, listed)
    yield _Part(
        quantity=quantity,
        unit_price=listed,
        list_cost=cost,
        effective=money.EXACT.multiply(hours, paid.usd_per_hour),
        billed=money.ZERO,
        committed=paid,
    )
    if covered < hours:
        yield _at_list_price(hours - covered, listed)


def _at_list_price(wanted: Decimal, price: Decimal) -> _Part:
    quantity, cost = _exact(wanted, price)
    return _Part(quantity=quantity, unit_price=price, list_cost=cost, effective=cost, billed=cost)


def _costs(part: _Part, unit: str) -> Row:
    price = _number(part.unit_price)
    unused = part.committed is not None and not part.unit_price
    return {
        "BilledCost": _number(part.billed),
        **dict.fromkeys(("EffectiveCost", "PricingCurrencyEffectiveCost"), _number(part.effective)),
        **dict.fromkeys(("ListCost", "ContractedCost"), _number(part.list_cost)),
        **dict.fromkeys(_UNIT_PRICES, price),
        "PricingQuantity": _number(part.quantity),
        "ConsumedQuantity": None if unused else _number(part.quantity),
        "ConsumedUnit": None if unused else unit,
        **dict.fromkeys(("BillingCurrency", "PricingCurrency"), CURRENCY),
    }


_UNIT_PRICES: Final = (
    "ListUnitPrice",
    "ContractedUnitPrice",
    "PricingCurrencyListUnitPrice",
    "PricingCurrencyContractedUnitPrice",
)


def _commitment(charge: Charge, part: _Part, scope: str) -> Row:
    """The commitment that pays, and its share."""
    if part.committed is None:
        return {}
    unused = charge.kind is ChargeKind.COMMITTED
    found = _of_commitment(charge.cloud, part.committed.name, scope, part.effective)
    return found | {"PricingCategory": "Committed", "CommitmentDiscountStatus": "Unused" if unused else "Used"}


def _of_commitment(cloud: Cloud, name: str, scope: str, usd: Decimal) -> Row:
    return {
        "CommitmentDiscountId": f"{scope}/{name}",
        "CommitmentDiscountName": name,
        "CommitmentDiscountType": _COMMITMENT[cloud],
        "CommitmentDiscountCategory": "Spend",
        "CommitmentDiscountQuantity": _number(usd),
        "CommitmentDiscountUnit": CURRENCY,
    }


def _buy(bought: dict[str, _Purchase], cloud: Cloud, row: Row) -> None:
    """Add the amount that a row pays with a commitment to the commitment's purchase."""
    name, start, end = row["CommitmentDiscountId"], row["ChargePeriodStart"], row["ChargePeriodEnd"]
    if name is None or start is None or end is None:
        return
    known = bought.setdefault(name, _Purchase(cloud=cloud, usd=money.ZERO, start=start, end=end))
    known.usd = money.EXACT.add(known.usd, Decimal(row["EffectiveCost"] or 0))
    known.start, known.end = min(known.start, start), max(known.end, end)


def _purchase(identity: str, bought: _Purchase) -> Row:
    """The purchase row of a commitment: its used and unused parts, as billed."""
    scope, _, name = identity.rpartition("/")
    usd, sku = bought.usd, f"{bought.cloud}:commitment"
    row: Row = dict.fromkeys(COLUMNS)
    row |= _time(datetime.fromisoformat(bought.start), datetime.fromisoformat(bought.end))
    part = _Part(quantity=usd, unit_price=Decimal(1), list_cost=usd, effective=money.ZERO, billed=usd)
    row |= _costs(part, CURRENCY) | _of_commitment(bought.cloud, name, scope, usd)
    row |= _service(bill_skus.COMMITMENTS[bought.cloud])
    return row | {
        "ConsumedQuantity": None,
        "ConsumedUnit": None,
        "PricingUnit": CURRENCY,
        "ChargeCategory": "Purchase",
        "ChargeDescription": f"{_COMMITMENT[bought.cloud]} {name}",
        "ChargeFrequency": "Recurring",
        "PricingCategory": "Standard",
        "ResourceId": identity,
        "ResourceName": name,
        "SkuId": sku,
        "SkuPriceId": f"{sku}:purchase",
        "SkuPriceDetails": json.dumps({"x_Sku": sku}),
        "Tags": "{}",
        "x_ChargeKind": PURCHASE,
        "x_CostBasis": "allocation",
        "x_Estimated": "true",
    }


def _account(cloud: Cloud, account: str) -> Row:
    return {
        **dict.fromkeys(("BillingAccountId", "BillingAccountName", "SubAccountId", "SubAccountName"), account),
        **dict.fromkeys(("BillingAccountType", "SubAccountType"), _ACCOUNT_TYPE[cloud]),
        **dict.fromkeys(("ProviderName", "PublisherName", "InvoiceIssuerName"), _PROVIDER[cloud]),
    }


def _place(charge: Charge) -> Row:
    return {
        "RegionId": charge.region or None,
        "RegionName": charge.region or None,
        "AvailabilityZone": charge.zone or None,
    }


def _service(service: bill_skus.BilledService) -> Row:
    return {
        "ServiceName": service.name,
        "ServiceCategory": service.category,
        "ServiceSubcategory": service.subcategory,
        "ResourceType": service.resource_type,
        "SkuMeter": service.meter,
        "PricingUnit": service.unit,
    }


def _time(start: datetime, end: datetime) -> Row:
    month = start.replace(day=1, hour=0, minute=0, second=0)
    return {
        "BillingPeriodStart": _moment(month),
        "BillingPeriodEnd": _moment((month + timedelta(days=32)).replace(day=1)),
        "ChargePeriodStart": _moment(start),
        "ChargePeriodEnd": _moment(end),
    }


def _what(charge: Charge, price: Price, scope: str) -> Row:
    reserved = charge.capacity_type is CapacityType.RESERVED
    unused = charge.kind is ChargeKind.RESERVATION
    tags = {"gpu-fleet:pool": charge.pool, "gpu-fleet:owner": charge.owner}
    return {
        **_sku(charge, price),
        "ChargeCategory": "Credit" if charge.kind is ChargeKind.PREEMPTED else "Usage",
        "ChargeDescription": f"{charge.machine_type} {charge.capacity_type}: {charge.kind}, {charge.state}",
        "ChargeFrequency": "Usage-Based",
        "PricingCategory": _PRICING[charge.capacity_type],
        "CapacityReservationId": charge.resource if unused else charge.reservation if reserved else None,
        "CapacityReservationStatus": "Unused" if unused else "Used" if reserved and charge.reservation else None,
        **_resource(charge, scope),
        "Tags": json.dumps({key: value for key, value in tags.items() if value is not None}),
    }


def _resource(charge: Charge, scope: str) -> Row:
    """Machines and reservations have ids of their cloud; declared resources have names unique in the fleet."""
    if charge.kind not in (ChargeKind.SHARED, ChargeKind.COMMITTED):
        return {"ResourceId": charge.resource, "ResourceName": None}
    return {"ResourceId": f"{scope}/{charge.resource}", "ResourceName": charge.resource}


def _sku(charge: Charge, price: Price) -> Row:
    """The SkuId is the same for every capacity type; the capacity type and the place are in the SkuPriceId."""
    where = price.zone or price.region
    if charge.kind is ChargeKind.COMMITTED:
        sku = f"{charge.cloud}:commitment"
        price_id, details, service = f"{sku}:unused", {"x_Sku": sku}, bill_skus.COMMITMENTS[charge.cloud]
    elif charge.kind is ChargeKind.SHARED:
        sku = price.sku.removesuffix(f":{CapacityType.ON_DEMAND}")
        price_id, details = f"{price.sku}:{where}", {"x_Sku": price.sku}
        service = bill_skus.service_of(price.sku)
    else:
        sku = machine_sku(charge.cloud, charge.machine_type, charge.capacity_type).removesuffix(
            f":{charge.capacity_type}"
        )
        bought = price.sku.removeprefix(sku) if price.sku.startswith(sku) else ":capacity-block"
        price_id, details = (
            f"{sku}{bought}:{where}",
            {"InstanceType": charge.machine_type, "OperatingSystem": "Linux"},
        )
        service = bill_skus.MACHINES[charge.cloud]
        if charge.kind is ChargeKind.RESERVATION:
            service = replace(service, resource_type="Capacity Reservation")
    return {
        **_service(service),
        "SkuId": sku,
        "SkuPriceId": price_id,
        "SkuPriceDetails": json.dumps(details),
    }


def _ours(charge: Charge, price: Price, served: _Served) -> Row:
    tokens = served.tokens
    return {
        "x_ChargeKind": charge.kind.value,
        "x_CostBasis": "allocation",
        "x_Estimated": "true",
        "x_ModelName": charge.model,
        "x_Pool": charge.pool,
        "x_State": charge.state.value,
        "x_PriceSource": price.source,
        "x_PriceAsOf": _moment(price.as_of),
        "x_PromptTokens": _sum(one.prompt for one in tokens),
        "x_CachedPromptTokens": _sum(one.cached for one in tokens),
        "x_GeneratedTokens": _sum(one.generation for one in tokens),
        **_energy(served.energy),
    }


def _energy(energy: Energy) -> Row:
    """Measured energy and its CO2e; null: unknown."""
    if energy.millijoules is None:
        return {}
    grams = energy.grams
    return {
        "x_EnergyJoules": _number(joules(energy.millijoules)),
        "x_IdleEnergyJoules": _number(joules(energy.idle_mj)),
        "x_EnergyMeasuredSeconds": _number(Decimal(energy.measured_us).scaleb(-6)),
        "x_CarbonGrams": None if grams is None else _number(grams),
    }


def _sum(values: Iterable[int | None]) -> str | None:
    known = [value for value in values if value is not None]
    return str(sum(known)) if known else None


def _number(value: Decimal) -> str:
    """A number with a decimal point, because readers of CSV guess the type of a column."""
    text = format(value, "f")
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}"


def _moment(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
