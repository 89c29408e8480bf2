"""Chooses the zones in which spot is requested. Pure.

A zone is not asked again in a pass after it refused. The order is by risk (`risk`), from the decaying history of each
zone (`risk.ZoneHistory`); a zone with an instance under notice comes last. Moves to a safer zone are tried only
rarely.
"""

import math
import textwrap
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Objection, Reason
from gpufleet.domain.durations import approximate
from gpufleet.domain.model import CapacityType
from watchdogs import boots
from watchdogs.spot import risk
from watchdogs.spot.pool_view import GroupView, SpotPoolView
from watchdogs.spot.risk import LOSSES, TROUBLE_HALF_LIFE

ZONE_SHARE: Final = 0.5
"""Largest share of a pool in one zone while other zones have capacity. On generated markets, a lower share dropped
below the target more often (by a quarter at 0.4), and a higher share left the pool without any instance more often.
"""
OTHERS_AFTER: Final = 1 / 3
"""Share of `fallback_after` after which further zones are asked in addition to those without an answer. A zone with
capacity answers within seconds."""
FAILING_BOOTS: Final = 3
"""Failed boots within `FAILED_BOOT_WINDOW` that stop a group's growth."""
FAILED_BOOT_WINDOW: Final = timedelta(hours=1)
TRY_AGAIN: Final = timedelta(minutes=30)
"""Shortest interval between two moves to the same zone."""
ADD_EXTRA: Final = 0.1
"""Drops below the target per hour that one more instance must prevent to be worth its price (see `risk`): preventing
one drop is worth ten instance hours."""
KEEP_EXTRA: Final = 0.8 * ADD_EXTRA
FIRST_PAUSE: Final = 1 / 40
"""First pause after a refusal, as a share of the back-off: 30 s of 20 min."""
MAX_PAUSE: Final = 1 / 4
"""Longest pause after repeated refusals, as a share of the back-off. With a longer one, returning spot capacity stays
unused; with a shorter one, a market without capacity costs two writes per zone and pass."""
MIN_GAIN: Final = 0.01
"""Drops per hour that a move to another zone must prevent, since it costs a drain and a boot."""
CEILING: Final = "price_ceiling"
"""Evidence key: that the price ceiling was not checked, and why."""
PREEMPTION_DISCOUNT_SPAN: Final = TROUBLE_HALF_LIFE
"""How long a loss before readiness discounts booting instances: losses come in clusters."""
_ANSWERS: Final = LOSSES | {ActivityKind.LAUNCHED}
_LAUNCHES: Final = frozenset({ActivityKind.LAUNCHED, ActivityKind.IN_PROGRESS})
"""Behind a launch hook a launch is in progress until the instance is ready."""


def allocate_requests(
    pool: SpotPoolView, missing: int, now: datetime, besides: Collection[str] = ()
) -> Mapping[str, int]:
    """How many more to request of each group now. `besides`: groups to leave out."""
    asks: dict[str, int] = {}
    if missing <= 0:
        return asks
    spots = pool.spot_placements()
    open_groups = {group.name: group for group in requestable_groups(pool, now) if group.name not in besides}
    capacity = {name: group.max - len(pool.members_of(name)) for name, group in open_groups.items()}
    now_held = counts(pool)
    warned = {name for name in open_groups if under_notice(pool, name)}
    needed = max(0, pool.target - _reserved(pool))
    most = _share(pool)
    named = _named(pool, now) & open_groups.keys()
    for _ in range(missing):
        able = [placement for placement in spots if capacity.get(placement.name, 0) > 0]
        # a zone with a notice is asked only if no other zone is possible
        able = [placement for placement in able if placement.name not in warned] or able
        # a full zone share is still better than on-demand
        able = [placement for placement in able if now_held[placement.name] < most] or able
        # a zone with capacity now is better than a safer zone
        able = [placement for placement in able if placement.name in named] or able
        best = risk.best_addition(able, spots, now_held, needed, pool.spare)
        if best is None:
            break
        asks[best] = asks.get(best, 0) + 1
        now_held = risk.with_one_more(now_held, best)
        capacity[best] -= 1
    return asks


def with_others(pool: SpotPoolView, asks: Mapping[str, int], most: int, now: datetime) -> Mapping[str, int]:
    """The requests, with further zones once one has refused or is slow: one instance each, `most` in total.

    All instances are kept until enough are ready; the surplus is given back then.
    """
    since = pool.asked_since
    if not asks or since is None:
        return asks
    slow = now - since >= OTHERS_AFTER * pool.policy.fallback_after
    refused = any(event.kind.refuses and event.at >= pool.pass_started for event in pool.events)
    if not slow and not refused:
        return asks
    found = dict(asks)
    for _ in range(most):
        found |= allocate_requests(pool, 1, now, besides=found)
    return found


