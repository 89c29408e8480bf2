"""Replays a recorded spot market against a rule: the spot watchdog's own `decide`, or SkyServe's rule.

Each tick is one pass of the watchdog. Instances above the capacity of their zone are lost. The rule is called until
it requests no more changes, as a pass observes the effect of each change. Then the tick's readiness and cost are
counted. A rule sees its requests, refusals and losses. It never sees how many instances a zone could provide.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from math import isnan
from typing import Final, Protocol

import numpy as np

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.boots import Boot
from gpufleet.domain.decisions import Action, Decision
from gpufleet.domain.model import CapacityType
from gpufleet.domain.policies import SpotPolicy
from replay.histories import MarketHistory
from replay.rows import EPOCH, TraceError
from watchdogs.budgets import HOUR
from watchdogs.spot import zones
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView
from watchdogs.spot.risk import ZoneHistory
from watchdogs.spot.view_builder import LOOK_BACK

NAMES: Final = ("own", "skyserve")
ON_DEMAND: Final = -1
"""Place of on-demand. Zones count from 0."""
ON_DEMAND_GROUP: Final = "on-demand"
ROUNDS: Final = 1000
"""Maximum number of rounds in one tick, in addition to one per instance and zone. A rule that exceeds it would never
stop.
"""
MAX_INSTANCES: Final = 1_000_000
"""Groups of the replay have no size limit of their own; the market limits them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTerms:
    """The size of the pool, boot time and prices."""

    target: int
    spare: int = 1
    cold_start: float = 390.0
    """Seconds from launch to ready."""
    on_demand_price: float = 1.0
    spot_price: float = 0.3
    """Used if the history has no prices."""


@dataclass(slots=True)
class ReplayInstance:
    """One instance of the replay."""

    number: int
    place: int
    launched: float


