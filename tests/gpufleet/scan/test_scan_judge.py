"""The verdict of a scan about an instance."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain.gpu_hours import HourUse
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.scan.judge import ScanWindows, judge
from gpufleet.scan.model import Verdict, VerdictReason

NOW = datetime(2026, 11, 26, 12, 30, tzinfo=UTC)
WINDOWS = ScanWindows(now=NOW)
HOUR = timedelta(hours=1)
IDLE = HourUse(gpus=2, samples=60, utilization_max=0)
BUSY = HourUse(gpus=2, samples=60, utilization_max=7)
POWER = HourUse(gpus=2, samples=60, utilization_max=None, watts_max=20)


def instance(age: timedelta = timedelta(days=30), state: InstanceState = InstanceState.RUNNING) -> Instance:
    return Instance(
        id="i-1",
        cloud=Cloud.AWS,
        region="us-east-1",
        zone="us-east-1a",
        machine_type="g6.12xlarge",
        capacity_type=CapacityType.ON_DEMAND,
        state=state,
        launched_at=NOW - age,
    )


def week(use: HourUse, **others: HourUse | None) -> dict[datetime, HourUse]:
    """The same use in each hour of the window. `h3`: the use of the third last hour; None: no value."""
    found: dict[datetime, HourUse | None] = {WINDOWS.end - number * HOUR: use for number in range(1, 169)}
    found |= {WINDOWS.end - int(name[1:]) * HOUR: other for name, other in others.items()}
    return {hour: one for hour, one in found.items() if one is not None}


@pytest.mark.parametrize(
    ("use", "verdict", "reason", "hours"),
    [
        pytest.param(week(IDLE), Verdict.IDLE, VerdictReason.GPU_IDLE, (168, 168), id="idle all week"),
        pytest.param(week(BUSY), Verdict.IN_USE, VerdictReason.GPU_WORKED, (0, 168), id="busy all week"),
        pytest.param(week(IDLE, h24=BUSY), Verdict.IN_USE, VerdictReason.GPU_WORKED, (167, 168), id="busy yesterday"),
        pytest.param(week(IDLE, h25=BUSY), Verdict.IDLE, VerdictReason.GPU_IDLE, (167, 168), id="busy before that"),
        pytest.param({}, Verdict.UNKNOWN, VerdictReason.NO_METRIC, (0, 0), id="no metric"),
        pytest.param(None, Verdict.UNKNOWN, VerdictReason.METRICS_FAILED, (0, 0), id="the store failed"),
        pytest.param(
            week(IDLE, h5=None), Verdict.UNKNOWN, VerdictReason.METRIC_INCOMPLETE, (167, 167), id="an hour is missing"
        ),
        pytest.param(
            week(IDLE, h1=IDLE._replace(samples=53)),
            Verdict.UNKNOWN, VerdictReason.METRIC_INCOMPLETE, (167, 167), id="samples are missing",
        ),
        pytest.param(
            week(IDLE, h1=IDLE._replace(gpus=1)),
            Verdict.UNKNOWN, VerdictReason.METRIC_INCOMPLETE, (167, 167), id="a GPU is missing",
        ),
        pytest.param(
            week(IDLE, h1=BUSY._replace(gpus=1, samples=1)),
            Verdict.IN_USE, VerdictReason.GPU_WORKED, (167, 168), id="one sample of work is enough",
        ),
        pytest.param(
            week(IDLE, h1=IDLE._replace(utilization_max=-1)),
            Verdict.UNKNOWN, VerdictReason.METRIC_INCOMPLETE, (167, 167), id="a negative value",
        ),
        pytest.param(week(POWER), Verdict.LIKELY_IDLE, VerdictReason.POWER_IDLE, (0, 0), id="low power only"),
        pytest.param(
            week(POWER._replace(watts_max=40)),
            Verdict.UNKNOWN, VerdictReason.METRIC_INCOMPLETE, (0, 0), id="high power proves nothing",
        ),
    ],
)  # fmt: skip
def test_verdict_follows_from_hours_with_complete_metrics(
    use: Mapping[datetime, HourUse] | None, verdict: Verdict, reason: VerdictReason, hours: tuple[int, int]
) -> None:
    found = judge(instance(), use, WINDOWS, gpus=2, watts=72)
    assert (found.verdict, found.reason, (found.idle_hours, found.measured_hours)) == (verdict, reason, hours)


def test_hours_before_the_launch_do_not_count() -> None:
    found = judge(instance(timedelta(hours=5)), week(IDLE), WINDOWS, gpus=2, watts=72)
    assert (found.verdict, found.idle_hours) == (Verdict.IDLE, 4), "only whole hours count"


def test_an_instance_without_two_whole_hours_is_not_judged() -> None:
    found = judge(instance(timedelta(hours=2)), week(IDLE), WINDOWS, gpus=2, watts=72)
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, VerdictReason.TOO_YOUNG)


def test_a_type_that_is_not_in_the_catalogue_is_never_idle() -> None:
    assert judge(instance(), week(IDLE), WINDOWS, gpus=None, watts=None).verdict is Verdict.UNKNOWN


def test_a_stopped_instance_is_stopped_whatever_its_metrics() -> None:
    found = judge(instance(state=InstanceState.STOPPED), week(IDLE), WINDOWS, gpus=2, watts=72)
    assert (found.verdict, found.idle_hours) == (Verdict.STOPPED, 0)


USES = st.builds(
    HourUse,
    gpus=st.integers(0, 3),
    samples=st.sampled_from((0.0, 30.0, 54.0, 60.0)),
    utilization_max=st.none() | st.sampled_from((-1.0, 0.0, 0.5, 1.0, 100.0, float("nan"))),
    watts_max=st.none() | st.sampled_from((0.0, 20.0, 70.0)),
)


@given(st.dictionaries(st.integers(1, 30), USES, max_size=30))
def test_idle_needs_a_proof_for_each_hour_of_the_idle_window(uses: dict[int, HourUse]) -> None:
    found = judge(
        instance(), {WINDOWS.end - number * HOUR: use for number, use in uses.items()}, WINDOWS, gpus=2, watts=72
    )
    proved = all(
        number in uses and uses[number].gpus >= 2 and uses[number].samples >= 54 and uses[number].utilization_max == 0
        for number in range(1, 25)
    )
    assert (found.verdict is Verdict.IDLE) == proved
