"""The rules that play a recorded spot market: ours, which is production's `decide`, and SkyServe's."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from math import inf, isnan
from typing import Final

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.model import CapacityType
from gpufleet.domain.policies import SpotPolicy
from replay.asks import Pauses
from replay.market import ON_DEMAND, Machine, State, Wishes
from replay.rows import CLOCKS, EPOCH
from watchdogs.budgets import HOUR
from watchdogs.spot import zones
from watchdogs.spot.decide import decide, spot_asks
from watchdogs.spot.memory import Memory, step
from watchdogs.spot.sizes import Sizes, surge
from watchdogs.spot.view import GroupView, Member, PoolView
from watchdogs.spot.watchdog import LOOK_BACK
from watchdogs.spot.zones import TRY_AGAIN

NAMES: Final = ("own", "skyserve")
MOST: Final = 1_000_000
"""A group of the replay has no largest size of its own: the market limits it."""
ON_DEMAND_GROUP: Final = "on-demand"
_FULL: Final = frozenset({Reason.RUN_BUDGET, Reason.HOUR_BUDGET})
_LIVES: Final = frozenset({ActivityKind.LAUNCHED, ActivityKind.PREEMPTED})
FADES_IN: Final = 4 * TRY_AGAIN
"""Until a look of a pool in which nothing happens: what fades has faded by a twentieth then."""


@dataclass(slots=True)
class _Zone:
    """What is remembered of a zone between ticks."""

    memory: Memory
    last_loss: datetime | None = None


@dataclass(slots=True)
class OwnRule:
    """Production's `decide`, shown what production's watchdog would see."""

    policy: SpotPolicy
    name: str = "own"
    _zones: list[_Zone] = field(default_factory=list[_Zone])
    _events: list[Activity] = field(default_factory=list[Activity])
    _last: tuple[datetime, int] | None = None
    _groups: dict[int, GroupView] = field(default_factory=dict[int, GroupView])
    """By place, as seen last: most are the same at the next look."""
    _waiting: bool = False
    """The last look missed spot that no zone gives."""
    _each_tick: bool = False
    """What fades did so at each tick since the last look: without rests it would have been looked at each."""
    _seen: PoolView | None = None
    """By the last look."""
    _why: Reason | None = None
    """Why it asked for more when it last did."""
    _asks: Pauses | None = None
    """What is asked between that look and the next."""
    _known: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])
    """Of `Pauses`."""
    _members: dict[int, Member] = field(default_factory=dict[int, Member])
    """By number, the same."""
    _ended: deque[datetime] = field(default_factory=deque[datetime])
    """Ends of the last hour: all of them are its own choice here."""

    def decide(self, state: State) -> Wishes:
        now = EPOCH + timedelta(seconds=state.now)
        self._remember(state, now)
        while self._ended and now - self._ended[0] > HOUR:
            self._ended.popleft()
        before, view = self._seen, self._view(state, now)
        self._seen = view
        if before is not None and (launch := self._other_zones(state, before, view, now)):
            return Wishes(launch=launch, in_turn=self._in_turn(state, view, launch))
        plan = decide([view], now)
        acting = plan.acting
        launch: list[int] = []
        for decision in acting:
            if decision.action is Action.RESIZE:
                launch += self._resize(state, decision)
                self._why = decision.reason
        if launch:
            return Wishes(launch=launch, in_turn=self._in_turn(state, view, launch))
        ends = [int(d.resource) for d in acting if d.action is Action.END]
        if not ends and any(decision.reason in _FULL for decision in plan.decisions):
            return Wishes()  # there is room again when the hour of an end is over
        if not ends:
            return self._rest(state, view)
        self._ended += [now] * len(ends)
        for machine in (m for m in state.machines if m.number in ends):
            self._event(_name_of(state.zones, machine.place), ActivityKind.ENDED, now, machine)
        return Wishes(end=ends)

    def _other_zones(self, state: State, before: PoolView, view: PoolView, now: datetime) -> list[int]:
        """What it asks of other zones for the same reason when zones have just refused all that it asked for.

        Nothing else has changed, so `decide` would say the same of all but the zones. Empty: it has to be asked.
        """
        if not state.refused or len(view.members) > len(before.members):
            return []
        asked = {state.zones[place] for place in state.refused}
        view.closed.update((key, found) for key, found in before.closed.items() if key[0] not in asked)
        asks, why = spot_asks(view, Sizes(view, now, 0), now)
        if why is not self._why:
            return []
        return [place for place, zone in enumerate(state.zones) for _ in range(asks.get(zone, 0))]

    def _in_turn(self, state: State, view: PoolView, launch: Sequence[int]) -> Sequence[int]:
        """A pool that misses spot asks every open zone before anything else; not so one that has enough of it."""
        spot = sum(m.place != ON_DEMAND for m in state.machines)
        if ON_DEMAND in launch or spot >= state.terms.target + state.terms.spare:
            return ()
        now = EPOCH + timedelta(seconds=state.now)
        return [state.zones.index(group.name) for group in zones.untried(view, now)]

    def _rest(self, state: State, view: PoolView) -> Wishes:
        """A look wanted nothing: the next is due when zones may be tried again, and when a calm pool's boot is over.

        Where all might have been tried and none was, all that could change is what fades, unless an instance is lost
        or prices cross the ceiling. While on-demand stands in for spot that is there, each tick is looked at where a
        zone might be asked for one more. A pool that waits for spot asks on: what is refused changes nothing but when
        it asks next.
        """
        now = EPOCH + timedelta(seconds=state.now)
        spot = sum(m.place != ON_DEMAND for m in state.machines)
        self._waiting = spot < state.terms.target + state.terms.spare
        stands_in = spot < len(state.machines)
        self._each_tick = self._waiting or stands_in
        if self._waiting and self.policy.zone_backoff > LOOK_BACK:
            return Wishes()  # refusals are out of sight before they are forgotten
        if self._waiting:
            if not self._surge_is_full(state, spot):
                self._asks = self._pauses(view, now)
            over = self._held(view, now)
        elif stands_in or len(state.zones) == 1:
            over = min(self._held(view, now), self._better(view, now))
        else:
            calm = not self._events or now - self._events[-1].at >= TRY_AGAIN
            boots = [m.launched + state.terms.cold_start for m in state.machines if not state.ready(m)]
            over = min((state.now + (FADES_IN if calm else TRY_AGAIN).total_seconds(), *boots))
        return Wishes(rest_until=over, ceiling=self._ceiling(state), asks=self._asks)

    def _surge_is_full(self, state: State, spot: int) -> bool:
        """Whether what stands in leaves no room for more spot beside it, so that no zone is asked."""
        most = state.terms.target + state.terms.spare + surge(self.policy)
        return spot < len(state.machines) >= most

    def _pauses(self, view: PoolView, now: datetime) -> Pauses:
        """Of a pool that misses spot, and was refused by each zone that is not too dear."""
        refused = {
            place: zones.refusals(view, group, now)
            for place, group in enumerate(view.groups_of(CapacityType.SPOT))
            if not zones.too_dear(view, group)
        }
        return Pauses(backoff=self.policy.zone_backoff, now=now, refused=refused, known=self._known)

    def _held(self, view: PoolView, now: datetime) -> float:
        """When something has been ready for the hold, so that on-demand may go back.

        No other word of `decide` depends on the time then, but for zones that are asked.
        """
        held = {(m.ready_since or m.launched_at + view.boot_expected) + self.policy.hold for m in view.members}
        soonest = min((moment for moment in held if moment > now), default=None)
        return inf if soonest is None else (soonest - EPOCH).total_seconds() - CLOCKS

    def _better(self, view: PoolView, now: datetime) -> float:
        """When another zone might be asked for one more than target and spare; where one may already: now."""
        held, most = zones.counts(view), zones.share(view)
        if view.spare == 0:
            return inf
        if sum(held.values()) > view.target + view.spare:
            return float("-inf")
        soonest = inf
        for group in view.groups_of(CapacityType.SPOT):
            if held[group.name] >= most or zones.too_dear(view, group):
                continue
            refused = [event.at for event in view.events_of(group.name) if event.kind in zones.REFUSALS]
            if not refused:
                return float("-inf")
            opens = zones.pause_ends(zones.refusals(view, group, now), self.policy.zone_backoff, now)
            soonest = min(soonest, (max(refused[-1] + TRY_AGAIN, opens) - EPOCH).total_seconds() - CLOCKS)
        return soonest

    def _ceiling(self, state: State) -> float:
        """As `decide` reckons it, in the history's unit."""
        usual = Decimal(repr(state.terms.on_demand_price))
        return float(min(usual, usual * self.policy.price_ceiling))

    def _resize(self, state: State, decision: Decision) -> list[int]:
        size = decision.to_size or 0
        place = ON_DEMAND if decision.resource == ON_DEMAND_GROUP else state.zones.index(decision.resource)
        return [place] * max(0, size - sum(m.place == place for m in state.machines))

    def _remember(self, state: State, now: datetime) -> None:
        """Fades what is known of each zone, and writes down what happened since the last look."""
        if not self._zones:
            self._zones = [_Zone(memory=Memory(at=now)) for _ in state.zones]
        if self._last is None or self._last[0] < now:
            # what is older than this has no say any more (`zones`), and ten million rows have many refusals
            span = min(LOOK_BACK, max(TRY_AGAIN, self.policy.zone_backoff))
            self._take(state, now - span)
            lost = {m.place for m in state.lost}
            present = {m.place for m in state.machines} | lost
            steps = self._steps(state, now)
            for place, zone in enumerate(self._zones):
                zone.memory = zone.memory.stepped(steps, now, present=place in present)
                if place in lost:
                    zone.memory = zone.memory.lost()
            young = zones.YOUNG_SPAN + timedelta(seconds=state.terms.cold_start)
            lives = min(LOOK_BACK, max(span, young))
            self._events = [e for e in self._events if now - e.at < (lives if e.kind in _LIVES else span)]
        for machine in state.lost:
            self._event(state.zones[machine.place], ActivityKind.PREEMPTED, now, machine)
        # what it refused at one time is one refusal, however many were asked for
        for place in dict.fromkeys(state.refused):
            self._zones[place].memory = self._zones[place].memory.refused()
            self._event(state.zones[place], ActivityKind.NO_CAPACITY, now, None)
        newest = max((m.number for m in state.machines), default=0)
        known = 0 if self._last is None else self._last[1]
        for machine in state.machines:
            if machine.number > known:
                self._event(_name_of(state.zones, machine.place), ActivityKind.LAUNCHED, now, machine)
        self._last = (now, max(known, newest))

    def _take(self, state: State, since: datetime) -> None:
        """Writes down what was refused since the last look: all after `since`, and when each zone did last."""
        if self._asks is None:
            return
        for place, at in self._asks.told(since):
            self._event(state.zones[place], ActivityKind.NO_CAPACITY, at, None)
        for place, at in self._asks.last().items():
            zone = self._zones[place]
            zone.memory = replace(zone.memory, failed_at=at)
        self._asks = None

    def _steps(self, state: State, now: datetime) -> list[tuple[float, float]]:
        """Since the last look."""
        if self._last is None:
            return []
        passed = [EPOCH + timedelta(seconds=at) for at in state.passed] if self._each_tick else []
        moments = [self._last[0], *passed, now]
        return [step(start, end) for start, end in pairwise(moments)]

    def _event(self, group: str, kind: ActivityKind, now: datetime, machine: Machine | None) -> None:
        number = None if machine is None else str(machine.number)
        self._events.append(
            Activity(id=f"{group}-{number}-{len(self._events)}", group=group, kind=kind, at=now, instance_id=number)
        )

    def _view(self, state: State, now: datetime) -> PoolView:
        terms = state.terms
        members = self._members = {m.number: self._member(state, m) for m in state.machines}
        count: dict[int, int] = {}
        for machine in state.machines:
            count[machine.place] = count.get(machine.place, 0) + 1
        groups = [self._group(state, place, count.get(place, 0)) for place in range(len(state.zones))]
        groups.append(
            GroupView(
                name=ON_DEMAND_GROUP,
                capacity_type=CapacityType.ON_DEMAND,
                zone=None,
                desired=count.get(ON_DEMAND, 0),
                max=MOST,
            )
        )
        return PoolView(
            name="replay",
            target=terms.target,
            spare=terms.spare,
            max=MOST,
            policy=self.policy,
            groups=groups,
            members=list(members.values()),
            events=self._events,
            pass_started=now,
            on_demand_usd=Decimal(repr(terms.on_demand_price)),
            boot_expected=timedelta(seconds=terms.cold_start),
            ended_this_hour=len(self._ended),
        )

    def _group(self, state: State, place: int, desired: int) -> GroupView:
        losses = self._zones[place].memory.losses_per_hour
        price = _price(state, place)
        seen = self._groups.get(place)
        if seen is None or seen.usd_per_hour is None or float(seen.usd_per_hour) != price:
            usd = Decimal(repr(price))
        elif seen.desired == desired and seen.losses_per_hour == losses:
            return seen
        else:
            usd = seen.usd_per_hour
        zone = state.zones[place]
        self._groups[place] = found = GroupView(
            name=zone,
            capacity_type=CapacityType.SPOT,
            zone=zone,
            desired=desired,
            max=MOST,
            usd_per_hour=usd,
            losses_per_hour=losses,
        )
        return found

    def _member(self, state: State, machine: Machine) -> Member:
        seen = self._members.get(machine.number)
        if seen is not None and (seen.ready_since is not None or not state.ready(machine)):
            return seen
        launched = EPOCH + timedelta(seconds=machine.launched)
        ready = launched + timedelta(seconds=state.terms.cold_start) if state.ready(machine) else None
        group = _name_of(state.zones, machine.place)
        return Member(id=str(machine.number), group=group, launched_at=launched, ready_since=ready)


