"""Carries out the plan of the idle watchdog. It reads the instance again before each step that cannot be undone.

Steps of one end, each idempotent: drain requested → drained → both sources scraped since → target lowered (once per
instance) → ended through its group. If the pass is killed between two steps, the next pass finds the drain of this
watchdog and continues.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError
from gpufleet.domain.decisions import Action, Decision, Objection, Outcome, OutcomeKind, Plan, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import STALE_AFTER, Evidence, is_free_if_preempted, is_termination_left_to_cloud
from gpufleet.domain.model import Instance
from gpufleet.settings.document import FleetDocument
from watchdogs import signals
from watchdogs.draining import PendingDrain, is_terminated, leaving
from watchdogs.execute import ExecutionRules, Executor
from watchdogs.idle import final_check, messages
from watchdogs.idle.checks import judge
from watchdogs.idle.decide import (
    LEFT_TO_ITS_CLOUD,
    WATCHDOG,
    IdleObservation,
    case_of,
    counts_as_healthy,
    in_service,
    is_our_drain,
)
from watchdogs.idle.final_check import DrainConfirmed, DrainUnconfirmed, FinalChecks
from watchdogs.idle.timer import Timer
from watchdogs.ports import Ports

LONGEST_REQUEST: Final = timedelta(hours=1)
"""How long an agent lets a request finish that arrived at the moment of the drain. Passes continue meanwhile."""
_MARKED: Final = "marked"
"""Evidence key: the mark that is to be removed."""
EvidenceOf = Callable[[Instance, timedelta, datetime], Evidence | None]
"""Returns the evidence of an instance over the window that ends now."""


def _failure(decision: Decision, error: str, _: datetime) -> tuple[str, str]:
    return f"failed:{decision.resource}:{decision.action}", messages.failed(decision, error)


RULES: Final = ExecutionRules(watchdog=WATCHDOG, tag_keeps=True, failure=_failure)


class IdleActor:
    """Acts on the plan of one pass."""

    def __init__(
        self,
        document: FleetDocument,
        ports: Ports,
        executor: Executor,
        observed: IdleObservation,
        evidence_of: EvidenceOf,
    ) -> None:
        self._document = document
        self._ports = ports
        self._executor = executor
        self._observed = observed
        self._evidence_of = evidence_of
        self._instances = {instance.id: instance for instance in observed.instances}
        self._drained: set[str] = set()
        """Instances drained by this pass."""

    def recover(self, decision: Decision) -> None:
        """Record the outcome of an action that a killed pass began, if it is complete; others continue through the
        plan.
        """
        if decision.action is not Action.END:
            self._recover_mark(decision)
        elif is_terminated(self._ports, self._document, self._ports.inventory.instance(decision.resource)):
            self._executor.notify(f"ended:{decision.resource}", messages.ended(decision, None), decision)
            self._executor.record_done(decision, "ended by an earlier pass that was killed before it recorded it")

    def _recover_mark(self, decision: Decision) -> None:
        """Resolve a mark or its removal by the tag of the instance."""
        instance = self._instances.get(decision.resource)
        marked = None if instance is None else instance.idle_since is not None
        if marked is (decision.action is Action.MARK):
            if decision.action is Action.UNMARK:
                self._notify_unmark(tags.read_time(decision.evidence.get(_MARKED)), decision)
            self._executor.record_done(decision, "written by an earlier pass that was killed before it recorded it")
        else:
            self._executor.record_no_longer_true(decision, "begun by an earlier pass; judged again")

    def act(self, plan: Plan) -> None:
        """Carry out each acting decision and record its outcome."""
        self._unmark([d for d in plan.acting if d.action is Action.UNMARK])
        self._mark([d for d in plan.acting if d.action is Action.MARK])
        self._remind(plan)
        begun = [self._executor.attempt(d, self._begin) for d in plan.acting if d.action is Action.END]
        self._finish([drain for drain in begun if not isinstance(drain, Outcome)])

    # marks

    def _mark(self, decisions: Sequence[Decision]) -> None:
        now = self._ports.clock.now()
        write = partial(self._ports.inventory.tag, values={tags.IDLE_SINCE: tags.write_time(now)})
        self._executor.write(decisions, write, partial(self._notify_mark, since=now), intent=self._with_mark)

    def _unmark(self, decisions: Sequence[Decision]) -> None:
        write = partial(self._ports.inventory.untag, keys=[tags.IDLE_SINCE])

        def notify(decision: Decision) -> None:
            self._notify_unmark(self._instances[decision.resource].idle_since, decision)

        self._executor.write(decisions, write, notify, intent=self._with_mark)

    def _with_mark(self, decision: Decision) -> Decision:
        """The decision with the current mark as evidence: it cannot be read once the tag is removed."""
        mark = self._instances[decision.resource].tags.get(tags.IDLE_SINCE, "")
        return replace(decision, evidence={**decision.evidence, _MARKED: mark})

    def _remind(self, plan: Plan) -> None:
        """Send the message of each waiting mark, once per key: a pass may be killed between mark and message."""
        for decision in plan.decisions:
            since = self._instances[decision.resource].idle_since
            if decision.reason is Reason.MARKED_WAITING and since is not None:
                self._notify_mark(decision, since)

    def _notify_mark(self, decision: Decision, since: datetime) -> None:
        instance = self._instances[decision.resource]
        entry = self._document.pool(instance.pool or "").watchdogs.idle
        if entry is None:
            return
        timer = Timer(policy=entry, cold_start=self._observed.pools[instance.pool or ""].cold_start)
        # a cold start that is measured again later only adds to this: the instance is never ended earlier
        promised = replace(timer, cold_start=timedelta(0))
        text = messages.marked(instance, decision, since + promised.grace, since + timer.grace)
        self._executor.notify(f"marked:{instance.id}:{tags.write_time(since)}", text, decision, may_keep=True)

    def _notify_unmark(self, since: datetime | None, decision: Decision) -> None:
        if since is not None:
            key = f"stays:{decision.resource}:{tags.write_time(since)}"
            self._executor.notify(key, messages.unmarked(decision), decision)

    # ends

    def _begin(self, decision: Decision) -> PendingDrain | Outcome:
        """Check again, then ask the node agent to drain."""
        looked = self._look_again(decision)
        if isinstance(looked, Outcome):
            return looked
        deadline = self._document.pool(decision.pool or "").drain_deadline
        if not is_our_drain(self._observed.agents.get(looked.id)):
            # a drain cannot be undone, and the check may have taken minutes
            if (late := self._executor.cancel_without_lease(decision)) is not None:
                return late
            # requests that arrive now may finish: only this watchdog waits for the instance
            patient = max(deadline, LONGEST_REQUEST)
            self._ports.agents.drain(looked, DrainOwner.IDLE, f"idle: {decision.detail}"[:200], patient)
        self._drained.add(looked.id)
        return decision, looked

    def _finish(self, drains: Sequence[PendingDrain]) -> None:
        """Wait for the drains, and end each instance as soon as it is empty."""
        if not drains:
            return
        longest = max(self._document.pool(decision.pool or "").drain_deadline for decision, _ in drains)
        looks = FinalChecks(self._ports, signals.of_environment(self._document.environment))
        for look in looks.wait(drains, longest):
            if isinstance(look, DrainConfirmed):
                self._executor.attempt(look.decision, lambda _, confirmed=look: self._end(confirmed))
            else:
                self._not_yet(look)

    def _not_yet(self, look: DrainUnconfirmed) -> Outcome:
        """Record that a drain is not complete or not confirmed. Without confirmation the instance is never ended."""
        decision = look.decision
        if look.error is not None:
            return self._executor.record_failed(decision, look.error)
        if not look.silent:
            detail = "its agent has not reported `drained` yet; the next pass continues"
            return self._executor.record_waiting(decision, detail)
        since = self._instances[decision.resource].idle_since
        key = f"unheard:{decision.resource}:{'' if since is None else tags.write_time(since)}"
        self._executor.notify(key, messages.unconfirmed(decision, look.silent), decision)
        silent = " and ".join(look.silent)
        detail = f"no scrape of its {silent} since it reported `drained`; the next pass continues"
        return self._executor.record_waiting(decision, f"{Reason.METRICS_STALE.sentence}: {detail}")

    def _end(self, confirmed: DrainConfirmed) -> Outcome:
        """Check a last time, lower the target, end the instance through its group."""
        ports, decision = self._ports, confirmed.decision
        if (objected := self._objection(confirmed)) is not None:
            against = f"{objected.reason.sentence}: {objected.detail}"
            return self._executor.record_waiting(
                decision, f"its agent reports `drained`, but {against}; the next pass continues"
            )
        instance = ports.inventory.instance(decision.resource)
        if instance is None or not instance.alive:
            return self._over(decision, "it is already terminated")
        if (held := self._executor.cancel_if_blocked(decision, instance, drains=True)) is not None:
            return held
        if instance.group is None:
            return self._executor.record_outcome(
                decision, OutcomeKind.FAILED, error="it belongs to no group, so it cannot be ended"
            )
        if instance.id in leaving(ports, [instance]):
            return self._over(decision, "its group is ending it already")
        if self._is_preempted_free(instance):
            why = LEFT_TO_ITS_CLOUD
            return self._executor.record_waiting(decision, f"{why.reason.sentence}: {why.detail}")
        pool = self._document.pool(decision.pool or "")
        self._executor.intend(decision)
        target = ports.ledger.lower_target(pool.name, pool.min, f"{WATCHDOG}:{instance.id}", ports.clock.now())
        ports.groups.end(instance.id, instance.group, lower_desired=True)
        self._executor.notify(f"ended:{instance.id}", messages.ended(decision, target.value), decision)
        return self._executor.record_done(decision, f"ended; target {target.value}")

    def _is_preempted_free(self, instance: Instance) -> bool:
        """Whether its cloud reclaims it, without a charge, by a notice since the drain."""
        now = self._ports.clock.now()
        if not is_free_if_preempted(instance, now):
            return False
        return is_termination_left_to_cloud(instance, self._ports.agents.statuses([instance]).get(instance.id), now)

    def _over(self, decision: Decision, detail: str) -> Outcome:
        """Outcome of an instance that is ending already.

        If an earlier pass began the termination, the next one resolves it.
        """
        begun = decision.resource in self._observed.begun
        return (
            self._executor.record_waiting(decision, detail)
            if begun
            else self._executor.record_no_longer_true(decision, detail)
        )

    def _look_again(self, decision: Decision) -> Instance | Outcome:
        """The current instance, or the outcome if it must not be ended.

        Its evidence begins with its mark: passes that were paused, failed or did not run have not observed that time.
        The agent is asked last, since a metrics store may take a minute to answer.
        """
        ports = self._ports
        now = ports.clock.now()
        instance = ports.inventory.instance(decision.resource)
        if instance is None or not instance.alive:
            return self._over(decision, "it is already terminated")
        if instance.group is None:
            raise CloudError(f"{instance.id} belongs to no group, so it cannot be ended; it is not drained either")
        drains = is_our_drain(ports.agents.statuses([instance]).get(instance.id))
        if (held := self._executor.cancel_if_blocked(decision, instance, drains=drains)) is not None:
            return held
        if drains:
            return instance
        if instance.idle_since is None:
            return self._executor.record_no_longer_true(decision, "its mark was removed")
        entry = self._document.pool(instance.pool or "").watchdogs.idle
        if entry is None:
            return self._executor.record_no_longer_true(decision, "its pool has no idle watchdog")
        fresh = self._evidence_of(instance, max(entry.window, now - instance.idle_since), now)
        rollouts = ports.groups.in_rollout([instance.group], [instance.group])
        others = self._others(instance)
        agents = ports.agents.statuses([instance, *others])
        again = replace(
            self._observed,
            evidence={} if fresh is None else {instance.id: fresh},
            agents=agents,
            rollouts=rollouts,
            kept_by={},  # the brakes were read again
        )
        objection = judge(case_of(instance, again, entry, now)) or _late(fresh, ports.clock.now() - now)
        if objection is not None:
            return self._unmark_busy(decision, instance, objection)
        view = self._observed.pools[instance.pool or ""]
        floor = max(view.floor, view.with_spare)
        ready = sum(in_service(agents.get(one.id)) for one in others)
        if ready < floor:
            why = Reason.POOL_FLOOR if ready < view.floor else Reason.NEEDED_SOON
            return self._executor.record_no_longer_true(
                decision, f"{why.sentence}: floor {floor}, {ready} others are ready"
            )
        return instance

    def _others(self, instance: Instance) -> list[Instance]:
        """The instances that the plan counted as healthy in its pool, without those that this pass has drained."""
        seen = self._observed
        pool = (one for one in seen.instances if one.pool == instance.pool and one.id != instance.id)
        return [one for one in pool if one.id not in self._drained and counts_as_healthy(one, seen)]

    def _unmark_busy(self, decision: Decision, instance: Instance, objection: Objection) -> Outcome:
        """Remove its mark: the next mark starts a new grace with a new message."""
        failed = self._ports.inventory.untag([instance.id], [tags.IDLE_SINCE])
        if instance.id not in failed:
            self._notify_unmark(
                instance.idle_since, replace(decision, reason=objection.reason, detail=objection.detail)
            )
        detail = f"{objection.reason.sentence} {objection.detail}".strip()
        return self._executor.record_no_longer_true(decision, detail)

    def _objection(self, confirmed: DrainConfirmed) -> Objection | None:
        """The objection of the metrics since the agent reported `drained`; None: the instance may be ended."""
        instance = self._instances[confirmed.decision.resource]
        entry = self._document.pool(instance.pool or "").watchdogs.idle
        if entry is None:
            return Objection(reason=Reason.NO_WATCHDOG)
        now = self._ports.metrics.now()
        fresh = self._evidence_of(instance, STALE_AFTER * signals.longest_interval(self._ports.metrics), now)
        seen = replace(self._observed, evidence={} if fresh is None else {instance.id: fresh})
        return final_check.objection(case_of(instance, seen, entry, now), confirmed, now)


def _late(evidence: Evidence | None, took: timedelta) -> Objection | None:
    """The objection that the evidence became too old while the metrics store answered."""
    if evidence is None or took <= STALE_AFTER * evidence.interval:
        return None
    return Objection(
        reason=Reason.METRICS_STALE, detail=f"the check before the end took {took.total_seconds():.0f} s"
    )
