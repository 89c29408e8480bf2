"""The spot watchdog: observe, decide and act, repeatedly within a pass, until every zone was asked or the time of the
pool is over."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Final

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.boots import Boot
from gpufleet.domain.decisions import Decision, PastAction, Plan, Reason, SpendRate, Target
from gpufleet.domain.model import CapacityType, Instance
from gpufleet.settings.document import FleetDocument, Pool
from gpufleet.settings.document.money import Unpriced
from watchdogs import boots, budgets, hooks
from watchdogs.brakes import kept_by_people, paused_by, target_held_by
from watchdogs.execute import Executor, Pass
from watchdogs.idle.decide import WATCHDOG as IDLE
from watchdogs.observe.activities import is_stable
from watchdogs.observe.completeness import InstanceReader
from watchdogs.observe.end_reasons import EndReasons
from watchdogs.observe.fleet import ObservedFleet, PassObservations, SharedLists, read
from watchdogs.policy import see_all
from watchdogs.ports import CutShortError, Ports
from watchdogs.spot import acting, lifecycle
from watchdogs.spot.decide import WATCHDOG, decide
from watchdogs.spot.limits import OF, chosen_ends
from watchdogs.spot.pool_view import SpotPoolView
from watchdogs.spot.view_builder import SpotFacts, Views

HISTORY_KEPT: Final = timedelta(days=3)
"""How far back activities are read for the history of a zone: three times `risk.HALF_LIFE`."""
REPORT_EVERY: Final = timedelta(days=1)
"""How often a lasting problem is recorded again: the ledger is read for three days."""
ROUNDS: Final = 60
"""Maximum observations in one pass: one per pool with answers before the others, and one per refusal of a zone."""
TROUBLES: Final = frozenset({Reason.GROUP_UNREADABLE, Reason.NOT_LISTED, Reason.CANNOT_LAUNCH, Reason.SUSPENDED})
"""Reasons that a person must resolve: until then nothing is decided or requested there."""
_OF_ONE_CASE: Final = re.compile(r"\b(?=\w*\d)[\w.:/-]+")
"""Ids, times and numbers, which differ each time in the same sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observation:
    """One observation of the fleet."""

    fleet: ObservedFleet
    views: tuple[SpotPoolView, ...]
    known: SpotFacts
    spend: SpendRate | None
    """Current cost of all pools; None: the fleet has no limit."""
    unsaved: tuple[Boot, ...]
    """Boots that changed since the ledger was written."""