def _name_of(zones: Sequence[str], place: int) -> str:
    return ON_DEMAND_GROUP if place == ON_DEMAND else zones[place]


@dataclass(slots=True)
class SkyServeRule:
    """SkyServe's rule (SpotHedge, arXiv 2411.01438).

    Spot up to target and spare; on-demand for all spot that is not ready, dropped the moment spot is. Zones are
    active until they refuse or preempt, and all are active again when fewer than two are.
    """

    name: str = "skyserve"
    _active: set[int] = field(default_factory=set[int])
    _refused: set[int] = field(default_factory=set[int])
    _now: float = float("-inf")

    def decide(self, state: State) -> Wishes:
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
            return Wishes(launch=(place,))
        if len(spot) > wanted:
            return Wishes(end=[max(spot, key=lambda m: m.number).number])
        stand_in = min(state.terms.target, max(0, wanted - sum(state.ready(m) for m in spot)))
        if len(bought) < stand_in:
            return Wishes(launch=[ON_DEMAND] * (stand_in - len(bought)))
        surplus = sorted(bought, key=lambda m: (state.ready(m), -m.number))[: len(bought) - stand_in]
        return Wishes(end=[m.number for m in surplus])

    def _choose(self, state: State, spot: Sequence[Machine]) -> int | None:
        """An active zone that is not in use, else any active one; none twice in a tick after it refused."""
        able = [place for place in sorted(self._active) if place not in self._refused]
        used = {place: sum(m.place == place for m in spot) for place in able}
        return min(able, key=lambda place: (used[place], _price(state, place), place), default=None)


def _price(state: State, place: int) -> float:
    price = state.terms.spot_price if state.prices is None else state.prices[place]
    return state.terms.spot_price if isnan(price) else price


def rule(name: str, policy: SpotPolicy) -> OwnRule | SkyServeRule:
    """A rule by its name, one of `NAMES`."""
    return OwnRule(policy=policy) if name == "own" else SkyServeRule()
