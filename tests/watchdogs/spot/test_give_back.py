"""Which on-demand instance is given back, and the reported reason."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType
from tests.fixtures.watchdogs.plain import START, spot_pool
from tests.fixtures.watchdogs.spot import OD, A
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import GroupView, PoolMember

MINUTE = timedelta(minutes=1)
GROUPS = [
    GroupView(name=A, capacity_type=CapacityType.SPOT, zone="us-east-1a", desired=0, max=9),
    GroupView(name=OD, capacity_type=CapacityType.ON_DEMAND, zone=None, desired=0, max=9),
]


def member(
    name: str, group: str, *, launched: float, ready: bool = True, busy: float = 0, **changes: Any
) -> PoolMember:
    """One that was launched that many minutes ago, and was ready four minutes later if it is."""
    at = START - launched * MINUTE
    since = at + 4 * MINUTE if ready else None
    return replace(
        PoolMember(id=name, group=group, launched_at=at, ready_since=since, requests_in_flight=busy), **changes
    )


def ends(target: int, *members: PoolMember) -> list[Decision]:
    pool = spot_pool(GROUPS, members, target=target, max=9)
    return [d for d in decide([pool], START).decisions if d.action is Action.END]


@pytest.mark.parametrize(
    ("target", "spot", "on_demand", "reason"),
    [
        pytest.param(2, 0, 6, Reason.SURPLUS, id="the target fell and there is no spot"),
        pytest.param(2, 1, 6, Reason.SURPLUS, id="more on demand than the whole target"),
        pytest.param(2, 2, 1, Reason.SPOT_IS_BACK, id="spot is back"),
        pytest.param(2, 2, 2, Reason.SPOT_IS_BACK, id="all of it is"),
        pytest.param(2, 1, 1, None, id="on demand is needed"),
    ],
)
def test_reason_for_ending_on_demand(target: int, spot: int, on_demand: int, reason: Reason | None) -> None:
    there = [member(f"spot-{n}", A, launched=60) for n in range(spot)]
    there += [member(f"od-{n}", OD, launched=60) for n in range(on_demand)]
    assert [d.reason for d in ends(target, *there)] == ([] if reason is None else [reason])


@pytest.mark.parametrize(
    ("members", "ended"),
    [
        pytest.param(
            [member("old", OD, launched=5, ready=False), member("young", OD, launched=1, ready=False)],
            "young",
            id="of those that boot the one furthest from ready",
        ),
        pytest.param(
            [member("serves", OD, launched=60), member("boots", OD, launched=5, ready=False)],
            "boots",
            id="one that boots before one that serves",
        ),
        pytest.param(
            [member("hung", OD, launched=60, ready=False), member("serves", OD, launched=60)],
            "serves",
            id="one that does not answer cannot be asked to drain",
        ),
        pytest.param(
            [member("busy", OD, launched=90, busy=3), member("idle", OD, launched=60)], "idle", id="the less busy"
        ),
        pytest.param([member("old", OD, launched=90), member("young", OD, launched=60)], "old", id="the older"),
        pytest.param(
            [
                member("left", OD, launched=90, leaving=True, drain_by=DrainOwner.PERSON),
                member("stays", OD, launched=60),
            ],
            "stays",
            id="not an instance that a person drained",
        ),
        pytest.param(
            [member("failed", OD, launched=5, ready=False, failed=True), member("serves", OD, launched=60)],
            "serves",
            id="not one that ends because its boot failed",
        ),
    ],
)
def test_which_on_demand_instance_ends(members: list[PoolMember], ended: str) -> None:
    spot = member("spot", A, launched=60)
    given_back = [d.resource for d in ends(1, spot, *members) if d.reason is not Reason.BOOT_FAILED]
    assert given_back == [ended]


def test_unneeded_on_demand_is_given_back_while_the_spare_is_requested() -> None:
    there = [member("spot-0", A, launched=60), member("spot-1", A, launched=60), member("od", OD, launched=60)]
    found = decide([spot_pool(GROUPS, there, target=2, spare=1, max=9)], START)
    assert [(d.resource, d.to_size) for d in found.acting] == [(A, 3), ("od", None)]
