"""Ceilings of what the spot watchdog asks for: instances of a pool, starts of an hour, USD per hour of the fleet."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Action, Decision, Plan, Reason, SpendRate
from gpufleet.domain.model import CapacityType
from gpufleet.domain.policies import SpotPolicy
from tests.fixtures.watchdogs.plain import START, spot_pool
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView

A, B, C, OD, RES, FLEX = "a", "b", "c", "on-demand", "reserved", "flex"
HOUR = timedelta(hours=1)


def spot(name: str, desired: int = 0, **more: object) -> GroupView:
    plain = GroupView(
        name=name,
        capacity_type=CapacityType.SPOT,
        zone=f"us-east-1{name}",
        desired=desired,
        max=99,
        usd_per_hour=Decimal("0.3"),
        max_usd_per_hour=Decimal("0.4"),
    )
    return replace(plain, **more)


def other(name: str, kind: CapacityType, desired: int = 0, most: int = 99, **more: object) -> GroupView:
    price = Decimal(1)
    plain = GroupView(
        name=name,
        capacity_type=kind,
        zone=None,
        desired=desired,
        max=most,
        usd_per_hour=price,
        max_usd_per_hour=price,
    )
    return replace(plain, **more)


def on_demand(desired: int = 0, most: int = 99) -> GroupView:
    return other(OD, CapacityType.ON_DEMAND, desired, most)


def members(group: str, count: int, **more: object) -> list[PoolMember]:
    plain = PoolMember(id="", group=group, launched_at=START - 5 * HOUR, ready_since=START - 4 * HOUR)
    return [replace(plain, id=f"{group}-{n}", **more) for n in range(count)]


def hanging(group: str, count: int, **more: object) -> list[PoolMember]:
    """Booted long ago, and never ready."""
    return members(group, count, ready_since=None, not_ready_since=START - 4 * HOUR, **more)


def refused(*groups: str) -> list[Activity]:
    return [Activity(id=g, group=g, kind=ActivityKind.NO_CAPACITY, at=START) for g in groups]


def asked(plan: Plan) -> dict[str, int]:
    """How much each group is to grow."""
    resizes = [d for d in plan.acting if d.action is Action.RESIZE]
    return {d.resource: (d.to_size or 0) - (d.from_size or 0) for d in resizes}


def of(plan: Plan, resource: str) -> Decision:
    return next(d for d in plan.decisions if d.resource == resource)


@pytest.mark.parametrize(
    ("surge", "spare", "most"),
    [pytest.param(2, 0, 6, id="surge"), pytest.param(0, 0, 5, id="no surge"), pytest.param(2, 1, 7, id="a spare")],
)
def test_a_pool_whose_instances_hang_stops_at_max_spare_and_surge(surge: int, spare: int, most: int) -> None:
    pool = spot_pool(
        [spot(A, 4), spot(B), on_demand()],
        hanging(A, 4),
        target=4,
        max=4,
        spare=spare,
        policy=SpotPolicy(max_surge=surge),
    )
    plan = decide([pool], START)
    assert sum(asked(plan).values()) == most - 4
    cut = [d for d in plan.decisions if d.reason is Reason.POOL_CEILING or "not asked for" in d.detail]
    assert cut and all(f" of {most} instances" in d.detail for d in cut)


def test_growth_that_is_stopped_altogether_is_kept_with_its_reason_and_numbers() -> None:
    pool = spot_pool([spot(A, 6), spot(B), on_demand()], hanging(A, 6), target=4, max=4, events=refused(A, B))
    decision = of(decide([pool], START), OD)
    assert (decision.action, decision.reason) == (Action.KEEP, Reason.POOL_CEILING)
    assert decision.detail.startswith("6 of 6 instances, running or requested; would request 4 more: ")
    assert decision.evidence == {"used": "6", "ceiling": "6"}


def test_on_demand_that_hangs_is_not_replaced_beyond_its_groups_largest_size() -> None:
    """Each late one has a successor, within the max of the pool."""
    pool = spot_pool([spot(A), on_demand(2, most=2)], hanging(OD, 2), target=2, max=6, events=refused(A))
    decision = of(decide([pool], START), OD)
    assert (decision.action, decision.reason) == (Action.KEEP, Reason.FALLBACK)
    assert decision.detail == "at its maximum size of 2"


def test_open_requests_of_all_groups_count_toward_the_ceiling() -> None:
    """Zone A is asked for four that have not come; on-demand for two."""
    pool = spot_pool([spot(A, 4), on_demand(2)], [], target=4, max=4, events=refused(A))
    assert sum(asked(decide([pool], START)).values()) <= 0


def test_draining_instances_are_replaced() -> None:
    leaving = members(A, 4, leaving=True, under_notice=True)
    pool = spot_pool([spot(A, 4), spot(B), on_demand()], leaving, target=4, max=4, spare=0)
    assert asked(decide([pool], START)) == {B: 4}


def test_draining_instances_do_not_allow_more_than_max_others() -> None:
    leaving = members(A, 8, leaving=True, under_notice=True)
    pool = spot_pool([spot(A, 8), spot(B), on_demand()], leaving, target=4, max=4)
    assert asked(decide([pool], START)) == {B: 2}


def test_the_last_hours_of_a_capacity_block_do_not_count() -> None:
    """Each is replaced before its end: at that moment there are twice as many."""
    block = other(RES, CapacityType.RESERVED, 4, 4, closes=START + timedelta(minutes=20))
    pool = spot_pool([block, spot(A), on_demand()], members(RES, 4), target=4, max=4, spare=2)
    assert asked(decide([pool], START)) == {A: 6}


def test_reserved_capacity_counts_and_is_never_held_back() -> None:
    groups = [other(RES, CapacityType.RESERVED, 0, 8), spot(A), on_demand()]
    pool = spot_pool(groups, [], target=4, max=4, spare=6)
    assert asked(decide([pool], START)) == {RES: 8, A: 2}


def test_ended_flex_start_without_replacement_does_not_count() -> None:
    flex = other(FLEX, CapacityType.FLEX_START, 9, 9, unseen=9)
    pool = spot_pool([spot(A), flex], [], target=4, max=4, events=refused(A))
    assert asked(decide([pool], START)) == {FLEX: 4}


def test_a_pool_above_its_ceiling_keeps_what_it_has() -> None:
    pool = spot_pool([spot(A, 9)], members(A, 9), target=4, max=4)
    plan = decide([pool], START)
    assert not [d for d in plan.acting if d.action is Action.RESIZE]


def test_a_regional_loss_of_all_is_made_good_in_full_under_the_defaults() -> None:
    """They had started within the hour, and no zone has spot: on-demand replaces each."""
    pool = spot_pool(
        [spot(A), spot(B), on_demand()],
        [],
        target=4,
        max=4,
        spare=1,
        started_this_hour=5,
        events=refused(A, B),
    )
    assert asked(decide([pool], START)) == {OD: 4}
    pool = replace(pool, events=())
    assert sum(asked(decide([pool], START)).values()) == 5


@pytest.mark.parametrize(
    ("stated", "started", "more"),
    [
        pytest.param(None, 12, 0, id="three times max"),
        pytest.param(None, 10, 2, id="two allowed"),
        pytest.param(20, 12, 4, id="stated"),
        pytest.param(0, 0, 0, id="none at all"),
    ],
)
def test_starts_of_an_hour_are_limited(stated: int | None, started: int, more: int) -> None:
    policy = SpotPolicy(max_starts_per_hour=stated)
    pool = spot_pool([spot(A), on_demand()], [], target=4, max=4, policy=policy, started_this_hour=started)
    plan = decide([pool], START)
    assert asked(plan).get(A, 0) == more
    if not more:
        assert of(plan, A).reason is Reason.STARTS_CEILING


def test_open_requests_count_as_starts() -> None:
    pool = spot_pool([spot(A, 2), spot(B), on_demand()], [], target=4, max=4, started_this_hour=8)
    assert sum(asked(decide([pool], START)).values()) == 2


def spend(limit: str, costs: str, **more: object) -> SpendRate:
    return replace(SpendRate(limit_usd_per_hour=Decimal(limit), usd_per_hour=Decimal(costs)), **more)


@pytest.mark.parametrize(
    ("found", "more"),
    [
        pytest.param(spend("10", "0"), 4, id="far below"),
        pytest.param(spend("10", "9"), 2, id="two allowed at the price of the most expensive type"),
        pytest.param(spend("10", "9.61"), 0, id="none allowed"),
        pytest.param(spend("10", "11"), 0, id="above"),
        pytest.param(spend("10", "9", unpriced=3), 2, id="at least"),
        pytest.param(spend("10", "0", unpriced=1, unpriced_stops=True), 0, id="an unknown price stops it"),
        pytest.param(spend("10", "0", unpriced_stops=True), 4, id="all are priced"),
    ],
)
def test_a_fleet_grows_up_to_its_limit(found: SpendRate, more: int) -> None:
    pool = spot_pool([spot(A), on_demand()], [], target=4, max=4)
    plan = decide([pool], START, found)
    assert asked(plan).get(A, 0) == more
    assert plan.spend == replace(found, usd_per_hour=found.usd_per_hour + more * Decimal("0.4"))
    if not more:
        assert of(plan, A).reason is Reason.SPEND_CEILING


def test_pools_share_the_limit_and_open_asks_count() -> None:
    first = spot_pool([spot(A, 3), on_demand()], [], target=4, max=4)
    second = replace(spot_pool([spot(B), on_demand()], [], target=4, max=4), name="chat")
    second = replace(second, groups=[spot(B), replace(on_demand(), name="chat-od")])
    plan = decide([first, second], START, spend("2.5", "0.5"))
    assert asked(plan) == {A: 1, B: 1}


def test_growth_without_a_price_continues_below_the_limit_unless_unpriced_stops() -> None:
    pool = spot_pool([spot(A, max_usd_per_hour=None), on_demand()], [], target=4, max=4)
    plan = decide([pool], START, spend("10", "1"))
    assert asked(plan) == {A: 4} and plan.spend is not None and plan.spend.unpriced == 4
    assert not asked(decide([pool], START, spend("10", "1", unpriced_stops=True)))
    assert not asked(decide([pool], START, spend("10", "10")))


# properties

COUNTS = st.integers(0, 6)
KINDS = (CapacityType.SPOT, CapacityType.SPOT, CapacityType.ON_DEMAND, CapacityType.RESERVED)


@st.composite
def pools(draw: st.DrawFn, name: str = "batch") -> SpotPoolView:
    """Any pool at any moment: members in every state, asks that are open, zones that refused, blocks that end."""
    target, most = draw(COUNTS), draw(st.integers(1, 6))
    groups: list[GroupView] = []
    found: list[PoolMember] = []
    for number, kind in enumerate(draw(st.permutations(KINDS))):
        group = f"{name}-{number}"
        there = draw(st.lists(member_of(group), max_size=5))
        found += [replace(one, id=f"{group}-{n}") for n, one in enumerate(there)]
        price = draw(st.sampled_from([None, Decimal("0.3"), Decimal("2.5")]))
        closes = draw(st.sampled_from([None, START + timedelta(minutes=20), START + timedelta(minutes=8)]))
        groups.append(
            GroupView(
                name=group,
                capacity_type=kind,
                zone=f"us-east-1{'abcd'[number]}",
                desired=draw(st.integers(0, 6)),
                max=draw(st.integers(1, 9)),
                unseen=draw(st.integers(0, 2)),
                usd_per_hour=price,
                max_usd_per_hour=price,
                closes=closes if kind is CapacityType.RESERVED else None,
            )
        )
    return spot_pool(
        groups,
        found,
        name=name,
        target=min(target, most),
        max=most,
        spare=draw(st.integers(0, 2)),
        policy=SpotPolicy(
            max_surge=draw(st.integers(0, 3)),
            max_starts_per_hour=draw(st.none() | st.integers(0, 20)),
        ),
        started_this_hour=draw(st.integers(0, 20)),
        events=refused(*draw(st.lists(st.sampled_from([group.name for group in groups]), max_size=2))),
    )


def member_of(group: str) -> st.SearchStrategy[PoolMember]:
    ready = st.sampled_from([None, START - HOUR])
    return st.builds(
        lambda ready_since, leaving, failed, minutes: PoolMember(
            id="",
            group=group,
            launched_at=START - timedelta(minutes=minutes),
            ready_since=None if failed else ready_since,
            leaving=leaving,
            under_notice=leaving,
            failed=failed,
        ),
        ready,
        st.booleans(),
        st.booleans(),
        st.integers(1, 300),
    )


def after(pool: SpotPoolView, plan: Plan) -> dict[str, int]:
    """What each group may hold once it has its size; it keeps what it holds until somebody ends it."""
    sizes = {d.resource: d.to_size for d in plan.acting if d.action is Action.RESIZE and d.pool == pool.name}
    return {
        group.name: max(sizes.get(group.name) or 0, group.desired, len(pool.members_of(group.name)) + group.unseen)
        for group in pool.groups
    }


def counts(pool: SpotPoolView, now: datetime) -> int:
    """Members that do not count: they leave, or their Capacity Block is in its last hours."""
    ends = {group.name: group.closes for group in pool.groups}
    soon = pool.boot_expected + pool.drain_deadline + pool.policy.fallback_after + timedelta(minutes=10)
    over = [m for m in pool.members if (end := ends[m.group]) is not None and end - now <= soon]
    return len({m.id for m in pool.members if m.leaving} | {m.id for m in over})


@given(pools())
@settings(max_examples=150)
def test_no_plan_grows_a_pool_beyond_its_ceilings(pool: SpotPoolView) -> None:
    plan = decide([pool], START)
    grown = {name: more for name, more in asked(plan).items() if more > 0 and not _is_reserved([pool], name)}
    if not grown:
        return
    sizes = after(pool, plan)
    ceiling = pool.max + pool.spare + max(1, pool.policy.max_surge)
    assert sum(sizes.values()) - counts(pool, START) <= ceiling
    assert sum(sizes.values()) <= pool.max + ceiling
    stated = pool.policy.max_starts_per_hour
    most = 3 * pool.max if stated is None else stated
    new = sum(max(0, size - len(pool.members_of(name))) for name, size in sizes.items())
    assert pool.started_this_hour + new <= most


@given(pools("batch"), pools("chat"), st.integers(0, 30), st.booleans())
@settings(max_examples=150)
def test_no_plan_grows_a_fleet_beyond_its_limit(
    first: SpotPoolView, second: SpotPoolView, usd: int, stops: bool
) -> None:
    both = [first, second]
    found = spend("20", str(usd), unpriced_stops=stops)
    plan = decide(both, START, found)
    grown = {name: more for name, more in asked(plan).items() if more > 0 and not _is_reserved(both, name)}
    if not grown:
        return
    prices = {group.name: group.max_usd_per_hour for pool in both for group in pool.groups}
    new = {
        name: max(0, size - len(pool.members_of(name))) for pool in both for name, size in after(pool, plan).items()
    }
    known = sum((count * (prices[name] or Decimal(0)) for name, count in new.items()), Decimal(0))
    paid = any(prices[name] is not None for name in grown)
    assert usd + known <= 20 or not paid
    assert not (stops and any(count and prices[name] is None for name, count in new.items()))


def _is_reserved(both: Sequence[SpotPoolView], name: str) -> bool:
    groups = [group for pool in both for group in pool.groups if group.name == name]
    return any(group.capacity_type is CapacityType.RESERVED for group in groups)
