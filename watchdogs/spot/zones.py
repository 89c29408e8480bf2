"""Where spot is asked for, and where not. Pure.

A zone is never asked twice in one pass after it refused. One that refused or lost capacity lately is asked last; the
penalty decays over the policy's back-off. Among equals the zone with the fewest of ours comes first, so that the loss
of one zone costs the least.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from fleet.activity import Activity, ActivityKind
from fleet.model import CapacityType
from watchdogs.plan import Reason
from watchdogs.spot.view import GroupView, PoolView

FAILING_BOOTS: Final = 3
"""Failed boots within `BOOT_SPAN` that stop a group's growth."""
BOOT_SPAN: Final = timedelta(hours=1)
REFUSALS: Final = frozenset(
    {ActivityKind.NO_CAPACITY, ActivityKind.QUOTA, ActivityKind.PRICE, ActivityKind.LAUNCH_FAILED}
)
_SETBACKS: Final = REFUSALS | {ActivityKind.PREEMPTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a group is not asked, or asked last."""

    reason: Reason
    detail: str = ""


def place(pool: PoolView, missing: int, now: datetime) -> Mapping[str, int]:
    """How many more to ask of each group now."""
    asks: dict[str, int] = {}
    open_groups = untried(pool, now)
    room = {group.name: group.max - len(pool.members_of(group.name)) for group in open_groups}
    crowd = {group.name: len([m for m in pool.members_of(group.name) if not m.leaving]) for group in open_groups}
    penalties = {group.name: penalty(pool, group, now) for group in open_groups}
    for _ in range(missing):
        able = [group for group in open_groups if room[group.name] > 0]
        if not able:
            break
        best = min(
            able,
            key=lambda g: (
                penalties[g.name] > 0,
                crowd[g.name],
                penalties[g.name],
                g.usd_per_hour is None,
                g.usd_per_hour or Decimal(0),
                g.name,
            ),
        )
        asks[best.name] = asks.get(best.name, 0) + 1
        crowd[best.name] += 1
        room[best.name] -= 1
    return asks


def untried(pool: PoolView, now: datetime) -> list[GroupView]:
    """The spot groups that may still be asked in this pass."""
    return [group for group in pool.groups_of(CapacityType.SPOT) if _closed(pool, group, now) is None]


def verdict(pool: PoolView, group: GroupView, now: datetime) -> Verdict | None:
    """What speaks against a group; None: nothing."""
    closed = _closed(pool, group, now)
    if closed is not None:
        return closed
    share = penalty(pool, group, now)
    if share > 0:
        return Verdict(reason=Reason.ZONE_BACKING_OFF, detail=f"asked last; penalty {share:.2f}")
    return None


def penalty(pool: PoolView, group: GroupView, now: datetime) -> float:
    """From 1 right after a setback down to 0 when the back-off is over; setbacks add up."""
    span = pool.policy.zone_backoff
    if span <= timedelta(0):
        return 0.0
    ages = [now - e.at for e in pool.events if e.group == group.name and e.kind in _SETBACKS]
    noticed = sum(1.0 for member in pool.members_of(group.name) if member.under_notice)
    return noticed + sum(1 - age / span for age in ages if age < span)


def _closed(pool: PoolView, group: GroupView, now: datetime) -> Verdict | None:
    """Why a group must not be asked in this pass."""
    for check in (_too_dear, _at_quota, _boots_failing, _refused, _full):
        found = check(pool, group, now)
        if found is not None:
            return found
    return None


def _too_dear(pool: PoolView, group: GroupView, now: datetime) -> Verdict | None:
    if group.usd_per_hour is None or pool.on_demand_usd is None:
        return None
    ceiling = pool.on_demand_usd * pool.policy.price_ceiling
    if group.usd_per_hour < min(ceiling, pool.on_demand_usd):
        return None
    return Verdict(reason=Reason.SPOT_TOO_DEAR, detail=f"{group.usd_per_hour} USD/h, ceiling {ceiling}")


def _at_quota(pool: PoolView, group: GroupView, now: datetime) -> Verdict | None:
    """A quota holds for the whole account and region: no other zone helps, and asking again does not either."""
    names = {g.name for g in pool.groups_of(CapacityType.SPOT)}
    hit = [
        e
        for e in pool.events
        if e.kind is ActivityKind.QUOTA and e.group in names and now - e.at < pool.policy.zone_backoff
    ]
    return Verdict(reason=Reason.QUOTA, detail=hit[-1].detail[:120]) if hit else None


def _boots_failing(pool: PoolView, group: GroupView, now: datetime) -> Verdict | None:
    failed = failed_boots(pool, group, now)
    if failed < FAILING_BOOTS:
        return None
    return Verdict(reason=Reason.BOOTS_FAILING, detail=f"{failed} boots failed within {BOOT_SPAN}")


def failed_boots(pool: PoolView, group: GroupView, now: datetime) -> int:
    """Boots of a group that failed lately: those that are still there, and those that were replaced."""
    there = sum(1 for m in pool.members_of(group.name) if m.failed)
    gone = sum(1 for e in _of(pool, group) if e.kind is ActivityKind.UNHEALTHY and now - e.at < BOOT_SPAN)
    return there + gone


def _refused(pool: PoolView, group: GroupView, now: datetime) -> Verdict | None:
    events = _of(pool, group)
    refused = [e for e in events if e.kind in REFUSALS and e.at >= pool.pass_started]
    looking = group.desired > len(pool.members_of(group.name))
    if not refused and looking and events and events[-1].kind in REFUSALS:
        # the group looks by itself, for one that it lost, and was told no before this pass began
        refused = [e for e in events[-1:] if now - e.at < pool.policy.zone_backoff]
    return Verdict(reason=Reason.NO_SPOT, detail=refused[-1].detail[:120]) if refused else None


def _full(pool: PoolView, group: GroupView, now: datetime) -> Verdict | None:
    if len(pool.members_of(group.name)) < group.max:
        return None
    return Verdict(reason=Reason.AS_WANTED, detail=f"at its largest size of {group.max}")


def _of(pool: PoolView, group: GroupView) -> list[Activity]:
    return [event for event in pool.events if event.group == group.name]
