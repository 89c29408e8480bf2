"""The result of a benchmark: a table that compares variants in one run, with ratios."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One benchmark's result: `rows` of text under `columns`. `notes` describe the run and missing results."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row of {len(row)} cells under {len(self.columns)} columns: {row}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Duration of one run: wall-clock and CPU seconds of this process."""

    wall_s: float
    cpu_s: float


def measure(work: Callable[[], object]) -> Spent:
    """Run `work` once and measure it."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Spent(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


def medians(contenders: dict[str, Callable[[], object]], *, rounds: int = 5) -> dict[str, Spent]:
    """Return medians of alternating runs. Each round runs every contender, so slow periods of the machine affect
    all.
    """
    runs: dict[str, list[Spent]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            runs[name].append(measure(work))
    return {
        name: Spent(
            wall_s=statistics.median(r.wall_s for r in spent), cpu_s=statistics.median(r.cpu_s for r in spent)
        )
        for name, spent in runs.items()
    }
