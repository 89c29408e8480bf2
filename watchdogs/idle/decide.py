"""Which instances are idle, and what to do about each. Pure.

Two phases: an idle instance is marked first; one that is still idle when its grace is over is ended, if the floor of
its pool and the budgets leave room. Every instance looked at gets one decision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from fleet.model import Instance
from fleet.policies import IdlePolicy
from watchdogs import budgets
from watchdogs.evidence import AgentStatus, Evidence
from watchdogs.idle.judge import Case, Check, Objection, judge, kept_by_tag
from watchdogs.plan import Action, Budget, Decision, Plan, Reason

WATCHDOG: Final = "idle"
DRAIN_REASON: Final = "idle"
"""What the watchdog tells the node agent, and by which it knows its own drain again after a crash."""

_WORK: Final = frozenset({Reason.SERVING, Reason.TOKENS_MOVED, Reason.GPU_ACTIVE, Reason.GPU_ACTIVE_WITHOUT_WORK})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """What the watchdog must know of a pool."""

    name: str
    policy: IdlePolicy | None
    """None: the pool has no idle watchdog."""
    floor: int
    target: int
    paused_by: str | None = None
    target_held_by: str | None = None
    """Who holds the target, which an end would lower: none is begun."""
    policy_seen: bool = True
    """Whether a dry run of this very policy was seen."""
    ended_this_hour: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All that one pass looked at."""

    instances: Sequence[Instance]
    evidence: Mapping[str, Evidence]
    agents: Mapping[str, AgentStatus]
    pools: Mapping[str, PoolView]
    budget: Budget
    """Over all pools."""
    gpus_expected: Mapping[str, int] = field(default_factory=dict[str, int])
    """By machine type."""
    watts_rated: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of one GPU, by machine type."""
    kept_by: Mapping[str, str] = field(default_factory=dict[str, str])
    """By instance: who asked, through a brake."""
    rollouts: frozenset[str] = frozenset()
    """Groups being refreshed."""
    usd_per_hour: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    """By instance; absent: unknown."""
    patience: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    """By instance: idle time after which a stop is worth its price (`patience`); absent: window and grace decide."""
    begun: frozenset[str] = frozenset()
    """Instances whose end an earlier pass began: their share of the target may be gone already."""
    leaving: frozenset[str] = frozenset()
    """Of those that we drained: what its group is ending already, though it may live for minutes yet."""


def decide(observed: Observed, now: datetime, checks: Sequence[Check] | None = None) -> Plan:
    """One decision for every instance."""
    room = _Room(observed)
    wishes = [_wish(instance, observed, now, checks) for instance in observed.instances]
    # the dearest first, so that a short budget saves the most; then the longest idle
    order = sorted(
        range(len(wishes)),
        key=lambda n: (
            -observed.usd_per_hour.get(wishes[n].resource, Decimal(0)),
            observed.instances[n].idle_since or now,
            wishes[n].resource,
        ),
    )
    for n in order:
        if wishes[n].action is Action.END:
            wishes[n] = room.take(wishes[n])
    return Plan(watchdog=WATCHDOG, at=now, decisions=tuple(wishes), budget=observed.budget)


def case_of(instance: Instance, observed: Observed, policy: IdlePolicy, now: datetime) -> Case:
    """What is known of one instance, as `judge` wants it."""
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


def _wish(instance: Instance, observed: Observed, now: datetime, checks: Sequence[Check] | None) -> Decision:
    """What the watchdog would like, before floor and budget."""
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
    if instance.id in observed.leaving:
        going = Objection(reason=Reason.DRAINING, detail="drained; its group is ending it")
        return _decision(instance, Action.KEEP, going, evidence, None)
    if instance.alive and is_our_drain(observed.agents.get(instance.id)):
        said = observed.kept_by.get(instance.id) or kept_by_tag(instance, now)
        if said is not None:
            held = Objection(reason=Reason.KEPT_BY_PEOPLE, detail=f"{said}; it drains and serves nothing")
            return _decision(instance, Action.KEEP, held, evidence, None)
        # begun by a pass of ours that did not see it through; there is no way back from a drain
        going = Objection(reason=Reason.STILL_IDLE, detail="its drain goes on")
        return _seen(pool, _decision(instance, Action.END, going, evidence, usd))
    objection = judge(case_of(instance, observed, pool.policy, now), checks)
    if objection is not None:
        action = Action.UNMARK if _loses_its_mark(instance, objection.reason) else Action.KEEP
        shown = Reason.WORK_IS_BACK if action is Action.UNMARK and objection.reason in _WORK else objection.reason
        return _seen(
            pool,
            _decision(instance, action, Objection(reason=shown, detail=objection.detail), evidence, None),
        )
    return _seen(pool, _idle(instance, grace_of(instance, observed, pool.policy), evidence, usd, now))


def grace_of(instance: Instance, observed: Observed, policy: IdlePolicy) -> timedelta:
    """From mark to act: the policy's, or longer where the instance's own past says that work will soon be back."""
    patience = observed.patience.get(instance.id)
    return policy.grace if patience is None else max(policy.grace, patience - policy.window)


def _idle(
    instance: Instance, grace: timedelta, evidence: Evidence | None, usd: Decimal | None, now: datetime
) -> Decision:
    since = instance.idle_since
    if since is None:
        objection = Objection(reason=Reason.IDLE, detail=_summary(evidence))
        return _decision(instance, Action.MARK, objection, evidence, usd)
    if now - since < grace:
        left = grace - (now - since)
        objection = Objection(
            reason=Reason.MARKED_WAITING, detail=f"{left.total_seconds():.0f} s left; {_summary(evidence)}"
        )
        return _decision(instance, Action.KEEP, objection, evidence, usd)
    objection = Objection(reason=Reason.STILL_IDLE, detail=f"marked {since:%H:%M:%S} UTC; {_summary(evidence)}")
    return _decision(instance, Action.END, objection, evidence, usd)


def _seen(pool: PoolView, wish: Decision) -> Decision:
    if pool.policy_seen or wish.action is Action.KEEP:
        return wish
    return _kept(wish, Reason.POLICY_UNSEEN, f"would {wish.action}: {wish.reason}")


def is_our_drain(agent: AgentStatus | None) -> bool:
    """Whether the instance drains because this watchdog asked."""
    return (
        agent is not None
        and (agent.draining or agent.drained)
        and (agent.reason or "").startswith(f"{DRAIN_REASON}:")
    )


def _loses_its_mark(instance: Instance, reason: Reason) -> bool:
    """Work, people and restarts take the mark away: the next one starts a new grace with a new message."""
    return instance.idle_since is not None and (
        reason in _WORK or reason in (Reason.KEPT_BY_PEOPLE, Reason.WARMING_UP, Reason.IN_ROLLOUT, Reason.PREPAID)
    )


class _Room:
    """What floors and budgets still allow in this pass."""

    def __init__(self, observed: Observed) -> None:
        self._pools = observed.pools
        self._begun = observed.begun
        self._agents = observed.agents
        parts = {
            pool.name: budgets.of(pool.policy, pool.ended_this_hour)
            for pool in observed.pools.values()
            if pool.policy is not None
        }
        self._budgets = budgets.Room(observed.budget, parts)
        self._targets = {pool.name: pool.target for pool in observed.pools.values()}
        self._healthy: dict[str, int] = {}
        for instance in observed.instances:
            if instance.pool is not None and counts_as_healthy(instance, observed):
                self._healthy[instance.pool] = self._healthy.get(instance.pool, 0) + 1

    def take(self, wish: Decision) -> Decision:
        """The wish, or why there is no room for it."""
        pool = wish.pool or ""
        floor = self._pools[pool].floor
        if wish.resource in self._begun:
            return wish  # the room was taken by the pass that began it
        # what drains serves nothing any more, so that no floor is kept by keeping it
        drains = is_our_drain(self._agents.get(wish.resource))
        if not drains and (self._targets[pool] <= floor or self._healthy.get(pool, 0) <= floor):
            detail = f"floor {floor}, target {self._targets[pool]}, healthy {self._healthy.get(pool, 0)}"
            return _kept(wish, Reason.POOL_FLOOR, detail)
        if (full := self._budgets.objection(pool)) is not None:
            return _kept(wish, full, wish.detail)
        self._budgets.take(pool)
        self._targets[pool] -= 1
        self._healthy[pool] = self._healthy.get(pool, 0) - 1
        return wish


def in_service(agent: AgentStatus | None) -> bool:
    """Whether an agent says that its instance serves, and will go on to."""
    return agent is not None and agent.ready and not agent.draining and not agent.drained


def is_heard(instance: Instance, observed: Observed) -> bool:
    """Whether it lives, and its engine reports now."""
    evidence = observed.evidence.get(instance.id)
    engine = evidence.engine if evidence is not None else None
    return instance.alive and evidence is not None and engine is not None and evidence.is_new(engine)


def counts_as_healthy(instance: Instance, observed: Observed) -> bool:
    """Whether the pool may lean on it when another one goes: alive, ready as its agent says, its engine heard of now.

    An agent that was not asked, or does not answer, promises nothing.
    """
    if instance.id in observed.leaving or instance.id in observed.begun:
        # what was begun goes for certain, and its pass may have died before it lowered the target
        return False
    agent = observed.agents.get(instance.id)
    if is_our_drain(agent):
        # one that we drain still counts, since it is the one that is to go
        return instance.alive
    return in_service(agent) and is_heard(instance, observed)


def _kept(wish: Decision, reason: Reason, detail: str) -> Decision:
    return Decision(
        resource=wish.resource,
        pool=wish.pool,
        action=Action.KEEP,
        reason=reason,
        detail=detail,
        evidence=wish.evidence,
    )


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
