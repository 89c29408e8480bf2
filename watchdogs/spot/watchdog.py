"""The spot watchdog: observe, decide, act, and again within the pass until every zone was asked."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Final

from gpufleet.domain.activity import Activity
from gpufleet.domain.boots import Boot
from gpufleet.domain.decisions import Reason, Spend, Target
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import CapacityType, Group, Instance, Phase
from gpufleet.domain.prices import FREE_IF_INTERRUPTED
from gpufleet.settings.document import FleetDocument, GroupEntry, Pool
from gpufleet.settings.document.money import Unpriced
from watchdogs import boots, budgets
from watchdogs.brakes import kept_by_people, paused_by, target_held_by
from watchdogs.execute import Executor, Pass
from watchdogs.policy import digests, see_all
from watchdogs.ports import CutShortError, Ports
from watchdogs.spot import acting, lifecycle
from watchdogs.spot.decide import WATCHDOG, decide
from watchdogs.spot.ends import Ends
from watchdogs.spot.pool_view import GroupView, Member, PoolView
from watchdogs.spot.risk import Memory, recall
from watchdogs.spot.sizes import chosen_ends
from watchdogs.whole import check_whole

LOOK_BACK: Final = timedelta(hours=6)
"""Older events say nothing about what a group does now."""
REMEMBERED: Final = timedelta(days=3)
"""How far back activities are read for a zone's memory: three of its half-lives."""
ROUNDS: Final = 12
"""Looks of one pass: each zone refuses at most once, so this many zones can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known beside what the clouds say now."""

    missed: Mapping[str, datetime]
    """By instance: since when it is noted not to be ready though it should be."""
    lost: frozenset[str]
    """Instances that the cloud took or is taking, also where somebody ended them before it did."""
    failed_boots: Mapping[str, Sequence[datetime]]
    """By group: when instances were ended because their boot had failed."""
    fixed: Mapping[str, datetime]
    """By pool: when a person said that boots are to be tried again."""
    kept: Mapping[str, str]
    """By instance: who asked to keep it."""
    held: frozenset[str]
    """Pools whose targets people hold."""
    ended: Mapping[str, int]
    """By pool: instances that went by choice within the hour."""
    boots: Sequence[Boot]
    """By launch: the instances of all pools, also those that left lately."""
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


