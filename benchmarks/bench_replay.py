"""The watchdogs' rules side by side: what each saves, and what that costs in service.

On generated histories, and on the public ones at hand (`benchmarks/recorded.py`; `GPUFLEET_HISTORIES` names their
folder).
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import activity as kinds
from benchmarks import markets, recorded
from benchmarks.table import Table
from gpufleet.domain.policies import IdlePolicy, ScalePolicy, SpotPolicy
from replay import histories, idle, pools, requests, sizers, spot
from replay.histories import Activity

REPLICAS: Final = 94
DAYS: Final = 0.95
COLD_START: Final = 180.0
MARKET_DAYS: Final = 45
_POOLS: Final = {"dense": 8, "sessions": 8, "bursty": 8, "visits": 0, "regimes": 0, "drift": 0, "uneven": 3}
"""Kinds that are played as one pool, and bursts that many of its replicas share."""
REPLICAS_AT_WORK: Final = 8
"""Histories of requests say nothing of replicas: one is taken to carry this share of the mean."""


def run() -> Iterator[Table]:
    """A table for each of the three replays, one for idle replicas that share a pool, and those of recorded ones."""
    yield _spot()
    yield _alone()
    yield _pooled()
    yield _requests()
    yield from _recorded(recorded.folder())


def _spot() -> Table:
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for (how, make), seed in product(markets.MARKETS.items(), (1, 2)):
            path = Path(folder, "market.csv")
            markets.write(path, *make(markets.NINE_ZONES, MARKET_DAYS, seed))
            found = histories.load_market(path)
            for name in spot.NAMES:
                score = spot.play(found, spot.Terms(target=4), spot.rule(name, SpotPolicy())).answer()
                shown = ("cost_ratio", "below_target_percent", "none_ready_percent", "on_demand_launches")
                rows.append((f"{how}, seed {seed}", name, *(f"{score[field]:g}" for field in shown)))
    return Table(
        title=f"Spot: nine zones, {MARKET_DAYS} days, a target of 4 and one spare",
        columns=("market", "rule", "cost", "below target %", "none ready %", "on-demand launches"),
        rows=tuple(rows),
    )


def _alone() -> Table:
    rows: list[tuple[str, ...]] = []
    for kind, make in kinds.KINDS.items():
        found = history(make(REPLICAS, DAYS, 1))
        for name in idle.NAMES:
            score = idle.play(found, idle.rule(name, found, IdlePolicy()), COLD_START).answer()
            stops, saved = float(score["stops"]), float(score["saved_percent"])
            most = foresight(found.work, int(stops))
            share = f"{100 * saved / most:.0f}" if most else "-"
            per_day = f"{score['stops_per_replica_day']:.2f}"
            rows.append((kind, name, f"{saved:.1f}", share, per_day, str(score["wrong_stops"])))
    return Table(
        title=f"Idle: {REPLICAS} replicas, each alone, {DAYS} days",
        columns=("kind", "rule", "saved %", "% of foresight", "stops per replica and day", "wrong stops"),
        rows=tuple(rows),
        notes=("Foresight: as many stops as the rule made, each from the beginning of one of the longest gaps.",),
    )


def _pooled() -> Table:
    rows: list[tuple[str, ...]] = []
    for kind, bursts in _POOLS.items():
        active = kinds.together(kinds.KINDS[kind](REPLICAS, DAYS, 1), bursts=bursts, seed=1)
        found = replace(history(active), pools=np.zeros(REPLICAS, dtype=np.int32), pool_names=("pool",))
        for name in sizers.NAMES:
            score = _pool(found, name).answer()
            shown = ("saved_percent", "unserved_percent", "stops_per_replica_day", "wrong_stops")
            rows.append((kind, name, *(f"{score[field]:.2f}" for field in shown)))
    return Table(
        title=f"Idle: {REPLICAS} replicas as one pool at 0.8 capacity, {DAYS} days",
        columns=("kind", "rule", "saved %", "unserved %", "stops per replica and day", "wrong stops"),
        rows=tuple(rows),
    )


def _requests() -> Table:
    random = np.random.default_rng(1)
    ticks = np.arange(2 * 8640)
    day = 20_000 * (1.2 + np.sin(ticks / 8640 * 2 * np.pi)) * random.lognormal(0, 0.3, len(ticks))
    arrivals = histories.Arrivals(tick=10.0, tokens=day, tokens_per_request=1000.0)
    rows: list[tuple[str, ...]] = []
    for name in sizers.NAMES:
        sizer = sizers.sizer(name, ScalePolicy(), COLD_START, arrivals.tick)
        score = requests.play(arrivals, requests.Terms(tokens_per_second=500), sizer, name).answer()
        shown = ("cost_ratio", "slo_missed_percent", "peak_replicas", "moves")
        rows.append((name, *(f"{score[field]:g}" for field in shown)))
    return Table(
        title="Scale: two days that rise and fall, 500 tokens per second and replica",
        columns=("rule", "cost", "too late %", "peak replicas", "moves"),
        rows=tuple(rows),
    )


def _recorded(source: Path | None) -> Iterator[Table]:
    """What is at hand, and the rules on it."""
    said = "not here" if source is not None else f"not here: {recorded.FOLDER} names no folder"
    there = {name for name in recorded.DATA_SETS if source is not None and (source / name).is_dir()}
    yield Table(
        title="Recorded histories at hand",
        columns=("data set", "played by"),
        rows=tuple((name, f"replay {by}" if name in there else said) for name, by in recorded.DATA_SETS.items()),
    )
    if source is None:
        return
    begun = time.monotonic()
    played = {"spot": _recorded_markets, "idle": _recorded_replicas, "scale": _recorded_requests}
    with tempfile.TemporaryDirectory() as folder:
        for by in sorted({recorded.DATA_SETS[name] for name in there}):
            table = played[by](source, Path(folder))
            took = f"Recorded histories took {time.monotonic() - begun:.0f} s up to here."
            yield replace(table, notes=(*table.notes, took))


def _recorded_markets(source: Path, folder: Path) -> Table:
    rows: list[tuple[str, ...]] = []
    for history in recorded.markets(source, folder):
        found = histories.load_market(history.path)
        for name in spot.NAMES:
            score = spot.play(found, spot.Terms(target=4), spot.rule(name, SpotPolicy())).answer()
            shown = ("cost_ratio", "below_target_percent", "none_ready_percent", "on_demand_launches")
            rows.append((history.name, name, *(f"{score[field]:g}" for field in shown)))
    return Table(
        title="Recorded spot markets, a target of 4 and one spare",
        columns=("history", "rule", "cost", "below target %", "none ready %", "on-demand launches"),
        rows=tuple(rows),
        notes=("Of g4dn and p2 `available` is what a cluster held: its zone may have had more.",),
    )


def _recorded_replicas(source: Path, folder: Path) -> Table:
    rows: list[tuple[str, ...]] = []
    for pool, names in (("", idle.NAMES), ("pool", sizers.NAMES)):
        for history in recorded.replicas(source, folder, pool):
            found = histories.load_activity(history.path, IdlePolicy().gpu_active_below)
            for name in names:
                score = (
                    _pool(found, name) if pool else idle.play(found, idle.rule(name, found, IdlePolicy()), COLD_START)
                )
                shown = ("saved_percent", "unserved_percent", "stops_per_replica_day", "wrong_stops")
                rows.append((history.name, name, *(f"{score.answer()[field]:.2f}" for field in shown)))
    return Table(
        title="Recorded GPUs, each alone and as one pool at 0.8 capacity",
        columns=("history", "rule", "saved %", "unserved %", "stops per replica and day", "wrong stops"),
        rows=tuple(rows),
    )


def _recorded_requests(source: Path, folder: Path) -> Table:
    rows: list[tuple[str, ...]] = []
    for history in recorded.requests(source, folder):
        arrivals = histories.load_requests(history.path, None)
        per_second = float(arrivals.tokens.mean()) / arrivals.tick / REPLICAS_AT_WORK
        terms = requests.Terms(tokens_per_second=per_second)
        for name in sizers.NAMES:
            sizer = sizers.sizer(name, ScalePolicy(), COLD_START, arrivals.tick)
            score = requests.play(arrivals, terms, sizer, name).answer()
            shown = ("cost_ratio", "slo_missed_percent", "peak_replicas", "moves")
            rows.append((history.name, name, *(f"{score[field]:g}" for field in shown)))
    return Table(
        title=f"Recorded requests, a replica that carries 1/{REPLICAS_AT_WORK} of the mean load",
        columns=("history", "rule", "cost", "too late %", "peak replicas", "moves"),
        rows=tuple(rows),
        notes=("Rates have no tokens: 1,000 for each request.",),
    )


def _pool(found: Activity, name: str) -> idle.Score:
    return pools.play(
        found, lambda pool: pools.rule(name, pool, IdlePolicy(), ScalePolicy(), COLD_START), COLD_START, 0.8
    )


def foresight(work: np.ndarray, stops: int) -> float:
    """Percent of all replica time that so many stops save at most."""
    edges = np.diff(np.pad(work, ((1, 1), (0, 0)), constant_values=True).astype(np.int8), axis=0)
    begins, ends = np.nonzero(edges.T == -1)[1], np.nonzero(edges.T == 1)[1]
    longest = np.sort(ends - begins)[::-1][:stops]
    return 100 * float(longest.sum()) / work.size


def history(active: kinds.Active) -> Activity:
    """Generated replicas as the replay plays them, each alone."""
    ticks, replicas = active.shape
    return Activity(
        replicas=tuple(f"r{n:03}" for n in range(replicas)),
        times=np.arange(ticks) * kinds.STEP,
        step=kinds.STEP,
        reported=np.ones(active.shape, dtype=np.bool_),
        active=active,
        work=active >= IdlePolicy().gpu_active_below,
        pools=None,
    )
