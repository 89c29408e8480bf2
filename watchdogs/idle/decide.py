"""Decides which instances are idle, and what to do about each. Pure.

Two phases: an idle instance is marked first. If it is still idle when its grace is over, it is ended, as far as the
floor of its pool and the budgets allow. Every observed instance gets one decision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import IntEnum, auto
from typing import Final

from gpufleet.domain.decisions import Action, ChangeBudget, Decision, Objection, Plan, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus, Evidence, is_termination_left_to_cloud
from gpufleet.domain.model import Instance
from gpufleet.domain.policies import IdlePolicy
from watchdogs import budgets
from watchdogs.attempts import OpenAttempts, is_stuck, tried_last
from watchdogs.brakes import kept_by_tag
from watchdogs.idle.checks import Case, Check, judge
from watchdogs.idle.timer import Timer
from watchdogs.scale.view import Need

WATCHDOG: Final = "idle"

_WORK: Final = frozenset({Reason.SERVING, Reason.TOKENS_MOVED, Reason.GPU_ACTIVE, Reason.GPU_ACTIVE_WITHOUT_WORK})

_IDLE_REASONS: Final = frozenset(
    {Reason.IDLE, Reason.MARKED_WAITING, Reason.STILL_IDLE, Reason.DRAINING, Reason.PREPAID, Reason.OUTSIDE_POOLS}
)
"""Reasons of instances that process no requests, or that are kept regardless of the target."""

LEFT_TO_ITS_CLOUD: Final = Objection(reason=Reason.PREEMPTED, detail="under notice; left to its cloud")
UNSCALED: Final = Need(replicas=0, reason=Reason.NO_WATCHDOG, detail="it has no scale watchdog")
"""The need of a pool without a scale watchdog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePoolView:
    """The facts about a pool that the idle watchdog uses."""

    name: str
    policy: IdlePolicy | None
    """None: the pool has no idle watchdog."""
    floor: int
    target: int
    needed: Need | None = None
    """What its scale watchdog would ask for again; None: unknown, so no instance is known to be surplus."""
    spare: int = 0
    """Instances in addition to the need."""
    paused_by: str | None = None
    target_held_by: str | None = None
    """Who holds the target. An end would lower it, so no end begins."""
    policy_seen: bool = True
    """Whether a dry run of exactly this policy was shown."""
    ended_this_hour: int = 0
    left_today: int | None = None
    """Ends still allowed today; None: no limit."""
    cold_start: timedelta = timedelta(0)
    """Time of its instances from launch to ready: part of the cost of an end."""

    def end_objection(self, target: int, healthy: int, floor: int) -> Objection | None:
        """Why no healthy instance of the pool may be ended; None: one may."""
        there = f"target {target}, healthy {healthy}"
        if target <= floor or healthy <= floor:
            return Objection(reason=Reason.POOL_FLOOR, detail=f"floor {floor}, {there}")
        if self.needed is None:
            return Objection(reason=Reason.METRICS_MISSING, detail="the need of its scale watchdog is unknown")
        if target <= self.needed.replicas or healthy <= self.with_spare:
            spare = f" and {self.spare} spare" if self.spare else ""
            detail = f"scale needs {self.needed.replicas}{spare} ({self.needed.detail}), {there}"
            return Objection(reason=Reason.NEEDED_SOON, detail=detail)
        return None

    @property
    def with_spare(self) -> int:
        """Need and spare, in instances. 0 at a need of 0, and when the need is unknown."""
        replicas = 0 if self.needed is None else self.needed.replicas
        return replicas + self.spare if replicas > 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleObservation:
    """What one pass observed."""

    instances: Sequence[Instance]
    evidence: Mapping[str, Evidence]
    agents: Mapping[str, AgentStatus]
    pools: Mapping[str, IdlePoolView]
    budget: ChangeBudget
    """Budget over all pools."""
    gpus_expected: Mapping[str, int] = field(default_factory=dict[str, int])
    """By machine type."""
    watts_rated: Mapping[str, float] = field(default_factory=dict[str, float])
    """Rated power of one GPU, by machine type."""
    kept_by: Mapping[str, str] = field(default_factory=dict[str, str])
    """By instance: who asked to keep it, by a brake."""
    rollouts: frozenset[str] = frozenset()
    """Groups being refreshed."""
    usd_per_hour: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    """By instance; absent: unknown."""
    begun: frozenset[str] = frozenset()
    """Instances whose end an earlier pass began: the target may have been lowered for them already."""
    leaving: frozenset[str] = frozenset()
    """Instances drained by this watchdog that their group is ending already. They may run for minutes."""
    attempts: Mapping[str, OpenAttempts] = field(default_factory=dict[str, OpenAttempts])
    """By instance: ends that failed recently."""
    uncertain: Mapping[str, Objection] = field(default_factory=dict[str, Objection])
    """By pool: why nothing is decided about it: the list of instances is incomplete."""
    unreadable: Mapping[str, Objection] = field(default_factory=dict[str, Objection])
    """By group: why nothing is decided about it: it could not be read."""


