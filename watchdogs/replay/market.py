"""A recorded spot market, played to a rule. It asks, is refused and loses instances; it never sees `available`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import isnan
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from watchdogs.replay import rows
from watchdogs.replay.rows import Column, Floats, TraceError

ON_DEMAND: Final = -1
"""The place of on-demand; zones count from 0."""
ROUNDS: Final = 1000
"""A rule that still asks after this many rounds of one tick never stops."""
_AT_ONCE: Final = 1024
"""Ticks that are plain numbers at one time."""

COLUMNS: Final = (
    Column(name="time_s", at_least=None),
    Column(name="zone", text=True),
    Column(name="available"),
    Column(name="spot_price", optional=True, empty=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """A history of how many instances each zone would give."""

    zones: Sequence[str]
    times: Floats
    available: Floats
    """By tick and zone."""
    prices: Floats | None
    """By tick and zone, in the unit of the on-demand price; None: not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is asked of the pool, and what it costs."""

    target: int
    spare: int = 1
    cold_start: float = 390.0
    """Seconds from launch to ready."""
    on_demand_price: float = 1.0
    spot_price: float = 0.3
    """Where the history has no prices."""


@dataclass(slots=True)
class Machine:
    """One instance of the replay."""

    number: int
    place: int
    launched: float


@dataclass(slots=True)
class State:
    """What a rule may see: its own instances, and what it was told."""

    now: float
    zones: Sequence[str]
    terms: Terms
    machines: list[Machine] = field(default_factory=list[Machine])
    lost: list[Machine] = field(default_factory=list[Machine])
    """Taken since the rule was asked last."""
    refused: list[int] = field(default_factory=list[int])
    """Zones that refused since the rule was asked last."""
    prices: Sequence[float] | None = None

    def ready(self, machine: Machine) -> bool:
        return self.now - machine.launched >= self.terms.cold_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a rule wants now: places to launch at, one entry per instance, and instances to end."""

    launch: Sequence[int] = ()
    end: Sequence[int] = ()
    """Numbers of instances."""


class Rule(Protocol):
    """Decides; it is asked again within a tick until it wants nothing new."""

    name: str

    def decide(self, state: State) -> Wishes: ...


@dataclass(slots=True)
class Score:
    """What came of it."""

    rule: str
    target: int
    ticks: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    on_demand_cost: float = 0.0
    below: int = 0
    none: int = 0
    on_demand_launches: int = 0
    spot_launches: int = 0
    preemptions: int = 0
    on_demand_seconds: float = 0.0
    all_seconds: float = 0.0

    def answer(self) -> dict[str, str | int | float]:
        """The fields that the command prints."""
        ticks = max(1, self.ticks)
        return {
            "rule": self.rule,
            "target": self.target,
            "ticks": self.ticks,
            "cost_ratio": round(self.cost / self.on_demand_cost, 6) if self.on_demand_cost else 0.0,
            "below_target_percent": round(100 * self.below / ticks, 6),
            "none_ready_percent": round(100 * self.none / ticks, 6),
            "on_demand_launches": self.on_demand_launches,
            "spot_launches": self.spot_launches,
            "preemptions": self.preemptions,
            "on_demand_share": round(self.on_demand_seconds / self.all_seconds, 6) if self.all_seconds else 0.0,
        }


def load(path: Path) -> Market:
    """Raises TraceError: what is wrong, with the line."""
    table = rows.read(path, COLUMNS)
    times, codes, zones = table.numbers["time_s"], table.codes["zone"], table.names["zone"]
    starts = rows.ticks(table.path, times)
    if len(starts) < 3:
        raise TraceError(f"{path}: one moment only; a history has at least two")
    tick = rows.tick_of_row(starts)
    rows.no_doubles(table, "zone", tick, codes, len(zones))
    prices = table.numbers.get("spot_price")
    return Market(
        zones=zones,
        times=times[starts[:-1]],
        available=_by_tick(table.numbers["available"], tick, codes, (len(starts) - 1, len(zones)), missing=0.0),
        prices=None
        if prices is None
        else _by_tick(prices, tick, codes, (len(starts) - 1, len(zones)), missing=float("nan")),
    )


