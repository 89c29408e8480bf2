"""Who is there although nobody hears it ready, and for how long that is believed. Pure.

Silence is not absence: one poll without answers must not buy a pool anew. So the ledger keeps since when an instance
has not been ready though it should be, and that it was ready again; only one that stays away for the policy's
`fallback_after` is late, and a late one counts for nothing but its own cost.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.decisions import Action, Decision, PastAction, Reason
from watchdogs.spot.view import Member, PoolView

HUNG_AFTER: Final = timedelta(minutes=15)
"""Past its time before people hear of it: half of all boots are slower than the median."""


def missed(deeds: Iterable[PastAction]) -> dict[str, datetime]:
    """Since when each instance has not been ready though it should be, by the notes of earlier passes."""
    found: dict[str, datetime] = {}
    for deed in deeds:
        if deed.reason is Reason.NOT_READY:
            found.setdefault(deed.resource, deed.at)
        elif deed.reason is Reason.AS_WANTED:
            found.pop(deed.resource, None)
    return found


def notes(pool: PoolView, known: Mapping[str, datetime], now: datetime) -> list[Decision]:
    """What is to be noted for later passes: who is not ready any more, and who is again."""
    found: list[Decision] = []
    for member in pool.members:
        if member.ready_since is not None and member.id in known:
            found.append(_kept(pool, member, Reason.AS_WANTED, "it is ready again"))
        elif _is_awaited(member) and member.id not in known and now >= member.launched_at + pool.boot_expected:
            found.append(_kept(pool, member, Reason.NOT_READY, "it was not heard to be ready"))
    return found


def with_late(pool: PoolView, now: datetime) -> PoolView:
    """The pool with those marked that have not been ready for too long."""
    late = {m.id for m in pool.members if _is_awaited(m) and now - _due(pool, m) > pool.policy.fallback_after}
    if not late:
        return pool
    return replace(pool, members=[replace(m, late=m.id in late) for m in pool.members])


def with_replaced(there: int, late: int, wanted: int) -> int:
    """How many count: each late one has one successor at most. An image that never speaks must not go on buying."""
    return max(there, there + late - wanted)


def hung(pool: PoolView, now: datetime) -> list[Decision]:
    """A word about each of those that are late by so much that people must look at them."""
    return [
        _kept(pool, member, Reason.NOT_READY, f"since {_due(pool, member):%Y-%m-%d %H:%M} UTC")
        for member in pool.members
        if member.late and now - _due(pool, member) > HUNG_AFTER
    ]


def _is_awaited(member: Member) -> bool:
    return member.ready_since is None and not member.leaving and not member.failed


def _due(pool: PoolView, member: Member) -> datetime:
    """When it should have been ready: after its boot, or when it was first missed."""
    booted = member.launched_at + pool.boot_expected
    return booted if member.missed_since is None else max(booted, member.missed_since)


def _kept(pool: PoolView, member: Member, reason: Reason, detail: str) -> Decision:
    return Decision(resource=member.id, pool=pool.name, action=Action.KEEP, reason=reason, detail=detail)