def decide(observed: IdleObservation, now: datetime, checks: Sequence[Check] | None = None) -> Plan:
    """One decision for every instance."""
    decisions = [_decide_one(instance, observed, now, checks) for instance in observed.instances]
    if any(decision.action is Action.END for decision in decisions):
        _share_out(decisions, observed, now)
    return Plan(watchdog=WATCHDOG, at=now, decisions=tuple(decisions), budget=observed.budget)


def _share_out(decisions: list[Decision], observed: IdleObservation, now: datetime) -> None:
    """Replace, in place, ends that floors or budgets do not allow by keeps."""
    remaining = _Remaining(observed, decisions)
    turns = {
        n: _turn(decision, observed, now) for n, decision in enumerate(decisions) if decision.action is Action.END
    }
    # within a turn, instances without failed attempts come first: one that can never be ended would use up the
    # budget. Then the most expensive, so that a small budget saves the most, then the longest idle
    order = sorted(
        turns,
        key=lambda n: (
            turns[n],
            tried_last(observed.attempts, decisions[n].resource),
            -observed.usd_per_hour.get(decisions[n].resource, Decimal(0)),
            observed.instances[n].idle_since or now,
            decisions[n].resource,
        ),
    )
    for decision in decisions:
        if decision.resource in observed.begun:
            remaining.count(decision)
    for n in order:
        decisions[n] = remaining.take(decisions[n], turns[n])
    for n in (n for n in order if turns[n] is _Turn.STUCK and decisions[n].action is Action.END):
        decisions[n] = remaining.within_run_budget(decisions[n])


class _Turn(IntEnum):
    """The order in which ends use the budgets."""

    BEGUN = auto()
    """Its end was recorded, and may have happened."""
    DRAINS = auto()
    """It drains: it serves nothing more, and this cannot be undone."""
    STUCK = auto()
    """It has drained for longer than a drain takes. It uses the budgets of the hour and the day, but not that of
    the pass, so that it blocks no other instance."""
    NEW = auto()


def _turn(decision: Decision, observed: IdleObservation, now: datetime) -> _Turn:
    if decision.resource in observed.begun:
        return _Turn.BEGUN
    if not is_our_drain(observed.agents.get(decision.resource)):
        return _Turn.NEW
    return _Turn.STUCK if is_stuck(observed.attempts, decision.resource, now) else _Turn.DRAINS


def case_of(instance: Instance, observed: IdleObservation, policy: IdlePolicy, now: datetime) -> Case:
    """The facts about one instance for `judge`."""
    pool = observed.pools.get(instance.pool or "")
    return Case(
        instance=instance,
        evidence=observed.evidence.get(instance.id),
        agent=observed.agents.get(instance.id),
        policy=policy,
        now=now,
        gpus_expected=observed.gpus_expected.get(instance.machine_type),
        watts_rated=observed.watts_rated.get(instance.machine_type),
        kept_by=observed.kept_by.get(instance.id) or (pool.target_held_by if pool is not None else None),
        in_rollout=instance.group in observed.rollouts,
    )


