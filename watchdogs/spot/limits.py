"""Limits of a plan: certainty and budgets for ends, ceilings for growth. Pure.

Each function takes the decisions of a plan and returns them, with those that it does not allow turned into keeps.

- Certainty: an end needs certainty about what is ended; growth needs less (invariant 7).
- Budgets limit only ends by choice. Other ends use no budget and do not wait for one: instances that the cloud
  reclaims, failed boots, the end of a term. Nor do instances that drain already, since a drain cannot be undone; they
  count from the report of their agent until the ledger has their end, so that a killed pass leaves no gap.
- Ceilings limit growth: instances of a pool, starts per hour, USD per hour of the fleet. They are the last step and
  apply to all growth, for whatever reason. They stop the growth of spot, on-demand and flex-start groups. Reserved
  capacity is paid for, so it counts but is never limited. They never end instances or lower sizes: a size counts as
  it is until it was lowered, since that may fail.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Final

from gpufleet.domain.decisions import Action, ChangeBudget, Decision, Objection, PastAction, Reason, SpendRate
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType
from watchdogs import budgets
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView
from watchdogs.spot.sizes import is_over, mark_ending_as_leaving, surge

# certainty

OF: Final = "because_of"
"""Evidence key: the other resource that the reason of a decision is about."""


def within_certainty(pool: SpotPoolView, decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions, with keeps for those about resources of unknown state, and one decision about each of these."""
    held = {group.name: group.frozen for group in pool.groups if group.frozen is not None}
    suspended = {group.name: group.suspended for group in pool.groups if group.suspended}
    decisions = [
        replace(one, detail=f"{one.detail}; {suspension}" if one.detail else suspension)
        if (suspension := suspended.get(one.resource)) is not None
        else one
        for one in decisions
    ]
    held |= {member.id: member.frozen for member in pool.members if member.frozen is not None}
    found = [_certain(pool, decision, held.get(decision.resource)) for decision in decisions]
    decided = {decision.resource for decision in found}
    return found + [_kept(pool, key, why) for key, why in held.items() if key not in decided]


def _certain(pool: SpotPoolView, decision: Decision, held: Objection | None) -> Decision:
    if held is not None:
        return _kept(pool, decision.resource, held)
    shrinks = decision.action is Action.RESIZE and (decision.to_size or 0) < (decision.from_size or 0)
    ends = decision.action in (Action.END, Action.REPLACE)
    by_choice = ends and decision.reason in CHOSEN
    doubt = pool.incomplete if (ends or shrinks) else None
    doubt = doubt or (pool.uncertain if by_choice else None)
    if doubt is None:
        return decision
    return decision.kept(doubt.reason, f"would {decision.action}: {decision.reason.sentence}; {doubt.detail}")


def _kept(pool: SpotPoolView, resource: str, why: Objection) -> Decision:
    of = {} if why.of is None else {OF: why.of}
    return Decision(
        resource=resource, pool=pool.name, action=Action.KEEP, reason=why.reason, detail=why.detail, evidence=of
    )


# budgets

CHOSEN: Final = frozenset({Reason.SURPLUS, Reason.SPOT_IS_BACK})
"""Reasons of ends by choice."""


def chosen_ends(actions: Iterable[PastAction]) -> dict[str, int]:
    """By pool: how many instances were ended by choice. An instance with two recorded ends counts once."""
    ended = {past.resource: past.pool or "" for past in actions if _may_be_chosen(past)}
    found: dict[str, int] = {}
    for pool in ended.values():
        found[pool] = found.get(pool, 0) + 1
    return found


def _may_be_chosen(past: PastAction) -> bool:
    """Whether an action may have been an end by choice.

    Actions and reasons of a newer release, unknown here, count.
    """
    ends = past.action is Action.END or not past.action.known
    return ends and (past.reason in CHOSEN or not past.reason.known)


def within_budgets(
    pools: Sequence[SpotPoolView], decisions: Sequence[Decision], now: datetime
) -> tuple[list[Decision], ChangeBudget]:
    """The decisions, with keeps for those that exceed a budget, and the budget over all pools.

    The most expensive instances come first, so that a small budget saves the most. A move to another zone begins only
    if the budget allows the end that it leads to.
    """
    begun = {pool.name: [m.id for m in pool.members if _drains_by_choice(pool, m, now)] for pool in pools}
    whole, parts = _budgets(pools, begun)
    allowed = list(decisions)
    drains = {member for members in begun.values() for member in members}
    waiting = [
        n for n, decision in enumerate(decisions) if _needs_budget(decision) and decision.resource not in drains
    ]
    if waiting:
        remaining = budgets.RemainingBudget(whole, parts)
        for n in sorted(waiting, key=lambda n: (-(decisions[n].usd_per_hour or Decimal(0)), decisions[n].resource)):
            allowed[n] = _allowed(remaining, decisions[n])
    return allowed, whole


