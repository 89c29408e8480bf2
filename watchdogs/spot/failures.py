"""Boots that failed, remembered by group: no cloud says of an instance that was ended on request why it was."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from gpufleet.domain.decisions import Action, Decision, PastAction, Reason

BOOT_REASONS: Final = frozenset({Reason.BOOT_FAILED, Reason.BOOTS_FAILING})

GROUP: Final = "group"
"""Under this the decision about an instance whose boot failed says where that was: who settles it may not find it."""


def note(decision: Decision, group: str) -> Decision:
    """What is to be noted of a group when one of its instances was ended: before that has its own outcome, so that a
    killed pass rather notes it twice than never.
    """
    detail = f"{decision.resource} was ended"
    return Decision(resource=group, pool=decision.pool, action=Action.KEEP, reason=Reason.BOOT_FAILED, detail=detail)


def mended(pool: str, by: str) -> Decision:
    """What a person notes of a pool whose boots are to be tried again: what failed before counts no more."""
    detail = f"boots are tried again: {by}"
    return Decision(resource=pool, pool=pool, action=Action.KEEP, reason=Reason.AS_WANTED, detail=detail)


def mended_at(deeds: Sequence[PastAction]) -> dict[str, datetime]:
    """By pool: when a person said so last."""
    return {
        deed.resource: deed.at for deed in deeds if deed.resource == deed.pool and deed.reason is Reason.AS_WANTED
    }


def by_group(deeds: Iterable[PastAction]) -> dict[str, list[datetime]]:
    """When boots failed, by the notes of earlier passes, oldest first; one that was noted again counts once."""
    found: dict[str, dict[str, datetime]] = {}
    for deed in deeds:
        if deed.action is Action.KEEP and deed.reason is Reason.BOOT_FAILED:
            found.setdefault(deed.resource, {}).setdefault(deed.detail, deed.at)
    return {group: list(times.values()) for group, times in found.items()}
