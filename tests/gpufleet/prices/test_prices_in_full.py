"""Expected prices written by hand, with every field: which is in force, its source, commitments and staleness."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.costs.commitments import Coverage, DeclaredCosts, SpendCommitment, shares
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Committed, Price, Rank
from gpufleet.ledger.facts import Run
from gpufleet.prices.book import (
    GCP_SPOT_STALE_AFTER,
    STALE_AFTER,
    MissingPriceError,
    PriceBook,
    PricedInterval,
    Sku,
    is_stale,
    machine_sku,
    parse_as_of,
)
from tests.fixtures.costs.overrides import override

T0 = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAME = "aws:ec2:g6.xlarge:on-demand"
SKU = Sku(name=NAME, region="us-east-1", zone="us-east-1a")


def price(usd: str, since: float = 0, rank: Rank = Rank.LIVE, **more: Any) -> Price:
    at = T0 + since * HOUR
    base = Price(
        sku=NAME, region="us-east-1", usd_per_hour=Decimal(usd), source="t", as_of=at, valid_from=at, rank=rank
    )
    return replace(base, **more)


def stated(usd: str, since: float, sku: str = NAME, **more: Any) -> Price:
    return override(sku, usd, T0 + since * HOUR, **more)


def test_parts_of_an_interval_are_cut_where_the_price_changes() -> None:
    first, same, third = price("1", 1), price("1", 2), price("3", 3)
    again = replace(same, valid_from=first.valid_from, as_of=first.as_of)
    book = PriceBook(region="us-east-1", observed=[third, first, again])
    plain = Sku(name=NAME, region="us-east-1")
    assert book.parts(plain, T0, T0 + 4 * HOUR) == [
        (None, T0, T0 + HOUR),
        (first, T0 + HOUR, T0 + 3 * HOUR),
        (third, T0 + 3 * HOUR, T0 + 4 * HOUR),
    ]
    assert book.over(SKU, T0 + HOUR, T0 + 4 * HOUR) == (
        PricedInterval(price=first, start=T0 + HOUR, end=T0 + 3 * HOUR),
        PricedInterval(price=third, start=T0 + 3 * HOUR, end=T0 + 4 * HOUR),
    )
    assert book.parts(plain, T0 + 3 * HOUR, T0 + 4 * HOUR) == [(third, T0 + 3 * HOUR, T0 + 4 * HOUR)]
    assert book.parts(plain, T0 + HOUR, T0 + 3 * HOUR) == [(first, T0 + HOUR, T0 + 3 * HOUR)]
    assert book.parts(plain, T0 + HOUR, T0 + HOUR) == []
    assert book.at(plain, T0 + HOUR) == first


def test_equal_price_stated_twice_is_one_part() -> None:
    book = PriceBook(region="us-east-1", observed=[price("1", 1)], overrides=[stated("1", 9)])
    found = book.parts(Sku(name=NAME, region="us-east-1"), T0 + 2 * HOUR, T0 + 8 * HOUR)
    assert [(one and one.rank, start, end) for one, start, end in found] == [
        (Rank.LIVE, T0 + 2 * HOUR, T0 + 8 * HOUR)
    ]


def test_missing_price_names_sku_place_and_time() -> None:
    book = PriceBook(region="us-east-1", observed=[price("1", 1)])
    with pytest.raises(MissingPriceError) as error:
        book.over(SKU, T0, T0 + 2 * HOUR)
    missing = error.value
    assert (missing.sku, missing.region, missing.zone, missing.at) == (NAME, "us-east-1", "us-east-1a", T0)
    assert str(missing).startswith(f"no price for {NAME} in us-east-1 (us-east-1a) at 2026-11-21T06:00:00Z: ")
    with pytest.raises(
        MissingPriceError, match=rf"^no price for {NAME} in us-east-1 at 2026-11-21T05:30:00Z"
    ) as error:
        book.at(replace(SKU, zone=None), (T0 - HOUR / 2).astimezone(timezone(2 * HOUR)))
    assert (error.value.zone, error.value.at) == (None, T0 - HOUR / 2)


def test_stated_price_keeps_all_its_fields() -> None:
    book = PriceBook(region="us-east-1", overrides=[stated("2", 5), stated("1", 3, unverified=True)])
    found = price("1", 3, Rank.OVERRIDE, unverified=True)
    assert book.at(SKU, T0 + 3 * HOUR) == found
    assert book.at(SKU, T0 + 5 * HOUR) == price("2", 5, Rank.OVERRIDE)
    note = "stated from 2026-11-21, used before that because no other price is known"
    ever = datetime(1970, 1, 1, tzinfo=UTC)
    assert book.at(SKU, T0) == replace(found, valid_from=ever, rank=Rank.OVERRIDE_BEFORE_ITS_DATE, note=note)
    live = PriceBook(region="us-east-1", overrides=[stated("1", 3)], observed=[price("7", 0)])
    assert [live.at(SKU, T0 + hour * HOUR).usd_per_hour for hour in (0, 2, 3)] == [7, 7, 1]


def test_price_of_a_zone_takes_precedence_over_that_of_its_region() -> None:
    here = f"{NAME}:us-east-1a"
    book = PriceBook(region="us-east-1", overrides=[stated("2", 0), stated("1", 0, here)])
    assert book.at(SKU, T0) == price("1", 0, Rank.OVERRIDE, zone="us-east-1a")
    assert book.at(replace(SKU, zone="us-east-1b"), T0) == price("2", 0, Rank.OVERRIDE)
    seen = PriceBook(region="us-east-1", observed=[price("2"), price("1", zone="us-east-1a")])
    assert [seen.at(replace(SKU, zone=zone), T0).usd_per_hour for zone in ("us-east-1a", "us-east-1b", None)] == [
        1, 2, 2,
    ]  # fmt: skip
    with pytest.raises(MissingPriceError):  # no price is stated for another region
        book.at(replace(SKU, region="us-west-2"), T0)


def test_reserved_capacity_has_its_own_price_or_the_on_demand_price() -> None:
    reserved = machine_sku(Cloud.AWS, "g6.xlarge", CapacityType.RESERVED)
    where = {"region": "us-east-1", "zone": "us-east-1a"}
    own = PriceBook(region="us-east-1", overrides=[stated("1", 0, reserved)])
    none = PriceBook(region="us-east-1", overrides=[stated("1", 0)])
    wanted = (Cloud.AWS, "g6.xlarge", CapacityType.RESERVED)
    assert own.machine(*wanted, **where) == replace(SKU, name=reserved)
    assert none.machine(*wanted, **where) == SKU
    assert machine_sku(Cloud.GCP, "g2", CapacityType.SPOT) == "gcp:compute:g2:spot"


@pytest.mark.parametrize(
    ("sku", "limit"),
    [
        pytest.param("aws:ec2:g6.xlarge:spot", STALE_AFTER[CapacityType.SPOT], id="AWS spot"),
        pytest.param("gcp:compute:g2:spot", GCP_SPOT_STALE_AFTER, id="Google spot"),
        pytest.param("gcp:compute:g2:on-demand", STALE_AFTER[CapacityType.ON_DEMAND], id="Google"),
        pytest.param("aws:vpc:nat-gateway", STALE_AFTER[CapacityType.ON_DEMAND], id="no capacity type"),
    ],
)
def test_maximum_age_of_a_price(sku: str, limit: timedelta) -> None:
    one = price("1", sku=sku)
    assert [is_stale(one, T0 + limit + timedelta(seconds=more)) for more in (-1, 0, 1)] == [False, False, True]
    for rank in (Rank.OVERRIDE, Rank.OVERRIDE_BEFORE_ITS_DATE):
        assert not is_stale(replace(one, rank=rank), T0 + 9 * limit)
    assert is_stale(replace(one, rank=Rank.PACKAGED), T0 + 9 * limit)


def test_dates_of_prices() -> None:
    assert parse_as_of("2026-06-01") == datetime(2026, 6, 1, tzinfo=UTC)
    moment = parse_as_of("2026-06-01T02:00:00+02:00")
    assert moment == datetime(2026, 6, 1, tzinfo=UTC) and moment.tzinfo is UTC
    with pytest.raises(ValueError, match=r"^as_of: expected a date such as 2026-06-01, got 'soon'$"):
        parse_as_of("soon")
    with pytest.raises(ValueError, match="EUR"):
        price("1", currency="EUR")
    with pytest.raises(ValueError, match=r"-1 USD/h .*price.* \(source t\)"):
        price("-1")
    assert price("0").usd_per_hour == 0


RUN = Run(
    cloud=Cloud.AWS, instance_id="i-1", started_at=T0, environment="e", region="us-east-1", zone="us-east-1a",
    machine_type="g6.xlarge", capacity_type=CapacityType.ON_DEMAND, last_seen_at=T0 + 4 * HOUR,
)  # fmt: skip
PLAN = SpendCommitment(
    name="sp-1", cloud=Cloud.AWS, usd_per_hour=Decimal("0.75"), rates={"g6.xlarge": Decimal("0.5")},
    starts=T0 + HOUR, ends=T0 + 3 * HOUR, source="order", as_of=T0 - HOUR,
)  # fmt: skip


def test_plan_covers_the_oldest_runs_and_the_last_one_in_part() -> None:
    old, young = RUN, replace(RUN, instance_id="i-2", started_at=T0 + timedelta(seconds=1))
    coverage = Coverage(DeclaredCosts(spends=[PLAN]), [young, old])
    listed = price("0.9")

    def mine(usd: str, text: str, pays: str, share: str) -> Price:
        at = {"as_of": T0 - HOUR, "valid_from": T0 + HOUR}
        paid = Committed(name="sp-1", usd_per_hour=Decimal(pays), share=Decimal(share))
        return replace(
            price(usd, rank=Rank.OVERRIDE, source=f"order; {text}"),
            list_usd_per_hour=Decimal("0.9"),
            committed=paid,
            **at,
        )

    span = [PricedInterval(listed, T0, T0 + 4 * HOUR)]
    middle = (T0 + HOUR, T0 + 3 * HOUR)
    assert list(coverage.parts(old, span)) == [
        (listed, T0, T0 + HOUR), (mine("0.5", "covered by sp-1", "0.5", "1"), *middle),
        (listed, T0 + 3 * HOUR, T0 + 4 * HOUR),
    ]  # fmt: skip
    # half of it at 0.5, the other half at 0.9: 0.25 + 0.45
    part = mine("0.700000000", "50.0000% covered by sp-1, the rest at list price", "0.25", "0.5")
    assert list(coverage.parts(young, span))[1] == (part, *middle)
    third = replace(young, instance_id="i-3")
    assert list(coverage.parts(third, span)) == span
    unknown = [PricedInterval(None, T0, T0 + 4 * HOUR)]
    assert list(coverage.parts(old, unknown)) == unknown
    assert list(coverage.parts(replace(old, capacity_type=CapacityType.SPOT), span)) == span
    ((_, intervals),) = coverage.spends
    assert [(one.start, one.end, one.free) for one in intervals] == [(*middle, Decimal(0))]


def test_ended_run_frees_its_part_of_a_plan_and_two_plans_do_not_pay_one_machine() -> None:
    short = replace(RUN, ended_at=T0 + 2 * HOUR)
    other = replace(PLAN, name="sp-2", rates={"g6.xlarge": Decimal("0.4"), "p5.48xlarge": Decimal(20)})
    large = replace(RUN, instance_id="i-p", machine_type="p5.48xlarge")
    coverage = Coverage(
        DeclaredCosts(spends=[PLAN, other]), [short, large, replace(short, capacity_type=CapacityType.SPOT)]
    )
    free = [[(one.start, one.end, one.free) for one in intervals] for _, intervals in coverage.spends]
    assert free == [
        [(T0 + HOUR, T0 + 2 * HOUR, Decimal("0.25")), (T0 + 2 * HOUR, T0 + 3 * HOUR, Decimal("0.75"))],
        [(T0 + HOUR, T0 + 3 * HOUR, Decimal(0))],
    ]
    assert coverage.spends[1][1][0].covered == {("i-p", T0): Decimal("0.75")}
    assert coverage.block(None) is None and coverage.block("cb") is None


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        pytest.param({}, {None: ("1", "no pools to split it over")}, id="no pools"),
        pytest.param(
            {"b": 2, "a": 1}, {"a": ("0.333333333", "1 of 3 parts"), "b": ("0.666666667", "2 of 3 parts")},
            id="the remainder to the last",
        ),
        pytest.param(
            {"a": 0, "b": 0}, {"a": ("0.500000000", "1 of 2 parts"), "b": ("0.500000000", "1 of 2 parts")},
            id="all without weight share alike",
        ),
        pytest.param({"a": 0, "b": 3}, {"b": ("1.000000000", "3 of 3 parts")}, id="one without weight"),
    ],
)  # fmt: skip
def test_shares_with_their_descriptions(weights: dict[str, int], expected: dict[str | None, tuple[str, str]]) -> None:
    found = {name: (str(usd), text) for name, (usd, text) in shares(Decimal(1), weights).items()}
    assert found == expected
