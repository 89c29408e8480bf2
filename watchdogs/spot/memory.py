"""What a zone's past says about its future: how often it lost us, per hour that we were there. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fleet.activity import Activity, ActivityKind

HALF_LIFE: Final = timedelta(hours=24)
"""After this time an hour counts half, since markets move by the day."""
PRIOR_LOSSES: Final = 0.3
PRIOR_HOURS: Final = 3.0
"""A zone that nobody knows is taken for one that loses us every ten hours."""
SAME_LOSS: Final = timedelta(minutes=1)
"""Losses of a zone this close together are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Losses and hours of presence of a zone, faded, as of a moment."""

    at: datetime
    losses: float = 0.0
    hours: float = 0.0

    def passed(self, now: datetime, *, present: bool) -> "Memory":
        """The memory after some more time, with us there or not."""
        span = now - self.at
        if span <= timedelta(0):
            return self
        fading = 0.5 ** (span / HALF_LIFE)
        return Memory(
            at=now,
            losses=self.losses * fading,
            hours=self.hours * fading + (span / timedelta(hours=1) if present else 0.0),
        )

    def lost(self) -> "Memory":
        """The memory after a loss."""
        return Memory(at=self.at, losses=self.losses + 1, hours=self.hours)

    @property
    def losses_per_hour(self) -> float:
        return (self.losses + PRIOR_LOSSES) / (self.hours + PRIOR_HOURS)


def recall(events: Sequence[Activity], present_since: Sequence[datetime], now: datetime) -> Memory:
    """The memory of a zone from its group's activities (oldest first) and from who is there now."""
    edges = [
        (event.at, 1 if event.kind is ActivityKind.LAUNCHED else -1, event.kind is ActivityKind.PREEMPTED)
        for event in events
        if event.kind in (ActivityKind.LAUNCHED, ActivityKind.PREEMPTED, ActivityKind.ENDED, ActivityKind.UNHEALTHY)
    ]
    launched = {event.at for event in events if event.kind is ActivityKind.LAUNCHED}
    begun = min((edges[0][0] if edges else now), *(present_since or (now,)))
    # who is there but whose launch lies before the first activity that we know
    edges += [(at, 1, False) for at in present_since if all(abs(at - known) > SAME_LOSS for known in launched)]
    memory, there, last_loss = Memory(at=begun), 0, None
    for at, change, loss in sorted(edges, key=lambda edge: edge[0]):
        memory = memory.passed(at, present=there > 0)
        there = max(0, there + change)
        if loss and (last_loss is None or at - last_loss > SAME_LOSS):
            memory, last_loss = memory.lost(), at
    return memory.passed(now, present=there > 0 or bool(present_since))
