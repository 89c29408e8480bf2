"""Capacity that was bought for a time: at which moment it is used, replaced and left."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType
from gpufleet.domain.policies import SpotPolicy
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.plain import START, spot_pool
from tests.fixtures.watchdogs.spot import OD, A, B, make_watchdog, spread_fleet
from watchdogs.spot.decide import split
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView
from watchdogs.spot.sizes import MARGIN, mark_ending_as_leaving
from watchdogs.spot.watchdog import SpotWatchdog

OPENS = datetime(2026, 12, 1, 11, 30, tzinfo=UTC)
CLOSES = datetime(2026, 12, 15, 11, 0, tzinfo=UTC)
"""Thirty minutes before the block's own end."""
SECOND = timedelta(seconds=1)
DRAIN, BOOT, FALLBACK = timedelta(minutes=5), timedelta(minutes=6), timedelta(minutes=2)
LEAVES = CLOSES - DRAIN - MARGIN
REPLACED = LEAVES - BOOT - FALLBACK - MARGIN
BLOCK, SPOT = "chat-block", "chat-spot-a"


def member(name: str, group: str) -> PoolMember:
    since = OPENS - timedelta(days=3)
    return PoolMember(id=name, group=group, launched_at=since, ready_since=since)


def pool(*, in_block: int, in_spot: int = 0, desired: int | None = None, **more: object) -> SpotPoolView:
    """Two of a block, and spot; two replicas are wanted."""
    members = [member(f"b{n}", BLOCK) for n in range(in_block)] + [member(f"s{n}", SPOT) for n in range(in_spot)]
    block = GroupView(
        name=BLOCK,
        capacity_type=CapacityType.RESERVED,
        zone="us-east-1a",
        desired=in_block if desired is None else desired,
        max=2,
        opens=OPENS,
        closes=CLOSES,
    )
    spot = GroupView(name=SPOT, capacity_type=CapacityType.SPOT, zone="us-east-1a", desired=in_spot, max=5)
    usual = {
        "policy": SpotPolicy(fallback_after=FALLBACK),
        "pass_started": OPENS - timedelta(days=2),
        "boot_expected": BOOT,
        "drain_deadline": DRAIN,
    }
    return spot_pool([block, spot], members, **usual | more)


def of(resource: str, decisions: Sequence[Decision]) -> Decision:
    (found,) = [decision for decision in decisions if decision.resource == resource]
    return found


@pytest.mark.parametrize(
    ("now", "in_block", "size", "reason"),
    [
        pytest.param(OPENS - timedelta(days=7), 0, None, Reason.TERM_NOT_BEGUN, id="a week before"),
        pytest.param(OPENS - SECOND, 0, None, Reason.TERM_NOT_BEGUN, id="a second before"),
        pytest.param(OPENS, 0, 2, Reason.RESERVED_IN_FULL, id="at its start"),
        pytest.param(OPENS + SECOND, 2, None, Reason.RESERVED_IN_FULL, id="in it"),
        pytest.param(REPLACED - SECOND, 2, None, Reason.RESERVED_IN_FULL, id="before it is replaced"),
        pytest.param(REPLACED, 2, None, Reason.TERM_ENDS, id="replaced"),
        pytest.param(LEAVES - SECOND, 2, None, Reason.TERM_ENDS, id="before it leaves"),
        pytest.param(LEAVES, 2, None, Reason.TERM_ENDS, id="leaves"),
        pytest.param(CLOSES, 0, None, Reason.TERM_ENDS, id="over"),
        pytest.param(CLOSES + timedelta(days=30), 0, None, Reason.TERM_ENDS, id="long over"),
    ],
)
def test_a_block_is_used_within_its_time(now: datetime, in_block: int, size: int | None, reason: Reason) -> None:
    found = of(BLOCK, split(pool(in_block=in_block), now))
    assert (found.to_size, found.reason) == (size, reason)
    assert found.from_size == (None if size is None else in_block)
    assert found.action is (Action.KEEP if size is None else Action.RESIZE)


