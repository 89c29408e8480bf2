"""Carries out the plan of the orphan watchdog: marks, and stops after a final check.

Steps of a mark: tag → ledger → message; a mark that the ledger does not know is made again. Steps of a stop: final
check → recorded → stopped → mark removed. If the pass is killed in between, the next pass resolves it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from gpufleet.domain import tags
from gpufleet.domain.decisions import Action, Decision, Objection, Outcome, Plan, Reason
from gpufleet.domain.model import Instance
from watchdogs.execute import ExecutionRules, Executor
from watchdogs.orphans import messages
from watchdogs.orphans.checks import judge_orphan
from watchdogs.orphans.decide import WATCHDOG, case_of, stop_objection
from watchdogs.orphans.view import OrphanObservation
from watchdogs.ports import Account, Ports

LookAgain = Callable[[Instance, str, datetime], OrphanObservation]
"""Returns a new observation of one instance that a rule matches. Raises OSError."""


def _failure(decision: Decision, error: str, now: datetime) -> tuple[str, str]:
    return f"failed:{decision.resource}:{now:%Y%m%d}", messages.failed(decision, error)


RULES: Final = ExecutionRules(watchdog=WATCHDOG, failure=_failure)


class OrphanActor:
    """Acts on the plan of one pass."""

    def __init__(
        self, ports: Ports, account: Account, executor: Executor, seen: OrphanObservation, look_again: LookAgain
    ) -> None:
        self._ports = ports
        self._executor = executor
        self._account = account
        self._seen = seen
        self._look_again = look_again
        self._orphans = {instance.id: instance for instance in seen.orphans}
        self._rules = {rule.name: rule for rule in seen.rules}

    def recover(self, decision: Decision) -> None:
        """Record the outcome of a stop that a killed pass began. An instance that still runs is judged again."""
        instance = self._ports.inventory.instance(decision.resource)
        if instance is not None and instance.alive:
            self._executor.record_no_longer_true(decision, "begun by an earlier pass but not done; judged again")
            return
        if instance is not None:
            self._ports.inventory.untag([decision.resource], [tags.IDLE_SINCE])
        self._notify_stop(decision)
        self._executor.record_done(decision, "stopped by an earlier pass that was killed before it recorded it")

    def act(self, plan: Plan) -> None:
        """Carry out each acting decision and record its outcome."""
        by_action = {action: [d for d in plan.acting if d.action is action] for action in Action}
        self._unmark(by_action[Action.UNMARK])
        self._mark(by_action[Action.MARK])
        self._remind(plan)
        for decision in by_action[Action.STOP]:
            self._executor.attempt(decision, self._stop)

    def _mark(self, decisions: Sequence[Decision]) -> None:
        free = [d for d in decisions if self._executor.cancel_if_blocked(d, self._orphans[d.resource]) is None]
        now = self._ports.clock.now().replace(microsecond=0)  # the tag has whole seconds
        write = partial(self._ports.inventory.tag, values={tags.IDLE_SINCE: tags.write_time(now)})
        self._executor.write(free, write, partial(self._notify_mark, since=now), at=now)

    def _unmark(self, decisions: Sequence[Decision]) -> None:
        write = partial(self._ports.inventory.untag, keys=[tags.IDLE_SINCE])
        self._executor.write(decisions, write, self._notify_unmark)

    def _remind(self, plan: Plan) -> None:
        """Send the message of each current mark, once per key: a pass may be killed between ledger and message."""
        for decision in plan.decisions:
            since = self._marked(decision) if decision.reason in (Reason.MARKED_WAITING, Reason.MARK_ONLY) else None
            if since is not None:
                self._notify_mark(decision, since)

    def _marked(self, decision: Decision) -> datetime | None:
        rule = self._rules.get(decision.pool or "")
        now = self._ports.clock.now()
        return None if rule is None else self._seen.marked(self._orphans[decision.resource], rule, now)

    def _notify_mark(self, decision: Decision, since: datetime) -> None:
        instance, rule = self._orphans[decision.resource], self._rules[decision.pool or ""]
        against = stop_objection(self._seen, instance, rule)
        stop_problem = None if against is None else f"{against.reason.sentence}, {against.detail}"
        key = f"marked:{instance.id}:{tags.write_time(since)}"
        self._executor.notify(
            key, messages.marked(instance, rule, decision, since + rule.grace, stop_problem), decision, may_keep=True
        )

    def _notify_unmark(self, decision: Decision) -> None:
        since = self._marked(decision)
        if since is not None:
            self._executor.notify(
                f"stays:{decision.resource}:{tags.write_time(since)}", messages.unmarked(decision), decision
            )

    def _stop(self, decision: Decision) -> Outcome:
        """Check a last time, record the stop, stop it, remove the mark: a restarted instance has no mark.

        The check may take minutes, so brakes and lease are checked after it.
        """
        now = self._ports.clock.now()
        instance = self._ports.inventory.instance(decision.resource)
        if instance is None or not instance.alive:
            return self._executor.record_no_longer_true(decision, "it is no longer running")
        rule = self._rules[decision.pool or ""]
        again = self._look_again(instance, rule.name, now)
        if not again.orphans:
            return self._executor.record_no_longer_true(decision, "it belongs to a pool now")
        if again.rule_of(instance, now) != rule:
            return self._executor.record_no_longer_true(decision, "the rule no longer matches it")
        if again.marked(instance, rule, now) is None:
            return self._executor.record_no_longer_true(decision, "its mark was removed")
        if (held := self._executor.cancel_if_blocked(decision, instance)) is not None:
            return held
        objection = judge_orphan(case_of(again, instance, rule, now))
        if objection is not None:
            self._unmark_busy(decision, objection)
        objection = objection or stop_objection(again, instance, rule)
        if objection is not None:
            detail = f"{objection.reason.sentence} {objection.detail}".strip()
            return self._executor.record_no_longer_true(decision, detail)
        self._executor.intend(decision)
        self._account.stop(instance.id)
        self._ports.inventory.untag([instance.id], [tags.IDLE_SINCE])
        self._notify_stop(decision)
        return self._executor.record_done(decision, "stopped")

    def _unmark_busy(self, decision: Decision, objection: Objection) -> None:
        """Remove its mark, so that the next mark starts a new grace."""
        failed = self._ports.inventory.untag([decision.resource], [tags.IDLE_SINCE])
        if decision.resource not in failed:
            self._notify_unmark(replace(decision, reason=objection.reason, detail=objection.detail))

    def _notify_stop(self, decision: Decision) -> None:
        key = f"stopped:{decision.resource}:{decision.detail[:60]}"
        self._executor.notify(key, messages.stopped(decision), decision)
