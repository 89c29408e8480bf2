"""The idle watchdog: observe, decide, act, record, notify. `decide.py` has the rules."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from gpufleet.domain.brakes import Brake
from gpufleet.domain.decisions import Action, Objection, Plan, Reason
from gpufleet.domain.evidence import AgentStatus, Evidence
from gpufleet.domain.model import Instance
from gpufleet.domain.ownership import owning_pool
from gpufleet.domain.tags import ROLE, ROUTER
from gpufleet.settings.document import FleetDocument, Pool
from watchdogs import attempts, budgets, signals
from watchdogs.brakes import kept_by, paused_by, target_held_by
from watchdogs.execute import Executor, Pass
from watchdogs.idle import acting, messages
from watchdogs.idle.checks import METRIC_CHECKS, judge
from watchdogs.idle.decide import (
    UNSCALED,
    WATCHDOG,
    IdleObservation,
    IdlePoolView,
    case_of,
    decide,
    is_our_drain,
    is_reporting,
)
from watchdogs.machines import machine_facts
from watchdogs.observe.completeness import InstanceReader, reporting_unlisted, unlisted
from watchdogs.policy import digests, see_all
from watchdogs.ports import Ports
from watchdogs.scale import hours
from watchdogs.scale.needs import cold_starts, needed_soon

REACHED_SPAN: Final = timedelta(hours=24)
DAY: Final = timedelta(days=1)
FIRST_ASKED: Final = 3
"""If the first groups, this many, all fail to answer about a rollout, no other group is asked."""
CLAIMS_AFTER: Final = timedelta(minutes=15)
"""An instance with the tags of a pool but outside its groups is reported from this age: `pulumi up` creates groups
before the fleet document names them."""


class IdleWatchdog:
    """Ends idle instances of one fleet."""

    def __init__(self, document: FleetDocument, ports: Ports) -> None:
        self._document = document
        self._ports = ports
        self._series = signals.of_environment(document.environment)

    def dry(self) -> Pass[IdleObservation]:
        """Observe and decide without acting. The policies of the plan count as seen afterwards."""
        now = self._ports.clock.now()
        observed = self.observe(now)
        shown = {name: replace(view, policy_seen=True) for name, view in observed.pools.items()}
        plan = decide(replace(observed, pools=shown), now)
        see_all(self._ports, self._document, WATCHDOG)
        return Pass(observed=observed, plan=plan)

    def apply(self) -> Pass[IdleObservation]:
        """Run one pass. Raises OSError when the fleet could not be observed completely; then nothing was changed."""
        now = self._ports.clock.now()
        observed = self.observe(now)
        executor = Executor(self._ports, acting.RULES)
        actor = acting.IdleActor(self._document, self._ports, executor, observed, self.evidence_of)
        executor.recover(actor.recover)
        plan = decide(observed, now)
        executor.record(plan)
        self._report(executor, observed, plan)
        actor.act(plan)
        return executor.finish(observed, plan)

    def _report(self, executor: Executor, observed: IdleObservation, plan: Plan) -> None:
        """Notify people once a day about pools and groups about which nothing is decided."""
        for name, why in (*observed.uncertain.items(), *observed.unreadable.items()):
            text = f"No instance of {name} is ended: {why.reason.sentence}. {why.detail}."
            executor.notify(f"{why.reason}:{name}:{plan.at:%Y%m%d}", text)
        for one in (*observed.instances, *self._claiming()):
            if one.alive and plan.at - one.launched_at >= CLAIMS_AFTER and (message := self._claim(one)) is not None:
                executor.notify(f"claims:{one.id}:{plan.at:%Y%m%d}", message)

    def _claiming(self) -> Sequence[Instance]:
        """Instances with a pool tag and without an environment tag: the inventory of an environment does not list
        them.
        """
        try:
            return self._ports.inventory.claiming().instances
        except OSError:
            # no decision depends on it, and the next pass reads it again
            return ()

    def _claim(self, one: Instance) -> str | None:
        """The message about an instance that has tags of the fleet but is not part of it; None: it has none."""
        if one.claimed_pool is not None:
            return messages.claims(one)
        routers = self._document.router.machines
        is_router = one.is_infrastructure and one.tags.get(ROLE) == ROUTER
        return messages.claims_router(one) if is_router and routers is not None and one.id not in routers else None

    def observe(self, now: datetime) -> IdleObservation:
        """Everything that `decide` uses. Raises OSError if a part cannot be read."""
        ports = self._ports
        instances, unreadable = self._instances()
        brakes = [brake for brake in ports.ledger.brakes(now) if brake.is_active(now)]
        reader = InstanceReader(ports.inventory)
        reader.fails(unreadable)
        evidence, missing = self._evidence(instances, reader, now)
        ended = ports.ledger.ended_since(WATCHDOG, now - budgets.HOUR)
        pools = self._pools(instances, brakes, ended, now)
        uncertain = self._uncertain(instances, missing, pools, (reader, unreadable), now)
        watched = [i for i in instances if (view := pools.get(i.pool or "")) is not None and view.policy is not None]
        strays = [i for i in instances if i.alive and (i.pool or "") not in pools]
        known = machine_facts(self._document.cloud, instances)
        base = IdleObservation(
            instances=instances,
            evidence=evidence,
            agents={},
            pools=pools,
            budget=budgets.fleet_budget(
                [budgets.pool_budget(view.policy) for view in pools.values() if view.policy is not None],
                len(watched),
                sum(ended.values()),
            ),
            gpus_expected=known.gpus_expected,
            watts_rated=known.watts_rated,
            kept_by=kept_by(instances, brakes),
            usd_per_hour=self._usd([*watched, *strays]),
            begun=frozenset(d.resource for d in ports.ledger.unfinished(WATCHDOG) if d.action is Action.END),
            attempts=ports.ledger.open_attempts_since(WATCHDOG, now - attempts.ATTEMPTS_KEPT),
            uncertain=uncertain,
        )
        asked = [i for i in watched if i.alive and (i.idle_since is not None or _quiet(i, base, now))]
        groups = sorted({i.group for i in asked if i.group is not None})
        known = [*asked, *self._others(asked, watched, base, now)]
        agents = ports.agents.statuses(known)
        base = replace(base, pools=self._with_needs(self._with_cold_starts(pools, known, agents), known, now))
        asked_ids = {instance.id for instance in known}
        if more := [i for i in self._others(asked, watched, base, now) if i.id not in asked_ids]:
            agents = {**agents, **ports.agents.statuses(more)}
        going, unreadable = self._leaving([i for i in asked if is_our_drain(agents.get(i.id))])
        rollouts, unasked = self._rollouts(groups, self._ends(asked, now))
        errors = {
            n: Objection(reason=Reason.GROUP_UNREADABLE, detail=why) for n, why in {**unreadable, **unasked}.items()
        }
        return replace(base, agents=agents, leaving=going, rollouts=rollouts, unreadable=errors)

    def _leaving(self, drained: Sequence[Instance]) -> tuple[frozenset[str], Mapping[str, str]]:
        """Instances that the groups are ending already, and the errors of groups that cannot be read."""
        names = sorted({instance.group for instance in drained if instance.group is not None})
        if not names:
            return frozenset(), {}
        found = self._ports.groups.readable(names)
        return frozenset(key for group in found.groups.values() for key in group.leaving), found.errors

    def _rollouts(self, groups: Sequence[str], required: Collection[str]) -> tuple[frozenset[str], dict[str, str]]:
        """Groups that are being refreshed, and the errors of groups that cannot be read.

        Raises OSError if all fail.
        """
        if not groups:
            return frozenset(), {}
        try:
            return self._ports.groups.in_rollout(groups, required), {}
        except OSError as error:
            return self._rollouts_one_by_one(groups, required, error)

    def _rollouts_one_by_one(
        self, groups: Sequence[str], required: Collection[str], first: OSError
    ) -> tuple[frozenset[str], dict[str, str]]:
        found: set[str] = set()
        errors: dict[str, str] = {}
        for number, name in enumerate(groups, start=1):
            try:
                found |= self._ports.groups.in_rollout([name], {name} & set(required))
            except OSError as error:
                errors[name] = str(error)
            if number == len(errors) == FIRST_ASKED < len(groups):
                raise first  # the error does not depend on the group
        return frozenset(found), errors

    def _instances(self) -> tuple[Sequence[Instance], Mapping[str, str]]:
        """The instances of the inventory, and the errors of those that could not be read."""
        groups = self._document.group_names()
        # an instance on two pages must not count twice for the floor
        found = self._ports.inventory.listed()
        once = {instance.id: instance for instance in found.instances}.values()
        return tuple(replace(i, pool=owning_pool(groups, i)) for i in once), found.errors

    def _uncertain(
        self,
        instances: Sequence[Instance],
        missing: Sequence[Instance],
        pools: Mapping[str, IdlePoolView],
        unreadable: tuple[InstanceReader, Mapping[str, str]],
        now: datetime,
    ) -> dict[str, Objection]:
        """By pool: why the list of instances is incomplete for it.

        `missing`: instances that report metrics but are not listed. Pools without a listed instance are checked by
        their groups; so are all pools if some instances could not be read (`unreadable`).

        Raises CloudError when the list lacks too many instances.
        """
        reader, errors = unreadable
        own = self._document.group_names()
        found = {pool: _lacks(one.id) for one in missing if (pool := owning_pool(own, one)) is not None}
        there = {instance.pool for instance in instances}
        silent = [p for p in self._document.pools if errors or (p.name not in there and pools[p.name].target > 0)]
        pool_of = {group.name: p.name for p in silent if p.watchdogs.idle is not None for group in p.groups}
        if pool_of:
            groups = self._ports.groups.readable(list(pool_of)).groups
            listed = {i.id for i in instances}
            lost = unlisted(reader, groups.values(), listed, now)
            found |= {pool_of[one.group or ""]: _lacks(one.id) for one in lost.living.values()}
            found |= {pool_of[group]: _lacks(key, errors.get(key)) for key, (group, _) in lost.unknown.items()}
        return found

    def _ends(self, instances: Sequence[Instance], now: datetime) -> frozenset[str]:
        """Groups of marked instances whose grace is over: for these the rollout state must be exact."""
        return frozenset(i.group for i in instances if i.group is not None and self._grace_is_over(i, now))

    def _others(
        self, asked: Sequence[Instance], watched: Sequence[Instance], observed: IdleObservation, now: datetime
    ) -> list[Instance]:
        """Other instances of pools with a possible end, up to twice the number needed, to check that enough are
        ready.
        """
        ends = Counter(i.pool or "" for i in asked if self._grace_is_over(i, now))
        views = observed.pools
        left = {pool: 2 * (max(views[pool].floor, views[pool].with_spare) + n) + 8 for pool, n in ends.items()}
        known = {instance.id for instance in asked}
        found: list[Instance] = []
        for instance in watched:
            pool = instance.pool or ""
            if left.get(pool, 0) > 0 and instance.id not in known and is_reporting(instance, observed):
                left[pool] -= 1
                found.append(instance)
        return found

    def _with_cold_starts(
        self, views: Mapping[str, IdlePoolView], asked: Sequence[Instance], agents: Mapping[str, AgentStatus]
    ) -> dict[str, IdlePoolView]:
        """The pools with their cold start, from the statuses of instances and the boots in the ledger."""
        by_pool: dict[str, list[Instance]] = {name: [] for name in views}
        for instance in asked:
            by_pool[instance.pool or ""].append(instance)
        took = cold_starts(by_pool, agents, self._ports.ledger.boots())
        return {name: replace(view, cold_start=took[name]) for name, view in views.items()}

    def _with_needs(
        self, views: Mapping[str, IdlePoolView], asked: Sequence[Instance], now: datetime
    ) -> dict[str, IdlePoolView]:
        """The pools with the need of their scale watchdog, read only for pools with a possible end.

        Raises OSError.
        """
        due = {i.pool for i in asked if self._grace_is_over(i, now)}
        pools = [pool for pool in self._document.pools if pool.name in due]
        needs = needed_soon(
            pools,
            {name: view.target for name, view in views.items()},
            {name: view.cold_start for name, view in views.items()},
            self._ports.metrics,
            self._document.environment,
            now,
        )
        known = {pool.name: needs.get(pool.name, UNSCALED) for pool in pools}
        return {name: replace(view, needed=known.get(name)) for name, view in views.items()}

    def _grace_is_over(self, instance: Instance, now: datetime) -> bool:
        entry = self._document.pool(instance.pool or "").watchdogs.idle
        return entry is not None and instance.idle_since is not None and now - instance.idle_since >= entry.grace

    def evidence_of(self, instance: Instance, window: timedelta, now: datetime) -> Evidence | None:
        """The current evidence of one instance."""
        series = replace(self._series, labels=f'{self._series.labels},instance_id="{instance.id}"')
        return signals.gather(self._ports.metrics, series, window, now).get(instance.id)

    def _evidence(
        self, instances: Sequence[Instance], reader: InstanceReader, now: datetime
    ) -> tuple[dict[str, Evidence], Sequence[Instance]]:
        """Evidence by instance, and instances that report metrics but are not listed.

        Each pool has its own window; pools with the same window share the queries.
        """
        windows: dict[timedelta, set[str]] = {}
        for pool in self._document.pools:
            if pool.watchdogs.idle is not None:
                windows.setdefault(pool.watchdogs.idle.window, set()).add(pool.name)
        listed = {i.id for i in instances}
        found: dict[str, Evidence] = {}
        missing: dict[str, Instance] = {}
        for window, names in windows.items():
            ids = {i.id for i in instances if i.pool in names and i.alive}
            reported = signals.gather(self._ports.metrics, self._series, window, now)
            lost = reporting_unlisted(reader, self._document.environment, reported, listed, now)
            missing |= {one.id: one for one in lost}
            silent = {i for i in ids if i not in reported or reported[i].engine is None}
            ever = signals.reached(self._ports.metrics, self._document.environment, sorted(silent), REACHED_SPAN, now)
            interval = signals.longest_interval(self._ports.metrics)
            for instance in ids:
                side = reported.get(instance)
                found[instance] = Evidence(
                    window=window,
                    interval=interval,
                    engine=side.engine if side else None,
                    gpu=side.gpu if side else None,
                    reached=instance in ever if instance in silent else True,
                )
        return found, list(missing.values())

    def _pools(
        self, instances: Sequence[Instance], brakes: Sequence[Brake], ended: Mapping[str, int], now: datetime
    ) -> dict[str, IdlePoolView]:
        ledger = self._ports.ledger
        today = ledger.ended_since(WATCHDOG, now - DAY)
        members = Counter(instance.pool for instance in instances)
        targets = ledger.targets()
        names = digests(self._document, WATCHDOG)
        views: dict[str, IdlePoolView] = {}
        for pool in self._document.pools:
            entry = pool.watchdogs.idle
            target = targets.get(pool.name)
            views[pool.name] = IdlePoolView(
                name=pool.name,
                policy=entry,
                floor=max(pool.min, self._scheduled(pool, now)),
                target=pool.target if target is None else target.value,
                spare=pool.spare,
                paused_by=paused_by(pool.name, brakes),
                target_held_by=target_held_by(pool.name, brakes),
                policy_seen=entry is None or ledger.policy_seen(WATCHDOG, pool.name, names[pool.name]),
                ended_this_hour=ended.get(pool.name, 0),
                left_today=_left_today(pool, members[pool.name], today.get(pool.name, 0)),
            )
        return views

    def _scheduled(self, pool: Pool, now: datetime) -> int:
        """The current target of the pool's schedule: below it, scale would launch instances again."""
        entry = pool.watchdogs.scale
        return 0 if entry is None else hours.floor(entry.schedule, now)

    def _usd(self, instances: Sequence[Instance]) -> dict[str, Decimal]:
        found = {i.id: self._ports.prices.usd_per_hour(i) for i in instances}
        return {instance: usd for instance, usd in found.items() if usd is not None}


def _lacks(instance: str, error: str | None = None) -> Objection:
    detail = f"{instance} is running but is not in the list of instances" if error is None else error
    return Objection(reason=Reason.NOT_LISTED, detail=detail)


def _left_today(pool: Pool, there: int, ended: int) -> int | None:
    """Ends still allowed today for a pool; None: no limit."""
    entry = pool.watchdogs.idle
    if entry is None or entry.max_stops_per_day is None:
        return None
    # instances ended today count, too: so the size is at least the target of the fleet document
    return math.ceil(entry.max_stops_per_day * max(pool.target, there)) - ended


def _quiet(instance: Instance, observed: IdleObservation, now: datetime) -> bool:
    """Whether the metrics have no objection: only then the agent is asked."""
    view = observed.pools[instance.pool or ""]
    return view.policy is not None and judge(case_of(instance, observed, view.policy, now), METRIC_CHECKS) is None
