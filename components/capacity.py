"""How a pool's instances are bought, in words that both clouds share, and the sizes that groups start with."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType
from gpufleet.settings.document import GroupEntry

BLOCK_ENDS_EARLY: Final = timedelta(minutes=30)
"""AWS begins to end a Capacity Block's instances this long before the block's own end."""
CONTROL_ROOT_GIB: Final = 20
"""Root disk of the control host and of each router."""
SURGE: Final = 1
"""A group may grow by one above what its pool needs, while an instance is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Capacity bought for a fixed time: before it and after it nothing can be started there."""

    starts: datetime
    ends: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Prepaid capacity of one machine type in one zone."""

    zone: str
    machine_type: str
    count: int
    existing: str | None = None
    """Id of a reservation bought elsewhere; None: made with the pool."""
    block: Block | None = None
    """Bought for a fixed time (Capacity Block)."""
    ends: str | None = None
    """`2027-03-01`; None: until given back."""
    review_by: str | None = None
    """`2027-03-01`: when people look at it again."""

    @property
    def at_creation(self) -> int:
        """All of it; of a block nothing, since it may not have begun: the spot watchdog starts it in its time."""
        return 0 if self.block else self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Spot capacity: one group per zone, each with all machine types."""

    zones: tuple[str, ...]
    machine_types: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand:
    """On-demand capacity that stands in for missing spot: one group over all zones."""

    max: int
    machine_types: tuple[str, ...]
    zones: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexStart:
    """Capacity that stands in for missing spot as on-demand does: waited for in one zone, had for a time."""

    max: int
    machine_type: str
    zone: str
    run: timedelta
    """The cloud ends an instance after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """All ways in which one pool is bought, and its limits."""

    target: int
    spare: int
    max: int
    reserved: tuple[Reserved, ...] = ()
    spot: Spot | None = None
    on_demand: OnDemand | None = None
    flex_start: FlexStart | None = None
    """Google Cloud; instead of on-demand."""

    def __post_init__(self) -> None:
        if not 0 <= self.target <= self.max:
            raise ValueError(f"target {self.target} is outside 0 to max {self.max}")
        if not (self.reserved or self.spot or self.on_demand or self.flex_start):
            raise ValueError("a pool needs reserved, spot, on_demand or flex_start capacity, got none")
        if self.on_demand and self.flex_start:
            raise ValueError("on_demand and flex_start both stand in for spot; name one")

    @property
    def lasting(self) -> int:
        """Reserved instances without those of blocks, which the pool has to do without before and afterwards."""
        return sum(reservation.at_creation for reservation in self.reserved)

    @property
    def spot_max(self) -> int:
        """Limit of each spot group: one zone may have to carry all that is not reserved."""
        return max(self.max + self.spare - self.lasting, 0) + SURGE

    def spot_at_creation(self) -> Mapping[str, int]:
        """Size of each zone's spot group when it is made: target and spare less reserved, spread over zones."""
        if self.spot is None:
            return {}
        wanted, zones = max(self.target + self.spare - self.lasting, 0), self.spot.zones
        return {zone: wanted // len(zones) + (index < wanted % len(zones)) for index, zone in enumerate(zones)}

    def on_demand_at_creation(self) -> int:
        """0 beside spot, which is tried first; without spot, on-demand carries the pool from the start."""
        return self._stand_in_at_creation(self.on_demand)

    def flex_start_at_creation(self) -> int:
        """As of on-demand."""
        return self._stand_in_at_creation(self.flex_start)

    def _stand_in_at_creation(self, bought: OnDemand | FlexStart | None) -> int:
        if bought is None or self.spot is not None:
            return 0
        return min(max(self.target - self.lasting, 0), bought.max)


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
    block: Block | None = None,
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
