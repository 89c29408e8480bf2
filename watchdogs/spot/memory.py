"""What a zone's past says about its future: how often and how lately it lost us while we were there. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.activity import Activity, ActivityKind

HALF_LIFE: Final = timedelta(hours=24)
"""After this time an hour counts half, since markets move by the day."""
PRIOR_LOSSES: Final = 1.0
PRIOR_HOURS: Final = 10.0
"""A zone that nobody knows is taken for one that loses us every ten hours."""
SAME_LOSS: Final = timedelta(minutes=1)
"""Losses of a zone this close together are one."""
TROUBLE: Final = 5.0
"""A zone that has just lost or refused us is this much likelier to lose us than its average says: trouble comes in
spells, and a run of capacity that has lasted goes on."""
TROUBLE_HALF_LIFE: Final = timedelta(hours=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Losses and hours of presence of a zone, faded, as of a moment."""

    at: datetime
    losses: float = 0.0
    hours: float = 0.0
    failed_at: datetime | None = None
    """When it last lost or refused us; None: never seen."""

    def passed(self, now: datetime, *, present: bool) -> "Memory":
        """The memory after some more time, with us there or not."""
        if now <= self.at:
            return self
        fading = 0.5 ** ((now - self.at) / HALF_LIFE)
        spent = (now - self.at) / timedelta(hours=1) if present else 0.0
        return replace(self, at=now, losses=self.losses * fading, hours=self.hours * fading + spent)

    def lost(self) -> "Memory":
        """The memory after a loss."""
        return replace(self, losses=self.losses + 1, failed_at=self.at)

    def refused(self) -> "Memory":
        """The memory after the zone had no room for one more."""
        return replace(self, failed_at=self.at)

    @property
    def losses_per_hour(self) -> float:
        """How often the zone is expected to lose us from now on."""
        usual = (self.losses + PRIOR_LOSSES) / (self.hours + PRIOR_HOURS)
        if self.failed_at is None:
            return usual
        return usual * (1 + TROUBLE * 0.5 ** ((self.at - self.failed_at) / TROUBLE_HALF_LIFE))


_CHANGES: Final = {
    ActivityKind.LAUNCHED: 1,
    ActivityKind.PREEMPTED: -1,
    ActivityKind.ENDED: -1,
    ActivityKind.UNHEALTHY: -1,
    ActivityKind.NO_CAPACITY: 0,
}
"""By how many instances a zone has more of us after it."""


def recall(events: Sequence[Activity], present_since: Sequence[datetime], now: datetime) -> Memory:
    """The memory of a zone from its group's activities (oldest first) and from who is there now."""
    edges = [(event.at, event.kind) for event in events if event.kind in _CHANGES]
    launched = {at for at, kind in edges if kind is ActivityKind.LAUNCHED}
    begun = min((edges[0][0] if edges else now), *(present_since or (now,)))
    # who is there but whose launch lies before the first activity that we know
    known = [at for at in present_since if all(abs(at - there) > SAME_LOSS for there in launched)]
    edges += [(at, ActivityKind.LAUNCHED) for at in known]
    memory, there, last_loss = Memory(at=begun), 0, None
    for at, kind in sorted(edges, key=lambda edge: edge[0]):
        memory = memory.passed(at, present=there > 0)
        there = max(0, there + _CHANGES[kind])
        if kind is ActivityKind.NO_CAPACITY:
            memory = memory.refused()
        elif kind is ActivityKind.PREEMPTED and (last_loss is None or at - last_loss > SAME_LOSS):
            memory, last_loss = memory.lost(), at
    return memory.passed(now, present=there > 0 or bool(present_since))
