"""The scale watchdog: observe, decide, write targets. Splitting a target over groups is the spot watchdog's."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from gpufleet.domain.activity import ConflictError
from gpufleet.domain.brakes import Brake
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Plan, Reason, Target
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance
from gpufleet.settings.document import FleetDocument, Pool
from watchdogs import boots
from watchdogs.brakes import paused_by, target_held_by
from watchdogs.policy import digest
from watchdogs.ports import LEASE_OVER, Ports
from watchdogs.scale import pressure
from watchdogs.scale.decide import WATCHDOG, decide
from watchdogs.scale.view import PoolView


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass saw, wished and did."""

    observed: tuple[PoolView, ...]
    plan: Plan
    outcomes: tuple[Outcome, ...] = ()


class ScaleWatchdog:
    """Sets the targets of a fleet's pools."""

    def __init__(self, document: FleetDocument, ports: Ports) -> None:
        self._document = document
        self._ports = ports

    def dry(self) -> Pass:
        """Observe and decide. The plan is for people to read, and from now on its policies count as seen."""
        now = self._ports.clock.now()
        views, _ = self._look(now)
        plan = decide([replace(view, policy_seen=True) for view in views], now)
        for pool in self._document.pools:
            name = policy_digest(self._document, pool.name)
            if name is not None:
                self._ports.ledger.see_policy(WATCHDOG, pool.name, name, "dry run", now)
        return Pass(observed=views, plan=plan)

    def apply(self) -> Pass:
        """One whole pass. Raises OSError when the fleet could not be observed whole; then nothing was done."""
        now = self._ports.clock.now()
        views, targets = self._look(now)
        settled = tuple(self._settle(decision, targets) for decision in self._ports.ledger.unfinished(WATCHDOG))
        plan = decide(views, now)
        self._ports.ledger.record(plan)
        outcomes = tuple(self._retarget(d, targets) for d in plan.acting if d.action is Action.RETARGET)
        return Pass(observed=views, plan=plan, outcomes=(*settled, *outcomes))

    def _settle(self, decision: Decision, targets: Mapping[str, Target]) -> Outcome:
        """Give an outcome to what a killed pass began: its write is there or it is not, and is decided anew."""
        there = targets.get(decision.resource)
        if there is None or there.value != decision.to_size:
            detail = "begun by an earlier pass that did not live to write it; decided anew"
            return self._off(decision, detail)
        detail = f"target {decision.from_size} → {there.value}, by an earlier pass that did not live to say so"
        return self._done(decision, there, detail)

    def _retarget(self, decision: Decision, targets: Mapping[str, Target]) -> Outcome:
        seen = targets[decision.resource]
        now = self._ports.clock.now()
        if not self._ports.ledger.hold(now):
            return self._off(decision, LEASE_OVER)
        brakes = [brake for brake in self._ports.ledger.brakes(now) if brake.holds(now)]
        if (by := paused_by(decision.resource, brakes)) is not None:
            return self._off(decision, f"paused meanwhile {by}")
        wanted = seen.value if decision.to_size is None else decision.to_size
        self._ports.ledger.intend(WATCHDOG, decision, now)
        try:
            there = self._ports.ledger.set_target(
                seen, wanted, WATCHDOG, f"{decision.reason}: {decision.detail}", now
            )
        except ConflictError as error:
            return self._off(decision, str(error))
        return self._done(decision, there, f"target {seen.value} → {wanted}")

    def _done(self, decision: Decision, there: Target, detail: str) -> Outcome:
        """Tell before it is recorded: whoever dies in between is told of by the next pass, under the same key."""
        if decision.reason is Reason.HELD_REQUESTS:
            text = f"Pool {decision.pool} wakes from zero: {decision.detail}."
            self._ports.messages.tell(f"{WATCHDOG}:wake:{decision.pool}:{there.version}", text, {})
        return self._recorded(Outcome(decision=decision, kind=OutcomeKind.DONE, detail=detail))

    def _off(self, decision: Decision, why: str) -> Outcome:
        return self._recorded(Outcome(decision=decision, kind=OutcomeKind.NO_LONGER_TRUE, detail=why))

    def _recorded(self, outcome: Outcome) -> Outcome:
        self._ports.ledger.record_outcome(WATCHDOG, outcome, self._ports.clock.now())
        return outcome

    def _look(self, now: datetime) -> tuple[tuple[PoolView, ...], Mapping[str, Target]]:
        ports = self._ports
        pools = [pool for pool in self._document.pools if pool.watchdogs.scale is not None]
        if not pools:
            return (), {}
        groups = {group.name: pool.name for pool in pools for group in pool.groups}
        members = [i for i in ports.inventory.instances() if i.alive and i.group in groups]
        statuses = ports.agents.statuses(members)
        policies = {p.name: p.watchdogs.scale.policy() for p in pools if p.watchdogs.scale is not None}
        by_pool: dict[str, list[Instance]] = {pool.name: [] for pool in pools}
        for instance in members:
            by_pool[groups[instance.group or ""]].append(instance)
        leads = _cold_starts(by_pool, statuses)
        readings = pressure.read(ports.metrics, self._document.environment, policies, leads, now)
        targets = ports.ledger.targets()
        brakes = [brake for brake in ports.ledger.brakes(now) if brake.holds(now)]
        views = [self._view(pool, by_pool[pool.name], statuses, readings, targets, brakes) for pool in pools]
        return tuple(replace(view, cold_start=leads[view.name]) for view in views), targets

    def _view(  # noqa: PLR0913 - the parts of one look, put together in one place
        self,
        pool: Pool,
        members: Sequence[Instance],
        statuses: Mapping[str, AgentStatus],
        readings: pressure.Readings,
        targets: Mapping[str, Target],
        brakes: Sequence[Brake],
    ) -> PoolView:
        if pool.watchdogs.scale is None:
            raise ValueError(f"pool {pool.name!r} has no scale watchdog")
        ready = [i for i in members if (s := statuses.get(i.id)) is not None and s.ready and not s.draining]
        known = [usd for i in ready if (usd := self._ports.prices.usd_per_hour(i)) is not None]
        name = policy_digest(self._document, pool.name) or ""
        return PoolView(
            name=pool.name,
            target=targets[pool.name].value if pool.name in targets else pool.target,
            min=pool.min,
            max=pool.max,
            policy=pool.watchdogs.scale.policy(),
            ready=len(ready),
            unread=readings.unread(pool.name, {i.id for i in ready}),
            demand=readings.demand(pool.name),
            pressure=readings.pressure(pool.name),
            held=readings.held(pool.name),
            held_peak=readings.held_peak(pool.name),
            usd_per_hour=Decimal(statistics.median(known)) if known else None,
            paused_by=paused_by(pool.name, brakes),
            held_by=target_held_by(pool.name, brakes),
            policy_seen=self._ports.ledger.policy_seen(WATCHDOG, pool.name, name),
        )


def policy_digest(document: FleetDocument, pool: str) -> str | None:
    """The name of a pool's scale policy; None when it has no scale watchdog."""
    entry = document.pool(pool)
    if entry.watchdogs.scale is None:
        return None
    return digest(entry.watchdogs.scale.policy(), entry.min, entry.max)


def _cold_starts(
    by_pool: Mapping[str, Sequence[Instance]], statuses: Mapping[str, AgentStatus]
) -> dict[str, timedelta]:
    """By pool: the median of what its instances needed from launch to ready; of one that has none, all pools'."""
    took = {pool: boots.took(members, statuses) for pool, members in by_pool.items()}
    usual = boots.expected([boot for own in took.values() for boot in own])
    return {pool: boots.expected(own, otherwise=usual) for pool, own in took.items()}
