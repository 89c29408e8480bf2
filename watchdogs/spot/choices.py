"""How many ends of its own choice the spot watchdog has left, and whose end waits for room. Pure.

What goes anyway takes no room and waits for none: what its cloud takes, what failed to boot, what is at the end of
its time. Nor does what drains already, for there is no way back; it counts from the moment that its agent says so
until the ledger knows its end, so that a killed pass leaves no gap between the two.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Final

from gpufleet.domain.decisions import Action, Budget, Decision, PastAction, Reason
from gpufleet.domain.drains import DrainOwner
from watchdogs import budgets
from watchdogs.spot import terms
from watchdogs.spot.view import Member, PoolView

CHOSEN: Final = frozenset({Reason.SURPLUS, Reason.SPOT_IS_BACK})
"""Why something is ended that could as well stay."""


def ended(deeds: Iterable[PastAction]) -> dict[str, int]:
    """By pool: how many instances were ended by choice. One whose end is noted twice went but once."""
    gone = {deed.resource: deed.pool or "" for deed in deeds if _may_be_chosen(deed)}
    found: dict[str, int] = {}
    for pool in gone.values():
        found[pool] = found.get(pool, 0) + 1
    return found


def _may_be_chosen(deed: PastAction) -> bool:
    """What a newer release wrote may have been an end, and by choice: it counts."""
    ends = deed.action is Action.END or not deed.action.known
    return ends and (deed.reason in CHOSEN or not deed.reason.known)


def within_budgets(
    pools: Sequence[PoolView], wishes: Sequence[Decision], now: datetime
) -> tuple[list[Decision], Budget]:
    """The wishes, with those kept that there is no room for, and the budget over all pools.

    The dearest go first, so that a short budget saves the most. A move to another zone begins only where the end that
    it leads to has room.
    """
    begun = {pool.name: [m.id for m in pool.members if _drains_by_choice(pool, m, now)] for pool in pools}
    whole, parts = _budgets(pools, begun)
    allowed = list(wishes)
    drains = {member for members in begun.values() for member in members}
    waiting = [n for n, wish in enumerate(wishes) if _needs_room(wish) and wish.resource not in drains]
    if waiting:
        room = budgets.Room(whole, parts)
        for n in sorted(waiting, key=lambda n: (-(wishes[n].usd_per_hour or Decimal(0)), wishes[n].resource)):
            allowed[n] = _allowed(room, wishes[n])
    return allowed, whole


def _budgets(pools: Sequence[PoolView], begun: Mapping[str, Sequence[str]]) -> tuple[Budget, dict[str, Budget]]:
    """Over all pools, and of each."""
    parts = {pool.name: budgets.of(pool.policy, pool.ended_this_hour + len(begun[pool.name])) for pool in pools}
    used = sum(part.used_this_hour for part in parts.values())
    return budgets.in_all(parts.values(), sum(len(pool.members) for pool in pools), used), parts


def _drains_by_choice(pool: PoolView, member: Member, now: datetime) -> bool:
    """What people keep may stay for days, and goes by their choice; what its cloud takes goes by nobody's."""
    ours = member.leaving and member.drain_by is DrainOwner.SPOT and member.kept_by is None
    return ours and not member.under_notice and not terms.is_over(pool, member, now)


def _needs_room(wish: Decision) -> bool:
    if wish.action is Action.END:
        return wish.reason in CHOSEN
    return wish.reason is Reason.SAFER_ZONE


def _allowed(room: budgets.Room, wish: Decision) -> Decision:
    pool = wish.pool or ""
    if (full := room.objection(pool)) is not None:
        detail = f"would {wish.action}: {wish.reason.sentence}; {wish.detail}"
        return replace(
            wish, action=Action.KEEP, reason=full, detail=detail, from_size=None, to_size=None, usd_per_hour=None
        )
    if wish.action is Action.END:
        room.take(pool)
    return wish
