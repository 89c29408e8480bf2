"""What zones' pasts say, and where instances go because of it."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from gpufleet.domain.activity import Activity, ActivityKind
from watchdogs.spot import risk
from watchdogs.spot.risk import (
    HALF_LIFE,
    PRIOR_HOURS,
    PRIOR_LOSSES,
    SAME_LOSS,
    TROUBLE,
    TROUBLE_HALF_LIFE,
    ZonePlacement,
    recall,
)

T0 = datetime(2026, 11, 21, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)


def event(kind: ActivityKind, hours: float) -> Activity:
    return Activity(id=f"{kind}-{hours}", group="g", kind=kind, at=T0 + hours * HOUR)


def test_a_zone_without_history_has_the_prior() -> None:
    assert recall([], [], T0).losses_per_hour == PRIOR_LOSSES / PRIOR_HOURS


def test_instance_hours_lower_the_rate_and_losses_raise_it() -> None:
    quiet = recall([event(ActivityKind.LAUNCHED, 0)], [T0], T0 + 10 * HOUR)
    lossy = recall(  # two losses in ten hours
        [event(kind, at) for at in (0, 5) for kind in (ActivityKind.LAUNCHED, ActivityKind.PREEMPTED)],
        [],
        T0 + 10 * HOUR,
    )
    assert quiet.losses_per_hour < PRIOR_LOSSES / PRIOR_HOURS < lossy.losses_per_hour


def test_simultaneous_losses_count_as_one() -> None:
    launched = [event(ActivityKind.LAUNCHED, 0)] * 3
    together = [event(ActivityKind.PREEMPTED, 5 + n * 0.25 * SAME_LOSS / HOUR) for n in range(3)]
    apart = [event(ActivityKind.PREEMPTED, 5 + n * 2 * SAME_LOSS / HOUR) for n in range(3)]
    now = T0 + 6 * HOUR
    assert recall([*launched, *together], [], now).losses == pytest.approx(1, abs=0.1)
    assert recall([*launched, *apart], [], now).losses == pytest.approx(3, abs=0.2)


def test_weight_of_past_losses_decays() -> None:
    lost = recall([event(ActivityKind.LAUNCHED, 0), event(ActivityKind.PREEMPTED, 1)], [], T0 + HOUR)
    assert lost.passed(T0 + HOUR + HALF_LIFE, present=False).losses == pytest.approx(lost.losses / 2)


@pytest.mark.parametrize("kind", [ActivityKind.PREEMPTED, ActivityKind.ENDED_UNSTATED, ActivityKind.NO_CAPACITY])
def test_zone_with_a_recent_failure_is_avoided_for_a_while(kind: ActivityKind) -> None:
    failed = recall([event(ActivityKind.LAUNCHED, 0), event(kind, 1)], [], T0 + HOUR)
    usual = (failed.losses + PRIOR_LOSSES) / (failed.hours + PRIOR_HOURS)
    assert failed.losses_per_hour == pytest.approx((1 + TROUBLE) * usual)
    # time without instances does not change the average, and the increase decays
    later = failed.passed(T0 + HOUR + TROUBLE_HALF_LIFE, present=False)
    still = (later.losses + PRIOR_LOSSES) / (later.hours + PRIOR_HOURS)
    assert later.losses_per_hour == pytest.approx((1 + TROUBLE / 2) * still)
    assert failed.passed(T0 + 100 * HOUR, present=True).losses_per_hour < PRIOR_LOSSES / PRIOR_HOURS


@pytest.mark.parametrize(
    "kind", [ActivityKind.QUOTA, ActivityKind.PRICE, ActivityKind.UNKNOWN, ActivityKind.ENDED_BY_PERSON]
)
def test_ends_not_caused_by_the_zone_do_not_raise_its_loss_rate(kind: ActivityKind) -> None:
    assert recall([event(kind, 0)], [], T0).losses_per_hour == PRIOR_LOSSES / PRIOR_HOURS


ALIKE = tuple(
    ZonePlacement(name=name, region=name[:-1], losses_per_hour=0.1) for name in ("r1a", "r1b", "r2a", "r3a")
)


def test_a_spare_covers_losses_of_one_but_not_of_two() -> None:
    apart = risk.risk(ALIKE, {"r1a": 1, "r2a": 1, "r3a": 1}, 2)
    heaped = risk.risk(ALIKE, {"r1a": 2, "r2a": 1}, 2)
    assert apart < heaped / 5


def test_zones_of_one_region_are_a_worse_spread_than_zones_of_two() -> None:
    near = risk.risk(ALIKE, {"r1a": 1, "r1b": 1, "r2a": 1}, 2)
    far = risk.risk(ALIKE, {"r1a": 1, "r2a": 1, "r3a": 1}, 2)
    assert far < near


def test_a_move_must_gain_more_than_it_costs() -> None:
    counts = {"r1a": 2, "r2a": 1}
    assert risk.best_move(ALIKE, counts, 2, ["r3a"], min_gain=0.01) == "r3a"
    assert risk.best_move(ALIKE, counts, 2, ["r3a"], min_gain=10) is None
    assert risk.best_move(ALIKE, counts, 2, [], min_gain=0.01) is None


def priced(**usd: str) -> tuple[ZonePlacement, ...]:
    """Zones of as many regions, alike but for their prices; those not named have none."""
    alike = tuple(ZonePlacement(name=name, region=name, losses_per_hour=0.1) for name in ("a", "b", "c"))
    return tuple(p._replace(usd_per_hour=Decimal(usd[p.name])) if p.name in usd else p for p in alike)


@pytest.mark.parametrize(
    ("usd", "most_expensive"),
    [
        pytest.param({"a": "0.3", "b": "0.2", "c": "0.2"}, "a", id="the first"),
        pytest.param({"a": "0.2", "b": "0.3", "c": "0.2"}, "b", id="the second"),
        pytest.param({"a": "0.2", "b": "0.2", "c": "0.3"}, "c", id="the last"),
        pytest.param({"a": "0.2", "b": "0.2", "c": "0.2"}, "a", id="all alike, by name"),
        pytest.param({"a": "0.2", "c": "0.9"}, "b", id="one of unknown price"),
    ],
)
def test_most_expensive_of_equal_zones_loses_an_instance(usd: dict[str, str], most_expensive: str) -> None:
    places = priced(**usd)
    for order in (places, places[::-1]):
        assert risk.best_removal(order, {"a": 1, "b": 1, "c": 1}, 2) == most_expensive


@pytest.mark.parametrize(
    ("usd", "cheapest"),
    [
        pytest.param({"a": "0.9", "b": "0.2", "c": "0.3"}, "b", id="the first of those free"),
        pytest.param({"a": "0.9", "b": "0.3", "c": "0.2"}, "c", id="the last"),
        pytest.param({"a": "0.9", "b": "0.2", "c": "0.2"}, "b", id="both alike, by name"),
        pytest.param({"a": "0.9", "c": "0.9"}, "c", id="one of unknown price"),
    ],
)
def test_a_move_is_to_the_cheapest_of_equal_zones(usd: dict[str, str], cheapest: str) -> None:
    for reachable in (["b", "c"], ["c", "b"]):
        assert risk.best_move(priced(**usd), {"a": 2}, 1, reachable, min_gain=0.01) == cheapest


@pytest.mark.parametrize(("zone", "region"), [("us-east-1a", "us-east-1"), ("us-central1-b", "us-central1")])
def test_the_region_of_a_zone(zone: str, region: str) -> None:
    assert risk.region_of(zone) == region