def _by_tick(
    values: Floats, tick: rows.Codes, codes: rows.Codes, shape: tuple[int, int], *, missing: float
) -> Floats:
    """A zone without a row gives nothing at that tick: nobody saw an instance there."""
    found = np.full(shape, missing)
    rows.put(found, tick, codes, values)
    return found


def play(market: Market, terms: Terms, rule: Rule) -> Score:
    """The whole history, tick by tick: losses, decisions, readiness, money. The last row only ends a tick."""
    score = Score(rule=rule.name, target=terms.target)
    state = State(now=0.0, zones=market.zones, terms=terms)
    numbers = iter(range(1, 1 << 62))
    for now, length, room, state.prices in _ticks(market):
        state.now = now
        _lose(state, room, score)
        _ask(state, rule, room, score, numbers)
        _count(state, length, score)
    return score


def _ticks(market: Market) -> Iterator[tuple[float, float, Sequence[int], Sequence[float] | None]]:
    """Time, length, room and prices of each tick but the last, as plain numbers: a thousand rows at a time."""
    lengths = np.diff(market.times)
    for first in range(0, len(lengths), _AT_ONCE):
        part = slice(first, min(first + _AT_ONCE, len(lengths)))
        prices = repeat(None) if market.prices is None else market.prices[part].tolist()
        room = market.available[part].astype(np.int64).tolist()
        yield from zip(market.times[part].tolist(), lengths[part].tolist(), room, prices, strict=False)


def _lose(state: State, room: Sequence[int], score: Score) -> None:
    state.lost, state.refused = [], []
    held: dict[int, list[Machine]] = {}
    for machine in state.machines:
        if machine.place != ON_DEMAND:
            held.setdefault(machine.place, []).append(machine)
    for place, there in held.items():
        if len(there) > room[place]:
            there.sort(key=lambda m: (m.launched, m.number))
            state.lost += there[room[place] :]
    if state.lost:
        gone = {machine.number for machine in state.lost}
        state.machines = [m for m in state.machines if m.number not in gone]
        score.preemptions += len(gone)


def _ask(state: State, rule: Rule, room: Sequence[int], score: Score, numbers: Iterator[int]) -> None:
    for _ in range(ROUNDS):
        wishes = rule.decide(state)
        state.lost, state.refused = [], []
        for place in wishes.launch:
            if place == ON_DEMAND:
                score.on_demand_launches += 1
            elif sum(m.place == place for m in state.machines) < room[place]:
                score.spot_launches += 1
            else:
                state.refused.append(place)
                continue
            state.machines.append(Machine(number=next(numbers), place=place, launched=state.now))
        if wishes.end:
            gone = set(wishes.end)
            state.machines = [m for m in state.machines if m.number not in gone]
        if not wishes.launch and not wishes.end:
            return
    raise TraceError(f"rule {rule.name!r} still asks after {ROUNDS} rounds at {state.now:g} s")


def _spot_price(state: State, place: int) -> float:
    if state.prices is None or isnan(state.prices[place]):
        return state.terms.spot_price
    return state.prices[place]


def _count(state: State, length: float, score: Score) -> None:
    score.ticks += 1
    score.on_demand_cost += state.terms.target * state.terms.on_demand_price * length / 3600
    ready = 0
    for machine in state.machines:
        if machine.place == ON_DEMAND:
            price = state.terms.on_demand_price
            score.on_demand_seconds += length
        else:
            price = _spot_price(state, machine.place)
        score.cost += price * length / 3600
        score.all_seconds += length
        ready += state.ready(machine)
    score.below += ready < state.terms.target
    score.none += ready == 0
