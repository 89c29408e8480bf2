"""Where spot is asked for by its price, and spot whose price, or whose on-demand price, nobody knows."""

from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

import pytest

from gpufleet.domain.decisions import Decision, Reason
from gpufleet.domain.model import CapacityType, Instance
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.plain import START, spot_pool
from tests.fixtures.watchdogs.spot import A, B, make_watchdog, sizes, spread_fleet
from watchdogs.spot import zones
from watchdogs.spot.pool_view import GroupView
from watchdogs.spot.watchdog import SpotWatchdog
from watchdogs.spot.zones import CEILING


@dataclass
class Prices:
    spot: str | None
    on_demand: str | None

    def usd_per_hour(self, instance: Instance) -> Decimal | None:
        return None

    def spot_usd_per_hour(self, machine_type: str, zone: str) -> Decimal | None:
        return None if self.spot is None else Decimal(self.spot)

    def on_demand_usd_per_hour(self, machine_type: str) -> Decimal | None:
        return None if self.on_demand is None else Decimal(self.on_demand)

    def list_usd_per_hour(self, machine_type: str, capacity_type: CapacityType, zone: str | None) -> Decimal | None:
        if capacity_type is CapacityType.SPOT:
            return self.spot_usd_per_hour(machine_type, zone or "")
        return self.on_demand_usd_per_hour(machine_type)


def at(fleet: FakeFleet, spot: str | None, on_demand: str | None) -> SpotWatchdog:
    """A watchdog whose policy was seen, and that knows these prices."""
    return SpotWatchdog(make_watchdog(fleet)._document, replace(fleet.ports(), prices=Prices(spot, on_demand)))


def growing(to: int) -> FakeFleet:
    """Two serve, two are wanted, and each zone has capacity."""
    fleet = spread_fleet()
    wants(fleet, to)
    return fleet


def wants(fleet: FakeFleet, target: int) -> None:
    fleet.targets["batch"] = replace(fleet.targets["batch"], value=target)
    fleet.capacity |= {A: 1, B: 1}


def first_asked(fleet: FakeFleet) -> Decision:
    return next(d for plan in fleet.plans for d in plan.acting if d.resource in (A, B))


@pytest.mark.parametrize(
    ("spot", "on_demand", "unknown"),
    [
        pytest.param("0.25", "0.80", None, id="both known"),
        pytest.param(None, "0.80", "its spot price is unknown", id="no spot price"),
        pytest.param("0.25", None, "the on-demand price is unknown", id="no on-demand price"),
        pytest.param(None, None, "its spot price is unknown", id="neither"),
    ],
)
def test_unpriced_spot_is_requested_and_notified_once(
    spot: str | None, on_demand: str | None, unknown: str | None
) -> None:
    fleet = growing(to=3)
    at(fleet, spot, on_demand).apply()
    assert sum(sizes(fleet)) == sum(sizes(fleet)[:2]) == 3
    asked = first_asked(fleet)
    assert asked.reason is Reason.SPOT_WANTED
    assert asked.evidence == ({} if unknown is None else {CEILING: f"not checked: {unknown}"})
    assert (unknown or "missing in the pool") in asked.detail
    assert (asked.usd_per_hour is None) is (spot is None)
    messages = [text for key, text in fleet.messages.items() if key.startswith("spot:unpriced:batch:")]
    assert len(messages) == (unknown is not None)
    if unknown is not None:
        assert unknown in messages[0] and asked.resource in messages[0]
    fleet.now += timedelta(minutes=5)
    wants(fleet, 4)
    at(fleet, spot, on_demand).apply()
    assert sum(sizes(fleet)[:2]) == 4
    assert len([key for key in fleet.messages if key.startswith("spot:unpriced:")]) == len(messages)


def test_a_known_price_at_the_ceiling_is_still_refused() -> None:
    fleet = growing(to=3)
    at(fleet, "0.80", "0.80").apply()
    assert sizes(fleet) == (1, 1, 1)


@pytest.mark.parametrize("cheapest", ["a", "b", "c"])
@pytest.mark.parametrize("spare", [0, 1])
def test_cheapest_of_equal_zones_is_requested(cheapest: str, spare: int) -> None:
    groups = [
        GroupView(
            name=name,
            capacity_type=CapacityType.SPOT,
            zone=f"us-east-1{name}",
            desired=0,
            max=9,
            usd_per_hour=Decimal("0.20" if name == cheapest else "0.30"),
        )
        for name in ("a", "b", "c")
    ]
    assert zones.allocate_requests(spot_pool(groups, [], spare=spare), 1, START) == {cheapest: 1}
