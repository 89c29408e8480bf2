from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.capacity import SURGE, PoolCapacity
from gpufleet.settings.environment import Capacity, OnDemand, Reserved, Spot

RESERVED = Reserved(zone="us-east-1a", machine_type="g6.xlarge", count=1)
ON_DEMAND = OnDemand(max=2, machine_types=("g6.xlarge",), zones=("us-east-1a", "us-east-1b"))


def bought(target: int, *, spare: int = 0, most: int = 5, **ways: Any) -> PoolCapacity:
    return PoolCapacity(target=target, spare=spare, max=most, ways=Capacity(**ways))


def spot(*zones: str) -> Spot:
    return Spot(zones=tuple(f"us-east-1{zone}" for zone in zones), machine_types=("g6.xlarge", "g5.xlarge"))


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        pytest.param(bought(3, reserved=(RESERVED,), spot=spot("a", "b")), {"a": 1, "b": 1}, id="even"),
        pytest.param(bought(4, reserved=(RESERVED,), spot=spot("a", "b")), {"a": 2, "b": 1}, id="uneven"),
        pytest.param(bought(1, spare=1, spot=spot("a", "b", "c")), {"a": 1, "b": 1, "c": 0}, id="spare"),
        pytest.param(bought(0, spot=spot("a")), {"a": 0}, id="to zero"),
        pytest.param(bought(1, reserved=(RESERVED,), spot=spot("a")), {"a": 0}, id="reserved is enough"),
        pytest.param(bought(1, reserved=(RESERVED,)), {}, id="no spot"),
    ],
)
def test_spot_starts_with_target_less_reserved_spread_over_zones(
    capacity: PoolCapacity, expected: dict[str, int]
) -> None:
    assert capacity.spot_at_creation() == {f"us-east-1{zone}": size for zone, size in expected.items()}


@given(target=st.integers(0, 50), spare=st.integers(0, 5), zones=st.integers(1, 6))
def test_spot_at_creation_has_the_right_sum_and_is_spread(target: int, spare: int, zones: int) -> None:
    capacity = bought(target, spare=spare, most=50, spot=spot(*"abcdef"[:zones]))
    sizes = capacity.spot_at_creation().values()
    assert sum(sizes) == target + spare
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= capacity.spot_max


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        pytest.param(bought(2, spot=spot("a"), on_demand=ON_DEMAND), 0, id="with spot"),
        pytest.param(bought(2, reserved=(RESERVED,), on_demand=ON_DEMAND), 1, id="without spot"),
        pytest.param(bought(4, on_demand=ON_DEMAND), 2, id="up to its own max"),
        pytest.param(bought(4, spot=spot("a")), 0, id="not bought"),
    ],
)
def test_on_demand_starts_only_where_no_spot_is_tried(capacity: PoolCapacity, expected: int) -> None:
    assert capacity.fallback_at_creation() == expected


def test_one_zone_may_provide_all_capacity_that_is_not_reserved() -> None:
    capacity = bought(3, spare=1, reserved=(RESERVED,), spot=spot("a", "b"))
    assert capacity.spot_max == 5 + SURGE


@pytest.mark.parametrize(
    ("target", "ways", "message"),
    [
        pytest.param(6, {"spot": spot("a")}, "target 6 is outside 0 to max 5", id="above max"),
        pytest.param(-1, {"spot": spot("a")}, "target -1 is outside", id="negative"),
        pytest.param(1, {}, "got none", id="buys nothing"),
    ],
)
def test_impossible_capacity_is_refused(target: int, ways: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bought(target, **ways)
