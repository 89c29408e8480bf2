"""Capacity that was bought for a time and paid at once (a Capacity Block), in a plan.

Its group starts at 0 and is filled within its time by the spot watchdog, so a plan's sizes say nothing of it. What it
costs is its fee, spread over the hours that it was paid for; a month holds at most those hours of it.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.money import HOURS_PER_MONTH
from gpufleet.domain.prices import Price, Rank
from gpufleet.prices.book import machine_sku, parse_as_of
from gpufleet.prices.plan.lines import CostLine, Priced
from gpufleet.settings.document.money import BlockEntry
from gpufleet.settings.environment import CapacityBlock
from gpufleet.settings.reading import Parts

SKU: Final = "capacity-block"
"""Last word of the sku under which `prices:` may state what an instance of a block costs an hour."""
_HOUR: Final = Decimal(3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTerm:
    """A block of the settings."""

    reservation: str
    machine_type: str
    count: int
    block: CapacityBlock
    fee: BlockEntry | None
    """What was paid for it, as the settings' commitments declare it."""

    @property
    def hours(self) -> Decimal:
        return Decimal(int((self.block.ends - self.block.starts).total_seconds())) / _HOUR

    def sku(self, cloud: Cloud) -> str:
        return machine_sku(cloud, self.machine_type, CapacityType.RESERVED).removesuffix(CapacityType.RESERVED) + SKU

    def declared(self, sku: str, region: str) -> Priced | None:
        """USD per instance and hour by the declared fee; None where none is declared. Raises ValueError: no date."""
        if self.fee is None:
            return None
        usd = self.fee.upfront_usd / (self.fee.instances * self.hours)
        price = Price(
            sku=sku,
            region=region,
            usd_per_hour=usd,
            source=self.fee.source,
            as_of=parse_as_of(self.fee.as_of),
            valid_from=self.block.starts,
            rank=Rank.OVERRIDE,
        )
        return Priced(usd_per_hour=usd, low=usd, high=usd, prices=(price,))

    def line(self, pool: str, sku: str, price: Priced) -> CostLine:
        """Paid for at every size of the pool, used or not."""
        units = Decimal(self.count)
        return CostLine(
            pool=pool,
            what=CapacityType.RESERVED.value,
            sku=sku,
            least=units,
            desired=units,
            most=units,
            price=price,
            note=f"block {self.reservation}, {self.block.starts:%Y-%m-%d} to {self.block.ends:%Y-%m-%d}, paid ahead",
            hours_per_month=min(Decimal(HOURS_PER_MONTH), self.hours),
        )


def terms(settings: Parts) -> dict[str, BlockTerm]:
    """Every block of an environment's settings, by the id of its reservation."""
    fees = {fee.reservation: fee for fee in settings.commitments.blocks}
    bought = [reserved for pool in settings.pools for reserved in pool.capacity.reserved]
    return {
        reserved.existing: BlockTerm(
            reservation=reserved.existing,
            machine_type=reserved.machine_type,
            count=reserved.count,
            block=reserved.block,
            fee=fees.get(reserved.existing),
        )
        for reserved in bought
        if reserved.block is not None and reserved.existing is not None
    }
