"""How a pool buys its instances, in terms that both clouds share, and the initial sizes of its groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType
from gpufleet.settings.document import GroupEntry
from gpufleet.settings.environment import Capacity, CapacityBlock, Reserved

BLOCK_ENDS_EARLY: Final = timedelta(minutes=30)
"""AWS starts to terminate the instances of a Capacity Block this long before the end of the block."""
CONTROL_ROOT_GIB: Final = 20
"""Root disk size of the control host and of each router, in GiB."""
SURGE: Final = 1
"""A group may exceed the need of its pool by this number while an instance is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCapacity:
    """All capacity types of one pool, and its size limits."""

    target: int
    spare: int
    max: int
    ways: Capacity
    """The capacity types. The on-demand capacity names its zones."""

    def __post_init__(self) -> None:
        if not 0 <= self.target <= self.max:
            raise ValueError(f"target {self.target} is outside 0 to max {self.max}")
        if not (self.ways.reserved or self.ways.spot or self.ways.fallback):
            raise ValueError("a pool needs reserved, spot, on_demand or flex_start capacity, got none")
        if self.ways.on_demand and self.ways.flex_start:
            raise ValueError("on_demand and flex_start: only one can replace missing spot; give one")

    @property
    def lasting(self) -> int:
        """Number of reserved instances outside of blocks. Before and after a block, the pool has only these."""
        return sum(map(reserved_at_creation, self.ways.reserved))

    @property
    def spot_max(self) -> int:
        """Size limit of each spot group. One zone may have to provide all capacity that is not reserved."""
        return max(self.max + self.spare - self.lasting, 0) + SURGE

    def spot_at_creation(self) -> Mapping[str, int]:
        """Initial size of each zone's spot group: target plus spare minus reserved, spread over the zones."""
        if self.ways.spot is None:
            return {}
        wanted, zones = max(self.target + self.spare - self.lasting, 0), self.ways.spot.zones
        return {zone: wanted // len(zones) + (index < wanted % len(zones)) for index, zone in enumerate(zones)}

    def fallback_at_creation(self) -> int:
        """Initial size of the on-demand or flex-start group. It is 0 with spot, which is tried first; without spot
        this group provides all capacity.
        """
        bought = self.ways.fallback
        if bought is None or self.ways.spot is not None:
            return 0
        return min(max(self.target - self.lasting, 0), bought.max)


def reserved_at_creation(reserved: Reserved) -> int:
    """Return the initial size of a reservation's group: the whole reservation, but 0 for a block. A block may not
    have started yet; the spot watchdog starts its instances in time.
    """
    return 0 if reserved.block else reserved.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The owner of instances. It is written to their tags."""

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
    """Return the entry of a group in the fleet document."""
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