class SpotWatchdog:
    """Splits the targets of the pools of a fleet over their groups."""

    def __init__(self, document: FleetDocument, ports: Ports, lists: SharedLists | None = None) -> None:
        """`lists`: lists of earlier passes of this process; None: this is the first pass."""
        self._document = document
        self._ports = ports
        self._lists = lists or SharedLists()
        self._observations = _observations_of(ports, self._lists)
        self._views = Views(document, ports)
        self._answers = acting.PendingResizes(document, ports, self._observations)
        self._ends = EndReasons(ports)
        self._acted = False

    def dry(self) -> Pass[tuple[SpotPoolView, ...]]:
        """Observe and decide once without acting. The policies of the plan count as seen afterwards."""
        now = self._ports.clock.now()
        seen = self._look(now, now)
        plan = decide([replace(view, policy_seen=True) for view in seen.views], now, seen.spend)
        see_all(self._ports, self._document, WATCHDOG)
        return Pass(observed=seen.views, plan=plan)

    def apply(self) -> Pass[tuple[SpotPoolView, ...]]:
        """Run one pass.

        Raises OSError when the fleet could not be observed completely: CutShortError if the pass had acted before.
        """
        self._acted = False
        try:
            return self._rounds()
        except OSError as error:
            if self._acted:
                raise CutShortError(str(error)) from error
            raise

    def _rounds(self) -> Pass[tuple[SpotPoolView, ...]]:
        """Observe, decide and resize until all groups have answered; then end instances."""
        started = self._ports.clock.now().replace(microsecond=0)  # activities carry whole seconds
        self._observations = _observations_of(self._ports, self._lists)
        self._answers = acting.PendingResizes(self._document, self._ports, self._observations)
        executor = Executor(self._ports, acting.RULES)
        executor.recover(partial(acting.recover, executor, self._ports, self._document))
        rounds = 0
        while True:
            now = self._ports.clock.now()
            seen = self._look(now, started)
            if rounds == 0:
                self._complete_hooks(executor, seen, now)
            self._note(executor, seen, now)
            plan = decide(seen.views, now, seen.spend)
            executor.record(plan)
            self._report(executor, seen, plan)
            actor = acting.SpotActor(
                self._document,
                self._ports,
                executor,
                seen.fleet.groups,
                seen.fleet.members,
                self._observations,
                self._answers,
            )
            self._acted = self._acted or bool(plan.acting)
            changed = actor.resize(plan)
            waited = self._answers.wait()
            rounds += 1
            if not (changed or waited) or rounds == ROUNDS or executor.lease_lost:
                break
        actor.end(plan)
        self._note_activities(self._ports.clock.now())
        self._lists.note(self._ports, self._ports.clock.now())
        return executor.finish(seen.views, plan)

    def _complete_hooks(self, executor: Executor, seen: _Observation, now: datetime) -> None:
        """Complete the hooks of all groups, also of pools without a spot watchdog, whatever brakes are set: this does
        not decide anything.

        A failure does not end the pass: hooks time out.
        """
        others = [group.name for pool in self._document.pools if pool.watchdogs.spot is None for group in pool.groups]
        try:
            unwatched = self._ports.groups.readable(others).groups.values() if others else ()
            fleet = seen.fleet
            errors = hooks.complete(self._ports, [*fleet.groups.values(), *unwatched], fleet.listed, fleet.statuses)
        except OSError as error:
            self._ports.log.error("hook", outcome="failed", error=str(error))
            return
        for name, error in errors.items():
            executor.notify(
                f"hooks:{name}:{now:%Y%m%d}",
                f"The lifecycle hooks of {name} cannot be completed: {error}. Instances wait there until the hooks"
                " time out. After an upgrade, run `pulumi up` to give the control host the permission.",
            )

    def _note(self, executor: Executor, seen: _Observation, now: datetime) -> None:
        """Record facts for later passes: boots, changes of readiness, and losses."""
        self._ports.ledger.note_boots(seen.unsaved, now)
        self._note_activities(now)
        for view in seen.views:
            for decision in (
                *lifecycle.readiness_changes(view, seen.known.missed, now),
                *lifecycle.losses(view, seen.known.lost),
            ):
                executor.note(decision, now)

    def _note_activities(self, now: datetime) -> None:
        happened = self._lists.happened
        if unsaved := happened.unsaved():
            self._ports.ledger.note_activities(unsaved, now - HISTORY_KEPT)
            happened.saved()

    def _report(self, executor: Executor, seen: _Observation, plan: Plan) -> None:
        """Notify people once of problems that they must fix. Record each again after a day."""
        for decision in troubles(plan):
            noted_at = seen.known.reported.get((decision.resource, decision.reason))
            if decision.resource in executor.unresolved or (noted_at and plan.at - noted_at < REPORT_EVERY):
                continue
            if noted_at is None:
                key = f"{decision.reason}:{decision.resource}:{plan.at:%Y%m%dt%H%M}"
                what = f"{decision.resource} is left unchanged: {decision.reason.sentence}"
                more = (
                    ""
                    if decision.reason is not Reason.CANNOT_LAUNCH
                    else (
                        f" It is tried again after the next `pulumi up`, or after `gpufleet resume {decision.pool}`."
                    )
                )
                executor.notify(key, f"Pool {decision.pool}: {what}. {decision.detail}.{more}")
            executor.note(decision, plan.at)
        for view in seen.views:
            self._report_view(executor, view)

    def _report_view(self, executor: Executor, view: SpotPoolView) -> None:
        """Notify people once of each unknown activity and of each suspended process."""
        for name, event in unknown(view.events).items():
            text = f"Pool {view.name}, {event.group}: unknown activity of its cloud: {event.detail.rstrip('.')}."
            executor.notify(f"unknown:{name}", f"{text} It does not count as missing capacity.")
        for group in view.groups:
            if group.suspended and group.frozen is None:
                key = f"suspended:{group.name}:{sentence_key(group.suspended)}"
                executor.notify(key, f"Pool {view.name}, {group.name}: {group.suspended}.")

    def _look(self, now: datetime, started: datetime) -> _Observation:
        ports = self._ports
        self._lists.happened.recall(lambda: ports.ledger.activities(now - HISTORY_KEPT))
        pools = [pool for pool in self._document.pools if pool.watchdogs.spot is not None]
        names = [group.name for pool in pools for group in pool.groups]
        fleet = read(ports, self._observations, names, now)
        members = fleet.members
        actions = ports.ledger.done_since(WATCHDOG, now - HISTORY_KEPT)
        lost = frozenset(past.resource for past in actions if past.reason is Reason.PREEMPTED)
        targets = ports.ledger.targets()
        found, activity_errors = self._activities(pools, fleet, targets, lost, now)
        before = ports.ledger.boots()
        seen = self._boots(before, fleet, found, actions, now)
        events = _with_launches(found, seen, now)
        brakes = [brake for brake in ports.ledger.brakes(now) if brake.is_active(now)]
        known = SpotFacts(
            pass_started=started,
            asked_since=self._answers.since,
            awaited=self._answers.awaited,
            events=events,
            activity_errors=activity_errors,
            targets=targets,
            paused={pool.name: by for pool in pools if (by := paused_by(pool.name, brakes)) is not None},
            missed=lifecycle.missed(actions),
            lost=lost,
            boots={boot.key: boot for boot in seen},
            crashes=lifecycle.crashes(actions),
            retry_requested_at=lifecycle.retry_requested_at(actions),
            kept=kept_by_people([*members.values()], brakes, now),
            target_held=frozenset(pool.name for pool in pools if target_held_by(pool.name, brakes)),
            ended=chosen_ends(past for past in actions if past.at >= now - budgets.HOUR),
            reported={(past.resource, past.reason): past.at for past in actions if past.reason in TROUBLES},
            actions=actions,
            asked=frozenset(ports.ledger.open_attempts_since(WATCHDOG, now - budgets.HOUR)),
        )
        views = self._views.of(pools, fleet, known, now)
        spend = self._spend(fleet.listed.values())
        unsaved = tuple(boots.changed(before, seen))
        return _Observation(fleet=fleet, views=views, known=known, unsaved=unsaved, spend=spend)

    def _spend(self, listed: Iterable[Instance]) -> SpendRate | None:
        """Current cost of the instances of all pools, also of pools without a spot watchdog."""
        budget = self._document.budget
        if budget is None or budget.stop_growth_at_usd_per_hour is None:
            return None
        running = [i for i in listed if i.alive and (i.pool is not None or i.group is not None)]
        found = [self._ports.prices.usd_per_hour(instance) for instance in running]
        known = [price for price in found if price is not None]
        return SpendRate(
            limit_usd_per_hour=budget.stop_growth_at_usd_per_hour,
            usd_per_hour=sum(known, Decimal(0)),
            unpriced=len(found) - len(known),
            unpriced_stops=budget.unpriced is Unpriced.STOP,
        )

    def _boots(
        self,
        before: Sequence[Boot],
        fleet: ObservedFleet,
        events: Sequence[Activity],
        actions: Sequence[PastAction],
        now: datetime,
    ) -> Sequence[Boot]:
        """The boots after this observation. Boots of groups and instances that could not be read stay unchanged."""
        if fleet.incomplete is not None:
            return before
        pools = {group.name: (pool.name, group.type) for pool in self._document.pools for group in pool.groups}
        ends = boots.EndFacts(
            by_watchdogs=boots.ends_by_watchdogs(
                [*self._ports.ledger.done_since(IDLE, now - budgets.HOUR), *actions]
            ),
            stated=self._ends.stated
            | {(i.id, i.launched_at): i.end_reason for i in fleet.listed.values() if i.end_reason is not None},
            events=events,
            spot={name for name, (_, kind) in pools.items() if kind is CapacityType.SPOT},
        )
        there = [
            (i, pools[i.group][0])
            for i in fleet.members.values()
            if i.group in pools.keys() - fleet.unreadable.keys()
        ]
        unreadable = {
            boot for boot in before if boot.group in fleet.unreadable or boot.instance_id in fleet.unlisted.unknown
        }
        return [
            *boots.observe([b for b in before if b not in unreadable], there, fleet.statuses, ends, now),
            *unreadable,
        ]

    def _activities(
        self,
        pools: Sequence[Pool],
        fleet: ObservedFleet,
        targets: Mapping[str, Target],
        lost: Collection[str],
        now: datetime,
    ) -> tuple[Sequence[Activity], Mapping[str, str]]:
        """Activities of the groups with the reasons of ends, and the error by group that could not be read.

        An instance that drained under a notice and was ended before its cloud did so is a loss, too. Otherwise a zone
        whose notices are all obeyed would look like a zone without losses.
        """
        needed: set[str] = set()
        for pool in pools:
            names = {group.name for group in pool.groups}
            row = targets.get(pool.name)
            wanted = pool.target if row is None else row.value
            # a pool without a spare moves nothing while it is complete, so the history of its zones is not needed
            if pool.spare > 0 or not is_stable(fleet.groups, names, wanted):
                needed |= names
        since, happened = now - HISTORY_KEPT, self._lists.happened
        errors = happened.read_new(self._ports.groups, fleet.groups.values(), needed, since, now)
        for name, error in errors.items():
            self._ports.log.error("activities_unreadable", group=name, error=error)
        return self._ends.resolved(happened.events(fleet.groups, since), lost, now), errors


