"""How a pool's target is split over reserved, spot and on-demand. Pure.

Reserved capacity runs in full. Spot is asked for what is missing in the best zones, and then in others beside them,
until every zone was asked in this pass or `fallback_after` is over. Only what no zone gives by then, or what will not
be ready in time, is bought on demand: of those that boot, as many are not counted on as were taken lately before they
were ready. On-demand goes back one at a time, when enough spot has been ready for the hold. Where one zone's loss
would take more than the spare, a pool that has a spare holds one more while that pays, and moves one at a time to a
safer zone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from gpufleet.domain.decisions import Action, Decision, Objection, Plan, Reason, SpendRate
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType
from watchdogs.spot import lifecycle, risk, zones
from watchdogs.spot.limits import CHOSEN, within_budgets, within_ceilings, within_certainty
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPool
from watchdogs.spot.sizes import Sizes, ends_of_runs, reserved_group, surge, without_ending

WATCHDOG: Final = "spot"
FLEX_START_OVERLAP: Final = 1
"""Of flex-start above its maximum, while one is replaced."""
_IN_VAIN: Final = frozenset({Reason.BOOTS_FAILING, Reason.CANNOT_LAUNCH})
"""Where these hold, what was asked for and has not come is asked for in vain."""
_TOO_MANY: Final = "asked for more than is needed now"


def decide(pools: Sequence[SpotPool], now: datetime, spend: SpendRate | None = None) -> Plan:
    """One decision for every group, and one for every instance that is to go or is held on to.

    `spend` is what the whole fleet costs as it runs; None: it has no limit.
    """
    wanted = [decision for pool in pools for decision in split(pool, now)]
    allowed, budget = within_budgets(pools, wanted, now)
    decisions, spend = within_ceilings(pools, allowed, now, spend)
    return Plan(watchdog=WATCHDOG, at=now, decisions=tuple(decisions), budget=budget, spend=spend)


def split(seen: SpotPool, now: datetime) -> list[Decision]:
    """The decisions for one pool, before budgets and ceilings."""
    if seen.paused_by is not None:
        return [_keep(seen, group, Reason.PAUSED, seen.paused_by) for group in seen.groups]
    pool = lifecycle.with_late(without_ending(seen, now), now)
    reserved = [
        decision for group in pool.groups_of(CapacityType.RESERVED) for decision in reserved_group(pool, group, now)
    ]
    # asked for in this look: nothing is bought beside it before the next look knows the answer
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
        *(one for one in _launched_for_nothing(pool, now) if one.resource not in ending),
        *_crashes(pool, now),
    ]
    decided = {decision.resource for decision in decisions}
    decisions += [decision for decision in lifecycle.hung(pool, now) if decision.resource not in decided]
    decisions = within_certainty(pool, decisions)
    return decisions if pool.policy_seen else [_unseen(decision) for decision in decisions]


def _spot(pool: SpotPool, sizes: Sizes, now: datetime) -> list[Decision]:
    """Grow where spot is to be had; give up unanswered asks; shrink what the target no longer needs.

    A group that looks for an instance by itself already is asked in the same way, so that its answer is waited for.
    """
    asks, reason = _asks(pool, sizes, now)
    moves = reason is Reason.SAFER_ZONE
    detail = "one is to move here" if moves else f"{sizes.spot_missing} missing in the pool"
    decisions: list[Decision] = []
    for group in pool.groups_of(CapacityType.SPOT):
        # those that leave still take their place in the group's desired size until they are gone
        there = len(pool.members_of(group.name))
        wanted = there + asks.get(group.name, 0)
        verdict = zones.verdict(pool, group, now)
        if asks.get(group.name, 0) and wanted + group.unseen >= group.desired:
            # one that still lists the dead is asked, too, so that its answer is waited for
            decisions.append(_growth(pool, group, max(wanted, group.desired), reason, detail))
        elif wanted + group.unseen < group.desired:
            why = verdict or Objection(reason=Reason.SURPLUS, detail=_TOO_MANY)
            decisions.append(_resize(pool, group, wanted + group.unseen, why.reason, why.detail))
        elif verdict is not None:
            decisions.append(_keep(pool, group, verdict.reason, verdict.detail))
        else:
            decisions.append(_keep(pool, group, Reason.AS_WANTED, f"{there} there"))
    return decisions + _surplus_spot(pool, sizes, now)


def _asks(pool: SpotPool, sizes: Sizes, now: datetime) -> tuple[Mapping[str, int], Reason]:
    """How many more to ask of each spot group now, and why: some are missing, or one is to move."""
    if zones.is_out_of_time(pool, now):
        return {}, Reason.SPOT_WANTED
    asks = zones.with_others(pool, zones.place(pool, sizes.spot_missing, now), surge(pool.policy), now)
    if not asks and (goal := _move(pool, sizes, now)) is not None:
        return {goal: 1}, Reason.SAFER_ZONE
    return asks, Reason.SPOT_WANTED


def _growth(pool: SpotPool, group: GroupView, size: int, reason: Reason, detail: str) -> Decision:
    cost = None if group.usd_per_hour is None else -group.usd_per_hour * (size - group.desired)
    unknown = zones.unpriced(pool, group)
    if unknown is None:
        return replace(_resize(pool, group, size, reason, detail), usd_per_hour=cost)
    grown = _resize(pool, group, size, reason, f"{detail}; {unknown}, so no ceiling holds")
    return replace(grown, usd_per_hour=cost, evidence={zones.CEILING: f"not judged: {unknown}"})


def _move(pool: SpotPool, sizes: Sizes, now: datetime) -> str | None:
    """Where one spot instance would be safer; only from a calm pool, and only where a surge is allowed."""
    if pool.policy.max_surge < 1 or pool.spare == 0:
        return None  # without a spare each loss is felt, and more zones are more losses (docs/watchdogs.md)
    whole = sizes.spot == sizes.spot_ready == sizes.spot_wanted
    if (
        not whole
        or sizes.spot_late
        or sizes.on_demand
        or sizes.on_demand_late
        or lifecycle.somebody_leaves(pool, now)
    ):
        return None
    names = {group.name for group in pool.groups_of(CapacityType.SPOT)}
    if all(m.kept_by for m in pool.members if m.group in names):
        return None  # nobody would leave for the one that comes
    needed = max(0, pool.target - sizes.reserved)
    spots, goals = pool.spot_places(), zones.reachable(pool, now)
    return risk.best_move(spots, zones.counts(pool), needed, goals, zones.LEAST_GAIN)


def _surplus_spot(pool: SpotPool, sizes: Sizes, now: datetime) -> list[Decision]:
    """One at a time, drained, once enough others are ready: a marked one first, then from the least useful zone."""
    if sizes.spot_ready <= sizes.spot_needed or lifecycle.somebody_leaves(pool, now):
        return []
    names = {group.name for group in pool.groups_of(CapacityType.SPOT)}
    candidates = [m for m in pool.members if m.group in names and lifecycle.may_be_asked(m) and not m.late]
    needed = max(0, pool.target - sizes.reserved)
    from_group = risk.best_removal(pool.spot_places(), zones.counts(pool), needed)
    order = sorted(candidates, key=lambda m: (not m.idle, m.group != from_group, m.busy, m.launched_at, m.id))
    kept, goes = lifecycle.first_free(order)
    ends = [_end(pool, goes, Reason.SURPLUS, f"{sizes.spot} spot for {sizes.spot_needed} wanted")] if goes else []
    return [*(_kept(pool, member) for member in kept), *ends]


def _on_demand(pool: SpotPool, sizes: Sizes, now: datetime) -> list[Decision]:
    """Buy what neither reserved nor spot gives in time; give back what nobody needs any more."""
    group = pool.fallback()
    if group is None:
        return []
    wanted, there = min(max(0, sizes.missing), group.max), len(pool.members_of(group.name))
    lacks = wanted - lifecycle.with_replaced(sizes.on_demand, sizes.on_demand_late, wanted)
    if group.desired > (needed := there + max(0, lacks) + group.unseen):
        return [_resize(pool, group, needed, Reason.SURPLUS, _TOO_MANY)]
    open_zones = [] if zones.is_out_of_time(pool, now) else zones.untried(pool, now)
    if lacks > 0 and sizes.spot_missing > 0 and open_zones:
        # spot starts as fast as on-demand, so zones are asked before anything is bought for what none has given
        lacks = min(lacks, sizes.doubtful - sizes.on_demand)
        if lacks <= 0:
            names = ", ".join(one.name for one in open_zones)
            return [_keep(pool, group, Reason.SPOT_WANTED, f"still to be asked: {names}")]
    if lacks > 0:
        closed = _obstacle(pool, group, now)
        if closed is not None and closed.reason in _IN_VAIN and group.desired > there + group.unseen:
            # what is asked for and has not come would fail, too
            return [_resize(pool, group, there + group.unseen, closed.reason, closed.detail)]
        return [closed or _fallback(pool, group, sizes, lacks)]
    if sizes.on_demand + sizes.on_demand_late == 0:
        return [_keep(pool, group, Reason.AS_WANTED, "none needed")]
    return _give_back(pool, group, sizes, now)


def _obstacle(pool: SpotPool, group: GroupView, now: datetime) -> Decision | None:
    """Why nothing is bought though something is missing; None: it may be."""
    closed = group.frozen or group.closed or zones.at_quota(pool, group, now) or zones.boots_failing(pool, group, now)
    return None if closed is None else _keep(pool, group, closed.reason, closed.detail)


def _fallback(pool: SpotPool, group: GroupView, sizes: Sizes, lacks: int) -> Decision:
    """So many more of what stands in, up to its group's maximum; or that they are on their way."""
    there = len(pool.members_of(group.name))
    most = max(group.max, there)
    if group.capacity_type is CapacityType.FLEX_START:
        # several may end at the same time, and Google's groups know no maximum
        most = group.max + FLEX_START_OVERLAP
        # nor do they replace what dies: its place stays taken
        there, most = there + group.unseen, most + group.unseen
    size = min(there + lacks, most)
    if size <= group.desired:
        return _keep(pool, group, Reason.FALLBACK, _not_more(pool, group, group.desired - there))
    decision = _resize(pool, group, size, Reason.FALLBACK, _why_missing(sizes))
    if group.usd_per_hour is None:
        return decision
    return replace(decision, usd_per_hour=-group.usd_per_hour * (size - group.desired))


