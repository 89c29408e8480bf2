"""What is decided of a pool of which not everything is known. Pure.

Ending needs certainty about what is ended; growing needs less (invariant 7).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpufleet.domain.decisions import Action, Decision, Plan, Reason
from watchdogs.spot.pool_view import PoolView, Verdict
from watchdogs.spot.sizes import CHOSEN

TROUBLES: Final = frozenset({Reason.GROUP_UNREADABLE, Reason.NOT_LISTED, Reason.CANNOT_LAUNCH, Reason.SUSPENDED})
"""What people must look at, since nothing is decided or asked for there until then."""
OF: Final = "because_of"
"""Under this a decision names the other resource that its reason is about."""


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


def _certain(pool: PoolView, decision: Decision, held: Verdict | None) -> Decision:
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


def _kept(pool: PoolView, resource: str, why: Verdict) -> Decision:
    of = {} if why.of is None else {OF: why.of}
    return Decision(
        resource=resource, pool=pool.name, action=Action.KEEP, reason=why.reason, detail=why.detail, evidence=of
    )
