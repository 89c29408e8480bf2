"""Carries out the plans of all watchdogs: one place that records, asks brakes and lease, notifies and recovers.

Each step of a watchdog goes through an `Executor`. What differs between watchdogs is in its `ExecutionRules`
or an argument: see the table in `docs/architecture.md` ("How a pass acts").

Budgets are part of the plan: `decide` keeps what they do not allow, and only decisions that act come here. The lease
is checked last, right before what cannot be undone: brakes may take a moment to read.
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
    """What one pass observed last, decided and did."""

    observed: _O
    plan: Plan
    outcomes: tuple[Outcome, ...] = ()


class Watchdog(Protocol):
    """A watchdog of one fleet."""

    def dry(self) -> Pass[Any]:
        """Observe and decide. The plan is for people to read, and from now on its policies count as seen."""
        ...

    def apply(self) -> Pass[Any]:
        """One whole pass. Raises OSError when the fleet could not be observed whole; then nothing was done."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRules:
    """What differs between watchdogs when they act."""

    watchdog: str
    brakes: frozenset[BrakeKind] = frozenset(BrakeKind)
    """Those that hold an instance. Of groups and pools only pauses do."""
    tag_keeps: bool = False
    """Whether the tag `keep-until` holds an instance."""
    taken_anyway: frozenset[Reason] = frozenset()
    """The cloud ends it in any case: only a pause, or a brake of its own, keeps it from being drained before."""
    fails_alone: bool = True
    """Whether an OSError ends only the step, and not the pass."""
    failure: Callable[[Decision, str, datetime], tuple[str, str]] | None = None
    """Key and text of the message about a step that failed; None: it is only recorded."""
    key_prefix: str = ""
    """Of the keys of its messages."""