def _why_missing(sizes: Sizes) -> str:
    if sizes.doubtful == 0:
        return f"no zone gives spot for {sizes.missing} missing"
    boots = f"{sizes.doubtful} of the spot that boots, since as many were taken lately before they were ready"
    return f"{sizes.missing} missing, not counting {boots}"


def _not_more(pool: SpotPool, group: GroupView, asked: int) -> str:
    """Why more is wanted of what stands in, and no more is asked for."""
    if asked <= 0:
        return f"at its largest size of {group.max}"
    refused = zones.refused_last(pool, group)
    return f"{asked} on their way" if refused is None else f"{asked} asked for, the cloud refuses: {refused}"


def _give_back(pool: SpotPool, group: GroupView, sizes: Sizes, now: datetime) -> list[Decision]:
    """One on-demand instance, when enough spot has been ready for the hold and the rest carries the target."""
    needed = max(0, pool.target - sizes.stable)
    # one that hangs stands in for nobody, and goes when nobody is needed
    if sizes.on_demand + (0 if needed else sizes.on_demand_late) <= needed:
        if sizes.spot + sizes.reserved >= pool.target:
            return [_keep(pool, group, Reason.HOLDING_FALLBACK, f"ready for {pool.policy.hold}: {sizes.stable}")]
        # its group launches anew what went, whatever is asked: people are to hear of it
        if (failing := zones.boots_failing(pool, group, now)) is not None:
            return [_keep(pool, group, failing.reason, failing.detail)]
        return [_keep(pool, group, Reason.FALLBACK, f"stands in for {pool.target - sizes.stable}")]
    if lifecycle.somebody_leaves(pool, now):
        return [_keep(pool, group, Reason.HOLDING_FALLBACK, "another one leaves first")]
    members = [m for m in pool.members_of(group.name) if lifecycle.may_be_asked(m)]
    if not members:
        return [_keep(pool, group, Reason.NOT_STOPPABLE, "no agent there answers, so none can be asked to drain")]
    kept, goes = lifecycle.first_free(sorted(members, key=_give_back_first))
    words = [_kept(pool, member) for member in kept]
    if goes is None:
        return [_keep(pool, group, Reason.KEPT_BY_PEOPLE, "all that could be given back"), *words]
    if goes.ready and sum(member.ready for member in pool.members_of(group.name)) <= needed:
        return [_keep(pool, group, Reason.HOLDING_FALLBACK, "another one is to be ready first"), *words]
    if sizes.spot_ready == 0 or sizes.on_demand > pool.target:
        reason, detail = Reason.SURPLUS, f"{sizes.on_demand} on demand for {needed} wanted"
    else:
        reason, detail = Reason.SPOT_IS_BACK, f"{sizes.stable} of {pool.target} wanted have been ready for the hold"
    return [_keep(pool, group, reason, detail), *words, _end(pool, goes, reason, detail)]