def is_out_of_time(pool: SpotPoolView, now: datetime) -> bool:
    """Whether this pass has waited for the groups of the pool for `fallback_after`. It requests nothing more then."""
    return pool.asked_since is not None and now - pool.asked_since >= pool.policy.fallback_after


def _named(pool: SpotPoolView, now: datetime) -> set[str]:
    """Spot groups in zones that a recent refusal named as zones with capacity.

    It counts for at most the longest pause after refusals: clouds sometimes name zones that refuse then.
    """
    spot = {group.name: group.zone for group in pool.groups_of(CapacityType.SPOT)}
    longest = pool.policy.zone_backoff * MAX_PAUSE
    lately = [event for event in pool.events if event.group in spot and now - event.at < longest]
    zones = {zone for event in lately for zone in event.zones_available}
    return {name for name, zone in spot.items() if zone in zones}


def _share(pool: SpotPoolView) -> int:
    """Maximum instances in one zone while other zones have capacity: the most that the loss of one zone may cost."""
    return max(1, math.ceil(ZONE_SHARE * (pool.target + pool.spare)))


def counts(pool: SpotPoolView) -> dict[str, int]:
    """Number of counting spot instances, by group."""
    found = {group.name: 0 for group in pool.groups_of(CapacityType.SPOT)}
    for member in pool.members:
        if member.group in found and not member.leaving and not member.failed and not member.late:
            found[member.group] += 1
    return found


def extra(pool: SpotPoolView, base: int, now: datetime) -> int:
    """1 if one more instance than the spare is worth its price because the loss of a zone would exceed the spare;
    else 0.

    Only for a pool with a spare: without one, people prefer a lower cost to a stable target.
    """
    held = counts(pool)
    total = sum(held.values())
    if pool.spare == 0 or total < base or base == 0:
        return 0
    spots, needed = pool.spot_placements(), max(0, pool.target - _reserved(pool))
    risk_now = risk.risk(spots, held, needed)
    if total > base:
        without = risk.with_one_less(held, risk.best_removal(spots, held, needed))
        return 1 if risk.risk(spots, without, needed) - risk_now >= KEEP_EXTRA else 0
    recent = {e.group for e in pool.events if e.kind.refuses and now - e.at < TRY_AGAIN}
    able = {group.name for group in requestable_groups(pool, now)} - recent
    most = _share(pool)
    roomy = [placement for placement in spots if placement.name in able and held[placement.name] < most]
    best = risk.best_addition(roomy, spots, held, needed, pool.spare)
    if best is None:
        return 0
    return 1 if risk_now - risk.risk(spots, risk.with_one_more(held, best), needed) > ADD_EXTRA else 0


def preempted_while_booting(pool: SpotPoolView, now: datetime) -> int:
    """How many spot instances were reclaimed recently before they were ready.

    For instances that were never observed, their groups may report launch and end.
    """
    spot = {group.name for group in pool.groups_of(CapacityType.SPOT)}
    seen = [boot for boot in pool.boots if boot.group in spot and boot.left_at is not None]
    young = sum(
        boot.ended_why is ActivityKind.PREEMPTED and boot.ready_at is None and boots.was_watched(boot)
        for boot in seen
        if boot.left_at is not None and now - boot.left_at < PREEMPTION_DISCOUNT_SPAN
    )
    known = {boot.instance_id for boot in pool.boots}
    launched = {event.instance_id: event.at for event in pool.events if event.kind in _LAUNCHES}
    unseen = {
        event.instance_id
        for event in pool.events
        if event.kind in LOSSES and event.group in spot and event.instance_id not in known
        if event.instance_id in launched and now - event.at < PREEMPTION_DISCOUNT_SPAN
        if event.at - launched[event.instance_id] < pool.boot_expected
    }
    return young + len(unseen)


def move_destinations(pool: SpotPoolView, now: datetime) -> list[str]:
    """Spot groups that an instance may move to: requestable, below the share of a zone, without a notice, and
    without a recent refusal, launch or loss.
    """
    recent = {e.group for e in pool.events if (e.kind.refuses or e.kind in _ANSWERS) and now - e.at < TRY_AGAIN}
    held, most = counts(pool), _share(pool)
    return [
        group.name
        for group in pool.groups_of(CapacityType.SPOT)
        if held[group.name] < most
        and group.name not in recent
        and not under_notice(pool, group.name)
        and _closed(pool, group, now) is None
    ]


def under_notice(pool: SpotPoolView, group: str) -> bool:
    """Whether an instance of that group is under notice."""
    return any(member.under_notice for member in pool.members_of(group))


