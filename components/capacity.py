"""How a pool's instances are bought, in words that both clouds share, and the sizes that groups start with."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType
from gpufleet.settings.document import GroupEntry
from gpufleet.settings.environment import Capacity, CapacityBlock, Reserved

BLOCK_ENDS_EARLY: Final = timedelta(minutes=30)
"""AWS begins to end a Capacity Block's instances this long before the block's own end."""
CONTROL_ROOT_GIB: Final = 20
"""Root disk of the control host and of each router."""
SURGE: Final = 1
"""A group may grow by one above what its pool needs, while an instance is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCapacity:
    """All ways in which one pool is bought, and its limits."""

    target: int
    spare: int
    max: int
    ways: Capacity
    """Its on-demand capacity names its zones."""

    def __post_init__(self) -> None:
        if not 0 <= self.target <= self.max:
            raise ValueError(f"target {self.target} is outside 0 to max {self.max}")
        if not (self.ways.reserved or self.ways.spot or self.ways.stand_in):
            raise ValueError("a pool needs reserved, spot, on_demand or flex_start capacity, got none")
        if self.ways.on_demand and self.ways.flex_start:
            raise ValueError("on_demand and flex_start both stand in for spot; name one")

    @property
    def lasting(self) -> int:
        """Reserved instances without those of blocks, which the pool has to do without before and afterwards."""
        return sum(map(reserved_at_creation, self.ways.reserved))

    @property
    def spot_max(self) -> int:
        """Limit of each spot group: one zone may have to carry all that is not reserved."""
        return max(self.max + self.spare - self.lasting, 0) + SURGE

    def spot_at_creation(self) -> Mapping[str, int]:
        """Size of each zone's spot group when it is made: target and spare less reserved, spread over zones."""
        if self.ways.spot is None:
            return {}
        wanted, zones = max(self.target + self.spare - self.lasting, 0), self.ways.spot.zones
        return {zone: wanted // len(zones) + (index < wanted % len(zones)) for index, zone in enumerate(zones)}

    def stand_in_at_creation(self) -> int:
        """Of on-demand or flex-start: 0 beside spot, which is tried first; without spot it carries the pool."""
        bought = self.ways.stand_in
        if bought is None or self.ways.spot is not None:
            return 0
        return min(max(self.target - self.lasting, 0), bought.max)


def reserved_at_creation(reserved: Reserved) -> int:
    """All of it; of a block nothing, since it may not have begun: the spot watchdog starts it in its time."""
    return 0 if reserved.block else reserved.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """Whose instances these are; becomes their tags."""

    environment: str
    pool: str
    owner: str

    def tags(self, capacity_type: CapacityType) -> dict[str, str]:
        return {
            tags.ENVIRONMENT: self.environment,
            tags.POOL: self.pool,
            tags.CAPACITY_TYPE: capacity_type.value,
            tags.OWNER: self.owner,
        }


def group_entry(  # noqa: PLR0913
    *,
    capacity_type: CapacityType,
    name: str,
    size_limit: int,
    machine_types: tuple[str, ...],
    zone: str | None = None,
    reservation: str | None = None,
    block: CapacityBlock | None = None,
) -> GroupEntry:
    """A group as the fleet document lists it."""
    return GroupEntry(
        type=capacity_type,
        zone=zone,
        name=name,
        max=size_limit,
        reservation=reservation,
        machine_types=machine_types,
        opens=block.starts if block else None,
        closes=block.ends if block else None,
    )