def _give_back_first(member: PoolMember) -> tuple[object, ...]:
    """One that is not ready before one that serves: of those the youngest, which is furthest from being ready."""
    age = member.launched_at.timestamp() * (1 if member.ready else -1)
    return member.late, member.ready, not member.idle, member.busy, age, member.id


def _places_of_taken(pool: SpotPool) -> list[Decision]:
    """What its cloud took leaves its group with the group lowered."""
    return [
        Decision(
            resource=key,
            pool=pool.name,
            action=Action.END,
            reason=Reason.PREEMPTED,
            detail="its cloud took it; its place in the group goes with it",
            evidence={lifecycle.TAKEN_FROM: group.name},
        )
        for group in pool.groups
        for key in group.taken
    ]


def _drained(pool: SpotPool) -> list[Decision]:
    """What drained for a notice or for this watchdog is ended with its group lowered.

    Otherwise the group would look for another one in the zone that has just run out. What its cloud takes for nothing
    is left to it.
    """
    decisions: list[Decision] = []
    for member in pool.members:
        if not member.drained or (pool.idle_ends and lifecycle.drains_idle(member)):
            continue  # what idle drained is left to it where there is one
        detail = f"drained: {member.leaving_because}"
        if member.left_to_its_cloud:
            detail = "drained; left to its cloud, which charges nothing for one this young"
            decisions.append(lifecycle.kept(pool, member, Reason.PREEMPTED, detail))
        elif member.under_notice:
            decisions.append(_end(pool, member, Reason.PREEMPTED, detail))
        elif member.drain_by is DrainOwner.SPOT or (member.drain_by is DrainOwner.IDLE and not pool.idle_ends):
            end = _end(pool, member, Reason.SURPLUS, detail)
            if member.drain_by is DrainOwner.IDLE:
                end = replace(end, usd_per_hour=None)  # the target stays, so another one takes its place
            decisions.append(end if member.kept_by is None else _kept(pool, member))
    return decisions