def _reserved(pool: SpotPoolView) -> int:
    names = {group.name for group in pool.groups_of(CapacityType.RESERVED)}
    return sum(1 for m in pool.members if m.group in names and not m.leaving and not m.failed and not m.late)


def requestable_groups(pool: SpotPoolView, now: datetime) -> list[GroupView]:
    """Spot groups from which this pass may request instances."""
    return [group for group in pool.groups_of(CapacityType.SPOT) if _closed(pool, group, now) is None]


def obstacle(pool: SpotPoolView, group: GroupView, now: datetime) -> Objection | None:
    """Why a group is not preferred now; None: no reason."""
    closed = _closed(pool, group, now)
    if closed is not None:
        return closed
    fading = penalty(pool, group, now)
    if fading > 0:
        return Objection(reason=Reason.ZONE_BACKING_OFF, detail=f"penalty {fading:.2f}, fading")
    return None


def penalty(pool: SpotPoolView, group: GroupView, now: datetime) -> float:
    """From 1 right after a setback down to 0 when the back-off is over; setbacks add up."""
    span = pool.policy.zone_backoff
    if span <= timedelta(0):
        return 0.0
    recent = _since(pool, group, now - span)
    setbacks = [event for event in recent if event.kind.refuses or event.kind in LOSSES]
    noticed = [1.0 for member in pool.members_of(group.name) if member.under_notice]
    return sum([*noticed, *(1 - (now - event.at) / span for event in setbacks)], start=0.0)


def _since(pool: SpotPoolView, group: GroupView, moment: datetime) -> list[Activity]:
    """Activities of a group after a time, oldest first."""
    return [event for event in pool.events_of(group.name) if event.at > moment]


def _closed(pool: SpotPoolView, group: GroupView, now: datetime) -> Objection | None:
    """Why a group must not be asked in this pass; None: it may be."""
    return (
        group.frozen
        or group.closed
        or _too_expensive(pool, group)
        or quota_objection(pool, group, now)
        or boots_objection(pool, group, now)
        or _refused(pool, group, now)
        or _pause_objection(pool, group, now)
        or _full(pool, group)
    )


def _too_expensive(pool: SpotPoolView, group: GroupView) -> Objection | None:
    """Why the spot price of a zone is too high: at or above the on-demand price or the ceiling. None: it is not."""
    if group.usd_per_hour is None or pool.on_demand_usd is None:
        return None
    ceiling = pool.on_demand_usd * pool.policy.price_ceiling
    if group.usd_per_hour < min(ceiling, pool.on_demand_usd):
        return None
    return Objection(reason=Reason.SPOT_TOO_EXPENSIVE, detail=f"{group.usd_per_hour} USD/h, ceiling {ceiling}")


def unpriced(pool: SpotPoolView, group: GroupView) -> str | None:
    """Which price is missing to check the ceiling of a zone; None: none.

    The zone is asked anyway: on neither cloud spot costs more than on-demand, which would be bought instead.
    """
    if group.usd_per_hour is None:
        return "its spot price is unknown"
    return "the on-demand price is unknown" if pool.on_demand_usd is None else None


def quota_objection(pool: SpotPoolView, group: GroupView, now: datetime) -> Objection | None:
    """Which quota is reached; None: none. It applies to the whole account and region, so neither other zones nor
    retries help.

    Each capacity type has its own quota, and an account may have one for all of them.
    """
    same = {g.name for g in pool.groups_of(group.capacity_type)}
    refused = [
        event
        for event in pool.events
        if event.kind is ActivityKind.QUOTA and (event.group in same or event.account_wide)
    ]
    hit = [event for event in refused if now - event.at < pool.policy.zone_backoff]
    return Objection(reason=Reason.QUOTA, detail=_short_message(hit[-1])) if hit else None


def refused_last(pool: SpotPoolView, group: GroupView) -> str | None:
    """The message of the newest activity of a group if it is a refusal; else None."""
    events = pool.events_of(group.name)
    return _short_message(events[-1]) if events and events[-1].kind.refuses else None


def _short_message(event: Activity) -> str:
    """The message of the cloud, shortened to one line."""
    message = event.detail
    return message if len(message) <= 120 else textwrap.shorten(message, 120, placeholder="…")


def boots_objection(pool: SpotPoolView, group: GroupView, now: datetime) -> Objection | None:
    """Why a group must not grow: boots fail there. None: it may."""
    if (failed := failed_boots(pool, group, now)) < FAILING_BOOTS:
        return None
    return Objection(
        reason=Reason.BOOTS_FAILING, detail=f"{failed} boots failed within {approximate(FAILED_BOOT_WINDOW)}"
    )


