"""How many ready replicas a pool needs. Pure: the same arguments give the same plan.

Up at once, by whatever asks for most: the schedule, held requests, work that is there or is expected, pressure in the
engines. Down only as far as the highest load of `down_after` would still fit into what is left, and in small steps.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from gpufleet.domain.decisions import Action, Decision, Plan, Reason
from watchdogs.scale.hours import active
from watchdogs.scale.missing import missing
from watchdogs.scale.view import Demand, Need, PoolView, Pressure

WATCHDOG: Final = "scale"
STEP_DOWN: Final = 0.1
"""Largest share of a pool that one pass gives up; one replica at least."""
LATENCY_FACTOR_MAX: Final = 2.0
"""Latency is not proportional to load: however bad it is, a pass at most doubles the pool for it."""

CHANCE: Final = 3.0
"""Standard deviations above its level that work may rise by chance: pieces that come on their own vary as a root."""
LEAST_CHANCE: Final = 1.0
"""The same of a pool whose past says that its work varies less than by chance."""
QUEUE_WITHIN_S: Final = 60.0
"""A queue is a stock: it is worked off within this time, or within a start where that takes longer."""


def decide(views: Sequence[PoolView], now: datetime) -> Plan:
    """One decision for each pool."""
    return Plan(watchdog=WATCHDOG, at=now, decisions=tuple(_pool(view, now) for view in views))


def _pool(view: PoolView, now: datetime) -> Decision:
    if view.paused_by is not None:
        return _keep(view, Reason.PAUSED, view.paused_by)
    if view.held_by is not None and view.min <= view.target <= view.max:
        return _keep(view, Reason.KEPT_BY_PEOPLE, view.held_by)
    most = _most(view, now)
    wanted = min(max(most.replicas, view.min), view.max)
    if wanted > view.target:
        short = f"; {most.replicas} are needed, {view.max} is the pool's max" if most.replicas > view.max else ""
        return _move(view, wanted, most.reason, most.detail + short)
    if view.target > view.max:
        return _move(view, view.max, Reason.SURPLUS, f"the pool's max is {view.max}")
    return _down(view, wanted, most)


def least(view: PoolView, now: datetime) -> Need:
    """The fewest replicas that this watchdog would not raise again soon. Between the pool's min and max.

    This may be more than it needs now: the highest load of `down_after` may come back, so it counts as the load of
    now, and what keeps a target from being lowered keeps the replicas too. What is not known asks for nothing.
    """
    demand = view.demand
    returned = demand if demand is None else replace(demand, now=max(demand.now, demand.peak))
    most = _most(replace(view, demand=returned), now)
    wanted = min(max(most.replicas, view.min), view.max)
    if view.pressure is None:
        return replace(most, replicas=wanted)
    left, obstacle = _room_to_fall(view, view.pressure, wanted, max(view.target, wanted))
    if obstacle is None:
        return replace(most, replicas=left)
    return Need(replicas=left, reason=Reason.LOAD_NEEDS_ALL, detail=obstacle)


def _most(view: PoolView, now: datetime) -> Need:
    """What asks for most."""
    return max(_needs(view, now), key=lambda need: need.replicas)


def _needs(view: PoolView, now: datetime) -> Iterator[Need]:
    rule = active(view.policy.schedule, now)
    if rule is None:
        yield Need(replicas=view.min, reason=Reason.POOL_FLOOR, detail=f"min is {view.min}")
    else:
        hours = f"{rule.start} to {rule.end} {rule.timezone}"
        yield Need(replicas=rule.target, reason=Reason.SCHEDULE, detail=f"{rule.target} from {hours}")
    if view.held:
        # the router hands them over a moment after the first replica is ready, and scrapes tell of it later still
        rest = "a replica is ready" if view.ready else f"a cold start takes about {view.cold_start}"
        detail = f"{view.held:g} wait for a first replica; {rest}"
        yield Need(replicas=1, reason=Reason.HELD_REQUESTS, detail=detail)
    if view.demand is not None:
        yield from _of_demand(view, view.demand)
    if view.pressure is not None and view.pressure.reporting > 0:
        yield from _of_pressure(view, view.pressure)


def _of_demand(view: PoolView, demand: Demand) -> Iterator[Need]:
    room = 1 + view.policy.headroom
    coming = _room_for(demand, room)
    detail = f"work for {demand.now:.2f} replicas, {coming:.2f} by the time another one is ready"
    yield Need(replicas=_whole(coming), reason=Reason.LOAD_HIGH, detail=detail)
    if demand.expected is not None:
        detail = f"work for {demand.expected:.2f} replicas at this time of earlier days"
        yield Need(replicas=_whole(demand.expected * room), reason=Reason.LOAD_EXPECTED, detail=detail)


def _of_pressure(view: PoolView, pressure: Pressure) -> Iterator[Need]:
    policy, replicas = view.policy, pressure.reporting
    if pressure.backlog_s is not None:
        yield from _of_backlog(view, pressure, pressure.backlog_s)
    elif pressure.waiting > policy.waiting_per_replica_above * replicas:
        detail = f"{pressure.waiting:g} requests wait at {replicas} replicas"
        # a queue is a stock, not a rate: it doubles the pool at most, and asks again if it stays
        wanted = min(_whole(pressure.waiting / policy.waiting_per_replica_above), 2 * replicas)
        yield Need(replicas=wanted, reason=Reason.LOAD_HIGH, detail=detail)
    if pressure.kv_cache is not None and pressure.kv_cache > policy.kv_cache_above:
        detail = f"{pressure.kv_cache:.0%} of the KV cache is used"
        wanted = _whole(replicas * pressure.kv_cache / policy.kv_cache_above)
        yield Need(replicas=wanted, reason=Reason.LOAD_HIGH, detail=detail)
    for what, seen, objective in (
        ("first token", pressure.first_token_s, policy.first_token_s),
        ("next token", pressure.inter_token_s, policy.inter_token_s),
    ):
        if seen is not None and objective is not None and seen > objective:
            wanted = _whole(replicas * min(seen / objective, LATENCY_FACTOR_MAX))
            detail = f"{what} after {seen:.3g} s at the 95th percentile, the objective is {objective:.3g} s"
            yield Need(replicas=wanted, reason=Reason.OBJECTIVE_MISSED, detail=detail)


def _of_backlog(view: PoolView, pressure: Pressure, backlog_s: float) -> Iterator[Need]:
    """Room to work the queue off in the time that another replica takes to start: sooner, none could help."""
    if pressure.waiting > view.policy.waiting_per_replica_above * pressure.reporting:
        usual = pressure.reporting if view.demand is None else view.demand.now
        wanted = _whole(usual + backlog_s / max(view.cold_start.total_seconds(), QUEUE_WITHIN_S))
        detail = f"{pressure.waiting:g} requests wait, {backlog_s:.0f} s of one replica's work"
        yield Need(replicas=wanted, reason=Reason.LOAD_HIGH, detail=detail)


def _down(view: PoolView, wanted: int, most: Need) -> Decision:
    if wanted == view.target:
        return _keep(view, most.reason if view.target > view.min else Reason.AS_WANTED, most.detail)
    if view.ready == 0 and view.pressure is None:
        # nothing runs yet: there is nothing that could be measured, and nothing to lose but the wait of a start
        return _keep(view, Reason.LOADING, "no replica is ready")
    what = missing(view)
    if view.pressure is None or what is not None:
        return _keep(view, Reason.METRICS_MISSING, what or "no replica is read")
    left = max(wanted, view.target - max(1, int(view.target * STEP_DOWN)))
    left, obstacle = _room_to_fall(view, view.pressure, left, view.target)
    if left == view.target:
        return _keep(view, Reason.LOAD_NEEDS_ALL, obstacle or "")
    return _move(view, left, Reason.LOAD_LOW, f"the highest load of {view.policy.down_after} fits into {left}")


def _room_to_fall(view: PoolView, pressure: Pressure, left: int, most: int) -> tuple[int, str | None]:
    """From `left` up to `most` the fewest into which the highest load would fit, and why fewer would not do."""
    why = None
    while left < most and (obstacle := _obstacle(view, pressure, left)) is not None:
        left, why = left + 1, obstacle
    return left, why


def _obstacle(view: PoolView, pressure: Pressure, left: int) -> str | None:
    """Why the highest load of the window would not fit into `left` replicas."""
    policy = view.policy
    if left == 0:
        return _life(view, pressure)
    # where swings are known, what may come on top is in what is wanted; on top of a past peak it would count twice
    if view.demand is not None and (peak := _peak(view.demand, 1 + policy.headroom)) > left:
        return f"work for {view.demand.peak:.2f} replicas within {policy.down_after}, {peak:.2f} with its room"
    if pressure.waiting_peak > 0 and view.demand is None:
        return f"{pressure.waiting_peak:g} requests waited within {policy.down_after}"
    # where nobody says what a replica carries, the last queue has: the same load would bring it back for ever
    full = pressure.full
    if view.demand is None and full is not None and pressure.running_peak * (1 + policy.headroom) > full * left:
        return f"{pressure.running_peak:g} requests ran, and requests waited when a replica had {full:.3g}"
    # latency is steep: the smaller pool that missed its objective lately would miss it again, whatever it says now
    if pressure.slow is not None and pressure.running_peak * (1 + policy.headroom) > pressure.slow * left:
        return (
            f"{pressure.running_peak:g} requests ran, and latency was too high when a replica had {pressure.slow:.3g}"
        )
    share = max(pressure.reporting, 1) / left
    for what, peak, limit in (
        ("KV cache used", pressure.kv_cache_peak, policy.kv_cache_above),
        ("seconds to the first token", pressure.first_token_peak_s, policy.first_token_s),
        ("seconds to the next token", pressure.inter_token_peak_s, policy.inter_token_s),
    ):
        if peak is not None and limit is not None and peak * share > limit:
            return f"{what}: {peak:.3g} now, {peak * share:.3g} with {left} replicas, the limit is {limit:.3g}"
    return None


def _life(view: PoolView, pressure: Pressure) -> str | None:
    """What the last replica was there for within the window: whoever has work has a pool of one at least."""
    for what, amount in (
        ("requests at once", pressure.running_peak + pressure.waiting_peak),
        ("requests held", view.held_peak),
        ("tokens per second", pressure.tokens_peak),
        ("replicas' work", None if view.demand is None else view.demand.peak),
    ):
        if amount is not None and amount > 0:
            return f"{amount:.3g} {what} within {view.policy.down_after}"
    return None


def _room_for(demand: Demand, room: float) -> float:
    """Replicas for the work of now and for what may come on top while another one starts; none for no work."""
    if demand.now <= 0:
        return 0.0
    usual = demand.now * room
    if demand.level is not None and demand.grain is not None:
        # beyond chance, rises come all at once and are not held by a little more
        chance = CHANCE if demand.swing is None else min(CHANCE, max(LEAST_CHANCE, demand.swing))
        return max(usual, demand.level + chance * math.sqrt(demand.level * demand.grain))
    rise = demand.rise or 0.0
    if demand.level is not None and demand.swing is not None:
        spread = demand.swing * math.sqrt(demand.level)
        if spread < rise:  # the past was nearer to its level than to what it had just been
            return max(usual, demand.level + spread)
    return max(usual, demand.now + rise)


def _peak(demand: Demand, room: float) -> float:
    """Replicas for the highest load of the window.

    Where its usual swings are not known yet, a pool rises by what came on top of now, and keeps that as long: else it
    would follow each turn of the load down, and the next one up again.
    """
    unknown = demand.level is None or (demand.grain is None and demand.swing is None)
    if demand.peak <= 0 or not unknown:  # from nothing, the first request wakes a pool
        return demand.peak * room
    return max(demand.peak * room, demand.peak + (demand.rise or 0.0))


def _whole(replicas: float) -> int:
    """Replicas come whole; a billionth over a whole one is rounding, not work."""
    return math.ceil(replicas - 1e-9)


def _move(view: PoolView, to: int, reason: Reason, detail: str) -> Decision:
    # what nobody has read must end nothing; waiting requests are not to wait for a reader
    if not view.policy_seen and to < view.target:
        return _keep(view, Reason.POLICY_UNSEEN, f"would set {to}: {detail}")
    usd = None if view.usd_per_hour is None else view.usd_per_hour * (view.target - to)
    return Decision(
        resource=view.name,
        pool=view.name,
        action=Action.RETARGET,
        reason=reason,
        detail=detail,
        evidence=_evidence(view),
        from_size=view.target,
        to_size=to,
        usd_per_hour=usd,
    )


def _keep(view: PoolView, reason: Reason, detail: str) -> Decision:
    return Decision(
        resource=view.name,
        pool=view.name,
        action=Action.KEEP,
        reason=reason,
        detail=detail,
        evidence=_evidence(view),
    )


def _evidence(view: PoolView) -> dict[str, str]:
    found: dict[str, object] = {
        "target": view.target,
        "ready": view.ready,
        "held": view.held,
        "held_peak": view.held_peak,
    }
    for name, part in (("demand", view.demand), ("pressure", view.pressure)):
        if part is not None:
            found |= {f"{name}.{field}": getattr(part, field) for field in part.__dataclass_fields__}
    known = {name: value for name, value in found.items() if value is not None}
    return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in known.items()}