class SpotWatchdog:
    """Splits the targets of a fleet's pools over their groups."""

    def __init__(self, document: FleetDocument, ports: Ports) -> None:
        self._document = document
        self._ports = ports
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
        executor = Executor(self._ports, acting.RULES)
        executor.settle(partial(acting.settle, executor, self._ports, self._document))
        rounds = 0
        while True:
            now = self._ports.clock.now()
            seen = self._look(now, started)
            self._note(executor, seen, now)
            plan = decide(seen.views, now, seen.spend)
            executor.record(plan)
            actor = acting.Actor(self._document, self._ports, executor, seen.groups, seen.instances)
            self._acted = self._acted or bool(plan.acting)
            done = actor.resize(plan)
            self._unanswered += done.unanswered
            rounds += 1
            if not done.asked or rounds == ROUNDS or executor.lease_lost:
                break
        actor.end(plan)
        return executor.finish(seen.views, plan)

    def _note(self, executor: Executor, seen: _Seen, now: datetime) -> None:
        """Record who is not ready any more, who is again, and who is lost: the next pass may be another process."""
        for view in seen.views:
            for decision in (
                *lifecycle.readiness_changes(view, seen.known.missed, now),
                *lifecycle.losses(view, seen.known.lost, now),
            ):
                executor.note(decision, now)

    def _look(self, now: datetime, started: datetime) -> _Seen:
        ports = self._ports
        pools = [pool for pool in self._document.pools if pool.watchdogs.spot is not None]
        names = [group.name for pool in pools for group in pool.groups]
        groups = {group.name: group for group in ports.groups.groups(names)}
        listed = {i.id: i for i in ports.inventory.instances()}
        check_whole(ports.inventory, groups.values(), listed, now)
        # what its group is ending serves no more and counts for no size, though it may live for minutes yet
        leaving = {key for group in groups.values() for key in group.leaving}
        members = {i.id: i for i in listed.values() if i.alive and i.group in groups and i.id not in leaving}
        statuses = ports.agents.statuses(list(members.values()))
        actions = ports.ledger.done_since(WATCHDOG, now - REMEMBERED)
        lost = frozenset(past.resource for past in actions if past.reason is Reason.PREEMPTED)
        events = [*self._activities(names, lost, now), *self._unanswered]
        targets = ports.ledger.targets()
        brakes = [brake for brake in ports.ledger.brakes(now) if brake.holds(now)]
        known = _Known(
            missed=lifecycle.missed(actions),
            lost=lost,
            failed_boots=lifecycle.failed_boots(actions),
            fixed=lifecycle.fixed_at(actions),
            kept=kept_by_people([*members.values()], brakes, now),
            held=frozenset(pool.name for pool in pools if target_held_by(pool.name, brakes)),
            ended=chosen_ends(past for past in actions if past.at >= now - budgets.HOUR),
            boots=ports.ledger.boots(),
            asked=frozenset(ports.ledger.failed_since(WATCHDOG, now - budgets.HOUR)),
        )
        views = tuple(
            self._view(
                pool, groups, members, statuses, events, (now, started), targets, known, paused_by(pool.name, brakes)
            )
            for pool in pools
        )
        return _Seen(groups=groups, instances=members, views=views, known=known, spend=self._spend(listed.values()))

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

    def _activities(self, groups: Sequence[str], lost: Collection[str], now: datetime) -> Sequence[Activity]:
        """What happened to the groups, with the causes of ends that they cannot tell.

        What drained under a notice and was ended before that is a loss, too: else a zone whose every notice is heeded
        would pass for one that never loses us.
        """
        return self._ends.resolved(self._ports.groups.activities(groups, now - REMEMBERED), lost, now)

    def _view(  # noqa: PLR0913 - the parts of one look, put together in one place
        self,
        pool: Pool,
        groups: Mapping[str, Group],
        instances: Mapping[str, Instance],
        statuses: Mapping[str, AgentStatus],
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
        machines = [instance for instance in instances.values() if instance.group in names]
        members = [
            replace(
                _member(i, statuses.get(i.id), self._ports.prices.usd_per_hour(i), known.missed.get(i.id, now)),
                kept_by=known.kept.get(i.id),
                asked=i.id in known.asked,
            )
            for i in machines
        ]
        own = [event for event in events if event.group in names]
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
                    self._group(g, groups[g.name], instances, _memory(g, own, members, now)),
                    taken=_taken(groups[g.name], instances, known.lost),
                )
                for g in pool.groups
            ],
            members=members,
            events=[event for event in own if now - event.at < LOOK_BACK],
            pass_started=started,
            failed_boots={name: known.failed_boots[name] for name in names if name in known.failed_boots},
            fixed_at=known.fixed.get(pool.name),
            on_demand_usd=self._on_demand_usd(pool),
            boot_expected=boots.expected(boots.took(machines, statuses)),
            drain_deadline=pool.drain_deadline,
            free_if_interrupted=FREE_IF_INTERRUPTED[self._document.cloud],
            idle_ends=pool.watchdogs.idle is not None,
            paused_by=paused,
            policy_seen=self._ports.ledger.policy_seen(WATCHDOG, pool.name, self._digests[pool.name]),
            ended_this_hour=known.ended.get(pool.name, 0),
            started_this_hour=_started(pool.name, known.boots, machines, now - budgets.HOUR),
        )

    def _group(self, entry: GroupEntry, group: Group, instances: Mapping[str, Instance], memory: Memory) -> GroupView:
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
            desired=group.desired,
            unseen=sum(key not in instances and key not in group.leaving for key in group.instance_ids),
            max=entry.max,
            usd_per_hour=min(known, default=None),
            losses_per_hour=memory.losses_per_hour,
            opens=entry.opens,
            closes=entry.closes,
        )

    def _on_demand_usd(self, pool: Pool) -> Decimal | None:
        """Of the machine types that spot may use: what the same machine costs on demand."""
        types = {t for group in pool.groups_of(CapacityType.SPOT) for t in group.machine_types}
        types = types or {t for group in pool.groups_of(CapacityType.ON_DEMAND) for t in group.machine_types}
        found = [self._ports.prices.on_demand_usd_per_hour(machine_type) for machine_type in sorted(types)]
        return min((price for price in found if price is not None), default=None)


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
        busy=(status.requests_running or 0) if status is not None else 0,
        usd_per_hour=usd,
        idle=instance.idle_since is not None,
        ends_at=instance.ends_at,
    )


def _taken(group: Group, instances: Collection[str], lost: Collection[str]) -> tuple[str, ...]:
    """Whom a group still lists although its cloud took them."""
    return tuple(key for key in group.instance_ids if key in lost and key not in instances)


def _started(pool: str, boots: Iterable[Boot], there: Iterable[Instance], since: datetime) -> int:
    """How many of a pool were launched since then: by the history of boots, and of what is there and not yet in it.

    A name may be launched anew, so a start is a name and a time, to the second.
    """
    launches = [
        *((boot.instance_id, boot.launched_at) for boot in boots if boot.pool == pool),
        *((instance.id, instance.launched_at) for instance in there),
    ]
    return len({(name, at.replace(microsecond=0)) for name, at in launches if at > since})


def _since_when(status: AgentStatus | None, missed: datetime) -> datetime:
    """Since when it is known not to be ready: an agent that boots says so itself."""
    known = status.phase_since if status is not None and status.phase is not Phase.READY else None
    return missed if known is None else min(missed, known)


def _memory(entry: GroupEntry, events: Sequence[Activity], members: Sequence[Member], now: datetime) -> Memory:
    own = [event for event in events if event.group == entry.name]
    return recall(own, [m.launched_at for m in members if m.group == entry.name], now)
