"""List prices that ship with the package, with their dates: see `data/SOURCE.md`."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Final

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import AcceleratorKind
from gpufleet.domain.model import Cloud
from gpufleet.domain.prices import Price, Rank

_GOOGLE_HEAD: Final = datetime.fromisoformat("2026-08-20T00:00:00+00:00")
"""The date of the table's newest version, which confirms the last row of each machine type."""


@dataclass(frozen=True, slots=True)
class PackagedPrices:
    """Looks up prices in the tables of the package. Each table is read once, when it is needed."""

    def prices(self, sku: str, region: str) -> Sequence[Price]:
        """The history of a sku in a region, oldest first; empty if the tables do not contain it."""
        cloud, _, rest = sku.partition(":")
        _, _, rest = rest.partition(":")
        machine_type, _, kind = rest.partition(":")
        table = {
            ("aws", "on-demand"): _aws_on_demand,
            ("gcp", "on-demand"): _gcp_on_demand,
            ("gcp", "spot"): _gcp_spot,
        }.get((cloud, kind))
        return table().get((machine_type, region), ()) if table else ()

    def skus(self, region: str) -> tuple[str, ...]:
        """Every sku with a packaged price in a region, by name."""
        tables = {
            "aws:ec2:{}:on-demand": _aws_on_demand,
            "gcp:compute:{}:on-demand": _gcp_on_demand,
            "gcp:compute:{}:spot": _gcp_spot,
        }
        return tuple(
            sorted(form.format(name) for form, table in tables.items() for name, where in table() if where == region)
        )


_Table = dict[tuple[str, str], tuple[Price, ...]]


@cache
def _aws_on_demand() -> _Table:
    table: dict[tuple[str, str], tuple[Price, ...]] = {}
    for row in _rows("aws_on_demand.csv"):
        key = (row["machine_type"], row["region"])
        price = Price(
            sku=f"aws:ec2:{row['machine_type']}:on-demand",
            region=row["region"],
            usd_per_hour=Decimal(row["usd_per_hour"]),
            source=f"packaged: {row['source']}",
            as_of=datetime.fromisoformat(row["last_seen"]),
            valid_from=datetime.fromisoformat(row["valid_from"]),
            rank=Rank.PACKAGED,
        )
        table[key] = (*table.get(key, ()), price)
    return table


@cache
def _gcp_on_demand() -> _Table:
    return _google("gcp_on_demand.csv", "on-demand") | _tpus("on-demand")


@cache
def _gcp_spot() -> _Table:
    return _google("gcp_spot.csv", "spot") | _tpus("spot")


def _tpus(kind: str) -> _Table:
    """Prices of machines with TPUs. The price of a chip includes its share of the machine."""
    table: _Table = {}
    machines = [one for one in catalogue.machines(Cloud.GCP) if one.accelerator is AcceleratorKind.TPU]
    for row in _rows("gcp_tpu.csv"):
        for machine in machines:
            if (row["tpu"], row["kind"]) != (machine.gpu, kind):
                continue
            key = (machine.name, row["region"])
            price = Price(
                sku=f"gcp:compute:{machine.name}:{kind}",
                region=row["region"],
                usd_per_hour=Decimal(row["usd_per_chip_hour"]) * machine.gpu_count,
                source="packaged: skypilot-catalog",
                as_of=datetime.fromisoformat(row["last_seen"]),
                valid_from=datetime.fromisoformat(row["valid_from"]),
                rank=Rank.PACKAGED,
            )
            table[key] = (*table.get(key, ()), price)
    return table


def _google(file: str, kind: str) -> _Table:
    """Read one row per change: a row applies until the next one of its machine type and region."""
    rows: dict[tuple[str, str], list[tuple[datetime, Decimal]]] = {}
    for row in _rows(file):
        change = (datetime.fromisoformat(row["valid_from"]), Decimal(row["usd_per_hour"]))
        rows.setdefault((row["machine_type"], row["region"]), []).append(change)
    return {
        (machine_type, region): tuple(
            Price(
                sku=f"gcp:compute:{machine_type}:{kind}",
                region=region,
                usd_per_hour=usd,
                source="packaged: google-cloud-pricing-cost-calculator",
                as_of=until,
                valid_from=since,
                rank=Rank.PACKAGED,
            )
            for (since, usd), (until, _) in zip(changes, [*changes[1:], (_GOOGLE_HEAD, None)], strict=True)
        )
        for (machine_type, region), changes in rows.items()
    }


def _rows(file: str) -> Iterator[dict[str, str]]:
    text = resources.files("gpufleet.prices.data").joinpath(file).read_text(encoding="utf-8")
    return iter(csv.DictReader(text.splitlines()))
