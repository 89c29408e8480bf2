"""Loads recorded histories: spot markets, replica activity and requests.

`replay.rows` reads the columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from replay import rows
from replay.rows import EPOCH, Column, Floats, Table, TraceError

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Singles = npt.NDArray[np.float32]

MAX_AVAILABLE: Final = 1e9
"""Upper limit of available instances per zone. A larger value means unlimited capacity."""

TICK: Final = 10.0
"""Seconds between two decisions of the rule."""
MAX_TICKS: Final = 500_000
"""Maximum number of ticks. The ticks of a longer history are longer."""
MAX_PIECES: Final = 1_000_000
PIECES_OF_TICK: Final = 100
"""Arrivals are recorded in parts of a tick, because waits can be shorter than a tick. Long histories have fewer
parts.
"""
USUAL_REQUEST: Final = 1000.0
"""Tokens per request if the history does not contain them."""

_MARKET: Final = (
    Column(name="time_s", at_least=None),
    Column(name="zone", text=True),
    Column(name="available"),
    Column(name="spot_price", optional=True, empty=True, at_most=1e6),
)
_ACTIVITY: Final = (
    Column(name="time_s", at_least=None),
    Column(name="replica", text=True),
    Column(name="gpu_active", empty=True, small=True),
    Column(name="requests_running", empty=True, small=True),
    Column(name="requests_waiting", empty=True, small=True),
    Column(name="tokens_total", empty=True),
    Column(name="pool", text=True, optional=True, empty=True),
)
_REQUESTS: Final = (
    Column(name="time_s", at_least=None),
    Column(name="input_tokens", at_most=1e12),
    Column(name="output_tokens", at_most=1e12),
)
_RATES: Final = (Column(name="time_s", at_least=None), Column(name="rate_rps", at_most=1e9))


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketHistory:
    """The number of instances that each zone could provide over time."""

    zones: Sequence[str]
    times: Floats
    available: Floats
    """By tick and zone."""
    prices: Floats | None
    """By tick and zone, in the unit of the on-demand price. None: not recorded."""


def load_market(path: Path) -> MarketHistory:
    """Load a market history. Raises TraceError with the error and its line."""
    table = rows.read(path, _MARKET)
    times, codes, zones = table.numbers["time_s"], table.codes["zone"], table.names["zone"]
    starts = rows.ticks(table, times)
    if len(starts) < 3:
        raise TraceError(f"{path}: contains only one time; expected at least two")
    tick = rows.tick_of_row(starts)
    rows.check_unique(table, "zone", tick, codes, len(zones))

    def by_tick(values: Floats, missing: float) -> Floats:
        found = np.full((len(starts) - 1, len(zones)), missing)
        found[tick, codes] = values
        return found

    prices = table.numbers.get("spot_price")
    return MarketHistory(
        zones=zones,
        times=times[starts[:-1]],
        # a zone without a row has no capacity at that tick, because the recording saw no instance there
        available=by_tick(np.minimum(table.numbers["available"], MAX_AVAILABLE), missing=0.0),
        prices=None if prices is None else by_tick(prices, missing=float("nan")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityHistory:
    """The activity of each replica at each tick. The recording assumes that the replica runs all the time."""

    replicas: Sequence[str]
    times: Floats
    step: float
    """Median interval in seconds."""
    reported: Bools
    """Whether the history has a row with all fields."""
    active: Singles
    """`gpu_active`, or 0 if it was not reported."""
    work: Bools
    """Whether the replica had requests in flight or queued, tokens since its last row, or GPU activity above the
    noise floor.
    """
    pools: npt.NDArray[np.int32] | None
    """Pool index by replica. None: each replica is a separate pool."""
    pool_names: Sequence[str] = ()

    @property
    def hours(self) -> float:
        """Duration of the history in hours, for one replica."""
        return len(self.times) * self.step / 3600

    def of(self, which: Ints) -> "ActivityHistory":
        """Return the history of a subset of the replicas, as one pool."""
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


def load_activity(path: Path, noise_floor: float) -> ActivityHistory:
    """Load an activity history. Raises TraceError with the error and its line."""
    table = rows.read(path, _ACTIVITY)
    times, codes, replicas = table.numbers["time_s"], table.codes["replica"], table.names["replica"]
    starts = rows.ticks(table, times)
    shape = (len(starts) - 1, len(replicas))
    if shape[0] < 2:
        raise TraceError(f"{path}: contains only one time; expected at least two")
    times, tick = times[starts[:-1]], rows.tick_of_row(starts)
    rows.check_unique(table, "replica", tick, codes, shape[1])
    pools, pool_names = _pools(table, codes)
    active = table.numbers["gpu_active"]
    if len(over := np.flatnonzero(active > 1)):
        row = int(over[0])
        raise TraceError(
            f"{path}, line {table.lines.of(row)}: gpu_active is {active[row]:g}; expected a share from 0 to 1,"
            " not percent"
        )
    running, waiting = table.numbers["requests_running"], table.numbers["requests_waiting"]
    fields = (active, running, waiting, table.numbers["tokens_total"])
    reported, work = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
    shares = np.zeros(shape, dtype=np.float32)
    reported[tick, codes] = ~np.any([np.isnan(values) for values in fields], axis=0)
    work[tick, codes] = (running > 0) | (waiting > 0) | (active >= noise_floor)
    shares[tick, codes] = np.nan_to_num(active)
    tokens = np.full(shape, np.nan)
    tokens[tick, codes] = table.numbers["tokens_total"]
    return ActivityHistory(
        replicas=replicas,
        times=times,
        step=float(np.median(np.diff(times))),
        reported=reported,
        active=shares,
        work=work | _moved(tokens),
        pools=pools,
        pool_names=pool_names,
    )


def _moved(tokens: Floats) -> Bools:
    """Return whether a replica's token counter differs from its last reported value. A reset counts as a change."""
    moved = np.zeros(tokens.shape, dtype=np.bool_)
    last = tokens[0].copy()
    for row in range(1, len(tokens)):
        now = tokens[row]
        there = ~np.isnan(now)
        moved[row] = there & ~np.isnan(last) & (now != last)
        last[there] = now[there]
    return moved


