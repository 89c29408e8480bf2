"""Hand brakes: what people ask the watchdogs to leave alone, and for how long."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class BrakeKind(StrEnum):
    """What people may ask for."""

    PAUSE = "pause"
    KEEP = "keep"
    TARGET = "target"
    """A pool's target stays as a person set it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brake:
    """A hand brake: who, why, until when."""

    kind: BrakeKind
    scope: str
    """`all`, a pool's name or an instance id."""
    owner: str
    reason: str
    until: datetime | None
    """None: until somebody resumes."""

    def holds(self, now: datetime) -> bool:
        return self.until is None or now < self.until
