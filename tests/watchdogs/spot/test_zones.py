"""Which zones are asked, and for what: to fill a pool, to have one more than its spare, to move to a safer one."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Reason
from gpufleet.domain.model import CapacityType
from tests.fixtures.watchdogs.plain import START, left_booting
from tests.fixtures.watchdogs.zone_pools import pool, ready
from watchdogs.spot import zones
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import GroupView, SpotPoolView

EXPENSIVE = Decimal("0.95")
UNKNOWN = ActivityKind("of_a_newer_release")


def happened(group: str, kind: ActivityKind, minutes: float) -> Activity:
    """That many minutes ago."""
    return Activity(id=f"{group}-{kind}", group=group, kind=kind, at=START - timedelta(minutes=minutes))


NOTHING = {"a": 0, "b": 0, "c": 0}
A_SAFE = {"a": 0.0, "b": 0.5, "c": 0.5}


@pytest.mark.parametrize(
    ("seen", "asked"),
    [
        pytest.param(pool(NOTHING, losses=A_SAFE, spare=0), {"a": 2, "b": 2}, id="half at most in the safest"),
        pytest.param(
            pool(NOTHING, losses=A_SAFE, spare=0, largest={"b": 0, "c": 1}),
            {"a": 3, "c": 1},
            id="more than half there if no other zone has capacity",
        ),
        pytest.param(
            pool({"a": 2, "b": 0, "c": 0}, target=10, losses=A_SAFE, spare=0, largest={"a": 3}),
            {"a": 1, "b": 3},
            id="no more there than its max allows",
        ),
        pytest.param(
            pool(NOTHING, losses=A_SAFE, spare=0, prices={"a": EXPENSIVE}),
            {"b": 2, "c": 2},
            id="none that is too expensive",
        ),
        pytest.param(
            pool(NOTHING, losses=A_SAFE, spare=0, prices={"a": Decimal("0.90")}),
            {"b": 2, "c": 2},
            id="none at the very ceiling",
        ),
    ],
)
def test_placement_of_four_requests(seen: SpotPoolView, asked: Mapping[str, int]) -> None:
    assert zones.allocate_requests(seen, 4, START) == asked


@pytest.mark.parametrize(
    ("minutes", "zone", "asked"),
    [
        pytest.param(1, "us-east-1c", {"c": 1}, id="one that is named"),
        pytest.param(6, "us-east-1c", {"b": 1}, id="one that was named long ago"),
        pytest.param(1, "us-east-1z", {"b": 1}, id="one that the pool does not have"),
        pytest.param(1, "us-east-1a", {"b": 1}, id="the one that refused"),
    ],
)
def test_a_zone_that_a_refusal_named_is_asked_first(minutes: float, zone: str, asked: dict[str, int]) -> None:
    refused = replace(happened("a", ActivityKind.NO_CAPACITY, minutes), zones_available=(zone,))
    safe = {"a": 0.0, "b": 0.1, "c": 0.5}
    seen = replace(pool(NOTHING, losses=safe, events=[refused]), pass_started=START - timedelta(minutes=10))
    assert zones.allocate_requests(seen, 1, START) == asked


UNEVEN = {"a": 2, "b": 2, "c": 1}
"""Five for four and a spare: either of two zones would take more than the spare."""


@pytest.mark.parametrize(
    ("seen", "extra"),
    [
        pytest.param(pool(UNEVEN), 1, id="it pays"),
        pytest.param(pool(UNEVEN, spare=0, target=5), 0, id="people want no spare"),
        pytest.param(pool({"a": 2, "b": 2, "c": 0}), 0, id="the spare itself is missing"),
        pytest.param(pool(UNEVEN, losses=dict.fromkeys("abc", 0.01)), 0, id="stable zones"),
        pytest.param(pool({"a": 2, "b": 2, "c": 2}), 1, id="it is there and still pays"),
        pytest.param(
            pool({"a": 2, "b": 2, "c": 2}, losses=dict.fromkeys("abc", 0.01)), 0, id="it is there and pays no more"
        ),
        pytest.param(
            pool(UNEVEN, events=[happened(name, ActivityKind.PRICE, 29) for name in "abc"]),
            0,
            id="all zones refused lately",
        ),
        pytest.param(
            pool(UNEVEN, events=[happened(name, ActivityKind.PRICE, 31) for name in "abc"]),
            1,
            id="all zones refused longer ago",
        ),
        pytest.param(
            pool(UNEVEN, events=[happened(name, ActivityKind.LAUNCHED, 5) for name in "abc"]),
            1,
            id="all zones gave lately",
        ),
        pytest.param(pool(UNEVEN, prices=dict.fromkeys("abc", EXPENSIVE)), 0, id="all zones are too expensive"),
        pytest.param(
            pool({"a": 3, "b": 2}, losses=dict.fromkeys("ab", 0.2), prices={"b": EXPENSIVE}),
            0,
            id="the one that is open holds its share",
        ),
    ],
)
def test_when_one_extra_spare_lowers_the_risk(seen: SpotPoolView, extra: int) -> None:
    assert zones.extra(seen, seen.target + seen.spare, START) == extra


def test_extra_spare_is_requested() -> None:
    seen = pool(UNEVEN)
    groups = [group for group in seen.groups if group.name != "r"]
    (asked,) = decide([replace(seen, groups=groups)], START).acting
    assert (asked.resource, asked.reason, asked.from_size, asked.to_size) == ("c", Reason.SPOT_WANTED, 1, 2)


STATES = [
    pytest.param({}, True, id="ready"),
    pytest.param({"ready_since": None}, True, id="boots"),
    pytest.param({"leaving": True}, False, id="leaves"),
    pytest.param({"failed": True}, False, id="its boot failed"),
    pytest.param({"ready_since": None, "late": True}, False, id="too late"),
]


@pytest.mark.parametrize(("state", "counts"), STATES)
def test_which_spot_instances_count_for_placement(state: Mapping[str, Any], counts: bool) -> None:
    assert zones.counts(pool(UNEVEN, more=[ready("one", "c", **state)]))["c"] == 1 + counts


@pytest.mark.parametrize(("state", "counts"), STATES)
def test_which_reserved_carries_a_part_of_the_target(state: Mapping[str, Any], counts: bool) -> None:
    """Without it all six spot are needed, and one more would spare no fall."""
    seen = pool({"a": 2, "b": 2, "c": 2}, target=6, more=[ready("one", "r", **state)])
    assert zones.extra(seen, 6, START) == counts


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        pytest.param(pool(UNEVEN), ["a", "b", "c"], id="all"),
        pytest.param(pool({"a": 3, "b": 1, "c": 1}), ["b", "c"], id="not one that holds its share"),
        pytest.param(pool(UNEVEN, prices={"b": EXPENSIVE}), ["a", "c"], id="not one that is too expensive"),
        pytest.param(
            pool(UNEVEN, more=[ready("one", "c", leaving=True, under_notice=True)]),
            ["a", "b"],
            id="not one that is just being taken",
        ),
        *(
            pytest.param(pool(UNEVEN, events=[happened("a", kind, 29)]), ["b", "c"], id=f"not one of lately: {kind}")
            for kind in (ActivityKind.LAUNCHED, ActivityKind.PREEMPTED, ActivityKind.NO_CAPACITY, UNKNOWN)
        ),
        pytest.param(
            pool(UNEVEN, events=[happened("a", ActivityKind.PREEMPTED, 31)]),
            ["a", "b", "c"],
            id="later again",
        ),
        pytest.param(
            pool(UNEVEN, events=[happened("a", ActivityKind.UNHEALTHY, 5)]),
            ["a", "b", "c"],
            id="one whose boot failed: the zone was not asked",
        ),
    ],
)
def test_which_zones_can_receive_a_move(seen: SpotPoolView, names: list[str]) -> None:
    assert zones.move_destinations(seen, START) == names


@pytest.mark.parametrize(("minutes", "believed"), [(19, True), (21, False)])
def test_quota_refusal_counts_during_the_backoff(minutes: float, believed: bool) -> None:
    seen = pool(UNEVEN, events=[happened("a", ActivityKind.QUOTA, minutes)])
    assert (zones.quota_objection(seen, seen.groups[1], START) is not None) is believed


def test_a_quota_of_the_whole_account_counts_for_every_way_of_buying() -> None:
    of_spot = happened("a", ActivityKind.QUOTA, 1)
    for account_wide in (False, True):
        seen = pool(UNEVEN, events=[replace(of_spot, account_wide=account_wide)])
        on_demand = replace(seen.groups[0], name="od", capacity_type=CapacityType.ON_DEMAND)
        assert (zones.quota_objection(seen, on_demand, START) is not None) is account_wide


def test_penalty_of_a_loss_fades() -> None:
    found: list[float] = []
    for minutes in (0, 5, 10, 19, 21):
        seen = pool(UNEVEN, events=[happened("a", ActivityKind.PREEMPTED, minutes)])
        found.append(zones.penalty(seen, seen.groups[0], START))
    assert found == pytest.approx([1, 0.75, 0.5, 0.05, 0])


def looking(*events: Activity, desired: int = 3) -> SpotPoolView:
    """Zone `c` has one, and its group is to have that many."""
    found = pool(UNEVEN, events=events)
    return replace(found, groups=[replace(g, desired=desired) if g.name == "c" else g for g in found.groups])


NO_CAPACITY, LAUNCHED, PREEMPTED = ActivityKind.NO_CAPACITY, ActivityKind.LAUNCHED, ActivityKind.PREEMPTED


@pytest.mark.parametrize(
    ("seen", "is_open"),
    [
        pytest.param(looking(), True, id="it launches by itself, without an answer yet"),
        pytest.param(looking(happened("c", NO_CAPACITY, 5)), False, id="it looks by itself and was refused"),
        pytest.param(looking(happened("c", NO_CAPACITY, 21)), True, id="refused longer ago than the back-off"),
        pytest.param(looking(happened("c", NO_CAPACITY, 5), desired=1), True, id="refused, and looks no more"),
        pytest.param(
            looking(happened("c", NO_CAPACITY, 5), happened("c", LAUNCHED, 4)), True, id="it has given since"
        ),
        pytest.param(looking(happened("c", NO_CAPACITY, 0), desired=1), False, id="refused in this pass"),
        pytest.param(looking(happened("c", UNKNOWN, 5)), False, id="refused for an unknown reason"),
    ],
)
def test_a_group_that_looks_by_itself_is_not_asked_after_a_refusal(seen: SpotPoolView, is_open: bool) -> None:
    assert ("c" in {group.name for group in zones.requestable_groups(seen, START)}) is is_open


def test_refusal_before_the_request_is_not_its_answer() -> None:
    seen = looking(happened("c", NO_CAPACITY, 5), desired=2)
    asked = replace(seen, groups=[replace(g, awaited=g.name == "c") for g in seen.groups])
    assert "c" in {group.name for group in zones.requestable_groups(asked, START)}


@pytest.mark.parametrize(
    ("seen", "to_size", "reason"),
    [
        pytest.param(looking(), 1, Reason.SURPLUS, id="no more is needed"),
        pytest.param(looking(happened("c", NO_CAPACITY, 5)), 1, Reason.NO_SPOT, id="it was refused"),
        pytest.param(
            looking(happened("c", UNKNOWN, 5)), 1, Reason.NO_SPOT, id="it was refused for an unknown reason"
        ),
        pytest.param(replace(looking(desired=5), target=5), 2, Reason.SURPLUS, id="fewer are needed"),
        pytest.param(replace(looking(desired=2), target=5), 2, Reason.SPOT_WANTED, id="it is needed"),
        pytest.param(looking(desired=1), None, Reason.AS_WANTED, id="none is asked for"),
    ],
)
def test_an_unanswered_request_is_cancelled(seen: SpotPoolView, to_size: int | None, reason: Reason) -> None:
    groups = [replace(g, usd_per_hour=Decimal("0.30") if g.name == "c" else EXPENSIVE) for g in seen.groups[:3]]
    safe = [replace(group, losses_per_hour=0.001) for group in groups]
    (found,) = [d for d in decide([replace(seen, groups=safe)], START).decisions if d.resource == "c"]
    assert (found.to_size, found.reason) == (to_size, reason)


@pytest.mark.parametrize(
    ("refused_s_ago", "again_in_s"),
    [
        pytest.param([], 0, id="never"),
        pytest.param([0], 30, id="once"),
        pytest.param([0, 5], 30, id="one ask that was answered twice"),
        pytest.param([0, 29], 30, id="the same, until it may be asked again"),
        pytest.param([0, 30], 60, id="twice, as soon as it may be asked again"),
        pytest.param([0, 40], 60, id="twice"),
        pytest.param([45, 90], 15, id="twice, a while ago"),
        pytest.param([90], 0, id="long enough ago"),
        pytest.param([60 * n for n in range(10)], 300, id="again and again"),
        pytest.param([0, 1190], 30, id="the older one is forgotten before"),
        pytest.param([20, 1190], 10, id="the older one is forgotten just as the shorter pause ends"),
        pytest.param([40, 1190], 10, id="the same, after it would have ended"),
    ],
)
def test_backoff_after_refusals(refused_s_ago: list[float], again_in_s: float) -> None:
    seen = pool(NOTHING, events=[happened("a", NO_CAPACITY, ago / 60) for ago in reversed(refused_s_ago)])
    assert asked_again_in(seen) == again_in_s


def test_success_clears_earlier_refusals_of_a_zone() -> None:
    kinds = ((NO_CAPACITY, 10), (LAUNCHED, 5), (NO_CAPACITY, 0.25))
    seen = pool(NOTHING, events=[happened("a", kind, minutes) for kind, minutes in kinds])
    assert asked_again_in(seen) == 15


def asked_again_in(seen: SpotPoolView) -> int:
    """Seconds until a pass may ask zone `a`."""
    moments = ((s, START + timedelta(seconds=s)) for s in range(600))
    passes = ((s, replace(seen, pass_started=now + timedelta(seconds=1)), now) for s, now in moments)
    return next(s for s, view, now in passes if "a" in [group.name for group in zones.requestable_groups(view, now)])


@pytest.mark.parametrize(
    ("group", "lived_s", "minutes_ago", "young"),
    [
        pytest.param("a", 60, 10, 1, id="taken a minute after its launch"),
        pytest.param("a", 600, 10, 0, id="taken when it could be ready"),
        pytest.param("a", 60, 121, 0, id="longer ago than losses come in spells"),
        pytest.param("o", 60, 10, 0, id="on-demand, which left by itself"),
    ],
)
def test_early_losses_from_activities(group: str, lived_s: float, minutes_ago: float, young: int) -> None:
    on_demand = GroupView(name="o", capacity_type=CapacityType.ON_DEMAND, zone=None, desired=0, max=9)
    seen = pool(UNEVEN, boot_expected=timedelta(minutes=5), events=lived(group, lived_s, minutes_ago))
    assert zones.preempted_while_booting(replace(seen, groups=[*seen.groups, on_demand]), START) == young


def lived(group: str, seconds: float, minutes: float) -> list[Activity]:
    """What is known of one that was taken that many minutes ago, so long after its launch."""
    ages = {LAUNCHED: minutes + seconds / 60, PREEMPTED: minutes}
    return [replace(happened(group, kind, age), instance_id="i-1") for kind, age in ages.items()]


@pytest.mark.parametrize(
    ("group", "minutes_ago", "changes", "young"),
    [
        pytest.param("a", 10, {}, 1, id="before it was ready"),
        pytest.param("a", 10, {"ready_at": START - timedelta(minutes=12)}, 0, id="after that"),
        pytest.param("a", 121, {}, 0, id="longer ago than losses come in spells"),
        pytest.param("a", 10, {"why": ActivityKind.ENDED}, 0, id="ended by us"),
        pytest.param("a", 10, {"last_seen_at": START - timedelta(hours=1)}, 0, id="no look followed it"),
        pytest.param("o", 10, {}, 0, id="not spot"),
    ],
)
def test_early_losses_from_recorded_boots(
    group: str, minutes_ago: float, changes: dict[str, Any], young: int
) -> None:
    left = left_booting(group, minutes_ago, **({"why": PREEMPTED} | changes))
    assert zones.preempted_while_booting(pool(UNEVEN, boots=left), START) == young
    reported = replace(happened(group, PREEMPTED, minutes_ago), instance_id=left[0].instance_id)
    assert zones.preempted_while_booting(pool(UNEVEN, boots=left, events=[reported]), START) == young, (
        "it counts once"
    )


def test_loss_behind_a_launch_hook_is_an_early_loss() -> None:
    """Its launch is never over: no look saw it, and its group reports that it was being launched."""
    events = [
        replace(event, kind=ActivityKind.IN_PROGRESS) if event.kind is LAUNCHED else event
        for event in lived("a", 60, 10)
    ]
    assert zones.preempted_while_booting(pool(UNEVEN, events=events), START) == 1
    assert zones.preempted_while_booting(pool(UNEVEN, events=events[1:]), START) == 0, "its age is unknown"
