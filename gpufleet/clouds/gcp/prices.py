"""Google Cloud prices by machine type, computed from the Cloud Billing Catalog.

The catalog has no prices for machine types. It has prices for vCPUs, memory, GPUs and bundled local SSD, each per
region and provisioning model. A component without exactly one price is an error and is never omitted.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from http.client import HTTPException
from typing import Any, Final

from gpufleet.clouds.gcp.emulator import emulator
from gpufleet.domain import money
from gpufleet.domain.activity import CloudError
from gpufleet.domain.catalogue import MachineType, machine
from gpufleet.domain.model import Cloud
from gpufleet.domain.prices import Price

SOURCE: Final = "Google Cloud Billing Catalog"
COMPUTE_ENGINE: Final = "services/6F81-5844-456A"
_GIB: Final = 2**30
_USAGE: Final = {"on-demand": "OnDemand", "spot": "Preemptible"}
_GPUS: Final = {
    "T4": r"Nvidia Tesla T4 GPU",
    "L4": r"Nvidia L4 GPU",
    "A100-40GB": r"Nvidia Tesla A100 GPU",
    "A100-80GB": r"Nvidia Tesla A100 80GB GPU",
    "H100-80GB": r"Nvidia H100 80GB( Mega| Plus)? GPU",
    "H200-141GB": r"Nvidia H200 141GB GPU",
    "B200-180GB": r"Nvidia B200( 180GB)? GPU",
    "RTX-PRO-6000": r"(Nvidia )?RTX (PRO )?6000 96GB( GPU)?",
}
"""Patterns for the catalog's description of each GPU. The catalog has no ids for GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part of a machine type: its quantity, and the catalog's description."""

    quantity: Decimal
    unit: str
    """`h`: per hour each; `GiBy.h`: per GiB and hour; `GiBy.mo`: per GiB and month."""
    pattern: re.Pattern[str]


class GooglePrices:
    """Prices of one region."""

    def __init__(self, region: str, client: Any = None) -> None:
        self._region = region
        self._client = client
        """The service object of google-api-python-client. None: created when it is needed."""

    def refresh(self, machine_types: Sequence[str], now: datetime) -> tuple[list[Price], list[str]]:
        """Current prices of all machine types, and the messages of failures."""
        try:
            skus = [sku for sku in self._skus() if self._region in sku.get("serviceRegions", ())]
        except CloudError as error:
            return [], [str(error)]
        found: list[Price] = []
        errors: list[str] = []
        for name in machine_types:
            for kind in _USAGE:
                try:
                    found.append(price_of(machine(Cloud.GCP, name), kind, skus, self._region, now))
                except (CloudError, LookupError) as error:
                    errors.append(str(error))
        return found, errors

    def _skus(self) -> Iterator[Mapping[str, Any]]:
        """All SKUs of Compute Engine, from all pages. Raises CloudError."""
        from google.auth.exceptions import GoogleAuthError
        from googleapiclient.discovery import build
        from googleapiclient.errors import Error
        from httplib2 import HttpLib2Error

        from gpufleet.clouds.gcp.calls import ENDPOINT

        if self._client is None and emulator(ENDPOINT) is not None:
            raise CloudError(f"{SOURCE} could not be read: the emulated cloud has no price catalog")
        try:
            client = self._client or build("cloudbilling", "v1", cache_discovery=False, static_discovery=True)
            listing = client.services().skus()
            request = listing.list(parent=COMPUTE_ENGINE, pageSize=5000)
            while request is not None:
                page = request.execute()
                if "skus" not in page:
                    raise CloudError(f"{SOURCE}: a page contains no skus, so the list is incomplete")
                yield from page["skus"]
                request = listing.list_next(request, page)
        except (Error, GoogleAuthError, HttpLib2Error, HTTPException, OSError, ValueError) as error:
            raise CloudError(f"{SOURCE} could not be read: {error}") from error


def price_of(wanted: MachineType, kind: str, skus: Sequence[Mapping[str, Any]], region: str, now: datetime) -> Price:
    """Price of a machine type in USD per hour, the sum of its components.

    Raises CloudError if a component does not have exactly one price.
    """
    total, effective = Decimal(0), datetime(1970, 1, 1, tzinfo=UTC)
    for part in components(wanted, kind):
        usd, since = _unit_price(part, kind, skus, wanted.name, region)
        per_hour = usd / money.HOURS_PER_MONTH if part.unit == "GiBy.mo" else usd
        total += per_hour * part.quantity
        effective = max(effective, since)
    return Price(
        sku=f"gcp:compute:{wanted.name}:{kind}",
        region=region,
        zone=None,
        usd_per_hour=total.quantize(Decimal("1e-9")).normalize(),
        valid_from=min(effective, now),
        as_of=now,
        source=SOURCE,
    )


def components(wanted: MachineType, kind: str) -> Iterator[Component]:
    """The components of a machine type. Raises CloudError for a GPU whose catalog description is unknown."""
    prefix = "Spot Preemptible " if kind == "spot" else ""
    family = wanted.name.split("-", 1)[0].upper()
    gpu = _GPUS.get(wanted.gpu)
    if gpu is None:
        raise CloudError(f"{wanted.name}: the catalog's name for {wanted.gpu} is unknown")

    def part(quantity: Decimal, unit: str, pattern: str) -> Component:
        return Component(quantity=quantity, unit=unit, pattern=re.compile(rf"{prefix}{pattern} running in .+", re.I))

    yield part(Decimal(wanted.vcpus), "h", rf"{family} Instance Core")
    yield part(Decimal(wanted.memory_mib) / 1024, "GiBy.h", rf"{family} Instance Ram")
    gpus = wanted.gpu_count * wanted.gpu_share
    yield part(Decimal(gpus.numerator) / gpus.denominator, "h", gpu)
    if not wanted.nvme_optional:
        gib = Decimal(wanted.nvme_bytes) / _GIB
        yield Component(
            quantity=gib,
            unit="GiBy.mo",
            pattern=re.compile(rf"{'Spot Preemptible ' * (kind == 'spot')}SSD backed Local Storage( .+)?", re.I),
        )


def _unit_price(
    part: Component, kind: str, skus: Sequence[Mapping[str, Any]], name: str, region: str
) -> tuple[Decimal, datetime]:
    found: set[tuple[Decimal, datetime]] = set()
    for sku in skus:
        if sku["category"]["usageType"] != _USAGE[kind] or not part.pattern.fullmatch(sku["description"]):
            continue
        info = sku["pricingInfo"][-1]
        expression = info["pricingExpression"]
        if expression["usageUnit"] != part.unit:
            continue
        unit_price = expression["tieredRates"][-1]["unitPrice"]
        if unit_price.get("currencyCode", "USD") != "USD":
            raise CloudError(f"{name} in {region}: expected a price in USD, got {unit_price['currencyCode']}")
        usd = Decimal(unit_price.get("units", "0")) + Decimal(unit_price.get("nanos", 0)).scaleb(-9)
        if usd <= 0:
            raise CloudError(f"{name} ({kind}) in {region}: the catalog's price of {sku['description']} is 0")
        found.add((usd, datetime.fromisoformat(info["effectiveTime"]).astimezone(UTC)))
    if len(found) != 1:
        raise CloudError(
            f"{name} ({kind}) in {region}: expected one price in the catalog, got {len(found)}"
            f" (descriptions that match {part.pattern.pattern!r})"
        )
    return found.pop()