def failed_boots(pool: SpotPoolView, group: GroupView, now: datetime) -> int:
    """Number of recently failed boots of a group, of existing and of ended instances.

    Recently: since the last successful boot, and since a person requested a retry.
    """
    return len(_failures(pool, group, now))


def closed_since(pool: SpotPoolView, group: GroupView, now: datetime) -> datetime | None:
    """Since when launches of a group are useless: the last time that its closing failed boot was alive.

    None: it is open.
    """
    failures = sorted(_failures(pool, group, now).values())
    return failures[FAILING_BOOTS - 1] if len(failures) >= FAILING_BOOTS else None


def _failures(pool: SpotPoolView, group: GroupView, now: datetime) -> dict[str, datetime]:
    """By instance with a failed boot: when it was last observed."""
    members = pool.members_of(group.name)
    own = [boot for boot in pool.boots if boot.group == group.name]
    found = {m.id: (now, now) for m in members if m.failed and m.crashed_at is None}
    spot = group.capacity_type is CapacityType.SPOT
    found |= {
        b.instance_id: (b.last_seen_at, b.left_at)
        for b in own
        if b.left_at is not None and boots.failed(b, spot=spot)
    }
    known = {boot.instance_id for boot in own}
    for event in pool.events:
        # activities of the group report failed boots that were never observed
        if event.kind is ActivityKind.FAILED_BOOT and event.group == group.name and event.instance_id not in known:
            found[event.instance_id or event.id] = (event.at, event.at)
    if not found:
        return {}
    ready = [(m.launched_at, m.ready_since) for m in members] + [(b.launched_at, b.ready_at) for b in own]
    booted = [since for launched, since in ready if since is not None and boots.is_boot(launched, since)]
    since = max(now - FAILED_BOOT_WINDOW, pool.retry_requested_at or now - FAILED_BOOT_WINDOW, *booted)
    return {key: seen for key, (seen, failed_at) in found.items() if failed_at > since}


def _refused(pool: SpotPoolView, group: GroupView, now: datetime) -> Objection | None:
    events = pool.events_of(group.name)
    refused = [event for event in events if event.kind.refuses and event.at >= pool.pass_started]
    launches_by_itself = group.desired > len(pool.members_of(group.name)) and not group.awaited
    if not refused and launches_by_itself and events and events[-1].kind.refuses:
        # it is replacing a lost instance, and was refused before this pass began
        refused = [event for event in events[-1:] if now - event.at < pool.policy.zone_backoff]
    if not refused:
        return None
    # an unknown message does not count as missing capacity
    reason = Reason.ZONE_BACKING_OFF if refused[-1].kind is ActivityKind.UNKNOWN else Reason.NO_SPOT
    return Objection(reason=reason, detail=_short_message(refused[-1]))


def refusal_pause(refusals: int, backoff: timedelta) -> timedelta:
    """Pause after this number of refusals of a zone within its back-off. It doubles each time."""
    # the exponent is bounded: a zone may have refused a thousand times
    return backoff * min(MAX_PAUSE, FIRST_PAUSE * 2 ** (min(refusals, 10) - 1)) if refusals > 0 else timedelta(0)


def _refusals(pool: SpotPoolView, group: GroupView, now: datetime) -> list[datetime]:
    """Times of refusals of a zone within its back-off and since its last launch, newest first.

    A group requests many instances at once, and not again before the first pause is over: refusals within that pause
    count as one.
    """
    found: list[datetime] = []
    one_ask = refusal_pause(1, pool.policy.zone_backoff)
    for event in reversed(_since(pool, group, now - pool.policy.zone_backoff)):
        if event.kind is ActivityKind.LAUNCHED:
            break
        if event.kind.refuses and (not found or found[-1] - event.at >= one_ask):
            found.append(event.at)
    return found


def _pause_objection(pool: SpotPoolView, group: GroupView, now: datetime) -> Objection | None:
    """Why a zone must not grow: it refused in earlier passes and is still in its pause. None: it may."""
    refused = _refusals(pool, group, now)
    left = refusal_pause(len(refused), pool.policy.zone_backoff) - (now - refused[0]) if refused else timedelta(0)
    if left <= timedelta(0):
        return None
    detail = f"refused {len(refused)} times recently; asked again in {left.total_seconds():.0f} s"
    return Objection(reason=Reason.ZONE_BACKING_OFF, detail=detail)


def _full(pool: SpotPoolView, group: GroupView) -> Objection | None:
    if len(pool.members_of(group.name)) < group.max:
        return None
    return Objection(reason=Reason.AS_WANTED, detail=f"at its maximum size of {group.max}")
