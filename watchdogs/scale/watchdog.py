"""The scale watchdog: observe, decide, write targets. The spot watchdog splits a target over groups."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Final

from gpufleet.domain.brakes import Brake
from gpufleet.domain.decisions import Decision, Outcome, Reason, Target
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance
from gpufleet.settings.document import FleetDocument, Pool
from watchdogs.brakes import paused_by, target_held_by
from watchdogs.execute import ExecutionRules, Executor, Pass
from watchdogs.policy import digests, see_all
from watchdogs.ports import Ports
from watchdogs.scale import pressure
from watchdogs.scale.decide import WATCHDOG, decide
from watchdogs.scale.needs import cold_starts
from watchdogs.scale.view import ScalePoolView

RULES: Final = ExecutionRules(watchdog=WATCHDOG, fails_alone=False, key_prefix=f"{WATCHDOG}:")


class ScaleWatchdog:
    """Sets the targets of a fleet's pools."""

    def __init__(self, document: FleetDocument, ports: Ports) -> None:
        self._document = document
        self._ports = ports
        self._digests = digests(document, WATCHDOG)

    def dry(self) -> Pass[tuple[ScalePoolView, ...]]:
        """Observe and decide without acting. The policies of the plan count as seen afterwards."""
        now = self._ports.clock.now()
        views, _ = self._look(now)
        plan = decide([replace(view, policy_seen=True) for view in views], now)
        see_all(self._ports, self._document, WATCHDOG)
        return Pass(observed=views, plan=plan)

    def apply(self) -> Pass[tuple[ScalePoolView, ...]]:
        """Run one pass. Raises OSError when the fleet could not be observed completely; then nothing was changed."""
        now = self._ports.clock.now()
        views, targets = self._look(now)
        executor = Executor(self._ports, RULES)
        executor.recover(partial(self._recover, executor, targets))
        plan = decide(views, now)
        executor.record(plan)
        for decision in plan.acting:
            executor.attempt(decision, partial(self._retarget, executor, targets))
        return executor.finish(views, plan)

    def _recover(self, executor: Executor, targets: Mapping[str, Target], decision: Decision) -> None:
        """Record the outcome of a write that a killed pass began. If it was not written, it is decided again."""
        there = targets.get(decision.resource)
        if there is None or there.value != decision.to_size:
            executor.record_no_longer_true(
                decision, "begun by an earlier pass that was killed before it wrote the target; decided again"
            )
            return
        self._notify(executor, decision, there)
        written = f"target {decision.from_size} → {there.value}"
        executor.record_done(decision, f"{written}, by an earlier pass that was killed before it recorded it")

    def _retarget(self, executor: Executor, targets: Mapping[str, Target], decision: Decision) -> Outcome:
        seen = targets[decision.resource]
        if (held := executor.cancel_if_blocked(decision)) is not None:
            return held
        wanted = seen.value if decision.to_size is None else decision.to_size
        executor.intend(decision)
        why = f"{decision.reason.sentence}: {decision.detail}"
        there = self._ports.ledger.set_target(seen, wanted, WATCHDOG, why, self._ports.clock.now())
        self._notify(executor, decision, there)
        return executor.record_done(decision, f"target {seen.value} → {wanted}")

    def _notify(self, executor: Executor, decision: Decision, there: Target) -> None:
        """Send the message before the outcome is recorded: if needed, a later pass sends it under the same key."""
        if decision.reason is Reason.HELD_REQUESTS:
            text = f"Pool {decision.pool} scales up from zero: {decision.detail}."
            executor.notify(f"wake:{decision.pool}:{there.version}", text)

    def _look(self, now: datetime) -> tuple[tuple[ScalePoolView, ...], Mapping[str, Target]]:
        ports = self._ports
        pools = [pool for pool in self._document.pools if pool.watchdogs.scale is not None]
        if not pools:
            return (), {}
        groups = {group.name: pool.name for pool in pools for group in pool.groups}
        members = [i for i in ports.inventory.listed().instances if i.alive and i.group in groups]
        statuses = ports.agents.statuses(members)
        policies = {p.name: p.watchdogs.scale for p in pools if p.watchdogs.scale is not None}
        by_pool: dict[str, list[Instance]] = {pool.name: [] for pool in pools}
        for instance in members:
            by_pool[groups[instance.group or ""]].append(instance)
        leads = cold_starts(by_pool, statuses, ports.ledger.boots())
        readings = pressure.read(ports.metrics, self._document.environment, policies, now)
        targets = ports.ledger.targets()
        brakes = [brake for brake in ports.ledger.brakes(now) if brake.is_active(now)]
        views = [self._view(pool, by_pool[pool.name], statuses, readings, targets, brakes) for pool in pools]
        return tuple(replace(view, cold_start=leads[view.name]) for view in views), targets

    def _view(  # noqa: PLR0913 - the parts of one observation
        self,
        pool: Pool,
        members: Sequence[Instance],
        statuses: Mapping[str, AgentStatus],
        readings: pressure.Readings,
        targets: Mapping[str, Target],
        brakes: Sequence[Brake],
    ) -> ScalePoolView:
        if pool.watchdogs.scale is None:
            raise ValueError(f"pool {pool.name!r} has no scale watchdog")
        ready = [i for i in members if (s := statuses.get(i.id)) is not None and s.ready and not s.draining]
        known = [usd for i in ready if (usd := self._ports.prices.usd_per_hour(i)) is not None]
        return ScalePoolView(
            name=pool.name,
            target=targets[pool.name].value if pool.name in targets else pool.target,
            min=pool.min,
            max=pool.max,
            policy=pool.watchdogs.scale,
            ready=len(ready),
            without_metrics=readings.without_metrics(pool.name, {i.id for i in ready}),
            demand=readings.demand(pool.name),
            pressure=readings.pressure(pool.name),
            held_requests=readings.held_requests(pool.name),
            held_requests_peak=readings.held_requests_peak(pool.name),
            usd_per_hour=Decimal(statistics.median(known)) if known else None,
            paused_by=paused_by(pool.name, brakes),
            target_held_by=target_held_by(pool.name, brakes),
            policy_seen=self._ports.ledger.policy_seen(WATCHDOG, pool.name, self._digests[pool.name]),
        )
