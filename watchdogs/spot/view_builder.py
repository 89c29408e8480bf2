"""Builds the pool views of the spot watchdog from the observed fleet and the ledger."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.boots import Boot
from gpufleet.domain.decisions import Objection, PastAction, Reason, Target
from gpufleet.domain.evidence import AgentStatus, is_termination_left_to_cloud
from gpufleet.domain.model import CapacityType, Group, Instance, Phase
from gpufleet.settings.document import FleetDocument, GroupEntry, Pool
from watchdogs import boots, budgets
from watchdogs.observe.fleet import ObservedFleet
from watchdogs.policy import digests
from watchdogs.ports import Ports
from watchdogs.spot.decide import WATCHDOG
from watchdogs.spot.pool_view import Crash, GroupView, PoolMember, SpotPoolView
from watchdogs.spot.risk import ZoneHistory, recall

LOOK_BACK: Final = timedelta(hours=6)
"""Older events do not affect the current state of a group."""
SIZING: Final = frozenset({"Launch", "Terminate"})
"""Processes without which a desired size has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotFacts:
    """Facts from the ledger, the brakes and this pass, in addition to the current state of the clouds."""

    pass_started: datetime
    asked_since: Mapping[str, datetime]
    """By pool: since when this pass waits for answers of its groups."""
    awaited: frozenset[str]
    """Groups whose answers this pass waits for."""
    events: Sequence[Activity]
    """Activities of the groups of all pools, oldest first."""
    activity_errors: Mapping[str, str]
    """By group whose activities could not be read: the error."""
    targets: Mapping[str, Target]
    """By pool, if a person or the scale watchdog has set one."""
    paused: Mapping[str, str]
    """By pool: who paused it."""
    missed: Mapping[str, datetime]
    """By instance: since when it is recorded as not ready although it should be."""
    lost: frozenset[str]
    """Instances that the cloud reclaimed or is reclaiming, even if they were ended before."""
    boots: Mapping[tuple[str, datetime], Boot]
    """Boots by instance and launch."""
    crashes: Mapping[str, Sequence[Crash]]
    """By pool: crashes for which instances were ended."""
    retry_requested_at: Mapping[str, datetime]
    """By pool: when a person requested that boots are tried again."""
    kept: Mapping[str, str]
    """By instance: who asked to keep it."""
    target_held: frozenset[str]
    """Pools whose target a person holds."""
    ended: Mapping[str, int]
    """By pool: ends by choice within the hour."""
    reported: Mapping[tuple[str, Reason], datetime]
    """By resource and reason: when people were last notified, or a note was repeated, that it is left unchanged."""
    actions: Sequence[PastAction]
    """Actions of the last days, oldest first."""
    asked: frozenset[str]
    """Instances asked to drain within the hour of the budgets, whose end was not observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByPool:
    """Data of all pools, grouped once; each part keeps its order."""

    machines: Mapping[str, Sequence[Instance]]
    """By pool."""
    frozen: Mapping[str, Objection]
    """By instance: why nothing is decided about it."""
    boots: Mapping[str, Sequence[Boot]]
    """By pool."""
    events: Mapping[str, Sequence[Activity]]
    """By pool."""
    actions: Mapping[str, Sequence[PastAction]]
    """By group."""


class Views:
    """Builds the view of each pool of a fleet."""

    def __init__(self, document: FleetDocument, ports: Ports) -> None:
        self._document = document
        self._ports = ports
        self._digests = digests(document, WATCHDOG)

    def of(
        self, pools: Sequence[Pool], fleet: ObservedFleet, known: SpotFacts, now: datetime
    ) -> tuple[SpotPoolView, ...]:
        """The views of these pools. Raises ValueError for a pool without a spot watchdog."""
        shared = _group_by_pool(pools, fleet, known)
        return tuple(self._of(pool, fleet, known, shared, now) for pool in pools)

    def _of(self, pool: Pool, fleet: ObservedFleet, known: SpotFacts, shared: _ByPool, now: datetime) -> SpotPoolView:
        entry = pool.watchdogs.spot
        if entry is None:
            raise ValueError(f"pool {pool.name!r} has no spot watchdog")
        names = {group.name for group in pool.groups}
        machines = shared.machines.get(pool.name, ())
        statuses, frozen = fleet.statuses, shared.frozen
        booted = shared.boots.get(pool.name, ())
        usual = boots.by_machine_type(booted)
        members = [
            replace(
                _member(i, statuses.get(i.id), self._ports.prices.usd_per_hour(i), known.missed.get(i.id, now)),
                kept_by=known.kept.get(i.id),
                left_to_its_cloud=is_termination_left_to_cloud(i, statuses.get(i.id), now),
                asked=i.id in known.asked,
                frozen=frozen.get(i.id),
                crashed_at=_crashed_at(
                    i, statuses.get(i.id), known.boots.get((i.id, i.launched_at)), pool.boot_limit, now
                ),
                progresses=_progresses(statuses.get(i.id), known.boots.get((i.id, i.launched_at))),
                boot_expected=usual.get(i.machine_type),
            )
            for i in machines
        ]
        members += [
            PoolMember(id=key, group=group, launched_at=now, agent_unreachable=True, frozen=frozen[key])
            for key, (group, _) in fleet.unlisted.unknown.items()
            if group in names
        ]
        own = shared.events.get(pool.name, ())
        ready = boots.durations(machines, statuses)
        row = known.targets.get(pool.name)
        target = pool.target if row is None else row.value
        return SpotPoolView(
            name=pool.name,
            target=target,
            min_target=target if pool.name in known.target_held else pool.min,
            spare=pool.spare,
            max=pool.max,
            policy=entry,
            groups=[
                replace(
                    self._group(g, fleet, machines, _memory(g, own, members, now)),
                    closed=_closed(g, known.activity_errors)
                    or refused_for_good(
                        g.name,
                        [e for e in own if e.group == g.name],
                        shared.actions.get(g.name, ()),
                        self._since(pool, known),
                    ),
                    awaited=g.name in known.awaited,
                    taken=_taken(fleet.groups.get(g.name), fleet.members, known.lost),
                )
                for g in pool.groups
            ],
            members=members,
            events=[event for event in own if now - event.at < LOOK_BACK],
            pass_started=known.pass_started,
            asked_since=known.asked_since.get(pool.name),
            boots=booted,
            crashes=known.crashes.get(pool.name, ()),
            retry_requested_at=known.retry_requested_at.get(pool.name),
            on_demand_usd=self._on_demand_usd(pool),
            boot_expected=boots.expected(ready, otherwise=max(usual.values(), default=boots.DEFAULT_BOOT)),
            boot_limit=pool.boot_limit,
            drain_deadline=pool.drain_deadline,
            idle_ends=pool.watchdogs.idle is not None,
            paused_by=known.paused.get(pool.name),
            policy_seen=self._ports.ledger.policy_seen(WATCHDOG, pool.name, self._digests[pool.name]),
            ended_this_hour=known.ended.get(pool.name, 0),
            started_this_hour=_started(booted, own, now - budgets.HOUR),
            uncertain=_uncertain(pool, fleet),
            incomplete=None
            if fleet.incomplete is None
            else Objection(reason=Reason.LIST_INCOMPLETE, detail=fleet.incomplete),
        )

    def _since(self, pool: Pool, known: SpotFacts) -> datetime:
        """When the settings were written, or a person requested a retry for the pool."""
        return max(
            self._document.generated_by.at, known.retry_requested_at.get(pool.name, self._document.generated_by.at)
        )

    def _group(
        self, entry: GroupEntry, fleet: ObservedFleet, machines: Sequence[Instance], memory: ZoneHistory
    ) -> GroupView:
        group = fleet.groups.get(entry.name)
        there = sum(one.group == entry.name for one in machines)
        prices = self._ports.prices
        found: list[Decimal | None] = []
        if entry.type is CapacityType.SPOT and entry.zone is not None:
            found = [prices.spot_usd_per_hour(machine_type, entry.zone) for machine_type in entry.machine_types]
        elif entry.type is CapacityType.ON_DEMAND:
            found = [prices.on_demand_usd_per_hour(machine_type) for machine_type in entry.machine_types]
        known = [price for price in found if price is not None]
        listed = [
            prices.list_usd_per_hour(machine_type, entry.type, entry.zone) for machine_type in entry.machine_types
        ]
        priced = [price for price in listed if price is not None]
        return GroupView(
            name=entry.name,
            max_usd_per_hour=max(priced) if priced and len(priced) == len(listed) else None,
            capacity_type=entry.type,
            zone=entry.zone,
            desired=there if group is None else group.desired,
            unseen=0 if group is None else fleet.unseen(group),
            max=entry.max,
            usd_per_hour=min(known, default=None),
            losses_per_hour=memory.losses_per_hour,
            opens=entry.opens,
            closes=entry.closes,
            frozen=_frozen(entry, fleet),
            suspended="" if group is None else _suspended(group),
        )

    def _on_demand_usd(self, pool: Pool) -> Decimal | None:
        """Lowest on-demand price of the machine types that spot may use; None: unknown."""
        types = {t for group in pool.groups_of(CapacityType.SPOT) for t in group.machine_types}
        types = types or {t for group in pool.groups_of(CapacityType.ON_DEMAND) for t in group.machine_types}
        found = [self._ports.prices.on_demand_usd_per_hour(machine_type) for machine_type in sorted(types)]
        return min((price for price in found if price is not None), default=None)


def _group_by_pool(pools: Sequence[Pool], fleet: ObservedFleet, known: SpotFacts) -> _ByPool:
    pool_of_group = {group.name: pool.name for pool in pools for group in pool.groups}
    machines: dict[str, list[Instance]] = defaultdict(list)
    for one in fleet.members.values():
        if one.group in pool_of_group:
            machines[pool_of_group[one.group]].append(one)
    booted: dict[str, list[Boot]] = defaultdict(list)
    for boot in known.boots.values():
        booted[boot.pool].append(boot)
    events: dict[str, list[Activity]] = defaultdict(list)
    for event in known.events:
        if event.group in pool_of_group:
            events[pool_of_group[event.group]].append(event)
    actions: dict[str, list[PastAction]] = defaultdict(list)
    for past in known.actions:
        if past.resource in pool_of_group:
            actions[past.resource].append(past)
    return _ByPool(machines=machines, frozen=fleet.frozen(), boots=booted, events=events, actions=actions)


def _frozen(entry: GroupEntry, fleet: ObservedFleet) -> Objection | None:
    """Why nothing is decided about a group; None: it can be."""
    error = fleet.unreadable.get(entry.name)
    if error is not None:
        return Objection(reason=Reason.GROUP_UNREADABLE, detail=error)
    group = fleet.groups.get(entry.name)
    suspended = () if group is None else group.suspended
    by_people = [one for one in suspended if one.process in SIZING and not one.by_cloud]
    if by_people:
        detail = ", ".join(f"{one.process} ({one.reason})" for one in by_people)
        return Objection(reason=Reason.SUSPENDED, detail=detail)
    return None


def _suspended(group: Group) -> str:
    """The suspended processes of a group, for people."""
    return ", ".join(
        f"{one.process} is suspended by {'its cloud' if one.by_cloud else 'a person'} ({one.reason})"
        for one in group.suspended
    )


def _closed(entry: GroupEntry, activity_errors: Mapping[str, str]) -> Objection | None:
    """Why nothing is requested of a group: the activities of a spot group must be read, since on-demand depends on
    them.
    """
    if entry.type is not CapacityType.SPOT or entry.name not in activity_errors:
        return None
    return Objection(reason=Reason.GROUP_UNREADABLE, detail=f"its activities: {activity_errors[entry.name]}")


def _uncertain(pool: Pool, fleet: ObservedFleet) -> Objection | None:
    """Why no instance of a pool is ended by choice: its size is unknown; None: it is known."""
    names = {group.name for group in pool.groups}
    if lost := sorted(names & fleet.unreadable.keys()):
        return Objection(reason=Reason.GROUP_UNREADABLE, detail=fleet.unreadable[lost[0]])
    unknown = sorted(key for key, (group, _) in fleet.unlisted.unknown.items() if group in names)
    if unknown:
        return Objection(reason=Reason.NOT_LISTED, detail=f"{unknown[0]}: {fleet.unlisted.unknown[unknown[0]][1]}")
    return None


def _member(instance: Instance, status: AgentStatus | None, usd: Decimal | None, missed: datetime) -> PoolMember:
    ready = status is not None and status.ready and not status.draining
    return PoolMember(
        id=instance.id,
        group=instance.group or "",
        launched_at=instance.launched_at,
        ready_since=(status.phase_since or instance.launched_at) if ready and status is not None else None,
        not_ready_since=None if ready else _since_when(status, missed),
        leaving=status is not None and (status.draining or status.drained),
        drain_by=status.drain_by if status is not None else None,
        under_notice=status is not None and status.notice_at is not None,
        leaving_because=(status.reason or "") if status is not None else "",
        drained=status is not None and status.drained,
        failed=status is not None and status.phase is Phase.FAILED,
        agent_unreachable=status is None,
        error=(status.error or "") if status is not None else "",
        requests_in_flight=(status.requests_running or 0) if status is not None else 0,
        usd_per_hour=usd,
        is_marked=instance.idle_since is not None,
        ends_at=instance.ends_at,
    )


def _taken(group: Group | None, instances: Collection[str], lost: Collection[str]) -> tuple[str, ...]:
    """Instances that a group still lists although its cloud reclaimed them."""
    if group is None:
        return ()
    return tuple(key for key in group.instance_ids if key in lost and key not in instances)


def _started(booted: Sequence[Boot], events: Iterable[Activity], since: datetime) -> int:
    """Number of launches since then. A name may be used again: a start is a name and a time, in whole seconds.

    Instances that ended before an observation count by the launch activities of their groups.
    """
    launches = ((boot.instance_id, boot.launched_at) for boot in booted)
    seen = {boot.instance_id for boot in booted}
    unseen = {e.instance_id for e in events if e.kind is ActivityKind.LAUNCHED and e.at > since} - seen
    return len({(name, at.replace(microsecond=0)) for name, at in launches if at > since}) + len(unseen)


def _crashed_at(
    instance: Instance, status: AgentStatus | None, boot: Boot | None, limit: timedelta, now: datetime
) -> datetime | None:
    """Since when its engine has crashed; None: it serves, boots, or its boot failed. `limit`: longest boot."""
    if status is None or not boots.has_crashed(boot, instance, status, limit, now):
        return None
    return status.phase_since or instance.launched_at


def _progresses(status: AgentStatus | None, boot: Boot | None) -> bool:
    """Whether its agent reports progress of its first boot."""
    if status is None or status.draining or status.phase not in boots.PROGRESS:
        return False
    return not status.has_served and (boot is None or boot.ready_at is None)


def _since_when(status: AgentStatus | None, missed: datetime) -> datetime:
    """Since when it is known not to be ready, according to its agent or the ledger."""
    known = status.phase_since if status is not None and status.phase is not Phase.READY else None
    return missed if known is None else min(missed, known)


def _memory(
    entry: GroupEntry, events: Sequence[Activity], members: Sequence[PoolMember], now: datetime
) -> ZoneHistory:
    own = [event for event in events if event.group == entry.name]
    return recall(own, [m.launched_at for m in members if m.group == entry.name], now)


def refused_for_good(
    group: str, events: Sequence[Activity], actions: Iterable[PastAction], since: datetime
) -> Objection | None:
    """Why nothing is requested of a group until a person changes something; None: requests are possible.

    After a permanent refusal (the zone has no such machine, a permission is missing, the template is wrong) nothing
    is requested again until the settings are written again (`pulumi up`) or a person runs `gpufleet resume POOL`. The
    ledger keeps the refusal, since the cloud does not report it for that long.

    `events` of the group, oldest first. Events before `since` (the settings were written, or a person requested a
    retry) and events before a launch do not count.
    """
    own = [event for event in events if event.at >= since]
    launched = max((event.at for event in own if event.kind is ActivityKind.LAUNCHED), default=since)
    answers = [event for event in own if event.kind.refuses and event.at > launched]
    if answers and answers[-1].kind.lasts:
        return Objection(reason=Reason.CANNOT_LAUNCH, detail=f"{answers[-1].kind.sentence}: {answers[-1].detail}")
    noted = [
        past
        for past in actions
        if past.resource == group and past.reason is Reason.CANNOT_LAUNCH and past.at > launched and past.at >= since
    ]
    return Objection(reason=Reason.CANNOT_LAUNCH, detail=noted[-1].detail) if noted else None
