"""Who of a pool leaves, and who may be asked to. Pure."""

from collections.abc import Collection, Sequence
from itertools import takewhile

from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.drains import DrainOwner
from watchdogs.spot.view import Member, PoolView


def drains_idle(member: Member) -> bool:
    """Whether the idle watchdog ends it: the target falls with it. It ends none that people keep."""
    return member.leaving and member.kept_by is None and member.drain_by is DrainOwner.IDLE


def losses(pool: PoolView, noted: Collection[str]) -> list[Decision]:
    """Notes that the cloud takes what the idle watchdog ends: the zone has lost it, though idle may be quicker."""
    return [
        Decision(
            resource=member.id,
            pool=pool.name,
            action=Action.KEEP,
            reason=Reason.PREEMPTED,
            detail="under notice; the idle watchdog ends it",
        )
        for member in pool.members
        if member.under_notice and pool.idle_ends and drains_idle(member) and member.id not in noted
    ]


def somebody_leaves(pool: PoolView) -> bool:
    """Whether one is on its way out, so that the next one waits. What people drained or keep may stay for days."""
    return any(_is_leaving(member) or (member.silent and member.asked) for member in pool.members)


def _is_leaving(member: Member) -> bool:
    """A person's drain stays until that person ends it. What idle has drained serves nobody already, and may wait for
    evidence that never comes. Neither holds of what the cloud takes.
    """
    if not member.leaving or member.kept_by is not None:
        return False
    if member.under_notice:
        return True
    return member.drain_by is not DrainOwner.PERSON and not (member.drained and member.drain_by is DrainOwner.IDLE)


def may_be_asked(member: Member) -> bool:
    """Whether it serves or will, and has an agent that can be asked to drain. People hear of the others."""
    return not (member.leaving or member.failed or member.silent)


def first_free(order: Sequence[Member]) -> tuple[list[Member], Member | None]:
    """The first that nobody keeps, with those before it whom somebody does."""
    kept = list(takewhile(lambda member: member.kept_by is not None, order))
    return kept, order[len(kept)] if len(kept) < len(order) else None
