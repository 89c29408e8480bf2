"""How much spot is requested while on-demand replaces it."""

import random
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from gpufleet.domain.decisions import Action
from gpufleet.domain.model import CapacityType
from gpufleet.domain.policies import SpotPolicy
from replay import spot
from replay.spot import ON_DEMAND, Moves, RuleState
from tests.fixtures.replay.shapes import SHAPES, Shape, made
from tests.fixtures.watchdogs.plain import START, spot_pool
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView

ZONES = ("a", "b", "c")


def pool(spot: int, on_demand: int, surge: int, **more: object) -> SpotPoolView:
    """Four wanted and a spare, in three zones that give; on-demand has been ready for long, spot has just come."""
    kinds = [(zone, CapacityType.SPOT, f"us-east-1{zone}") for zone in ZONES]
    groups = [
        GroupView(name=name, capacity_type=kind, zone=zone, desired=0, max=9)
        for name, kind, zone in (*kinds, ("od", CapacityType.ON_DEMAND, None))
    ]
    there = [
        PoolMember(id=f"s{n}", group=ZONES[n % 3], launched_at=START - timedelta(minutes=1)) for n in range(spot)
    ]
    since = START - timedelta(hours=1)
    there += [PoolMember(id=f"o{n}", group="od", launched_at=since, ready_since=since) for n in range(on_demand)]
    groups = [replace(group, desired=sum(m.group == group.name for m in there)) for group in groups]
    wanted = {"target": 4, "spare": 1, "max": 9, "policy": SpotPolicy(max_surge=surge)}
    return spot_pool(groups, there, **wanted | more)


@pytest.mark.parametrize(
    ("view", "asked"),
    [
        pytest.param(pool(0, 4, 1), 2, id="the spare and one"),
        pytest.param(pool(0, 4, 2), 3, id="the spare and two"),
        pytest.param(pool(0, 4, 9), 5, id="all that is missing and no more"),
        pytest.param(pool(0, 4, 0), 2, id="none: one at a time, for else it never came back"),
        pytest.param(pool(3, 4, 2), 0, id="it is full until one ends"),
        pytest.param(pool(3, 3, 2), 1, id="one went back"),
        pytest.param(pool(1, 1, 1), 4, id="the fallback of one does not block successors of others"),
        pytest.param(pool(0, 0, 1), 5, id="no fallback"),
        pytest.param(pool(0, 4, 1, spare=0), 1, id="without a spare"),
    ],
)
def test_spot_requests_while_on_demand_serves(view: SpotPoolView, asked: int) -> None:
    resizes = [d for d in decide([view], START).acting if d.action is Action.RESIZE]
    assert sum((d.to_size or 0) - (d.from_size or 0) for d in resizes) == asked


@dataclass
class Counting:
    """Records for each observation the instances above target and spare while fallback is used."""

    rule: spot.LiveSpotRule
    name: str = "own"
    most: int = 0
    fallback_used: bool = False

    def decide(self, state: RuleState) -> Moves:
        moves = self.rule.decide(state)
        places = [*(machine.place for machine in state.machines), *moves.launch]
        if any(machine.place == ON_DEMAND for machine in state.machines):
            self.fallback_used = True
            self.most = max(self.most, len(places) - state.terms.target - state.terms.spare)
        return moves


@pytest.mark.parametrize("surge", range(5))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_more_than_target_spare_and_surge_while_on_demand_serves(surge: int, shape: Shape) -> None:
    """A pool with a spare may hold one more where that pays: it counts among the spare."""
    counting = Counting(spot.LiveSpotRule(policy=SpotPolicy(max_surge=surge)))
    shape = replace(shape, ticks=150)
    spot.play(made(random.Random(surge), shape), spot.SpotTerms(target=shape.target, spare=shape.spare), counting)
    extra = 1 if shape.spare else 0
    assert counting.most <= max(1, surge) + extra
    assert counting.fallback_used