@dataclass(slots=True)
class RuleState:
    """What a rule may see: its own instances, losses and refusals."""

    now: float
    zones: Sequence[str]
    terms: SpotTerms
    machines: list[ReplayInstance] = field(default_factory=list[ReplayInstance])
    lost: list[ReplayInstance] = field(default_factory=list[ReplayInstance])
    """Instances lost since the last call of the rule."""
    refused: list[int] = field(default_factory=list[int])
    """Zones that refused a launch since the last call of the rule."""
    prices: Sequence[float] | None = None
    """By zone. NaN or None: not recorded."""

    def ready(self, machine: ReplayInstance) -> bool:
        return self.now - machine.launched >= self.terms.cold_start

    def price(self, place: int) -> float:
        """Return the price of an instance there, per hour."""
        if place == ON_DEMAND:
            return self.terms.on_demand_price
        price = self.terms.spot_price if self.prices is None else self.prices[place]
        return self.terms.spot_price if isnan(price) else price


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Changes that a rule requests: places for launches, one entry per instance, and instances to terminate."""

    launch: Sequence[int] = ()
    end: Sequence[int] = ()
    """Numbers of instances."""


class SpotRule(Protocol):
    """Decides on changes. It is called within a tick until it requests no more changes."""

    name: str

    def decide(self, state: RuleState) -> Moves: ...


@dataclass(slots=True)
class SpotScore:
    """The result of a replay."""

    rule: str
    target: int
    ticks: int = 0
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
        """Return the fields that the command prints."""
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


def play(market: MarketHistory, terms: SpotTerms, rule: SpotRule) -> SpotScore:
    """Replay the whole history. The last row only marks the end of a tick. Raises TraceError for a rule that never
    stops requesting changes.
    """
    score = SpotScore(rule=rule.name, target=terms.target)
    state = RuleState(now=0.0, zones=market.zones, terms=terms)
    numbers = count(1)
    lengths = np.diff(market.times).tolist()
    for tick, length in enumerate(lengths):
        state.now = float(market.times[tick])
        state.prices = None if market.prices is None else market.prices[tick].tolist()
        capacity = market.available[tick].astype(np.int64).tolist()
        _lose(state, capacity, score)
        _ask(state, rule, capacity, score, numbers)
        _count(state, length, score)
    return score


def _lose(state: RuleState, capacity: Sequence[int], score: SpotScore) -> None:
    """Remove the newest instances that exceed the capacity of their zone."""
    state.lost, state.refused = [], []
    held: dict[int, list[ReplayInstance]] = {}
    for machine in state.machines:
        if machine.place != ON_DEMAND:
            held.setdefault(machine.place, []).append(machine)
    for place, there in held.items():
        state.lost += there[capacity[place] :]
    _remove(state, {machine.number for machine in state.lost})
    score.preemptions += len(state.lost)


def _ask(state: RuleState, rule: SpotRule, capacity: Sequence[int], score: SpotScore, numbers: Iterator[int]) -> None:
    """Call the rule and apply its changes until it requests none."""
    rounds = ROUNDS + 2 * (state.terms.target + state.terms.spare) + len(state.zones)
    for _ in range(rounds):
        moves = rule.decide(state)
        if not moves.launch and not moves.end:
            return
        state.lost, state.refused = [], []
        held = Counter(machine.place for machine in state.machines)
        for place in moves.launch:
            if place != ON_DEMAND and held[place] >= capacity[place]:
                state.refused.append(place)
                continue
            held[place] += 1
            score.on_demand_launches += place == ON_DEMAND
            score.spot_launches += place != ON_DEMAND
            state.machines.append(ReplayInstance(number=next(numbers), place=place, launched=state.now))
        _remove(state, set(moves.end))
    raise TraceError(f"rule {rule.name!r} still requests changes after {rounds} rounds at {state.now:g} s")


def _remove(state: RuleState, numbers: set[int]) -> None:
    state.machines = [machine for machine in state.machines if machine.number not in numbers]


def _count(state: RuleState, length: float, score: SpotScore) -> None:
    """Count a tick of `length` seconds."""
    score.ticks += 1
    score.on_demand_cost += state.terms.target * state.terms.on_demand_price * length / 3600
    for machine in state.machines:
        score.cost += state.price(machine.place) * length / 3600
        score.on_demand_seconds += length * (machine.place == ON_DEMAND)
        score.all_seconds += length
    ready = sum(state.ready(machine) for machine in state.machines)
    score.below += ready < state.terms.target
    score.none += ready == 0


def rule(name: str, policy: SpotPolicy) -> SpotRule:
    """Return the rule with that name, one of `NAMES`."""
    return LiveSpotRule(policy=policy) if name == "own" else SkyServeRule()


@dataclass(slots=True)
class LiveSpotRule:
    """Runs production's `decide` on the data that production's watchdog would see."""

    policy: SpotPolicy
    name: str = "own"
    _memories: list[ZoneHistory] = field(default_factory=list[ZoneHistory])
    """By zone."""
    _events: list[Activity] = field(default_factory=list[Activity])
    _taken: list[Boot] = field(default_factory=list[Boot])
    """Recently lost instances."""
    _looked: datetime | None = None
    _newest: int = 0
    """Number of the newest instance whose launch is recorded."""
    _ended: list[datetime] = field(default_factory=list[datetime])
    """Terminations in the last hour. In the replay, the rule requests all of them."""
    _started: list[datetime] = field(default_factory=list[datetime])
    """Launches in the last hour."""

    def decide(self, state: RuleState) -> Moves:
        now = EPOCH + timedelta(seconds=state.now)
        self._remember(state, now)
        acting = decide([self._view(state, now)], now).acting
        launch = [place for d in acting if d.action is Action.RESIZE for place in _growth(state, d)]
        if launch:
            return Moves(launch=launch)
        ends = [int(d.resource) for d in acting if d.action is Action.END]
        self._ended += [now] * len(ends)
        for machine in (m for m in state.machines if m.number in ends):
            self._note(_group_of(state, machine.place), ActivityKind.ENDED, now, machine)
        return Moves(end=ends)

    def _remember(self, state: RuleState, now: datetime) -> None:
        """Record the events since the last call."""
        if self._looked is None or self._looked < now:
            self._pass_time(state, now)
        for machine in state.lost:
            self._taken.append(_taken(state, machine, now))
            self._note(state.zones[machine.place], ActivityKind.PREEMPTED, now, machine)
        # several refusals by a zone at the same time count as one
        for place in dict.fromkeys(state.refused):
            self._memories[place] = self._memories[place].refused()
            self._note(state.zones[place], ActivityKind.NO_CAPACITY, now, None)
        for machine in (m for m in state.machines if m.number > self._newest):
            self._note(_group_of(state, machine.place), ActivityKind.LAUNCHED, now, machine)
            self._started.append(now)
        self._newest = max((self._newest, *(m.number for m in state.machines)))

    def _pass_time(self, state: RuleState, now: datetime) -> None:
        """Update the history at the first call of a tick: decay loss rates and remove old events."""
        self._looked = now
        self._memories = self._memories or [ZoneHistory(at=now)] * len(state.zones)
        lost = {machine.place for machine in state.lost}
        present = lost | {machine.place for machine in state.machines}
        faded = [memory.passed(now, present=place in present) for place, memory in enumerate(self._memories)]
        self._memories = [memory.lost() if place in lost else memory for place, memory in enumerate(faded)]
        # `zones` uses no older events; other events that production sees would only slow down each call
        refused = min(LOOK_BACK, max(zones.TRY_AGAIN, self.policy.zone_backoff))
        self._events = [event for event in self._events if now - event.at < refused]
        self._ended = [at for at in self._ended if now - at <= HOUR]
        self._taken = [boot for boot in self._taken if now - boot.last_seen_at < zones.PREEMPTION_DISCOUNT_SPAN]
        self._started = [at for at in self._started if now - at <= HOUR]

    def _note(self, group: str, kind: ActivityKind, now: datetime, machine: ReplayInstance | None) -> None:
        number = None if machine is None else str(machine.number)
        self._events.append(
            Activity(id=f"{group}-{number}-{len(self._events)}", group=group, kind=kind, at=now, instance_id=number)
        )

    def _view(self, state: RuleState, now: datetime) -> SpotPoolView:
        terms = state.terms
        held = Counter(machine.place for machine in state.machines)
        spots = [
            GroupView(
                name=zone,
                capacity_type=CapacityType.SPOT,
                zone=zone,
                desired=held[place],
                max=MAX_INSTANCES,
                usd_per_hour=Decimal(repr(state.price(place))),
                losses_per_hour=self._memories[place].losses_per_hour,
            )
            for place, zone in enumerate(state.zones)
        ]
        on_demand = GroupView(
            name=ON_DEMAND_GROUP,
            capacity_type=CapacityType.ON_DEMAND,
            zone=None,
            desired=held[ON_DEMAND],
            max=MAX_INSTANCES,
        )
        return SpotPoolView(
            name="replay",
            target=terms.target,
            spare=terms.spare,
            max=MAX_INSTANCES,
            policy=self.policy,
            groups=[*spots, on_demand],
            members=[_member(state, machine) for machine in state.machines],
            events=self._events,
            boots=self._taken,
            pass_started=now,
            on_demand_usd=Decimal(repr(terms.on_demand_price)),
            boot_expected=timedelta(seconds=terms.cold_start),
            ended_this_hour=len(self._ended),
            started_this_hour=len(self._started),
        )


def _growth(state: RuleState, decision: Decision) -> Sequence[int]:
    """Return one place per instance that the group grows by."""
    place = ON_DEMAND if decision.resource == ON_DEMAND_GROUP else state.zones.index(decision.resource)
    return [place] * ((decision.to_size or 0) - (decision.from_size or 0))


def _group_of(state: RuleState, place: int) -> str:
    return ON_DEMAND_GROUP if place == ON_DEMAND else state.zones[place]


def _taken(state: RuleState, machine: ReplayInstance, now: datetime) -> Boot:
    launched = EPOCH + timedelta(seconds=machine.launched)
    return Boot(
        instance_id=str(machine.number),
        pool="replay",
        group=_group_of(state, machine.place),
        machine_type="",
        launched_at=launched,
        first_seen_at=launched,
        last_seen_at=now,
        ready_at=launched + timedelta(seconds=state.terms.cold_start) if state.ready(machine) else None,
        left_at=now,
        ended_why=ActivityKind.PREEMPTED,
    )


def _member(state: RuleState, machine: ReplayInstance) -> PoolMember:
    launched = EPOCH + timedelta(seconds=machine.launched)
    ready = launched + timedelta(seconds=state.terms.cold_start) if state.ready(machine) else None
    return PoolMember(
        id=str(machine.number), group=_group_of(state, machine.place), launched_at=launched, ready_since=ready
    )


@dataclass(slots=True)
class SkyServeRule:
    """SkyServe's rule (SpotHedge, arXiv 2411.01438).

    It provides spot up to target plus spare, and on-demand for each spot instance that is not ready. It terminates
    on-demand as soon as spot is ready. A zone is active until it refuses or preempts an instance. When fewer than two
    zones are active, all become active again.
    """

    name: str = "skyserve"
    _active: set[int] = field(default_factory=set[int])
    _refused: set[int] = field(default_factory=set[int])
    _now: float = float("-inf")

    def decide(self, state: RuleState) -> Moves:
        if state.now > self._now:
            self._refused, self._now = set(), state.now
        self._active = self._active or set(range(len(state.zones)))
        self._refused |= set(state.refused)
        for place in (*state.refused, *(m.place for m in state.lost)):
            self._active.discard(place)
            if len(self._active) < 2:
                self._active = set(range(len(state.zones)))
        spot = [m for m in state.machines if m.place != ON_DEMAND]
        bought = [m for m in state.machines if m.place == ON_DEMAND]
        wanted = state.terms.target + state.terms.spare
        if len(spot) < wanted and (place := self._choose(state, spot)) is not None:
            return Moves(launch=(place,))
        if len(spot) > wanted:
            return Moves(end=[max(spot, key=lambda m: m.number).number])
        fallback = min(state.terms.target, max(0, wanted - sum(state.ready(m) for m in spot)))
        if len(bought) < fallback:
            return Moves(launch=[ON_DEMAND] * (fallback - len(bought)))
        surplus = sorted(bought, key=lambda m: (state.ready(m), -m.number))[: len(bought) - fallback]
        return Moves(end=[m.number for m in surplus])

    def _choose(self, state: RuleState, spot: Sequence[ReplayInstance]) -> int | None:
        """Return the active zone with the fewest instances, then the lowest price. Excludes zones that refused in
        this tick.
        """
        able = [place for place in sorted(self._active) if place not in self._refused]
        used = {place: sum(m.place == place for m in spot) for place in able}
        return min(able, key=lambda place: (used[place], state.price(place), place), default=None)
