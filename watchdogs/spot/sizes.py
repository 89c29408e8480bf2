"""Counts the instances of each capacity type that a pool has and wants, and their terms. Pure.

The cloud ends the instances of a Capacity Block starting at `closes`, and a flex-start instance at its `ends_at`,
drained or not. So replacements are requested early enough to be ready, and drains begin early enough to end, each
with a margin for failed passes.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.model import CapacityType
from gpufleet.domain.policies import SpotPolicy
from watchdogs.spot import lifecycle, zones
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView

_FALLBACK_TYPES: Final = frozenset({CapacityType.ON_DEMAND, CapacityType.FLEX_START})


def surge(policy: SpotPolicy) -> int:
    """Maximum number of instances above target and spare while spot replaces on-demand: at least one, or spot could
    not replace it.
    """
    return max(1, policy.max_surge)


class Sizes:
    """Instance counts of a pool, and what is missing."""

    def __init__(self, pool: SpotPoolView, now: datetime, reserved_coming: int) -> None:
        kinds = {group.name: group.capacity_type for group in pool.groups}
        self.reserved = reserved_coming
        self.reserved_ready = 0
        self.spot = self.spot_ready = self.spot_late = self.stable = 0
        self.on_demand = self.on_demand_late = booting = 0
        for member in pool.members:
            if member.leaving or member.failed:
                continue
            kind = kinds.get(member.group)
            if kind in _FALLBACK_TYPES:
                self.on_demand += not member.late
                self.on_demand_late += member.late
                continue
            since = member.ready_since
            self.stable += since is not None and now - since >= pool.policy.hold
            if kind is CapacityType.SPOT:
                self.spot += not member.late
                self.spot_late += member.late
                self.spot_ready += since is not None
                young = now - member.launched_at < lifecycle.expected_boot(pool, member)
                booting += since is None and (member.progresses or young)
            elif kind is CapacityType.RESERVED:
                self.reserved += not member.late
                self.reserved_ready += since is not None
        # a pool scaled to zero has no spare
        target_and_spare = pool.target + pool.spare if pool.target > 0 else 0
        base = max(0, target_and_spare - self.reserved)
        self.spot_wanted = base + zones.extra(pool, base, now)
        # reserved capacity that boots does not serve: until it is ready, spot replaces it
        self.spot_needed = max(self.spot_wanted, target_and_spare - self.reserved_ready)
        # the target is lowered when they have ended: until then they are not missing
        ending = sum(lifecycle.drains_idle(member) for member in pool.members) if pool.idle_ends else 0
        self.ending_idle = min(ending, max(0, pool.target - pool.min_target))
        # replacements of repeated crashes wait
        self.postponed = len(lifecycle.crash_waits(pool, now))
        missing = pool.target - self.reserved - self.spot - self.ending_idle - self.postponed
        # booting instances may be reclaimed like those reclaimed recently, so they are discounted
        self.likely_preempted = min(booting, zones.preempted_while_booting(pool, now)) if booting else 0
        self.missing = missing + self.likely_preempted
        there = lifecycle.with_replaced(self.spot, self.spot_late, self.spot_wanted)
        # on-demand serves until spot is ready: in addition to it at most the surge is requested
        waits = max(self.ending_idle, self.on_demand - surge(pool.policy))
        self.spot_missing = max(0, self.spot_wanted - there - waits - self.postponed)


# capacity that was bought for a time

MARGIN: Final = timedelta(minutes=5)
"""Allows for a pass that fails or is late."""


class GroupTerm(StrEnum):
    """The phase of a group in its term."""

    EARLY = "early"
    OPEN = "open"
    """Groups without an end are always open."""
    REPLACED = "replaced"
    """It serves but no longer counts: replacements must be ready before it ends."""
    LEAVING = "leaving"
    """It drains, or its term is over."""


def term(pool: SpotPoolView, group: GroupView, now: datetime) -> GroupTerm:
    """The current phase of a group. At the moment of a change, the new phase applies."""
    if group.opens is not None and now < group.opens:
        return GroupTerm.EARLY
    if group.closes is None:
        return GroupTerm.OPEN
    return _before(pool, group.closes, now)


def _before(pool: SpotPoolView, end: datetime, now: datetime) -> GroupTerm:
    """The current phase of something that the cloud ends at `end`."""
    leaves = end - pool.drain_deadline - MARGIN
    if now >= leaves:
        return GroupTerm.LEAVING
    replaced = leaves - pool.policy.fallback_after - pool.boot_expected - MARGIN
    return GroupTerm.REPLACED if now >= replaced else GroupTerm.OPEN


def mark_ending_as_leaving(pool: SpotPoolView, now: datetime) -> SpotPoolView:
    """The pool, with those members marked as leaving whose term is almost over."""
    ending = {g.name for g in pool.groups_of(CapacityType.RESERVED) if term(pool, g, now) in _ENDING}
    over = {m.id for m in pool.members if m.ends_at is not None and _before(pool, m.ends_at, now) in _ENDING}
    if not ending and not over:
        return pool
    members = [replace(m, leaving=m.leaving or m.group in ending or m.id in over) for m in pool.members]
    return replace(pool, members=members)


def is_over(pool: SpotPoolView, member: PoolMember, now: datetime) -> bool:
    """Whether it drains, or must drain, because its term ends."""
    ends = [member.ends_at, *(group.closes for group in pool.groups if group.name == member.group)]
    return any(end is not None and _before(pool, end, now) is GroupTerm.LEAVING for end in ends)


def ends_of_runs(pool: SpotPoolView, now: datetime) -> Sequence[Decision]:
    """Decisions to drain and end instances before the cloud ends them."""
    return [
        Decision(
            resource=member.id,
            pool=pool.name,
            action=Action.END,
            reason=Reason.RUN_ENDS,
            detail=f"the cloud ends it at {member.ends_at:%Y-%m-%d %H:%M} UTC",
        )
        for member in pool.members
        if member.ends_at is not None and _before(pool, member.ends_at, now) is GroupTerm.LEAVING
    ]


def reserved_group(pool: SpotPoolView, group: GroupView, now: datetime) -> Sequence[Decision]:
    """The decisions about one reserved group: its full size within its term if it boots, 0 outside."""
    found = term(pool, group, now)
    listed = len(pool.members_of(group.name)) + group.unseen
    if found is GroupTerm.EARLY:
        return [_sized(pool, group, 0, Reason.TERM_NOT_BEGUN, f"begins at {group.opens:%Y-%m-%d %H:%M} UTC")]
    if found is GroupTerm.OPEN:
        return [_open(pool, group, listed, now)]
    until = f"its term ends at {group.closes:%Y-%m-%d %H:%M} UTC"
    if found is GroupTerm.REPLACED:
        detail = f"{until}; replacements are requested"
        return [_sized(pool, group, group.desired, Reason.TERM_ENDS, detail)]
    members = pool.members_of(group.name)
    leaving = [
        Decision(resource=member.id, pool=pool.name, action=Action.END, reason=Reason.TERM_ENDS, detail=until)
        for member in members
    ]
    return [_sized(pool, group, min(group.desired, listed), Reason.TERM_ENDS, until), *leaving]


def _open(pool: SpotPoolView, group: GroupView, listed: int, now: datetime) -> Decision:
    if (failing := group.closed or zones.boots_objection(pool, group, now)) is not None:
        # open requests would fail, too
        return _sized(pool, group, min(group.desired, listed), failing.reason, failing.detail)
    if listed > group.max:
        # with a smaller size the cloud would choose which instance to end
        detail = f"{listed} run, {group.max} are reserved: drain the surplus with `gpufleet drain`"
        return _sized(pool, group, listed, Reason.RESERVED_IN_FULL, detail)
    return _sized(pool, group, group.max, Reason.RESERVED_IN_FULL, "paid for, used or not")


def _sized(pool: SpotPoolView, group: GroupView, size: int, reason: Reason, detail: str) -> Decision:
    keeps = size == group.desired
    return Decision(
        resource=group.name,
        pool=pool.name,
        action=Action.KEEP if keeps else Action.RESIZE,
        reason=reason,
        detail=detail,
        from_size=None if keeps else group.desired,
        to_size=None if keeps else size,
    )


_ENDING: Final = frozenset({GroupTerm.REPLACED, GroupTerm.LEAVING})
