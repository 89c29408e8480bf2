"""The spot watchdog: observe, decide, act, and again within the pass until every zone was asked."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Final

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.boots import BOOT_LIMIT, Boot
from gpufleet.domain.decisions import PastAction, Plan, Reason, Spend, Target
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import CapacityType, Group, Instance, Phase
from gpufleet.domain.prices import FREE_IF_INTERRUPTED
from gpufleet.settings.document import FleetDocument, GroupEntry, Pool
from gpufleet.settings.document.money import Unpriced
from watchdogs import boots, budgets
from watchdogs.brakes import kept_by_people, paused_by, target_held_by
from watchdogs.execute import Executor, Pass
from watchdogs.idle.decide import WATCHDOG as IDLE
from watchdogs.policy import digests, see_all
from watchdogs.ports import CutShortError, Ports
from watchdogs.spot import acting, lifecycle, refusals
from watchdogs.spot.certain import TROUBLES, troubles
from watchdogs.spot.decide import WATCHDOG, decide
from watchdogs.spot.ends import Ends
from watchdogs.spot.happened import calm
from watchdogs.spot.pool_view import Crash, GroupView, Member, PoolView, Verdict
from watchdogs.spot.reading import Fleet, Lists, Looks, read
from watchdogs.spot.risk import Memory, recall
from watchdogs.spot.sizes import chosen_ends
from watchdogs.whole import Reader

LOOK_BACK: Final = timedelta(hours=6)
"""Older events say nothing about what a group does now."""
REMEMBERED: Final = timedelta(days=3)
"""How far back activities are read for a zone's memory: three of its half-lives."""
SIZING: Final = frozenset({"Launch", "Terminate"})
"""Processes without which a size means nothing."""
NOTED_EVERY: Final = timedelta(days=1)
"""A trouble that lasts is noted anew so often: the ledger is asked about three days."""
ROUNDS: Final = 12
"""Looks of one pass: each zone refuses at most once, so this many zones can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known beside what the clouds say now."""

    missed: Mapping[str, datetime]
    """By instance: since when it is noted not to be ready though it should be."""
    lost: frozenset[str]
    """Instances that the cloud took or is taking, also where somebody ended them before it did."""
    boots: Mapping[tuple[str, datetime], Boot]
    """By instance and launch: how it booted and left."""
    crashes: Mapping[str, Sequence[Crash]]
    """By pool: engines that had crashed when they were ended."""
    fixed: Mapping[str, datetime]
    """By pool: when a person said that boots are to be tried again."""
    kept: Mapping[str, str]
    """By instance: who asked to keep it."""
    held: frozenset[str]
    """Pools whose targets people hold."""
    ended: Mapping[str, int]
    """By pool: instances that went by choice within the hour."""
    reported: Mapping[tuple[str, Reason], datetime]
    """When people were notified, or it was noted anew, that a resource is left alone, and why."""
    actions: Sequence[PastAction]
    """Of the last days, oldest first."""
    asked: frozenset[str]
    """Instances that were asked to drain within the hour that budgets count, and whose end was not seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One look at the fleet."""

    groups: Mapping[str, Group]
    instances: Mapping[str, Instance]
    views: tuple[PoolView, ...]
    known: _Known
    spend: Spend | None
    """What all pools cost as they run; None: nothing stops their growth."""
    news: tuple[Boot, ...]
    """Boots of which this look saw more than the ledger knows."""


