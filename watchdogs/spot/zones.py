"""Where spot is asked for, and where not. Pure.

A zone is never asked twice in one pass after it refused. The order is that of least risk (`risk`), from what each
zone's past says (`risk.Memory`), which fades; a zone that is just being taken comes last. For a better place a zone
is tried now and then only.
"""

import math
import textwrap
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Objection, Reason
from gpufleet.domain.model import CapacityType
from watchdogs import boots
from watchdogs.spot import risk
from watchdogs.spot.pool_view import GroupView, SpotPool
from watchdogs.spot.risk import LOSSES, TROUBLE_HALF_LIFE

ZONE_SHARE: Final = 0.5
"""Most of a pool's spot that one zone holds while others give. Less cost more falls below the target on generated
markets (a quarter more at 0.4), more left the pool with nothing in service more often."""
OTHERS_AFTER: Final = 1 / 3
"""Share of `fallback_after` after which other zones are asked beside those that have not answered. A zone that gives
is seen to do so within seconds."""
FAILING_BOOTS: Final = 3
"""Failed boots within `BOOT_SPAN` that stop a group's growth."""
BOOT_SPAN: Final = timedelta(hours=1)
TRY_AGAIN: Final = timedelta(minutes=30)
"""A zone is tried for a better place this often at most."""
ADD_EXTRA: Final = 0.1
"""Falls below the target per hour that one more instance must spare to be worth its price (see `risk`): a fall is
worth ten hours of it."""
KEEP_EXTRA: Final = 0.8 * ADD_EXTRA
FIRST_PAUSE: Final = 1 / 40
"""Share of the back-off for which a zone is left alone after it refused once: 30 s of 20 min."""
MOST_PAUSE: Final = 1 / 4
"""The same after it refused again and again. Longer, and spot that is back stays unused; shorter, and a dry market
costs two writes for each zone and pass."""
LEAST_GAIN: Final = 0.01
"""Falls per hour that a move to another zone must spare, since it costs a drain and a boot."""
CEILING: Final = "price_ceiling"
"""Under this a decision says of its evidence that the ceiling was not judged."""
YOUNG_SPAN: Final = TROUBLE_HALF_LIFE
"""For so long the loss of one that was not ready yet speaks against those that boot: losses come in spells."""
_ANSWERS: Final = LOSSES | {ActivityKind.LAUNCHED}
_LAUNCHES: Final = frozenset({ActivityKind.LAUNCHED, ActivityKind.IN_PROGRESS})
"""Behind a launch hook a launch goes on until the instance is ready."""


def place(pool: SpotPool, missing: int, now: datetime, besides: Collection[str] = ()) -> Mapping[str, int]:
    """How many more to ask of each group now; `besides`: groups that are not to be asked."""
    asks: dict[str, int] = {}
    if missing <= 0:
        return asks
    spots = pool.spot_places()
    open_groups = {group.name: group for group in untried(pool, now) if group.name not in besides}
    room = {name: group.max - len(pool.members_of(name)) for name, group in open_groups.items()}
    now_held = counts(pool)
    warned = {name for name in open_groups if under_notice(pool, name)}
    needed = max(0, pool.target - _reserved(pool))
    most = _share(pool)
    named = _named(pool, now) & open_groups.keys()
    for _ in range(missing):
        able = [place for place in spots if room.get(place.name, 0) > 0]
        # a zone that is just being taken is asked when nobody else gives
        able = [place for place in able if place.name not in warned] or able
        # what no other zone gives is still better here than bought on demand
        able = [place for place in able if now_held[place.name] < most] or able
        # one that gives now is better than one that would be safer
        able = [place for place in able if place.name in named] or able
        best = risk.best_addition(able, spots, now_held, needed, pool.spare)
        if best is None:
            break
        asks[best] = asks.get(best, 0) + 1
        now_held = risk.with_one_more(now_held, best)
        room[best] -= 1
    return asks


