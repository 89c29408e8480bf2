"""Generates synthetic spot markets: the zones of a region fail together, with long stable periods and short, frequent
failures.

The properties follow published shares of time (spot-traces of the SkyPilot project). A zone is up between a sixth and
nine tenths of the time, median runs are under an hour, the longest take many hours, and zones of a region are down
together far more often than by chance. The generator has these properties and contains no recorded data.

`generate` draws runs, and a whole region fails at once. In `crossing`, zones fail one by one as capacity in their
region decreases, and alternate quickly near the threshold. There, a rule that spreads evenly falls below its target,
and SkyServe's rule buys on-demand, about as often as on the nine recorded zones of spot-traces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

STEP: Final = 195.0
"""Seconds between two ticks of the market."""
MEDIAN: Final = 2400 / STEP
"""Median length of a run, in ticks."""
TIDES: Final = ((20.0, 0.8), (1.0, 0.2))
"""Components of the demand for a zone: hours until the autocorrelation is 1/e, and share of the variance."""
SHARED: Final = 0.7
"""Share of that variance that all zones of a region have in common."""
SMOOTHED: Final = 3
"""Ticks over which demand is averaged, so that a zone does not change twice in a tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region: the share of time in which it is up, and the share in which each zone is up while the region is."""

    name: str
    up: float
    zones: Sequence[float]


NINE_ZONES: Final = (
    Region(name="us-east-1", up=0.72, zones=(0.25, 0.65, 0.62, 0.8)),
    Region(name="us-east-2", up=0.84, zones=(0.9, 0.8)),
    Region(name="us-west-2", up=0.96, zones=(0.92, 0.95, 0.93)),
)


def generate(regions: Sequence[Region], days: float, seed: int, capacity: int = 16) -> tuple[list[str], np.ndarray]:
    """Return names of zones, and available instances by tick and zone. The number is 0 or the argument's, because a
    zone fails as a whole.
    """
    random = np.random.default_rng(seed)
    ticks = int(days * 86400 / STEP)
    names: list[str] = []
    columns: list[np.ndarray] = []
    for region in regions:
        whole = _runs(random, ticks, region.up, cycle_h=16.0)
        for number, share in enumerate(region.zones):
            own = _runs(random, ticks, share, cycle_h=9.0)
            names.append(f"{region.name}{'abcdef'[number]}")
            columns.append(np.where(whole & own, capacity, 0))
    return names, np.stack(columns, axis=1)


def crossing(regions: Sequence[Region], days: float, seed: int, capacity: int = 16) -> tuple[list[str], np.ndarray]:
    """Like `generate`, but a zone has capacity while its demand is below a threshold. The threshold is the quantile
    that matches the zone's share of up time.
    """
    random = np.random.default_rng(seed)
    ticks = int(days * 86400 / STEP)
    names: list[str] = []
    columns: list[np.ndarray] = []
    for region in regions:
        common, own = _tides(random, ticks, 1), _tides(random, ticks, len(region.zones))
        demand = np.sqrt(SHARED) * common + np.sqrt(1 - SHARED) * own
        for number, share in enumerate(region.zones):
            names.append(f"{region.name}{'abcdef'[number]}")
            enough = np.quantile(demand[:, number], region.up * share)
            columns.append(np.where(demand[:, number] < enough, capacity, 0))
    return names, np.stack(columns, axis=1)


def _tides(random: np.random.Generator, ticks: int, count: int) -> np.ndarray:
    """Return autocorrelated noise by tick and column, with mean 0 and variance about 1."""
    found = np.zeros((ticks + SMOOTHED - 1, count))
    for hours, share in TIDES:
        keeps = np.exp(-STEP / 3600 / hours)
        tide = random.normal(size=found.shape)
        tide[1:] *= np.sqrt(1 - keeps**2)
        for tick in range(1, len(tide)):
            tide[tick] += keeps * tide[tick - 1]
        found += np.sqrt(share) * tide
    return np.mean([found[first : first + ticks] for first in range(SMOOTHED)], axis=0)


def _runs(random: np.random.Generator, ticks: int, share: float, cycle_h: float) -> np.ndarray:
    """Return alternating up and down runs. Their lengths are lognormal with a median of 40 min, so few long runs
    contain most of the time.
    """
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


MARKETS: Final = {"regions at once": generate, "zone by zone": crossing}
"""Generators by the way in which zones fail."""


def write(path: Path, names: Sequence[str], capacity: np.ndarray) -> None:
    """Write a file that `gpufleet replay spot` reads."""
    with path.open("w", encoding="utf-8") as file:
        file.write("time_s,zone,available\n")
        for tick, row in enumerate(capacity):
            file.writelines(
                f"{tick * STEP:.0f},{name},{count}\n" for name, count in zip(names, row.tolist(), strict=True)
            )
