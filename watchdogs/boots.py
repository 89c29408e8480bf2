"""How instances boot: how long it takes, whether it failed, and what each look adds to what is remembered. Pure.

A boot failed when the instance left its group without ever having been seen ready, and neither we, nor a person, nor
the cloud that took it back ended it. Where no cause is stated for the end of a spot instance, its cloud may have
taken it: that is unknown, and not a failure. No cloud reports failed boots: behind a launch hook a launch is not over
before the instance is ready, and Google Cloud reports no launches at all. So each look notes whom it saw, and who was
ready.
"""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.boots import Boot
from gpufleet.domain.decisions import Action, PastAction, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance, Phase

# how long

BOOT_DEFAULT: Final = timedelta(minutes=6)
"""Before any instance has shown how long it takes."""
BOOT_MOST: Final = timedelta(hours=1)
"""What is longer is no boot: an agent that restarts, or switches to another revision, enters `ready` anew, and hours
or days after the launch. A boot that really needs longer only has no say in what is expected."""
NEWEST: Final = 7
"""So many boots, the newest, say how long the next one takes."""
PROGRESS: Final = frozenset({Phase.BOOTING, Phase.DISKS, Phase.CACHE, Phase.ENGINE, Phase.WARM_UP})
"""Phases of an agent that boots. It ends each of them itself that takes too long."""


def took(instances: Iterable[Instance], statuses: Mapping[str, AgentStatus]) -> list[timedelta]:
    """What those that are ready needed, as far as it can have been a boot."""
    found: list[timedelta] = []
    for instance in instances:
        status = statuses.get(instance.id)
        if status is not None and status.ready and is_boot(instance.launched_at, status.phase_since):
            found.append((status.phase_since or instance.launched_at) - instance.launched_at)
    return found


def is_boot(launched_at: datetime, ready_since: datetime | None) -> bool:
    """Whether it can have become ready then because it booted."""
    return ready_since is not None and timedelta(0) < ready_since - launched_at <= BOOT_MOST


def expected(boots: Sequence[timedelta], otherwise: timedelta = BOOT_DEFAULT) -> timedelta:
    """The median; where there is none, what is said otherwise."""
    return timedelta(seconds=statistics.median(boot.total_seconds() for boot in boots)) if boots else otherwise


def by_machine_type(remembered: Iterable[Boot]) -> dict[str, timedelta]:
    """What a boot of each machine type takes: the median of the newest that became ready."""
    ready: dict[str, list[Boot]] = {}
    for boot in remembered:
        if is_boot(boot.launched_at, boot.ready_at):
            ready.setdefault(boot.machine_type, []).append(boot)
    return {
        machine_type: expected([span for b in sorted(them, key=_launched)[-NEWEST:] if (span := b.took) is not None])
        for machine_type, them in ready.items()
    }


def _launched(boot: Boot) -> datetime:
    return boot.launched_at


# what a look adds


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFacts:
    """What is known of why instances ended, beside what earlier looks noted."""

    ours: Mapping[str, PastAction]
    """By instance: how a watchdog ended it."""
    stated: Mapping[tuple[str, datetime], ActivityKind]
    """By instance and launch: what its own description states. `ENDED_UNSTATED`: its operating system powered it off,
    which says that neither its cloud nor a call of the account ended it."""
    events: Sequence[Activity]
    """Of the groups."""
    spot: Collection[str]
    """Groups whose instances the cloud may take back. Of others an end that reads like that is unstated."""


_GAP: Final = timedelta(minutes=10)
"""Nobody knows what became of an instance in a longer time without a look: it may have been ready."""
_OPEN_FOR: Final = timedelta(hours=3)
"""So long after it left, a better answer to why is looked for: clouds report late."""
_EARLY: Final = timedelta(minutes=2)
"""By so much the record of a launch may be older than the instance itself."""
_BEST_FIRST: Final = (
    ActivityKind.PREEMPTED,
    ActivityKind.FAILED_BOOT,
    ActivityKind.ENDED,
    ActivityKind.UNHEALTHY,
    ActivityKind.ENDED_BY_PERSON,
    ActivityKind.ENDED_UNSTATED,
)
"""Of several answers the first holds. A group that gives a boot up ends the instance as a person would."""
_BY_US: Final = frozenset({DrainOwner.IDLE, DrainOwner.SPOT, DrainOwner.ROLLOUT})
FAILED_REASONS: Final = frozenset({Reason.BOOT_FAILED, Reason.BOOTS_FAILING})
"""Why a watchdog ends an instance whose boot failed."""


def ours(actions: Iterable[PastAction]) -> dict[str, PastAction]:
    """By instance: how a watchdog ended it last. What a newer release did may have been an end."""
    ends = (Action.END, Action.REPLACE, Action.STOP)
    return {past.resource: past for past in actions if past.action in ends or not past.action.known}


