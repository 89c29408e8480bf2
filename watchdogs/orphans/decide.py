"""Decides about GPU instances outside every pool. Pure.

Each is listed with its price. An instance that a rule matches is marked when it was idle over the whole window of the
rule. A rule that stops checks again after its grace, needs both sources of evidence then, and does not stop what
cannot be stopped without a loss. Missing evidence keeps an instance, as everywhere.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from gpufleet.domain.decisions import Action, Decision, Objection, Plan, Reason
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import Instance
from gpufleet.domain.policies import OrphanAction, OrphanPolicy
from watchdogs import budgets
from watchdogs.attempts import tried_last
from watchdogs.idle.checks import Case, Check
from watchdogs.orphans.checks import evidence_summary, judge_orphan
from watchdogs.orphans.view import OrphanObservation, display_name, stop_obstacle

WATCHDOG: Final = "orphans"
_UNMARKING: Final = frozenset(
    {
        Reason.SERVING,
        Reason.TOKENS_MOVED,
        Reason.GPU_ACTIVE,
        Reason.GPU_ACTIVE_WITHOUT_WORK,
        Reason.KEPT_BY_PEOPLE,
        Reason.WARMING_UP,
        Reason.PREPAID,
    }
)
"""Reasons that remove a mark: the next mark starts a new grace with a new message."""


def decide(seen: OrphanObservation, now: datetime, checks: Sequence[Check] | None = None) -> Plan:
    """One decision for every orphan, the most expensive first. An unknown price sorts first: it may be the highest.

    An instance that cannot be read is kept, and so is any other with the same name.
    """
    remaining = _Remaining(seen)
    twice = _named_twice(seen.orphans) | seen.unreadable.keys()
    decisions: list[Decision] = []
    for instance in sorted(seen.orphans, key=lambda i: _by_price(seen, i)):
        rule = seen.rule_of(instance, now)
        if rule is None:
            outside = Objection(reason=Reason.OUTSIDE_POOLS, detail=_stray(seen, instance))
            decisions.append(_kept(seen, instance, None, outside, now))
        elif instance.id in twice:
            why = Objection(reason=Reason.METRICS_IMPLAUSIBLE, detail="two machines have this name")
            decisions.append(_kept(seen, instance, rule, why, now))
        else:
            decisions.append(_unless_unaccepted(seen, rule, _decide_one(seen, instance, rule, now, checks)))
    # instances without failed attempts come first: one that can never be stopped would use up the budget
    for n in sorted(range(len(decisions)), key=lambda n: tried_last(seen.attempts, decisions[n].resource)):
        decisions[n] = remaining.take(decisions[n])
    decisions += _unread(seen)
    return Plan(watchdog=WATCHDOG, at=now, decisions=tuple(decisions), budget=seen.budget)


def _unread(seen: OrphanObservation) -> list[Decision]:
    """Keeps for the instances that exist but could not be read."""
    named = {instance.id for instance in seen.orphans}
    return [
        Decision(resource=key, pool=None, action=Action.KEEP, reason=Reason.NOT_LISTED, detail=why)
        for key, why in seen.unreadable.items()
        if key not in named
    ]


def _stray(seen: OrphanObservation, instance: Instance) -> str:
    """Why an instance of this environment may be outside its pools, as far as its tags show it."""
    if instance.environment != seen.environment or instance.group is None:
        return ""
    return (
        f"its group {instance.group} is in no pool of the fleet document: check whether a `pulumi up` was interrupted"
    )


def inspect(seen: OrphanObservation, rule: OrphanPolicy, now: datetime) -> Plan:
    """A plan that keeps every instance, with the result of the checks, whoever owns it."""
    decisions: list[Decision] = []
    for instance in sorted(seen.orphans, key=lambda i: _by_price(seen, i)):
        found = judge_orphan(case_of(seen, instance, rule, now)) or Objection(reason=Reason.IDLE)
        decisions.append(_kept(seen, instance, None, found, now))
    return Plan(watchdog=WATCHDOG, at=now, decisions=(*decisions, *_unread(seen)))


def case_of(seen: OrphanObservation, instance: Instance, rule: OrphanPolicy, now: datetime) -> Case:
    """The facts about one orphan for `judge`. It has no node agent that this fleet may trust."""
    return Case(
        instance=instance,
        evidence=seen.evidence.get(instance.id),
        agent=None,
        policy=rule.idle(),
        now=now,
        gpus_expected=seen.gpus_expected.get(instance.machine_type),
        watts_rated=seen.watts_rated.get(instance.machine_type),
        kept_by=seen.kept_by.get(instance.id),
    )


def stop_objection(seen: OrphanObservation, instance: Instance, rule: OrphanPolicy) -> Objection | None:
    """Why an idle orphan that a rule matches must not be stopped; None: it may be."""
    if rule.action is not OrphanAction.STOP:
        return Objection(reason=Reason.MARK_ONLY, detail=f"rule {rule.name}")
    found = stop_obstacle(instance, rule, seen.without_local_disks)
    if found is not None:
        return Objection(reason=Reason.NOT_STOPPABLE, detail=found)
    evidence = seen.evidence.get(instance.id)
    if evidence is None or evidence.engine is None:
        return Objection(reason=Reason.METRICS_MISSING, detail="no engine reports, and a stop needs both sources")
    if evidence.gpu is None or evidence.gpu.active_max is None:
        # plain utilization is judged without the energy counter: an exporter that repeats old values looks idle
        return Objection(reason=Reason.METRICS_MISSING, detail="no gpu_active, and a stop needs it of every GPU")
    return None


def _decide_one(
    seen: OrphanObservation, instance: Instance, rule: OrphanPolicy, now: datetime, checks: Sequence[Check] | None
) -> Decision:
    """The decision about one orphan before budgets."""
    if rule.name in seen.paused_by:
        return _kept(seen, instance, rule, Objection(reason=Reason.PAUSED, detail=seen.paused_by[rule.name]), now)
    since = seen.marked(instance, rule, now)
    objection = judge_orphan(case_of(seen, instance, rule, now), checks)
    if objection is not None:
        kept = _kept(seen, instance, rule, objection, now)
        return replace(kept, action=Action.UNMARK) if since and objection.reason in _UNMARKING else kept
    against = stop_objection(seen, instance, rule)
    quiet = evidence_summary(seen.evidence.get(instance.id))
    if since is None:
        return _decision(seen, instance, rule, Action.MARK, Objection(reason=Reason.IDLE, detail=quiet))
    if against is not None:
        return _kept(seen, instance, rule, against, now)
    if now - since < rule.grace:
        left = (rule.grace - (now - since)).total_seconds()
        waiting = Objection(reason=Reason.MARKED_WAITING, detail=f"{left:.0f} s left; {quiet}")
        return _decision(seen, instance, rule, Action.KEEP, waiting)
    still = Objection(reason=Reason.STILL_IDLE, detail=f"marked {since:%Y-%m-%d %H:%M:%S} UTC; {quiet}")
    return _decision(seen, instance, rule, Action.STOP, still)


class _Remaining:
    """The stops that the budgets still allow in this pass."""

    def __init__(self, seen: OrphanObservation) -> None:
        parts = {
            rule.name: budgets.pool_budget(rule, seen.stopped_this_hour.get(rule.name, 0)) for rule in seen.rules
        }
        self._budgets = budgets.RemainingBudget(seen.budget, parts)

    def take(self, decision: Decision) -> Decision:
        """The decision, or a keep with the reason if the budgets do not allow it."""
        if decision.action is not Action.STOP:
            return decision
        rule = decision.pool or ""
        if (full := self._budgets.objection(rule)) is not None:
            return replace(decision, action=Action.KEEP, reason=full)
        self._budgets.take(rule)
        return decision


def _unless_unaccepted(seen: OrphanObservation, rule: OrphanPolicy, decision: Decision) -> Decision:
    if rule.name not in seen.unaccepted or decision.action in (Action.KEEP, Action.UNMARK):
        return decision
    detail = f"would {decision.action}: {decision.reason.sentence}"
    return replace(decision, action=Action.KEEP, reason=Reason.POLICY_UNSEEN, detail=detail)


def _named_twice(orphans: Sequence[Instance]) -> set[str]:
    """Ids that two machines have: on Google Cloud a name is unique only in its zone."""
    return {key for key, machines in Counter(instance.id for instance in orphans).items() if machines > 1}


def _by_price(seen: OrphanObservation, instance: Instance) -> tuple[bool, float, str]:
    usd = seen.usd_per_hour.get(instance.id)
    return usd is not None, -float(usd or 0), instance.id


def _kept(
    seen: OrphanObservation, instance: Instance, rule: OrphanPolicy | None, why: Objection, now: datetime
) -> Decision:
    """A keep whose detail describes the instance."""
    evidence = seen.evidence.get(instance.id)
    described = "; ".join(part for part in (why.detail, _who(seen, instance, evidence, now)) if part)
    return _decision(seen, instance, rule, Action.KEEP, Objection(reason=why.reason, detail=described))


def _who(seen: OrphanObservation, instance: Instance, evidence: Evidence | None, now: datetime) -> str:
    hours = (now - instance.launched_at).total_seconds() / 3600
    age = f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} h"
    active = seen.active.get(instance.id)
    summary = evidence_summary(evidence) if active is None else f"gpu_active at most {active:.3g}"
    belongs = f", of environment {instance.environment}" if instance.environment else ""
    name = display_name(instance)
    called = f"{name}: " if name and name != instance.id else ""
    return (
        f"{called}{instance.machine_type}, {instance.capacity_type}, {instance.zone}, {age} old{belongs};"
        f" {summary or 'its GPUs are not measured'}"
    )


def _decision(
    seen: OrphanObservation, instance: Instance, rule: OrphanPolicy | None, action: Action, why: Objection
) -> Decision:
    active = seen.active.get(instance.id)
    summary = evidence_summary(seen.evidence.get(instance.id))
    evidence = {"gpu_active": "not reported" if active is None else f"{active:g}"} | (
        {"said": summary} if summary else {}
    )
    return Decision(
        resource=instance.id,
        pool=instance.pool if rule is None else rule.name,
        action=action,
        reason=why.reason,
        detail=why.detail,
        evidence=evidence,
        usd_per_hour=seen.usd_per_hour.get(instance.id),
    )
