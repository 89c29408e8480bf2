"""Replicas that never were: users of very different kinds, quiet spells with a long tail, busy spells in bursts."""

from pathlib import Path
from typing import Final

import numpy as np

STEP: Final = 60.0


def generate(replicas: int, days: float, seed: int) -> np.ndarray:
    """`gpu_active` by tick and replica."""
    random = np.random.default_rng(seed)
    ticks = int(days * 86400 / STEP)
    found = np.zeros((ticks, replicas), dtype=np.float32)
    hours = (np.arange(ticks) * STEP / 3600) % 24
    day = 0.6 + 0.4 * np.sin((hours - 8) / 24 * 2 * np.pi)
    for replica in range(replicas):
        quiet, spread = np.exp(random.normal(0.6, 0.9)), random.uniform(0.9, 1.9)
        busy, level = np.exp(random.normal(0.3, 0.8)), random.beta(1.5, 6)
        at = 0
        while at < ticks:
            length = max(1, round(random.lognormal(np.log(busy), 1.0) * day[at]))
            found[at : at + length, replica] = np.clip(
                level * random.lognormal(0, 0.5, min(length, ticks - at)), 0.02, 1
            )
            at += length
            rest = random.lognormal(np.log(quiet), spread)
            if random.random() < 0.01:
                rest += 60 * random.pareto(1.3)
            at += max(1, round(rest / day[min(at, ticks - 1)]))
    return found


def write(path: Path, active: np.ndarray, pool: str | None = None) -> None:
    """As `gpufleet replay idle` reads it."""
    tokens = np.cumsum(active * 1000, axis=0)
    with path.open("w", encoding="utf-8") as file:
        end = "" if pool is None else f",{pool}"
        header = "time_s,replica,gpu_active,requests_running,requests_waiting,tokens_total"
        file.write(f"{header}{',pool' if pool else ''}\n")
        for tick, row in enumerate(active):
            file.writelines(
                f"{tick * STEP:g},r{replica:03},{value:.4f},{int(value > 0)},0,{tokens[tick, replica]:.0f}{end}\n"
                for replica, value in enumerate(row.tolist())
            )
