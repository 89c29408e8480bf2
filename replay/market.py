"""A recorded spot market, played to a rule. It asks, is refused and loses instances; it never sees `available`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from replay import rows
from replay.asks import Asks, refused_until
from replay.rows import Column, Floats, TraceError

ON_DEMAND: Final = -1
"""The place of on-demand; zones count from 0."""
ROUNDS: Final = 1000
"""A rule that still asks after this many rounds of one tick, beside one for each instance and zone, never stops."""
MOST: Final = 1e9
"""Instances that a zone may give; whoever writes more means: as many as you like."""
AT_ONCE: Final = 1024
"""Ticks that are searched at one time for the end of a rest, and most of one in which zones are asked."""
FIRST_WINDOW: Final = 32

COLUMNS: Final = (
    Column(name="time_s", at_least=None),
    Column(name="zone", text=True),
    Column(name="available"),
    Column(name="spot_price", optional=True, empty=True, at_most=1e6),
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
    passed: Sequence[float] = ()
    """The ticks since the rule was asked last, of its rest."""

    def ready(self, machine: Machine) -> bool:
        return self.now - machine.launched >= self.terms.cold_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a rule wants now: places to launch at, one entry per instance, and instances to end."""

    launch: Sequence[int] = ()
    end: Sequence[int] = ()
    """Numbers of instances."""
    in_turn: Sequence[int] = ()
    """Zones of which each will have been asked within this tick if none gives, in whatever order."""
    rest_until: float = float("-inf")
    """Of a rule that wants nothing: before this time it would want nothing either, unless it loses an instance."""
    ceiling: float | None = None
    """A price that reaches it, or falls below it, ends the rest, too."""
    asks: Asks | None = None
    """Zones that are asked again within the rest."""


