"""What is learned from past gaps: whom to end soon, whom to leave alone, and at what price for the pool."""

from collections.abc import Mapping
from datetime import timedelta

import numpy as np
import pytest

from benchmarks import activity as kinds
from gpufleet.domain.policies import IdlePolicy
from replay import idle
from replay.histories import Activity
from watchdogs.idle.patience import START, Patience

MINUTE = 60.0
REST = np.zeros(2)


def learned(gaps: Mapping[int, list[float]], days: float, budget: float = 2.0) -> list[float]:
    """Minutes for two instances that had these gaps, in minutes, and used up what was allowed."""
    patience = Patience(instances=2, stops_per_day=budget, least=40 * MINUTE)
    for instance, minutes in gaps.items():
        for gap in minutes:
            patience.saw(instance, gap * MINUTE)
    return (patience.timers(days, REST, done=2 * budget * days) / MINUTE).tolist()


def test_of_nothing_known_everybody_waits_about_an_hour() -> None:
    first, second = learned({}, days=0.01)
    assert first == second
    assert abs(first - START / MINUTE) <= 15


def test_a_clock_is_waited_for_and_a_silence_is_not() -> None:
    """One rests for 100 minutes ten times a day; the other rests for hours, or hardly."""
    often, seldom = learned({0: [100.0] * 50, 1: [400.0] * 10}, days=5)
    assert often >= 100
    assert seldom < often


def test_a_smaller_budget_waits_longer() -> None:
    gaps = {n: [45.0] * 12 + [90.0] * 6 + [200.0] * 3 for n in (0, 1)}
    assert learned(gaps, days=3, budget=1.0) > learned(gaps, days=3, budget=4.0)


def test_a_gap_that_is_still_open_counts_as_far_as_it_goes() -> None:
    patience = Patience(instances=1, stops_per_day=2.0, least=40 * MINUTE)
    before = patience.timers(1.0, np.zeros(1), done=0.0)
    after = patience.timers(1.0, np.array([20 * 3600.0]), done=0.0)
    assert after[0] <= before[0]


@pytest.mark.parametrize("least", [3, 92, 3000], ids=["under all timers", "between two", "over all"])
def test_no_timer_is_shorter_than_the_caution_of_the_policy(least: float) -> None:
    patience = Patience(instances=1, stops_per_day=9.0, least=least * MINUTE)
    assert patience.timers(1.0, np.zeros(1), done=0.0)[0] >= least * MINUTE


def test_of_rests_that_were_cut_off_an_end_there_is_still_a_stop() -> None:
    """Thirty a day, cut off at 70 minutes: within two stops a day nobody may be ended there, as all would be."""
    cut, ended = (Patience(instances=1, stops_per_day=2.0, least=40 * MINUTE) for _ in range(2))
    for _ in range(300):
        cut.cut(0, 70 * MINUTE)
        ended.saw(0, 70 * MINUTE)
    after_cut, after_ended = (known.timers(10.0, np.zeros(1), done=None)[0] for known in (cut, ended))
    # of those that ended none was longer; those that went on are still too many at twice the time
    assert after_ended >= 70 * MINUTE
    assert after_cut > 140 * MINUTE


def history(active: np.ndarray) -> Activity:
    ticks, replicas = active.shape
    return Activity(
        replicas=tuple(f"r{n}" for n in range(replicas)),
        times=np.arange(ticks) * kinds.STEP,
        step=kinds.STEP,
        reported=np.ones(active.shape, dtype=np.bool_),
        active=active,
        work=active >= 0.01,
        pools=None,
    )


@pytest.mark.parametrize("kind", list(kinds.KINDS))
def test_stops_stay_within_the_budget_and_hit_nobody_at_work(kind: str) -> None:
    found = history(kinds.KINDS[kind](12, 1.0, 5))
    answer = idle.play(found, idle.rule("own", found, IdlePolicy()), 180).answer()
    assert answer["stops_per_replica_day"] <= 2.0  # type: ignore[operator]
    assert answer["wrong_stops"] == 0


@pytest.mark.slow
def test_jobs_that_come_by_a_clock_are_learned() -> None:
    """More is saved than by any fixed timer that stops as seldom."""
    found = history(kinds.batch(12, 4.0, 3))
    own = idle.play(found, idle.rule("own", found, IdlePolicy()), 180).answer()
    policies = [IdlePolicy(grace=timedelta(minutes=m), max_stops_per_day=None) for m in range(10, 400, 60)]
    timers = [idle.play(found, idle.rule("own", found, p), 180).answer() for p in policies]
    as_seldom = [t for t in timers if t["stops"] <= own["stops"]]  # type: ignore[operator]
    assert own["saved_percent"] > 1.2 * max(t["saved_percent"] for t in as_seldom)  # type: ignore[operator, type-var]
