"""What a replayed pool that waits for spot leaves out, against the same pool that is asked at every tick."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from gpufleet.domain.policies import SpotPolicy
from replay import market, spot_rules
from replay.asks import Pauses, refused_until
from replay.market import ON_DEMAND, Rule, State, Wishes
from replay.rows import EPOCH
from watchdogs.spot import zones

MANY = pytest.mark.slow
FEW, LOTS = range(4), range(4, 40)
SEEDS = [*(pytest.param(n, id=f"{n}") for n in FEW), *(pytest.param(n, id=f"{n}", marks=MANY) for n in LOTS)]


@dataclass
class Watchful:
    """A rule that is asked at every tick while spot is missing or on-demand stands in; it notes what it has, when."""

    rule: Rule
    rests: bool
    name: str = "own"
    had: list[tuple[float, Sequence[tuple[int, float]]]] = field(default_factory=list[Any])
    asked: int = 0

    def decide(self, state: State) -> Wishes:
        wishes = self.rule.decide(state)
        self.asked += 1
        has = sorted((m.place, m.launched) for m in state.machines)
        if not self.had or self.had[-1][1] != has:
            self.had.append((state.now, has))
        spot = sum(m.place != ON_DEMAND for m in state.machines)
        wakes = spot < state.terms.target + state.terms.spare or spot < len(state.machines)
        return replace(wishes, rest_until=float("-inf"), in_turn=()) if wakes and not self.rests else wishes


@dataclass
class Thorough(spot_rules.OwnRule):
    """Whose `decide` is asked after each refusal, about a pool of which nothing is known from before."""

    def decide(self, state: State) -> Wishes:
        self._seen = None
        return super().decide(state)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of a market, and of the pool that is played on it."""

    zones: int
    ticks: int = 300
    changes: float = 0.02
    """Chance that a zone changes at a tick."""
    up: float = 0.1
    """Chance that it has room then."""
    room: int = 3
    steps: Sequence[float] = (60.0,)
    priced: bool = False
    target: int = 4
    spare: int = 1


SHAPES = {
    "one zone, dry": Shape(zones=1),
    "one zone, on and off": Shape(zones=1, changes=0.1, up=0.6, room=8),
    "nine zones, on and off": Shape(zones=9, changes=0.05, up=0.5),
    "three zones, on and off, no spare": Shape(zones=3, changes=0.05, up=0.5, spare=0),
    "three zones, irregular": Shape(zones=3, steps=(60.0, 61.5, 20.3, 400.0), spare=2),
    "nine zones, dry": Shape(zones=9, changes=0.005, up=0.05),
    "nine zones, dear": Shape(zones=9, priced=True),
    "nine zones, a target of 32": Shape(zones=9, target=32, up=0.6, room=4, ticks=150),
    "two zones, one wanted": Shape(zones=2, target=1, spare=0, steps=(10.0,)),
    "five zones, slow ticks": Shape(zones=5, steps=(900.0,), up=0.3),
}


def made(chance: random.Random, shape: Shape) -> market.Market:
    """A market of that shape."""
    zones = [f"us-{side}-{n}a" for n in range(shape.zones) for side in ("east", "west")][: shape.zones]
    room, price, times = dict.fromkeys(zones, 0), dict.fromkeys(zones, 0.3), [chance.choice([0.0, 1.7e9, 0.1])]
    rooms, prices = list[list[float]](), list[list[float]]()
    for _ in range(shape.ticks):
        for zone in zones:
            if chance.random() < shape.changes:
                room[zone] = chance.randrange(1, shape.room + 1) if chance.random() < shape.up else 0
            price[zone] = chance.choice([0.2, 0.3, 0.9, 0.95]) if chance.random() < 0.01 else price[zone]
        times.append(times[-1] + chance.choice(shape.steps))
        rooms.append([*room.values()])
        prices.append([*price.values()])
    priced = np.array(prices) if shape.priced else None
    return market.Market(zones=zones, times=np.array(times[:-1]), available=np.array(rooms), prices=priced)


def both(history: market.Market, terms: market.Terms, policy: SpotPolicy) -> tuple[Watchful, Watchful]:
    """Played with rests and without; both have the same at any time, and the same answer."""
    rested, asked = Watchful(spot_rules.OwnRule(policy), rests=True), Watchful(Thorough(policy), rests=False)
    ours, again = market.play(history, terms, rested).answer(), market.play(history, terms, asked).answer()
    assert rested.had == asked.had
    assert ours == again
    return rested, asked


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_is_left_out_changes_nothing_in_a_market_of_any_shape(shape: Shape) -> None:
    terms = market.Terms(target=shape.target, spare=shape.spare)
    rested, asked = both(made(random.Random(1), shape), terms, SpotPolicy())
    assert rested.asked < asked.asked * 0.8
    assert len(rested.had) > 1


def test_a_refusal_leaves_nothing_to_a_move_for_which_there_is_no_room() -> None:
    history = made(random.Random(1), replace(SHAPES["nine zones, on and off"], up=0.6, ticks=500))
    both(history, market.Terms(target=4), SpotPolicy(max_stops_per_hour=1))


