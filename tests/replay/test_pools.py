"""Pools are looked at only when something can change: the same answers as when every tick is looked at."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from gpufleet.domain.policies import IdlePolicy, ScalePolicy, ScheduleRule
from replay import activity, pool_rules, pools
from replay.activity import Activity
from replay.bounds import LEARN_AFTER, Bounds, Point
from replay.pools import PoolRule
from replay.rows import Floats
from watchdogs.scale.forecast import Level, Pattern, Peak, Swings
from watchdogs.scale.view import LEVEL_SPAN, Demand, PoolView, Pressure

HEADER = "time_s,replica,gpu_active,requests_running,requests_waiting,tokens_total,pool"
NIGHT = ScheduleRule(days=("sat", "sun"), start="00:20", end="02:30", target=3, timezone="Europe/Berlin")


@dataclass
class Watched:
    """A rule that counts how often it is asked."""

    rule: PoolRule
    name: str = "watched"
    asked: int = 0
    judged: int = 0

    def begin(self, pool: Activity, demand: Floats) -> None:
        self.rule.begin(pool, demand)

    def target(self, tick: int, ready: int, running: int) -> int:
        self.asked += 1
        return self.rule.target(tick, ready, running)

    def rest(self, tick: int, end: int, ready: int, running: int) -> tuple[int, int]:
        return self.rule.rest(tick, end, ready, running)

    def victims(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int]:
        self.judged += 1
        return self.rule.victims(tick, candidates, count)

    def refuses(self, tick: int, candidates: Sequence[int], count: int) -> Sequence[int] | None:
        return self.rule.refuses(tick, candidates, count)


@dataclass
class EveryTick(Watched):
    """The same, asked at every tick."""

    def rest(self, tick: int, end: int, ready: int, running: int) -> tuple[int, int]:
        return tick + 1, running


@dataclass
class LookByLook(EveryTick):
    """Ours, told what `forecast` says look by look, and nothing that was reckoned beforehand."""

    scale: ScalePolicy = field(default_factory=ScalePolicy)
    step: float = 60.0
    cold_start: float = 180.0
    _target: int | None = None

    def begin(self, pool: Activity, demand: Floats) -> None:
        super().begin(pool, demand)
        ahead = self.cold_start + self.step
        self.times, self.demand, self.pattern = pool.times, demand, Pattern(ahead=ahead)
        self.peak = Peak(span=self.scale.down_after.total_seconds())
        self.level, self.swings = Level(span=LEVEL_SPAN.total_seconds()), Swings(horizon=ahead, grain=1.0)

    def target(self, tick: int, ready: int, running: int) -> int:
        self.asked, at, now = self.asked + 1, float(self.times[tick]), float(self.demand[tick])
        level = self.level.saw(at, now)
        self.swings.saw(at, now, level)
        self.pattern.saw(at, now)
        demand = Demand(
            now=now,
            peak=self.peak.saw(at, now),
            level=level,
            grain=1.0,
            swing=self.swings.expected(),
            expected=self.pattern.expected(at),
        )
        view = PoolView(
            name="pool",
            policy=self.scale,
            target=running if self._target is None else self._target,
            min=1,
            max=1_000_000,
            ready=ready,
            demand=demand,
            pressure=Pressure(reporting=ready, backlog_s=0.0),
            cold_start=timedelta(seconds=self.cold_start),
        )
        self._target = pool_rules.wanted(view, at)
        return self._target


def history(chance: random.Random, path: Path, ticks: int) -> Activity:
    """Spells and rests, holes, replicas that fall silent, one to three pools, steps that are even or not."""
    count, shape = chance.choice([2, 3, 5, 9]), chance.choice([(1.5, 2.5), (3.0, 0.5), (0.5, 5.0)])
    missing, empty, uneven = chance.choice([0, 0, 0.1]), chance.choice([0, 0, 0.1]), chance.random() < 0.3
    step, parts = chance.choice([60, 60, 300, 15.5]), chance.randrange(1, 4)
    silent = {name: chance.randrange(ticks) for name in range(count) if chance.random() < 0.2}
    levels = [chance.choice([0.05, 0.2, 0.5, 1.0]) for _ in range(count)]
    busy, until, time, lines = [False] * count, [0] * count, 0.0, [HEADER]
    for tick in range(ticks):
        for name in range(count):
            if tick >= until[name]:
                busy[name] = not busy[name]
                until[name] = tick + 1 + int(chance.lognormvariate(shape[not busy[name]], 1.2))
            if 0 < tick < ticks - 1 and (tick >= silent.get(name, ticks) or chance.random() < missing):
                continue
            active = "" if chance.random() < empty else f"{levels[name] * busy[name]:g}"
            lines.append(f"{time},{name},{active},{int(busy[name])},0,{tick if busy[name] else 0},{name % parts}")
        time += step * (chance.choice([1, 1, 1, 0.5, 7]) if uneven else 1)
    path.write_text("\n".join(lines) + "\n")
    return activity.load(path, 0.01)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("name", ["own", "timer-15m", "queue-threshold"])
def test_ticks_that_are_left_out_change_no_number(tmp_path: Path, name: str, seed: int) -> None:
    chance = random.Random(f"{name} {seed}")
    found = history(chance, tmp_path / "activity.csv", chance.choice([2, 40, 400]))
    scale = ScalePolicy(
        headroom=chance.choice([0.0, 0.1]),
        down_after=timedelta(minutes=chance.choice([1, 15])),
        schedule=(NIGHT,) if seed % 4 == 0 else (),
    )
    idle = IdlePolicy(max_stops_per_run=chance.choice([1, 2]))
    cold, capacity = chance.choice([0, 180, 1800]), chance.choice([0.8, 0.33])
    rules = [Watched(pool_rules.rule(name, found, idle, scale, cold)) for _ in found.pool_names]
    every: list[EveryTick] = [
        LookByLook(pool_rules.rule(name, found, idle, scale, cold), scale=scale, step=found.step, cold_start=cold)
        if name == "own"
        else EveryTick(pool_rules.rule(name, found, idle, scale, cold))
        for _ in found.pool_names
    ]
    assert pools.play_pools(found, rules, cold, capacity) == pools.play_pools(found, every, cold, capacity)
    assert sum(rule.asked for rule in rules) <= sum(rule.asked for rule in every)


def works(count: int, *spells: tuple[int, str]) -> Callable[[Path], Activity]:
    """Replicas of one pool: so many ticks as each letter says. `#` works, `.` rests, `-` says nothing."""

    def write(path: Path) -> Activity:
        lines, tick = [HEADER], 0
        for ticks, letters in spells:
            for at in range(tick, tick + ticks):
                for name, letter in zip(range(count), letters, strict=True):
                    if letter != "-":
                        lines.append(f"{60 * at},{name},{0.5 * (letter == '#')},{int(letter == '#')},0,{tick},p")
            tick += ticks
        path.write_text("\n".join(lines) + "\n")
        return activity.load(path, 0.01)

    return write


@pytest.mark.parametrize(
    ("made", "asked", "judged"),
    [
        pytest.param(works(3, (3000, "###")), 150, 0, id="all at work"),
        pytest.param(works(3, (10, "###"), (3000, "...")), 150, 2, id="work ends"),
        pytest.param(works(3, (10, "###"), (3000, "#..")), 200, 2, id="one goes on"),
        pytest.param(works(4, (10, "####"), (3000, "##--")), 200, 40, id="two fall silent"),
    ],
)
def test_where_nothing_changes_hardly_anything_is_asked(
    tmp_path: Path, made: Callable[[Path], Activity], asked: int, judged: int
) -> None:
    """Three thousand minutes: every one of them was looked at, and silent replicas were judged at each."""
    found = made(tmp_path / "activity.csv")
    rule = Watched(pool_rules.rule("own", found, IdlePolicy(), ScalePolicy(), 180.0))
    pools.play_pools(found, [rule], 180.0, 0.8)
    assert rule.asked <= asked
    assert rule.judged <= judged


@pytest.mark.parametrize(
    ("rows", "rest"),
    [
        pytest.param("##..", "...x", id="two rows"),
        pytest.param("....", "xxxx", id="from the beginning"),
        pytest.param("#-..-", "...xx", id="a row missing before its rest"),
        pytest.param(".-#-.-.", "xx....x", id="each second row missing"),
        pytest.param("#---", "....", id="silent after its work"),
        pytest.param("..--", "xxxx", id="silent after its rest"),
        pytest.param("--..", "...x", id="comes late"),
        pytest.param("----", "....", id="never heard of"),
        pytest.param("..!..", "xx..x", id="a row that says no more than that it works"),
    ],
)
def test_not_reported_is_not_at_rest(rows: str, rest: str) -> None:
    found = Activity(
        replicas=["a", "b"],
        times=np.arange(len(rows)) * 60.0,
        step=60.0,
        reported=np.array([[letter in "#.", True] for letter in rows]),
        active=np.zeros((len(rows), 2), dtype=np.float32),
        work=np.array([[letter in "#!", False] for letter in rows]),
        pools=None,
    )
    quiet = pools.at_rest(found)
    assert "".join(".x"[at] for at in quiet[:, 0].tolist()) == rest
    assert quiet[:, 1].all()


def threshold(point: Point) -> int:
    """Two parts, either of which may ask; one says nothing up to the middle."""
    return 1 + int(point[0] > 0.5) + int(max(point[0], point[1]) > 0.9)


@pytest.mark.parametrize("seed", range(5))
def test_no_tick_is_left_out_at_which_another_target_is_wanted(seed: int) -> None:
    random = np.random.default_rng(seed)
    demand = random.random((2, 3000)) ** 2
    demand[1, :1500] = -np.inf
    bounds, asked = Bounds(demand=demand), 0

    def ask(point: Point) -> int:
        nonlocal asked
        asked += 1
        return threshold(point)

    for target in (1, 2, 3):
        tick, visited = 0, list[int]()
        while tick < 3000:
            visited.append(tick)
            if ask(bounds.at(tick)) == target:
                bounds.stayed(target, tick, target, ask)
            tick = bounds.leaves(target, tick, 3000)
        others = [tick for tick in range(3000) if threshold(bounds.at(tick)) != target]
        assert set(others) <= set(visited)
        assert len(visited) <= len(others) + 12 * LEARN_AFTER
