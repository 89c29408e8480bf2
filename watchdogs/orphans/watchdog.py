"""The orphan watchdog: observe, decide, act, record, notify. `decide.py` has the rules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from gpufleet.domain.activity import CloudError
from gpufleet.domain.brakes import Brake
from gpufleet.domain.decisions import Action
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import Instance
from gpufleet.domain.policies import EvidenceSource, IdlePolicy, OrphanPolicy
from gpufleet.settings.document import FleetDocument
from watchdogs import attempts, budgets, signals
from watchdogs.accelerator_queries import highest_active
from watchdogs.brakes import kept_by, paused_by
from watchdogs.execute import Executor, Pass
from watchdogs.machines import machine_facts
from watchdogs.orphans.acting import RULES, OrphanActor
from watchdogs.orphans.decide import WATCHDOG, decide
from watchdogs.orphans.view import OrphanObservation, unmanaged_instances
from watchdogs.policy import digests, see_all
from watchdogs.ports import Account, Ports
from watchdogs.promql import SeriesSelector

MARKS_LAST: Final = timedelta(days=60)
"""How far back marks are read from the ledger. An older mark is made again, with a new grace."""
SHOWN: Final = timedelta(minutes=30)
"""Window of the shown `gpu_active` of instances without a rule."""
AT_ONCE: Final = 500
"""Maximum number of instances in one query: a metrics store may refuse a longer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanScope:
    """Which instances a pass observes, and where it reports errors."""

    known: Sequence[FleetDocument] = ()
    """Other fleets of the account: instances of their pools are not orphans."""
    only: Callable[[Instance], bool] | None = None
    """Filter of a dry pass. A filtered pass does not count as a dry run of the rules."""
    announce: Callable[[str], None] = lambda _: None
    """Receives the error if a dry pass cannot read metrics. The pass still lists the instances, to show their cost.
    """


