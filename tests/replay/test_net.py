"""Tests of the net savings of rules (GPU-hours saved minus a cost per stop), and of the upper bound on the cost of
one idle period.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import activity as kinds
from benchmarks.bench_replay import history
from gpufleet.domain.policies import IdlePolicy
from replay import idle, net_savings
from replay.histories import ActivityHistory
from watchdogs.idle import timer

MINUTE = timedelta(minutes=1)
STEP = kinds.STEP / 60
"""In minutes."""


def busy_and_idle(*idle_minutes: int) -> ActivityHistory:
    """Return a history of one replica that works for a minute before and after each of these idle periods."""
    column = [1.0]
    for minutes in idle_minutes:
        column += [0.0] * minutes + [1.0]
    return history(np.array([column], dtype=np.float32).T)


@pytest.mark.parametrize("cold_start", [0, 45, 180, 900])
@pytest.mark.parametrize("kind", ["drift", "bursty", "cron"])
def test_fixed_timers_match_their_replay(kind: str, cold_start: int) -> None:
    found = history(kinds.KINDS[kind](6, 0.5, 3))
    saved, stops = net_savings.fixed_timers(found, cold_start)
    for minutes in (15, 47, 60, 90):
        score = idle.play(found, idle.FixedTimerRule(activity=found, name="", after=60.0 * minutes), cold_start)
        at = minutes - int(net_savings.MINUTES[0])
        assert (saved[at], stops[at]) == (pytest.approx(score.saved_rows * score.step / 3600), score.stops)


def test_net_savings_match_manual_calculations() -> None:
    """Idle periods of 20, 50, 100 and 400 minutes."""
    nets = net_savings.compared(busy_and_idle(20, 50, 100, 400), IdlePolicy(), 0)
    at_30, at_60 = nets["30m"], nets["1h"]
    assert at_30["foresight"] == pytest.approx((20 + 70 + 370) / 60)
    assert at_60["foresight"] == pytest.approx((40 + 340) / 60)
    assert at_30["timer-60m"] == pytest.approx((40 - 30 + 340 - 30) / 60)
    assert at_60["timer-60m"] == pytest.approx((40 - 60 + 340 - 60) / 60)
    # our rule marks at the end of the window and runs once a minute, so each step may lose a minute
    assert at_30["own"] == pytest.approx((5 - 30 + 55 - 30 + 355 - 30) / 60, abs=4 / 60)
    assert at_60["own"] == pytest.approx((25 - 60 + 325 - 60) / 60, abs=4 / 60)
    assert at_30["best_timer"] >= max(at_30[name] for name in idle.TIMERS)
    assert at_30["own_wrong_stops"] == at_60["own_wrong_stops"] == 0


def test_a_rule_that_stops_what_worked_since_its_mark_is_counted_as_wrong() -> None:
    class Careless:
        """Uses a mark from before the work."""

        name = "careless"

        def stop(self, tick: int, replicas: idle.Replicas) -> dict[int, int]:
            del replicas
            return {0: 2} if tick == 8 else {}

    found = history(np.array([[0, 0, 0, 0, 1, 0, 0, 0, 0, 0]], dtype=np.float32).T)
    assert idle.play(found, Careless(), 0).wrong_stops == 1
    quiet = history(np.zeros((10, 1), dtype=np.float32))
    assert idle.play(quiet, Careless(), 0).wrong_stops == 0


def test_a_single_replica_has_its_own_budgets() -> None:
    """One pass stops all of many replicas, and each replica has its own daily limit."""
    column = np.array(([1.0] + [0.0] * 100) * 5, dtype=np.float32)
    found = history(np.tile(column[:, None], (1, 40)))
    policy = IdlePolicy(max_stops_per_day=3)
    score = idle.play(found, idle.rule("own", found, policy), 180)
    assert score.stops == 40 * 3
    assert idle.play(found, idle.rule("own", found, replace(policy, max_stops_per_day=None)), 180).stops == 40 * 5


@st.composite
def idle_times(draw: st.DrawFn) -> tuple[IdlePolicy, timedelta, list[int]]:
    """Draw a policy, a cold start, and lengths of idle periods in minutes, many of them near the rule's wait time."""
    window, grace = draw(st.integers(2, 40)), draw(st.integers(0, 20))
    price, cold_start = draw(st.integers(5, 90)), draw(st.integers(0, 15))
    policy = IdlePolicy(
        window=window * MINUTE,
        grace=grace * MINUTE,
        min_age=timedelta(0),
        stop_price=price * MINUTE,
        max_stops_per_day=None,
        max_stops_per_hour=1000,
    )
    due = int(timer.Timer(policy=policy, cold_start=cold_start * MINUTE).after / MINUTE)
    near = st.integers(max(1, due - 5), due + 10)
    return policy, cold_start * MINUTE, draw(st.lists(near | st.integers(1, 300), min_size=1, max_size=6))


def costs_more_than_its_bound(case: tuple[IdlePolicy, timedelta, list[int]]) -> str | None:
    """Return the first idle period that costs more than (T + price) / price times the cost of foresight.

    The test replays each idle period with the watchdog's own `decide`, after work and before work.
    """
    policy, cold_start, gaps = case
    rule = timer.Timer(policy=policy, cold_start=cold_start)
    price = ((policy.stop_price or timedelta(0)) + cold_start) / MINUTE
    # calculated separately: a rule that waits longer than documented must not get a wider bound
    waited = min(rule.after / MINUTE, max(price + 15, (policy.window + policy.grace) / MINUTE))
    for minutes in gaps:
        found = busy_and_idle(minutes)
        score = idle.play(found, idle.rule("own", found, policy, cold_start.total_seconds()), 0)
        paid = minutes - score.saved_rows * STEP + price * score.stops
        # the rule runs once a minute, so the mark and the end may each be a minute late
        if paid > (waited + price) / price * min(minutes, price) + 3 * STEP:
            return f"{minutes} min cost {paid:g}, waited {rule.after}, price {price:g}"
    return None


@settings(max_examples=150, deadline=None)
@given(case=idle_times())
def test_an_idle_period_costs_at_most_a_bounded_multiple_of_foresight(
    case: tuple[IdlePolicy, timedelta, list[int]],
) -> None:
    assert costs_more_than_its_bound(case) is None


LONG = (IdlePolicy(window=10 * MINUTE, grace=5 * MINUTE, min_age=timedelta(0)), 6 * MINUTE)


def ends_at_once(self: timer.Timer) -> timedelta:
    return self.policy.window + self.policy.grace


def never_ends(self: timer.Timer) -> timedelta:
    del self
    return timedelta(days=1)


def forgets_the_cold_start(self: timer.Timer) -> timedelta:
    return max((self.policy.stop_price or timedelta(0)) / 2, self.policy.window + self.policy.grace)


@pytest.mark.parametrize(
    ("broken", "minutes"),
    [
        pytest.param(ends_at_once, 17, id="without the bound by the price"),
        pytest.param(never_ends, 300, id="without an end"),
        pytest.param(forgets_the_cold_start, 19, id="half of the price"),
    ],
)
def test_a_rule_without_the_bound_exceeds_it(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[timer.Timer], timedelta], minutes: int
) -> None:
    case = (*LONG, [minutes])
    assert costs_more_than_its_bound(case) is None
    monkeypatch.setattr(timer.Timer, "after", property(broken))
    assert costs_more_than_its_bound(case) is not None
