"""Boot durations and failed boots of instances, updated by each observation. Pure.

A boot failed when the instance left its group, was never observed ready, and was ended neither by a watchdog, nor by
a person, nor by the cloud that reclaimed it. If no cause is stated for the end of a spot instance, the cloud may have
reclaimed it: the cause is unknown, and the boot does not count as failed. No cloud reports failed boots: behind a
launch hook a launch is open until the instance is ready, and Google Cloud reports no launches at all. So each
observation records which instances exist and which are ready.
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

# durations

DEFAULT_BOOT: Final = timedelta(minutes=6)
"""Expected duration before any boot was measured."""
MAX_PLAUSIBLE_BOOT: Final = timedelta(hours=1)
"""Longer durations are not boots: an agent that restarts or switches its revision enters `ready` again, hours or days
after the launch. A boot that really takes longer is only left out of the expected duration."""
NEWEST: Final = 7
"""The number of newest boots that the expected duration is computed from."""
PROGRESS: Final = frozenset({Phase.BOOTING, Phase.DISKS, Phase.CACHE, Phase.ENGINE, Phase.WARM_UP})
"""Phases of an agent that boots. The agent itself ends a phase that takes too long."""


def durations(instances: Iterable[Instance], statuses: Mapping[str, AgentStatus]) -> list[timedelta]:
    """Boot durations of the ready instances. A duration that cannot be a boot is left out."""
    found: list[timedelta] = []
    for instance in instances:
        status = statuses.get(instance.id)
        if status is not None and status.ready and is_boot(instance.launched_at, status.phase_since):
            found.append((status.phase_since or instance.launched_at) - instance.launched_at)
    return found


def is_boot(launched_at: datetime, ready_since: datetime | None) -> bool:
    """Whether an instance that became ready at `ready_since` can have done so by booting."""
    return ready_since is not None and timedelta(0) < ready_since - launched_at <= MAX_PLAUSIBLE_BOOT


def expected(boots: Sequence[timedelta], otherwise: timedelta = DEFAULT_BOOT) -> timedelta:
    """The median; `otherwise` without boots."""
    return timedelta(seconds=statistics.median(boot.total_seconds() for boot in boots)) if boots else otherwise


def by_machine_type(remembered: Iterable[Boot]) -> dict[str, timedelta]:
    """Expected boot duration by machine type: the median of the newest successful boots."""
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


# observations


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFacts:
    """What is known of why instances ended, in addition to what earlier observations recorded."""

    by_watchdogs: Mapping[str, PastAction]
    """By instance: how a watchdog ended it."""
    stated: Mapping[tuple[str, datetime], ActivityKind]
    """By instance and launch: the reason in its own description. `ENDED_UNSTATED`: its operating system powered it
    off, so neither the cloud nor an API call of the account ended it."""
    events: Sequence[Activity]
    """Activities of the groups."""
    spot: Collection[str]
    """Groups whose instances the cloud may reclaim. In other groups a preemption counts as an unstated end."""


_GAP: Final = timedelta(minutes=10)
"""Longest time without an observation: after more, the instance may have been ready in between."""
_OPEN_FOR: Final = timedelta(hours=3)
"""How long after an end its cause is still updated: clouds report late."""
_EARLY: Final = timedelta(minutes=2)
"""How much older than the instance the record of its launch may be."""
_BEST_FIRST: Final = (
    ActivityKind.PREEMPTED,
    ActivityKind.FAILED_BOOT,
    ActivityKind.ENDED,
    ActivityKind.UNHEALTHY,
    ActivityKind.ENDED_BY_PERSON,
    ActivityKind.ENDED_UNSTATED,
)
"""Of several causes the first one applies. A group that gives up a boot ends the instance as a person would."""
_BY_US: Final = frozenset({DrainOwner.IDLE, DrainOwner.SPOT, DrainOwner.ROLLOUT})
FAILED_REASONS: Final = frozenset({Reason.BOOT_FAILED, Reason.BOOTS_FAILING})
"""Why a watchdog ends an instance whose boot failed."""


def ends_by_watchdogs(actions: Iterable[PastAction]) -> dict[str, PastAction]:
    """By instance: how a watchdog ended it last.

    An action of a newer release that is unknown here counts as an end.
    """
    ends = (Action.END, Action.REPLACE, Action.STOP)
    return {past.resource: past for past in actions if past.action in ends or not past.action.known}


def observe(
    known: Iterable[Boot],
    there: Iterable[tuple[Instance, str]],
    statuses: Mapping[str, AgentStatus],
    ends: EndFacts,
    now: datetime,
) -> list[Boot]:
    """All boots, updated by an observation. `there`: the instances alive in their groups, each with its pool."""
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
            # a clock that was set back must not date the end before the last observation
            boot = replace(boot, left_at=max(now, boot.first_seen_at, boot.last_seen_at))
        if boot.left_at is not None and now - boot.left_at < _OPEN_FOR:
            boot = replace(boot, ended_why=_why(boot, ends, reported.get(boot.instance_id, ())))
        found[key] = boot
    return sorted(found.values(), key=lambda boot: (boot.launched_at, boot.instance_id))


def changed(before: Iterable[Boot], after: Iterable[Boot]) -> list[Boot]:
    """The boots that changed and must be written."""
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
    """A boot whose instance exists, updated by the status of its agent."""
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
    """Why the instance is about to end, as its agent reports."""
    if status.notice_at is not None:
        return ActivityKind.PREEMPTED
    if not (status.draining or status.drained):
        return None
    if status.drain_by is DrainOwner.PERSON:
        return ActivityKind.ENDED_BY_PERSON
    return ActivityKind.ENDED if status.drain_by in _BY_US else None


def _why(boot: Boot, ends: EndFacts, reported: Sequence[Activity]) -> ActivityKind | None:
    """Why an instance that left its group ended; None: no source states a cause."""
    past = ends.by_watchdogs.get(boot.instance_id)
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
        return ActivityKind.FAILED_BOOT  # ended neither by its cloud nor by an API call: the boot was given up
    return best


# results

_NOT_FAILED: Final = frozenset({ActivityKind.PREEMPTED, ActivityKind.ENDED, ActivityKind.ENDED_BY_PERSON})


_UNSTATED: Final = frozenset({None, ActivityKind.ENDED_UNSTATED})


def failed(boot: Boot, *, spot: bool) -> bool:
    """Whether the instance left, was never ready, and was ended neither by a watchdog, nor a person, nor its cloud.

    An end that was not observed for a long time is unknown. It counts as a failure only if the cloud or a watchdog
    recorded it as one. The end of a `spot` instance without a stated cause is unknown, too.
    """
    if boot.left_at is None or boot.ready_at is not None or boot.ended_why in _NOT_FAILED:
        return False
    if spot and boot.ended_why in _UNSTATED:
        return False
    return boot.ended_why is ActivityKind.FAILED_BOOT or was_watched(boot)


def was_watched(boot: Boot) -> bool:
    """Whether the boot was observed until the instance left: if not, it may have been ready in between."""
    return boot.left_at is not None and boot.left_at - boot.last_seen_at <= _GAP


def has_crashed(boot: Boot | None, instance: Instance, status: AgentStatus, limit: timedelta, now: datetime) -> bool:
    """Whether an engine that failed had served before. `limit`: how long a boot may take.

    An agent of an earlier release does not report it. A boot does not fail hours after its launch.
    """
    if status.phase is not Phase.FAILED:
        return False
    if status.has_served or (boot is not None and boot.ready_at is not None):
        return True
    return (status.phase_since or now) - instance.launched_at > max(MAX_PLAUSIBLE_BOOT, limit)