def test_a_pool_that_waits_is_asked_when_something_happens_however_long_it_waits() -> None:
    history = made(random.Random(1), replace(SHAPES["nine zones, dry"], up=0.0, ticks=900))
    rested, asked = both(history, market.Terms(target=4), SpotPolicy())
    assert rested.asked < 10
    assert asked.asked > 900


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_left_out_changes_nothing_by_any_policy(seed: int) -> None:
    chance = random.Random(seed)
    shape = Shape(
        zones=chance.randrange(1, 6),
        changes=chance.choice([0.02, 0.1]),
        up=chance.choice([0.1, 0.5]),
        room=chance.choice([1, 3, 8]),
        steps=chance.choice([(10.0,), (60.0, 22.2, 240.0), (60.0,), (195.0,)]),
        priced=chance.random() < 0.5,
    )
    policy = SpotPolicy(
        # beyond six hours nothing is remembered that a pause might still count
        zone_backoff=timedelta(minutes=chance.choice([0, 5, 20, 20, 90, 500])),
        hold=timedelta(minutes=chance.choice([0, 4, 15])),
        price_ceiling=chance.choice([Decimal("0.9"), Decimal("0.3"), Decimal(1)]),
        max_surge=chance.randrange(4),
        max_stops_per_hour=chance.choice([0, 1, 3, 12, 12]),
    )
    terms = market.Terms(
        target=chance.choice([1, 3, 6]), spare=chance.randrange(3), cold_start=chance.choice([0, 390])
    )
    rested, asked = both(made(chance, shape), terms, policy)
    assert rested.asked <= asked.asked


def test_where_one_of_the_zones_of_a_tick_gives_none_of_them_has_been_asked() -> None:
    pauses = Pauses(backoff=timedelta(minutes=20), now=EPOCH, refused={0: [EPOCH], 1: [EPOCH]})
    room = np.array([[False, False], [False, False], [False, True]])
    assert refused_until(pauses, [15.0, 30.0, 95.0], room) == 2
    at = EPOCH + timedelta(seconds=30)
    assert list(pauses.told(EPOCH)) == [(0, at), (1, at)]


def test_of_many_refusals_the_late_ones_are_told_and_the_last_one_of_each_zone() -> None:
    pauses = Pauses(backoff=timedelta(minutes=20), now=EPOCH, refused={0: [EPOCH], 1: [EPOCH], 2: [EPOCH]})
    for place, at in ((0, 30.0), (1, 30.0), (0, 95.000001), (1, 60.0)):
        pauses.refuse(place, round(at * 1e6))
    late = EPOCH + timedelta(seconds=95, microseconds=1)
    assert list(pauses.told(EPOCH + timedelta(seconds=60))) == [(0, late)]
    assert pauses.last() == {0: late, 1: EPOCH + timedelta(seconds=60)}


def test_a_pause_that_was_reckoned_before_is_the_same_later() -> None:
    """By how long ago the refusals were alone: a history of years has few patterns of them."""
    backoff, known = timedelta(minutes=20), dict[tuple[int, ...], int]()
    for start in (0.0, 1e8):
        begins = EPOCH + timedelta(seconds=start)
        pauses = Pauses(backoff=backoff, now=begins, refused={0: [begins]}, known=known)
        refused = [begins]
        for seconds in (30.0, 91.0, 100.0, 300.5, 800.0, 1500.0):
            pauses.refuse(0, round((start + seconds) * 1e6))
            now = begins + timedelta(seconds=seconds)
            refused = [now, *(then for then in refused if now - then < backoff)]
            assert EPOCH + timedelta(microseconds=pauses.due(0)) == zones.pause_ends(refused, backoff, now)
    assert len(known) == 6


def test_a_zone_is_asked_when_its_pause_is_over_and_not_at_any_room_before() -> None:
    pauses = Pauses(backoff=timedelta(minutes=20), now=EPOCH, refused={1: [EPOCH]})
    room = np.array([[True, True], [True, False], [True, True], [True, True]])
    assert refused_until(pauses, [29.0, 31.0, 60.0, 91.0], room) == 3


def test_zones_that_are_asked_in_turn_refuse_all_at_once_if_none_gives() -> None:
    seen: list[list[int]] = []

    class Patient:
        name = "patient"

        def decide(self, state: State) -> Wishes:
            seen.append(list(state.refused))
            return Wishes(launch=[0], in_turn=[0, 1]) if not state.refused and not state.machines else Wishes()

    def played(room: list[float]) -> int:
        history = market.Market(
            zones=["a", "b"], times=np.array([0.0, 100.0]), available=np.array([room, room]), prices=None
        )
        return market.play(history, market.Terms(target=1), Patient()).spot_launches

    assert (played([0, 0]), seen) == (0, [[], [0, 1]])
    seen.clear()
    assert (played([0, 1]), seen) == (0, [[], [0]])
