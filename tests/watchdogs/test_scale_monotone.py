"""More demand never asks for fewer replicas."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain.decisions import Action
from gpufleet.domain.policies import ScalePolicy, ScheduleRule
from watchdogs.scale.decide import decide
from watchdogs.scale.view import Demand, PoolView, Pressure

NOW = datetime(2026, 11, 21, 2, 15, tzinfo=UTC)
PARTS = ("now", "peak", "level", "swing", "expected")
NIGHT = ScheduleRule(days=("sat",), start="01:00", end="03:00", target=3)

works = st.one_of(st.just(0.0), st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.floats(min_value=0, max_value=12))


def wanted(parts: tuple[float | None, ...], target: int, ready: int, policy: ScalePolicy) -> int:
    demand = dict(zip(PARTS, parts, strict=True))
    view = PoolView(
        name="pool",
        policy=policy,
        target=target,
        min=1,
        max=40,
        ready=ready,
        demand=Demand(**demand, grain=1.0),  # type: ignore[arg-type]
        pressure=Pressure(reporting=ready, backlog_s=0.0),
        cold_start=timedelta(minutes=3),
    )
    decision = decide([view], NOW).decisions[0]
    if decision.action is Action.RETARGET and decision.to_size is not None:
        return decision.to_size
    return target


@given(
    st.tuples(works, works, works, works, st.one_of(st.none(), works)),
    st.tuples(works, works, works, works, works),
    st.integers(min_value=1, max_value=30),
    st.integers(min_value=0, max_value=30),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.booleans(),
)
def test_more_demand_never_asks_for_fewer_replicas(  # noqa: PLR0913, PLR0917 - all that decide is told
    less: tuple[float | None, ...], more: tuple[float, ...], target: int, ready: int, headroom: float, night: bool
) -> None:
    """Of each part, also from "nothing is known of earlier days" on."""
    policy = ScalePolicy(headroom=headroom, schedule=(NIGHT,) if night else ())
    higher = tuple(extra if part is None else part + extra for part, extra in zip(less, more, strict=True))
    assert wanted(less, target, ready, policy) <= wanted(higher, target, ready, policy)
