"""Ceilings over whole passes in generated markets: zones that give, refuse or are silent, boots that hang or fail,
engines that crash, instances that are taken with and without a notice.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpufleet.domain.decisions import Reason, Target
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType, Instance, Phase
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.document.money import Budget, Unpriced
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet
from tests.fixtures.watchdogs.plain import READY, FakePrices, document
from watchdogs.policy import digests
from watchdogs.ports import Ports
from watchdogs.spot.watchdog import SpotWatchdog

A, B, OD = "batch-spot-a", "batch-spot-b", "batch-od"
MAX, SPARE, SURGE, STARTS, USD = 3, 1, 1, 5, Decimal("2.6")
CEILING = MAX + SPARE + SURGE
HOUR = timedelta(hours=1)


@dataclass
class SomePrices(FakePrices):
    """Prices of which some are not known."""

    unknown: set[str] = field(default_factory=set[str])
    """Instances, and groups of machines that are not there yet."""

    def usd_per_hour(self, instance: Instance) -> Decimal | None:
        return None if instance.id in self.unknown else super().usd_per_hour(instance)

    def list_usd_per_hour(self, machine_type: str, capacity_type: CapacityType, zone: str | None) -> Decimal | None:
        if zone in self.unknown or capacity_type in self.unknown:
            return None
        return super().list_usd_per_hour(machine_type, capacity_type, zone)


@dataclass
class Market(FakeFleet):
    """It holds each growth against the ceilings, at the moment at which a group is asked for it."""

    silent: set[str] = field(default_factory=set[str])
    starts: list[datetime] = field(default_factory=list[datetime])
    limit: Decimal | None = None
    unpriced: Unpriced = Unpriced.WARN
    prices: SomePrices = field(default_factory=SomePrices)
    starts_limit: int | None = None
    grown: int = 0
    before_resize: dict[str, int] = field(default_factory=dict[str, int])

    def ports(self) -> Ports:
        return replace(super().ports(), prices=self.prices)

    def reconcile(self, name: str) -> None:
        group = self.groups[name]
        if group.desired > self.before_resize.get(name, group.desired):
            self.grown += 1
            self._hold_against_ceilings(name)
        self.before_resize[name] = group.desired
        launched = self.launched
        if name not in self.silent:
            super().reconcile(name)
        self.starts += [self.now] * (self.launched - launched)

    def _hold_against_ceilings(self, grows: str) -> None:
        alive = {name: self.alive(name) for name in self.groups}
        asked = {name: max(0, group.desired - len(alive[name])) for name, group in self.groups.items()}
        leaving = sum(self.agents[key].draining for keys in alive.values() for key in keys if key in self.agents)
        in_all = sum(map(len, alive.values())) + sum(asked.values())
        assert in_all - leaving <= CEILING, "instances"
        assert in_all <= MAX + CEILING, "instances with those that leave"
        if self.starts_limit is not None:
            started = sum(self.now - at < HOUR for at in self.starts)
            assert started + sum(asked.values()) <= self.starts_limit, "starts"
        if self.limit is not None:
            found = [self.prices.usd_per_hour(i) for i in self.instances.values() if i.alive]
            usd = {name: self._usd(name) for name in self.groups}
            known = sum((price for price in found if price is not None), Decimal(0))
            known += sum((asked[name] * price for name, price in usd.items() if price is not None), Decimal(0))
            assert known <= self.limit or usd[grows] is None, "USD per hour"
            if self.unpriced is Unpriced.STOP:
                assert None not in found and usd[grows] is not None, "a price is unknown"

    def _usd(self, name: str) -> Decimal | None:
        group = self.groups[name]
        return self.prices.list_usd_per_hour("g6.xlarge", group.capacity_type, group.zone)


def happens(fake: Market, what: str, number: int) -> None:
    """One thing, to one instance or one group."""
    names = [A, B, OD]
    alive = sorted(key for key, one in fake.instances.items() if one.alive)
    key = alive[number % len(alive)] if alive else None
    status = fake.agents.get(key or "")
    match what:
        case "gives":
            fake.capacity[names[number % 3]] = number
            fake.silent.discard(names[number % 3])
        case "silent":
            fake.silent.add(names[number % 3])
        case "all boot":
            fake.boot()
        case "lost" if key is not None:
            fake.lose(key)
        case "notice" if key is not None:
            taken = replace(READY, phase=Phase.DRAINING, ready=False, draining=True, notice_at=fake.now)
            fake.agents[key] = replace(taken, drain_by=DrainOwner.CLOUD, phase_since=fake.now)
        case "fails" if key is not None and status is not None:
            fake.agents[key] = replace(READY, phase=Phase.FAILED, ready=False, phase_since=fake.now)
        case "price unknown" | "prices known":
            names = ["us-east-1a", "us-east-1b", CapacityType.ON_DEMAND]
            fake.prices.unknown = {names[number % 3], *alive[:1]} if what == "price unknown" else set()
        case "hangs" if key is not None:
            fake.agents.pop(key, None)
        case "target":
            row = fake.targets["batch"]
            fake.targets["batch"] = replace(row, value=number % (MAX + 1), version=row.version + 1)
        case _:
            pass


HAPPENINGS = st.tuples(
    st.sampled_from(["gives", "gives", "silent", "all boot", "lost", "notice", "notice", "fails", "hangs", "target"]),
    st.integers(0, 9),
)
PRICES = st.tuples(st.sampled_from(["price unknown", "prices known"]), st.integers(0, 9))
SECONDS = st.sampled_from([30, 60, 300, 1200, 3300])
STEPS = st.lists(st.tuples(st.lists(HAPPENINGS, max_size=5), SECONDS), min_size=3, max_size=8)
PRICED_STEPS = st.lists(st.tuples(st.lists(HAPPENINGS | PRICES, max_size=5), SECONDS), min_size=3, max_size=8)


def played(
    steps: list[tuple[list[tuple[str, int]], int]],
    starts: int | None,
    usd: Decimal | None,
    unpriced: Unpriced = Unpriced.WARN,
) -> Market:
    """A pool that begins with all that is wanted, through one market."""
    small = idle_fleet(2)
    fake = Market(
        instances=small.instances,
        groups=small.groups,
        agents=small.agents,
        limit=usd,
        unpriced=unpriced,
        starts_limit=starts,
    )
    fake.targets["batch"] = Target(pool="batch", value=MAX, version=1)
    fake.capacity = {A: 9, B: 9, OD: 9}
    fake.before_resize = {name: group.desired for name, group in fake.groups.items()}
    fleet = _fleet(starts, usd, unpriced)
    fake.seen.add(("spot", "batch", digests(fleet, "spot")["batch"]))
    watchdog = SpotWatchdog(fleet, fake.ports())
    for happenings, seconds in steps:
        for what, number in happenings:
            happens(fake, what, number)
        watchdog.apply()
        for group in list(fake.groups):
            fake.before_resize[group] = fake.groups[group].desired
        fake.now += timedelta(seconds=seconds)
    return fake


def _fleet(starts: int | None, usd: Decimal | None, unpriced: Unpriced) -> FleetDocument:
    spot: dict[str, object] = {"fallback_after": "20s", "max_surge": SURGE, "max_starts_per_hour": starts or 1000}
    kinds = {A: (CapacityType.SPOT, "us-east-1a"), B: (CapacityType.SPOT, "us-east-1b"), OD: ("on-demand", None)}
    groups = [
        {"type": kind, "zone": zone, "name": name, "max": 12, "machine_types": ["g6.xlarge"]}
        for name, (kind, zone) in kinds.items()
    ]
    fleet = document(groups=groups, target=MAX, max=MAX, spare=SPARE, watchdogs={"spot": spot})
    budget = Budget(
        usd_per_month=Decimal(9999),
        usd_per_hour_at_max=Decimal(99),
        stop_growth_at_usd_per_hour=usd,
        unpriced=unpriced,
    )
    return fleet.model_copy(update={"budget": budget})


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_passes_keep_the_instance_ceiling_of_a_pool(steps: list[tuple[list[tuple[str, int]], int]]) -> None:
    played(steps, None, None)


@given(STEPS)
@example([([], 30), ([("lost", 0), ("lost", 3)], 30), ([("lost", 1)], 30)])  # one is gone before a look sees it
@settings(max_examples=60, deadline=None)
def test_passes_keep_the_hourly_start_ceiling(steps: list[tuple[list[tuple[str, int]], int]]) -> None:
    played(steps, STARTS, None)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_passes_keep_the_spend_ceiling_of_a_fleet(steps: list[tuple[list[tuple[str, int]], int]]) -> None:
    played(steps, None, USD)


@pytest.mark.parametrize("unpriced", list(Unpriced))
@given(steps=PRICED_STEPS)
@settings(max_examples=60, deadline=None)
def test_passes_keep_the_spend_ceiling_with_unknown_prices(
    unpriced: Unpriced, steps: list[tuple[list[tuple[str, int]], int]]
) -> None:
    played(steps, None, USD, unpriced)


@pytest.mark.parametrize(
    ("prices", "unpriced", "usd", "grows"),
    [
        pytest.param("price unknown", Unpriced.WARN, USD, True, id="a price is unknown, and warns"),
        pytest.param("price unknown", Unpriced.STOP, USD, False, id="a price is unknown, and stops"),
        pytest.param("price unknown", Unpriced.STOP, None, True, id="a price is unknown, and there is no limit"),
        pytest.param("prices known", Unpriced.STOP, USD, True, id="all are priced"),
        pytest.param("prices known", Unpriced.WARN, Decimal("0.3"), False, id="it costs as much as it may"),
    ],
)
def test_loss_is_replaced_within_the_spend_ceiling(
    prices: str, unpriced: Unpriced, usd: Decimal | None, *, grows: bool
) -> None:
    fake = played([([(prices, 0), ("lost", 1)], 30), ([], 30)], None, usd, unpriced)
    assert bool(fake.grown) is grows
    last = [decision.reason for decision in fake.plans[-1].decisions]
    assert (Reason.SPEND_CEILING in last) is not grows
