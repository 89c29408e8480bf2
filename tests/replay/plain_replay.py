"""The replays once more, as their words say: row by row, with lists, slowly. Shares no sums with the product's."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from replay.spot import ON_DEMAND, Machine, Rule, State, Terms

Row = dict[str, str]


def rows_of(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def number(row: Row | None, name: str) -> float | None:
    return float(row[name]) if row is not None and row[name] != "" else None


@dataclass
class Idle:
    """What each replica did, by time and name."""

    path: Path
    times: list[float] = field(init=False)
    names: list[str] = field(init=False)
    rows: dict[tuple[float, str], Row] = field(init=False)

    def __post_init__(self) -> None:
        found = rows_of(self.path)
        self.times = sorted({float(row["time_s"]) for row in found})
        self.names = list(dict.fromkeys(row["replica"] for row in found))
        self.rows = {(float(row["time_s"]), row["replica"]): row for row in found}
        self.step = median(b - a for a, b in zip(self.times, self.times[1:], strict=False))
        self.work = {(time, name): self._works(n, name) for n, time in enumerate(self.times) for name in self.names}

    def _works(self, at: int, name: str) -> bool:
        row = self.rows.get((self.times[at], name))
        if (number(row, "requests_running") or 0) > 0 or (number(row, "requests_waiting") or 0) > 0:
            return True
        if self.active(at, name) >= 0.01:
            return True
        before = [number(self.rows.get((time, name)), "tokens_total") for time in self.times[:at]]
        known = [tokens for tokens in before if tokens is not None]
        now = number(row, "tokens_total")
        return now is not None and bool(known) and known[-1] != now

    def active(self, at: int, name: str) -> float:
        return number(self.rows.get((self.times[at], name)), "gpu_active") or 0.0

    def told(self, time: float, name: str) -> bool:
        fields = ("gpu_active", "requests_running", "requests_waiting", "tokens_total")
        return all(number(self.rows.get((time, name)), field) is not None for field in fields)

    def busy(self, at: int, name: str) -> bool:
        return self.work[self.times[at], name]

    def wrong(self, at: int, name: str) -> bool:
        return any(self.busy(n, name) for n in self.heard(at, name)[-2:])

    def heard(self, at: int, name: str) -> list[int]:
        """The ticks of its rows so far."""
        return [n for n in range(at + 1) if self.told(self.times[n], name) or self.busy(n, name)]

    def rests(self, at: int, name: str) -> bool:
        """Its newest row and the one before say so."""
        heard = self.heard(at, name)
        return not self.wrong(at, name) and (len(heard) > 1 or heard == [0])

    def answer(self, rule: str, saved: int, stops: int, wrong: int, wakes: int, unserved: float) -> dict[str, Any]:
        hours = len(self.times) * self.step / 3600
        whole = len(self.names) * hours
        done = sum(self.active(at, name) for at in range(len(self.times)) for name in self.names) * self.step
        return {
            "rule": rule,
            "replicas": len(self.names),
            "gpu_hours": whole,
            "gpu_hours_idle": sum(self.told(*at) and not busy for at, busy in self.work.items()) * self.step / 3600,
            "gpu_hours_saved": saved * self.step / 3600,
            "saved_percent": 100 * saved * self.step / 3600 / whole,
            "stops": stops,
            "stops_per_replica_day": stops / (whole / 24),
            "wrong_stops": wrong,
            "wakes": wakes,
            "unserved_percent": 100 * unserved / done if done else 0.0,
        }


def timer(path: Path, rule: str, after: float, cold_start: float) -> dict[str, Any]:
    """Each replica alone, ended after so many seconds without work."""
    log, boot = Idle(path), 0
    boot = math.ceil(cold_start / log.step)
    saved = stops = wrong = wakes = 0
    unserved = 0.0
    for name in log.names:
        running, ready_from, quiet_from = True, 0, 0
        for at in range(len(log.times)):
            if log.busy(at, name) and not running:
                running, ready_from, wakes = True, at + boot, wakes + 1
            saved += not running
            if running and at < ready_from:
                unserved += log.active(at, name) * log.step
            if log.busy(at, name):
                quiet_from = at + 1
            if running and at >= ready_from and (at + 1 - max(quiet_from, ready_from)) * log.step >= after:
                running, stops = False, stops + 1
                wrong += log.wrong(at, name)
    return log.answer(rule, saved, stops, wrong, wakes, unserved)


@dataclass
class Wants:
    """How many ready replicas a plain rule wants."""

    rule: str
    span: float | None
    """Seconds whose highest demand counts; None: one more while work queues, one fewer after five calm minutes."""
    seen: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    calm: float | None = None

    def replicas(self, at: float, demand: float, ready: int, running: int) -> int:
        if self.span is not None:
            self.seen.append((at, demand))
            return max(1, math.ceil(max(d for t, d in self.seen if at - t <= self.span)))
        if demand > ready or running <= 1 or demand > running - 1:
            self.calm = None
            return running + 1 if demand > ready else running
        self.calm = at if self.calm is None else self.calm
        if at - self.calm < 300:
            return running
        self.calm = at
        return running - 1


def pools(path: Path, rule: str, span: float | None, capacity: float, cold_start: float) -> dict[str, Any]:
    """Replicas of a pool take each other's work."""
    log = Idle(path)
    boot = math.ceil(cold_start / log.step)
    pool_of = {row["replica"]: row["pool"] for row in rows_of(path) if row["pool"]}
    saved = stops = wrong = wakes = 0
    unserved = 0.0
    for pool in sorted(set(pool_of.values())):
        members = [name for name in log.names if pool_of[name] == pool]
        ready_from: dict[str, int | None] = dict.fromkeys(members, 0)  # None: stopped
        wants = Wants(rule, span)
        for at, time in enumerate(log.times):
            running = [name for name in members if ready_from[name] is not None]
            ready = [name for name in running if (ready_from[name] or 0) <= at]
            demand = sum(log.active(at, name) for name in members)
            wanted = min(len(members), wants.replicas(time, round(demand / capacity, 6), len(ready), len(running)))
            for name in [m for m in members if m not in running][: max(0, wanted - len(running))]:
                ready_from[name], wakes = at + boot, wakes + 1
            saved += sum(ready_from[name] is None for name in members)
            serve = len(ready) if boot else sum(ready_from[name] is not None for name in members)
            unserved += max(0.0, demand - capacity * serve) * log.step
            spare = max(0, min(len(running) - wanted, len(ready) - wanted))
            for name in [name for name in ready if log.rests(at, name)][:spare]:
                ready_from[name], stops = None, stops + 1
                wrong += log.wrong(at, name)
    return log.answer(rule, saved, stops, wrong, wakes, unserved)