class Rule(Protocol):
    """Decides; it is asked again within a tick until it wants nothing new, and then when its rest is over."""

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
    starts = rows.ticks(table, times)
    if len(starts) < 3:
        raise TraceError(f"{path}: one moment only; a history has at least two")
    tick = rows.tick_of_row(starts)
    rows.no_doubles(table, "zone", tick, codes, len(zones))
    prices = table.numbers.get("spot_price")
    return Market(
        zones=zones,
        times=times[starts[:-1]],
        available=_by_tick(
            np.minimum(table.numbers["available"], MOST), tick, codes, (len(starts) - 1, len(zones)), missing=0.0
        ),
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
    tick, last = 0, len(market.times) - 1
    while tick < last:
        state.now = float(market.times[tick])
        state.prices = None if market.prices is None else market.prices[tick].tolist()
        room = market.available[tick].astype(np.int64).tolist()
        _lose(state, room, score)
        wishes = _ask(state, rule, room, score, numbers)
        until = _rest(market, state, wishes, tick, last)
        state.passed = market.times[tick + 1 : until].tolist()
        for first, end in pairwise([tick, *_boots(market, state, tick, until), until]):
            state.now = float(market.times[first])
            _count(market, state, first, end, score)
        tick = until
    return score


def _boots(market: Market, state: State, tick: int, until: int) -> list[int]:
    """The ticks between these two at which an instance is ready that was not before."""
    if until <= tick + 1:
        return []
    booting = {machine.launched for machine in state.machines if not state.ready(machine)}
    found: set[int] = set()
    for launched in booting:
        ready = market.times[tick + 1 : until] - launched >= state.terms.cold_start
        found.add(tick + 1 + int(ready.argmax()) if ready.any() else until)
    return sorted(found - {until})


def _rest(market: Market, state: State, wishes: Wishes, tick: int, last: int) -> int:
    """The next tick at which the rule is to be asked, loses an instance, or is given one."""
    first = tick + 1
    if not wishes.rest_until > market.times[min(first, last)]:
        return first
    held = np.zeros(len(market.zones))
    for machine in state.machines:
        if machine.place != ON_DEMAND:
            held[machine.place] += 1
    over = min(last, int(np.searchsorted(market.times, wishes.rest_until)))
    if wishes.asks is None:
        return _end(market, state, wishes, held, range(first, over))
    most = min(over, first + AT_ONCE)
    for part in rows.widening(first, most, FIRST_WINDOW, AT_ONCE):
        some = slice(part.start, _end(market, state, wishes, held, range(part.start, part.stop)))
        room = market.available[some] >= held + 1
        asked = part.start + refused_until(wishes.asks, market.times[some].tolist(), room)
        if asked < part.stop:
            return asked
    return most


def _end(market: Market, state: State, wishes: Wishes, held: Floats, ticks: range) -> int:
    """The first tick with a loss, or a price on another side of the ceiling than before the ticks; or their end."""
    first, over = ticks.start, ticks.stop
    while first < over:
        part = slice(first, min(first + AT_ONCE, over))
        ends = (market.available[part] < held).any(axis=1)
        if market.prices is not None and wishes.ceiling is not None:
            dear = _prices(market, part, state.terms) >= wishes.ceiling
            before = _prices(market, slice(ticks.start - 1, ticks.start), state.terms) >= wishes.ceiling
            ends |= (dear != before).any(axis=1)
        if ends.any():
            return first + int(ends.argmax())
        first = part.stop
    return over


def _prices(market: Market, ticks: slice, terms: Terms) -> Floats:
    """By tick and zone, the usual price where none was recorded."""
    found = market.prices[ticks] if market.prices is not None else np.full((1, len(market.zones)), np.nan)
    return np.where(np.isnan(found), terms.spot_price, found)


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


def _ask(state: State, rule: Rule, room: Sequence[int], score: Score, numbers: Iterator[int]) -> Wishes:
    """Until it wants nothing; returns that answer."""
    rounds = ROUNDS + 2 * (state.terms.target + state.terms.spare) + len(state.zones)
    for _ in range(rounds):
        wishes = rule.decide(state)
        state.lost, state.refused = [], []
        held = Counter(m.place for m in state.machines) if wishes.launch else Counter[int]()
        if wishes.in_turn and all(held[place] >= room[place] for place in wishes.in_turn):
            state.refused = list(wishes.in_turn)
            state.passed = ()
            continue
        for place in wishes.launch:
            if place == ON_DEMAND:
                score.on_demand_launches += 1
            elif held[place] < room[place]:
                score.spot_launches += 1
                held[place] += 1
            else:
                state.refused.append(place)
                continue
            state.machines.append(Machine(number=next(numbers), place=place, launched=state.now))
        if wishes.end:
            gone = set(wishes.end)
            state.machines = [m for m in state.machines if m.number not in gone]
        state.passed = ()
        if not wishes.launch and not wishes.end:
            return wishes
    raise TraceError(f"rule {rule.name!r} still asks after {rounds} rounds at {state.now:g} s")


def _count(market: Market, state: State, first: int, end: int, score: Score) -> None:
    """Ticks from `first` to before `end`, in which the instances stay as they are."""
    length = float(market.times[end] - market.times[first])
    score.ticks += end - first
    score.on_demand_cost += state.terms.target * state.terms.on_demand_price * length / 3600
    ready = 0
    for machine in state.machines:
        if machine.place == ON_DEMAND:
            score.cost += state.terms.on_demand_price * length / 3600
            score.on_demand_seconds += length
        else:
            score.cost += _spot_cost(market, state, machine.place, first, end) / 3600
        score.all_seconds += length
        ready += state.ready(machine)
    score.below += (end - first) * (ready < state.terms.target)
    score.none += (end - first) * (ready == 0)


def _spot_cost(market: Market, state: State, place: int, first: int, end: int) -> float:
    """Seconds times the hourly price."""
    if market.prices is None:
        return state.terms.spot_price * float(market.times[end] - market.times[first])
    prices = _prices(market, slice(first, end), state.terms)[:, place]
    return float(prices @ np.diff(market.times[first : end + 1]))
