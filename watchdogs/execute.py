"""Carries out the plans of all watchdogs: records, checks brakes and lease, notifies, and recovers.

Each step of a watchdog goes through an `Executor`. What differs between watchdogs is in its `ExecutionRules`
or in an argument: see the table in `docs/architecture.md` ("How a pass acts").

Budgets are part of the plan: `decide` turns decisions that exceed them into keeps, and only acting decisions arrive
here. The lease is checked last, right before a step that cannot be undone: reading the brakes may take a moment.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypeVar

from gpufleet.domain.activity import ConflictError
from gpufleet.domain.brakes import BrakeKind
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Plan, Reason
from gpufleet.domain.model import Instance
from watchdogs.brakes import kept_by_tag, longest, who_and_why
from watchdogs.ports import LEASE_OVER, Ports

_VERBS: Final = {
    BrakeKind.PAUSE: "paused",
    BrakeKind.KEEP: "kept",
    BrakeKind.TARGET: "its pool's target is held",
}
_PAUSES: Final = frozenset({BrakeKind.PAUSE})
_TARGETS: Final = frozenset({BrakeKind.TARGET})
_T = TypeVar("_T")
_O = TypeVar("_O")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Generic[_O]):
    """Last observation, plan and outcomes of one pass."""

    observed: _O
    plan: Plan
    outcomes: tuple[Outcome, ...] = ()


class Watchdog(Protocol):
    """A watchdog of one fleet."""

    def dry(self) -> Pass[Any]:
        """Observe and decide without acting. The policies of the plan count as seen afterwards."""
        ...

    def apply(self) -> Pass[Any]:
        """Run one pass. Raises OSError when the fleet could not be observed completely; then nothing was changed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRules:
    """What differs between watchdogs when they act."""

    watchdog: str
    brakes: frozenset[BrakeKind] = frozenset(BrakeKind)
    """Brake kinds that protect an instance. Groups and pools are protected by pauses only."""
    tag_keeps: bool = False
    """Whether the tag `keep-until` protects an instance."""
    ended_by_cloud_anyway: frozenset[Reason] = frozenset()
    """Reasons with which the cloud ends the instance anyway: only a pause, or a brake on the instance itself,
    prevents the drain before."""
    fails_alone: bool = True
    """Whether an OSError ends only the step, not the pass."""
    failure: Callable[[Decision, str, datetime], tuple[str, str]] | None = None
    """Key and text of the message about a failed step; None: the failure is only recorded."""
    key_prefix: str = ""
    """Prefix of the keys of its messages."""