def _observations_of(ports: Ports, lists: SharedLists) -> PassObservations:
    """The shared observations of a pass that begins now."""
    lists.happened.begin()
    return PassObservations(InstanceReader(ports.inventory), lists, ports.clock.now().replace(microsecond=0))


def _with_launches(events: Sequence[Activity], seen: Sequence[Boot], now: datetime) -> list[Activity]:
    """The activities, with launches that the cloud does not report: behind a launch hook, and on Google Cloud."""
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
        if boot.instance_id not in known and now - boot.launched_at < HISTORY_KEPT
    ]
    return sorted([*events, *launches], key=lambda event: event.at)


def troubles(plan: Plan) -> list[Decision]:
    """Decisions that people are notified of. A group that cannot be read counts once, not per member."""
    return [one for one in plan.decisions if one.reason in TROUBLES and one.evidence.get(OF) is None]


def unknown(events: Iterable[Activity]) -> dict[str, Activity]:
    """By sentence key: the first activity of each sentence that no rule matches."""
    found: dict[str, Activity] = {}
    for event in events:
        if event.kind is ActivityKind.UNKNOWN:
            found.setdefault(sentence_key(event.detail), event)
    return found


def sentence_key(sentence: str) -> str:
    """A short key of a sentence without its ids, times and numbers."""
    plain = " ".join(_OF_ONE_CASE.sub("#", sentence.lower()).split())
    return hashlib.sha256(plain.encode()).hexdigest()[:12]