class OrphanWatchdog:
    """Watches every GPU instance of an account and region that no pool owns."""

    def __init__(self, document: FleetDocument, ports: Ports, scope: OrphanScope = OrphanScope()) -> None:  # noqa: B008 - frozen
        if ports.account is None:
            raise ValueError("the orphan watchdog needs the port `account`")
        self._document = document
        self._ports = ports
        self._account: Account = ports.account
        self._known = (document, *scope.known)
        self._scope = scope
        self._rules = {rule.name: rule for rule in document.orphans}

    def dry(self) -> Pass[OrphanObservation]:
        """Observe and decide without acting. The rules of the plan count as seen afterwards."""
        now = self._ports.clock.now()
        try:
            seen = self.observe(now)
        except MetricsError as error:
            seen = error.seen
            self._scope.announce(f"metrics of the GPUs cannot be read: {error}")
        plan = decide(replace(seen, unaccepted=frozenset()), now)
        if self._scope.only is None:
            see_all(self._ports, self._document, WATCHDOG)
        return Pass(observed=seen, plan=plan)

    def apply(self) -> Pass[OrphanObservation]:
        """Run one pass.

        Raises OSError when the account could not be observed completely; then nothing was changed.
        """
        now = self._ports.clock.now()
        seen = self.observe(now)
        executor = Executor(self._ports, RULES)
        actor = OrphanActor(self._ports, self._account, executor, seen, self._look_again)
        executor.recover(actor.recover)
        plan = decide(seen, now)
        executor.record(plan)
        actor.act(plan)
        return executor.finish(seen, plan)

    def observe(self, now: datetime) -> OrphanObservation:
        """Everything that `decide` uses. Raises OSError; its subclass MetricsError if only metrics are missing."""
        listed = self._account.gpus()
        orphans = unmanaged_instances(listed.instances, self._known)
        if self._scope.only is not None:
            orphans = tuple(instance for instance in orphans if self._scope.only(instance))
        seen = replace(self._without_metrics(orphans, now), unreadable=listed.errors)
        try:
            return replace(seen, evidence=self._evidence(seen, now), active=self._active(orphans, now))
        except OSError as error:
            raise MetricsError(str(error), seen) from error

    def _without_metrics(self, orphans: Sequence[Instance], now: datetime) -> OrphanObservation:
        ledger = self._ports.ledger
        brakes = [brake for brake in ledger.brakes(now) if brake.is_active(now)]
        known = machine_facts(self._document.cloud, orphans)
        stopped = ledger.ended_since(WATCHDOG, now - budgets.HOUR)
        seen = OrphanObservation(
            environment=self._document.environment,
            orphans=orphans,
            rules=tuple(self._rules.values()),
            evidence={},
            budget=budgets.fleet_budget(
                [budgets.pool_budget(IdlePolicy()), *map(budgets.pool_budget, self._rules.values())],
                0,
                sum(stopped.values()),
            ),
            marked_at=self._marks(now),
            paused_by=_paused(self._rules, brakes),
            unaccepted=frozenset(
                name
                for name, digest in digests(self._document, WATCHDOG).items()
                if not ledger.policy_seen(WATCHDOG, name, digest)
            ),
            stopped_this_hour=stopped,
            gpus_expected=known.gpus_expected,
            watts_rated=known.watts_rated,
            without_local_disks=known.without_local_disks,
            usd_per_hour=self._usd(orphans),
            attempts=ledger.open_attempts_since(WATCHDOG, now - attempts.ATTEMPTS_KEPT),
        )
        named = {i.id: rule.name for i in orphans if (rule := seen.rule_of(i, now)) is not None}
        # a brake of a rule applies to the instances that it matches, as a brake of a pool does to its instances
        return replace(seen, kept_by=kept_by([replace(i, pool=named.get(i.id, i.pool)) for i in orphans], brakes))

    def _marks(self, now: datetime) -> dict[tuple[str, str], datetime]:
        actions = self._ports.ledger.done_since(WATCHDOG, now - MARKS_LAST) if self._rules else ()
        marks: dict[tuple[str, str], datetime] = {}
        for past in actions:
            if past.action is Action.MARK:
                marks[past.resource, past.pool or ""] = past.at
            else:  # removed, or stopped: the next mark is a new one
                marks.pop((past.resource, past.pool or ""), None)
        return marks

    def _look_again(self, instance: Instance, rule: str, now: datetime) -> OrphanObservation:
        """Observe one instance again.

        Its evidence begins with its mark: skipped and failed passes have not observed it.
        """
        named = self._rules[rule]
        seen = replace(self._without_metrics(unmanaged_instances([instance], self._known), now), rules=(named,))
        since = seen.marked(instance, named, now) or now
        whole = replace(named, window=max(named.window, now - since))
        return replace(seen, evidence=self._evidence(replace(seen, rules=(whole,)), now))

    def _evidence(self, seen: OrphanObservation, now: datetime) -> dict[str, Evidence]:
        """Evidence of instances that a rule matches. Rules with the same window and source share the queries."""
        asked: dict[tuple[EvidenceSource, timedelta, str, str], list[str]] = {}
        for instance in seen.orphans:
            if (rule := seen.rule_of(instance, now)) is not None:
                key = (rule.evidence, rule.window, rule.engine_job, rule.gpu_job)
                asked.setdefault(key, []).append(instance.id)
        found: dict[str, Evidence] = {}
        for (source, window, engine_job, gpu_job), ids in asked.items():
            if source is EvidenceSource.CLOUDWATCH:
                found |= self._utilization(ids, window, now)
                continue
            for start in range(0, len(ids), AT_ONCE):
                chosen = of_instances(ids[start : start + AT_ONCE])
                series = SeriesSelector(labels=chosen, engine_job=engine_job, gpu_job=gpu_job)
                found |= signals.gather(self._ports.metrics, series, window, now)
        return found

    def _utilization(self, ids: Sequence[str], window: timedelta, now: datetime) -> Mapping[str, Evidence]:
        if self._ports.utilization is None:
            raise CloudError(f"{self._document.cloud} has no CloudWatch: set `evidence` of the rule to prometheus")
        return self._ports.utilization.gather(ids, window, now)

    def _active(self, orphans: Sequence[Instance], now: datetime) -> dict[str, float]:
        found: dict[str, float] = {}
        ids = [instance.id for instance in orphans]
        for start in range(0, len(ids), AT_ONCE):
            query = highest_active(of_instances(ids[start : start + AT_ONCE]), SHOWN)
            rows = self._ports.metrics.query(query, now)
            found |= {labels["instance_id"]: value for labels, value in rows if "instance_id" in labels}
        return found

    def _usd(self, orphans: Sequence[Instance]) -> dict[str, Decimal]:
        found = {i.id: self._ports.prices.usd_per_hour(i) for i in orphans}
        return {key: usd for key, usd in found.items() if usd is not None}


class MetricsError(CloudError):
    """The instances were read, their metrics were not."""

    def __init__(self, message: str, seen: OrphanObservation) -> None:
        super().__init__(message)
        self.seen = seen


def of_instances(ids: Sequence[str]) -> str:
    """PromQL matcher of these instances. Ids of both clouds contain no special characters of a pattern."""
    return f'instance_id=~"{"|".join(sorted(ids))}"'


def _paused(rules: Mapping[str, OrphanPolicy], brakes: Sequence[Brake]) -> dict[str, str]:
    found = {name: paused_by(name, brakes) for name in rules}
    return {name: paused for name, paused in found.items() if paused is not None}
