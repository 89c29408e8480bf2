"""The orphan watchdog: observe, decide, act, record, tell. `decide.py` has the rules."""

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
from watchdogs.brakes import kept_by, paused_by
from watchdogs.execute import Executor, Pass
from watchdogs.machines import known_of
from watchdogs.orphans.acting import RULES, OrphanActor
from watchdogs.orphans.decide import WATCHDOG, decide
from watchdogs.orphans.view import OrphanObservation, outside
from watchdogs.policy import digests, see_all
from watchdogs.ports import Account, Ports

MARKS_LAST: Final = timedelta(days=60)
"""A mark that the ledger does not know from this time is made anew, with a new grace."""
SHOWN: Final = timedelta(minutes=30)
"""Window of `gpu_active` of those that no rule names."""
AT_ONCE: Final = 500
"""Instances named in one query: a store may refuse a longer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanScope:
    """Whom a pass looks at, and whom it tells of trouble."""

    known: Sequence[FleetDocument] = ()
    """Other fleets of the account: the instances of their pools are no orphans either."""
    only: Callable[[Instance], bool] | None = None
    """Of a dry pass: those that are shown. Such a pass does not count as a dry run of the rules."""
    tell: Callable[[str], None] = lambda _: None
    """Hears of metrics that could not be had: a dry pass lists all the same, since costs are not to be hidden."""


class OrphanWatchdog:
    """Looks at every GPU instance of an account and region that no pool owns."""

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
        """Observe and decide. The plan is for people to read, and from now on its rules count as seen."""
        now = self._ports.clock.now()
        try:
            seen = self.observe(now)
        except MetricsError as error:
            seen = error.seen
            self._scope.tell(f"their GPUs are not known: {error}")
        plan = decide(replace(seen, unseen=frozenset()), now)
        if self._scope.only is None:
            see_all(self._ports, self._document, WATCHDOG)
        return Pass(observed=seen, plan=plan)

    def apply(self) -> Pass[OrphanObservation]:
        """One whole pass. Raises OSError when the account could not be observed whole; then nothing was done."""
        now = self._ports.clock.now()
        seen = self.observe(now)
        executor = Executor(self._ports, RULES)
        actor = OrphanActor(self._ports, self._account, executor, seen, self._look_again)
        executor.settle(actor.settle)
        plan = decide(seen, now)
        executor.record(plan)
        actor.act(plan)
        return executor.finish(seen, plan)

    def observe(self, now: datetime) -> OrphanObservation:
        """Everything that `decide` judges. Raises OSError; MetricsError (one of them) when only metrics lack."""
        listed = self._account.gpus()
        orphans = outside(listed.instances, self._known)
        if self._scope.only is not None:
            orphans = tuple(instance for instance in orphans if self._scope.only(instance))
        seen = replace(self._without_metrics(orphans, now), unread=listed.errors)
        try:
            return replace(seen, evidence=self._evidence(seen, now), active=self._active(orphans, now))
        except OSError as error:
            raise MetricsError(str(error), seen) from error

    def _without_metrics(self, orphans: Sequence[Instance], now: datetime) -> OrphanObservation:
        ledger = self._ports.ledger
        brakes = [brake for brake in ledger.brakes(now) if brake.holds(now)]
        known = known_of(self._document.cloud, orphans)
        stopped = ledger.ended_since(WATCHDOG, now - budgets.HOUR)
        seen = OrphanObservation(
            environment=self._document.environment,
            orphans=orphans,
            rules=tuple(self._rules.values()),
            evidence={},
            budget=budgets.in_all(
                [budgets.of(IdlePolicy()), *map(budgets.of, self._rules.values())], 0, sum(stopped.values())
            ),
            marked_at=self._marks(now),
            paused_by=_paused(self._rules, brakes),
            unseen=frozenset(
                name
                for name, digest in digests(self._document, WATCHDOG).items()
                if not ledger.policy_seen(WATCHDOG, name, digest)
            ),
            stopped_this_hour=stopped,
            gpus_expected=known.gpus_expected,
            watts_rated=known.watts_rated,
            without_local_disks=known.without_local_disks,
            usd_per_hour=self._usd(orphans),
            attempts=ledger.failed_since(WATCHDOG, now - attempts.REMEMBERED),
        )
        named = {i.id: rule.name for i in orphans if (rule := seen.rule_of(i, now)) is not None}
        # a brake of a rule holds for whom it names, as a pool's does for its instances
        return replace(seen, kept_by=kept_by([replace(i, pool=named.get(i.id, i.pool)) for i in orphans], brakes))

    def _marks(self, now: datetime) -> dict[tuple[str, str], datetime]:
        actions = self._ports.ledger.done_since(WATCHDOG, now - MARKS_LAST) if self._rules else ()
        marks: dict[tuple[str, str], datetime] = {}
        for past in actions:
            if past.action is Action.MARK:
                marks[past.resource, past.pool or ""] = past.at
            else:  # taken away, or stopped: the next mark is a new one
                marks.pop((past.resource, past.pool or ""), None)
        return marks

    def _look_again(self, instance: Instance, rule: str, now: datetime) -> OrphanObservation:
        """Its evidence begins with its mark: passes that were paused, or blind, or did not run, saw none of it."""
        named = self._rules[rule]
        seen = replace(self._without_metrics(outside([instance], self._known), now), rules=(named,))
        since = seen.marked(instance, named, now) or now
        whole = replace(named, window=max(named.window, now - since))
        return replace(seen, evidence=self._evidence(replace(seen, rules=(whole,)), now))

    def _evidence(self, seen: OrphanObservation, now: datetime) -> dict[str, Evidence]:
        """Of those that a rule names. Rules with the same window and source share the queries."""
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
                series = signals.SeriesSelector(labels=chosen, engine_job=engine_job, gpu_job=gpu_job)
                found |= signals.gather(self._ports.metrics, series, window, now)
        return found

    def _utilization(self, ids: Sequence[str], window: timedelta, now: datetime) -> Mapping[str, Evidence]:
        if self._ports.utilization is None:
            raise CloudError(f"{self._document.cloud} has no CloudWatch: name prometheus as the rule's evidence")
        return self._ports.utilization.gather(ids, window, now)

    def _active(self, orphans: Sequence[Instance], now: datetime) -> dict[str, float]:
        found: dict[str, float] = {}
        ids = [instance.id for instance in orphans]
        for start in range(0, len(ids), AT_ONCE):
            query = signals.highest_active(of_instances(ids[start : start + AT_ONCE]), SHOWN)
            rows = self._ports.metrics.query(query, now)
            found |= {labels["instance_id"]: value for labels, value in rows if "instance_id" in labels}
        return found

    def _usd(self, orphans: Sequence[Instance]) -> dict[str, Decimal]:
        found = {i.id: self._ports.prices.usd_per_hour(i) for i in orphans}
        return {key: usd for key, usd in found.items() if usd is not None}


class MetricsError(CloudError):
    """The instances are known, their metrics are not."""

    def __init__(self, words: str, seen: OrphanObservation) -> None:
        super().__init__(words)
        self.seen = seen


def of_instances(ids: Sequence[str]) -> str:
    """Matcher of the series of these instances. Ids of both clouds have no character that a pattern knows."""
    return f'instance_id=~"{"|".join(sorted(ids))}"'


def _paused(rules: Mapping[str, OrphanPolicy], brakes: Sequence[Brake]) -> dict[str, str]:
    found = {name: paused_by(name, brakes) for name in rules}
    return {name: said for name, said in found.items() if said is not None}
