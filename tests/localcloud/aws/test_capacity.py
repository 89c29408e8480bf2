"""Capacity, quotas and prices of the embedded cloud."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localcloud.addresses import ZONES, Places
from localcloud.aws.capacity import Capacity, Use
from localcloud.aws.refusals import Shortage
from localcloud.aws.spot_prices import ON_DEMAND, history, spot_price
from localcloud.capacity_kind import Kind


def _use(zone: str = "us-east-1a", machine_type: str = "g6.xlarge", kind: Kind = Kind.SPOT) -> Use:
    return Use(zone=zone, machine_type=machine_type, kind=kind)


def test_capacity_is_unlimited_by_default() -> None:
    assert Capacity().refusal(_use(), [_use()] * 1000) is None


def test_limit_applies_only_to_its_zone_type_and_kind() -> None:
    capacity = Capacity(limits={("us-east-1a", "g6.xlarge", Kind.SPOT): 1})
    assert capacity.refusal(_use(), []) is None
    others = [_use(zone="us-east-1b"), _use(machine_type="g5.xlarge"), _use(kind=Kind.ON_DEMAND)]
    assert capacity.refusal(_use(), others) is None
    refused = capacity.refusal(_use(), [_use()])
    assert refused is not None
    assert refused.code is Shortage.UNFULFILLABLE


def test_quota_and_lack_of_capacity_have_different_errors() -> None:
    capacity = Capacity(
        limits={("us-east-1a", "g6.xlarge", Kind.ON_DEMAND): 0}, vcpu_limits={Kind.ON_DEMAND: 4, Kind.SPOT: 0}
    )
    full = capacity.refusal(_use(kind=Kind.ON_DEMAND), [])
    over = capacity.refusal(_use(kind=Kind.ON_DEMAND), [_use(kind=Kind.ON_DEMAND)])
    spot = capacity.refusal(_use(), [])
    assert [found.code for found in (full, over, spot) if found] == [
        Shortage.INSUFFICIENT,
        Shortage.VCPU_LIMIT,
        Shortage.SPOT_LIMIT,
    ]


def test_removed_capacity_is_spot_in_all_zones_and_can_be_restored() -> None:
    capacity = Capacity()
    capacity.remove_spot(["g6.xlarge"])
    assert all(capacity.refusal(_use(zone=zone), []) for zone in ZONES)
    assert capacity.refusal(_use(kind=Kind.ON_DEMAND), []) is None
    capacity.restore()
    assert capacity.refusal(_use(), []) is None


@given(
    st.sampled_from(sorted(ON_DEMAND)),
    st.sampled_from(ZONES),
    st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
def test_spot_is_always_cheaper_than_on_demand_and_never_free(machine_type: str, zone: str, at: datetime) -> None:
    price = spot_price(machine_type, zone, at)
    assert price is not None
    assert Decimal(0) < price < ON_DEMAND[machine_type] * Decimal("0.6")


def test_unknown_type_or_zone_has_no_price() -> None:
    assert spot_price("x9.nothing", "us-east-1a", datetime(2026, 1, 1, tzinfo=UTC)) is None
    assert spot_price("g6.xlarge", "us-east-1z", datetime(2026, 1, 1, tzinfo=UTC)) is None


def test_history_includes_the_price_in_force_at_its_start() -> None:
    until = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)
    since = until - timedelta(hours=3)
    rows = list(history(["g6.xlarge"], ["us-east-1a"], since, until))
    assert rows[0][0] == datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
    assert rows[-1][0] == datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
    assert len(rows) == 4


@pytest.mark.parametrize("network", ["10.0", "127", "127.300", "127.x", "192.168"])
def test_cloud_uses_only_loopback_addresses(network: str) -> None:
    with pytest.raises(ValueError, match="not on loopback"):
        Places(network=network)