def look(
    known: Iterable[Boot],
    there: Iterable[tuple[Instance, str]],
    statuses: Mapping[str, AgentStatus],
    ends: EndFacts,
    now: datetime,
) -> list[Boot]:
    """All boots as they are after a look at which these instances (each with its pool) were alive in their groups."""
    found = {boot.key: boot for boot in known}
    alive: set[tuple[str, datetime]] = set()
    for instance, pool in there:
        boot = found.get((instance.id, instance.launched_at)) or _first(instance, pool, now)
        alive.add(boot.key)
        found[boot.key] = _present(boot, statuses.get(instance.id), now)
    reported: dict[str, list[Activity]] = {}
    for event in ends.events:
        if event.instance_id is not None and event.kind in _BEST_FIRST:
            reported.setdefault(event.instance_id, []).append(event)
    for key in found.keys() - alive:
        boot = found[key]
        if boot.left_at is None:
            # a clock that was set back must not say that it left before it was seen
            boot = replace(boot, left_at=max(now, boot.first_seen_at, boot.last_seen_at))
        if boot.left_at is not None and now - boot.left_at < _OPEN_FOR:
            boot = replace(boot, ended_why=_why(boot, ends, reported.get(boot.instance_id, ())))
        found[key] = boot
    return sorted(found.values(), key=lambda boot: (boot.launched_at, boot.instance_id))


def changed(before: Iterable[Boot], after: Iterable[Boot]) -> list[Boot]:
    """Those that are to be written."""
    old = {boot.key: boot for boot in before}
    return [boot for boot in after if old.get(boot.key) != boot]


def _first(instance: Instance, pool: str, now: datetime) -> Boot:
    return Boot(
        instance_id=instance.id,
        pool=pool,
        group=instance.group or "",
        machine_type=instance.machine_type,
        launched_at=instance.launched_at,
        first_seen_at=now,
        last_seen_at=now,
    )


def _present(boot: Boot, status: AgentStatus | None, now: datetime) -> Boot:
    """A boot whose instance is there, with what its agent says."""
    ready_at, why = boot.ready_at, boot.ended_why if boot.left_at is None else None
    if status is not None:
        why = _announced(status)
        if ready_at is None and status.ready:
            ready_at = max(boot.launched_at, min(now, status.phase_since or now))
        elif ready_at is None and status.has_served:
            ready_at = now
    last_seen = boot.last_seen_at if ready_at is not None and boot.ready_at is not None else now
    return replace(boot, last_seen_at=last_seen, ready_at=ready_at, left_at=None, ended_why=why)


def _announced(status: AgentStatus) -> ActivityKind | None:
    """Why it is about to end, by its agent."""
    if status.notice_at is not None:
        return ActivityKind.PREEMPTED
    if not (status.draining or status.drained):
        return None
    if status.drain_by is DrainOwner.PERSON:
        return ActivityKind.ENDED_BY_PERSON
    return ActivityKind.ENDED if status.drain_by in _BY_US else None


def _why(boot: Boot, ends: EndFacts, reported: Sequence[Activity]) -> ActivityKind | None:
    """Why an instance that has left ended, by all that is known now; None: nobody states it."""
    past = ends.ours.get(boot.instance_id)
    if past is not None and past.at >= boot.launched_at:
        return ActivityKind.FAILED_BOOT if past.reason in FAILED_REASONS else ActivityKind.ENDED
    answers = {
        event.kind
        for event in reported
        if event.at >= boot.launched_at - _EARLY
        and (event.kind is not ActivityKind.PREEMPTED or event.group in ends.spot)
    }
    stated = ends.stated.get(boot.key)
    answers |= {kind for kind in (boot.ended_why, stated) if kind is not None}
    best = next((kind for kind in _BEST_FIRST if kind in answers), boot.ended_why)
    powered_off = stated is ActivityKind.ENDED_UNSTATED and best is ActivityKind.ENDED_UNSTATED
    if powered_off and boot.ready_at is None and was_watched(boot):
        return ActivityKind.FAILED_BOOT  # neither its cloud nor a call ended it: it gave up its boot
    return best


# what a boot was

_NOT_FAILED: Final = frozenset({ActivityKind.PREEMPTED, ActivityKind.ENDED, ActivityKind.ENDED_BY_PERSON})


_UNSTATED: Final = frozenset({None, ActivityKind.ENDED_UNSTATED})


def failed(boot: Boot, *, spot: bool) -> bool:
    """Whether it left without having been ready, and neither we, nor a person, nor its cloud ended it.

    What happened in a long time without a look is unknown, and no failure, unless the cloud or we said so. So is the
    end of a `spot` instance for which no cause is stated.
    """
    if boot.left_at is None or boot.ready_at is not None or boot.ended_why in _NOT_FAILED:
        return False
    if spot and boot.ended_why in _UNSTATED:
        return False
    return boot.ended_why is ActivityKind.FAILED_BOOT or was_watched(boot)


def was_watched(boot: Boot) -> bool:
    """Whether looks followed the boot until it left: else it may have been ready in between."""
    return boot.left_at is not None and boot.left_at - boot.last_seen_at <= _GAP


def has_crashed(boot: Boot | None, instance: Instance, status: AgentStatus, limit: timedelta, now: datetime) -> bool:
    """Whether an engine that failed had served before. `limit`: how long a boot may take.

    An agent of an earlier release does not say so. A boot does not fail hours after its launch.
    """
    if status.phase is not Phase.FAILED:
        return False
    if status.has_served or (boot is not None and boot.ready_at is not None):
        return True
    return (status.phase_since or now) - instance.launched_at > max(BOOT_MOST, limit)
