"""The groups of a pool on AWS as plain values, without Pulumi.

`gpu_pool` declares them, and `gpufleet import` compares existing groups with them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from components.capacity import PoolCapacity
from gpufleet.domain.existing_group import LifecycleHook
from gpufleet.domain.model import DRAIN_HOOK, READY_HOOK, CapacityType

SUSPENDED_PROCESSES: Final = ("AZRebalance",)
"""Processes of an Auto Scaling group that would act against a watchdog. They are suspended."""
HEALTH_CHECK: Final = "EC2"
SPOT_STRATEGY: Final = "price-capacity-optimized"
ON_DEMAND_STRATEGY: Final = "prioritized"
ON_DEMAND: Final = "on-demand"
"""Key of the on-demand group within its pool. `spot_key` returns those of the spot groups."""
_BOOT_MAY_TAKE: Final = timedelta(minutes=30)
_HOOK_MARGIN: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """A spot or on-demand group of a pool."""

    key: str
    """Unique within the pool. The group's name in the program is `<pool>-<key>`."""
    capacity_type: CapacityType
    zones: tuple[str, ...]
    limit: int
    """Maximum size."""
    at_creation: int
    machine_types: tuple[str, ...]

    @property
    def on_demand_percentage(self) -> int:
        """Share of on-demand instances, in percent."""
        return 100 if self.capacity_type is CapacityType.ON_DEMAND else 0


def spot_key(zone: str) -> str:
    """Return the key of the spot group of a zone."""
    return f"spot-{zone}"


def adoptable(capacity: PoolCapacity) -> Iterator[GroupShape]:
    """Yield the spot and on-demand groups of a pool. Reserved groups are missing: they cannot be adopted."""
    if (spot := capacity.ways.spot) is not None:
        for zone, size in capacity.spot_at_creation().items():
            yield GroupShape(
                key=spot_key(zone),
                capacity_type=CapacityType.SPOT,
                zones=(zone,),
                limit=capacity.spot_max,
                at_creation=size,
                machine_types=spot.machine_types,
            )
    if (on_demand := capacity.ways.on_demand) is not None:
        yield GroupShape(
            key=ON_DEMAND,
            capacity_type=CapacityType.ON_DEMAND,
            zones=on_demand.zones,
            limit=on_demand.max,
            at_creation=capacity.fallback_at_creation(),
            machine_types=on_demand.machine_types,
        )


def ready_hook() -> LifecycleHook:
    """Return the hook with which an instance is in service only when it serves."""
    seconds = int(_BOOT_MAY_TAKE.total_seconds())
    return LifecycleHook(name=READY_HOOK, transition="autoscaling:EC2_INSTANCE_LAUNCHING", timeout_s=seconds)


def drain_hook(deadline: timedelta) -> LifecycleHook:
    """Return the hook with which an instance finishes its requests before it ends."""
    seconds = int((deadline + _HOOK_MARGIN).total_seconds())
    return LifecycleHook(name=DRAIN_HOOK, transition="autoscaling:EC2_INSTANCE_TERMINATING", timeout_s=seconds)
