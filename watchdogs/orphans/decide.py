"""What becomes of GPU instances outside every pool. Pure.

Each is listed with its price. One that a rule names is marked when it has been idle over the rule's whole window; a
rule that stops looks again after its grace, wants both sources of evidence then, and leaves alone what cannot be
stopped without harm. Missing evidence keeps, here as everywhere.
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
from watchdogs.orphans.checks import judge_orphan, said_of
from watchdogs.orphans.view import OrphanObservation, name_of, obstacle

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
"""What takes a mark away: the next one starts a new grace, with a new message."""


def decide(seen: OrphanObservation, now: datetime, checks: Sequence[Check] | None = None) -> Plan:
    """One decision for every orphan, the dearest first; an unknown price comes before all: it may be the highest.

    One that cannot be read is left alone, and with it whoever has its name.
    """
    room = _Remaining(seen)
    twice = _named_twice(seen.orphans) | seen.unread.keys()
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
            decisions.append(_unless_unseen(seen, rule, _decide_one(seen, instance, rule, now, checks)))
    # what did not fail before has its turn first, or one that never can be stopped would take all the room
    for n in sorted(range(len(decisions)), key=lambda n: tried_last(seen.attempts, decisions[n].resource)):
        decisions[n] = room.take(decisions[n])
    decisions += _unread(seen)
    return Plan(watchdog=WATCHDOG, at=now, decisions=tuple(decisions), budget=seen.budget)


def _unread(seen: OrphanObservation) -> list[Decision]:
    """Those of which nothing is known but that they are there."""
    named = {instance.id for instance in seen.orphans}
    return [
        Decision(resource=key, pool=None, action=Action.KEEP, reason=Reason.NOT_LISTED, detail=why)
        for key, why in seen.unread.items()
        if key not in named
    ]


def _stray(seen: OrphanObservation, instance: Instance) -> str:
    """What an instance of this environment is doing outside its pools, as far as its tags say it."""
    if instance.environment != seen.environment or instance.group is None:
        return ""
    return f"its group {instance.group} is in no pool of the fleet document: was a `pulumi up` cut off?"


def look(seen: OrphanObservation, rule: OrphanPolicy, now: datetime) -> Plan:
    """What each would be found to be, whoever made it: a plan that keeps all of them."""
    decisions: list[Decision] = []
    for instance in sorted(seen.orphans, key=lambda i: _by_price(seen, i)):
        found = judge_orphan(case_of(seen, instance, rule, now)) or Objection(reason=Reason.IDLE)
        decisions.append(_kept(seen, instance, None, found, now))
    return Plan(watchdog=WATCHDOG, at=now, decisions=(*decisions, *_unread(seen)))


def case_of(seen: OrphanObservation, instance: Instance, rule: OrphanPolicy, now: datetime) -> Case:
    """What is known of one orphan, as `judge` wants it. It has no node agent that this fleet may trust."""
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
    """What stands against a stop of an idle orphan that a rule names; None: nothing."""
    if rule.action is not OrphanAction.STOP:
        return Objection(reason=Reason.MARK_ONLY, detail=f"rule {rule.name}")
    found = obstacle(instance, rule, seen.without_local_disks)
    if found is not None:
        return Objection(reason=Reason.NOT_STOPPABLE, detail=found)
    evidence = seen.evidence.get(instance.id)
    if evidence is None or evidence.engine is None:
        return Objection(reason=Reason.METRICS_MISSING, detail="no engine was heard, and a stop needs both sources")
    if evidence.gpu is None or evidence.gpu.active_max is None:
        # plain utilization is judged without the energy counter: an exporter that repeats itself looks at rest
        return Objection(reason=Reason.METRICS_MISSING, detail="no gpu_active, and a stop needs it of every GPU")
    return None


def _decide_one(
    seen: OrphanObservation, instance: Instance, rule: OrphanPolicy, now: datetime, checks: Sequence[Check] | None
) -> Decision:
    """What the rule would like, before budgets."""
    if rule.name in seen.paused_by:
        return _kept(seen, instance, rule, Objection(reason=Reason.PAUSED, detail=seen.paused_by[rule.name]), now)
    since = seen.marked(instance, rule, now)
    objection = judge_orphan(case_of(seen, instance, rule, now), checks)
    if objection is not None:
        kept = _kept(seen, instance, rule, objection, now)
        return replace(kept, action=Action.UNMARK) if since and objection.reason in _UNMARKING else kept
    against = stop_objection(seen, instance, rule)
    quiet = said_of(seen.evidence.get(instance.id))
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
    """What budgets still allow in this pass."""

    def __init__(self, seen: OrphanObservation) -> None:
        parts = {rule.name: budgets.of(rule, seen.stopped_this_hour.get(rule.name, 0)) for rule in seen.rules}
        self._budgets = budgets.RemainingBudget(seen.budget, parts)

    def take(self, decision: Decision) -> Decision:
        """The decision, or why there is no room for it."""
        if decision.action is not Action.STOP:
            return decision
        rule = decision.pool or ""
        if (full := self._budgets.objection(rule)) is not None:
            return replace(decision, action=Action.KEEP, reason=full)
        self._budgets.take(rule)
        return decision


def _unless_unseen(seen: OrphanObservation, rule: OrphanPolicy, decision: Decision) -> Decision:
    if rule.name not in seen.unseen or decision.action in (Action.KEEP, Action.UNMARK):
        return decision
    detail = f"would {decision.action}: {decision.reason.sentence}"
    return replace(decision, action=Action.KEEP, reason=Reason.POLICY_UNSEEN, detail=detail)


def _named_twice(orphans: Sequence[Instance]) -> set[str]:
    """Ids that two machines have: on Google Cloud a name is one zone's own."""
    return {key for key, machines in Counter(instance.id for instance in orphans).items() if machines > 1}


