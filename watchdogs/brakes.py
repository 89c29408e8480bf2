"""The brakes that apply to a pool or an instance."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.model import Instance
from gpufleet.domain.tags import KEEP_UNTIL

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


def who_and_why(brake: Brake) -> str:
    """`by ann until 2026-11-22 18:00 UTC: the reason`."""
    return f"by {brake.owner} {until_when(brake.until)}: {brake.reason}"


def until_when(end: datetime | None) -> str:
    """Until when a brake applies, as text; None: until `gpufleet resume`."""
    return "until `gpufleet resume`" if end is None else f"until {end:%Y-%m-%d %H:%M} UTC"


def paused_by(pool: str, brakes: Sequence[Brake]) -> str | None:
    """Who paused the watchdogs of a pool, until when and why; of several pauses, the one that lasts longest."""
    found = longest([b for b in brakes if b.counts_as(BrakeKind.PAUSE) and b.scope in ("all", pool)])
    return None if found is None else who_and_why(found)


def target_held_by(pool: str, brakes: Sequence[Brake]) -> str | None:
    """Who holds a pool's target, until when and why."""
    found = longest([b for b in brakes if b.counts_as(BrakeKind.TARGET) and b.scope == pool])
    return None if found is None else f"target held {who_and_why(found)}"


def kept_by(instances: Sequence[Instance], brakes: Sequence[Brake]) -> dict[str, str]:
    """By instance: who asked to keep it. A pause of a single instance keeps it, too."""
    pools = {i.pool for i in instances}
    keeps: dict[str, list[Brake]] = {}
    for brake in brakes:
        alone = brake.kind is BrakeKind.PAUSE and brake.scope not in ("all", *pools)
        if brake.counts_as(BrakeKind.KEEP) or alone:
            keeps.setdefault(brake.scope, []).append(brake)
    found: dict[str, str] = {}
    for instance in instances:
        # several brakes may apply: on the instance, its pool, or all pools
        kept = longest([brake for s in (instance.id, instance.pool, "all") for brake in keeps.get(s or "", ())])
        if kept is not None:
            found[instance.id] = who_and_why(kept)
    return found


def kept_by_tag(instance: Instance, now: datetime) -> str | None:
    """Until when its keep-until tag keeps it, as text; None: without a tag, or with an expired one."""
    written = instance.tags.get(KEEP_UNTIL)
    if written is None:
        return None
    until = instance.keep_until
    if until is None:
        return f"by its keep-until tag {written!r}, which is not a valid time"
    return f"until {until:%Y-%m-%d %H:%M} UTC" if now < until else None


def kept_by_people(instances: Sequence[Instance], brakes: Sequence[Brake], now: datetime) -> dict[str, str]:
    """By instance: who asked to keep it, by brake or by tag; absent: nobody."""
    tagged = {one.id: reason for one in instances if (reason := kept_by_tag(one, now)) is not None}
    return tagged | kept_by(instances, brakes)


def longest(brakes: Sequence[Brake]) -> Brake | None:
    """The brake that holds longest; None: there is none."""
    return max(brakes, key=lambda brake: brake.until or _NEVER, default=None)
