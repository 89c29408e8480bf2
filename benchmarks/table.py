"""What a benchmark yields: a table of what was compared, in one run, with ratios."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One benchmark's result: `rows` of text under `columns`; `notes` say what was run and what is missing."""

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
    """What one run took: wall-clock and CPU seconds of this process."""

    wall_s: float
    cpu_s: float


def measure(work: Callable[[], object]) -> Spent:
    """Run `work` once."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Spent(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


def medians(contenders: dict[str, Callable[[], object]], *, rounds: int = 5) -> dict[str, Spent]:
    """Medians of alternating runs: each round runs every contender, so that a slow spell of the machine hits all."""
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
