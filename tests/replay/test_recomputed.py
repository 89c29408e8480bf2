"""Recomputes every number that `gpufleet replay` prints with a simple simulator, on random small histories."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpufleet.domain.policies import IdlePolicy, ScalePolicy, SpotPolicy
from replay import histories, idle, pools, requests, sizers, spot
from replay.sizers import EMPTY, Queue
from tests.fixtures.replay import plain_replay

MANY = pytest.mark.slow
FEW, LOTS = range(4), range(4, 40)
SEEDS = [*(pytest.param(n, id=f"{n}") for n in FEW), *(pytest.param(n, id=f"{n}", marks=MANY) for n in LOTS)]


def worked(chance: random.Random, path: Path, pools: int) -> Path:
    """Write replicas that work at random times, with counter resets, gaps, unreported fields and variable
    intervals.
    """
    lines = ["time_s,replica,gpu_active,requests_running,requests_waiting,tokens_total" + ",pool" * bool(pools)]
    replicas, time = [f"r{n}" for n in range(chance.randrange(1, 6))], chance.choice([0.0, 1.7e9, -90.5])
    tokens, busy = dict.fromkeys(replicas, 0), dict.fromkeys(replicas, False)
    for _ in range(chance.randrange(5, 120)):
        for number, name in enumerate(replicas):
            busy[name] ^= chance.random() < 0.1
            tokens[name] = 0 if chance.random() < 0.01 else tokens[name] + 100 * busy[name]
            if chance.random() < 0.03:
                continue
            active = chance.choice([0.05, 0.4, 0.8, 1]) if busy[name] else chance.choice([0, 0.004])
            fields = [active, int(busy[name]), int(chance.random() < 0.02), tokens[name]]
            text = ",".join("" if chance.random() < 0.02 else f"{value:g}" for value in fields)
            pool = f",p{number % pools}" if pools else ""
            lines.append(f"{time!r},{name},{text}{pool}")
        time += chance.choice([60.0, 60.0, 60.0, 30.0, 600.0])
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("seed", SEEDS)
def test_single_replicas(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = worked(chance, tmp_path / "activity.csv", 0)
    found = histories.load_activity(path, 0.01)
    name, cold = chance.choice(list(idle.TIMERS)), chance.choice([0, 45, 180, 900])
    ours = idle.play(found, idle.rule(name, found, IdlePolicy()), cold).answer()
    assert ours == pytest.approx(plain_replay.timer(path, name, idle.TIMERS[name], cold), abs=2e-6, rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_of_pools(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = worked(chance, tmp_path / "activity.csv", chance.choice([1, 2]))
    found = histories.load_activity(path, 0.01)
    name = chance.choice(["queue-threshold", *sizers.TIMERS])
    cold, capacity = chance.choice([0, 45, 180, 900]), chance.choice([0.8, 0.5, 1.0])
    ours = pools.play(found, lambda pool: pools.rule(name, pool, IdlePolicy(), ScalePolicy(), cold), cold, capacity)
    again = plain_replay.pools(path, name, sizers.TIMERS.get(name), capacity, cold)
    assert ours.answer() == pytest.approx(again, abs=2e-6, rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_market_with_losses_and_prices(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    zones, priced = "abcd"[: chance.randrange(1, 5)], chance.random() < 0.5
    lines, time, capacity = ["time_s,zone,available" + ",spot_price" * priced], 0.0, dict.fromkeys(zones, 2.0)
    for _ in range(chance.randrange(2, 90)):
        for zone in zones:
            capacity[zone] = chance.choice([0, 0, 1, 2, 4, 2.7]) if chance.random() < 0.1 else capacity[zone]
            price = chance.choice(["", "0.3", "0.2", "0.95", "1.2"])
            if chance.random() < 0.98:
                lines.append(f"{time},{zone},{capacity[zone]}" + f",{price}" * priced)
        time += chance.choice([195.0, 195.0, 195.0, 60.0, 3000.0])
    path = tmp_path / "market.csv"
    path.write_text("\n".join(lines) + "\n")
    terms = spot.SpotTerms(
        target=chance.randrange(1, 5), spare=chance.randrange(3), cold_start=chance.choice([0.0, 195.0, 390.0])
    )
    for name in spot.NAMES:
        ours = spot.play(histories.load_market(path), terms, spot.rule(name, SpotPolicy())).answer()
        again = plain_replay.spot(path, terms, spot.rule(name, SpotPolicy()))
        assert ours == pytest.approx(again, abs=2e-6)


@dataclass
class Script:
    """Returns scripted sizes, and records the number of ready replicas."""

    wanted: list[int]
    at_once: bool
    """Whether the cold start is zero."""
    ready: list[int] = field(default_factory=list[int])

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        del at, demand, queue
        wanted = self.wanted[len(self.ready)]
        self.ready.append(wanted if self.at_once else ready - max(0, running - wanted - (running - ready)))
        return self.wanted[len(self.ready) - 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_late_tokens_match_the_plain_computation(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(2, 60)
    tokens = [chance.choice([0, 3, 10, 40, 200]) for _ in range(count)]
    cold = chance.choice([0.0, 20.0, 35.0])
    last = chance.randrange(5)  # all booting replicas are ready at the end
    script: Any = Script(
        [*(chance.randrange(5) for _ in range(count - 5)), *[last] * min(5, count)], at_once=cold == 0
    )
    wait, parts, near = chance.choice([0.5, 4.0, 10.0, 15.0, 40.0]), 100, 0.02
    arrivals = histories.Arrivals(tick=10.0, tokens=np.array(tokens, dtype=float), tokens_per_request=7.0)
    terms = requests.RequestTerms(tokens_per_second=2, cold_start=cold, max_wait=wait)
    ours = requests.play(arrivals, terms, script, "script").answer()
    late, more, fewer = (
        plain_replay.late_tokens(tokens, script.ready, 20, wait / 10 + slack, parts) for slack in (0, -near, near)
    )
    missed, rounding = float(ours["slo_missed_percent"]) * sum(tokens) / 100, 1e-6 * sum(tokens)
    assert fewer - rounding <= missed <= more + rounding
    assert fewer <= late <= more
    fixed = requests.fixed_peak(arrivals, terms)
    assert not plain_replay.late_tokens(tokens, [fixed] * count, 20, wait / 10 + near, parts)
    assert fixed == 1 or plain_replay.late_tokens(tokens, [fixed - 1] * count, 20, wait / 10 - near, parts)
    hours = sum(script.wanted) * 10 / 3600
    assert ours["replica_hours"] == pytest.approx(hours, abs=2e-6)
    assert ours["cost_ratio"] == pytest.approx(hours / (fixed * count * 10 / 3600), abs=2e-6)
    assert ours["peak_replicas"] == max(script.wanted)
