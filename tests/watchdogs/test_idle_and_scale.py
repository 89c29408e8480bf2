"""The idle watchdog ends nothing that the scale watchdog would ask for again, and still ends what nobody needs."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpufleet.domain import tags
from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.model import Phase
from gpufleet.domain.policies import IdlePolicy, ScalePolicy, ScheduleRule
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet, mark
from tests.fixtures.watchdogs.plain import QUIET, QUIET_ENGINE, READY, START, document, instance
from watchdogs import budgets
from watchdogs.idle import decide as idle
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests
from watchdogs.scale import decide as scale
from watchdogs.scale.hours import floor
from watchdogs.scale.view import Demand, Need, Pressure, ScalePoolView

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
BUSY = replace(QUIET, engine=replace(QUIET_ENGINE, running_max=3.0))
SCALE = ScalePolicy(requests_per_replica=8)
BOOT = timedelta(minutes=6)


@dataclass
class Pool:
    """A pool with both watchdogs and a spot market that has all that is asked for."""

    target: int
    now: datetime
    min: int = 1
    max: int = 6
    policy: IdlePolicy = field(default_factory=IdlePolicy)
    launched: dict[int, datetime] = field(default_factory=dict[int, datetime])
    marked: dict[int, datetime] = field(default_factory=dict[int, datetime])
    ends: list[tuple[datetime, int]] = field(default_factory=list[tuple[datetime, int]])
    """When, and the target before."""
    raises: list[tuple[datetime, int]] = field(default_factory=list[tuple[datetime, int]])
    """When, and the target afterwards."""
    reasons: set[Reason] = field(default_factory=set[Reason])

    def __post_init__(self) -> None:
        self.launched = dict.fromkeys(range(1, self.target + 1), self.now - timedelta(hours=5))

    def run_idle(self, needed: Need | None, busy: int) -> None:
        """A pass of the idle watchdog; the `busy` oldest instances had work in the window."""
        members = [
            instance(
                n, launched_at=at, tags={tags.IDLE_SINCE: tags.write_time(self.marked[n])} if n in self.marked else {}
            )
            for n, at in sorted(self.launched.items())
        ]
        agents = {
            one.id: READY if self.now - one.launched_at >= BOOT else replace(READY, phase=Phase.CACHE, ready=False)
            for one in members
        }
        hour, day = ([at for at, _ in self.ends if self.now - at < span] for span in (HOUR, 24 * HOUR))
        view = idle.IdlePoolView(
            name="batch",
            policy=self.policy,
            floor=self.min,
            target=self.target,
            needed=needed,
            ended_this_hour=len(hour),
            left_today=2 * max(4, len(members)) - len(day),
        )
        seen = idle.IdleObservation(
            instances=members,
            evidence={one.id: BUSY if place < busy else QUIET for place, one in enumerate(members)},
            agents=agents,
            pools={"batch": view},
            budget=budgets.fleet_budget([budgets.pool_budget(self.policy)], len(members), len(hour)),
            gpus_expected={"g6.xlarge": 1},
            watts_rated={"g6.xlarge": 72.0},
        )
        numbers = {one.id: n for n, one in zip(sorted(self.launched), members, strict=True)}
        for decision in idle.decide(seen, self.now).decisions:
            self.reasons.add(decision.reason)
            self._carry_out(decision.action, numbers[decision.resource])

    def _carry_out(self, action: Action, number: int) -> None:
        if action is Action.MARK:
            self.marked[number] = self.now
        elif action is Action.UNMARK:
            del self.marked[number]
        elif action is Action.END:
            del self.launched[number]
            del self.marked[number]
            self.ends.append((self.now, self.target))
            self.target -= 1

    def view(self, demand: Demand, policy: ScalePolicy = SCALE) -> ScalePoolView:
        ready = sum(self.now - at >= BOOT for at in self.launched.values())
        pressure = Pressure(reporting=ready, coverage=1.0, kv_cache=0.0, kv_cache_peak=0.0)
        return ScalePoolView(
            name="batch",
            policy=policy,
            target=self.target,
            min=self.min,
            max=self.max,
            ready=ready,
            demand=demand,
            pressure=pressure if ready else None,
        )

    def run_scale(self, view: ScalePoolView) -> None:
        """A pass of the scale watchdog, and what the spot watchdog makes of its target."""
        (move,) = scale.decide([view], self.now).decisions
        if move.action is Action.RETARGET and move.to_size is not None:
            if move.to_size > self.target:
                self.raises.append((self.now, move.to_size))
            self.target = move.to_size
        for number in range(max(self.launched, default=0) + 1, 10_000):
            if len(self.launched) >= self.target:
                break
            self.launched[number] = self.now
        for number in sorted(self.launched, reverse=True):  # surplus
            if len(self.launched) <= self.target:
                break
            del self.launched[number]
            self.marked.pop(number, None)

    def undone(self) -> list[tuple[datetime, datetime]]:
        """Ends that a raise within the hour only replaced."""
        return [
            (ended, raised)
            for ended, before in self.ends
            for raised, after in self.raises
            if ended <= raised <= ended + HOUR and after >= before
        ]


QUIET_DAY = Demand(now=0.0, peak=0.0)


@pytest.mark.parametrize(
    ("demand", "left", "reason"),
    [
        pytest.param(Demand(now=0.5, peak=2.0), 3, Reason.LOAD_HIGH, id="what the last hour needed, and a spare"),
        pytest.param(Demand(now=0.0, peak=2.0), 3, Reason.LOAD_HIGH, id="the same, no work just now"),
        pytest.param(QUIET_DAY, 1, Reason.POOL_FLOOR, id="an unneeded pool"),
    ],
)
def test_idle_day_ends_only_instances_that_scale_does_not_need(demand: Demand, left: int, reason: Reason) -> None:
    pool = Pool(target=4, now=START)
    while pool.now < START + 24 * HOUR:
        pool.run_idle(scale.least(pool.view(demand), pool.now), busy=0)
        view = pool.view(demand)
        # scale itself would lower a target in its own steps; here idle alone does
        if (wanted := scale.decide([view], pool.now).decisions[0]).to_size is None or wanted.to_size > pool.target:
            pool.run_scale(view)
        pool.now += MINUTE
    assert pool.raises == []
    assert (pool.target, len(pool.launched), len(pool.ends)) == (left, left, 4 - left)
    assert scale.least(pool.view(demand), pool.now).reason is reason
    assert (Reason.NEEDED_SOON in pool.reasons) is (left > 1)


def test_no_instance_ends_without_a_known_need() -> None:
    pool = Pool(target=4, now=START)
    for _ in range(120):
        pool.run_idle(None, busy=0)
        pool.now += MINUTE
    assert pool.ends == [] and Reason.METRICS_MISSING in pool.reasons


def test_the_spare_stays_with_what_is_needed() -> None:
    need = Need(replicas=2, reason=Reason.LOAD_HIGH, detail="work")
    view = idle.IdlePoolView(name="batch", policy=IdlePolicy(), floor=0, target=4, needed=need, spare=1)
    assert view.end_objection(4, 4, 0) is None
    why = view.end_objection(3, 3, 0)
    assert why is not None and why.reason is Reason.NEEDED_SOON and "2 and 1 spare (work)" in why.detail
    assert replace(view, needed=replace(need, replicas=0)).end_objection(1, 1, 0) is None, "no need, no spare"


def test_a_peak_that_may_come_back_is_needed_and_never_more_than_the_pool_may_have() -> None:
    pool = Pool(target=4, now=START)
    demand = Demand(now=0.1, peak=2.0)
    assert scale.least(pool.view(demand), START).replicas == 3
    busy = replace(pool.view(demand), pressure=Pressure(reporting=4, kv_cache=0.3, kv_cache_peak=0.7))
    assert scale.least(busy, START) == Need(
        replicas=4,
        reason=Reason.LOAD_NEEDS_ALL,
        detail="KV cache used: 0.7 now, 0.933 with 3 replicas, the limit is 0.8",
    )
    assert scale.least(pool.view(replace(demand, peak=40.0)), START).replicas == pool.max
    assert scale.least(replace(pool.view(QUIET_DAY), pressure=None, demand=None), START).replicas == pool.min


# days of generated load

MONDAY = datetime(2026, 11, 9, tzinfo=UTC)
HOLIDAY = 9
"""Wednesday of the second week."""
DAYS = 14
STEP = 3
"""Minutes between two passes."""
OFFICE = ScheduleRule(days=("mon", "tue", "wed", "thu", "fri"), start="08:30", end="17:00", target=3)


def office_load(seed: int) -> list[float]:
    """Replicas' worth of work by the minute: office hours, and none at night, at week-ends and on a holiday."""
    chance = random.Random(seed)
    found: list[float] = []
    for day in range(DAYS):
        for minute in range(1440):
            shape = math.sin(math.pi * (minute - 480) / 600) if 480 <= minute < 1080 else 0.0
            works = day % 7 < 5 and day != HOLIDAY
            found.append(4 * shape * chance.uniform(0.9, 1.1) if works and shape > 0 else 0.0)
    return found