@pytest.mark.parametrize(
    ("now", "asked"),
    [
        pytest.param(OPENS - SECOND, 2, id="before: spot carries the pool"),
        pytest.param(REPLACED - SECOND, None, id="within: it needs none"),
        pytest.param(REPLACED, 2, id="before its end: others are asked for"),
    ],
)
def test_spot_replaces_reserved_before_and_after_its_term(now: datetime, asked: int | None) -> None:
    there = 0 if now < OPENS else 2
    assert of(SPOT, split(pool(in_block=there), now)).to_size == asked


@pytest.mark.parametrize(
    ("now", "leaving"), [(LEAVES - SECOND, set[str]()), (LEAVES, {"b0", "b1"}), (CLOSES, {"b0", "b1"})]
)
def test_block_instances_drain_in_time_with_or_without_replacement(now: datetime, leaving: set[str]) -> None:
    found = split(pool(in_block=2), now)
    assert {d.resource for d in found if d.action is Action.END} == leaving
    assert CLOSES - now >= DRAIN or now == CLOSES


@pytest.mark.parametrize(
    "bad", [{"failed": True, "ready_since": None}, {"drained": True, "drain_by": DrainOwner.SPOT}]
)
def test_each_instance_has_one_decision_at_the_end(bad: dict[str, object]) -> None:
    view = pool(in_block=1)
    ill = replace(view.members[0], leaving=True, **bad)  # type: ignore[arg-type]
    found = split(replace(view, members=[ill]), LEAVES)
    assert of("b0", found).reason is Reason.TERM_ENDS


def test_block_is_not_refilled_at_its_end() -> None:
    assert of(BLOCK, split(pool(in_block=1, desired=2), LEAVES)).to_size == 1


def test_size_of_an_ending_block_is_not_raised_again() -> None:
    """Two are listed while the first of them ends: its group wants one."""
    found = of(BLOCK, split(pool(in_block=2, desired=1), LEAVES))
    assert (found.action, found.to_size) == (Action.KEEP, None)


def test_other_drains_continue_while_a_block_ends() -> None:
    view = pool(in_block=1, in_spot=2)
    drains = [replace(m, leaving=m.leaving or m.id == "s0") for m in view.members]
    assert [m.id for m in mark_ending_as_leaving(replace(view, members=drains), LEAVES).members if m.leaving] == [
        "b0",
        "s0",
    ]


def test_stable_pool_does_not_change_before_or_during_a_block() -> None:
    assert all(d.action is Action.KEEP for d in split(pool(in_block=0, in_spot=2), OPENS - SECOND))
    assert all(d.action is Action.KEEP for d in split(pool(in_block=2), OPENS + SECOND))


FLEX = "chat-flex-start"
ENDS = OPENS + timedelta(days=1)
DRAIN_BEGINS = ENDS - DRAIN - MARGIN
SUCCEEDED = DRAIN_BEGINS - BOOT - FALLBACK - MARGIN


def with_flex_start(*, there: int, most: int = 3) -> SpotPoolView:
    """Two replicas wanted, no zone that gives spot, and instances of flex-start that end at `ENDS`."""
    members = [replace(member(f"f{n}", FLEX), ends_at=ENDS) for n in range(there)]
    flex = GroupView(name=FLEX, capacity_type=CapacityType.FLEX_START, zone="us-central1-a", desired=there, max=most)
    return replace(pool(in_block=0), groups=(flex,), members=members)


def test_flex_start_is_a_fallback_like_on_demand() -> None:
    found = of(FLEX, split(with_flex_start(there=0), OPENS))
    assert (found.action, found.to_size, found.reason) == (Action.RESIZE, 2, Reason.FALLBACK)
    assert found.usd_per_hour is None, "what it costs is not what on-demand costs"


@pytest.mark.parametrize(
    ("now", "size", "going"),
    [
        pytest.param(SUCCEEDED - SECOND, None, set[str](), id="in its time"),
        pytest.param(SUCCEEDED, 4, set[str](), id="others are asked for"),
        pytest.param(DRAIN_BEGINS - SECOND, 4, set[str](), id="before its drain"),
        pytest.param(DRAIN_BEGINS, 4, {"f0", "f1"}, id="drained and ended before the cloud does it"),
        pytest.param(ENDS, 4, {"f0", "f1"}, id="late"),
    ],
)
def test_an_instance_of_flex_start_is_replaced_before_its_time_is_over(
    now: datetime, size: int | None, going: set[str]
) -> None:
    found = split(with_flex_start(there=2), now)
    assert of(FLEX, found).to_size == size
    assert {d.resource for d in found if d.action is Action.END} == going
    assert {d.reason for d in found if d.action is Action.END} <= {Reason.RUN_ENDS}


