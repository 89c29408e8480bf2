"""Actions of the spot watchdog: resize groups, wait for their answers, drain and end surplus instances."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from gpufleet.domain.activity import CloudError, ConflictError
from gpufleet.domain.brakes import BrakeKind
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Plan, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.durations import approximate
from gpufleet.domain.model import CapacityType, Group, Instance
from gpufleet.settings.document import FleetDocument, Pool
from watchdogs.draining import PendingDrain, is_terminated, leaving, sleep_and_renew, until_drained
from watchdogs.execute import ExecutionRules, Executor
from watchdogs.observe.fleet import PassObservations
from watchdogs.ports import Ports
from watchdogs.spot import lifecycle
from watchdogs.spot.decide import WATCHDOG
from watchdogs.spot.limits import CEILINGS, by_pool
from watchdogs.spot.zones import CEILING, OTHERS_AFTER

DRAIN_WAIT: Final = timedelta(minutes=2)
"""How long one pass waits for drains at most: as long as an AWS notice. Longer drains continue, a later pass ends the
drained instances, and meanwhile zones are asked.
"""
READ_AT_ONCE: Final = 50
"""Groups that are read again in one call before they are made smaller: the data is seconds old for the last one."""
FIRST_POLL: Final = timedelta(seconds=1)
LONGEST_POLL: Final = timedelta(seconds=15)
"""Longest interval between two polls for answers of groups. The interval doubles each time."""
AWAITED: Final = frozenset({Reason.SPOT_WANTED, Reason.SAFER_ZONE, Reason.RESERVED_IN_FULL})
"""Reasons of growth whose answer decides whether on-demand is bought."""
_DRY: Final = frozenset({Reason.NO_SPOT, Reason.ZONE_BACKING_OFF, Reason.SPOT_TOO_EXPENSIVE, Reason.BOOTS_FAILING})
"""Reasons of the decisions about the spot groups of a pool when no zone has spot capacity."""
RULES: Final = ExecutionRules(
    watchdog=WATCHDOG,
    brakes=frozenset({BrakeKind.PAUSE, BrakeKind.KEEP}),
    tag_keeps=True,
    ended_by_cloud_anyway=frozenset({Reason.PREEMPTED, Reason.RUN_ENDS, Reason.TERM_ENDS}),
    key_prefix=f"{WATCHDOG}:",
)


def recover(executor: Executor, ports: Ports, document: FleetDocument, decision: Decision) -> None:
    """Record the outcome of an unfinished end. An instance that still runs is judged again. Raises OSError."""
    if not is_terminated(ports, document, ports.inventory.instance(decision.resource)):
        executor.record_no_longer_true(decision, "an earlier pass was killed before it ended it; judged again")
        return
    text = f"{decision.resource} of pool {decision.pool} was ended: {decision.reason.sentence}; {decision.detail}."
    # the same key as the message of that pass, so that it is sent once
    executor.notify(f"ended:{decision.resource}", text)
    executor.record_done(decision, "ended by an earlier pass that was killed before it recorded it")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    pool: str
    size: int
    at: datetime
    unseen: frozenset[str]
    """Instances that the group listed before and that were not alive: they do not count as an answer."""


class PendingResizes:
    """Resize requests of one pass without an answer yet.

    Each pool waits for at most its `fallback_after`, however many groups it asks.
    """

    def __init__(self, document: FleetDocument, ports: Ports, observations: PassObservations) -> None:
        self._document = document
        self._ports = ports
        self._observations = observations
        self._asks: dict[str, _Ask] = {}
        self.since: dict[str, datetime] = {}
        """By pool: the time of the first request of this pass that it waits for."""

    @property
    def awaited(self) -> frozenset[str]:
        """Groups that have not answered yet."""
        return frozenset(self._asks)

    def awaits(self, decision: Decision) -> bool:
        """Whether this size was requested already and the pass waits for it."""
        ask = self._asks.get(decision.resource)
        return ask is not None and decision.from_size == decision.to_size == ask.size

    def keep(self, plan: Plan) -> None:
        """Stop waiting for requests that the plan no longer has."""
        wanted = {decision.resource for decision in plan.decisions if decision.reason in AWAITED}
        self._asks = {name: ask for name, ask in self._asks.items() if name in wanted}

    def resized(self, decision: Decision, group: Group, living: Collection[str], asked_at: datetime) -> None:
        """Note that a group was resized. `living`: instances observed alive before."""
        self._asks.pop(group.name, None)
        if decision.reason in AWAITED and decision.pool is not None:
            self.since.setdefault(decision.pool, asked_at)
            self._asks[group.name] = _Ask(
                pool=decision.pool,
                size=decision.to_size or 0,
                at=asked_at.replace(microsecond=0),  # activities carry whole seconds
                unseen=frozenset(group.instance_ids) - {*living},
            )

    def wait(self) -> bool:
        """Wait until a pool has all answers, or must ask other zones, or must buy on-demand.

        Returns whether it waited for anything. A missing answer counts as a refusal at the end.
        """
        if not self._asks:
            return False
        clock = self._ports.clock
        pools = {ask.pool for ask in self._asks.values()}
        began = renewed = clock.now()
        until = min((at for pool in pools for at in self._moments(pool) if at > began), default=began)
        pause = FIRST_POLL
        while True:
            self._read()
            now = clock.now()
            self._give_up(now)
            if now >= until or pools != {ask.pool for ask in self._asks.values()}:
                return True
            next_look = min(now + pause, until)
            while clock.now() < next_look:
                renewed = sleep_and_renew(self._ports, renewed)
            pause = min(2 * pause, LONGEST_POLL)

    def _read(self) -> None:
        """Drop the requests that were answered: by instances, or by a refusal."""
        there = self._observations.again(self._ports, sorted(self._asks))
        for group in there:
            ask = self._asks[group.name]
            if len([key for key in group.instance_ids if key not in ask.unseen]) >= ask.size:
                del self._asks[group.name]
        happened = self._observations.lists.happened
        asked = [group for group in there if group.name in self._asks]
        happened.wait(self._ports.groups, asked, self._ports.clock.now())
        for name, ask in list(self._asks.items()):
            if any(event.kind.refuses for event in happened.events([name], ask.at)):
                del self._asks[name]

    def _give_up(self, now: datetime) -> None:
        """Count requests as refused when the whole time of their pool is over."""
        over = {ask.pool for ask in self._asks.values() if now >= max(self._moments(ask.pool))}
        for name in [name for name, ask in self._asks.items() if ask.pool in over]:
            self._observations.lists.happened.silent(name, now)
            del self._asks[name]

    def _moments(self, pool: str) -> Sequence[datetime]:
        """When other zones are asked in addition to those without an answer, and when the time is over."""
        entry = self._document.pool(pool).watchdogs.spot
        wait_limit = entry.fallback_after if entry is not None else timedelta(0)
        return self.since[pool] + OTHERS_AFTER * wait_limit, self.since[pool] + wait_limit


class SpotActor:
    """Acts on the plan of one observation."""

    def __init__(  # noqa: PLR0913 - the observation, and what the pass waits for
        self,
        document: FleetDocument,
        ports: Ports,
        executor: Executor,
        groups: Mapping[str, Group],
        instances: Mapping[str, Instance],
        observations: PassObservations,
        answers: PendingResizes,
    ) -> None:
        self._document = document
        self._ports = ports
        self._executor = executor
        self._groups = groups
        self._instances = instances
        self._observations = observations
        self._answers = answers
        self._shrinking: list[str] = []
        self._again: dict[str, Group] = {}
        """Groups that will be made smaller, read again right before."""

    def resize(self, plan: Plan) -> bool:
        """Set sizes. Returns whether any size was changed or cancelled, so that another observation is useful."""
        self._answers.keep(plan)
        resizes = [d for d in plan.acting if d.action is Action.RESIZE and not self._answers.awaits(d)]
        self._shrinking = [d.resource for d in resizes if (d.to_size or 0) < (d.from_size or 0)]
        asked_at = self._ports.clock.now()
        outcomes = [self._executor.attempt(decision, self._set_size) for decision in resizes]
        for done in (outcome.decision for outcome in outcomes if outcome.kind is OutcomeKind.DONE):
            self._answers.resized(done, self._groups[done.resource], self._instances, asked_at)
        return any(outcome.kind is not OutcomeKind.FAILED for outcome in outcomes)

    def end(self, plan: Plan) -> None:
        """Drain and end instances. Drained ones, and those that never served, are ended at once."""
        self._alert(plan)
        drains: list[PendingDrain] = []
        for decision in (d for d in plan.acting if d.action in (Action.END, Action.REPLACE)):
            if lifecycle.PREEMPTED_FROM in decision.evidence:
                self._executor.attempt(decision, self._give_up_place)
            elif decision.reason in lifecycle.END_AT_ONCE:
                self._executor.attempt(decision, self._end)
            elif not isinstance(begun := self._executor.attempt(decision, self._begin), Outcome):
                drains.append(begun)
        if drains:
            longest = max(self._document.pool(d.pool or "").drain_deadline for d, _ in drains)
            for decision, empty in until_drained(self._ports, drains, min(longest, DRAIN_WAIT)):
                if empty:
                    self._executor.attempt(decision, self._end)
                else:
                    self._executor.record_waiting(
                        decision, "its agent has not reported `drained` yet; the next pass continues"
                    )

    def _set_size(self, decision: Decision) -> Outcome:
        group = self._groups[decision.resource]
        size = decision.to_size if decision.to_size is not None else group.desired
        if (held := self._executor.cancel_if_blocked(decision)) is not None:
            return held
        if size < group.desired and size < (there := len(self._seen_again(group).instance_ids)):
            # with a smaller size the cloud would choose which instance to end
            return self._executor.record_no_longer_true(decision, f"it has {there} instances now")
        if size >= group.desired and (stopped := [one.process for one in group.suspended if one.by_cloud]):
            # its cloud suspended it because launches failed: resume it to try the zone again
            self._ports.groups.resume_processes(group.name, stopped)
        self._observations.resized(group.name)
        self._ports.groups.resize(group, size)
        if size < group.desired:
            self._observations.shrunk(group.name, size)
        if decision.reason is Reason.FALLBACK:
            cost = _money(decision.usd_per_hour)
            grown = f"{decision.reason.sentence} ({group.name}: {group.desired} → {size})"
            text = f"Pool {decision.pool}: {grown}: {decision.detail}; {cost}."
            self._executor.notify(f"fallback:{group.name}:{self._minute()}", text)
        if (unknown := decision.evidence.get(CEILING)) is not None:
            self._notify_unpriced(decision, unknown)
        return self._executor.record_done(decision, f"{group.desired} → {size}")

    def _seen_again(self, group: Group) -> Group:
        """The current group. Raises CloudError; ConflictError if another process has changed its size.

        Several groups are read in one call.
        """
        if group.name not in self._again:
            begin = self._shrinking.index(group.name)
            found = self._ports.groups.readable(self._shrinking[begin : begin + READ_AT_ONCE])
            if group.name in found.errors:
                raise CloudError(found.errors[group.name])
            self._again |= found.groups
        now = self._again[group.name]
        if now.desired != group.desired:
            raise ConflictError(
                f"{group.name}: its size changed from {group.desired} to {now.desired} during the pass"
            )
        return now

    def _begin(self, decision: Decision) -> PendingDrain | Outcome:
        instance = self._ports.inventory.instance(decision.resource)
        if instance is None or not instance.alive:
            return self._executor.record_no_longer_true(decision, "it is already terminated")
        if (held := self._executor.cancel_if_blocked(decision, instance)) is not None:
            return held
        status = self._ports.agents.statuses([instance]).get(instance.id)
        if status is None or not (status.draining or status.drained):
            deadline = self._document.pool(decision.pool or "").drain_deadline
            self._ports.agents.drain(instance, DrainOwner.SPOT, f"spot: {decision.reason.sentence}", deadline)
        return decision, instance

    def _end(self, decision: Decision) -> Outcome:
        instance = self._ports.inventory.instance(decision.resource)
        if instance is None or not instance.alive or instance.group is None:
            return self._executor.record_no_longer_true(
                decision, "it is already terminated or removed from its group"
            )
        if instance.id in leaving(self._ports, [instance]):
            return self._executor.record_no_longer_true(decision, "its group is ending it already")
        if (held := self._executor.cancel_if_blocked(decision, instance)) is not None:
            return held
        self._executor.intend(decision)
        self._ports.groups.end(instance.id, instance.group, lower_desired=decision.action is Action.END)
        self._executor.notify(f"ended:{instance.id}", _ended(decision))
        return self._executor.record_done(decision, "ended")

    def _give_up_place(self, decision: Decision) -> Outcome:
        """Remove an instance that its cloud ended from its group, so that the group does not replace it there."""
        name = decision.evidence[lifecycle.PREEMPTED_FROM]
        instance = self._ports.inventory.instance(decision.resource)
        if instance is not None and instance.alive:
            return self._executor.record_no_longer_true(decision, "it is running")
        if decision.resource not in self._ports.groups.groups([name])[0].instance_ids:
            return self._executor.record_no_longer_true(decision, "its group no longer lists it")
        if (held := self._executor.cancel_if_blocked(decision)) is not None:
            return held
        self._executor.intend(decision)
        self._ports.groups.end(decision.resource, name, lower_desired=True)
        self._executor.notify(f"ended:{decision.resource}", _ended(decision))
        return self._executor.record_done(decision, "removed from its group")

    def _alert(self, plan: Plan) -> None:
        """Notify people of failing boots and quotas, which they must fix: once a day for each group."""
        for decision in plan.decisions:
            if decision.reason in (Reason.BOOTS_FAILING, Reason.QUOTA):
                instance = self._instances.get(decision.resource)
                group = decision.resource if instance is None else instance.group
                key = f"alert:{group}:{decision.reason}:{plan.at:%Y%m%d}"
                text = f"Pool {decision.pool}, {group}: {decision.reason.sentence}. {decision.detail}."
                if decision.reason is Reason.BOOTS_FAILING:
                    text += (
                        " Nothing more is started there for an hour. `gpufleet status` shows the reports of agents."
                        " If none answers, check the console log of an instance: its boot data, its access to the"
                        " bucket, the image."
                        f" Once it is fixed, run `gpufleet resume {decision.pool}` to try again."
                    )
                self._executor.notify(key, text)
        self._notify_ceilings(plan)
        of_pools = by_pool(plan.decisions)
        for pool in self._document.pools:
            decisions = of_pools[pool.name]
            self._notify_crashed(pool, decisions)
            self._notify_hung(pool, decisions)
            self._notify_draining(pool, decisions)
            self._notify_no_spot(pool, decisions)

    def _notify_ceilings(self, plan: Plan) -> None:
        """Notify people once a day, for each pool and for the fleet, of growth stopped by a ceiling."""
        day = f"{plan.at:%Y%m%d}"
        for decision in (d for d in plan.decisions if d.reason in CEILINGS):
            scope = "fleet" if decision.reason is Reason.SPEND_CEILING else decision.pool
            text = f"Pool {decision.pool}, {decision.resource} does not grow: {decision.reason.sentence}."
            self._executor.notify(f"ceiling:{scope}:{decision.reason}:{day}", f"{text} {decision.detail}.")
        if (spend := plan.spend) is not None and spend.unpriced:
            limit = f"its limit of {spend.limit_usd_per_hour} USD/h (`budget.stop_growth_at_usd_per_hour`)"
            then = "it does not grow until the prices are known" if spend.unpriced_stops else "it grows anyway"
            text = f"It is unknown whether the fleet is within {limit}: it costs {spend.sentence} USD/h; {then}."
            self._executor.notify(f"ceiling:unpriced:{day}", f"{text} See `gpufleet prices list`.")

    def _notify_unpriced(self, decision: Decision, unknown: str) -> None:
        """Notify people once a day for each pool, of the first group, that no ceiling could be checked."""
        text = (
            f"Pool {decision.pool} requests spot in {decision.resource} without a price check"
            f" (`{CEILING}` {unknown}). Spot costs at most the on-demand price: see `gpufleet prices list`."
        )
        self._executor.notify(f"unpriced:{decision.pool}:{self._ports.clock.now():%Y%m%d}", text)

    def _notify_crashed(self, pool: Pool, decisions: Sequence[Decision]) -> None:
        """Notify people once an hour for each pool of crashed engines: one request may crash all of them."""
        crashed = [d for d in decisions if d.reason is Reason.ENGINE_CRASHED and d.action is not Action.KEEP]
        if crashed:
            names = ", ".join(f"{d.resource} ({d.detail})" for d in crashed)
            text = (
                f"Pool {pool.name}: {len(crashed)} of its engines crashed and are replaced: {names}. If crashes"
                f" continue, each replacement waits longer, up to {approximate(lifecycle.MAX_CRASH_WAIT)}:"
                " check the engine log."
            )
            self._executor.notify(f"alert:{pool.name}:engine_crashed:{self._ports.clock.now():%Y%m%d%H}", text)

    def _notify_hung(self, pool: Pool, decisions: Sequence[Decision]) -> None:
        """Notify people once a day for each pool of late instances, and again when their number doubles."""
        names = sorted(d.resource for d in decisions if d.reason is Reason.NOT_READY)
        if names:
            text = (
                f"Pool {pool.name}: {len(names)} of its instances should be ready by now but are not:"
                f" {', '.join(names)}. Others replace them, but they still cost money: check `gpufleet status`."
            )
            size = 1 << (len(names).bit_length() - 1)
            self._executor.notify(f"hung:{pool.name}:{size}:{self._ports.clock.now():%Y%m%d}", text)

    def _notify_draining(self, pool: Pool, decisions: Sequence[Decision]) -> None:
        """Notify people once a day for each pool of drains that do not end."""
        names = sorted(d.resource for d in decisions if d.reason is Reason.DRAINING)
        if names:
            text = (
                f"Pool {pool.name}: {len(names)} of its instances drain for too long: {', '.join(names)}. They serve"
                " nothing but still cost money: check the logs of their agents, and end them."
            )
            self._executor.notify(f"draining:{pool.name}:{self._ports.clock.now():%Y%m%d}", text)

    def _notify_no_spot(self, pool: Pool, decisions: Sequence[Decision]) -> None:
        """Notify people once a day for each pool that no zone has spot capacity. Requests continue with pauses."""
        spots = {group.name for group in pool.groups_of(CapacityType.SPOT)}
        reasons = {decision.reason for decision in decisions if decision.resource in spots}
        if Reason.NO_SPOT in reasons and reasons <= _DRY:
            text = (
                f"Pool {pool.name}: no spot capacity in {len(spots)} zones. Each zone is asked again after"
                " growing pauses. Until one has capacity, on-demand replaces spot up to its limit."
            )
            self._executor.notify(f"dry:{pool.name}:{self._ports.clock.now():%Y%m%d}", text)

    def _minute(self) -> str:
        return f"{self._ports.clock.now():%Y%m%dt%H%M}"


def _ended(decision: Decision) -> str:
    saves = "" if decision.usd_per_hour is None else f" That saves {decision.usd_per_hour:f} USD/h."
    why = f"{decision.reason.sentence}; {decision.detail}"
    return f"{decision.resource} of pool {decision.pool} was ended: {why}.{saves}"


def _money(usd_per_hour: Decimal | None) -> str:
    return "its price is unknown" if usd_per_hour is None else f"it costs {-usd_per_hour:f} USD/h"
