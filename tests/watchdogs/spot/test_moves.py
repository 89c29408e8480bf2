"""When one is moved to a safer zone, and when one that is too many goes."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType
from gpufleet.domain.policies import SpotPolicy
from tests.fixtures.watchdogs.plain import START
from tests.fixtures.watchdogs.zone_pools import pool, ready
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView

LOSSES = {"a": 0.08, "b": 0.02, "c": 0.01}
HAND = {"leaving": True, "drain_by": DrainOwner.PERSON}
ROLLOUT = {"leaving": True, "drain_by": DrainOwner.ROLLOUT}
BOOTS = {"ready_since": None, "launched_at": START}
HANGS = {"ready_since": None, "launched_at": START - timedelta(hours=1)}


def seen(*more: PoolMember, kept: int = 0, **changes: Any) -> SpotPoolView:
    """Three for two and a spare, two of them where one is lost often, with a group for on-demand."""
    wanted: dict[str, Any] = {"target": 2} | changes
    found = pool({"a": 2, "b": 1, "c": 0}, losses=LOSSES, more=more, **wanted)
    on_demand = GroupView(name="od", capacity_type=CapacityType.ON_DEMAND, zone=None, desired=0, max=9)
    groups = [
        replace(group, desired=len(found.members_of(group.name)))
        for group in (*found.groups_of(CapacityType.SPOT), on_demand)
    ]
    members = [replace(m, kept_by="by ana") if n < kept else m for n, m in enumerate(found.members)]
    return replace(found, groups=groups, members=members)


def with_reserved(held: dict[str, int], reserved: int, target: int) -> SpotPoolView:
    """Spot with one spare, and reserved instances that carry a part of the target."""
    found = pool(held, losses=LOSSES, target=target, spare=1, more=[ready(f"r{n}", "r") for n in range(reserved)])
    return replace(
        found, groups=[replace(g, desired=reserved, max=reserved) if g.name == "r" else g for g in found.groups]
    )


def moves(view: SpotPoolView) -> list[str]:
    return [d.resource for d in decide([view], START).acting if d.reason is Reason.SAFER_ZONE]


@pytest.mark.parametrize(
    ("view", "goals"),
    [
        pytest.param(seen(), ["c"], id="a stable pool"),
        pytest.param(seen(policy=SpotPolicy(max_surge=0)), [], id="no surge is allowed"),
        pytest.param(seen(policy=SpotPolicy(max_surge=1)), ["c"], id="the least surge"),
        pytest.param(
            with_reserved({"a": 0, "b": 2, "c": 0}, 1, 2),
            ["c"],
            id="one of two is to spare, for reserved does the rest",
        ),
        pytest.param(seen(target=3, spare=0), [], id="no spare"),
        pytest.param(seen(kept=2), ["c"], id="one of them is free"),
        pytest.param(seen(kept=3), [], id="all are kept"),
        pytest.param(seen(ready("od", "od"), kept=3), [], id="on-demand would, but is not what moves"),
        pytest.param(seen(ready("od", "od")), [], id="on-demand is there"),
        pytest.param(seen(ready("od", "od", **HANGS)), [], id="on-demand hangs"),
        pytest.param(seen(ready("new", "c", **HANGS)), [], id="spot hangs"),
        pytest.param(seen(ready("new", "c", **ROLLOUT)), [], id="another one leaves"),
        pytest.param(seen(ready("new", "b", **HAND)), ["c"], id="one was drained by hand"),
        pytest.param(seen(target=3), [], id="one is missing"),
        pytest.param(seen(target=1), [], id="one is too many"),
        pytest.param(seen(ready("new", "b", **BOOTS), target=3), [], id="one is not ready yet"),
    ],
)
def test_when_an_instance_moves_to_another_zone(view: SpotPoolView, goals: list[str]) -> None:
    assert moves(view) == goals


def ends(view: SpotPoolView) -> list[Decision]:
    return [d for d in decide([view], START).decisions if d.action is Action.END and d.reason is Reason.SURPLUS]


@pytest.mark.parametrize(
    ("view", "ended"),
    [
        pytest.param(seen(), [], id="as wanted"),
        pytest.param(seen(target=1), ["a-0"], id="one too many"),
        pytest.param(
            with_reserved({"a": 0, "b": 1, "c": 2}, 1, 2), ["c-0"], id="one too many, for reserved does the rest"
        ),
        pytest.param(seen(target=1, spare=0), ["a-0"], id="two too many: one at a time"),
        pytest.param(seen(ready("new", "c", **BOOTS)), [], id="the one that comes is not ready"),
        pytest.param(seen(ready("new", "c")), ["a-0"], id="it is ready"),
        pytest.param(seen(ready("od", "od", is_marked=True), target=1), ["a-0"], id="spot is judged for itself"),
        pytest.param(seen(ready("new", "c", **ROLLOUT), target=1), [], id="another one leaves"),
        pytest.param(seen(ready("new", "b", **HAND), target=1), ["a-0"], id="one was drained by hand"),
        pytest.param(
            seen(ready("old", "a", failed=True, is_marked=True), target=1), ["a-0"], id="not by its failed boot"
        ),
        pytest.param(
            seen(ready("old", "a", is_marked=True, **HAND), target=1),
            ["a-0"],
            id="not an instance that a person drained",
        ),
        pytest.param(seen(ready("old", "a", is_marked=True, **HANGS), target=1), ["a-0"], id="not one that hangs"),
    ],
)
def test_which_surplus_instances_end(view: SpotPoolView, ended: list[str]) -> None:
    assert sorted(d.resource for d in ends(view)) == ended
