"""Decides how many ready replicas a pool needs. Pure: the same arguments give the same plan.

The rule is peak plus square root. A pool keeps the replicas that the highest load of the last `down_after` (an hour)
needed: recent load often returns, and a replica takes minutes to start. A spare of half the square root of that
number is added (`SPARE`): the variance of load grows with load, but less than in proportion. In a large pool the
`headroom` of the policy is larger and is used instead. A queue adds the replicas that process it within one start
(`QUEUE_WITHIN_S`). More may be requested by KV cache use and latency (at most `GROWTH_MAX` at once), held requests
and the schedule.

The target rises at once. It falls only if all inputs were read, and only as far as the peaks of `down_after` would
exceed no limit of the engines: to the need if the policy states the capacity of a replica, else by `STEP_DOWN` per
pass. The watchdogs that end instances limit how many end at once.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from gpufleet.domain.decisions import Action, Decision, Plan, Reason
from gpufleet.domain.durations import approximate
from watchdogs.scale.hours import active
from watchdogs.scale.missing_data import missing
from watchdogs.scale.view import Demand, Need, Pressure, ScalePoolView

WATCHDOG: Final = "scale"
SPARE: Final = 0.5
"""Spare replicas per square root of the highest load in replicas."""
STEP_DOWN: Final = 0.1
"""Largest decrease of one pass, as a share of the pool, if the policy does not state the capacity of a replica. At
least one replica."""
GROWTH_MAX: Final = 2.0
"""Largest factor by which one pass grows a pool: latency and queue length are not proportional to load."""
QUEUE_WITHIN_S: Final = 60.0
"""A queue is processed within this time, or within a cold start if that takes longer."""


def decide(views: Sequence[ScalePoolView], now: datetime) -> Plan:
    """One decision for each pool."""
    return Plan(watchdog=WATCHDOG, at=now, decisions=tuple(_pool(view, now) for view in views))


def _pool(view: ScalePoolView, now: datetime) -> Decision:
    if view.paused_by is not None:
        return _keep(view, Reason.PAUSED, view.paused_by)
    if view.target_held_by is not None and view.min <= view.target <= view.max:
        return _keep(view, Reason.KEPT_BY_PEOPLE, view.target_held_by)
    most = _most(view, now)
    wanted = min(max(most.replicas, view.min), view.max)
    if wanted > view.target:
        short = f"; {most.replicas} are needed, {view.max} is the pool's max" if most.replicas > view.max else ""
        return _move(view, wanted, most.reason, most.detail + short)
    if view.target > view.max:
        return _move(view, view.max, Reason.SURPLUS, f"the pool's max is {view.max}")
    return _down(view, wanted, most)


def least(view: ScalePoolView, now: datetime) -> Need:
    """The fewest replicas that this watchdog would not raise again soon, between min and max of the pool.

    Whatever prevents a lower target keeps the replicas, too. Unknown load needs nothing.
    """
    most = _most(view, now)
    wanted = min(max(most.replicas, view.min), view.max)
    if view.pressure is None:
        return replace(most, replicas=wanted)
    left, obstacle = _possible_decrease(view, view.pressure, wanted, max(view.target, wanted))
    if obstacle is None:
        return replace(most, replicas=left)
    return Need(replicas=left, reason=Reason.LOAD_NEEDS_ALL, detail=obstacle)


def _most(view: ScalePoolView, now: datetime) -> Need:
    """The largest need."""
    return max(_needs(view, now), key=lambda need: need.replicas)


def _needs(view: ScalePoolView, now: datetime) -> Iterator[Need]:
    rule = active(view.policy.schedule, now)
    if rule is None:
        yield Need(replicas=view.min, reason=Reason.POOL_FLOOR, detail=f"min is {view.min}")
    else:
        hours = f"{rule.start} to {rule.end} {rule.timezone}"
        yield Need(replicas=rule.target, reason=Reason.SCHEDULE, detail=f"{rule.target} from {hours}")
    if view.held_requests:
        # the router forwards them a moment after the first replica is ready, and scrapes show that even later
        rest = "a replica is ready" if view.ready else f"a cold start takes about {approximate(view.cold_start)}"
        detail = f"{view.held_requests:g} wait for a first replica; {rest}"
        yield Need(replicas=1, reason=Reason.HELD_REQUESTS, detail=detail)
    if view.demand is not None:
        yield from _of_demand(view, view.demand)
    if view.pressure is not None and view.pressure.reporting > 0:
        yield from _of_pressure(view, view.pressure)


def _of_demand(view: ScalePoolView, demand: Demand) -> Iterator[Need]:
    needed = with_spare(demand.peak, view.policy.headroom)
    detail = (
        f"work for {demand.now:.2f} replicas, up to {demand.peak:.2f} within {approximate(view.policy.down_after)}, "
        f"{needed:.2f} with a spare"
    )
    yield Need(replicas=_whole(needed), reason=Reason.LOAD_HIGH, detail=detail)


def with_spare(peak: float, headroom: float) -> float:
    """Replicas for a load that returns to its `peak` or slightly above; 0 without load."""
    return max(peak + SPARE * math.sqrt(peak), peak * (1 + headroom))


def _of_pressure(view: ScalePoolView, pressure: Pressure) -> Iterator[Need]:
    policy, replicas = view.policy, pressure.reporting
    if pressure.backlog_s is not None:
        yield from _of_backlog(view, pressure, pressure.backlog_s)
    elif pressure.waiting > policy.waiting_per_replica_above * replicas:
        detail = f"{pressure.waiting:g} requests wait at {replicas} replicas"
        # a queue is a stock, not a rate: if it remains, the next pass grows the pool again
        wanted = _whole(min(pressure.waiting / policy.waiting_per_replica_above, GROWTH_MAX * replicas))
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
            wanted = _whole(replicas * min(seen / objective, GROWTH_MAX))
            detail = f"{what} after {seen:.3g} s at the 95th percentile, the objective is {objective:.3g} s"
            yield Need(replicas=wanted, reason=Reason.OBJECTIVE_MISSED, detail=detail)


def _of_backlog(view: ScalePoolView, pressure: Pressure, backlog_s: float) -> Iterator[Need]:
    """Replicas that process the queue in the time of a cold start: a new replica cannot help sooner."""
    if pressure.waiting > view.policy.waiting_per_replica_above * pressure.reporting:
        usual = pressure.reporting if view.demand is None else view.demand.now
        wanted = _whole(usual + backlog_s / max(view.cold_start.total_seconds(), QUEUE_WITHIN_S))
        detail = f"{pressure.waiting:g} requests wait, {backlog_s:.0f} s of one replica's work"
        yield Need(replicas=wanted, reason=Reason.LOAD_HIGH, detail=detail)


def _down(view: ScalePoolView, wanted: int, most: Need) -> Decision:
    if wanted == view.target:
        reason = Reason.LOAD_NEEDS_ALL if most.reason is Reason.LOAD_HIGH else most.reason
        return _keep(view, reason if view.target > view.min else Reason.AS_WANTED, most.detail)
    if view.ready == 0 and view.pressure is None:
        # nothing runs yet, so there is nothing to measure
        return _keep(view, Reason.LOADING, "no replica is ready")
    what = missing(view)
    if view.pressure is None or what is not None:
        return _keep(view, Reason.METRICS_MISSING, what or "no metrics of a replica")
    step = view.target - max(1, int(view.target * STEP_DOWN)) if view.demand is None else 0
    left, obstacle = _possible_decrease(view, view.pressure, max(wanted, step), view.target)
    if left == view.target:
        return _keep(view, Reason.LOAD_NEEDS_ALL, obstacle or "")
    highest = f"the highest load within {approximate(view.policy.down_after)}"
    return _move(view, left, Reason.LOAD_LOW, f"{highest} fits into {left}")


def _possible_decrease(view: ScalePoolView, pressure: Pressure, left: int, most: int) -> tuple[int, str | None]:
    """The fewest replicas from `left` to `most` that carry the highest load, and why fewer do not."""
    why = None
    while left < most and (obstacle := _obstacle(view, pressure, left)) is not None:
        left, why = left + 1, obstacle
    return left, why


def _obstacle(view: ScalePoolView, pressure: Pressure, left: int) -> str | None:
    """Why `left` replicas do not carry the highest load of the window; None: they do."""
    policy = view.policy
    if left == 0:
        return _last_work(view, pressure)
    if pressure.waiting_peak > 0 and view.demand is None:
        return f"{pressure.waiting_peak:g} requests waited within {approximate(policy.down_after)}"
    # if the policy does not state the capacity of a replica, the last queue shows it: the same load queues again
    full = pressure.full
    if view.demand is None and full is not None and pressure.running_peak * (1 + policy.headroom) > full * left:
        return f"{pressure.running_peak:g} requests ran, and requests waited when a replica had {full:.3g}"
    # latency rises steeply: a smaller pool that missed its objective recently would miss it again
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


def _last_work(view: ScalePoolView, pressure: Pressure) -> str | None:
    """The work of the last replica within the window: a pool with work keeps at least one replica."""
    for what, amount in (
        ("requests at once", pressure.running_peak + pressure.waiting_peak),
        ("requests held", view.held_requests_peak),
        ("tokens per second", pressure.tokens_peak),
    ):
        if amount is not None and amount > 0:
            return f"{amount:.3g} {what} within {approximate(view.policy.down_after)}"
    return None


def _whole(replicas: float) -> int:
    """Round up to whole replicas. A billionth above a whole number is a rounding error."""
    return math.ceil(replicas - 1e-9)


def _move(view: ScalePoolView, to: int, reason: Reason, detail: str) -> Decision:
    # a policy without a dry run must not end anything; it may grow the pool for waiting requests
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


def _keep(view: ScalePoolView, reason: Reason, detail: str) -> Decision:
    return Decision(
        resource=view.name,
        pool=view.name,
        action=Action.KEEP,
        reason=reason,
        detail=detail,
        evidence=_evidence(view),
    )


def _evidence(view: ScalePoolView) -> dict[str, str]:
    found: dict[str, object] = {
        "target": view.target,
        "ready": view.ready,
        "held": view.held_requests,
        "held_peak": view.held_requests_peak,
    }
    for name, part in (("demand", view.demand), ("pressure", view.pressure)):
        if part is not None:
            found |= {f"{name}.{field}": getattr(part, field) for field in part.__dataclass_fields__}
    known = {name: value for name, value in found.items() if value is not None}
    return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in known.items()}