class Executor:
    """Carries out one pass. Every outcome is recorded as it happens, and kept in `outcomes`."""

    def __init__(self, ports: Ports, rules: ExecutionRules) -> None:
        self._ports = ports
        self._rules = rules
        self.outcomes: list[Outcome] = []
        self.lease_lost = False
        """Whether the lease has expired. The observation of this pass is outdated then."""
        self.unresolved: set[str] = set()
        """Resources of unfinished actions of a killed pass that this pass could not judge. A note about such a
        resource would resolve the action."""
        self._begun = ports.clock.now()
        self._since: dict[str, datetime] = {}
        """By resource: when its first step began."""

    # phases of a pass

    def recover(self, judge: Callable[[Decision], object]) -> None:
        """Judge each unfinished action of a killed pass.

        An action without an outcome, or that cannot be read, stays open.
        """
        for decision in self._ports.ledger.unfinished(self._rules.watchdog):
            try:
                judge(decision)
            except OSError as error:
                self.unresolved.add(decision.resource)
                self._ports.log.error("recovery", outcome="failed", **log_fields(decision), error=str(error))

    def record(self, plan: Plan) -> None:
        """Record the decisions before the first action."""
        self._ports.ledger.record(plan)
        for decision in plan.decisions:
            write = self._ports.log.debug if decision.action is Action.KEEP else self._ports.log.info
            write("decision", **log_fields(decision), detail=decision.detail or None)

    def finish(self, observed: _O, plan: Plan) -> Pass[_O]:
        """The result of the pass."""
        return Pass(observed=observed, plan=plan, outcomes=tuple(self.outcomes))

    # steps

    def attempt(self, decision: Decision, step: Callable[[Decision], _T]) -> _T | Outcome:
        """Run a step. Its outcome is NO_LONGER_TRUE if another process changed the resource meanwhile.

        A step that fails has the outcome FAILED where the rules let a step fail alone; otherwise it raises OSError.
        """
        self._since.setdefault(decision.resource, self._ports.clock.now())
        try:
            return step(decision)
        except ConflictError as error:
            return self.record_no_longer_true(decision, str(error))
        except OSError as error:
            if not self._rules.fails_alone:
                raise
            return self.record_failed(decision, str(error))

    def write(
        self,
        decisions: Sequence[Decision],
        write: Callable[[Sequence[str]], Mapping[str, str]],
        notify: Callable[[Decision], None],
        *,
        intent: Callable[[Decision], Decision] | None = None,
        at: datetime | None = None,
    ) -> None:
        """Write a tag of all resources in one call while the lease is held; `write` returns the errors by resource.

        `intent` returns the decision that is recorded before the write, for recovery. The message is sent before the
        outcome is recorded: if the pass is killed in between, the message is sent twice rather than never. With `at`,
        the time of the record, it is sent afterwards.
        """
        if not decisions:
            return
        now = self._ports.clock.now()
        if not self.holds_lease(now):
            for decision in decisions:
                self.record_no_longer_true(decision, LEASE_OVER)
            return
        if intent is not None:
            for decision in decisions:
                self._ports.ledger.intend(self._rules.watchdog, intent(decision), now)
        errors = write([decision.resource for decision in decisions])
        for decision in decisions:
            self._written(decision, errors.get(decision.resource), notify, at)

    def _written(
        self, decision: Decision, error: str | None, notify: Callable[[Decision], None], at: datetime | None
    ) -> None:
        kind = OutcomeKind.DONE if error is None else OutcomeKind.FAILED
        if at is not None:
            self.record_outcome(decision, kind, error=error, at=at)
        if error is None:
            notify(decision)
        if at is None:
            self.record_outcome(decision, kind, error=error)

    def intend(self, decision: Decision) -> None:
        """Record an action before it begins: if this pass is killed, the next one resolves it."""
        self._ports.ledger.intend(self._rules.watchdog, decision, self._ports.clock.now())

    # brakes and lease

    def cancel_if_blocked(
        self, decision: Decision, instance: Instance | None = None, *, drains: bool = False
    ) -> Outcome | None:
        """The outcome of a decision that is blocked by a brake or tag set since the plan was made, or by a lost
        lease.

        None: it may proceed. `instance`: the current state of the instance; None: the decision is about a group or a
        pool. `drains`: the instance drains already; a held target does not stop an end that has begun.
        """
        now = self._ports.clock.now()
        rules, taken = self._rules, decision.reason in self._rules.ended_by_cloud_anyway
        tagged = instance if rules.tag_keeps and not taken else None
        if tagged is not None and (kept := kept_by_tag(tagged, now)) is not None:
            return self.record_no_longer_true(decision, f"kept {kept}")
        kinds = _PAUSES if instance is None else rules.brakes - (_TARGETS if drains else frozenset())
        scopes = {"all", decision.pool, decision.resource}
        there = [b for b in self._ports.ledger.brakes(now) if b.is_active(now) and b.scope in scopes]
        brakes = [brake for brake in there if any(map(brake.counts_as, kinds))]
        if taken:
            brakes = [b for b in brakes if b.counts_as(BrakeKind.PAUSE) or b.scope == decision.resource]
        if (brake := longest(brakes)) is not None:
            return self.record_no_longer_true(
                decision, f"{_VERBS.get(brake.kind, brake.kind.sentence)} {who_and_why(brake)}"
            )
        return self.cancel_without_lease(decision)

    def cancel_without_lease(self, decision: Decision) -> Outcome | None:
        """The outcome of a decision if the lease is lost; None: it is still held."""
        return None if self.holds_lease(self._ports.clock.now()) else self.record_no_longer_true(decision, LEASE_OVER)

    def holds_lease(self, now: datetime) -> bool:
        """Renew the lease; whether it is still held."""
        held = self._ports.ledger.renew_lease(now)
        self.lease_lost = self.lease_lost or not held
        return held

    # outcomes and messages

    def record_done(self, decision: Decision, detail: str = "") -> Outcome:
        """Record that the action is complete."""
        return self.record_outcome(decision, OutcomeKind.DONE, detail)

    def record_no_longer_true(self, decision: Decision, why: str) -> Outcome:
        """Record that the check before the action found its reason no longer true. This is not an error."""
        return self.record_outcome(decision, OutcomeKind.NO_LONGER_TRUE, why)

    def record_waiting(self, decision: Decision, why: str) -> Outcome:
        """Record that the action has begun and that a later pass continues it."""
        return self.record_outcome(decision, OutcomeKind.WAITING, why)

    def record_failed(self, decision: Decision, error: str) -> Outcome:
        """Record a failure, and notify people where the rules have a message for it. Later passes try again."""
        if self._rules.failure is not None:
            self.notify(*self._rules.failure(decision, error, self._ports.clock.now()), decision)
        return self.record_outcome(decision, OutcomeKind.FAILED, error=error)

    def record_outcome(
        self,
        decision: Decision,
        kind: OutcomeKind,
        detail: str = "",
        *,
        error: str | None = None,
        at: datetime | None = None,
    ) -> Outcome:
        """Record the outcome of a decision. `at`: its time, if not now."""
        found = Outcome(decision=decision, kind=kind, detail=detail, error=error)
        self._ports.ledger.record_outcome(self._rules.watchdog, found, at or self._ports.clock.now())
        self.outcomes.append(found)
        write = self._ports.log.info if error is None else self._ports.log.error
        write(
            "outcome",
            **log_fields(decision),
            duration_s=self._seconds_since(self._since.get(decision.resource, self._begun)),
            outcome=kind.value,
            detail=detail or None,
            error=error,
        )
        return found

    def _seconds_since(self, begun: datetime) -> float:
        return round((self._ports.clock.now() - begun).total_seconds(), 3)

    def note(self, decision: Decision, at: datetime | None = None) -> None:
        """Record an observation for later passes. It is not an outcome of this pass."""
        noted = Outcome(decision=decision, kind=OutcomeKind.DONE, detail=decision.detail)
        self._ports.ledger.record_outcome(self._rules.watchdog, noted, at or self._ports.clock.now())

    def notify(self, key: str, text: str, about: Decision | None = None, *, may_keep: bool = False) -> None:
        """Send a message, once per key.

        `about`: the decision about an instance; `may_keep`: add a button that keeps it.
        """
        detail: dict[str, Any] = {}
        if about is not None:
            detail = {"instance": about.resource, "pool": about.pool, "action": about.action.value}
            detail |= {"may_keep": True} if may_keep else {}
        self._ports.messages.notify(f"{self._rules.key_prefix}{key}", text, detail)


def log_fields(decision: Decision) -> dict[str, str | None]:
    """The fields of a log line about a decision."""
    return {
        "pool": decision.pool,
        "resource": decision.resource,
        "action": decision.action.value,
        "reason_code": decision.reason.value,
    }