def demand_of(load: list[float], minute: int) -> Demand:
    """What the store says of it."""
    span = SCALE.down_after // MINUTE
    return Demand(
        now=max(load[max(0, minute - 2) : minute + 1]),
        peak=max(load[max(0, minute - span) : minute + 1]),
    )


def two_weeks(seed: int, policy: ScalePolicy, *, asks: bool, lowers: bool = False) -> Pool:
    """The second of two weeks and the week-end before it. `lowers`: whether scale may lower targets, too."""
    load, first = office_load(seed), 4 * 1440
    pool = Pool(target=2, now=MONDAY + first * MINUTE)
    for minute in range(first, DAYS * 1440, STEP):
        pool.now = MONDAY + minute * MINUTE
        need = None if asks else idle.UNSCALED
        if asks and any(pool.now - since >= pool.policy.grace for since in pool.marked.values()):
            soon = scale.least(pool.view(demand_of(load, minute), policy), pool.now)
            hours = max(floor(policy.schedule, pool.now + ahead * MINUTE) for ahead in range(60))
            need = replace(soon, replicas=max(soon.replicas, hours))
        pool.run_idle(need, busy=math.ceil(max(load[minute - 30 : minute + 1])))
        pool.run_scale(replace(pool.view(demand_of(load, minute), policy), policy_seen=lowers))
    return pool