def _pools(table: Table, codes: rows.Codes) -> tuple[npt.NDArray[np.int32] | None, Sequence[str]]:
    """Return the pool index of each replica, and the pool names. Return None without names if no row has a pool.
    Raises TraceError if the pool of a replica changes.

    A row may omit the pool. A replica without a pool in any row is a separate pool.
    """
    given, names, replicas = table.codes.get("pool"), table.names.get("pool", ()), list(table.names["replica"])
    if given is None or not names:
        return None, ()
    found = np.full(len(replicas), -1, dtype=np.int32)
    named = slice(None) if given.min() >= 0 else np.flatnonzero(given >= 0)
    found[codes[named][::-1]] = given[named][::-1]
    strange = np.flatnonzero((found[codes] != given) & (given >= 0))
    if len(strange):
        row = int(strange[0])
        name = replicas[int(codes[row])]
        raise TraceError(
            f"{table.path}, line {table.lines.of(row)}: replica {name!r} changes its pool; a replica has only one"
        )
    alone = np.flatnonzero(found < 0)
    found[alone] = np.arange(len(names), len(names) + len(alone))
    return found, (*names, *(replicas[replica] for replica in alone.tolist()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Tokens that arrive in each tick."""

    tick: float
    tokens: npt.NDArray[np.float64]
    tokens_per_request: float | Floats
    """A constant, or by tick the mean of all earlier arrivals, because a rule cannot know future requests."""
    pieces: Floats | None = None
    """The same tokens by part of a tick. None: they arrive evenly within each tick."""
    begins: datetime = EPOCH
    """Time of the first arrival."""


def load_requests(path: Path, tokens_per_request: float | None) -> Arrivals:
    """Load a history of requests or rates. Raises TraceError with the error and its line."""
    if rows.has(path, "rate_rps"):
        table = rows.read(path, _RATES)
        times = table.numbers["time_s"]
        rows.ticks(table, times)
        if times[0] == times[-1]:
            raise TraceError(f"{path}: contains only one time; expected at least two")
        return _of_rates(times, table.numbers["rate_rps"], tokens_per_request or USUAL_REQUEST)
    table = rows.read(path, _REQUESTS)
    times, tokens = table.numbers["time_s"], table.numbers["input_tokens"] + table.numbers["output_tokens"]
    rows.ticks(table, times)
    begins = _moment(float(times[0]))
    times = times - times[0]
    span = float(times[-1])
    tick = max(TICK, span / MAX_TICKS)
    ticks = int(span // tick) + 1
    per = _pieces_of_tick(ticks)
    places = np.minimum((times * (per / tick)).astype(np.int32), ticks * per - 1)
    pieces = np.bincount(places, tokens, ticks * per).astype(np.float64, copy=False)
    times //= tick
    places = times.astype(np.int32)
    found = np.bincount(places, tokens, ticks).astype(np.float64, copy=False)
    return Arrivals(
        tick=tick,
        tokens=found,
        pieces=pieces,
        begins=begins,
        tokens_per_request=tokens_per_request or _mean_so_far(found, np.bincount(places, minlength=ticks)),
    )


def _of_rates(times: Floats, rates: Floats, per_request: float) -> Arrivals:
    """A rate applies until the next row. The last rate applies for the median interval."""
    begins = _moment(float(times[0]))
    times -= times[0]  # floats that count seconds since 1970 are too imprecise for times within a tick
    steps = np.diff(times)
    edges = np.append(times, times[-1] + np.median(steps[steps > 0]))
    tick = max(TICK, float(edges[-1]) / MAX_TICKS)
    whole = np.concatenate(([0.0], np.cumsum(rates * np.diff(edges) * per_request)))
    looks = np.append(np.arange(0.0, edges[-1], tick), edges[-1])
    per = _pieces_of_tick(len(looks) - 1)
    fine: Floats = np.arange((len(looks) - 1) * per + 1, dtype=np.float64) * (tick / per)
    return Arrivals(
        tick=tick,
        tokens=np.diff(np.interp(looks, edges, whole)),
        tokens_per_request=per_request,
        pieces=np.diff(np.interp(fine, edges, whole)),
        begins=begins,
    )


def _mean_so_far(tokens: Floats, requests: Ints) -> Floats:
    """Return the mean tokens per request by tick, over all earlier ticks."""
    came, count = np.cumsum(tokens)[:-1], np.cumsum(requests)[:-1]
    found: Floats = np.full(len(tokens), USUAL_REQUEST)
    found[1:] = np.maximum(1.0, came / count)  # the first row is in the first tick
    return found


def _moment(first: float) -> datetime:
    return rows.origin(first) + timedelta(seconds=first)


def _pieces_of_tick(ticks: int) -> int:
    return min(PIECES_OF_TICK, max(1, MAX_PIECES // ticks))