def _failed(pool: SpotPool, now: datetime) -> list[Decision]:
    """An instance whose boot failed, or whose engine crashed, is ended without a drain: nothing is served there.

    It is missed already, so another one is asked for where spot is best: were its group left as large as it was, two
    would take its place. Only a reserved group runs in full, whatever is missing. Where boots of its group fail again
    and again none takes its place there; where engines crash again and again the next one waits.
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
                detail = "engines crash again and again: the next one is replaced later"
                decisions.append(lifecycle.kept(pool, member, Reason.ENGINE_CRASHED, detail))
                continue
            end = _end(pool, member, Reason.ENGINE_CRASHED, f"it had served{why}")
        elif failed >= zones.FAILING_BOOTS:
            detail = f"{failed} boots failed in {member.group}; not replaced{why}"
            end = _end(pool, member, Reason.BOOTS_FAILING, detail)
        else:
            end = _end(pool, member, Reason.BOOT_FAILED, f"a new one is to take its place{why}")
        replaced = reserved and end.reason is not Reason.BOOTS_FAILING
        decisions.append(replace(end, action=Action.REPLACE) if replaced else end)
    return decisions


def _launched_for_nothing(pool: SpotPool, now: datetime) -> list[Decision]:
    """What a group launched by itself, for those whose boots had failed: it would go on for ever."""
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


def _crashes(pool: SpotPool, now: datetime) -> list[Decision]:
    """That engines crash again and again, so that the next one is replaced later."""
    waits = lifecycle.crash_waits(pool, now)
    if not waits:
        return []
    detail = f"engines crash again and again: of {len(waits)} the next is replaced at {min(waits):%H:%M:%S} UTC"
    return [
        Decision(resource=pool.name, pool=pool.name, action=Action.KEEP, reason=Reason.ENGINE_CRASHED, detail=detail)
    ]


def _unseen(decision: Decision) -> Decision:
    if decision.action is Action.KEEP:
        return decision
    return decision.kept(Reason.POLICY_UNSEEN, f"would {decision.action}: {decision.reason.sentence}")


def _keep(pool: SpotPool, group: GroupView, reason: Reason, detail: str = "") -> Decision:
    return Decision(resource=group.name, pool=pool.name, action=Action.KEEP, reason=reason, detail=detail)


def _kept(pool: SpotPool, member: PoolMember) -> Decision:
    return lifecycle.kept(pool, member, Reason.KEPT_BY_PEOPLE, member.kept_by or "")


def _resize(pool: SpotPool, group: GroupView, size: int, reason: Reason, detail: str) -> Decision:
    return Decision(
        resource=group.name,
        pool=pool.name,
        action=Action.RESIZE,
        reason=reason,
        detail=detail,
        from_size=group.desired,
        to_size=size,
    )


def _end(pool: SpotPool, member: PoolMember, reason: Reason, detail: str) -> Decision:
    return Decision(
        resource=member.id,
        pool=pool.name,
        action=Action.END,
        reason=reason,
        detail=detail,
        usd_per_hour=member.usd_per_hour if reason in CHOSEN else None,  # others are replaced
    )
