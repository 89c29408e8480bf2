"""Refusals that do not pass by waiting, and sentences that no rule matches. Pure.

A group that was refused for good (its zone has no such machine, a permission is missing, the template is wrong) is
not asked again before the settings are written anew (`pulumi up`) or a person says `gpufleet resume POOL`. The
ledger remembers it, since nothing that its cloud tells lasts as long.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import PastAction, Reason
from watchdogs.spot.pool_view import Verdict

_OF_ONE_CASE: Final = re.compile(r"\b(?=\w*\d)[\w.:/-]+")
"""Ids, times, numbers: the same sentence has others each time."""


def for_good(
    group: str, events: Sequence[Activity], actions: Iterable[PastAction], since: datetime
) -> Verdict | None:
    """Why a group is not asked before something is changed; None: it may be asked.

    `events` of the group, oldest first. What happened before `since`, when the settings were written or a person had
    the pool tried again, counts no more; nor does what came before a launch.
    """
    own = [event for event in events if event.at >= since]
    launched = max((event.at for event in own if event.kind is ActivityKind.LAUNCHED), default=since)
    answers = [event for event in own if event.kind.refuses and event.at > launched]
    if answers and answers[-1].kind.lasts:
        return Verdict(reason=Reason.CANNOT_LAUNCH, detail=f"{answers[-1].kind.sentence}: {answers[-1].detail}")
    noted = [
        past
        for past in actions
        if past.resource == group and past.reason is Reason.CANNOT_LAUNCH and past.at > launched and past.at >= since
    ]
    return Verdict(reason=Reason.CANNOT_LAUNCH, detail=noted[-1].detail) if noted else None


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