def _decide_one(
    instance: Instance, observed: IdleObservation, now: datetime, checks: Sequence[Check] | None
) -> Decision:
    """The decision about one instance before floors and budgets."""
    pool = observed.pools.get(instance.pool or "")
    usd = observed.usd_per_hour.get(instance.id)
    if pool is None or pool.policy is None:
        reason = Reason.OUTSIDE_POOLS if pool is None else Reason.NO_WATCHDOG
        return _decision(instance, Action.KEEP, Objection(reason=reason), None, usd if pool is None else None)
    evidence = observed.evidence.get(instance.id)
    if pool.paused_by is not None:
        return _decision(
            instance, Action.KEEP, Objection(reason=Reason.PAUSED, detail=pool.paused_by), evidence, None
        )
    unknown = observed.uncertain.get(pool.name) or observed.unreadable.get(instance.group or "")
    if unknown is not None:
        return _decision(instance, Action.KEEP, unknown, evidence, None)
    if instance.id in observed.leaving:
        going = Objection(reason=Reason.DRAINING, detail="drained; its group is ending it")
        return _decision(instance, Action.KEEP, going, evidence, None)
    if instance.alive and is_our_drain(observed.agents.get(instance.id)):
        if is_termination_left_to_cloud(instance, observed.agents.get(instance.id), now):
            return _decision(instance, Action.KEEP, LEFT_TO_ITS_CLOUD, evidence, None)
        keeper = observed.kept_by.get(instance.id) or kept_by_tag(instance, now)
        if keeper is not None:
            held = Objection(reason=Reason.KEPT_BY_PEOPLE, detail=f"{keeper}; it drains and serves nothing")
            return _decision(instance, Action.KEEP, held, evidence, None)
        # an earlier pass began the drain and did not complete the end; a drain cannot be undone
        going = Objection(reason=Reason.STILL_IDLE, detail="its drain continues")
        return _seen(pool, _decision(instance, Action.END, going, evidence, usd))
    objection = judge(case_of(instance, observed, pool.policy, now), checks)
    if objection is None and instance.group is None:
        alone = Objection(reason=Reason.NOT_STOPPABLE, detail="it is in no group that could end it")
        return _decision(instance, Action.KEEP, alone, evidence, usd)
    if objection is not None:
        action = Action.UNMARK if _loses_its_mark(instance, objection.reason) else Action.KEEP
        shown = Reason.WORK_IS_BACK if action is Action.UNMARK and objection.reason in _WORK else objection.reason
        return _seen(
            pool,
            _decision(
                instance,
                action,
                Objection(reason=shown, detail=objection.detail),
                evidence,
                usd if objection.reason is Reason.GPU_ACTIVE_WITHOUT_WORK else None,
            ),
        )
    timer = Timer(policy=pool.policy, cold_start=pool.cold_start)
    found = _idle(instance, timer, evidence, usd, now)
    return _seen(pool, replace(found, evidence={**timer.numbers(), **found.evidence}))


def _idle(
    instance: Instance, timer: Timer, evidence: Evidence | None, usd: Decimal | None, now: datetime
) -> Decision:
    since = instance.idle_since
    if since is None or since > now + timer.grace:  # a wrong clock, or a manual edit
        objection = Objection(reason=Reason.IDLE, detail=f"{_summary(evidence)}; {timer}")
        return _decision(instance, Action.MARK, objection, evidence, usd)
    if now - since < timer.grace:
        left = timer.grace - (now - since)
        detail = f"{left.total_seconds():.0f} s left; {_summary(evidence)}; {timer}"
        objection = Objection(reason=Reason.MARKED_WAITING, detail=detail)
        return _decision(instance, Action.KEEP, objection, evidence, usd)
    objection = Objection(reason=Reason.STILL_IDLE, detail=f"marked {since:%H:%M:%S} UTC; {_summary(evidence)}")
    return _decision(instance, Action.END, objection, evidence, usd)


def _seen(pool: IdlePoolView, decision: Decision) -> Decision:
    if pool.policy_seen or decision.action in (Action.KEEP, Action.UNMARK):  # an unmark ends nothing
        return decision
    return decision.kept(Reason.POLICY_UNSEEN, f"would {decision.action}: {decision.reason.sentence}")


def _drains(agent: AgentStatus | None) -> bool:
    return agent is not None and (agent.draining or agent.drained)


def is_our_drain(agent: AgentStatus | None) -> bool:
    """Whether the instance drains because this watchdog asked."""
    return agent is not None and _drains(agent) and agent.drain_by is DrainOwner.IDLE


def _loses_its_mark(instance: Instance, reason: Reason) -> bool:
    """Work, people and restarts remove the mark: the next mark starts a new grace with a new message."""
    return instance.idle_since is not None and (
        reason in _WORK or reason in (Reason.KEPT_BY_PEOPLE, Reason.WARMING_UP, Reason.IN_ROLLOUT, Reason.PREPAID)
    )


