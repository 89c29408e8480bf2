"""What the hand brakes say of a pool or an instance."""

from collections.abc import Sequence

from fleet.model import Instance
from watchdogs.ports import Brake, BrakeKind


def paused_by(pool: str, brakes: Sequence[Brake]) -> str | None:
    """Who paused the watchdogs of a pool, until when and why."""
    for brake in brakes:
        if brake.kind is BrakeKind.PAUSE and brake.scope in ("all", pool):
            until = f" until {brake.until:%Y-%m-%d %H:%M} UTC" if brake.until else ""
            return f"by {brake.owner}{until}: {brake.reason}"
    return None


def kept_by(instances: Sequence[Instance], brakes: Sequence[Brake]) -> dict[str, str]:
    """By instance: who asked to keep it. A pause of a single instance keeps it, too."""
    said = {
        brake.scope: f"by {brake.owner}: {brake.reason}"
        for brake in brakes
        if brake.kind is BrakeKind.KEEP or brake.scope not in ("all", *{i.pool for i in instances})
    }
    found: dict[str, str] = {}
    for instance in instances:
        scope = next((s for s in (instance.id, instance.pool, "all") if s in said), None)
        if scope is not None:
            found[instance.id] = said[scope]
    return found