def _by_price(seen: OrphanObservation, instance: Instance) -> tuple[bool, float, str]:
    usd = seen.usd_per_hour.get(instance.id)
    return usd is not None, -float(usd or 0), instance.id


def _kept(
    seen: OrphanObservation, instance: Instance, rule: OrphanPolicy | None, why: Objection, now: datetime
) -> Decision:
    """Left alone; the line says who it is."""
    evidence = seen.evidence.get(instance.id)
    described = "; ".join(part for part in (why.detail, _who(seen, instance, evidence, now)) if part)
    return _decision(seen, instance, rule, Action.KEEP, Objection(reason=why.reason, detail=described))


def _who(seen: OrphanObservation, instance: Instance, evidence: Evidence | None, now: datetime) -> str:
    hours = (now - instance.launched_at).total_seconds() / 3600
    age = f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} h"
    active = seen.active.get(instance.id)
    said = said_of(evidence) if active is None else f"gpu_active at most {active:.3g}"
    belongs = f", of environment {instance.environment}" if instance.environment else ""
    name = name_of(instance)
    called = f"{name}: " if name and name != instance.id else ""
    return (
        f"{called}{instance.machine_type}, {instance.capacity_type}, {instance.zone}, {age} old{belongs};"
        f" {said or 'its GPUs are not measured'}"
    )


def _decision(
    seen: OrphanObservation, instance: Instance, rule: OrphanPolicy | None, action: Action, why: Objection
) -> Decision:
    active = seen.active.get(instance.id)
    said = said_of(seen.evidence.get(instance.id))
    evidence = {"gpu_active": "not reported" if active is None else f"{active:g}"} | ({"said": said} if said else {})
    return Decision(
        resource=instance.id,
        pool=instance.pool if rule is None else rule.name,
        action=action,
        reason=why.reason,
        detail=why.detail,
        evidence=evidence,
        usd_per_hour=seen.usd_per_hour.get(instance.id),
    )