class Executor:
    """Carries out one pass. Every outcome is recorded as it happens, and kept in `outcomes`."""

    def __init__(self, ports: Ports, rules: ExecutionRules) -> None:
        self._ports = ports
        self._rules = rules
        self.outcomes: list[Outcome] = []
        self.lease_lost = False
        """Whether the lease was found to be over. What this pass saw is old."""
        self.unsettled: set[str] = set()
        """Resources of actions that a killed pass began and that this one could not judge. A note about one of them
        would settle the action."""
        self._begun = ports.clock.now()
        self._since: dict[str, datetime] = {}
        """By resource: when its first step began."""

    # the course of a pass

    def settle(self, judge: Callable[[Decision], object]) -> None:
        """Have each action judged that a killed pass began. What gets no outcome, or cannot be read, stays open."""
        for decision in self._ports.ledger.unfinished(self._rules.watchdog):
            try:
                judge(decision)
            except OSError as error:
                self.unsettled.add(decision.resource)
                self._ports.log.error("recovery", outcome="failed", **log_fields(decision), error=str(error))

    def record(self, plan: Plan) -> None:
        """Write down what was decided, before any of it is done."""
        self._ports.ledger.record(plan)
        for decision in plan.decisions:
            write = self._ports.log.debug if decision.action is Action.KEEP else self._ports.log.info
            write("decision", **log_fields(decision), detail=decision.detail or None)

    def finish(self, observed: _O, plan: Plan) -> Pass[_O]:
        """The whole pass."""
        return Pass(observed=observed, plan=plan, outcomes=tuple(self.outcomes))

    # steps

    def attempt(self, decision: Decision, step: Callable[[Decision], _T]) -> _T | Outcome:
        """Run a step. What somebody else has changed meanwhile is off; a step that fails has failed alone, where the
        rules say so. Else raises OSError.
        """
        self._since.setdefault(decision.resource, self._ports.clock.now())
        try:
            return step(decision)
        except ConflictError as error:
            return self.off(decision, str(error))
        except OSError as error:
            if not self._rules.fails_alone:
                raise
            return self.failed(decision, str(error))

    def write(
        self,
        decisions: Sequence[Decision],
        write: Callable[[Sequence[str]], Mapping[str, str]],
        notify: Callable[[Decision], None],
        *,
        intent: Callable[[Decision], Decision] | None = None,
        at: datetime | None = None,
    ) -> None:
        """Write a tag of all of these at once while the lease is ours; `write` returns the errors by resource.

        `intent` gives what is noted before, for a pass that is killed. The message comes before the record, since a
        killed pass is to send it rather twice than never; with `at`, the time of the record, it comes after.
        """
        if not decisions:
            return
        now = self._ports.clock.now()
        if not self.holds_lease(now):
            for decision in decisions:
                self.off(decision, LEASE_OVER)
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
            self.outcome(decision, kind, error=error, at=at)
        if error is None:
            notify(decision)
        if at is None:
            self.outcome(decision, kind, error=error)

    def intend(self, decision: Decision) -> None:
        """Note what is about to be done: if this pass is killed, the next one settles it."""
        self._ports.ledger.intend(self._rules.watchdog, decision, self._ports.clock.now())

    # brakes and lease

    def held_back(
        self, decision: Decision, instance: Instance | None = None, *, drains: bool = False
    ) -> Outcome | None:
        """The outcome of a decision that brakes or tags set since the plan was made hold back, or a lost lease.

        `instance`: which one it is about, as it is now; None: a group or a pool. `drains`: it drains already, and a
        held target begins no end but stops none either.
        """
        now = self._ports.clock.now()
        rules, taken = self._rules, decision.reason in self._rules.taken_anyway
        tagged = instance if rules.tag_keeps and not taken else None
        if tagged is not None and (kept := kept_by_tag(tagged, now)) is not None:
            return self.off(decision, f"kept {kept}")
        kinds = _PAUSES if instance is None else rules.brakes - (_TARGETS if drains else frozenset())
        scopes = {"all", decision.pool, decision.resource}
        there = [b for b in self._ports.ledger.brakes(now) if b.holds(now) and b.scope in scopes]
        brakes = [brake for brake in there if any(map(brake.acts_as, kinds))]
        if taken:
            brakes = [b for b in brakes if b.acts_as(BrakeKind.PAUSE) or b.scope == decision.resource]
        if (brake := longest(brakes)) is not None:
            return self.off(decision, f"{_VERBS.get(brake.kind, brake.kind.sentence)} {who_and_why(brake)}")
        return self.without_lease(decision)

    def without_lease(self, decision: Decision) -> Outcome | None:
        """The outcome of a decision that comes too late."""
        return None if self.holds_lease(self._ports.clock.now()) else self.off(decision, LEASE_OVER)

    def holds_lease(self, now: datetime) -> bool:
        """Whether the lease is still ours; it is renewed."""
        held = self._ports.ledger.hold(now)
        self.lease_lost = self.lease_lost or not held
        return held

    # outcomes and messages

    def done(self, decision: Decision, detail: str = "") -> Outcome:
        """It happened."""
        return self.outcome(decision, OutcomeKind.DONE, detail)

    def off(self, decision: Decision, why: str) -> Outcome:
        """It was looked at again before the act, and what it rested on had gone. No error."""
        return self.outcome(decision, OutcomeKind.NO_LONGER_TRUE, why)

    def waiting(self, decision: Decision, why: str) -> Outcome:
        """It has begun; a later pass goes on."""
        return self.outcome(decision, OutcomeKind.WAITING, why)

    def failed(self, decision: Decision, error: str) -> Outcome:
        """It failed, and people are notified where the rules say so. Later passes try again."""
        if self._rules.failure is not None:
            self.notify(*self._rules.failure(decision, error, self._ports.clock.now()), decision)
        return self.outcome(decision, OutcomeKind.FAILED, error=error)

    def outcome(
        self,
        decision: Decision,
        kind: OutcomeKind,
        detail: str = "",
        *,
        error: str | None = None,
        at: datetime | None = None,
    ) -> Outcome:
        """Record what became of a decision; `at`: when, if not now."""
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
        """Write down an observation for later passes. It is not an outcome of this pass."""
        noted = Outcome(decision=decision, kind=OutcomeKind.DONE, detail=decision.detail)
        self._ports.ledger.record_outcome(self._rules.watchdog, noted, at or self._ports.clock.now())

    def notify(self, key: str, text: str, about: Decision | None = None, *, may_keep: bool = False) -> None:
        """Send a message, once per key. `about`: the decision about an instance; `may_keep`: by a button."""
        detail: dict[str, Any] = {}
        if about is not None:
            detail = {"instance": about.resource, "pool": about.pool, "action": about.action.value}
            detail |= {"may_keep": True} if may_keep else {}
        self._ports.messages.tell(f"{self._rules.key_prefix}{key}", text, detail)


def log_fields(decision: Decision) -> dict[str, str | None]:
    """The fields of a log line about a decision."""
    return {
        "pool": decision.pool,
        "resource": decision.resource,
        "action": decision.action.value,
        "reason_code": decision.reason.value,
    }
