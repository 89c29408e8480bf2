"""Splits the target of a pool over reserved, spot and on-demand capacity. Pure.

Reserved capacity runs in full. Missing instances are requested as spot in the best zones, then in further zones as
well, until every zone was asked in this pass or `fallback_after` is over. On-demand is bought only for what no zone
has given by then, or what will not be ready in time: booting spot instances are discounted by the number that was
reclaimed recently before it was ready. On-demand is given back one instance at a time, when enough spot has been
ready for the hold. If the loss of one zone would exceed the spare, a pool with a spare keeps one more instance while
that is worth its price, and moves one instance at a time to a safer zone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from gpufleet.domain.decisions import Action, Decision, Objection, Plan, Reason, SpendRate
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.durations import approximate
from gpufleet.domain.model import CapacityType
from watchdogs.spot import lifecycle, risk, zones
from watchdogs.spot.limits import CHOSEN, within_budgets, within_ceilings, within_certainty
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView
from watchdogs.spot.sizes import Sizes, ends_of_runs, mark_ending_as_leaving, reserved_group, surge

WATCHDOG: Final = "spot"
FLEX_START_OVERLAP: Final = 1
"""Flex-start instances above the maximum while one is replaced."""
_LAUNCH_BLOCKED: Final = frozenset({Reason.BOOTS_FAILING, Reason.CANNOT_LAUNCH})
"""Reasons with which open requests will fail."""
_TOO_MANY: Final = "its size is larger than needed now"


def decide(pools: Sequence[SpotPoolView], now: datetime, spend: SpendRate | None = None) -> Plan:
    """One decision for every group, and one for every instance that is ended or deliberately kept.

    `spend`: current cost of the whole fleet; None: it has no limit.
    """
    wanted = [decision for pool in pools for decision in split(pool, now)]
    allowed, budget = within_budgets(pools, wanted, now)
    decisions, spend = within_ceilings(pools, allowed, now, spend)
    return Plan(watchdog=WATCHDOG, at=now, decisions=tuple(decisions), budget=budget, spend=spend)


def split(seen: SpotPoolView, now: datetime) -> list[Decision]:
    """The decisions for one pool, before budgets and ceilings."""
    if seen.paused_by is not None:
        return [_keep(seen, group, Reason.PAUSED, seen.paused_by) for group in seen.groups]
    pool = lifecycle.with_late(mark_ending_as_leaving(seen, now), now)
    reserved = [
        decision for group in pool.groups_of(CapacityType.RESERVED) for decision in reserved_group(pool, group, now)
    ]
    # requested now: nothing else is bought for it before the next observation has the answer
    coming = sum(max(0, (decision.to_size or 0) - (decision.from_size or 0)) for decision in reserved)
    sizes = Sizes(pool, now, coming)
    run_ends = ends_of_runs(seen, now)
    ending = {decision.resource for decision in (*reserved, *run_ends) if decision.action is Action.END}
    decisions = [
        *reserved,
        *_spot(pool, sizes, now),
        *_on_demand(pool, sizes, now),
        *run_ends,
        *_places_of_taken(pool),
        *(one for one in (*_drained(pool), *_failed(pool, now)) if one.resource not in ending),
        *(one for one in _launched_by_closed_groups(pool, now) if one.resource not in ending),
        *_crashes(pool, now),
    ]
    decided = {decision.resource for decision in decisions}
    decisions += [decision for decision in lifecycle.hung(pool, now) if decision.resource not in decided]
    decisions = within_certainty(pool, decisions)
    return decisions if pool.policy_seen else [_unseen(decision) for decision in decisions]


def _spot(pool: SpotPoolView, sizes: Sizes, now: datetime) -> list[Decision]:
    """Grow where spot is available, drop unanswered requests, shrink what the target no longer needs.

    A group that is launching an instance by itself is asked, too, so that the pass waits for its answer.
    """
    asks, reason = _asks(pool, sizes, now)
    moves = reason is Reason.SAFER_ZONE
    detail = "one instance moves here" if moves else f"{sizes.spot_missing} missing in the pool"
    decisions: list[Decision] = []
    for group in pool.groups_of(CapacityType.SPOT):
        # draining instances count in the desired size of the group until they end
        there = len(pool.members_of(group.name))
        wanted = there + asks.get(group.name, 0)
        obstacle = zones.obstacle(pool, group, now)
        if asks.get(group.name, 0) and wanted + group.unseen >= group.desired:
            # a group that still lists ended instances is asked, too, so that the pass waits for its answer
            decisions.append(_growth(pool, group, max(wanted, group.desired), reason, detail))
        elif wanted + group.unseen < group.desired:
            why = obstacle or Objection(reason=Reason.SURPLUS, detail=_TOO_MANY)
            decisions.append(_resize(pool, group, wanted + group.unseen, why.reason, why.detail))
        elif obstacle is not None:
            decisions.append(_keep(pool, group, obstacle.reason, obstacle.detail))
        else:
            decisions.append(_keep(pool, group, Reason.AS_WANTED, f"{there} instances"))
    return decisions + _surplus_spot(pool, sizes, now)


def _asks(pool: SpotPoolView, sizes: Sizes, now: datetime) -> tuple[Mapping[str, int], Reason]:
    """How many more to request of each spot group now, and why: some are missing, or one moves."""
    if zones.is_out_of_time(pool, now):
        return {}, Reason.SPOT_WANTED
    asks = zones.with_others(pool, zones.allocate_requests(pool, sizes.spot_missing, now), surge(pool.policy), now)
    if not asks and (goal := _move(pool, sizes, now)) is not None:
        return {goal: 1}, Reason.SAFER_ZONE
    return asks, Reason.SPOT_WANTED


def _growth(pool: SpotPoolView, group: GroupView, size: int, reason: Reason, detail: str) -> Decision:
    cost = None if group.usd_per_hour is None else -group.usd_per_hour * (size - group.desired)
    unknown = zones.unpriced(pool, group)
    if unknown is None:
        return replace(_resize(pool, group, size, reason, detail), usd_per_hour=cost)
    grown = _resize(pool, group, size, reason, f"{detail}; {unknown}, so no price ceiling is checked")
    return replace(grown, usd_per_hour=cost, evidence={zones.CEILING: f"not checked: {unknown}"})


def _move(pool: SpotPoolView, sizes: Sizes, now: datetime) -> str | None:
    """The group where one spot instance would be safer; only for a stable pool, and only with a surge allowed."""
    if pool.policy.max_surge < 1 or pool.spare == 0:
        return None  # without a spare each loss matters, and more zones mean more losses (docs/watchdog-defaults.md)
    whole = sizes.spot == sizes.spot_ready == sizes.spot_wanted
    if (
        not whole
        or sizes.spot_late
        or sizes.on_demand
        or sizes.on_demand_late
        or lifecycle.is_draining_any(pool, now)
    ):
        return None
    names = {group.name for group in pool.groups_of(CapacityType.SPOT)}
    if all(m.kept_by for m in pool.members if m.group in names):
        return None  # none could be ended for the new one
    needed = max(0, pool.target - sizes.reserved)
    spots, goals = pool.spot_placements(), zones.move_destinations(pool, now)
    return risk.best_move(spots, zones.counts(pool), needed, goals, zones.MIN_GAIN)


def _surplus_spot(pool: SpotPoolView, sizes: Sizes, now: datetime) -> list[Decision]:
    """Drain one surplus instance once enough others are ready: a marked one first, then of the least useful zone."""
    if sizes.spot_ready <= sizes.spot_needed or lifecycle.is_draining_any(pool, now):
        return []
    names = {group.name for group in pool.groups_of(CapacityType.SPOT)}
    candidates = [m for m in pool.members if m.group in names and lifecycle.can_be_drained(m) and not m.late]
    needed = max(0, pool.target - sizes.reserved)
    from_group = risk.best_removal(pool.spot_placements(), zones.counts(pool), needed)
    order = sorted(
        candidates, key=lambda m: (not m.is_marked, m.group != from_group, m.requests_in_flight, m.launched_at, m.id)
    )
    kept, chosen = lifecycle.first_drainable(order)
    ends = [_end(pool, chosen, Reason.SURPLUS, f"{sizes.spot} spot for {sizes.spot_needed} wanted")] if chosen else []
    return [*(_kept(pool, member) for member in kept), *ends]


def _on_demand(pool: SpotPoolView, sizes: Sizes, now: datetime) -> list[Decision]:
    """Buy what neither reserved nor spot provides in time; give back what is not needed any more."""
    group = pool.fallback()
    if group is None:
        return []
    wanted, there = min(max(0, sizes.missing), group.max), len(pool.members_of(group.name))
    lacks = wanted - lifecycle.with_replaced(sizes.on_demand, sizes.on_demand_late, wanted)
    if group.desired > (needed := there + max(0, lacks) + group.unseen):
        return [_resize(pool, group, needed, Reason.SURPLUS, _TOO_MANY)]
    open_zones = [] if zones.is_out_of_time(pool, now) else zones.requestable_groups(pool, now)
    if lacks > 0 and sizes.spot_missing > 0 and open_zones:
        # spot starts as fast as on-demand, so all zones are asked before on-demand is bought
        lacks = min(lacks, sizes.likely_preempted - sizes.on_demand)
        if lacks <= 0:
            names = ", ".join(one.name for one in open_zones)
            return [_keep(pool, group, Reason.SPOT_WANTED, f"spot is requested in these groups first: {names}")]
    if lacks > 0:
        closed = _obstacle(pool, group, now)
        if closed is not None and closed.reason in _LAUNCH_BLOCKED and group.desired > there + group.unseen:
            # open requests would fail, too
            return [_resize(pool, group, there + group.unseen, closed.reason, closed.detail)]
        return [closed or _fallback(pool, group, sizes, lacks)]
    if sizes.on_demand + sizes.on_demand_late == 0:
        return [_keep(pool, group, Reason.AS_WANTED, "none needed")]
    return _give_back(pool, group, sizes, now)


def _obstacle(pool: SpotPoolView, group: GroupView, now: datetime) -> Decision | None:
    """Why nothing is bought although instances are missing; None: it may be."""
    closed = (
        group.frozen
        or group.closed
        or zones.quota_objection(pool, group, now)
        or zones.boots_objection(pool, group, now)
    )
    return None if closed is None else _keep(pool, group, closed.reason, closed.detail)


def _fallback(pool: SpotPoolView, group: GroupView, sizes: Sizes, lacks: int) -> Decision:
    """Grow the fallback group by `lacks`, up to its maximum; or state that they were requested already."""
    there = len(pool.members_of(group.name))
    most = max(group.max, there)
    if group.capacity_type is CapacityType.FLEX_START:
        # several may end at the same time, and Google groups have no maximum
        most = group.max + FLEX_START_OVERLAP
        # nor do they replace ended instances, which still count in the size
        there, most = there + group.unseen, most + group.unseen
    size = min(there + lacks, most)
    if size <= group.desired:
        return _keep(pool, group, Reason.FALLBACK, _not_more(pool, group, group.desired - there))
    decision = _resize(pool, group, size, Reason.FALLBACK, _why_missing(sizes))
    if group.usd_per_hour is None:
        return decision
    return replace(decision, usd_per_hour=-group.usd_per_hour * (size - group.desired))


def _why_missing(sizes: Sizes) -> str:
    if sizes.likely_preempted == 0:
        return f"no zone has spot capacity for {sizes.missing} missing"
    boots = f"{sizes.likely_preempted} booting spot instances: as many were preempted recently before they were ready"
    return f"{sizes.missing} missing, not counting {boots}"


def _not_more(pool: SpotPoolView, group: GroupView, asked: int) -> str:
    """Why no more fallback capacity is requested although more is wanted."""
    if asked <= 0:
        return f"at its maximum size of {group.max}"
    refused = zones.refused_last(pool, group)
    return f"{asked} requested" if refused is None else f"{asked} requested, the cloud refuses: {refused}"


def _give_back(pool: SpotPoolView, group: GroupView, sizes: Sizes, now: datetime) -> list[Decision]:
    """Give back one on-demand instance when spot was ready for the hold and the others meet the target."""
    needed = max(0, pool.target - sizes.stable)
    # a late instance replaces none, and is ended when none is needed
    if sizes.on_demand + (0 if needed else sizes.on_demand_late) <= needed:
        if sizes.spot + sizes.reserved >= pool.target:
            held = f"{sizes.stable} have been ready for {approximate(pool.policy.hold)}"
            return [_keep(pool, group, Reason.HOLDING_FALLBACK, held)]
        # its group launches replacements by itself: people must be notified
        if (failing := zones.boots_objection(pool, group, now)) is not None:
            return [_keep(pool, group, failing.reason, failing.detail)]
        return [_keep(pool, group, Reason.FALLBACK, f"replaces {pool.target - sizes.stable} missing")]
    if lifecycle.is_draining_any(pool, now):
        return [_keep(pool, group, Reason.HOLDING_FALLBACK, "another instance is draining")]
    members = [m for m in pool.members_of(group.name) if lifecycle.can_be_drained(m)]
    if not members:
        return [
            _keep(pool, group, Reason.NOT_STOPPABLE, "no agent of the group answers, so no instance can be drained")
        ]
    kept, chosen = lifecycle.first_drainable(sorted(members, key=_give_back_first))
    keeps = [_kept(pool, member) for member in kept]
    if chosen is None:
        return [_keep(pool, group, Reason.KEPT_BY_PEOPLE, "every instance that could be given back"), *keeps]
    if chosen.ready and sum(member.ready for member in pool.members_of(group.name)) <= needed:
        return [_keep(pool, group, Reason.HOLDING_FALLBACK, "another instance must be ready first"), *keeps]
    if sizes.spot_ready == 0 or sizes.on_demand > pool.target:
        reason, detail = Reason.SURPLUS, f"{sizes.on_demand} on demand for {needed} wanted"
    else:
        reason, detail = Reason.SPOT_IS_BACK, f"{sizes.stable} of {pool.target} wanted have been ready for the hold"
    return [_keep(pool, group, reason, detail), *keeps, _end(pool, chosen, reason, detail)]


def _give_back_first(member: PoolMember) -> tuple[object, ...]:
    """Sort key: instances that are not ready first, the youngest of them first; then the idle and less busy ones."""
    age = member.launched_at.timestamp() * (1 if member.ready else -1)
    return member.late, member.ready, not member.is_marked, member.requests_in_flight, age, member.id


def _places_of_taken(pool: SpotPoolView) -> list[Decision]:
    """Remove reclaimed instances from their groups, and lower the groups."""
    return [
        Decision(
            resource=key,
            pool=pool.name,
            action=Action.END,
            reason=Reason.PREEMPTED,
            detail="preempted by its cloud; removed from its group",
            evidence={lifecycle.PREEMPTED_FROM: group.name},
        )
        for group in pool.groups
        for key in group.taken
    ]


def _drained(pool: SpotPoolView) -> list[Decision]:
    """End instances that drained for a notice or for this watchdog, and lower their groups.

    Otherwise the group would launch another one in the zone that just ran out of capacity. An instance that its cloud
    reclaims without a charge is left to the cloud.
    """
    decisions: list[Decision] = []
    for member in pool.members:
        if not member.drained or (pool.idle_ends and lifecycle.drains_idle(member)):
            continue  # the idle watchdog ends what it drained
        detail = f"drained: {member.leaving_because}"
        if member.left_to_its_cloud:
            detail = "drained; left to its cloud, which does not charge for an instance this young"
            decisions.append(lifecycle.kept(pool, member, Reason.PREEMPTED, detail))
        elif member.under_notice:
            decisions.append(_end(pool, member, Reason.PREEMPTED, detail))
        elif member.drain_by is DrainOwner.SPOT or (member.drain_by is DrainOwner.IDLE and not pool.idle_ends):
            end = _end(pool, member, Reason.SURPLUS, detail)
            if member.drain_by is DrainOwner.IDLE:
                end = replace(end, usd_per_hour=None)  # the target stays, so another one replaces it
            decisions.append(end if member.kept_by is None else _kept(pool, member))
    return decisions


def _failed(pool: SpotPoolView, now: datetime) -> list[Decision]:
    """End instances whose boot failed or whose engine crashed, without a drain: they serve nothing.

    They count as missing already, so a replacement is requested in the best zone. Their group is lowered, or each
    would be replaced twice. Only a reserved group always runs in full. After repeated boot failures of a group
    nothing is replaced there; after repeated engine crashes the next replacement waits.
    """
    decisions: list[Decision] = []
    groups = {group.name: group for group in pool.groups}
    waits = bool(lifecycle.crash_waits(pool, now))
    for member in (m for m in pool.members if m.failed and not m.drained):
        if member.kept_by is not None:
            decisions.append(_kept(pool, member))
            continue
        reserved = groups[member.group].capacity_type is CapacityType.RESERVED
        failed = zones.failed_boots(pool, groups[member.group], now)
        why = f": {member.error}" if member.error else ""
        if member.crashed_at is not None:
            if reserved and waits:
                detail = "engines crash repeatedly: the next one is replaced later"
                decisions.append(lifecycle.kept(pool, member, Reason.ENGINE_CRASHED, detail))
                continue
            end = _end(pool, member, Reason.ENGINE_CRASHED, f"it had served{why}")
        elif failed >= zones.FAILING_BOOTS:
            detail = f"{failed} boots failed in {member.group}; not replaced{why}"
            end = _end(pool, member, Reason.BOOTS_FAILING, detail)
        else:
            end = _end(pool, member, Reason.BOOT_FAILED, f"a new one replaces it{why}")
        replaced = reserved and end.reason is not Reason.BOOTS_FAILING
        decisions.append(replace(end, action=Action.REPLACE) if replaced else end)
    return decisions


def _launched_by_closed_groups(pool: SpotPoolView, now: datetime) -> list[Decision]:
    """End what a group launched by itself to replace failed boots: it would repeat this without end."""
    decisions: list[Decision] = []
    for group in pool.groups:
        new = [m for m in pool.members_of(group.name) if m.ready_since is None and not (m.leaving or m.failed)]
        if not new or (closed := zones.closed_since(pool, group, now)) is None:
            continue
        detail = f"{zones.failed_boots(pool, group, now)} boots failed in {group.name}; not replaced"
        decisions += [
            _kept(pool, member) if member.kept_by is not None else _end(pool, member, Reason.BOOTS_FAILING, detail)
            for member in new
            if member.launched_at > closed
        ]
    return decisions


def _crashes(pool: SpotPoolView, now: datetime) -> list[Decision]:
    """A note that engines crash repeatedly and that the next one is replaced later."""
    waits = lifecycle.crash_waits(pool, now)
    if not waits:
        return []
    detail = f"engines crash repeatedly: of {len(waits)} the next is replaced at {min(waits):%H:%M:%S} UTC"
    return [
        Decision(resource=pool.name, pool=pool.name, action=Action.KEEP, reason=Reason.ENGINE_CRASHED, detail=detail)
    ]


def _unseen(decision: Decision) -> Decision:
    if decision.action is Action.KEEP:
        return decision
    return decision.kept(Reason.POLICY_UNSEEN, f"would {decision.action}: {decision.reason.sentence}")


def _keep(pool: SpotPoolView, group: GroupView, reason: Reason, detail: str = "") -> Decision:
    return Decision(resource=group.name, pool=pool.name, action=Action.KEEP, reason=reason, detail=detail)


def _kept(pool: SpotPoolView, member: PoolMember) -> Decision:
    return lifecycle.kept(pool, member, Reason.KEPT_BY_PEOPLE, member.kept_by or "")


def _resize(pool: SpotPoolView, group: GroupView, size: int, reason: Reason, detail: str) -> Decision:
    return Decision(
        resource=group.name,
        pool=pool.name,
        action=Action.RESIZE,
        reason=reason,
        detail=detail,
        from_size=group.desired,
        to_size=size,
    )


def _end(pool: SpotPoolView, member: PoolMember, reason: Reason, detail: str) -> Decision:
    return Decision(
        resource=member.id,
        pool=pool.name,
        action=Action.END,
        reason=reason,
        detail=detail,
        usd_per_hour=member.usd_per_hour if reason in CHOSEN else None,  # others are replaced
    )
