"""Calls of a pass of the spot watchdog, counted at real clients in a market that gives no spot."""

from datetime import timedelta

import pytest

from benchmarks.bench_calls import BASE, COMPLETED, Fleet
from gpufleet.domain.model import Cloud

THREE_DAYS, ASKED_EVERY = timedelta(days=3), timedelta(minutes=5)
MANY = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("cron", [pytest.param(False, id="daemon"), pytest.param(True, id="cron")])
@pytest.mark.parametrize(("pools", "zones"), [(1, 3), (1, 9), (10, 3), pytest.param(50, 3, marks=MANY)])
def test_a_pass_makes_no_more_calls_than_it_may(pools: int, zones: int, *, cron: bool) -> None:
    fleet = Fleet(pools, zones)
    fleet.market.refused_before(THREE_DAYS, ASKED_EVERY)
    fleet.calls_of_a_pass()
    calls = [fleet.calls_of_a_pass(of_its_own=cron) for _ in range(20)]
    over = [one for one in calls if one.made > one.allowed]
    assert not over, over[0]
    assert max(one.actions for one in calls) > 0, "zones were asked again"
    assert min(one.made for one in calls) <= BASE


@pytest.mark.parametrize("cron", [pytest.param(False, id="daemon"), pytest.param(True, id="cron")])
@pytest.mark.parametrize("pools", [10, pytest.param(50, marks=MANY)])
def test_a_pass_on_google_cloud_makes_no_more_calls_than_it_may(pools: int, *, cron: bool) -> None:
    fleet = Fleet(pools, 3, Cloud.GCP)
    first = fleet.calls_of_a_pass()
    assert first.made <= first.allowed, first
    calls = [fleet.calls_of_a_pass(of_its_own=cron) for _ in range(20)]
    over = [one for one in calls if one.made > one.allowed]
    assert not over, over[0]
    assert max(one.actions for one in calls) > 0, "zones were asked again"
    assert min(one.made for one in calls) <= BASE


def test_a_pass_of_its_own_process_makes_the_calls_of_the_daemons_pass() -> None:
    both: list[list[dict[str, int]]] = []
    for cron in (False, True):
        fleet = Fleet(2, 3)
        fleet.market.refused_before(THREE_DAYS, ASKED_EVERY)
        both.append([fleet.calls_of_a_pass(of_its_own=cron).by_operation for _ in range(12)])
    assert both[0] == both[1]


def test_activity_history_is_read_once() -> None:
    fleet = Fleet(2, 3)
    fleet.market.refused_before(THREE_DAYS, ASKED_EVERY)
    first = fleet.calls_of_a_pass()
    pages = first.by_operation["autoscaling:describe_scaling_activities"]
    assert 6 * 9 <= pages <= 6 * 9 + 10, "three days, once"
    for cron in (False, True):
        later = fleet.calls_of_a_pass(of_its_own=cron)
        assert later.by_operation.get("autoscaling:describe_scaling_activities", 0) <= 8


@pytest.mark.parametrize("pools", [2, 10])
def test_hooks_cost_one_call_for_each_instance(pools: int) -> None:
    fleet = Fleet(pools, 3, hooks=True)
    fleet.market.refused_before(THREE_DAYS, ASKED_EVERY)
    fleet.calls_of_a_pass()
    calls = [fleet.calls_of_a_pass() for _ in range(30)]
    over = [one for one in calls if one.made > one.allowed]
    assert not over, over[0]
    assert sum(one.by_operation.get(COMPLETED, 0) for one in calls) == pools, "each once: the fallback"
