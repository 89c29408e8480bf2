"""Boot durations, by the reports of agents."""

from dataclasses import fields, replace
from datetime import timedelta

import pytest

from gpufleet.domain.boots import BOOT_LIMIT
from gpufleet.domain.model import Phase
from serving.instance_settings import BootLimits
from tests.fixtures.watchdogs.plain import READY, START, instance
from tests.fixtures.watchdogs.spot import OD, make_watchdog, spread_fleet
from watchdogs import boots

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("ready_after", "expected"),
    [
        pytest.param([], 6, id="no instance"),
        pytest.param([None], 6, id="its agent reports no time"),
        pytest.param([4], 4, id="one"),
        pytest.param([3, 4, 20], 4, id="the median"),
        pytest.param([4, 24 * 60], 4, id="one has switched its revision a day later"),
        pytest.param([24 * 60, 24 * 60], 6, id="all have"),
        pytest.param([60], 60, id="the longest boot"),
        pytest.param([61], 6, id="longer than any boot"),
        pytest.param([-1], 6, id="clocks that differ"),
    ],
)
def test_expected_boot_duration(ready_after: list[float | None], expected: float) -> None:
    there = [instance(number, launched_at=START) for number in range(len(ready_after))]
    statuses = {
        one.id: replace(READY, phase_since=None if after is None else START + after * MINUTE)
        for one, after in zip(there, ready_after, strict=True)
    }
    assert boots.expected(boots.durations(there, statuses)) == expected * MINUTE


def test_silent_and_unready_instances_do_not_count_for_boot_durations() -> None:
    there = [instance(number, launched_at=START) for number in (1, 2)]
    statuses = {there[0].id: replace(READY, ready=False, phase_since=START + MINUTE)}
    assert boots.durations(there, statuses) == []
    assert boots.expected([], otherwise=9 * MINUTE) == 9 * MINUTE


def test_a_switch_in_place_does_not_turn_the_fallback_off() -> None:
    fleet = spread_fleet()
    fleet.agents = {key: replace(READY, phase_since=fleet.now) for key in fleet.agents}
    assert make_watchdog(fleet).dry().observed[0].boot_expected == boots.DEFAULT_BOOT


def test_a_boot_may_take_as_long_as_all_of_its_steps() -> None:
    limits = BootLimits()
    steps = [getattr(limits, step.name) for step in fields(BootLimits)]
    assert sum(steps, timedelta()) == BOOT_LIMIT == limits.total


@pytest.mark.parametrize(
    ("limit", "bought"),
    [
        pytest.param({}, 1, id="by default 48 min"),
        pytest.param({"boot_limit": "90m"}, 0, id="the pool's engine may start for longer"),
    ],
)
def test_a_boot_in_progress_counts_until_the_limit_of_its_pool(limit: dict[str, str], bought: int) -> None:
    fleet = spread_fleet()
    slow = instance(1).id
    fleet.instances[slow] = replace(fleet.instances[slow], launched_at=fleet.now - 60 * MINUTE)
    fleet.agents[slow] = replace(READY, phase=Phase.ENGINE, ready=False, phase_since=fleet.now - 50 * MINUTE)
    for _ in range(3):
        make_watchdog(fleet, **limit).apply()
        fleet.now += MINUTE
    assert len(fleet.alive(OD)) == bought


def test_an_engine_that_failed_within_the_boot_limit_of_its_pool_was_a_boot() -> None:
    """An agent of an earlier release does not say whether its engine has served."""
    fleet = spread_fleet()
    slow = instance(1).id
    fleet.instances[slow] = replace(fleet.instances[slow], launched_at=fleet.now - 80 * MINUTE)
    fleet.agents[slow] = replace(READY, phase=Phase.FAILED, ready=False, phase_since=fleet.now - MINUTE)
    for limit, crashed in (("90m", False), ("48m", True)):
        members = make_watchdog(fleet, boot_limit=limit).dry().observed[0].members
        assert [member.crashed_at is not None for member in members if member.id == slow] == [crashed]