def with_others(pool: SpotPool, asks: Mapping[str, int], most: int, now: datetime) -> Mapping[str, int]:
    """The same, and other zones beside them once one has refused or is slow: one each, `most` in all.

    All that give are kept until others are ready, and then given back.
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
        found |= place(pool, 1, now, besides=found)
    return found


def is_out_of_time(pool: SpotPool, now: datetime) -> bool:
    """Whether this pass has waited for the pool's groups for `fallback_after`: it asks no more of them."""
    return pool.asked_since is not None and now - pool.asked_since >= pool.policy.fallback_after


def _named(pool: SpotPool, now: datetime) -> set[str]:
    """Spot groups in zones that a refusal of spot named a moment ago, as those that have what it refused.

    For as long as one that refuses is left alone at most. Clouds have been seen to name zones that then refused.
    """
    spot = {group.name: group.zone for group in pool.groups_of(CapacityType.SPOT)}
    longest = pool.policy.zone_backoff * MOST_PAUSE
    lately = [event for event in pool.events if event.group in spot and now - event.at < longest]
    zones = {zone for event in lately for zone in event.zones_available}
    return {name for name, zone in spot.items() if zone in zones}


def _share(pool: SpotPool) -> int:
    """Most instances of one zone while others give: what the loss of one zone may cost at most."""
    return max(1, math.ceil(ZONE_SHARE * (pool.target + pool.spare)))


def counts(pool: SpotPool) -> dict[str, int]:
    """Spot instances that count, by group."""
    found = {group.name: 0 for group in pool.groups_of(CapacityType.SPOT)}
    for member in pool.members:
        if member.group in found and not member.leaving and not member.failed and not member.late:
            found[member.group] += 1
    return found


def extra(pool: SpotPool, base: int, now: datetime) -> int:
    """One more than the spare, where a zone's loss would take more than the spare and one more pays for itself.

    Only for a pool that has a spare: without one, people chose money over a steady target.
    """
    held = counts(pool)
    total = sum(held.values())
    if pool.spare == 0 or total < base or base == 0:
        return 0
    spots, needed = pool.spot_places(), max(0, pool.target - _reserved(pool))
    risk_now = risk.risk(spots, held, needed)
    if total > base:
        without = risk.with_one_less(held, risk.best_removal(spots, held, needed))
        return 1 if risk.risk(spots, without, needed) - risk_now >= KEEP_EXTRA else 0
    recent = {e.group for e in pool.events if e.kind.refuses and now - e.at < TRY_AGAIN}
    able = {group.name for group in untried(pool, now)} - recent
    most = _share(pool)
    roomy = [place for place in spots if place.name in able and held[place.name] < most]
    best = risk.best_addition(roomy, spots, held, needed, pool.spare)
    if best is None:
        return 0
    return 1 if risk_now - risk.risk(spots, risk.with_one_more(held, best), needed) > ADD_EXTRA else 0


def taken_young(pool: SpotPool, now: datetime) -> int:
    """How many spot instances were taken lately before they were ready.

    Of those that no look has seen, their groups may report both launch and end.
    """
    spot = {group.name for group in pool.groups_of(CapacityType.SPOT)}
    seen = [boot for boot in pool.boots if boot.group in spot and boot.left_at is not None]
    young = sum(
        boot.ended_why is ActivityKind.PREEMPTED and boot.ready_at is None and boots.was_watched(boot)
        for boot in seen
        if boot.left_at is not None and now - boot.left_at < YOUNG_SPAN
    )
    known = {boot.instance_id for boot in pool.boots}
    launched = {event.instance_id: event.at for event in pool.events if event.kind in _LAUNCHES}
    unseen = {
        event.instance_id
        for event in pool.events
        if event.kind in LOSSES and event.group in spot and event.instance_id not in known
        if event.instance_id in launched and now - event.at < YOUNG_SPAN
        if event.at - launched[event.instance_id] < pool.boot_expected
    }
    return young + len(unseen)


def reachable(pool: SpotPool, now: datetime) -> list[str]:
    """Groups that may be tried for a better place: open, with room, and not asked for a while."""
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


def under_notice(pool: SpotPool, group: str) -> bool:
    """Whether the cloud is just taking an instance of that group."""
    return any(member.under_notice for member in pool.members_of(group))


def _reserved(pool: SpotPool) -> int:
    names = {group.name for group in pool.groups_of(CapacityType.RESERVED)}
    return sum(1 for m in pool.members if m.group in names and not m.leaving and not m.failed and not m.late)


