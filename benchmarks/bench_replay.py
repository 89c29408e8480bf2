"""Compares the watchdogs' rules: the savings of each, and the effect on service.

It uses generated histories and the available public ones (`benchmarks/recorded.py`; `GPUFLEET_HISTORIES` names their
folder).
"""

import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import activity as kinds
from benchmarks import markets, recorded
from benchmarks.table import Table
from gpufleet.domain.policies import IdlePolicy, ScalePolicy, SpotPolicy
from replay import histories, idle, net_savings, pools, requests, runs, sizers, spot
from replay.histories import ActivityHistory
from watchdogs.idle import timer

REPLICAS: Final = 94
DAYS: Final = 0.95
COLD_START: Final = 180.0
MARKET_DAYS: Final = 45
_POOLS: Final = {"dense": 8, "sessions": 8, "bursty": 8, "visits": 0, "regimes": 0, "drift": 0, "uneven": 3}
"""Kinds that are replayed as one pool, with the number of bursts that many of its replicas share."""
MARGINS: Final = tuple(range(0, 31, 5))
"""In minutes: how much longer than the cost of a stop the idle rule may wait."""
REPLICAS_AT_WORK: Final = 8
"""Request histories contain no replicas. One replica is assumed to serve the mean load divided by this number."""


def run() -> Iterator[Table]:
    """Yield a table for each of the three replays, one for idle replicas that share a pool, and tables of recorded
    histories.
    """
    yield _spot()
    yield _alone()
    yield _pooled()
    yield _requests()
    yield from _recorded(recorded.folder())


def _spot() -> Table:
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for (how, make), seed in itertools.product(markets.MARKETS.items(), (1, 2)):
            path = Path(folder, "market.csv")
            markets.write(path, *make(markets.NINE_ZONES, MARKET_DAYS, seed))
            found = histories.load_market(path)
            for name in spot.NAMES:
                score = spot.play(found, spot.SpotTerms(target=4), spot.rule(name, SpotPolicy())).answer()
                shown = ("cost_ratio", "below_target_percent", "none_ready_percent", "on_demand_launches")
                rows.append((f"{how}, seed {seed}", name, *(f"{score[field]:g}" for field in shown)))
    return Table(
        title=f"Spot: nine zones, {MARKET_DAYS} days, a target of 4 and one spare",
        columns=("market", "rule", "cost", "below target %", "none ready %", "on-demand launches"),
        rows=tuple(rows),
    )


def _alone() -> Table:
    found = {kind: history(make(REPLICAS, DAYS, 1)) for kind, make in kinds.KINDS.items()}
    return _nets(f"Idle: {REPLICAS} replicas, each alone, {DAYS} days: net GPU-hours", found)


