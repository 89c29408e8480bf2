"""Who of a pool leaves, and who may be asked to. Pure."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from gpufleet.domain.decisions import Reason
from watchdogs.spot.view import Member, PoolView

HAND_DRAIN: Final = "by hand"
"""How the reason of a drain begins that a person asked for: it stays until that person ends it."""
IDLE_DRAIN: Final = "idle:"
"""The same of one that the idle watchdog asked for."""
OWN_DRAIN: Final = "spot:"
"""The same of one that this watchdog asked for."""


def drain_words(reason: Reason) -> str:
    """What this watchdog tells a node agent."""
    return f"{OWN_DRAIN} {reason}"


def drains_idle(member: Member) -> bool:
    """Whether the idle watchdog ends it: the target falls with it. It ends none that people keep."""
    return member.leaving and member.kept_by is None and member.leaving_because.startswith(IDLE_DRAIN)


def somebody_leaves(pool: PoolView) -> bool:
    """Whether one is on its way out, so that the next one waits. What people drained or keep may stay for days."""
    return any(_is_leaving(member) or (member.silent and member.asked) for member in pool.members)


def _is_leaving(member: Member) -> bool:
    """What idle has drained serves nobody already, and may wait for evidence that never comes."""
    if not member.leaving or member.kept_by is not None or member.leaving_because.startswith(HAND_DRAIN):
        return False
    return not (member.drained and member.leaving_because.startswith(IDLE_DRAIN))


def may_be_asked(member: Member) -> bool:
    """Whether it serves or will, and has an agent that can be asked to drain. People hear of the others."""
    return not (member.leaving or member.failed or member.silent)


def first_free(order: Sequence[Member]) -> tuple[list[Member], Member | None]:
    """The first that nobody keeps, with those before it whom somebody does."""
    kept = list(takewhile(lambda member: member.kept_by is not None, order))
    return kept, order[len(kept)] if len(kept) < len(order) else None