class SpotWatchdog:
    """Splits the targets of a fleet's pools over their groups."""

    def __init__(self, document: FleetDocument, ports: Ports, lists: Lists | None = None) -> None:
        """`lists`: what earlier passes of this process read; None: it has made no other."""
        self._document = document
        self._ports = ports
        self._lists = lists or Lists()
        self._pass_looks = _looks_of(ports, self._lists)
        self._digests = digests(document, WATCHDOG)
        self._unanswered: list[Activity] = []
        self._ends = Ends(ports)
        self._acted = False

    def dry(self) -> Pass[tuple[PoolView, ...]]:
        """Observe and decide once. The plan is for people to read, and from now on its policies count as seen."""
        now = self._ports.clock.now()
        seen = self._look(now, now)
        plan = decide([replace(view, policy_seen=True) for view in seen.views], now, seen.spend)
        see_all(self._ports, self._document, WATCHDOG)
        return Pass(observed=seen.views, plan=plan)

    def apply(self) -> Pass[tuple[PoolView, ...]]:
        """One whole pass. Raises OSError when the fleet could not be observed whole: CutShortError where it had acted
        before.
        """
        self._acted = False
        try:
            return self._looks()
        except OSError as error:
            if self._acted:
                raise CutShortError(str(error)) from error
            raise

    def _looks(self) -> Pass[tuple[PoolView, ...]]:
        started = self._ports.clock.now().replace(microsecond=0)  # activities carry whole seconds
        self._unanswered = []
        self._pass_looks = _looks_of(self._ports, self._lists)
        executor = Executor(self._ports, acting.RULES)
        executor.settle(partial(acting.settle, executor, self._ports, self._document))
        rounds = 0
        while True:
            now = self._ports.clock.now()
            seen = self._look(now, started)
            self._note(executor, seen, now)
            plan = decide(seen.views, now, seen.spend)
            executor.record(plan)
            self._report(executor, seen, plan)
            actor = acting.Actor(self._document, self._ports, executor, seen.groups, seen.instances, self._pass_looks)
            self._acted = self._acted or bool(plan.acting)
            done = actor.resize(plan)
            self._unanswered += done.unanswered
            rounds += 1
            if not done.asked or rounds == ROUNDS or executor.lease_lost:
                break
        actor.end(plan)
        return executor.finish(seen.views, plan)

    def _note(self, executor: Executor, seen: _Seen, now: datetime) -> None:
        """Record what later passes must know: who booted, who is not ready any more or again, and who is lost."""
        self._ports.ledger.note_boots(seen.news, now)
        for view in seen.views:
            for decision in (
                *lifecycle.readiness_changes(view, seen.known.missed, now),
                *lifecycle.losses(view, seen.known.lost, now),
            ):
                executor.note(decision, now)

    def _report(self, executor: Executor, seen: _Seen, plan: Plan) -> None:
        """Notify people of what must be fixed before anything is decided there: once, and again after a day."""
        for decision in troubles(plan):
            noted_at = seen.known.reported.get((decision.resource, decision.reason))
            if decision.resource in executor.unsettled or (noted_at and plan.at - noted_at < NOTED_EVERY):
                continue
            if noted_at is None:
                key = f"{decision.reason}:{decision.resource}:{plan.at:%Y%m%dt%H%M}"
                what = f"{decision.resource} is left alone: {decision.reason.sentence}"
                more = (
                    ""
                    if decision.reason is not Reason.CANNOT_LAUNCH
                    else (f" It is asked again after the next `pulumi up`, or `gpufleet resume {decision.pool}`.")
                )
                executor.notify(key, f"Pool {decision.pool}: {what}. {decision.detail}.{more}")
            executor.note(decision, plan.at)
        for view in seen.views:
            self._report_view(executor, view)

    def _report_view(self, executor: Executor, view: PoolView) -> None:
        """Notify people of what a cloud said or did of itself: of each thing once."""
        for name, event in refusals.unknown(view.events).items():
            text = f"Pool {view.name}, {event.group}: its cloud said what gpufleet does not know: {event.detail}"
            executor.notify(f"unknown:{name}", f"{text} It does not count as missing capacity.")
        for group in view.groups:
            if group.suspended and group.frozen is None:
                key = f"suspended:{group.name}:{refusals.sentence_key(group.suspended)}"
                executor.notify(key, f"Pool {view.name}, {group.name}: it does not act in full: {group.suspended}.")

    def _look(self, now: datetime, started: datetime) -> _Seen:
        ports = self._ports
        pools = [pool for pool in self._document.pools if pool.watchdogs.spot is not None]
        names = [group.name for pool in pools for group in pool.groups]
        fleet = read(ports, self._pass_looks, names, now)
        members = fleet.members
        actions = ports.ledger.done_since(WATCHDOG, now - REMEMBERED)
        lost = frozenset(past.resource for past in actions if past.reason is Reason.PREEMPTED)
        targets = ports.ledger.targets()
        found, silent = self._activities(pools, fleet, targets, lost, now)
        before = ports.ledger.boots()
        seen = self._boots(before, fleet, found, actions, now)
        events = [*_with_launches(found, seen, now), *self._unanswered]
        brakes = [brake for brake in ports.ledger.brakes(now) if brake.holds(now)]
        known = _Known(
            missed=lifecycle.missed(actions),
            lost=lost,
            boots={boot.key: boot for boot in seen},
            crashes=lifecycle.crashes(actions),
            fixed=lifecycle.fixed_at(actions),
            kept=kept_by_people([*members.values()], brakes, now),
            held=frozenset(pool.name for pool in pools if target_held_by(pool.name, brakes)),
            ended=chosen_ends(past for past in actions if past.at >= now - budgets.HOUR),
            reported={(past.resource, past.reason): past.at for past in actions if past.reason in TROUBLES},
            actions=actions,
            asked=frozenset(ports.ledger.failed_since(WATCHDOG, now - budgets.HOUR)),
        )
        views = tuple(
            self._view(pool, fleet, silent, events, (now, started), targets, known, paused_by(pool.name, brakes))
            for pool in pools
        )
        spend = self._spend(fleet.listed.values())
        news = tuple(boots.changed(before, seen))
        return _Seen(groups=fleet.groups, instances=members, views=views, known=known, news=news, spend=spend)

    def _spend(self, listed: Iterable[Instance]) -> Spend | None:
        """What the instances of all pools cost, also of those that no spot watchdog looks at."""
        budget = self._document.budget
        if budget is None or budget.stop_growth_at_usd_per_hour is None:
            return None
        running = [i for i in listed if i.alive and (i.pool is not None or i.group is not None)]
        found = [self._ports.prices.usd_per_hour(instance) for instance in running]
        known = [price for price in found if price is not None]
        return Spend(
            limit_usd_per_hour=budget.stop_growth_at_usd_per_hour,
            usd_per_hour=sum(known, Decimal(0)),
            unpriced=len(found) - len(known),
            unpriced_stops=budget.unpriced is Unpriced.STOP,
        )

    def _boots(
        self,
        before: Sequence[Boot],
        fleet: Fleet,
        events: Sequence[Activity],
        actions: Sequence[PastAction],
        now: datetime,
    ) -> Sequence[Boot]:
        """How instances booted and left, after this look. What could not be read has neither."""
        if fleet.incomplete is not None:
            return before
        pools = {group.name: (pool.name, group.type) for pool in self._document.pools for group in pool.groups}
        ends = boots.EndFacts(
            ours=boots.ours([*self._ports.ledger.done_since(IDLE, now - budgets.HOUR), *actions]),
            stated=self._ends.described
            | {(i.id, i.launched_at): i.end_reason for i in fleet.listed.values() if i.end_reason is not None},
            events=events,
            spot={name for name, (_, kind) in pools.items() if kind is CapacityType.SPOT},
        )
        there = [
            (i, pools[i.group][0]) for i in fleet.members.values() if i.group in pools.keys() - fleet.unread.keys()
        ]
        unread = {boot for boot in before if boot.group in fleet.unread or boot.instance_id in fleet.unlisted.unknown}
        return [*boots.look([b for b in before if b not in unread], there, fleet.statuses, ends, now), *unread]

    def _activities(
        self,
        pools: Sequence[Pool],
        fleet: Fleet,
        targets: Mapping[str, Target],
        lost: Collection[str],
        now: datetime,
    ) -> tuple[Sequence[Activity], Mapping[str, str]]:
        """What happened to the groups, with the causes of ends that they cannot tell, and groups that tell nothing.

        What drained under a notice and was ended before that is a loss, too: else a zone whose every notice is heeded
        would pass for one that never loses us.
        """
        needed: set[str] = set()
        for pool in pools:
            names = {group.name for group in pool.groups}
            row = targets.get(pool.name)
            wanted = pool.target if row is None else row.value
            # without a spare a pool that has all that it wants moves nothing, whatever its zones remember
            if pool.spare > 0 or not calm(fleet.groups, names, wanted):
                needed |= names
        since, happened = now - REMEMBERED, self._lists.happened
        errors = happened.look(self._ports.groups, fleet.groups.values(), needed, since, now)
        for name, error in errors.items():
            self._ports.log.error("activities_unread", group=name, error=error)
        return self._ends.resolved(happened.events(fleet.groups, since), lost, now), errors

    def _view(  # noqa: PLR0913 - the parts of one look, put together in one place
        self,
        pool: Pool,
        fleet: Fleet,
        silent: Mapping[str, str],
        events: Sequence[Activity],
        times: tuple[datetime, datetime],
        targets: Mapping[str, Target],
        known: _Known,
        paused: str | None,
    ) -> PoolView:
        entry = pool.watchdogs.spot
        now, started = times
        if entry is None:
            raise ValueError(f"pool {pool.name!r} has no spot watchdog")
        names = {group.name for group in pool.groups}
        machines, statuses, held = (
            [i for i in fleet.members.values() if i.group in names],
            fleet.statuses,
            fleet.held(),
        )
        booted = [boot for boot in known.boots.values() if boot.pool == pool.name]
        usual = boots.by_machine_type(booted)
        members = [
            replace(
                _member(i, statuses.get(i.id), self._ports.prices.usd_per_hour(i), known.missed.get(i.id, now)),
                kept_by=known.kept.get(i.id),
                asked=i.id in known.asked,
                held=held.get(i.id),
                crashed_at=_crashed_at(i, statuses.get(i.id), known.boots.get((i.id, i.launched_at)), now),
                progresses=_progresses(statuses.get(i.id), known.boots.get((i.id, i.launched_at))),
                boot_expected=usual.get(i.machine_type),
            )
            for i in machines
        ]
        members += [
            Member(id=key, group=group, launched_at=now, silent=True, held=held[key])
            for key, (group, _) in fleet.unlisted.unknown.items()
            if group in names
        ]
        own = [event for event in events if event.group in names]
        ready = boots.took(machines, statuses)
        row = targets.get(pool.name)
        target = pool.target if row is None else row.value
        return PoolView(
            name=pool.name,
            target=target,
            least_target=target if pool.name in known.held else pool.min,
            spare=pool.spare,
            max=pool.max,
            policy=entry,
            groups=[
                replace(
                    self._group(g, fleet, _memory(g, own, members, now)),
                    closed=_closed(g, silent)
                    or refusals.for_good(
                        g.name, [e for e in own if e.group == g.name], known.actions, self._since(pool, known)
                    ),
                    taken=_taken(fleet.groups.get(g.name), fleet.members, known.lost),
                )
                for g in pool.groups
            ],
            members=members,
            events=[event for event in own if now - event.at < LOOK_BACK],
            pass_started=started,
            boots=booted,
            crashes=known.crashes.get(pool.name, ()),
            fixed_at=known.fixed.get(pool.name),
            on_demand_usd=self._on_demand_usd(pool),
            boot_expected=boots.expected(ready, otherwise=max(usual.values(), default=boots.BOOT_DEFAULT)),
            drain_deadline=pool.drain_deadline,
            free_if_interrupted=FREE_IF_INTERRUPTED[self._document.cloud],
            idle_ends=pool.watchdogs.idle is not None,
            paused_by=paused,
            policy_seen=self._ports.ledger.policy_seen(WATCHDOG, pool.name, self._digests[pool.name]),
            ended_this_hour=known.ended.get(pool.name, 0),
            started_this_hour=_started(booted, now - budgets.HOUR),
            uncertain=_uncertain(pool, fleet),
            incomplete=None
            if fleet.incomplete is None
            else Verdict(reason=Reason.LIST_INCOMPLETE, detail=fleet.incomplete),
        )

    def _since(self, pool: Pool, known: _Known) -> datetime:
        """When the settings were written, or a person had the pool tried again."""
        return max(self._document.generated_by.at, known.fixed.get(pool.name, self._document.generated_by.at))

    def _group(self, entry: GroupEntry, fleet: Fleet, memory: Memory) -> GroupView:
        group = fleet.groups.get(entry.name)
        there = sum(one.group == entry.name for one in fleet.members.values())
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
        dear = [price for price in listed if price is not None]
        return GroupView(
            name=entry.name,
            most_usd_per_hour=max(dear) if dear and len(dear) == len(listed) else None,
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
        """Of the machine types that spot may use: what the same machine costs on demand."""
        types = {t for group in pool.groups_of(CapacityType.SPOT) for t in group.machine_types}
        types = types or {t for group in pool.groups_of(CapacityType.ON_DEMAND) for t in group.machine_types}
        found = [self._ports.prices.on_demand_usd_per_hour(machine_type) for machine_type in sorted(types)]
        return min((price for price in found if price is not None), default=None)


def _looks_of(ports: Ports, lists: Lists) -> Looks:
    """Of a pass that begins now."""
    lists.happened.begin()
    return Looks(Reader(ports.inventory), lists, ports.clock.now().replace(microsecond=0))


def _frozen(entry: GroupEntry, fleet: Fleet) -> Verdict | None:
    """Why nothing is decided about a group."""
    error = fleet.unread.get(entry.name)
    if error is not None:
        return Verdict(reason=Reason.GROUP_UNREADABLE, detail=error)
    group = fleet.groups.get(entry.name)
    suspended = () if group is None else group.suspended
    by_people = [one for one in suspended if one.process in SIZING and not one.by_cloud]
    if by_people:
        detail = ", ".join(f"{one.process} ({one.reason})" for one in by_people)
        return Verdict(reason=Reason.SUSPENDED, detail=detail)
    return None


def _suspended(group: Group) -> str:
    """What a group does not do for now, for people."""
    return ", ".join(
        f"{one.process} is suspended by {'its cloud' if one.by_cloud else 'a person'} ({one.reason})"
        for one in group.suspended
    )


def _closed(entry: GroupEntry, silent: Mapping[str, str]) -> Verdict | None:
    """Why a group is not asked: of spot, whose answer decides whether something dearer is bought, it must be read."""
    if entry.type is not CapacityType.SPOT or entry.name not in silent:
        return None
    return Verdict(reason=Reason.GROUP_UNREADABLE, detail=f"what happened to it: {silent[entry.name]}")


def _uncertain(pool: Pool, fleet: Fleet) -> Verdict | None:
    """Why nothing of a pool is ended by choice: how large it is, is not known."""
    names = {group.name for group in pool.groups}
    if lost := sorted(names & fleet.unread.keys()):
        return Verdict(reason=Reason.GROUP_UNREADABLE, detail=fleet.unread[lost[0]])
    unknown = sorted(key for key, (group, _) in fleet.unlisted.unknown.items() if group in names)
    if unknown:
        return Verdict(reason=Reason.NOT_LISTED, detail=f"{unknown[0]}: {fleet.unlisted.unknown[unknown[0]][1]}")
    return None


def _member(instance: Instance, status: AgentStatus | None, usd: Decimal | None, missed: datetime) -> Member:
    ready = status is not None and status.ready and not status.draining
    return Member(
        id=instance.id,
        group=instance.group or "",
        launched_at=instance.launched_at,
        ready_since=(status.phase_since or instance.launched_at) if ready and status is not None else None,
        missed_since=None if ready else _since_when(status, missed),
        leaving=status is not None and (status.draining or status.drained),
        drain_by=status.drain_by if status is not None else None,
        under_notice=status is not None and status.notice_at is not None,
        leaving_because=(status.reason or "") if status is not None else "",
        drained=status is not None and status.drained,
        failed=status is not None and status.phase is Phase.FAILED,
        silent=status is None,
        error=(status.error or "") if status is not None else "",
        busy=(status.requests_running or 0) if status is not None else 0,
        usd_per_hour=usd,
        idle=instance.idle_since is not None,
        ends_at=instance.ends_at,
    )


def _taken(group: Group | None, instances: Collection[str], lost: Collection[str]) -> tuple[str, ...]:
    """Whom a group still lists although its cloud took them."""
    if group is None:
        return ()
    return tuple(key for key in group.instance_ids if key in lost and key not in instances)


def _started(booted: Iterable[Boot], since: datetime) -> int:
    """How many were launched since then. A name may be launched anew: a start is a name and a time, to the second."""
    launches = ((boot.instance_id, boot.launched_at) for boot in booted)
    return len({(name, at.replace(microsecond=0)) for name, at in launches if at > since})


def _crashed_at(instance: Instance, status: AgentStatus | None, boot: Boot | None, now: datetime) -> datetime | None:
    """Since when its engine serves no more; None: it serves, boots, or its boot failed."""
    if status is None or not boots.has_crashed(boot, instance, status, BOOT_LIMIT, now):
        return None
    return status.phase_since or instance.launched_at


def _progresses(status: AgentStatus | None, boot: Boot | None) -> bool:
    """Whether its agent reports its first boot."""
    if status is None or status.draining or status.phase not in boots.PROGRESS:
        return False
    return not status.has_served and (boot is None or boot.ready_at is None)


def _with_launches(events: Sequence[Activity], seen: Sequence[Boot], now: datetime) -> list[Activity]:
    """The activities, with the launches that no cloud reports: behind a launch hook, and on Google Cloud."""
    known = {event.instance_id for event in events if event.kind is ActivityKind.LAUNCHED}
    launches = [
        Activity(
            id=f"seen:{boot.instance_id}",
            group=boot.group,
            kind=ActivityKind.LAUNCHED,
            at=boot.launched_at,
            instance_id=boot.instance_id,
        )
        for boot in seen
        if boot.instance_id not in known and now - boot.launched_at < REMEMBERED
    ]
    return sorted([*events, *launches], key=lambda event: event.at)


def _since_when(status: AgentStatus | None, missed: datetime) -> datetime:
    """Since when it is known not to be ready: an agent that boots says so itself."""
    known = status.phase_since if status is not None and status.phase is not Phase.READY else None
    return missed if known is None else min(missed, known)


def _memory(entry: GroupEntry, events: Sequence[Activity], members: Sequence[Member], now: datetime) -> Memory:
    own = [event for event in events if event.group == entry.name]
    return recall(own, [m.launched_at for m in members if m.group == entry.name], now)
