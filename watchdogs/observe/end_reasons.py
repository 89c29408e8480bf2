"""Reasons of ends that a group does not state: EC2 groups report one sentence for all ends that they did not cause.

Sources in order: the notice, the ledger, the description of the instance. Without a reason the end stays unstated:
the instance is replaced like any other, the end alone is not a failed boot, and it counts in the history of its spot
zone (`risk.LOSSES`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Action
from watchdogs.idle.decide import WATCHDOG as IDLE
from watchdogs.ports import Ports
from watchdogs.spot.decide import WATCHDOG as SPOT

DESCRIBED_FOR: Final = timedelta(hours=1)
"""How long EC2 describes an ended instance."""
ASK_AGAIN: Final = timedelta(minutes=1)
"""Interval between reads of a description without a reason."""
_ENDS: Final = frozenset({Action.END, Action.REPLACE, Action.STOP})
_LOST_ANYWAY: Final = frozenset(
    {ActivityKind.ENDED, ActivityKind.ENDED_UNSTATED, ActivityKind.FAILED_BOOT, ActivityKind.UNHEALTHY}
)
"""Ends that count as losses after a notice: the cloud would have reclaimed the instance anyway."""


def ended_why(
    kind: ActivityKind, *, lost: bool = False, by_us: bool = False, stated: ActivityKind | None = None
) -> ActivityKind:
    """The kind of an activity, corrected by other facts about its instance.

    `lost`: it was under a notice of its cloud. `by_us`: according to the ledger, a watchdog ended it. `stated`: the
    reason in its description; EC2 states the same reason for ends by a watchdog and by a person.
    """
    if lost and kind in _LOST_ANYWAY:
        return ActivityKind.PREEMPTED
    if kind is not ActivityKind.ENDED_UNSTATED:
        return kind
    if by_us and stated is not ActivityKind.PREEMPTED:
        return ActivityKind.ENDED
    return stated or kind


class EndReasons:
    """Finds the reasons of ends in one fleet. It caches descriptions, since a pass observes several times."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.stated: dict[tuple[str, datetime], ActivityKind] = {}
        """By ended instance and launch: the reason of its description, or of an earlier observation."""
        self._asked: dict[str, datetime] = {}

    def resolved(self, events: Iterable[Activity], lost: Collection[str], now: datetime) -> list[Activity]:
        """The activities with the known reasons. `lost`: instances that were under notice.

        At most one call to the cloud; if it fails, the ends stay unstated. Raises OSError of the ledger.
        """
        events = list(events)
        unstated = {
            event.instance_id: event.at
            for event in events
            if event.kind is ActivityKind.ENDED_UNSTATED
            and event.instance_id is not None
            and event.instance_id not in lost
        }
        by_us = self._ended_by_us(unstated)
        self._describe([key for key, at in unstated.items() if now - at < DESCRIBED_FOR], now)
        return [
            replace(event, kind=kind) if (kind := self._why(event, lost, by_us)) is not event.kind else event
            for event in events
        ]

    def _why(self, event: Activity, lost: Collection[str], by_us: Collection[str]) -> ActivityKind:
        key = event.instance_id
        if key is None:
            return event.kind
        return ended_why(event.kind, lost=key in lost, by_us=key in by_us, stated=self._stated_of(key, event.at))

    def _stated_of(self, instance_id: str, at: datetime) -> ActivityKind | None:
        """The reason for the run that ended then: a new machine may have the same name."""
        launches = sorted(launched for key, launched in self.stated if key == instance_id)
        begun = [launched for launched in launches if launched <= at] or launches[:1]
        return self.stated[instance_id, begun[-1]] if begun else None

    def _ended_by_us(self, unstated: Mapping[str, datetime]) -> frozenset[str]:
        """Instances that a watchdog ended. Reasons of the others from earlier observations are loaded."""
        if not unstated:
            return frozenset()
        ledger = self._ports.ledger
        for boot in ledger.boots():
            if boot.instance_id in unstated and boot.ended_why not in (None, ActivityKind.ENDED_UNSTATED):
                self.stated.setdefault(boot.key, boot.ended_why)
        since = min(unstated.values()) - DESCRIBED_FOR
        past = [past for watchdog in (SPOT, IDLE) for past in ledger.done_since(watchdog, since)]
        return frozenset(one.resource for one in past if one.action in _ENDS and one.resource in unstated)

    def _describe(self, instance_ids: Sequence[str], now: datetime) -> None:
        """Read the descriptions of instances without a known reason."""
        known = {key for key, _ in self.stated}
        asked = [
            key
            for key in instance_ids
            if key not in known and (key not in self._asked or now - self._asked[key] >= ASK_AGAIN)
        ]
        if not asked:
            return
        self._asked |= dict.fromkeys(asked, now)
        try:
            found = self._ports.inventory.ended(asked)
        except OSError as error:
            self._ports.log.error("end_reasons_unreadable", resources=asked, error=str(error))
            return
        self.stated |= {(one.id, one.launched_at): one.end_reason for one in found if one.end_reason is not None}