class _Remaining:
    """The ends that floors and budgets still allow in this pass."""

    def __init__(self, observed: IdleObservation, decisions: Sequence[Decision]) -> None:
        self._pools = observed.pools
        # at a target of 0 the spare may be ended, too: if one may be working, one is kept
        self._at_work = {
            decision.pool
            for decision, instance in zip(decisions, observed.instances, strict=True)
            if instance.alive
            and decision.reason not in _IDLE_REASONS
            and not _drains(observed.agents.get(instance.id))
        }
        parts = {
            pool.name: budgets.pool_budget(pool.policy, pool.ended_this_hour, pool.left_today)
            for pool in observed.pools.values()
            if pool.policy is not None
        }
        self._budgets = budgets.RemainingBudget(observed.budget, parts)
        self._targets = {pool.name: pool.target for pool in observed.pools.values()}
        self._healthy: dict[str, int] = {}
        for instance in observed.instances:
            if instance.pool is not None and counts_as_healthy(instance, observed):
                self._healthy[instance.pool] = self._healthy.get(instance.pool, 0) + 1

    def count(self, decision: Decision) -> None:
        """Use the budgets of the hour and the day for an instance whose end is recorded already."""
        pool = self._pools.get(decision.pool or "")
        if pool is not None and pool.policy is not None:
            self._budgets.take(pool.name, runs=False)

    def take(self, decision: Decision, turn: _Turn) -> Decision:
        """The decision, or a keep with the reason if floors or budgets do not allow it."""
        pool = decision.pool or ""
        if turn is _Turn.BEGUN:
            return decision  # it is counted already, and its target may have been lowered
        floor, healthy = max(self._pools[pool].floor, pool in self._at_work), self._healthy.get(pool, 0)
        # an instance that drains serves nothing: keeping it does not help the floor
        if (
            turn is _Turn.NEW
            and (why := self._pools[pool].end_objection(self._targets[pool], healthy, floor)) is not None
        ):
            return decision.kept(why.reason, why.detail)
        full = self._budgets.objection(pool, runs=turn is not _Turn.STUCK)
        if full is None or turn is not _Turn.NEW:  # a drain counts, whether or not its instance may be ended now
            self._budgets.take(pool, runs=full is None and turn is not _Turn.STUCK)
            self._targets[pool] -= 1
        if full is not None:
            return decision.kept(full, decision.detail)
        if turn is _Turn.NEW:
            self._healthy[pool] = healthy - 1
        return decision

    def within_run_budget(self, decision: Decision) -> Decision:
        """The decision if the budget of the run has something left after all others; otherwise a keep."""
        free = self._budgets.take_run(decision.pool or "")
        return decision if free else decision.kept(Reason.RUN_BUDGET, decision.detail)


def in_service(agent: AgentStatus | None) -> bool:
    """Whether an agent reports that its instance serves and does not drain."""
    return agent is not None and agent.ready and not agent.draining and not agent.drained


def is_reporting(instance: Instance, observed: IdleObservation) -> bool:
    """Whether the instance is alive and its engine reports now."""
    evidence = observed.evidence.get(instance.id)
    engine = evidence.engine if evidence is not None else None
    return instance.alive and evidence is not None and engine is not None and evidence.is_new(engine)


def counts_as_healthy(instance: Instance, observed: IdleObservation) -> bool:
    """Whether the pool may count on it when another one ends: alive, ready according to its agent, and with an
    engine that reports.

    It does not count when its agent was not asked or does not answer.
    """
    if instance.id in observed.leaving or instance.id in observed.begun:
        # an end that was begun is certain; its pass may have been killed before it lowered the target
        return False
    return in_service(observed.agents.get(instance.id)) and is_reporting(instance, observed)


def _decision(
    instance: Instance, action: Action, why: Objection, evidence: Evidence | None, usd: Decimal | None
) -> Decision:
    return Decision(
        resource=instance.id,
        pool=instance.pool,
        action=action,
        reason=why.reason,
        detail=why.detail,
        evidence=_numbers(evidence),
        usd_per_hour=usd,
    )


def _numbers(evidence: Evidence | None) -> dict[str, str]:
    if evidence is None:
        return {}
    numbers = {"window": f"{evidence.window.total_seconds():g} s"}
    for source, side in (("engine", evidence.engine), ("gpu", evidence.gpu)):
        if side is None:
            numbers[source] = "not reported"
            continue
        for name in side.__slots__:
            value = getattr(side, name)
            numbers[f"{source}.{name}"] = "not reported" if value is None else str(value)
    return numbers


def _summary(evidence: Evidence | None) -> str:
    if evidence is None or evidence.engine is None or evidence.gpu is None:
        return ""
    gpu = evidence.gpu.active_max
    return (
        f"no request and no token for {evidence.window.total_seconds():.0f} s, "
        f"gpu_active at most {gpu if gpu is None else round(gpu, 4)}"
    )
