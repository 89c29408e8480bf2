"""What the orphan watchdog does about its plan: marks, and stops after a last look.

Order of a mark: tag → ledger → message; a mark that the ledger does not know is made again. Order of a stop: last
look → noted → stopped → mark removed. Killed in between, the next pass settles it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gpufleet.domain import tags
from gpufleet.domain.brakes import BrakeKind
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Plan, Reason
from gpufleet.domain.model import Instance
from watchdogs.brakes import who_and_why
from watchdogs.idle.judge import Objection
from watchdogs.orphans import words
from watchdogs.orphans.decide import WATCHDOG, case_of, stop_objection
from watchdogs.orphans.judge import judge_orphan
from watchdogs.orphans.view import Observed
from watchdogs.ports import LEASE_OVER, Account, Ports

LookAgain = Callable[[Instance, str, datetime], Observed]
"""What is known of one instance that a rule names, asked for anew. Raises OSError."""


class Actor:
    """Acts on the plan of one pass."""

    def __init__(self, ports: Ports, account: Account, seen: Observed, look_again: LookAgain) -> None:
        self._ports = ports
        self._account = account
        self._seen = seen
        self._look_again = look_again
        self._orphans = {instance.id: instance for instance in seen.orphans}
        self._rules = {rule.name: rule for rule in seen.rules}

    def settle(self, unfinished: Sequence[Decision]) -> tuple[Outcome, ...]:
        """Give an outcome to what a killed run began; what still runs is judged anew."""
        outcomes: list[Outcome] = []
        for decision in unfinished:
            instance = self._ports.inventory.instance(decision.resource)
            if instance is not None and instance.alive:
                detail = "begun by an earlier run and not done; it is judged anew"
                outcomes.append(self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, detail))
                continue
            if instance is not None:
                self._ports.inventory.untag([decision.resource], [tags.IDLE_SINCE])
            self._tell(f"stopped:{decision.resource}:{decision.detail[:60]}", words.stopped(decision), decision)
            detail = "stopped by an earlier run that did not live to say so"
            outcomes.append(self._recorded(decision, OutcomeKind.DONE, detail))
        return tuple(outcomes)

    def act(self, plan: Plan) -> tuple[Outcome, ...]:
        """One outcome for each acting decision; recorded and told as it happens."""
        wishes = {action: [d for d in plan.acting if d.action is action] for action in Action}
        outcomes = [*self._unmark(wishes[Action.UNMARK]), *self._mark(wishes[Action.MARK])]
        self._remind(plan)
        outcomes += [self._guarded(decision) for decision in wishes[Action.STOP]]
        return tuple(outcomes)

    def _mark(self, decisions: Sequence[Decision]) -> list[Outcome]:
        held = [self._held_back(decision) for decision in decisions]
        free = [decision for decision, found in zip(decisions, held, strict=True) if found is None]
        now = self._ports.clock.now().replace(microsecond=0)  # as the tag has it
        chosen = [decision.resource for decision in free]
        failed: Mapping[str, str] = {}
        if chosen:
            failed = self._ports.inventory.tag(chosen, {tags.IDLE_SINCE: tags.write_time(now)})
        outcomes = [outcome for outcome in held if outcome is not None]
        for decision in free:
            outcomes.append(self._written(decision, failed.get(decision.resource), now))
            if decision.resource not in failed:
                self._tell_mark(decision, now)
        return outcomes

    def _unmark(self, decisions: Sequence[Decision]) -> list[Outcome]:
        if not decisions:
            return []
        if not self._ports.ledger.hold(self._ports.clock.now()):
            return [self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, LEASE_OVER) for decision in decisions]
        failed = self._ports.inventory.untag([decision.resource for decision in decisions], [tags.IDLE_SINCE])
        outcomes: list[Outcome] = []
        for decision in decisions:
            if decision.resource not in failed:
                self._tell_unmark(decision)
            outcomes.append(self._written(decision, failed.get(decision.resource), self._ports.clock.now()))
        return outcomes

    def _remind(self, plan: Plan) -> None:
        """Tell again of marks that stand: if we died between ledger and message, this is the message."""
        for decision in plan.decisions:
            since = self._marked(decision) if decision.reason in (Reason.MARKED_WAITING, Reason.MARK_ONLY) else None
            if since is not None:
                self._tell_mark(decision, since)

    def _marked(self, decision: Decision) -> datetime | None:
        rule = self._rules.get(decision.pool or "")
        now = self._ports.clock.now()
        return None if rule is None else self._seen.marked(self._orphans[decision.resource], rule, now)

    def _tell_mark(self, decision: Decision, since: datetime) -> None:
        instance, rule = self._orphans[decision.resource], self._rules[decision.pool or ""]
        against = stop_objection(self._seen, instance, rule)
        said = None if against is None else f"{against.reason}, {against.detail}"
        key = f"marked:{instance.id}:{tags.write_time(since)}"
        self._tell(key, words.marked(instance, rule, decision, since + rule.grace, said), decision)

    def _tell_unmark(self, decision: Decision) -> None:
        since = self._marked(decision)
        if since is not None:
            self._tell(f"stays:{decision.resource}:{tags.write_time(since)}", words.unmarked(decision), decision)

    def _stop(self, decision: Decision) -> Outcome:
        """Look a last time, note it, stop it, take the mark away: a restart begins without it.

        The look may take minutes, so brakes and lease are asked for after it.
        """
        now = self._ports.clock.now()
        instance = self._ports.inventory.instance(decision.resource)
        if instance is None or not instance.alive:
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, "it runs no more")
        rule = self._rules[decision.pool or ""]
        again = self._look_again(instance, rule.name, now)
        if not again.orphans:
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, "it belongs to a pool now")
        if again.rule_of(instance, now) != rule:
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, "the rule does not name it any more")
        if again.marked(instance, rule, now) is None:
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, "somebody removed its mark")
        if (held := self._held_back(decision)) is not None:
            return held
        objection = judge_orphan(case_of(again, instance, rule, now))
        if objection is not None:
            self._marked_in_vain(decision, objection)
        objection = objection or stop_objection(again, instance, rule)
        if objection is not None:
            detail = f"{objection.reason} {objection.detail}".strip()
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, detail)
        self._ports.ledger.intend(WATCHDOG, decision, now)
        self._account.stop(instance.id)
        self._ports.inventory.untag([instance.id], [tags.IDLE_SINCE])
        self._tell(f"stopped:{instance.id}:{decision.detail[:60]}", words.stopped(decision), decision)
        return self._recorded(decision, OutcomeKind.DONE, "stopped")

    def _marked_in_vain(self, decision: Decision, objection: Objection) -> None:
        """Its mark goes: later looks would go back to it and find the same, and the next one begins a new grace."""
        failed = self._ports.inventory.untag([decision.resource], [tags.IDLE_SINCE])
        if decision.resource not in failed:
            self._tell_unmark(replace(decision, reason=objection.reason, detail=objection.detail))

    def _held_back(self, decision: Decision) -> Outcome | None:
        """Brakes set and leases lost since the plan was made."""
        now = self._ports.clock.now()
        for brake in self._ports.ledger.brakes(now):
            if brake.holds(now) and brake.scope in ("all", decision.pool, decision.resource):
                verb = "paused" if brake.kind is BrakeKind.PAUSE else "kept"
                detail = f"{verb} {who_and_why(brake)}"
                return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, detail)
        if not self._ports.ledger.hold(now):
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, LEASE_OVER)
        return None

    def _guarded(self, decision: Decision) -> Outcome:
        """A stop that fails fails alone, and is tried again by later passes."""
        try:
            return self._stop(decision)
        except OSError as error:
            day = f"{self._ports.clock.now():%Y%m%d}"
            self._tell(f"failed:{decision.resource}:{day}", words.failed(decision, str(error)), decision)
            return self._recorded(decision, OutcomeKind.FAILED, error=str(error))

    def _written(self, decision: Decision, error: str | None, at: datetime) -> Outcome:
        outcome = Outcome(
            decision=decision, kind=OutcomeKind.DONE if error is None else OutcomeKind.FAILED, error=error
        )
        self._ports.ledger.record_outcome(WATCHDOG, outcome, at)
        return outcome

    def _recorded(self, decision: Decision, kind: OutcomeKind, detail: str = "", error: str | None = None) -> Outcome:
        outcome = Outcome(decision=decision, kind=kind, detail=detail, error=error)
        self._ports.ledger.record_outcome(WATCHDOG, outcome, self._ports.clock.now())
        return outcome

    def _tell(self, key: str, text: str, decision: Decision) -> None:
        detail = {"instance": decision.resource, "pool": decision.pool, "action": decision.action.value}
        self._ports.messages.tell(key, text, detail)
