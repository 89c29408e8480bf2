"""The Price List service (`pricing`), which moto does not have: on-demand prices of the machine types it knows."""

import json
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from localcloud.addresses import REGION
from localcloud.aws.spot_prices import ON_DEMAND
from localcloud.documents import Document, items

SERVICE: Final = "pricing"
_PUBLISHED: Final = "2026-07-20T00:00:00Z"
_PAGE: Final = 100
_JSON: Final = ("Content-Type", "application/x-amz-json-1.1")
_STATES: Final = {
    "Used": ("BoxUsage", Decimal(1)),
    "AllocatedCapacityReservation": ("Reservation", Decimal(0)),
    "UnusedCapacityReservation": ("UnusedBox", Decimal(1)),
}
"""Capacity status -> usage type and share of the on-demand price, as the real list has them."""


def products() -> Iterator[dict[str, Any]]:
    """Every product, in the form of the real list."""
    for machine_type, usd in sorted(ON_DEMAND.items()):
        for status, (usage, share) in _STATES.items():
            yield _product(machine_type, status, usage, usd * share)


def _product(machine_type: str, status: str, usage: str, usd: Decimal) -> dict[str, Any]:
    sku = f"LOCAL{machine_type}.{status}".upper()
    rate = f"{sku}.JRTCKXETXF.6YS6EN2CT7"
    dimension: Document = {
        "unit": "Hrs",
        "endRange": "Inf",
        "beginRange": "0",
        "rateCode": rate,
        "description": f"${usd} per {status} Linux {machine_type} Instance Hour",
        "appliesTo": [],
        "pricePerUnit": {"USD": f"{usd:.10f}"},
    }
    term: Document = {
        "sku": sku,
        "offerTermCode": "JRTCKXETXF",
        "effectiveDate": _PUBLISHED,
        "priceDimensions": {rate: dimension},
        "termAttributes": {},
    }
    attributes = {
        "servicecode": "AmazonEC2",
        "instanceType": machine_type,
        "regionCode": REGION,
        "location": "US East (N. Virginia)",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "licenseModel": "No License required",
        "capacitystatus": status,
        "usagetype": f"{usage}:{machine_type}",
        "marketoption": "OnDemand",
    }
    return {
        "product": {"productFamily": "Compute Instance", "sku": sku, "attributes": attributes},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {f"{sku}.JRTCKXETXF": term}},
        "version": "20260720000000",
        "publicationDate": _PUBLISHED,
    }


def get_products(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """One page of GetProducts. Raises ValueError for what the service would refuse."""
    if wanted.get("ServiceCode") != "AmazonEC2":
        raise ValueError(f"The service code {wanted.get('ServiceCode')!r} is not known to the embedded cloud")
    filters = items(wanted, "Filters")
    if any(given.get("Type") != "TERM_MATCH" for given in filters):
        raise ValueError("Only filters of type TERM_MATCH are known to the embedded cloud")
    found = [product for product in products() if _matches(product, filters)]
    start, size = int(wanted.get("NextToken") or 0), int(wanted.get("MaxResults") or _PAGE)
    page = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(one) for one in found[start : start + size]]}
    return page | ({"NextToken": str(start + size)} if len(found) > start + size else {})


def _matches(product: Mapping[str, Any], filters: Iterable[Mapping[str, str]]) -> bool:
    attributes = product["product"]["attributes"]
    return all(attributes.get(given["Field"]) == given["Value"] for given in filters)


def answer(operation: str, body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
    """Status line, headers and body for a request of the service."""
    status = "400 Bad Request"
    if operation == "GetProducts":
        try:
            found, status = get_products(json.loads(body or b"{}")), "200 OK"
        except ValueError as error:
            found = {"__type": "InvalidParameterException", "message": str(error)}
    else:
        found = {"__type": "UnknownOperationException", "message": f"{operation} is not in the embedded cloud"}
    text = json.dumps(found).encode()
    return status, [_JSON, ("Content-Length", str(len(text)))], text
