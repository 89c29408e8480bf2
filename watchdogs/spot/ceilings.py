"""What growth stops at: instances of a pool, starts of an hour, USD per hour of the fleet. Pure.

The last step over a plan's growth: whatever asks for more, and for whatever reason, passes here. Groups of spot,
on-demand and flex-start grow no further; reserved capacity is paid for, so it counts and is never held back. Nothing
is ended and nothing is made smaller: a size counts as it is until it was lowered, since lowering it may fail.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Final

from gpufleet.domain.decisions import Action, Decision, Reason, Spend
from gpufleet.domain.model import CapacityType
from watchdogs.spot.pool_view import GroupView, PoolView
from watchdogs.spot.sizes import surge, without_ending

CEILINGS: Final = frozenset({Reason.POOL_CEILING, Reason.STARTS_CEILING, Reason.SPEND_CEILING})
"""What a decision says whose growth was stopped here."""
STARTS_PER_MAX: Final = 3
"""Starts within an hour for each instance of a pool's `max`, where its policy states no number: the first boot, a
loss of everything, and spot that comes back."""


def most_counted(pool: PoolView) -> int:
    """Most instances of a pool, in all its groups. Not counted is who drains, is under notice, or whose time ends."""
    return pool.max + pool.spare + surge(pool.policy)


def most_in_all(pool: PoolView) -> int:
    """Most instances of a pool together with those that do not count."""
    return pool.max + most_counted(pool)


def most_starts(pool: PoolView) -> int:
    """Most starts of a pool within an hour."""
    stated = pool.policy.max_starts_per_hour
    return STARTS_PER_MAX * pool.max if stated is None else stated


def within_ceilings(
    pools: Sequence[PoolView], decisions: Sequence[Decision], now: datetime, spend: Spend | None = None
) -> tuple[list[Decision], Spend | None]:
    """The decisions, with growth cut to what the ceilings allow, and what the fleet costs with that growth.

    `spend` is what runs, in all pools; None: the fleet has no such limit. Growth that is stopped altogether is kept,
    with the ceiling's reason and numbers.
    """
    of_pools: dict[str | None, list[Decision]] = defaultdict(list)
    for decision in decisions:
        of_pools[decision.pool].append(decision)
    rooms = {pool.name: _Room(pool, of_pools[pool.name], now) for pool in pools}
    purse = None if spend is None else _Purse(spend)
    if purse is not None:
        for room in rooms.values():
            room.pay_open_asks(purse)
    return [_allowed(rooms, purse, decision) for decision in decisions], None if purse is None else purse.spend


def _allowed(rooms: Mapping[str, "_Room"], purse: "_Purse | None", decision: Decision) -> Decision:
    more = _growth(decision)
    room = rooms.get(decision.pool or "")
    if room is None or more <= 0 or room.is_reserved(decision.resource):
        return decision
    usd = room.usd_per_hour(decision.resource)
    limits = [*room.limits(), *([purse.limit(usd)] if purse is not None else [])]
    tightest = min(limits, key=lambda limit: limit.room)
    granted = min(more, max(0, tightest.room))
    room.take(granted)
    if purse is not None:
        purse.pay(granted, usd)
    if granted == more:
        return decision
    return _cut(decision, more, granted, tightest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """How many more one ceiling allows."""

    reason: Reason
    room: int
    detail: str
    numbers: Mapping[str, str]


def _growth(decision: Decision) -> int:
    if decision.action is not Action.RESIZE or decision.to_size is None or decision.from_size is None:
        return 0
    return decision.to_size - decision.from_size


def _cut(decision: Decision, more: int, granted: int, limit: _Limit) -> Decision:
    """The decision for as many as there is room for."""
    numbered = replace(decision, evidence={**decision.evidence, **limit.numbers})
    if granted == 0:
        return numbered.kept(limit.reason, f"{limit.detail}; would ask for {more} more: {decision.detail}")
    cost = None if decision.usd_per_hour is None else decision.usd_per_hour / more * granted
    detail = f"{decision.detail}; {more - granted} more are not asked for, {limit.reason.sentence}: {limit.detail}"
    size = (decision.from_size or 0) + granted
    return replace(numbered, to_size=size, usd_per_hour=cost, detail=detail)


class _Room:
    """What one pool holds and asks for, and what it may still ask for."""

    def __init__(self, pool: PoolView, decisions: Sequence[Decision], now: datetime) -> None:
        self._pool = pool
        self._groups = {group.name: group for group in pool.groups}
        more = {d.resource: max(0, _growth(d)) for d in decisions if self.is_reserved(d.resource)}
        self._asked = {group.name: _open_asks(pool, group) + more.get(group.name, 0) for group in pool.groups}
        there = {group.name: len(pool.members_of(group.name)) for group in pool.groups}
        self._in_all = sum(there.values()) + sum(self._asked.values())
        self._counted = self._in_all - sum(member.leaving for member in without_ending(pool, now).members)
        self._started = pool.started_this_hour + sum(self._asked.values())

    def is_reserved(self, group: str) -> bool:
        """Whether it is capacity that is paid for: it is never held back."""
        return group in self._groups and self._groups[group].capacity_type is CapacityType.RESERVED

    def usd_per_hour(self, group: str) -> Decimal | None:
        """List price of what a group may launch."""
        return self._groups[group].most_usd_per_hour

    def pay_open_asks(self, purse: "_Purse") -> None:
        """What is asked for already will cost."""
        for name, asked in self._asked.items():
            purse.pay(asked, self.usd_per_hour(name))

    def limits(self) -> list[_Limit]:
        """What its ceilings leave, the one that lasts longest first."""
        counted, in_all, starts = most_counted(self._pool), most_in_all(self._pool), most_starts(self._pool)
        return [
            _limit(Reason.POOL_CEILING, self._counted, counted, "instances, asked for or there"),
            _limit(Reason.POOL_CEILING, self._in_all, in_all, "instances, with those that leave"),
            _limit(Reason.STARTS_CEILING, self._started, starts, "starts within an hour, asked for or done"),
        ]

    def take(self, granted: int) -> None:
        """So many more are asked for."""
        self._counted += granted
        self._in_all += granted
        self._started += granted


def _limit(reason: Reason, used: int, most: int, of_what: str) -> _Limit:
    numbers = {"used": str(used), "ceiling": str(most)}
    return _Limit(reason=reason, room=most - used, detail=f"{used} of {most} {of_what}", numbers=numbers)


def _open_asks(pool: PoolView, group: GroupView) -> int:
    """How many a group may still launch at its size. It replaces what it lists and what has died: that may come, too.

    Only groups of flex-start replace nothing.
    """
    dead = group.unseen if group.capacity_type is CapacityType.FLEX_START else 0
    return max(group.unseen - dead, group.desired - len(pool.members_of(group.name)) - dead, 0)


class _Purse:
    """What the fleet costs while a plan is made."""

    def __init__(self, spend: Spend) -> None:
        self.spend = spend

    def limit(self, usd_per_hour: Decimal | None) -> _Limit:
        """How many more of that price the limit allows."""
        spend = self.spend
        left = spend.limit_usd_per_hour - spend.usd_per_hour
        detail = f"{spend.sentence} of {spend.limit_usd_per_hour} USD/h"
        if spend.unpriced_stops and (spend.unpriced or usd_per_hour is None):
            detail += "; a price is unknown, and `unpriced: stop` allows no growth then"
            room = 0
        elif left <= 0 or not usd_per_hour:
            room = 0 if left <= 0 else _ANY
        else:
            room = math.floor(left / usd_per_hour)
        numbers = {"usd_per_hour": str(spend.usd_per_hour), "limit_usd_per_hour": str(spend.limit_usd_per_hour)}
        return _Limit(reason=Reason.SPEND_CEILING, room=room, detail=detail, numbers=numbers)

    def pay(self, instances: int, usd_per_hour: Decimal | None) -> None:
        """So many of that price are asked for."""
        if usd_per_hour is None:
            self.spend = replace(self.spend, unpriced=self.spend.unpriced + instances)
        else:
            self.spend = replace(self.spend, usd_per_hour=self.spend.usd_per_hour + instances * usd_per_hour)


_ANY: Final = 1_000_000