def spot(path: Path, terms: Terms, rule: Rule) -> dict[str, Any]:
    """The rule is asked at every tick."""
    found = rows_of(path)
    times = sorted({float(row["time_s"]) for row in found})
    zones = list(dict.fromkeys(row["zone"] for row in found))
    at = {(float(row["time_s"]), row["zone"]): row for row in found}
    state = State(now=0.0, zones=zones, terms=terms)
    bought = launched = lost = below = none = made = 0
    cost = on_demand = everything = 0.0
    for time, following in zip(times, times[1:], strict=False):
        state.now = time
        room = [int(float(at[time, zone]["available"])) if (time, zone) in at else 0 for zone in zones]
        price = [number(at.get((time, zone)), "spot_price") if "spot_price" in found[0] else None for zone in zones]
        if "spot_price" in found[0]:
            state.prices = [math.nan if p is None else p for p in price]
        there: dict[int, list[Machine]] = {}
        for machine in state.machines:
            there.setdefault(machine.place, []).append(machine)
        state.lost = [m for place, those in there.items() if place != ON_DEMAND for m in those[room[place] :]]
        state.machines = [m for m in state.machines if m not in state.lost]
        lost, state.refused = lost + len(state.lost), []
        while True:
            moves = rule.decide(state)
            state.lost, state.refused = [], []
            for place in moves.launch:
                if place != ON_DEMAND and sum(m.place == place for m in state.machines) >= room[place]:
                    state.refused.append(place)
                    continue
                bought, launched = bought + (place == ON_DEMAND), launched + (place != ON_DEMAND)
                made += 1
                state.machines.append(Machine(number=made, place=place, launched=time))
            state.machines = [m for m in state.machines if m.number not in moves.end]
            if not moves.launch and not moves.end:
                break
        ready = sum(time - m.launched >= terms.cold_start for m in state.machines)
        below, none = below + (ready < terms.target), none + (ready == 0)
        hours = (following - time) / 3600
        for machine in state.machines:
            everything += hours
            if machine.place == ON_DEMAND:
                cost, on_demand = cost + terms.on_demand_price * hours, on_demand + hours
            else:
                spot_price = price[machine.place]
                cost += (terms.spot_price if spot_price is None else spot_price) * hours
    ticks = len(times) - 1
    return {
        "rule": rule.name,
        "target": terms.target,
        "ticks": ticks,
        "cost_ratio": cost / (terms.target * terms.on_demand_price * (times[-1] - times[0]) / 3600),
        "below_target_percent": 100 * below / ticks,
        "none_ready_percent": 100 * none / ticks,
        "on_demand_launches": bought,
        "spot_launches": launched,
        "preemptions": lost,
        "on_demand_share": on_demand / everything if everything else 0.0,
    }


def late_tokens(arrived: Sequence[int], replicas: Sequence[int], per_tick: int, ticks: float, parts: int) -> float:
    """Tokens in their order, part of a tick by part: how many wait for longer than so many ticks.

    After the history they are served on by the replicas of its end.
    """
    line: list[tuple[int, float]] = []
    late, now = 0.0, 0
    while now < len(arrived) * parts or line:
        tick = now // parts
        if tick < len(arrived):
            line.append((now, arrived[tick] / parts))
        able = replicas[min(tick, len(replicas) - 1)] * per_tick / parts
        if tick >= len(arrived) and able == 0:
            return late + sum(left for _, left in line)
        while line and able > 1e-9:
            came, left = line[0]
            taken = min(left, able)
            late += taken * (now - came > ticks * parts)
            able -= taken
            line[0] = came, left - taken
            if line[0][1] <= 1e-9:
                line.pop(0)
        now += 1
    return late
