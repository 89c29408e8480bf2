"""Hand brakes: what people ask the watchdogs to leave alone, and for how long."""

from dataclasses import dataclass
from datetime import datetime

from gpufleet.domain.codes import Code


class BrakeKind(Code):
    """What people may ask for."""

    PAUSE = "pause", "pause"
    KEEP = "keep", "keep"
    TARGET = "target", "target"
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
    since: datetime
    id: int = 0
    """Its number in the ledger; 0: it is not there yet."""

    def acts_as(self, kind: BrakeKind) -> bool:
        """Whether it is of that kind. One whose kind this release does not know holds as each of them."""
        return self.kind is kind or not self.kind.known

    def holds(self, now: datetime) -> bool:
        return self.until is None or now < self.until