def _budgets(
    pools: Sequence[SpotPoolView], begun: Mapping[str, Sequence[str]]
) -> tuple[ChangeBudget, dict[str, ChangeBudget]]:
    """The budget over all pools, and that of each pool."""
    parts = {
        pool.name: budgets.pool_budget(pool.policy, pool.ended_this_hour + len(begun[pool.name])) for pool in pools
    }
    used = sum(part.used_this_hour for part in parts.values())
    return budgets.fleet_budget(parts.values(), sum(len(pool.members) for pool in pools), used), parts


def _drains_by_choice(pool: SpotPoolView, member: PoolMember, now: datetime) -> bool:
    """Whether it drains by the choice of this watchdog.

    Not if people keep it, its cloud reclaims it, or its term ends.
    """
    ours = member.leaving and member.drain_by is DrainOwner.SPOT and member.kept_by is None
    return ours and not member.under_notice and not is_over(pool, member, now)


def _needs_budget(decision: Decision) -> bool:
    if decision.action is Action.END:
        return decision.reason in CHOSEN
    return decision.reason is Reason.SAFER_ZONE


def _allowed(remaining: budgets.RemainingBudget, decision: Decision) -> Decision:
    pool = decision.pool or ""
    if (full := remaining.objection(pool)) is not None:
        detail = f"would {decision.action}: {decision.reason.sentence}; {decision.detail}"
        return decision.kept(full, detail)
    if decision.action is Action.END:
        remaining.take(pool)
    return decision


# ceilings

CEILINGS: Final = frozenset({Reason.POOL_CEILING, Reason.STARTS_CEILING, Reason.SPEND_CEILING})
"""Reasons of growth that a ceiling stopped."""
STARTS_PER_MAX: Final = 3
"""Starts per hour for each instance of `max`, if the policy states no number: a first boot, a loss of all instances,
and the return to spot."""


def max_counted(pool: SpotPoolView) -> int:
    """Maximum instances of a pool, without those that drain, are under notice, or reach the end of their term."""
    return pool.max + pool.spare + surge(pool.policy)


def max_in_all(pool: SpotPoolView) -> int:
    """Maximum number of instances of a pool, with those that do not count."""
    return pool.max + max_counted(pool)


def max_starts(pool: SpotPoolView) -> int:
    """Maximum number of starts of a pool within an hour."""
    stated = pool.policy.max_starts_per_hour
    return STARTS_PER_MAX * pool.max if stated is None else stated


def within_ceilings(
    pools: Sequence[SpotPoolView], decisions: Sequence[Decision], now: datetime, spend: SpendRate | None = None
) -> tuple[list[Decision], SpendRate | None]:
    """The decisions, with growth limited to the ceilings, and the cost of the fleet with that growth.

    `spend`: current cost of all pools; None: the fleet has no such limit. Growth that is not allowed at all becomes a
    keep with the reason and numbers of the ceiling.
    """
    of_pools = by_pool(decisions)
    headrooms = {pool.name: _PoolHeadroom(pool, of_pools[pool.name], now) for pool in pools}
    spend_headroom = None if spend is None else _SpendHeadroom(spend)
    if spend_headroom is not None:
        for headroom in headrooms.values():
            headroom.add_open_requests(spend_headroom)
    return [
        _within(headrooms, spend_headroom, decision) for decision in decisions
    ], None if spend_headroom is None else spend_headroom.spend


def by_pool(decisions: Iterable[Decision]) -> Mapping[str | None, Sequence[Decision]]:
    """The decisions by pool, in their order; empty for a pool without decisions."""
    found: dict[str | None, list[Decision]] = defaultdict(list)
    for decision in decisions:
        found[decision.pool].append(decision)
    return found


