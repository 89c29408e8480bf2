"""The cost of a Capacity Block in a plan: capacity that was bought for a time and paid upfront.

Its group starts at 0, and the spot watchdog fills it during the block's time, so a plan's sizes do not include it.
Its cost is its fee, spread over the hours of the block; a month contains at most those hours.
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
"""Last part of the sku under which `prices:` may state the hourly price of an instance in a block."""
_HOUR: Final = Decimal(3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTerm:
    """A block of the settings."""

    reservation: str
    machine_type: str
    count: int
    block: CapacityBlock
    fee: BlockEntry | None
    """Its fee, as the settings declare it under `commitments`."""

    @property
    def hours(self) -> Decimal:
        return Decimal(int((self.block.ends - self.block.starts).total_seconds())) / _HOUR

    def sku(self, cloud: Cloud) -> str:
        return machine_sku(cloud, self.machine_type, CapacityType.RESERVED).removesuffix(CapacityType.RESERVED) + SKU

    def declared(self, sku: str, region: str) -> Priced | None:
        """USD per instance and hour by the declared fee; None: no fee is declared. Raises ValueError (bad date)."""
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
        """The cost at every size of the pool, because the block is paid whether it is used or not."""
        units = Decimal(self.count)
        return CostLine(
            pool=pool,
            what=CapacityType.RESERVED.value,
            sku=sku,
            least=units,
            desired=units,
            most=units,
            price=price,
            note=f"block {self.reservation}, {self.block.starts:%Y-%m-%d} to {self.block.ends:%Y-%m-%d}, prepaid",
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
