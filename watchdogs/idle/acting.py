"""What the idle watchdog does about its plan. It looks again before each step that cannot be undone.

Order of one ending, each step safe to repeat: drain asked for → drained → both sources scraped since → target
lowered (once per instance) → ended through its group. Killed between any two steps, the next pass finds the drain of
its own and goes on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar

from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError, ConflictError
from gpufleet.domain.brakes import BrakeKind
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Plan, Reason
from gpufleet.domain.evidence import STALE_AFTER, Evidence
from gpufleet.domain.model import Instance
from gpufleet.settings.document import FleetDocument
from watchdogs import signals
from watchdogs.brakes import who_and_why
from watchdogs.draining import Drain, has_gone, leaving
from watchdogs.idle import last_look, words
from watchdogs.idle.decide import (
    DRAIN_REASON,
    WATCHDOG,
    Observed,
    case_of,
    counts_as_healthy,
    grace_of,
    in_service,
    is_our_drain,
)
from watchdogs.idle.judge import Objection, judge, kept_by_tag
from watchdogs.idle.last_look import Heard, LastLooks, Unheard
from watchdogs.ports import LEASE_OVER, Ports

LONGEST_REQUEST: Final = timedelta(hours=1)
"""For so long an agent lets a request finish that came at the moment of the drain; passes go on meanwhile."""
_HELD: Final = {BrakeKind.PAUSE: "paused", BrakeKind.KEEP: "kept", BrakeKind.TARGET: "its pool's target is held"}
_MARKED: Final = "marked"
"""Under this the note of a mark that is to go says which one."""
_T = TypeVar("_T")
EvidenceOf = Callable[[Instance, timedelta, datetime], Evidence | None]
"""Of an instance, over the window that ends now."""


class Actor:
    """Acts on the plan of one pass."""

    def __init__(self, document: FleetDocument, ports: Ports, observed: Observed, evidence_of: EvidenceOf) -> None:
        self._document = document
        self._ports = ports
        self._observed = observed
        self._evidence_of = evidence_of
        self._instances = {instance.id: instance for instance in observed.instances}
        self._drained: set[str] = set()
        """By this pass."""

    def settle(self, unfinished: Sequence[Decision]) -> tuple[Outcome, ...]:
        """Give an outcome to what a killed run began and what is over by now; the rest goes on through the plan."""
        outcomes: list[Outcome] = []
        for decision in unfinished:
            if decision.action is not Action.END:
                outcomes.append(self._settled_mark(decision))
            elif has_gone(self._ports, self._document, self._ports.inventory.instance(decision.resource)):
                self._tell(f"ended:{decision.resource}", words.ended(decision, None), decision)
                detail = "ended by an earlier run that did not live to say so"
                outcomes.append(self._recorded(decision, OutcomeKind.DONE, detail))
        return tuple(outcomes)

    def _settled_mark(self, decision: Decision) -> Outcome:
        """Whether a mark was written, or taken away, is seen at the instance."""
        instance = self._instances.get(decision.resource)
        marked = None if instance is None else instance.idle_since is not None
        if marked is (decision.action is Action.MARK):
            if decision.action is Action.UNMARK:
                self._tell_unmark(tags.read_time(decision.evidence.get(_MARKED)), decision)
            detail = "written by an earlier run that did not live to say so"
            return self._recorded(decision, OutcomeKind.DONE, detail)
        return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, "begun by an earlier run; it is judged anew")

    def act(self, plan: Plan) -> tuple[Outcome, ...]:
        """One outcome for each acting decision; recorded and told as it happens."""
        outcomes = [
            *self._unmark([d for d in plan.acting if d.action is Action.UNMARK]),
            *self._mark([d for d in plan.acting if d.action is Action.MARK]),
        ]
        self._remind(plan)
        drains: list[Drain] = []
        for decision in (d for d in plan.acting if d.action is Action.END):
            begun = self._guarded(decision, self._begin)
            if isinstance(begun, Outcome):
                outcomes.append(begun)
            else:
                drains.append(begun)
        outcomes += self._finish(drains)
        return tuple(outcomes)

    # marks

    def _mark(self, decisions: Sequence[Decision]) -> list[Outcome]:
        now = self._ports.clock.now()
        write = partial(self._ports.inventory.tag, values={tags.IDLE_SINCE: tags.write_time(now)})
        return self._written(decisions, write, partial(self._tell_mark, since=now))

    def _unmark(self, decisions: Sequence[Decision]) -> list[Outcome]:
        write = partial(self._ports.inventory.untag, keys=[tags.IDLE_SINCE])
        return self._written(decisions, write, lambda d: self._tell_unmark(self._instances[d.resource].idle_since, d))

    def _written(
        self,
        decisions: Sequence[Decision],
        write: Callable[[Sequence[str]], Mapping[str, str]],
        tell: Callable[[Decision], None],
    ) -> list[Outcome]:
        """All tags at once while the lease is ours, then for each that was written its message and its outcome."""
        if not decisions:
            return []
        now = self._ports.clock.now()
        if not self._ports.ledger.hold(now):
            return [self._recorded(d, OutcomeKind.NO_LONGER_TRUE, LEASE_OVER) for d in decisions]
        for decision in decisions:
            # when the tag is gone nobody knows any more which mark it was
            told = {**decision.evidence, _MARKED: self._instances[decision.resource].tags.get(tags.IDLE_SINCE, "")}
            self._ports.ledger.intend(WATCHDOG, replace(decision, evidence=told), now)
        failed = write([d.resource for d in decisions])
        outcomes: list[Outcome] = []
        for decision in decisions:
            error = failed.get(decision.resource)
            if error is None:
                tell(decision)
            kind = OutcomeKind.DONE if error is None else OutcomeKind.FAILED
            outcomes.append(self._recorded(decision, kind, error=error))
        return outcomes

    def _remind(self, plan: Plan) -> None:
        """Tell again of marks that wait: if we died between mark and message, this is the message."""
        for decision in plan.decisions:
            since = self._instances[decision.resource].idle_since
            if decision.reason is Reason.MARKED_WAITING and since is not None:
                self._tell_mark(decision, since)

    def _tell_mark(self, decision: Decision, since: datetime) -> None:
        instance = self._instances[decision.resource]
        entry = self._document.pool(instance.pool or "").watchdogs.idle
        grace = entry.grace if entry is not None else timedelta(0)
        key = f"marked:{instance.id}:{tags.write_time(since)}"
        learned = timedelta(0) if entry is None else grace_of(instance, self._observed, entry.policy())
        text = words.marked(instance, decision, since + grace, since + max(grace, learned))
        self._tell(key, text, decision)

    def _tell_unmark(self, since: datetime | None, decision: Decision) -> None:
        if since is not None:
            key = f"stays:{decision.resource}:{tags.write_time(since)}"
            self._tell(key, words.unmarked(decision), decision)

    # endings

    def _begin(self, decision: Decision) -> Drain | Outcome:
        """Look again, then ask the node agent to drain."""
        looked = self._look_again(decision)
        if isinstance(looked, Outcome):
            return looked
        deadline = self._document.pool(decision.pool or "").drain_deadline
        if not is_our_drain(self._observed.agents.get(looked.id)):
            # there is no way back from a drain, and the look may have taken minutes
            if not self._ports.ledger.hold(self._ports.clock.now()):
                return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, LEASE_OVER)
            # what arrives at this very moment may finish: nobody waits for the instance but us
            patient = max(deadline, LONGEST_REQUEST)
            self._ports.agents.drain(looked, f"{DRAIN_REASON}: {decision.detail}"[:200], patient)
        self._drained.add(looked.id)
        return decision, looked

    def _finish(self, drains: Sequence[Drain]) -> list[Outcome]:
        """Wait for those that drain, and end each as soon as it is empty."""
        if not drains:
            return []
        longest = max(self._document.pool(decision.pool or "").drain_deadline for decision, _ in drains)
        looks = LastLooks(self._ports, signals.of_environment(self._document.environment))
        outcomes: list[Outcome] = []
        for look in looks.wait(drains, longest):
            if isinstance(look, Heard):
                outcomes.append(self._guarded(look.decision, lambda _, heard=look: self._end(heard)))
            else:
                outcomes.append(self._not_yet(look))
        return outcomes

    def _not_yet(self, look: Unheard) -> Outcome:
        """Not drained, or nothing newer is known of it. What is not known to rest is not ended, however long."""
        decision = look.decision
        if look.error is not None:
            return self._failed(decision, look.error)
        if not look.silent:
            detail = "it has not said `drained` yet; the next pass goes on"
            return self._recorded(decision, OutcomeKind.WAITING, detail)
        since = self._instances[decision.resource].idle_since
        key = f"unheard:{decision.resource}:{'' if since is None else tags.write_time(since)}"
        self._tell(key, words.unheard(decision, look.silent), decision)
        silent = " and ".join(look.silent)
        detail = f"{Reason.METRICS_STALE}: nothing from its {silent} since it said `drained`; the next pass goes on"
        return self._recorded(decision, OutcomeKind.WAITING, detail)

    def _end(self, heard: Heard) -> Outcome:
        """Look a last time, lower the target, end it through its group."""
        ports, decision = self._ports, heard.decision
        if (objected := self._objection(heard)) is not None:
            detail = f"its agent says `drained`, but {objected.reason}: {objected.detail}; the next pass goes on"
            return self._recorded(decision, OutcomeKind.WAITING, detail)
        instance = ports.inventory.instance(decision.resource)
        if instance is None or not instance.alive:
            return self._over(decision, "it is gone already")
        if (held := self._held_back(decision, instance, drains=True)) is not None:
            return held
        if instance.group is None:
            return self._recorded(decision, OutcomeKind.FAILED, error="it belongs to no group, so it cannot be ended")
        if instance.id in leaving(ports, [instance]):
            return self._over(decision, "its group is ending it already")
        now = ports.clock.now()
        pool = self._document.pool(decision.pool or "")
        ports.ledger.intend(WATCHDOG, decision, now)
        target = ports.ledger.lower_target(pool.name, pool.min, f"{WATCHDOG}:{instance.id}", now)
        ports.groups.end(instance.id, instance.group, lower_desired=True)
        self._tell(f"ended:{instance.id}", words.ended(decision, target.value), decision)
        return self._recorded(decision, OutcomeKind.DONE, f"ended; target {target.value}")

    def _over(self, decision: Decision, detail: str) -> Outcome:
        """Of one that is on its way out: what an earlier pass began, the next one settles and tells of."""
        begun = decision.resource in self._observed.begun
        return self._recorded(decision, OutcomeKind.WAITING if begun else OutcomeKind.NO_LONGER_TRUE, detail)

    def _look_again(self, decision: Decision) -> Instance | Outcome:
        """The instance as it is now, or why its end is off.

        Its evidence begins with its mark: passes that were paused, or blind, or did not run, saw none of it. What its
        agent says is asked for last: a store may take a minute to answer.
        """
        ports = self._ports
        now = ports.clock.now()
        instance = ports.inventory.instance(decision.resource)
        if instance is None or not instance.alive:
            return self._over(decision, "it is gone already")
        if instance.group is None:
            raise CloudError(f"{instance.id} belongs to no group, so it cannot be ended; it is not drained either")
        drains = is_our_drain(ports.agents.statuses([instance]).get(instance.id))
        if (held := self._held_back(decision, instance, drains=drains)) is not None:
            return held
        if drains:
            return instance
        if instance.idle_since is None:
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, "somebody removed its mark")
        entry = self._document.pool(instance.pool or "").watchdogs.idle
        if entry is None:
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, "its pool has no idle watchdog")
        fresh = self._evidence_of(instance, max(entry.window, now - instance.idle_since), now)
        rollouts = ports.groups.in_rollout([instance.group], [instance.group])
        others = self._others(instance)
        agents = ports.agents.statuses([instance, *others])
        again = replace(
            self._observed,
            evidence={} if fresh is None else {instance.id: fresh},
            agents=agents,
            rollouts=rollouts,
            kept_by={},  # brakes were read anew
        )
        objection = judge(case_of(instance, again, entry.policy(), now)) or _late(fresh, ports.clock.now() - now)
        if objection is not None:
            return self._marked_in_vain(decision, instance, objection)
        floor = self._observed.pools[instance.pool or ""].floor
        ready = sum(in_service(agents.get(one.id)) for one in others)
        if ready < floor:
            detail = f"{Reason.POOL_FLOOR}: floor {floor}, {ready} others are ready"
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, detail)
        return instance

    def _others(self, instance: Instance) -> list[Instance]:
        """Those of its pool that the plan leaned on, but for whom this pass has drained."""
        seen = self._observed
        pool = (one for one in seen.instances if one.pool == instance.pool and one.id != instance.id)
        return [one for one in pool if one.id not in self._drained and counts_as_healthy(one, seen)]

    def _marked_in_vain(self, decision: Decision, instance: Instance, objection: Objection) -> Outcome:
        """Its mark goes, so that the next one begins a new grace with a new message."""
        failed = self._ports.inventory.untag([instance.id], [tags.IDLE_SINCE])
        if instance.id not in failed:
            self._tell_unmark(
                instance.idle_since, replace(decision, reason=objection.reason, detail=objection.detail)
            )
        detail = f"{objection.reason} {objection.detail}".strip()
        return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, detail)

    def _objection(self, heard: Heard) -> Objection | None:
        """What the sources say against an end since the agent said `drained`."""
        instance = self._instances[heard.decision.resource]
        entry = self._document.pool(instance.pool or "").watchdogs.idle
        if entry is None:
            return Objection(reason=Reason.NO_WATCHDOG)
        now = self._ports.metrics.now()
        fresh = self._evidence_of(instance, STALE_AFTER * signals.longest_interval(self._ports.metrics), now)
        seen = replace(self._observed, evidence={} if fresh is None else {instance.id: fresh})
        return last_look.objection(case_of(instance, seen, entry.policy(), now), heard, now)

    def _held_back(self, decision: Decision, instance: Instance, *, drains: bool) -> Outcome | None:
        """Brakes and tags set, and leases lost, since the plan was made.

        A held target begins no end; what drains goes on, and its end lowers no target that is held.
        """
        ports = self._ports
        now = ports.clock.now()
        if (said := kept_by_tag(instance, now)) is not None:
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, f"kept {said}")
        for brake in ports.ledger.brakes(now):
            too_late = brake.kind is BrakeKind.TARGET and drains
            if brake.holds(now) and not too_late and brake.scope in ("all", decision.pool, decision.resource):
                detail = f"{_HELD[brake.kind]} {who_and_why(brake)}"
                return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, detail)
        if not ports.ledger.hold(now):
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, LEASE_OVER)
        return None

    def _guarded(self, decision: Decision, step: Callable[[Decision], _T]) -> _T | Outcome:
        """A step that fails fails alone."""
        try:
            return step(decision)
        except ConflictError as error:
            return self._recorded(decision, OutcomeKind.NO_LONGER_TRUE, str(error))
        except OSError as error:
            return self._failed(decision, str(error))

    def _failed(self, decision: Decision, error: str) -> Outcome:
        self._tell(f"failed:{decision.resource}:{decision.action}", words.failed(decision, error), decision)
        return self._recorded(decision, OutcomeKind.FAILED, error=error)

    # record and tell

    def _recorded(self, decision: Decision, kind: OutcomeKind, detail: str = "", error: str | None = None) -> Outcome:
        outcome = Outcome(decision=decision, kind=kind, detail=detail, error=error)
        self._ports.ledger.record_outcome(WATCHDOG, outcome, self._ports.clock.now())
        return outcome

    def _tell(self, key: str, text: str, decision: Decision) -> None:
        self._ports.messages.tell(
            key,
            text,
            {"instance": decision.resource, "pool": decision.pool, "action": decision.action.value},
        )


def _late(evidence: Evidence | None, took: timedelta) -> Objection | None:
    """What a look rests on grows old while the store answers."""
    if evidence is None or took <= STALE_AFTER * evidence.interval:
        return None
    return Objection(reason=Reason.METRICS_STALE, detail=f"to look again took {took.total_seconds():.0f} s")