def untried(pool: SpotPool, now: datetime) -> list[GroupView]:
    """The spot groups that may still be asked in this pass."""
    return [group for group in pool.groups_of(CapacityType.SPOT) if _closed(pool, group, now) is None]


def verdict(pool: SpotPool, group: GroupView, now: datetime) -> Objection | None:
    """What speaks against a group; None: nothing."""
    closed = _closed(pool, group, now)
    if closed is not None:
        return closed
    fading = penalty(pool, group, now)
    if fading > 0:
        return Objection(reason=Reason.ZONE_BACKING_OFF, detail=f"penalty {fading:.2f}, fading")
    return None


def penalty(pool: SpotPool, group: GroupView, now: datetime) -> float:
    """From 1 right after a setback down to 0 when the back-off is over; setbacks add up."""
    span = pool.policy.zone_backoff
    if span <= timedelta(0):
        return 0.0
    recent = _since(pool, group, now - span)
    setbacks = [event for event in recent if event.kind.refuses or event.kind in LOSSES]
    noticed = [1.0 for member in pool.members_of(group.name) if member.under_notice]
    return sum([*noticed, *(1 - (now - event.at) / span for event in setbacks)], start=0.0)


def _since(pool: SpotPool, group: GroupView, moment: datetime) -> list[Activity]:
    """What happened to a group after a moment, oldest first."""
    return [event for event in pool.events_of(group.name) if event.at > moment]


def _closed(pool: SpotPool, group: GroupView, now: datetime) -> Objection | None:
    """Why a group must not be asked in this pass."""
    return (
        group.frozen
        or group.closed
        or _too_dear(pool, group)
        or at_quota(pool, group, now)
        or boots_failing(pool, group, now)
        or _refused(pool, group, now)
        or _pausing(pool, group, now)
        or _full(pool, group)
    )


def _too_dear(pool: SpotPool, group: GroupView) -> Objection | None:
    """What its price says against a zone: spot is never bought at the on-demand price or above the ceiling."""
    if group.usd_per_hour is None or pool.on_demand_usd is None:
        return None
    ceiling = pool.on_demand_usd * pool.policy.price_ceiling
    if group.usd_per_hour < min(ceiling, pool.on_demand_usd):
        return None
    return Objection(reason=Reason.SPOT_TOO_DEAR, detail=f"{group.usd_per_hour} USD/h, ceiling {ceiling}")


def unpriced(pool: SpotPool, group: GroupView) -> str | None:
    """Which price is missing, so that nobody knows whether a zone is too dear; None: neither.

    It is asked all the same. Neither cloud takes more for spot than for on-demand, which a refusal would buy instead.
    """
    if group.usd_per_hour is None:
        return "its spot price is unknown"
    return "the on-demand price is unknown" if pool.on_demand_usd is None else None


def at_quota(pool: SpotPool, group: GroupView, now: datetime) -> Objection | None:
    """A quota holds for the whole account and region: no other zone helps, and asking again does not either.

    Each way of buying has its own, and an account may have one for all of them.
    """
    same = {g.name for g in pool.groups_of(group.capacity_type)}
    refused = [
        event
        for event in pool.events
        if event.kind is ActivityKind.QUOTA and (event.group in same or event.account_wide)
    ]
    hit = [event for event in refused if now - event.at < pool.policy.zone_backoff]
    return Objection(reason=Reason.QUOTA, detail=_said(hit[-1])) if hit else None


def refused_last(pool: SpotPool, group: GroupView) -> str | None:
    """What the cloud said of the newest thing that a group tried, if it refused."""
    events = pool.events_of(group.name)
    return _said(events[-1]) if events and events[-1].kind.refuses else None


def _said(event: Activity) -> str:
    """The cloud's words, in a line."""
    said = event.detail
    return said if len(said) <= 120 else textwrap.shorten(said, 120, placeholder="…")


def boots_failing(pool: SpotPool, group: GroupView, now: datetime) -> Objection | None:
    """Whether a group must not grow because nothing boots there, whatever it is asked for."""
    if (failed := failed_boots(pool, group, now)) < FAILING_BOOTS:
        return None
    return Objection(reason=Reason.BOOTS_FAILING, detail=f"{failed} boots failed within {BOOT_SPAN}")


