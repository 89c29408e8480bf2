"""What is left alone in a pool, and why. Pure.

Ending needs certainty about what is ended; growing needs less (invariant 7). A group that was refused for good (its
zone has no such machine, a permission is missing, the template is wrong) is not asked again before the settings are
written anew (`pulumi up`) or a person says `gpufleet resume POOL`. The ledger remembers it, since nothing that its
cloud tells lasts as long.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Action, Decision, Objection, PastAction, Plan, Reason
from watchdogs.spot.pool_view import PoolView
from watchdogs.spot.sizes import CHOSEN

TROUBLES: Final = frozenset({Reason.GROUP_UNREADABLE, Reason.NOT_LISTED, Reason.CANNOT_LAUNCH, Reason.SUSPENDED})
"""What people must look at, since nothing is decided or asked for there until then."""
OF: Final = "because_of"
"""Under this a decision names the other resource that its reason is about."""
_OF_ONE_CASE: Final = re.compile(r"\b(?=\w*\d)[\w.:/-]+")
"""Ids, times, numbers: the same sentence has others each time."""


def within_certainty(pool: PoolView, decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions with those kept that would touch what is not known, and one about each of these."""
    held = {group.name: group.frozen for group in pool.groups if group.frozen is not None}
    suspended = {group.name: group.suspended for group in pool.groups if group.suspended}
    decisions = [
        replace(one, detail=f"{one.detail}; {said}" if one.detail else said)
        if (said := suspended.get(one.resource)) is not None
        else one
        for one in decisions
    ]
    held |= {member.id: member.held for member in pool.members if member.held is not None}
    found = [_certain(pool, decision, held.get(decision.resource)) for decision in decisions]
    decided = {decision.resource for decision in found}
    return found + [_kept(pool, key, why) for key, why in held.items() if key not in decided]


def troubles(plan: Plan) -> list[Decision]:
    """What people are to be notified of; of a group that cannot be read once, and not for each of its members."""
    return [one for one in plan.decisions if one.reason in TROUBLES and one.evidence.get(OF) is None]


def _certain(pool: PoolView, decision: Decision, held: Objection | None) -> Decision:
    if held is not None:
        return _kept(pool, decision.resource, held)
    shrinks = decision.action is Action.RESIZE and (decision.to_size or 0) < (decision.from_size or 0)
    ends = decision.action in (Action.END, Action.REPLACE)
    by_choice = ends and decision.reason in CHOSEN
    doubt = pool.incomplete if (ends or shrinks) else None
    doubt = doubt or (pool.uncertain if by_choice else None)
    if doubt is None:
        return decision
    return decision.kept(doubt.reason, f"would {decision.action}: {decision.reason.sentence}; {doubt.detail}")


def _kept(pool: PoolView, resource: str, why: Objection) -> Decision:
    of = {} if why.of is None else {OF: why.of}
    return Decision(
        resource=resource, pool=pool.name, action=Action.KEEP, reason=why.reason, detail=why.detail, evidence=of
    )


def for_good(
    group: str, events: Sequence[Activity], actions: Iterable[PastAction], since: datetime
) -> Objection | None:
    """Why a group is not asked before something is changed; None: it may be asked.

    `events` of the group, oldest first. What happened before `since`, when the settings were written or a person had
    the pool tried again, counts no more; nor does what came before a launch.
    """
    own = [event for event in events if event.at >= since]
    launched = max((event.at for event in own if event.kind is ActivityKind.LAUNCHED), default=since)
    answers = [event for event in own if event.kind.refuses and event.at > launched]
    if answers and answers[-1].kind.lasts:
        return Objection(reason=Reason.CANNOT_LAUNCH, detail=f"{answers[-1].kind.sentence}: {answers[-1].detail}")
    noted = [
        past
        for past in actions
        if past.resource == group and past.reason is Reason.CANNOT_LAUNCH and past.at > launched and past.at >= since
    ]
    return Objection(reason=Reason.CANNOT_LAUNCH, detail=noted[-1].detail) if noted else None


def unknown(events: Iterable[Activity]) -> dict[str, Activity]:
    """Activities whose sentences no rule matches, the first of each sentence, by a name of the sentence."""
    found: dict[str, Activity] = {}
    for event in events:
        if event.kind is ActivityKind.UNKNOWN:
            found.setdefault(sentence_key(event.detail), event)
    return found


def sentence_key(sentence: str) -> str:
    """A short name that is the same for a sentence however often it comes."""
    plain = " ".join(_OF_ONE_CASE.sub("#", sentence.lower()).split())
    return hashlib.sha256(plain.encode()).hexdigest()[:12]
