"""Manual overrides: what operators exclude from the watchdogs, and for how long."""

from dataclasses import dataclass
from datetime import datetime

from gpufleet.domain.codes import Code


class BrakeKind(Code):
    """The kinds of manual override."""

    PAUSE = "pause", "pause"
    KEEP = "keep", "keep"
    TARGET = "target", "target"
    """A pool's target stays at the value that an operator set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brake:
    """A manual override: owner, reason and end."""

    kind: BrakeKind
    scope: str
    """`all`, a pool's name or an instance id."""
    owner: str
    reason: str
    until: datetime | None
    """None: until an operator resumes."""
    since: datetime
    id: int = 0
    """Its id in the ledger; 0 if it is not stored yet."""

    def counts_as(self, kind: BrakeKind) -> bool:
        """Whether it has that kind. An unknown kind, from a newer release, counts as each kind."""
        return self.kind is kind or not self.kind.known

    def is_active(self, now: datetime) -> bool:
        return self.until is None or now < self.until