def _within(
    headrooms: Mapping[str, "_PoolHeadroom"], spend_headroom: "_SpendHeadroom | None", decision: Decision
) -> Decision:
    more = _growth(decision)
    headroom = headrooms.get(decision.pool or "")
    if headroom is None or more <= 0 or headroom.has_unanswered_request(decision.resource):
        return decision
    usd = headroom.usd_per_hour(decision.resource)
    limits = [*headroom.limits(), *([spend_headroom.limit(usd)] if spend_headroom is not None else [])]
    tightest = min(limits, key=lambda limit: limit.remaining)
    granted = min(more, max(0, tightest.remaining))
    headroom.take(granted)
    if spend_headroom is not None:
        spend_headroom.add_spend(granted, usd)
    if granted == more:
        return decision
    return _cut(decision, more, granted, tightest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """How many more instances one ceiling allows."""

    reason: Reason
    remaining: int
    detail: str
    numbers: Mapping[str, str]


def _growth(decision: Decision) -> int:
    if decision.action is not Action.RESIZE or decision.to_size is None or decision.from_size is None:
        return 0
    return decision.to_size - decision.from_size


def _cut(decision: Decision, more: int, granted: int, limit: _Limit) -> Decision:
    """The decision, limited to `granted` instances."""
    numbered = replace(decision, evidence={**decision.evidence, **limit.numbers})
    if granted == 0:
        return numbered.kept(limit.reason, f"{limit.detail}; would request {more} more: {decision.detail}")
    cost = None if decision.usd_per_hour is None else decision.usd_per_hour / more * granted
    detail = f"{decision.detail}; {more - granted} more are not requested, {limit.reason.sentence}: {limit.detail}"
    size = (decision.from_size or 0) + granted
    return replace(numbered, to_size=size, usd_per_hour=cost, detail=detail)


class _PoolHeadroom:
    """Instances and open requests of one pool, and what it may still request."""

    def __init__(self, pool: SpotPoolView, decisions: Sequence[Decision], now: datetime) -> None:
        self._pool = pool
        self._groups = {group.name: group for group in pool.groups}
        more = {d.resource: max(0, _growth(d)) for d in decisions if self.has_unanswered_request(d.resource)}
        self._asked = {group.name: _open_asks(pool, group) + more.get(group.name, 0) for group in pool.groups}
        there = {group.name: len(pool.members_of(group.name)) for group in pool.groups}
        self._in_all = sum(there.values()) + sum(self._asked.values())
        self._counted = self._in_all - sum(member.leaving for member in mark_ending_as_leaving(pool, now).members)
        self._started = pool.started_this_hour + sum(self._asked.values())

    def has_unanswered_request(self, group: str) -> bool:
        """Whether the group is reserved capacity, which is never limited."""
        return group in self._groups and self._groups[group].capacity_type is CapacityType.RESERVED

    def usd_per_hour(self, group: str) -> Decimal | None:
        """Highest list price of the machine types of a group; None: unknown."""
        return self._groups[group].max_usd_per_hour

    def add_open_requests(self, spend_headroom: "_SpendHeadroom") -> None:
        """Add the cost of open requests to the spend."""
        for name, asked in self._asked.items():
            spend_headroom.add_spend(asked, self.usd_per_hour(name))

    def limits(self) -> list[_Limit]:
        """Remaining growth by each ceiling; the ceiling that lasts longest comes first."""
        counted, in_all, starts = max_counted(self._pool), max_in_all(self._pool), max_starts(self._pool)
        return [
            _limit(Reason.POOL_CEILING, self._counted, counted, "instances, running or requested"),
            _limit(Reason.POOL_CEILING, self._in_all, in_all, "instances, draining ones included"),
            _limit(Reason.STARTS_CEILING, self._started, starts, "starts within an hour, done or requested"),
        ]

    def take(self, granted: int) -> None:
        """Count `granted` more requests."""
        self._counted += granted
        self._in_all += granted
        self._started += granted


def _limit(reason: Reason, used: int, most: int, of_what: str) -> _Limit:
    numbers = {"used": str(used), "ceiling": str(most)}
    return _Limit(reason=reason, remaining=most - used, detail=f"{used} of {most} {of_what}", numbers=numbers)


def _open_asks(pool: SpotPoolView, group: GroupView) -> int:
    """How many instances a group may still launch at its size, replacements of ended instances included.

    Only flex-start groups do not replace.
    """
    dead = group.unseen if group.capacity_type is CapacityType.FLEX_START else 0
    return max(group.unseen - dead, group.desired - len(pool.members_of(group.name)) - dead, 0)


class _SpendHeadroom:
    """The cost of the fleet while a plan is made."""

    def __init__(self, spend: SpendRate) -> None:
        self.spend = spend

    def limit(self, usd_per_hour: Decimal | None) -> _Limit:
        """How many more instances of that price the limit allows."""
        spend = self.spend
        left = spend.limit_usd_per_hour - spend.usd_per_hour
        detail = f"{spend.sentence} of {spend.limit_usd_per_hour} USD/h"
        if spend.unpriced_stops and (spend.unpriced or usd_per_hour is None):
            detail += "; a price is unknown, and `unpriced: stop` allows no growth then"
            remaining = 0
        elif left <= 0 or not usd_per_hour:
            remaining = 0 if left <= 0 else _ANY
        else:
            remaining = math.floor(left / usd_per_hour)
        numbers = {"usd_per_hour": str(spend.usd_per_hour), "limit_usd_per_hour": str(spend.limit_usd_per_hour)}
        return _Limit(reason=Reason.SPEND_CEILING, remaining=remaining, detail=detail, numbers=numbers)

    def add_spend(self, instances: int, usd_per_hour: Decimal | None) -> None:
        """Add instances of that price to the spend."""
        if usd_per_hour is None:
            self.spend = replace(self.spend, unpriced=self.spend.unpriced + instances)
        else:
            self.spend = replace(self.spend, usd_per_hour=self.spend.usd_per_hour + instances * usd_per_hour)


_ANY: Final = 1_000_000
