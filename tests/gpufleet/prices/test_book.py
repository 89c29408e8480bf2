"""The price in force: which source takes precedence, when prices change, and what happens without a price."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price, Rank
from gpufleet.prices.book import MissingPriceError, PriceBook, Sku, is_stale, machine_sku, parse_as_of, stated_price
from gpufleet.prices.packaged import PackagedPrices
from gpufleet.settings.document.money import PriceOverride

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
SPOT = "aws:ec2:g6.xlarge:spot"
SKU = Sku(name=SPOT, region="us-east-1", zone="us-east-1a")


def observed(usd: str, at: datetime, zone: str | None = "us-east-1a") -> Price:
    return Price(
        sku=SPOT,
        region="us-east-1",
        zone=zone,
        usd_per_hour=Decimal(usd),
        source="spot history",
        as_of=at,
        valid_from=at,
        rank=Rank.LIVE,
    )


def override(usd: str, as_of: str, sku: str = SPOT) -> Price:
    entry = PriceOverride(sku=sku, usd_per_hour=Decimal(usd), source="contract", as_of=as_of)
    return stated_price(entry, "us-east-1")


def book(overrides: Sequence[Price] = (), prices: Sequence[Price] = ()) -> PriceBook:
    return PriceBook(region="us-east-1", overrides=overrides, observed=prices, packaged=PackagedPrices())


@pytest.mark.parametrize(
    ("sku", "region", "at", "usd"),
    [
        pytest.param("aws:ec2:p5.48xlarge:on-demand", "us-east-1", "2025-06-20", "98.32", id="H100 before the cut"),
        pytest.param("aws:ec2:p5.48xlarge:on-demand", "us-east-1", "2025-06-24", "55.04", id="H100 after the cut"),
        pytest.param("gcp:compute:g2-standard-4:spot", "us-central1", "2024-06-01", "0.218228071", id="Google spot"),
        pytest.param("gcp:compute:g2-standard-4:on-demand", "us-central1", "2026-11-01", "0.706832255", id="Google"),
        pytest.param(
            "gcp:compute:a2-ultragpu-2g:on-demand", "us-central1", "2023-05-09T18:00", "10.055404", id="a wrong row"
        ),
        pytest.param("aws:ec2:trn1.32xlarge:on-demand", "us-east-1", "2026-11-01", "21.5", id="Trainium"),
        pytest.param("aws:ec2:inf2.xlarge:on-demand", "us-east-1", "2023-10-01", "0.7582", id="Inferentia2"),
        pytest.param(
            "gcp:compute:ct6e-standard-8t:on-demand", "europe-west4", "2025-06-01", "23.76", id="eight chips"
        ),
        pytest.param("gcp:compute:ct5lp-hightpu-1t:spot", "us-west4", "2026-11-01", "0.48", id="one chip on spot"),
        pytest.param("gcp:compute:ct5p-hightpu-4t:on-demand", "us-south1", "2026-11-01", "19.116", id="v5p"),
    ],
)
def test_packaged_history_gives_the_price_of_the_day(sku: str, region: str, at: str, usd: str) -> None:
    price = PriceBook(region=region, packaged=PackagedPrices()).at(Sku(name=sku, region=region), parse_as_of(at))
    assert price.usd_per_hour == Decimal(usd)
    assert price.source.startswith("packaged: ")


def test_missing_price_is_an_error_that_names_sku_place_and_remedy() -> None:
    with pytest.raises(MissingPriceError, match=r"aws:ec2:g6\.xlarge:spot in us-east-1 \(us-east-1a\).*refresh"):
        book().at(SKU, NOW)


@pytest.mark.parametrize(
    ("sku", "region"),
    [
        pytest.param("gcp:compute:tpu7x-standard-4t:on-demand", "us-central1", id="TPU7x has no published price"),
        pytest.param("gcp:compute:ct6e-standard-1t:spot", "southamerica-west1", id="a placeholder on spot"),
        pytest.param("gcp:compute:ct6e-standard-1t:on-demand", "asia-east1", id="a placeholder on demand"),
        pytest.param("aws:ec2:trn2.48xlarge:on-demand", "us-east-1", id="sold in capacity blocks"),
    ],
)
def test_an_unpublished_price_is_unknown(sku: str, region: str) -> None:
    assert PackagedPrices().prices(sku, region) == ()


def test_no_price_applies_before_the_first_packaged_price() -> None:
    with pytest.raises(MissingPriceError):
        book().at(Sku(name="aws:ec2:g6.xlarge:on-demand", region="us-east-1"), parse_as_of("2020-01-01"))


def test_override_takes_precedence_over_the_price_of_the_cloud() -> None:
    price = book([override("0.10", "2026-01-01")], [observed("0.30", NOW - timedelta(hours=1))]).at(SKU, NOW)
    assert (price.usd_per_hour, price.rank) == (Decimal("0.10"), Rank.OVERRIDE)


def test_overrides_apply_from_their_dates_and_only_the_first_one_before_it() -> None:
    known = book([override("0.10", "2026-06-01"), override("0.20", "2026-09-01")])
    assert known.at(SKU, parse_as_of("2026-08-31")).usd_per_hour == Decimal("0.10")
    assert known.at(SKU, parse_as_of("2026-09-01")).usd_per_hour == Decimal("0.20")
    before = known.at(SKU, parse_as_of("2026-05-31"))
    assert (before.usd_per_hour, before.rank) == (Decimal("0.10"), Rank.OVERRIDE_BEFORE_ITS_DATE)
    assert "stated from 2026-06-01" in before.note


def test_before_its_date_an_override_yields_to_the_known_price() -> None:
    sku = "aws:ec2:p5.48xlarge:on-demand"
    known = book([override("40", "2026-06-01", sku)])
    assert known.at(Sku(name=sku, region="us-east-1"), parse_as_of("2026-05-31")).usd_per_hour == Decimal("55.04")


def test_override_of_a_zone_takes_precedence_over_that_of_the_region() -> None:
    known = book([override("0.10", "2026-01-01"), override("0.15", "2026-01-01", f"{SPOT}:us-east-1a")])
    assert known.at(SKU, NOW).usd_per_hour == Decimal("0.15")
    assert known.at(Sku(name=SPOT, region="us-east-1", zone="us-east-1b"), NOW).usd_per_hour == Decimal("0.10")


def test_override_applies_only_to_the_region_of_its_fleet() -> None:
    with pytest.raises(MissingPriceError):
        book([override("0.10", "2026-01-01")]).at(Sku(name=SPOT, region="eu-west-1"), NOW)


def test_spot_prices_are_by_zone() -> None:
    known = book(prices=[observed("0.30", NOW - timedelta(days=1)), observed("0.40", NOW - timedelta(days=1), "b")])
    assert known.at(SKU, NOW).usd_per_hour == Decimal("0.30")


def test_interval_is_split_where_prices_change() -> None:
    changes = [observed("0.30", NOW - timedelta(hours=3)), observed("0.35", NOW - timedelta(hours=1))]
    parts = book(prices=changes).over(SKU, NOW - timedelta(hours=2), NOW)
    assert [(p.price.usd_per_hour, p.start, p.end) for p in parts] == [
        (Decimal("0.30"), NOW - timedelta(hours=2), NOW - timedelta(hours=1)),
        (Decimal("0.35"), NOW - timedelta(hours=1), NOW),
    ]


def test_reserved_capacity_has_the_on_demand_price_unless_a_price_is_stated() -> None:
    known = book()
    sku = known.machine(Cloud.AWS, "g6.xlarge", CapacityType.RESERVED, region="us-east-1", zone="us-east-1a")
    assert sku.name == "aws:ec2:g6.xlarge:on-demand"
    reserved = machine_sku(Cloud.AWS, "g6.xlarge", CapacityType.RESERVED)
    known = book([override("0.5", "2026-01-01", reserved)])
    sku = known.machine(Cloud.AWS, "g6.xlarge", CapacityType.RESERVED, region="us-east-1", zone="us-east-1a")
    assert known.at(sku, NOW).usd_per_hour == Decimal("0.5")


@pytest.mark.parametrize(
    ("age", "stale"), [pytest.param(1, False, id="an hour old"), pytest.param(3, True, id="three hours old")]
)
def test_old_spot_price_is_stale(age: int, stale: bool) -> None:
    assert is_stale(observed("0.3", NOW - timedelta(hours=age)), NOW) is stale


@pytest.mark.parametrize("usd", ["NaN", "-0.1", "Infinity"])
def test_invalid_value_is_refused_as_a_price(usd: str) -> None:
    with pytest.raises(ValueError, match="is not a valid price"):
        observed(usd, NOW)


@given(
    changes=st.lists(
        st.tuples(st.integers(0, 7200), st.integers(1, 10**6)), min_size=1, max_size=8, unique_by=lambda c: c[0]
    ),
    start=st.integers(0, 7200),
    length=st.integers(0, 7200),
)
def test_parts_in_force_cover_the_interval_and_agree_with_any_moment(
    changes: list[tuple[int, int]], start: int, length: int
) -> None:
    begin = NOW + timedelta(seconds=start)
    end = begin + timedelta(seconds=length)
    known = book(
        prices=[
            observed("1", NOW - timedelta(days=1)),
            *(observed(str(p), NOW + timedelta(seconds=s)) for s, p in changes),
        ]
    )
    parts = known.over(SKU, begin, end)
    assert sum((part.end - part.start for part in parts), timedelta(0)) == end - begin
    for part in parts:
        assert part.start < part.end
        assert known.at(SKU, part.start) == part.price == known.at(SKU, part.end - timedelta(microseconds=1))
