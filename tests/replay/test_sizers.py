"""Tests of the replay's sizing rules with recorded demand."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain.policies import ScalePolicy
from replay.sizers import Peak, PeakRoot, ProductionSizer

histories = st.lists(st.floats(min_value=0, max_value=40), min_size=1, max_size=60)


@given(histories, st.integers(min_value=0, max_value=10))
def test_a_peak_is_the_highest_demand_of_its_window(demands: list[float], minutes: int) -> None:
    peak = Peak(span=60.0 * minutes)
    for number, demand in enumerate(demands):
        assert peak.saw(60.0 * number, demand) == max(demands[max(0, number - minutes) : number + 1])


@pytest.mark.parametrize(
    ("demand", "replicas"),
    [
        pytest.param(0.0, 1, id="none: at least one"),
        pytest.param(0.3, 1, id="a little"),
        pytest.param(1.0, 2, id="one replica's"),
        pytest.param(4.0, 6, id="four: three quarters of two on top"),
    ],
)
def test_the_spare_grows_with_the_square_root_of_the_peak(demand: float, replicas: int) -> None:
    assert PeakRoot().target(0.0, demand, ready=8, running=8) == replicas


def test_peak_and_root_remember_an_hour() -> None:
    rule = PeakRoot()
    rule.target(0.0, 4.0, ready=8, running=8)
    assert [rule.target(60.0 * minute, 0.0, ready=8, running=8) for minute in (60, 61)] == [6, 1]


@pytest.mark.parametrize(
    ("grain", "replicas"),
    [
        pytest.param(None, 4, id="unknown size of a piece"),
        pytest.param(0.1, 4, id="small ones"),
        pytest.param(1.0, 5, id="each takes a whole replica: four of them"),
    ],
)
def test_production_counts_whole_requests(grain: float | None, replicas: int) -> None:
    """The work of 3.05 replicas, plus half of its square root."""
    own = ProductionSizer(policy=ScalePolicy(down_after=timedelta(hours=1)), cold_start=180.0, grain=grain)
    assert own.target(0.0, 3.05, ready=8, running=8) == replicas
