"""Capacity that was bought for a time and paid at once (a Capacity Block), in a plan.

Its group starts at 0 and is filled within its time by the spot watchdog, so a plan's sizes say nothing of it. What it
costs is its fee, spread over the hours that it was paid for; a month holds at most those hours of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.money import HOURS_PER_MONTH
from prices.book import Price, Rank, machine_sku, parse_as_of
from prices.plan.lines import Line, Priced
from prices.plan.preview import as_list, as_map

SKU: Final = "capacity-block"
"""Last word of the sku under which `prices:` may state what an instance of a block costs an hour."""
_HOUR: Final = Decimal(3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fee:
    """What was paid for a block, as the settings' commitments declare it."""

    usd: Decimal
    instances: int
    source: str
    as_of: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A block of the settings."""

    reservation: str
    machine_type: str
    count: int
    starts: datetime
    ends: datetime
    fee: Fee | None

    @property
    def hours(self) -> Decimal:
        return Decimal(int((self.ends - self.starts).total_seconds())) / _HOUR

    def sku(self, cloud: Cloud) -> str:
        return machine_sku(cloud, self.machine_type, CapacityType.RESERVED).removesuffix(CapacityType.RESERVED) + SKU

    def declared(self, sku: str, region: str) -> Priced | None:
        """USD per instance and hour by the declared fee; None where none is declared."""
        if self.fee is None:
            return None
        usd = self.fee.usd / (self.fee.instances * self.hours)
        price = Price(
            sku=sku,
            region=region,
            usd_per_hour=usd,
            source=self.fee.source,
            as_of=self.fee.as_of,
            valid_from=self.starts,
            rank=Rank.OVERRIDE,
        )
        return Priced(usd_per_hour=usd, low=usd, high=usd, prices=(price,))

    def line(self, pool: str, sku: str, price: Priced) -> Line:
        """Paid for at every size of the pool, used or not."""
        units = Decimal(self.count)
        return Line(
            pool=pool,
            what=CapacityType.RESERVED.value,
            sku=sku,
            least=units,
            desired=units,
            most=units,
            price=price,
            note=f"block {self.reservation}, {self.starts:%Y-%m-%d} to {self.ends:%Y-%m-%d}, paid ahead",
            hours_per_month=min(Decimal(HOURS_PER_MONTH), self.hours),
        )


def terms(settings: Mapping[str, Any]) -> dict[str, Term]:
    """Every block of an environment's settings, by the id of its reservation."""
    fees = {
        str(block["reservation"]): Fee(
            usd=Decimal(str(block["upfront_usd"])),
            instances=int(block["instances"]),
            source=str(block["source"]),
            as_of=parse_as_of(str(block["as_of"])),
        )
        for block in map(as_map, as_list(as_map(settings.get("commitments")).get("blocks")))
    }
    found: dict[str, Term] = {}
    for pool in map(as_map, as_list(settings.get("pools"))):
        for reserved in map(as_map, as_list(as_map(pool.get("capacity")).get("reserved"))):
            block, reservation = as_map(reserved.get("block")), str(reserved.get("existing"))
            if block:
                found[reservation] = Term(
                    reservation=reservation,
                    machine_type=str(reserved["machine_type"]),
                    count=int(reserved["count"]),
                    starts=datetime.fromisoformat(str(block["starts"])),
                    ends=datetime.fromisoformat(str(block["ends"])),
                    fee=fees.get(reservation),
                )
    return found