def test_replacements_of_flex_start_stay_within_its_maximum_and_one() -> None:
    assert of(FLEX, split(with_flex_start(there=2, most=2), SUCCEEDED)).to_size == 3


RES = "batch-res"


def block_fleet() -> tuple[FakeFleet, SpotWatchdog]:
    """Of a block that begins in an hour and is closed in a day, with spot available."""
    fleet = spread_fleet()
    now = fleet.now
    groups = [
        {"type": "reserved", "zone": "us-east-1a", "name": RES, "max": 2, "reservation": "cr-1",
         "opens": (now + timedelta(hours=1)).isoformat(), "closes": (now + timedelta(days=1)).isoformat()},
        {"type": "spot", "zone": "us-east-1a", "name": A, "max": 4, "machine_types": ["g6.xlarge"]},
        {"type": "spot", "zone": "us-east-1b", "name": B, "max": 4, "machine_types": ["g6.xlarge"]},
        {"type": "on-demand", "zone": None, "name": OD, "max": 2, "machine_types": ["g6.xlarge"]},
    ]  # fmt: skip
    empty = replace(fleet.groups[A], name=RES, desired=0, instance_ids=())
    fleet.groups[RES] = replace(empty, capacity_type=CapacityType.RESERVED)
    fleet.capacity |= {RES: 2, A: 2, B: 2}
    return fleet, make_watchdog(fleet, groups=groups)


def test_the_pool_moves_off_a_block_before_the_cloud_ends_it() -> None:
    fleet, watchdog = block_fleet()
    now, drain = fleet.now, timedelta(seconds=90)
    watchdog.apply()
    assert not fleet.alive(RES), "its time has not begun"

    fleet.now = now + timedelta(hours=1)
    watchdog.apply()
    fleet.boot()
    assert len(fleet.alive(RES)) == 2
    for _ in range(4):
        fleet.now += timedelta(minutes=1)
        watchdog.apply()
    assert fleet.alive(RES) and not fleet.alive(A) and not fleet.alive(B), "what is paid for carries the pool"

    fleet.now = now + timedelta(days=1) - drain - MARGIN - timedelta(minutes=4)
    watchdog.apply()
    fleet.boot()
    assert len(fleet.alive(RES)) == 2 and len([*fleet.alive(A), *fleet.alive(B)]) == 2

    fleet.now = now + timedelta(days=1) - drain - MARGIN
    going = fleet.alive(RES)
    watchdog.apply()
    assert not fleet.alive(RES)
    assert set(going) <= set(fleet.drains), "none without a drain"
    assert len([*fleet.alive(A), *fleet.alive(B)]) == 2


@pytest.mark.parametrize(
    ("scope", "kept"),
    [
        pytest.param("the first", 1, id="one of its very own"),
        pytest.param("batch", 0, id="its pool's: the cloud ends it anyway"),
        pytest.param("all", 0, id="all pools'"),
    ],
)
def test_which_brakes_protect_instances_of_an_ending_block(scope: str, kept: int) -> None:
    fleet, watchdog = block_fleet()
    closes = fleet.now + timedelta(days=1)
    fleet.now += timedelta(hours=1)
    watchdog.apply()
    fleet.boot()
    fleet.now = closes - timedelta(seconds=90) - MARGIN
    there = fleet.alive(RES)
    brake = Brake(
        since=START,
        kind=BrakeKind.KEEP,
        scope=there[0] if scope == "the first" else scope,
        owner="ana",
        reason="a look",
        until=None,
    )

    def before(call: str) -> None:
        if fleet.plans[-1].at == fleet.now:  # what comes while a pass acts
            fleet.brakes = [brake]

    fleet.before = before
    watchdog.apply()
    assert fleet.alive(RES) == there[:kept] and set(fleet.drains) >= set(there[kept:])
    assert not kept or there[0] not in fleet.drains