@pytest.mark.parametrize(
    ("seed", "schedule", "lowers"),
    [
        pytest.param(0, (), False, id="by load"),
        pytest.param(1, (OFFICE,), False, id="with office hours"),
        pytest.param(2, (), True, id="scale lowers targets, too"),
    ],
)
def test_ended_instances_are_not_replaced_within_an_hour(
    seed: int, schedule: tuple[ScheduleRule, ...], lowers: bool
) -> None:
    pool = two_weeks(seed, replace(SCALE, schedule=schedule), asks=True, lowers=lowers)
    assert pool.undone() == []
    assert pool.target == len(pool.launched) == pool.min, "the last night"
    assert lowers or len(pool.ends) > 10, "no other watchdog lowered the target"


def test_ends_would_be_replaced_without_the_need_of_scale() -> None:
    """The simulation above would see it."""
    assert two_weeks(0, SCALE, asks=False).undone()


# the whole watchdog

REPORTS = dict.fromkeys(("reporting", "reporting_in_flight"), 3.0) | dict.fromkeys(
    ("waiting", "running_peak", "waiting_peak", "kv_cache"), 0.0
)
NO_WORK = REPORTS | {"kv_cache_peak": 0.0, "requests": 0.0, "requests_peak": 0.0, "coverage": 1.0}


def at_rest(**load: float) -> FakeFleet:
    """Three marked instances at rest, each grace over, and what the store says of the load of their pool."""
    fake = idle_fleet(3)
    for number in (1, 2, 3):
        mark(fake, number, START - timedelta(hours=2))
    fake.load = [({"pool": "batch", "stat": name}, value) for name, value in (NO_WORK | load).items()]
    return fake


def passed(fake: FakeFleet, **changes: Any) -> Sequence[Decision]:
    entry = {"idle": {"max_stops_per_run": 9, "max_stops_per_hour": 9}, "scale": {"requests_per_replica": 8}}
    fleet = document(**{"watchdogs": entry} | changes)
    fake.seen.add(("idle", "batch", digests(fleet, "idle")["batch"]))
    return IdleWatchdog(fleet, fake.ports()).apply().plan.decisions


def test_the_load_of_the_last_hour_keeps_replicas_and_the_message_states_it() -> None:
    fake = at_rest(requests_peak=10.0)
    kept = [decision for decision in passed(fake) if decision.reason is Reason.NEEDED_SOON]
    assert len(fake.ended) == 1 and len(kept) == 2
    work = "work for 0.00 replicas, up to 1.25 within 60 min, 1.81 with a spare"
    detail = f"scale needs 2 ({work}), target 2, healthy 2"
    assert {decision.detail for decision in kept} == {detail}


def test_an_unneeded_pool_is_ended() -> None:
    fake = at_rest()
    passed(fake, min=1)
    assert len(fake.ended) == 2
