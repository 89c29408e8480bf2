"""What holds of scale's rule whatever the load is: of generated pools."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain.decisions import Action
from gpufleet.domain.policies import ScalePolicy, ScheduleRule
from watchdogs.scale.decide import decide, least
from watchdogs.scale.view import Demand, Pressure, ScalePoolView

NOW = datetime(2026, 11, 21, 2, 15, tzinfo=UTC)
NIGHT = ScheduleRule(days=("sat",), start="01:00", end="03:00", target=3)
MAX = 40

works = st.one_of(st.just(0.0), st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.floats(min_value=0, max_value=12))
replicas = st.integers(min_value=0, max_value=30)
policies = st.builds(ScalePolicy, headroom=st.sampled_from([0.0, 0.1, 0.5]), schedule=st.sampled_from([(), (NIGHT,)]))


def pool(now: float, more: float, target: int, ready: int, policy: ScalePolicy) -> ScalePoolView:
    """A pool whose load of now is `more` below its peak."""
    return ScalePoolView(
        name="pool",
        policy=policy,
        target=target,
        min=1,
        max=MAX,
        ready=ready,
        demand=Demand(now=now, peak=now + more),
        pressure=Pressure(reporting=ready, backlog_s=0.0),
        cold_start=timedelta(minutes=3),
    )


def wanted(view: ScalePoolView) -> int:
    decision = decide([view], NOW).decisions[0]
    if decision.action is Action.RETARGET and decision.to_size is not None:
        return decision.to_size
    return view.target


@given(works, works, works, works, replicas, replicas, policies)
def test_more_demand_never_asks_for_fewer_replicas(  # noqa: PLR0913, PLR0917 - all inputs of decide
    now: float, peak: float, more_now: float, more_peak: float, target: int, ready: int, policy: ScalePolicy
) -> None:
    less = pool(now, peak, target, ready, policy)
    assert wanted(less) <= wanted(pool(now + more_now, peak + more_peak, target, ready, policy))


@given(works, works, replicas, replicas, policies)
def test_a_target_is_never_below_what_the_highest_load_needs(
    now: float, more: float, target: int, ready: int, policy: ScalePolicy
) -> None:
    """Nor is a lower need reported to the idle watchdog."""
    view = pool(now, more, target, ready, policy)
    needed = min(math.ceil(now + more - 1e-9), MAX)
    assert wanted(view) >= needed
    assert least(view, NOW).replicas >= needed


@given(works, works, st.integers(min_value=1, max_value=30), policies, st.integers(min_value=0, max_value=4))
def test_target_is_not_lowered_without_complete_data(
    now: float, more: float, target: int, policy: ScalePolicy, missing: int
) -> None:
    view = pool(now, more, target, target, replace(policy, requests_per_replica=8))
    seen = Pressure(reporting=target, kv_cache=0.0, kv_cache_peak=0.0)
    untold = (
        replace(view, pressure=None),
        replace(view, pressure=replace(seen, reporting=target - 1)),
        replace(view, without_metrics=1),
        replace(view, pressure=replace(seen, coverage=0.89)),
        replace(view, pressure=seen, demand=None),
    )
    assert wanted(untold[missing]) >= target
