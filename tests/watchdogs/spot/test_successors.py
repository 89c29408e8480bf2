"""Fallback stays until its successor serves; instances that cannot drain, or never become ready."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType
from gpufleet.settings.document import DocumentError
from tests.fixtures.watchdogs.plain import START, document, left_booting, spot_pool
from tests.fixtures.watchdogs.spot import OD, A
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import GroupView, PoolMember

RES, FLEX = "batch-res", "batch-flex"
MINUTE = timedelta(minutes=1)
TYPES = {
    A: CapacityType.SPOT,
    OD: CapacityType.ON_DEMAND,
    RES: CapacityType.RESERVED,
    FLEX: CapacityType.FLEX_START,
}


def group(name: str, desired: int, **changes: Any) -> GroupView:
    plain = GroupView(name=name, capacity_type=TYPES[name], zone="us-east-1a", desired=desired, max=2)
    return replace(plain, **changes)


def serving(count: int, name: str = A, **changes: Any) -> list[PoolMember]:
    """Members that have been ready for an hour."""
    at = START - timedelta(hours=1)
    plain = PoolMember(id="", group=name, launched_at=at, ready_since=at, usd_per_hour=Decimal("0.25"))
    return [replace(plain, id=f"{name}-{n}", **changes) for n in range(count)]


def booting(count: int, name: str, **changes: Any) -> list[PoolMember]:
    """Members that were launched two minutes ago."""
    members = serving(count, name, launched_at=START - 2 * MINUTE, ready_since=None)
    return [replace(m, id=f"{m.id}-new", **changes) for m in members]


def decided(groups: Sequence[GroupView], members: Sequence[PoolMember], **changes: Any) -> dict[str, Decision]:
    return {d.resource: d for d in decide([spot_pool(groups, members, **changes)], START).decisions}


def ends(found: dict[str, Decision]) -> list[str]:
    return [name for name, decision in found.items() if decision.action is Action.END]


@pytest.mark.parametrize(
    ("spot", "reserved", "spare", "ended_count"),
    [
        pytest.param(2, booting(2, RES), 0, 0, id="reserved capacity boots"),
        pytest.param(2, [*serving(1, RES), *booting(1, RES)], 0, 1, id="half of it serves"),
        pytest.param(1, [*serving(1, RES), *booting(1, RES)], 0, 0, id="half of it serves, half is replaced"),
        pytest.param(2, serving(2, RES), 0, 1, id="it serves"),
        pytest.param(3, booting(2, RES), 1, 0, id="it boots, one to spare"),
        pytest.param(3, [*serving(1, RES), *booting(1, RES)], 1, 1, id="half of it serves, one to spare"),
        pytest.param(2, [], 0, 0, id="it was only just asked for"),
    ],
)
def test_spot_stays_until_what_replaces_it_serves(
    spot: int, reserved: list[PoolMember], spare: int, ended_count: int
) -> None:
    found = decided(
        [group(RES, len(reserved)), group(A, spot, max=9)], [*serving(spot), *reserved], spare=spare, max=9
    )
    assert len(ends(found)) == ended_count


@pytest.mark.parametrize(
    ("minutes", "action", "reason"),
    [
        pytest.param((5, 15, 25), Action.KEEP, Reason.BOOTS_FAILING, id="three within the hour"),
        pytest.param((5, 15), Action.RESIZE, Reason.RESERVED_IN_FULL, id="two"),
        pytest.param((61, 65, 75), Action.RESIZE, Reason.RESERVED_IN_FULL, id="three before that"),
    ],
)
def test_failed_boots_stop_a_reserved_group_too(minutes: Sequence[int], action: Action, reason: Reason) -> None:
    found = decided([group(RES, 0), group(A, 2)], serving(2), boots=left_booting(RES, *minutes))
    assert (found[RES].action, found[RES].reason) == (action, reason)
    assert not ends(found), "fallback stays"


@pytest.mark.parametrize(
    ("on_demand", "ended", "reason"),
    [
        pytest.param(serving(1, OD), [f"{OD}-0"], Reason.SPOT_IS_BACK, id="its agent answers"),
        pytest.param(booting(1, OD, agent_unreachable=True), [], Reason.NOT_STOPPABLE, id="its agent is silent"),
        pytest.param(
            [*booting(1, OD, agent_unreachable=True), *serving(1, OD)],
            [f"{OD}-0"],
            Reason.SPOT_IS_BACK,
            id="one of two answers",
        ),
    ],
)
def test_instance_that_cannot_drain_is_not_ended(
    on_demand: list[PoolMember], ended: list[str], reason: Reason
) -> None:
    found = decided([group(A, 2), group(OD, len(on_demand))], [*serving(2), *on_demand])
    assert (ends(found), found[OD].reason) == (ended, reason)


def test_an_instance_that_cannot_drain_is_not_surplus() -> None:
    silent = booting(1, A, agent_unreachable=True)
    assert ends(decided([group(A, 4, max=9)], [*serving(3), *silent])) == [f"{A}-0"]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(FLEX, 3, id="flex-start replaces nothing by itself"),
        pytest.param(OD, None, id="others do"),
    ],
)
def test_dead_instance_keeps_or_frees_its_place(name: str, size: int | None) -> None:
    found = decided([group(name, 2, unseen=1)], serving(1, name))[name]
    assert (found.to_size, found.reason) == (size, Reason.FALLBACK)
    fallen = decided([group(name, 2, unseen=1)], serving(1, name), target=1)[name]
    assert fallen.action is Action.KEEP, "a smaller size would let the cloud choose the instance to end"


@pytest.mark.parametrize("idle_ends", [True, False])
def test_spot_ends_drained_instances_if_the_pool_has_no_idle_watchdog(*, idle_ends: bool) -> None:
    drained = serving(1, leaving=True, drained=True, drain_by=DrainOwner.IDLE)
    alone = replace(serving(1)[0], id="other")
    found = decided([group(A, 2, max=9)], [*drained, alone], idle_ends=idle_ends)
    assert (ends(found) == [f"{A}-0"]) is not idle_ends
    assert (found[A].to_size == 3) is not idle_ends, "its target does not fall, so another one is asked for"


@pytest.mark.parametrize(("target", "size"), [pytest.param(0, None, id="to zero"), pytest.param(1, 2, id="one")])
def test_a_pool_scaled_to_zero_has_no_spare(target: int, size: int | None) -> None:
    assert decided([group(A, 0)], [], target=target, spare=1)[A].to_size == size


@pytest.mark.parametrize(
    ("changes", "target", "saves"),
    [
        pytest.param({"failed": True, "ready_since": None}, 2, None, id="a failed boot, replaced"),
        pytest.param({"leaving": True, "drained": True, "under_notice": True}, 2, None, id="taken by its cloud"),
        pytest.param({}, 1, Decimal("0.25"), id="surplus"),
    ],
)
def test_replaced_instance_is_not_a_saving(changes: dict[str, Any], target: int, saves: Decimal | None) -> None:
    first, second = serving(2)
    found = decided([group(A, 2, max=9)], [replace(first, **changes), second], target=target)
    assert [found[name].usd_per_hour for name in ends(found)] == [saves]


@pytest.mark.parametrize("ready", [True, False], ids=["another one serves", "another one boots"])
def test_serving_instance_is_not_ended_for_a_booting_one(*, ready: bool) -> None:
    """Spot was not ready for a while, so a second one was bought; spot is back, and one on demand is enough."""
    second = serving(1, OD)[0] if ready else booting(1, OD, agent_unreachable=True)[0]
    found = decided([group(A, 1), group(OD, 2)], [*serving(1), *serving(1, OD), replace(second, id="second")])
    assert len(ends(found)) == ready
    assert found[OD].reason is (Reason.SPOT_IS_BACK if ready else Reason.HOLDING_FALLBACK)


@pytest.mark.parametrize(
    ("asked", "silent", "waits"),
    [
        pytest.param(True, True, True, id="asked and silent"),
        pytest.param(False, True, False, id="silent, and was not asked"),
        pytest.param(True, False, False, id="asked, and reporting: its agent restarted and has no drain"),
    ],
)
def test_silent_draining_instance_blocks_the_next_end(*, asked: bool, silent: bool, waits: bool) -> None:
    first, second = serving(2, OD)
    there = replace(first, ready_since=None if silent else first.ready_since, agent_unreachable=silent, asked=asked)
    found = decided([group(A, 2), group(OD, 2)], [*serving(2), there, second])
    assert len(ends(found)) == (not waits)


def test_group_that_lists_ended_instances_is_requested_and_awaited() -> None:
    """Two ended, and one is wanted now: with the current size no zone would be asked."""
    found = decided([group(A, 2, unseen=2)], [], target=1)[A]
    assert (found.action, found.reason, found.from_size, found.to_size) == (Action.RESIZE, Reason.SPOT_WANTED, 2, 2)


def test_failing_requests_of_a_group_are_dropped_while_it_lists_ended_instances() -> None:
    """Two serve, one died, and it looks for two more that nobody wants: to ask for two would end one that serves."""
    found = decided([group(A, 5, max=9, unseen=1)], serving(2), target=2)[A]
    assert (found.action, found.reason, found.from_size, found.to_size) == (Action.RESIZE, Reason.SURPLUS, 5, 3)


def test_only_requested_reserved_growth_replaces_spot() -> None:
    """Two serve and a third is asked for: of four, one more is missing."""
    found = decided([group(RES, 2, max=3), group(A, 0, max=9)], serving(2, RES), target=4)
    assert (found[RES].from_size, found[RES].to_size) == (2, 3)
    assert (found[A].from_size, found[A].to_size) == (0, 1)


def test_fallback_states_what_it_replaces_while_spot_is_requested() -> None:
    found = decided([group(A, 1, max=9), group(OD, 1)], [*serving(1), *serving(1, OD)], target=2)
    assert (found[A].reason, found[A].to_size) == (Reason.SPOT_WANTED, 2)
    assert (found[OD].action, found[OD].reason) == (Action.KEEP, Reason.FALLBACK)
    assert found[OD].detail == "replaces 1 missing"


def test_fallback_for_reserved_is_kept_until_reserved_was_ready_for_the_hold() -> None:
    new = serving(1, RES, ready_since=START - MINUTE)
    found = decided([group(RES, 1, max=1), group(A, 1), group(OD, 1)], [*new, *serving(1), *serving(1, OD)], target=2)
    assert (found[OD].action, found[OD].reason) == (Action.KEEP, Reason.HOLDING_FALLBACK)


def test_fallback_for_reserved_is_surplus_without_spot() -> None:
    found = decided([group(RES, 1, max=1), group(OD, 2)], [*serving(1, RES), *serving(2, OD)], target=2)
    assert len(ends(found)) == 1
    assert (found[OD].reason, found[OD].detail) == (Reason.SURPLUS, "2 on demand for 1 wanted")


def test_idle_instance_is_ended_first() -> None:
    first, second = serving(2, OD)
    found = decided([group(A, 1), group(OD, 2)], [*serving(1), first, replace(second, is_marked=True)], target=2)
    assert ends(found) == [second.id]


def test_fallback_waits_until_each_zone_was_asked() -> None:
    found = decided([group(A, 0, max=9), group(OD, 0)], [], target=2)[OD]
    assert (found.action, found.reason) == (Action.KEEP, Reason.SPOT_WANTED)
    assert found.detail == f"spot is requested in these groups first: {A}"


def test_request_beyond_a_quota_stays_open() -> None:
    """People raise quotas, and its group tries again by itself."""
    refused = Activity(id="q", group=OD, kind=ActivityKind.QUOTA, at=START - MINUTE, detail="quota reached")
    found = decided([group(OD, 2)], serving(1, OD), target=2, events=[refused])[OD]
    assert (found.action, found.reason, found.to_size) == (Action.KEEP, Reason.QUOTA, None)


def test_the_cost_of_fallback_is_that_of_its_growth() -> None:
    found = decided(
        [group(OD, 1, usd_per_hour=Decimal("0.80"))], serving(1, OD), target=2, on_demand_usd=Decimal("0.80")
    )
    assert (found[OD].to_size, found[OD].usd_per_hour) == (2, Decimal("-0.80"))


def test_growth_costs_what_is_new() -> None:
    found = decided([group(A, 1, max=9, usd_per_hour=Decimal("0.30"))], serving(1), target=3)[A]
    assert (found.to_size, found.usd_per_hour) == (3, Decimal("-0.60"))


@pytest.mark.parametrize(
    ("name", "desired", "listed", "dead", "size"),
    [
        pytest.param(OD, 2, 1, 0, 1, id="on demand, one is asked for"),
        pytest.param(OD, 2, 2, 0, None, id="on demand, none is"),
        pytest.param(OD, 3, 1, 1, 2, id="on demand, one is requested next to an ended one"),
        pytest.param(OD, 2, 1, 1, None, id="on demand, one is there and a dead one"),
        pytest.param(RES, 2, 1, 0, 1, id="reserved, one is asked for"),
        pytest.param(RES, 2, 2, 0, None, id="reserved, none is"),
    ],
)
def test_open_requests_are_withdrawn_after_repeated_boot_failures(
    name: str, desired: int, listed: int, dead: int, size: int | None
) -> None:
    groups = [group(name, desired, max=3, unseen=dead)]
    found = decided(groups, serving(listed, name), target=3, boots=left_booting(name, 25, 15, 5))[name]
    assert (found.to_size, found.reason) == (size, Reason.BOOTS_FAILING)


@pytest.mark.parametrize(
    ("desired", "there", "unseen", "size"),
    [
        pytest.param(3, 3, 0, None, id="all run"),
        pytest.param(4, 3, 0, 3, id="one more is asked for"),
        pytest.param(4, 3, 1, None, id="one died, unnoticed"),
        pytest.param(3, 2, 0, 2, id="as many as are reserved"),
    ],
)
def test_more_instances_than_reserved_are_reported_and_kept(
    desired: int, there: int, unseen: int, size: int | None
) -> None:
    found = decided([group(RES, desired, unseen=unseen)], serving(there, RES))[RES]
    assert (found.to_size, found.reason) == (size, Reason.RESERVED_IN_FULL)
    assert ("gpufleet drain" in found.detail) is (there + unseen > 2)


def test_replaced_idle_instance_is_not_a_saving() -> None:
    drained = serving(1, leaving=True, drained=True, drain_by=DrainOwner.IDLE)
    found = decided([group(A, 2, max=9)], [*drained, replace(serving(1)[0], id="other")], idle_ends=False)
    assert [found[name].usd_per_hour for name in ends(found)] == [None]


@pytest.mark.parametrize("name", [OD, RES])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({}, Reason.BOOTS_FAILING, id="never ready"),
        pytest.param({"why": ActivityKind.FAILED_BOOT}, Reason.BOOTS_FAILING, id="and its group reports it"),
        pytest.param({"ready_at": START - timedelta(hours=2)}, None, id="was ready"),
        pytest.param({"why": ActivityKind.ENDED}, None, id="ended by us"),
        pytest.param({"why": ActivityKind.ENDED_BY_PERSON}, None, id="ended by a person"),
        pytest.param({"last_seen_at": START - timedelta(hours=2)}, None, id="no look followed it"),
    ],
)
def test_machines_that_power_off_as_they_boot_are_failed_boots(
    name: str, changes: dict[str, Any], reason: Reason | None
) -> None:
    """Those whose agent could not be set up power off after a quarter of an hour, whatever way they were bought."""
    ended_count = left_booting(name, 40, 25, 10, **changes)
    otherwise = Reason.FALLBACK if name == OD else Reason.RESERVED_IN_FULL
    assert decided([group(name, 0, max=4)], [], target=1, boots=ended_count)[name].reason is (reason or otherwise)
    found = decided([group(name, 1, max=4)], booting(1, name), target=1, boots=ended_count)
    assert found[name].reason is (reason or otherwise), "its group continues by itself"


@pytest.mark.parametrize("name", [A, OD, RES])
@pytest.mark.parametrize(
    ("launched", "kept_by", "ended"),
    [
        pytest.param(10, None, True, id="by its group, after the third failed"),
        pytest.param(30, None, False, id="asked for before"),
        pytest.param(10, "by ana", False, id="kept"),
    ],
)
def test_instance_launched_by_a_closed_group_is_ended(
    name: str, launched: float, kept_by: str | None, *, ended: bool
) -> None:
    """Otherwise it never stops: a group replaces ended instances. The last one was seen eleven minutes ago."""
    new = [replace(booting(1, name)[0], launched_at=START - launched * MINUTE, kept_by=kept_by)]
    ended_count = left_booting(name, 40, 25, 10, why=ActivityKind.FAILED_BOOT)
    found = decided([group(name, 1, max=4)], new, target=1, boots=ended_count)
    assert ends(found) == ([new[0].id] if ended else [])
    if ended:
        decision = found[new[0].id]
        assert (decision.action, decision.reason) == (Action.END, Reason.BOOTS_FAILING), "and its group gets smaller"


def test_spot_that_was_taken_as_it_booted_has_not_failed() -> None:
    taken = left_booting(A, 40, 25, 10, why=ActivityKind.PREEMPTED)
    assert decided([group(A, 0)], [], target=1, boots=taken)[A].reason is not Reason.BOOTS_FAILING
    powered_off = left_booting(A, 40, 25, 10, why=ActivityKind.FAILED_BOOT)
    assert decided([group(A, 0)], [], target=1, boots=powered_off)[A].reason is Reason.BOOTS_FAILING


@pytest.mark.parametrize("why", [None, ActivityKind.ENDED_UNSTATED])
def test_an_unstated_spot_end_may_be_a_loss_and_is_not_a_failed_boot(why: ActivityKind | None) -> None:
    unstated = left_booting(A, 40, 25, 10, why=why)
    assert decided([group(A, 0)], [], target=1, boots=unstated)[A].reason is not Reason.BOOTS_FAILING


def test_unconfirmed_idle_drain_does_not_block_the_end_of_on_demand() -> None:
    drained = serving(1, leaving=True, drained=True, drain_by=DrainOwner.IDLE)
    alone = [replace(member, id=f"other-{n}") for n, member in enumerate(serving(2))]
    found = decided([group(A, 3, max=9), group(OD, 1)], [*drained, *alone, *serving(1, OD)])
    assert ends(found) == [f"{OD}-0"]
    still = [replace(member, drained=False) for member in drained]
    assert not ends(decided([group(A, 3, max=9), group(OD, 1)], [*still, *alone, *serving(1, OD)]))


def test_a_fallback_costs_what_its_own_machines_cost() -> None:
    expensive = group(OD, 0, usd_per_hour=Decimal("4.6"))
    assert decided([expensive], [], target=2, on_demand_usd=Decimal("0.8"))[OD].usd_per_hour == Decimal("-9.2")


def test_limit_of_zero_is_refused() -> None:
    with pytest.raises(DocumentError, match="kv_cache_above: expected a number above 0"):
        document(watchdogs={"scale": {"kv_cache_above": 0}})


def test_the_fallback_is_not_asked_for_more_than_its_group_may_hold() -> None:
    dry = Activity(id="1", group=A, kind=ActivityKind.NO_CAPACITY, at=START)
    found = decided([group(A, 0, max=9), group(OD, 0, max=2)], [], target=4, max=9, events=(dry,))
    assert (found[OD].reason, found[OD].to_size) == (Reason.FALLBACK, 2)
