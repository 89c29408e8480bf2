"""A recorded history of replicas at work, as matrices by tick and replica."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from replay import rows
from replay.rows import Column, Floats, Table, TraceError

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Singles = npt.NDArray[np.float32]

COLUMNS: Final = (
    Column(name="time_s", at_least=None),
    Column(name="replica", text=True),
    Column(name="gpu_active", empty=True, small=True),
    Column(name="requests_running", empty=True, small=True),
    Column(name="requests_waiting", empty=True, small=True),
    Column(name="tokens_total", empty=True),
    Column(name="pool", text=True, optional=True, empty=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What each replica did at each tick, had it run all the time."""

    replicas: Sequence[str]
    times: Floats
    step: float
    """Seconds: the median interval."""
    reported: Bools
    """Whether a row with every field was there."""
    active: Singles
    """`gpu_active`, 0 where it was not reported."""
    work: Bools
    """Requests in flight or queued, tokens served since the last row, or a GPU above the noise floor."""
    pools: npt.NDArray[np.int32] | None
    """By replica; None: each replica is alone."""
    pool_names: Sequence[str] = ()

    @property
    def hours(self) -> float:
        """Of one replica over the whole history."""
        return len(self.times) * self.step / 3600

    def of(self, which: Ints) -> "Activity":
        """The same history of some of its replicas, as one pool."""
        if len(which) == len(self.replicas):
            return self
        return replace(
            self,
            replicas=[self.replicas[replica] for replica in which.tolist()],
            reported=self.reported[:, which],
            active=self.active[:, which],
            work=self.work[:, which],
            pools=None,
            pool_names=(),
        )


def load(path: Path, noise_floor: float) -> Activity:
    """Raises TraceError: what is wrong, with the line."""
    table = rows.read(path, COLUMNS)
    times, codes = table.numbers.pop("time_s"), table.codes["replica"]
    starts = rows.ticks(table, times)
    shape = (len(starts) - 1, len(table.names["replica"]))
    if shape[0] < 2:
        raise TraceError(f"{path}: one moment only; a history has at least two")
    times, tick = times[starts[:-1]], rows.tick_of_row(starts)
    rows.no_doubles(table, "replica", tick, codes, shape[1])
    pools, pool_names = _pools(table, codes)
    table.codes.pop("pool", None)
    known = np.ones(len(tick), dtype=np.bool_)
    work: Bools = np.zeros(shape, dtype=np.bool_)
    tokens = table.numbers.pop("tokens_total")
    known &= ~np.isnan(tokens)
    work |= _moved(tokens, tick, codes, shape)
    del tokens  # each column goes as soon as it is read, so that the whole history is never held twice
    for name in ("requests_running", "requests_waiting"):
        requests = table.numbers.pop(name)
        known &= ~np.isnan(requests)
        work |= _flags(requests > 0, tick, codes, shape)
    active = table.numbers.pop("gpu_active")
    if len(over := np.flatnonzero(active > 1)):
        row = int(over[0])
        raise TraceError(
            f"{path}, line {table.lines.of(row)}: gpu_active is {active[row]:g}; it is a share from 0 to 1,"
            " and percent is another metric"
        )
    known &= ~np.isnan(active)
    work |= _flags(active >= noise_floor, tick, codes, shape)
    return Activity(
        replicas=table.names["replica"],
        times=times,
        step=float(np.median(np.diff(times))),
        reported=_flags(known, tick, codes, shape),
        active=_singles(np.nan_to_num(active, copy=False), tick, codes, shape),
        work=work,
        pools=pools,
        pool_names=pool_names,
    )


def _flags(values: Bools, tick: rows.Codes, codes: rows.Codes, shape: tuple[int, int]) -> Bools:
    found: Bools = np.zeros(shape, dtype=np.bool_)
    rows.put(found, tick, codes, values)
    return found


def _singles(values: Floats, tick: rows.Codes, codes: rows.Codes, shape: tuple[int, int]) -> Singles:
    found: Singles = np.zeros(shape, dtype=np.float32)
    rows.put(found, tick, codes, values)
    return found


def _moved(tokens: Floats, tick: rows.Codes, codes: rows.Codes, shape: tuple[int, int]) -> Bools:
    """Whether a replica's counter is another one than in its last row that had it; a reset is a change."""
    table = np.full(shape, np.nan)
    rows.put(table, tick, codes, tokens)
    moved = np.zeros(shape, dtype=np.bool_)
    if not np.isnan(table).any():
        np.not_equal(table[1:], table[:-1], out=moved[1:])
        return moved
    last = table[0].copy()
    for row in range(1, shape[0]):
        now = table[row]
        there = ~np.isnan(now)
        moved[row] = there & ~np.isnan(last) & (now != last)
        last[there] = now[there]
    return moved


def _pools(table: Table, codes: rows.Codes) -> tuple[npt.NDArray[np.int32] | None, Sequence[str]]:
    """The pool of each replica, and their names; None where no row names one. Raises TraceError where one changes.

    A row may leave it out. A replica that no row gives a pool is one of its own.
    """
    given, names, replicas = table.codes.get("pool"), table.names.get("pool", ()), list(table.names["replica"])
    if given is None or not names:
        return None, ()
    found = np.full(len(replicas), -1, dtype=np.int32)
    said = slice(None) if given.min() >= 0 else np.flatnonzero(given >= 0)
    found[codes[said][::-1]] = given[said][::-1]
    strange = np.flatnonzero((found[codes] != given) & (given >= 0))
    if len(strange):
        row = int(strange[0])
        name = replicas[int(codes[row])]
        raise TraceError(
            f"{table.path}, line {table.lines.of(row)}: replica {name!r} was in another pool before; it has one"
        )
    alone = np.flatnonzero(found < 0)
    found[alone] = np.arange(len(names), len(names) + len(alone))
    return found, (*names, *(replicas[replica] for replica in alone.tolist()))
