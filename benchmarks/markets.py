"""Spot markets that never were: zones of regions that fail together, with long calm and short, dense trouble.

Published shares of time (spot-traces of the SkyPilot project, as the research notes of this project sum them up) say
how markets look: a zone is up between a sixth and nine tenths of the time, median runs are under an hour, the longest
last many hours, and zones of a region are down together far more often than chance would have it. The generator has
those properties and no recorded moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

STEP: Final = 195.0
"""Seconds between two looks at the market."""
MEDIAN: Final = 2400 / STEP
"""Of a run, in ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region: how often all of it is up, and how often each of its zones is while the region is."""

    name: str
    up: float
    zones: Sequence[float]


NINE_ZONES: Final = (
    Region(name="us-east-1", up=0.72, zones=(0.25, 0.65, 0.62, 0.8)),
    Region(name="us-east-2", up=0.84, zones=(0.9, 0.8)),
    Region(name="us-west-2", up=0.96, zones=(0.92, 0.95, 0.93)),
)


def generate(regions: Sequence[Region], days: float, seed: int, room: int = 16) -> tuple[list[str], np.ndarray]:
    """Names of zones, and their room by tick and zone: nothing or `room`, as whole zones fail."""
    random = np.random.default_rng(seed)
    ticks = int(days * 86400 / STEP)
    names: list[str] = []
    columns: list[np.ndarray] = []
    for region in regions:
        whole = _runs(random, ticks, region.up, cycle_h=16.0)
        for number, share in enumerate(region.zones):
            own = _runs(random, ticks, share, cycle_h=9.0)
            names.append(f"{region.name}{'abcdef'[number]}")
            columns.append(np.where(whole & own, room, 0))
    return names, np.stack(columns, axis=1)


def _runs(random: np.random.Generator, ticks: int, share: float, cycle_h: float) -> np.ndarray:
    """Runs up and down in turn; lognormal with a median of 40 min, so that few long ones hold most of the time."""
    cycle = cycle_h * (0.7 + 0.6 * random.random()) * 3600 / STEP
    means = {True: cycle * share, False: cycle * (1 - share)}
    state = bool(random.random() < share)
    found = np.empty(ticks, dtype=bool)
    at = 0
    while at < ticks:
        sigma = np.sqrt(2 * np.log(max(1.1, means[state] / MEDIAN)))
        length = max(1, round(random.lognormal(np.log(means[state]) - sigma**2 / 2, sigma)))
        found[at : at + length] = state
        at, state = at + length, not state
    return found


def write(path: Path, names: Sequence[str], room: np.ndarray) -> None:
    """As `gpufleet replay spot` reads it."""
    with path.open("w", encoding="utf-8") as file:
        file.write("time_s,zone,available\n")
        for tick, row in enumerate(room):
            file.writelines(
                f"{tick * STEP:.0f},{name},{count}\n" for name, count in zip(names, row.tolist(), strict=True)
            )