def _nets(title: str, histories_: Mapping[str, ActivityHistory]) -> Table:
    """Return net savings of the rules at two costs of a stop."""
    rows: list[tuple[str, ...]] = []
    for name, found in histories_.items():
        for price, nets in net_savings.compared(found, IdlePolicy(), COLD_START).items():
            behind = 100 * (nets["best_timer"] - nets["own"]) / nets["foresight"] if nets["foresight"] else 0.0
            timers = (f"{nets[each]:.1f}" for each in idle.TIMERS)
            best = f"{nets['best_timer']:.1f} ({nets['best_timer_minutes']} min)"
            last = (best, f"{nets['foresight']:.1f}", f"{behind:.1f}", str(nets["own_wrong_stops"]))
            rows.append((name, price, f"{nets['own']:.1f}", *timers, *last))
    minutes = (f"{round(after / 60)} min" for after in idle.TIMERS.values())
    return Table(
        title=title,
        columns=("history", "a stop costs", "own", *minutes, "best", "foresight", "behind, %", "wrong stops"),
        rows=tuple(rows),
        notes=(
            "GPU-hours saved less the price of each stop; own knows that price, its cold start included. Best: the"
            " fixed timer of 5 to 240 minutes that is best in hindsight. Behind: own behind best, as a share of"
            " foresight.",
        ),
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
        sizer = sizers.sizer(name, ScalePolicy(), COLD_START)
        score = requests.play(arrivals, requests.RequestTerms(tokens_per_second=500), sizer, name).answer()
        shown = ("cost_ratio", "slo_missed_percent", "peak_replicas", "moves")
        rows.append((name, *(f"{score[field]:g}" for field in shown)))
    return Table(
        title="Scale: two days that rise and fall, 500 tokens per second and replica",
        columns=("rule", "cost", "too late %", "peak replicas", "moves"),
        rows=tuple(rows),
    )


def _recorded(source: Path | None) -> Iterator[Table]:
    """Yield tables of the rules on available recorded histories."""
    missing = "missing" if source is not None else f"missing: set {recorded.FOLDER} to a folder"
    there = {name for name in recorded.DATA_SETS if source is not None and (source / name).is_dir()}
    yield Table(
        title="Recorded histories at hand",
        columns=("data set", "played by"),
        rows=tuple((name, f"replay {by}" if name in there else missing) for name, by in recorded.DATA_SETS.items()),
    )
    if source is None:
        return
    begun = time.monotonic()
    played = {"spot": _recorded_markets, "idle": _recorded_replicas, "scale": _recorded_requests}
    with tempfile.TemporaryDirectory() as folder:
        for by in sorted({recorded.DATA_SETS[name] for name in there}):
            for table in played[by](source, Path(folder)):
                took = f"Recorded histories took {time.monotonic() - begun:.0f} s up to here."
                yield replace(table, notes=(*table.notes, took))


def _recorded_markets(source: Path, folder: Path) -> Iterator[Table]:
    rows: list[tuple[str, ...]] = []
    for history in recorded.markets(source, folder):
        found = histories.load_market(history.path)
        for name in spot.NAMES:
            score = spot.play(found, spot.SpotTerms(target=4), spot.rule(name, SpotPolicy())).answer()
            shown = ("cost_ratio", "below_target_percent", "none_ready_percent", "on_demand_launches")
            rows.append((history.name, name, *(f"{score[field]:g}" for field in shown)))
    yield Table(
        title="Recorded spot markets, a target of 4 and one spare",
        columns=("history", "rule", "cost", "below target %", "none ready %", "on-demand launches"),
        rows=tuple(rows),
        notes=("Of g4dn and p2 `available` is what a cluster held: its zone may have had more.",),
    )


def _recorded_replicas(source: Path, folder: Path) -> Iterator[Table]:
    del folder
    if not (source / runs.AMONG_OTHERS / runs.RUNS).exists():
        return
    found = runs.load_runs(source)
    halves = {f"replica {n} of two": found.of(np.arange(n - 1, len(found.replicas), 2)) for n in (1, 2)}
    yield _nets("Recorded GPUs, each alone: net GPU-hours", {"idle_gpus": found, **halves})
    yield _margins(halves)
    noon = len(found.times) // 2
    days = {"first half of the day": _during(found, slice(noon)), "second half": _during(found, slice(noon, None))}
    rows: list[tuple[str, ...]] = []
    for (part, alone), name in itertools.product({"idle_gpus": found, **halves, **days}.items(), sizers.NAMES):
        pool = replace(alone, pools=np.zeros(len(alone.replicas), dtype=np.int32), pool_names=("pool",))
        score = _pool(pool, name).answer()
        shown = ("saved_percent", "unserved_percent", "stops_per_replica_day", "wrong_stops")
        rows.append((part, name, *(f"{score[field]:.2f}" for field in shown)))
    yield Table(
        title="Recorded GPUs as one pool at 0.8 capacity",
        columns=("history", "rule", "saved %", "unserved %", "stops per replica and day", "wrong stops"),
        rows=tuple(rows),
        notes=("GenTD26 (alibaba/clusterdata, commit 7a6c496): 47 of the 94 pods that report for a whole day.",),
    )


def _during(found: ActivityHistory, ticks: slice) -> ActivityHistory:
    return replace(
        found,
        times=found.times[ticks],
        reported=found.reported[ticks],
        active=found.active[ticks],
        work=found.work[ticks],
    )


def _margins(halves: Mapping[str, ActivityHistory]) -> Table:
    """Choose the idle rule's margin on each half of the replicas, and return its net savings on the other half."""
    rows: list[tuple[str, ...]] = []
    for chosen_on, other in itertools.permutations(halves):
        for price in net_savings.PRICES:
            here, there = (_fixed(halves[name], price) for name in (chosen_on, other))
            at = [int(price.total_seconds() / 60) + margin - int(net_savings.MINUTES[0]) for margin in MARGINS]
            best = max(zip(MARGINS, at, strict=True), key=lambda one: here[one[1]])
            ours = at[MARGINS.index(int(timer.MARGIN.total_seconds() / 60))]
            chosen = (f"{best[0]} min", f"{here[best[1]]:.1f}", f"{there[best[1]]:.1f}")
            rest = (f"{there[ours]:.1f}", f"{there.max():.1f}")
            rows.append((chosen_on, f"{price.total_seconds() / 60:.0f} min", *chosen, *rest))
    return Table(
        title="Recorded GPUs: the margin beyond the price of a stop, chosen on one half of the replicas",
        columns=("chosen on", "a stop costs", "margin", "net there", "net on the other", "with 15 min", "best timer"),
        rows=tuple(rows),
        notes=(f"Of margins of {MARGINS[0]} to {MARGINS[-1]} minutes in steps of 5.",),
    )


def _fixed(found: ActivityHistory, price: timedelta) -> np.ndarray:
    """Return the net GPU-hours of each fixed timer."""
    saved, stops = net_savings.fixed_timers(found, COLD_START)
    return saved - stops * (price.total_seconds() / 3600)


def _recorded_requests(source: Path, folder: Path) -> Iterator[Table]:
    rows: list[tuple[str, ...]] = []
    for history in recorded.requests(source, folder):
        arrivals = histories.load_requests(history.path, None)
        per_second = float(arrivals.tokens.mean()) / arrivals.tick / REPLICAS_AT_WORK
        terms = requests.RequestTerms(tokens_per_second=per_second)
        for name in sizers.NAMES:
            sizer = sizers.sizer(name, ScalePolicy(), COLD_START)
            score = requests.play(arrivals, terms, sizer, name).answer()
            shown = ("cost_ratio", "slo_missed_percent", "peak_replicas", "moves")
            rows.append((history.name, name, *(f"{score[field]:g}" for field in shown)))
    yield Table(
        title=f"Recorded requests, a replica that carries 1/{REPLICAS_AT_WORK} of the mean load",
        columns=("history", "rule", "cost", "too late %", "peak replicas", "moves"),
        rows=tuple(rows),
        notes=("Rates have no tokens: 1,000 for each request.",),
    )


def _pool(found: ActivityHistory, name: str) -> idle.IdleScore:
    return pools.play(
        found, lambda pool: pools.rule(name, pool, IdlePolicy(), ScalePolicy(), COLD_START), COLD_START, 0.8
    )


def history(active: kinds.Active) -> ActivityHistory:
    """Return generated replicas as a history in which each replica is a separate pool."""
    ticks, replicas = active.shape
    return ActivityHistory(
        replicas=tuple(f"r{n:03}" for n in range(replicas)),
        times=np.arange(ticks) * kinds.STEP,
        step=kinds.STEP,
        reported=np.ones(active.shape, dtype=np.bool_),
        active=active,
        work=active >= IdlePolicy().gpu_active_below,
        pools=None,
    )
