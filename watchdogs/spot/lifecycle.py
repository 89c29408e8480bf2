"""The lifecycle of the members of a pool: unconfirmed readiness, drains, failed boots and crashes. Pure.

A missing answer does not mean that the instance is absent: one failed poll must not buy a whole pool again. So the
ledger keeps since when an instance has not been ready although it should be, and that it was ready again. It is late
only if it is not ready for `fallback_after` of the policy. A late instance does not count, except for its cost.

An instance whose agent reports boot progress is not late before the limit of its boot.

An engine that served and then failed is a crash, not a failed boot: it is replaced, after growing pauses.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final

from gpufleet.domain.decisions import Action, Decision, PastAction, Reason
from gpufleet.domain.drains import DrainOwner
from watchdogs import boots
from watchdogs.spot.pool_view import Crash, PoolMember, SpotPoolView

# readiness

HUNG_AFTER: Final = timedelta(minutes=15)
"""Delay after the due time before people are notified: half of all boots are slower than the median."""


def missed(actions: Iterable[PastAction]) -> dict[str, datetime]:
    """Since when each instance has not been ready although it should be, according to the notes of earlier passes."""
    found: dict[str, datetime] = {}
    for past in actions:
        if past.reason is Reason.NOT_READY:
            found.setdefault(past.resource, past.at)
        elif past.reason is Reason.AS_WANTED:
            found.pop(past.resource, None)
    return found


def readiness_changes(pool: SpotPoolView, known: Mapping[str, datetime], now: datetime) -> list[Decision]:
    """Notes for later passes: instances that are not ready any more, and those that are ready again."""
    found: list[Decision] = []
    for member in pool.members:
        if member.ready_since is not None and member.id in known:
            found.append(kept(pool, member, Reason.AS_WANTED, "it is ready again"))
        elif _is_awaited(member) and member.id not in known and now >= _booted(pool, member):
            found.append(kept(pool, member, Reason.NOT_READY, "it does not report that it is ready"))
    return found


def with_late(pool: SpotPoolView, now: datetime) -> SpotPoolView:
    """The pool with members marked as late that have not been ready for too long."""
    late = {m.id for m in pool.members if _is_awaited(m) and now - _due(pool, m) > pool.policy.fallback_after}
    if not late:
        return pool
    return replace(pool, members=[replace(m, late=m.id in late) for m in pool.members])


def with_replaced(there: int, late: int, wanted: int) -> int:
    """How many instances count: each late one has at most one successor, so that an image that never reports
    readiness does not cause unlimited purchases.
    """
    return max(there, there + late - wanted)


def hung(pool: SpotPoolView, now: datetime) -> list[Decision]:
    """A keep for each instance that is late, or has drained, for so long that people must check it."""
    late = [
        kept(pool, member, Reason.NOT_READY, f"since {_due(pool, member):%Y-%m-%d %H:%M} UTC")
        for member in pool.members
        if member.late and now - _due(pool, member) > HUNG_AFTER
    ]
    return late + [
        kept(pool, member, Reason.DRAINING, f"since {member.not_ready_since:%Y-%m-%d %H:%M} UTC, which is too long")
        for member in pool.members
        if drains_too_long(pool, member, now)
    ]


def _is_awaited(member: PoolMember) -> bool:
    return member.ready_since is None and not member.leaving and not member.failed


def _due(pool: SpotPoolView, member: PoolMember) -> datetime:
    """When it should have been ready: after its boot, or when it was first not ready."""
    booted = _booted(pool, member)
    return booted if member.not_ready_since is None else max(booted, member.not_ready_since)


def _booted(pool: SpotPoolView, member: PoolMember) -> datetime:
    """When its boot should be over. While its agent reports progress, the limit of the boot applies."""
    span = expected_boot(pool, member)
    return member.launched_at + (max(span, pool.boot_limit) if member.progresses else span)


def expected_boot(pool: SpotPoolView, member: PoolMember) -> timedelta:
    """Expected duration of its boot, by its machine type if boots of that type are known."""
    return member.boot_expected or pool.boot_expected


def kept(pool: SpotPoolView, member: PoolMember, reason: Reason, detail: str) -> Decision:
    """A decision that keeps a member, and why."""
    return Decision(resource=member.id, pool=pool.name, action=Action.KEEP, reason=reason, detail=detail)


# draining


def drains_idle(member: PoolMember) -> bool:
    """Whether the idle watchdog ends it and lowers the target. It ends none that people keep."""
    return member.leaving and member.kept_by is None and member.drain_by is DrainOwner.IDLE


PREEMPTED_FROM: Final = "taken from"
"""Evidence key: the group of a reclaimed instance."""


def losses(pool: SpotPoolView, noted: Collection[str]) -> list[Decision]:
    """Notes that the cloud reclaims instances that this watchdog does not end: they count as losses of the zone."""
    found: list[Decision] = []
    for member in (m for m in pool.members if m.under_notice and m.id not in noted):
        if member.left_to_its_cloud:
            found.append(kept(pool, member, Reason.PREEMPTED, "under notice; left to its cloud"))
        elif pool.idle_ends and drains_idle(member):
            found.append(kept(pool, member, Reason.PREEMPTED, "under notice; the idle watchdog ends it"))
    return found


def is_draining_any(pool: SpotPoolView, now: datetime) -> bool:
    """Whether a member is draining, so that the next end waits.

    Instances that people drained or keep do not count, since they may stay for days; nor do drains that take too
    long.
    """
    return any(
        (_is_leaving(member) and not drains_too_long(pool, member, now))
        or (member.agent_unreachable and member.asked)
        for member in pool.members
    )


def drains_too_long(pool: SpotPoolView, member: PoolMember, now: datetime) -> bool:
    """Whether its drain is long overdue: its agent hangs, or the person who drained it forgot it."""
    since = member.not_ready_since
    if since is None or not _is_leaving(member) or member.under_notice:
        return False
    return now - since > pool.drain_deadline + HUNG_AFTER


def _is_leaving(member: PoolMember) -> bool:
    """Whether it drains and will end by itself.

    A drain by a person stays until that person ends it. A drain by the idle watchdog may wait for evidence that never
    arrives. An instance under notice always counts.
    """
    if not member.leaving or member.kept_by is not None:
        return False
    if member.under_notice:
        return True
    return member.drain_by is not DrainOwner.PERSON and not (member.drained and member.drain_by is DrainOwner.IDLE)


def can_be_drained(member: PoolMember) -> bool:
    """Whether it serves or will serve, and has an agent that can drain it. People are notified of the others."""
    return not (member.leaving or member.failed or member.agent_unreachable or member.frozen)


def first_drainable(order: Sequence[PoolMember]) -> tuple[list[PoolMember], PoolMember | None]:
    """The members before the first one that is not kept by people, and that one."""
    kept = list(takewhile(lambda member: member.kept_by is not None, order))
    return kept, order[len(kept)] if len(kept) < len(order) else None


# failed boots and crashes

END_AT_ONCE: Final = boots.FAILED_REASONS | {Reason.ENGINE_CRASHED}
"""Reasons of instances that serve nothing: they are ended without a drain."""

MAX_CRASH_WAIT: Final = timedelta(minutes=30)
"""Longest pause between two replacements of engines that crash repeatedly."""
_FIRST_WAIT: Final = timedelta(minutes=1)
STABLE_AFTER: Final = timedelta(hours=1)
"""Time without a crash after which the next one is replaced at once again."""
CRASH_CLUSTER: Final = timedelta(minutes=5)
"""Crashes this close to the first one count as one: the same request may crash several engines."""


def retry_requested(pool: str, by: str) -> Decision:
    """The note of a person that boots of a pool are tried again: earlier failures no longer count."""
    detail = f"boots are tried again: {by}"
    return Decision(resource=pool, pool=pool, action=Action.KEEP, reason=Reason.AS_WANTED, detail=detail)


def retry_requested_at(actions: Sequence[PastAction]) -> dict[str, datetime]:
    """By pool: the time of the last such note."""
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


def crash_waits(pool: SpotPoolView, now: datetime) -> list[datetime]:
    """Times at which crashed engines are replaced, of those whose replacement waits: after growing pauses.

    Otherwise a crash that recurs on each new instance would buy one instance after the other. Crashes before a
    requested retry are not counted.
    """
    there = [Crash(at=member.crashed_at) for member in pool.members if member.crashed_at is not None]
    waits: list[datetime] = []
    rounds, began, last = 0, None, None
    for crash in sorted((*pool.crashes, *there), key=lambda crash: crash.at):
        if pool.retry_requested_at is not None and crash.at <= pool.retry_requested_at:
            continue
        if began is None or last is None or crash.at - last >= STABLE_AFTER:
            rounds, began = 0, crash.at
        elif crash.at - began > CRASH_CLUSTER:
            rounds, began = rounds + 1, crash.at
        last = crash.at
        if not crash.replaced:
            waits.append(began + _wait(rounds))
    return [due for due in waits if due > now]


def _wait(rounds: int) -> timedelta:
    """Pause after this number of earlier rounds of crashes."""
    # the exponent is bounded: an engine may crash for days
    return min(MAX_CRASH_WAIT, _FIRST_WAIT * 2 ** (min(rounds, 10) - 1)) if rounds > 0 else timedelta(0)


_ENDS: Final = frozenset({Action.END, Action.REPLACE})
