"""How many of each way of buying a pool has, by what counts, and how many it wants. Pure."""

from datetime import datetime
from typing import Final

from gpufleet.domain.model import CapacityType
from gpufleet.domain.policies import SpotPolicy
from watchdogs.spot import leavers, presence, zones
from watchdogs.spot.view import PoolView

_STANDS_IN: Final = frozenset({CapacityType.ON_DEMAND, CapacityType.FLEX_START})


def surge(policy: SpotPolicy) -> int:
    """Most instances above target and spare while spot comes back: one always, or it never would."""
    return max(1, policy.max_surge)


class Sizes:
    """The arithmetic of a pool."""

    def __init__(self, pool: PoolView, now: datetime, reserved_coming: int) -> None:
        kinds = {group.name: group.capacity_type for group in pool.groups}
        self.reserved = reserved_coming
        self.reserved_ready = 0
        self.spot = self.spot_ready = self.spot_late = self.stable = 0
        self.on_demand = self.on_demand_late = booting = 0
        for member in pool.members:
            if member.leaving or member.failed:
                continue
            kind = kinds.get(member.group)
            if kind in _STANDS_IN:
                self.on_demand += not member.late
                self.on_demand_late += member.late
                continue
            since = member.ready_since
            self.stable += since is not None and now - since >= pool.policy.hold
            if kind is CapacityType.SPOT:
                self.spot += not member.late
                self.spot_late += member.late
                self.spot_ready += since is not None
                booting += since is None and now - member.launched_at < pool.boot_expected
            elif kind is CapacityType.RESERVED:
                self.reserved += not member.late
                self.reserved_ready += since is not None
        # a spare is for a pool that serves: what was scaled to zero has none
        in_all = pool.target + pool.spare if pool.target > 0 else 0
        base = max(0, in_all - self.reserved)
        self.spot_wanted = base + zones.extra(pool, base, now)
        # reserved capacity that boots serves nobody: until it is ready, spot stands in for it
        self.spot_needed = max(self.spot_wanted, in_all - self.reserved_ready)
        # the target falls when they are gone, as far as it may: until then nobody is missed for them
        ending = sum(leavers.drains_idle(member) for member in pool.members) if pool.idle_ends else 0
        self.ending_idle = min(ending, max(0, pool.target - pool.least_target))
        missing = pool.target - self.reserved - self.spot - self.ending_idle
        # what boots may go as those went that were taken lately: it is not counted on
        self.doubtful = min(booting, zones.taken_young(pool, now)) if booting else 0
        self.missing = missing + self.doubtful
        there = presence.with_replaced(self.spot, self.spot_late, self.spot_wanted)
        # on-demand keeps the pool whole until they are ready: beside it comes no more than the surge
        waits = max(self.ending_idle, self.on_demand - surge(pool.policy))
        self.spot_missing = max(0, self.spot_wanted - there - waits)
