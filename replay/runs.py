"""Loads recorded replicas in run-length form: a folder with `runs.csv.gz` and, for all replicas together,
`pool_demand.csv.gz`.

`runs.csv.gz` has the columns replica, start_s, ticks, working (1, 0, or empty: no sample). `pool_demand.csv.gz` has
time_s and gpu_active_sum. The replicas that work at the same time share the sum equally.
"""

from pathlib import Path
from typing import Final

import numpy as np

from replay import rows
from replay.histories import ActivityHistory
from replay.rows import CLOCKS, Column, TraceError

RUNS: Final = "runs.csv.gz"
DEMAND: Final = "pool_demand.csv.gz"
AMONG_OTHERS: Final = "idle_gpus"
"""Subfolder of this history in a folder of several histories (`GPUFLEET_HISTORIES`)."""

_RUNS: Final = (
    Column(name="replica", text=True),
    Column(name="start_s", at_least=None),
    Column(name="ticks", at_most=1e9),
    Column(name="working", empty=True, at_most=1),
)
_DEMAND: Final = (Column(name="time_s", at_least=None), Column(name="gpu_active_sum"))


def load_runs(folder: Path) -> ActivityHistory:
    """Load the replicas, each as a separate pool. Raises TraceError with the error and the file."""
    folder = folder / AMONG_OTHERS if (folder / AMONG_OTHERS).is_dir() else folder
    for name in (RUNS, DEMAND):
        if not (folder / name).is_file():
            raise TraceError(f"{folder}: {name} is missing; a folder of run lengths contains {RUNS} and {DEMAND}")
    demand, runs = rows.read(folder / DEMAND, _DEMAND), rows.read(folder / RUNS, _RUNS)
    times = demand.numbers["time_s"]
    if len(times) < 2 or not (np.diff(times) > 0).all():
        raise TraceError(f"{folder / DEMAND}: time_s must increase from row to row, with at least two rows")
    shape = (len(times), len(runs.names["replica"]))
    reported, work = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
    begins = np.searchsorted(times, runs.numbers["start_s"] - CLOCKS).tolist()
    ends = (begins + runs.numbers["ticks"]).astype(np.int64).tolist()
    columns, working = runs.codes["replica"].tolist(), runs.numbers["working"].tolist()
    for row, (replica, begin, end, works) in enumerate(zip(columns, begins, ends, working, strict=True)):
        if end > len(times) or reported[begin:end, replica].any():
            last = f"{folder / RUNS}, line {runs.lines.of(row)}: the run"
            wrong = f"ends at tick {end} of {len(times)}" if end > len(times) else "overlaps the previous one"
            raise TraceError(f"{last} of replica {runs.names['replica'][replica]!r} {wrong}")
        reported[begin:end, replica] = works >= 0  # NaN: no sample
        work[begin:end, replica] = works > 0
    share = np.minimum(1.0, demand.numbers["gpu_active_sum"] / np.maximum(1, work.sum(axis=1)))
    return ActivityHistory(
        replicas=runs.names["replica"],
        times=times,
        step=float(np.median(np.diff(times))),
        reported=reported,
        active=np.where(work, share[:, None], 0).astype(np.float32),
        work=work,
        pools=None,
    )
