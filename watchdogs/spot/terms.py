"""Capacity that was bought for a time: when it is used, replaced and left. Pure.

The cloud ends what runs in a Capacity Block from `closes` on, and an instance of flex-start at its `ends_at`, whether
it has drained or not. So replacements are asked for early enough to be ready, and the drain begins early enough to
end, each with a margin for passes that fail.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.model import CapacityType
from watchdogs.spot import zones
from watchdogs.spot.view import GroupView, Member, PoolView

MARGIN: Final = timedelta(minutes=5)
"""For a pass that fails or comes late."""


class Term(StrEnum):
    """Where in its time a group is."""

    EARLY = "early"
    OPEN = "open"
    """Also of every group without an end."""
    REPLACED = "replaced"
    """It serves, and no longer counts: others are to be ready before it goes."""
    LEAVING = "leaving"
    """It drains, or is over."""


def term(pool: PoolView, group: GroupView, now: datetime) -> Term:
    """Where in its time a group is now. Each begins at its very moment."""
    if group.opens is not None and now < group.opens:
        return Term.EARLY
    if group.closes is None:
        return Term.OPEN
    return _before(pool, group.closes, now)


def _before(pool: PoolView, end: datetime, now: datetime) -> Term:
    """Where in its time something is that the cloud ends then."""
    leaves = end - pool.drain_deadline - MARGIN
    if now >= leaves:
        return Term.LEAVING
    replaced = leaves - pool.policy.fallback_after - pool.boot_expected - MARGIN
    return Term.REPLACED if now >= replaced else Term.OPEN


def without_ending(pool: PoolView, now: datetime) -> PoolView:
    """The pool as it will be: members whose time is almost over count as leaving."""
    ending = {g.name for g in pool.groups_of(CapacityType.RESERVED) if term(pool, g, now) in _ENDING}
    over = {m.id for m in pool.members if m.ends_at is not None and _before(pool, m.ends_at, now) in _ENDING}
    if not ending and not over:
        return pool
    members = [replace(m, leaving=m.leaving or m.group in ending or m.id in over) for m in pool.members]
    return replace(pool, members=members)


def is_over(pool: PoolView, member: Member, now: datetime) -> bool:
    """Whether it drains, or is to, because its time ends."""
    ends = [member.ends_at, *(group.closes for group in pool.groups if group.name == member.group)]
    return any(end is not None and _before(pool, end, now) is Term.LEAVING for end in ends)


def run_ends(pool: PoolView, now: datetime) -> Sequence[Decision]:
    """Instances that the cloud is about to end are drained and ended before it does, one decision each."""
    return [
        Decision(
            resource=member.id,
            pool=pool.name,
            action=Action.END,
            reason=Reason.RUN_ENDS,
            detail=f"the cloud ends it at {member.ends_at:%Y-%m-%d %H:%M} UTC",
        )
        for member in pool.members
        if member.ends_at is not None and _before(pool, member.ends_at, now) is Term.LEAVING
    ]


def reserved(pool: PoolView, group: GroupView, now: datetime) -> Sequence[Decision]:
    """What becomes of one reserved group: in full within its time if it boots, nothing outside it."""
    found = term(pool, group, now)
    listed = len(pool.members_of(group.name)) + group.unseen
    if found is Term.EARLY:
        return [_sized(pool, group, 0, Reason.TERM_NOT_BEGUN, f"begins at {group.opens:%Y-%m-%d %H:%M} UTC")]
    if found is Term.OPEN:
        return [_open(pool, group, listed, now)]
    until = f"the cloud ends it from {group.closes:%Y-%m-%d %H:%M} UTC on"
    if found is Term.REPLACED:
        detail = f"{until}; others are asked for"
        return [_sized(pool, group, group.desired, Reason.TERM_ENDS, detail)]
    members = pool.members_of(group.name)
    leaving = [
        Decision(resource=member.id, pool=pool.name, action=Action.END, reason=Reason.TERM_ENDS, detail=until)
        for member in members
    ]
    return [_sized(pool, group, min(group.desired, listed), Reason.TERM_ENDS, until), *leaving]


def _open(pool: PoolView, group: GroupView, listed: int, now: datetime) -> Decision:
    if (failing := zones.boots_failing(pool, group, now)) is not None:
        # what is asked for and has not come would fail, too
        return _sized(pool, group, min(group.desired, listed), failing.reason, failing.detail)
    if listed > group.max:
        # a smaller size would let the cloud choose whom to end
        detail = f"{listed} run, {group.max} are reserved: `gpufleet drain` those that are too many"
        return _sized(pool, group, listed, Reason.RESERVED_IN_FULL, detail)
    return _sized(pool, group, group.max, Reason.RESERVED_IN_FULL, "paid for, used or not")


def _sized(pool: PoolView, group: GroupView, size: int, reason: Reason, detail: str) -> Decision:
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


_ENDING: Final = frozenset({Term.REPLACED, Term.LEAVING})