def failed_boots(pool: SpotPool, group: GroupView, now: datetime) -> int:
    """Boots of a group that failed lately: of those that are there, and of those that have left.

    Lately: since one went well, or since a person said that they are to be tried again.
    """
    return len(_failures(pool, group, now))


def closed_since(pool: SpotPool, group: GroupView, now: datetime) -> datetime | None:
    """From when on a group launches for nothing: the failed boot that closed it was alive then. None: it is open."""
    failures = sorted(_failures(pool, group, now).values())
    return failures[FAILING_BOOTS - 1] if len(failures) >= FAILING_BOOTS else None


def _failures(pool: SpotPool, group: GroupView, now: datetime) -> dict[str, datetime]:
    """By instance that failed to boot: when a look saw it last."""
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
        # a group says so itself of those that no look has seen
        if event.kind is ActivityKind.FAILED_BOOT and event.group == group.name and event.instance_id not in known:
            found[event.instance_id or event.id] = (event.at, event.at)
    if not found:
        return {}
    ready = [(m.launched_at, m.ready_since) for m in members] + [(b.launched_at, b.ready_at) for b in own]
    booted = [since for launched, since in ready if since is not None and boots.is_boot(launched, since)]
    since = max(now - BOOT_SPAN, pool.fixed_at or now - BOOT_SPAN, *booted)
    return {key: seen for key, (seen, failed_at) in found.items() if failed_at > since}


def _refused(pool: SpotPool, group: GroupView, now: datetime) -> Objection | None:
    events = pool.events_of(group.name)
    refused = [event for event in events if event.kind.refuses and event.at >= pool.pass_started]
    looks_by_itself = group.desired > len(pool.members_of(group.name)) and not group.awaited
    if not refused and looks_by_itself and events and events[-1].kind.refuses:
        # it looks for one that it lost, and was told no before this pass began
        refused = [event for event in events[-1:] if now - event.at < pool.policy.zone_backoff]
    if not refused:
        return None
    # what nobody understands is no lack of capacity
    reason = Reason.ZONE_BACKING_OFF if refused[-1].kind is ActivityKind.UNKNOWN else Reason.NO_SPOT
    return Objection(reason=reason, detail=_said(refused[-1]))


def pause(refusals: int, backoff: timedelta) -> timedelta:
    """How long a zone is left alone that refused so often within its back-off: twice as long each time."""
    # the exponent is bounded: a zone may have refused a thousand times
    return backoff * min(MOST_PAUSE, FIRST_PAUSE * 2 ** (min(refusals, 10) - 1)) if refusals > 0 else timedelta(0)


def _refusals(pool: SpotPool, group: GroupView, now: datetime) -> list[datetime]:
    """When a zone has refused within its back-off and given nothing since, newest first.

    A group asks for many instances at once, and not again before the first pause is over: what is refused within that
    time is one refusal.
    """
    found: list[datetime] = []
    one_ask = pause(1, pool.policy.zone_backoff)
    for event in reversed(_since(pool, group, now - pool.policy.zone_backoff)):
        if event.kind is ActivityKind.LAUNCHED:
            break
        if event.kind.refuses and (not found or found[-1] - event.at >= one_ask):
            found.append(event.at)
    return found


def _pausing(pool: SpotPool, group: GroupView, now: datetime) -> Objection | None:
    """A zone that has refused in earlier passes, and given nothing since, is asked again after growing pauses."""
    refused = _refusals(pool, group, now)
    left = pause(len(refused), pool.policy.zone_backoff) - (now - refused[0]) if refused else timedelta(0)
    if left <= timedelta(0):
        return None
    detail = f"refused {len(refused)} times lately; asked again in {left.total_seconds():.0f} s"
    return Objection(reason=Reason.ZONE_BACKING_OFF, detail=detail)


def _full(pool: SpotPool, group: GroupView) -> Objection | None:
    if len(pool.members_of(group.name)) < group.max:
        return None
    return Objection(reason=Reason.AS_WANTED, detail=f"at its largest size of {group.max}")
