"""The life of a pool's members: whose readiness is unconfirmed, who drains, and whose boot failed. Pure.

Silence is not absence: one poll without answers must not buy a pool anew. So the ledger keeps since when an instance
has not been ready though it should be, and that it was ready again; only one that stays away for the policy's
`fallback_after` is late, and a late one counts for nothing but its own cost.

An instance whose agent reports that it boots is no such case: until the limit of its boot it is on its way.

An engine that served and then failed is a crash, and no failed boot: it is replaced, after growing pauses.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final

from gpufleet.domain.decisions import Action, Decision, PastAction, Reason
from gpufleet.domain.drains import DrainOwner
from watchdogs import boots
from watchdogs.spot.pool_view import Crash, PoolMember, SpotPool

# readiness

HUNG_AFTER: Final = timedelta(minutes=15)
"""Past its time before people hear of it: half of all boots are slower than the median."""


def missed(actions: Iterable[PastAction]) -> dict[str, datetime]:
    """Since when each instance has not been ready though it should be, by the notes of earlier passes."""
    found: dict[str, datetime] = {}
    for past in actions:
        if past.reason is Reason.NOT_READY:
            found.setdefault(past.resource, past.at)
        elif past.reason is Reason.AS_WANTED:
            found.pop(past.resource, None)
    return found


def readiness_changes(pool: SpotPool, known: Mapping[str, datetime], now: datetime) -> list[Decision]:
    """What is to be noted for later passes: who is not ready any more, and who is again."""
    found: list[Decision] = []
    for member in pool.members:
        if member.ready_since is not None and member.id in known:
            found.append(kept(pool, member, Reason.AS_WANTED, "it is ready again"))
        elif _is_awaited(member) and member.id not in known and now >= _booted(pool, member):
            found.append(kept(pool, member, Reason.NOT_READY, "it was not heard to be ready"))
    return found


def with_late(pool: SpotPool, now: datetime) -> SpotPool:
    """The pool with those marked that have not been ready for too long."""
    late = {m.id for m in pool.members if _is_awaited(m) and now - _due(pool, m) > pool.policy.fallback_after}
    if not late:
        return pool
    return replace(pool, members=[replace(m, late=m.id in late) for m in pool.members])


def with_replaced(there: int, late: int, wanted: int) -> int:
    """How many count: each late one has one successor at most. An image that never speaks must not go on buying."""
    return max(there, there + late - wanted)


def hung(pool: SpotPool, now: datetime) -> list[Decision]:
    """A word about each of those that are late by so much, or drain for so long, that people must look at them."""
    late = [
        kept(pool, member, Reason.NOT_READY, f"since {_due(pool, member):%Y-%m-%d %H:%M} UTC")
        for member in pool.members
        if member.late and now - _due(pool, member) > HUNG_AFTER
    ]
    return late + [
        kept(pool, member, Reason.DRAINING, f"since {member.missed_since:%Y-%m-%d %H:%M} UTC, which is too long")
        for member in pool.members
        if drains_too_long(pool, member, now)
    ]


def _is_awaited(member: PoolMember) -> bool:
    return member.ready_since is None and not member.leaving and not member.failed


def _due(pool: SpotPool, member: PoolMember) -> datetime:
    """When it should have been ready: after its boot, or when it was first missed."""
    booted = _booted(pool, member)
    return booted if member.missed_since is None else max(booted, member.missed_since)


def _booted(pool: SpotPool, member: PoolMember) -> datetime:
    """When its boot should be over; while its agent reports progress: when that must have ended."""
    span = boot_span(pool, member)
    return member.launched_at + (max(span, pool.boot_limit) if member.progresses else span)


def boot_span(pool: SpotPool, member: PoolMember) -> timedelta:
    """What its boot should take, by its machine type where boots of that are remembered."""
    return member.boot_expected or pool.boot_expected


def kept(pool: SpotPool, member: PoolMember, reason: Reason, detail: str) -> Decision:
    """A decision that leaves a member as it is, and why."""
    return Decision(resource=member.id, pool=pool.name, action=Action.KEEP, reason=reason, detail=detail)


# draining


def drains_idle(member: PoolMember) -> bool:
    """Whether the idle watchdog ends it: the target falls with it. It ends none that people keep."""
    return member.leaving and member.kept_by is None and member.drain_by is DrainOwner.IDLE


TAKEN_FROM: Final = "taken from"
"""Under this the decision about an instance that its cloud took names its group."""


def losses(pool: SpotPool, noted: Collection[str]) -> list[Decision]:
    """Notes that the cloud takes what this watchdog does not end: the zone has lost it, whoever is quicker."""
    found: list[Decision] = []
    for member in (m for m in pool.members if m.under_notice and m.id not in noted):
        if member.left_to_its_cloud:
            found.append(kept(pool, member, Reason.PREEMPTED, "under notice; left to its cloud"))
        elif pool.idle_ends and drains_idle(member):
            found.append(kept(pool, member, Reason.PREEMPTED, "under notice; the idle watchdog ends it"))
    return found


def somebody_leaves(pool: SpotPool, now: datetime) -> bool:
    """Whether one is on its way out, so that the next one waits. What people drained or keep may stay for days, and a
    drain that does not end is waited for no longer.
    """
    return any(
        (_is_leaving(member) and not drains_too_long(pool, member, now)) or (member.silent and member.asked)
        for member in pool.members
    )


def drains_too_long(pool: SpotPool, member: PoolMember, now: datetime) -> bool:
    """Whether its drain should have been over long ago: its agent hangs, or whoever drained it forgot it."""
    since = member.missed_since
    if since is None or not _is_leaving(member) or member.under_notice:
        return False
    return now - since > pool.drain_deadline + HUNG_AFTER


def _is_leaving(member: PoolMember) -> bool:
    """A person's drain stays until that person ends it. What idle has drained serves nobody already, and may wait for
    evidence that never comes. Neither holds of what the cloud takes.
    """
    if not member.leaving or member.kept_by is not None:
        return False
    if member.under_notice:
        return True
    return member.drain_by is not DrainOwner.PERSON and not (member.drained and member.drain_by is DrainOwner.IDLE)


def may_be_asked(member: PoolMember) -> bool:
    """Whether it serves or will, and has an agent that can be asked to drain. People hear of the others."""
    return not (member.leaving or member.failed or member.silent or member.held)


def first_free(order: Sequence[PoolMember]) -> tuple[list[PoolMember], PoolMember | None]:
    """The first that nobody keeps, with those before it whom somebody does."""
    kept = list(takewhile(lambda member: member.kept_by is not None, order))
    return kept, order[len(kept)] if len(kept) < len(order) else None


# failed boots and crashes

END_AT_ONCE: Final = boots.FAILED_REASONS | {Reason.ENGINE_CRASHED}
"""Nothing is served there: such an instance is ended without a drain."""

LONGEST_WAIT: Final = timedelta(minutes=30)
"""Between two replacements of engines that crash again and again."""
_FIRST_WAIT: Final = timedelta(minutes=1)
CALM: Final = timedelta(hours=1)
"""So long without a crash, and the next one is replaced at once again."""
TOGETHER: Final = timedelta(minutes=5)
"""Crashes this close to the first of them are one, as of engines that one request went through."""


def fixed(pool: str, by: str) -> Decision:
    """What a person notes of a pool whose boots are to be tried again: what failed before counts no more."""
    detail = f"boots are tried again: {by}"
    return Decision(resource=pool, pool=pool, action=Action.KEEP, reason=Reason.AS_WANTED, detail=detail)


def fixed_at(actions: Sequence[PastAction]) -> dict[str, datetime]:
    """By pool: when a person said so last."""
    return {
        past.resource: past.at for past in actions if past.resource == past.pool and past.reason is Reason.AS_WANTED
    }


def crashes(actions: Iterable[PastAction]) -> dict[str, list[Crash]]:
    """By pool: the engines that had crashed when they were ended, oldest first."""
    ends = {past.resource: past for past in actions if past.reason is Reason.ENGINE_CRASHED and past.action in _ENDS}
    found: dict[str, list[Crash]] = {}
    for past in sorted(ends.values(), key=lambda past: past.at):
        crash = Crash(at=past.at, replaced=past.action is Action.REPLACE)
        found.setdefault(past.pool or "", []).append(crash)
    return found


def crash_waits(pool: SpotPool, now: datetime) -> list[datetime]:
    """When each crashed engine is replaced whose replacement waits: the first at once, then after growing pauses.

    A crash that comes back with each new instance would otherwise buy one after the other. What a person fixed waits
    no more.
    """
    there = [Crash(at=member.crashed_at) for member in pool.members if member.crashed_at is not None]
    waits: list[datetime] = []
    rounds, began, last = 0, None, None
    for crash in sorted((*pool.crashes, *there), key=lambda crash: crash.at):
        if pool.fixed_at is not None and crash.at <= pool.fixed_at:
            continue
        if began is None or last is None or crash.at - last >= CALM:
            rounds, began = 0, crash.at
        elif crash.at - began > TOGETHER:
            rounds, began = rounds + 1, crash.at
        last = crash.at
        if not crash.replaced:
            waits.append(began + _wait(rounds))
    return [due for due in waits if due > now]


def _wait(rounds: int) -> timedelta:
    """After so many rounds of crashes before this one."""
    # the exponent is bounded: an engine may crash for days
    return min(LONGEST_WAIT, _FIRST_WAIT * 2 ** (min(rounds, 10) - 1)) if rounds > 0 else timedelta(0)


_ENDS: Final = frozenset({Action.END, Action.REPLACE})
