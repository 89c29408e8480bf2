"""The verdict of a scan about an instance."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain.gpu_hours import HourUse
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.scan.judge import ScanWindows, UseVerdict, combine, judge
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


DAY = timedelta(hours=24, minutes=30)
"""Age of an instance that was launched 24 complete hours before the end of the last complete hour."""


@pytest.mark.parametrize(
    ("age", "verdict", "hours"),
    [
        pytest.param(timedelta(hours=3, minutes=10), Verdict.UNKNOWN, 0, id="a few hours"),
        pytest.param(DAY - timedelta(minutes=1), Verdict.UNKNOWN, 0, id="a day, but only 23 complete hours"),
        pytest.param(DAY, Verdict.IDLE, 24, id="24 complete hours"),
        pytest.param(timedelta(hours=30), Verdict.IDLE, 29, id="hours before the launch do not count"),
    ],
)
def test_an_instance_is_judged_after_the_complete_hours_of_the_idle_window(
    age: timedelta, verdict: Verdict, hours: int
) -> None:
    found = judge(instance(age), week(IDLE), WINDOWS, gpus=2, watts=72)
    assert (found.verdict, found.idle_hours) == (verdict, hours)
    assert found.reason is (VerdictReason.GPU_IDLE if verdict is Verdict.IDLE else VerdictReason.TOO_YOUNG)


def test_a_young_instance_that_worked_is_in_use() -> None:
    found = judge(instance(timedelta(hours=3)), week(IDLE, h1=BUSY), WINDOWS, gpus=2, watts=72)
    assert (found.verdict, found.idle_hours) == (Verdict.IN_USE, 1)


def test_an_idle_window_of_a_part_of_an_hour_needs_the_whole_hour() -> None:
    windows = replace(WINDOWS, whole=timedelta(minutes=150), idle=timedelta(minutes=150))
    assert windows.start == WINDOWS.end - 3 * HOUR, "stores report whole hours"
    assert judge(instance(), week(IDLE), windows, gpus=2, watts=72).verdict is Verdict.IDLE
    assert judge(instance(), week(IDLE, h3=BUSY), windows, gpus=2, watts=72).verdict is Verdict.IN_USE


@pytest.mark.parametrize(
    ("drawn", "rated", "verdict"),
    [
        pytest.param(690, 700, Verdict.UNKNOWN, id="a large GPU under load"),
        pytest.param(280, 700, Verdict.UNKNOWN, id="a large GPU above rest"),
        pytest.param(270, 700, Verdict.IDLE, id="a large GPU at rest"),
        pytest.param(30, 72, Verdict.IDLE, id="an L4 at rest with a loaded model"),
        pytest.param(44, 72, Verdict.UNKNOWN, id="an L4 under load"),
        pytest.param(690, None, Verdict.IDLE, id="the rated power is unknown"),
        pytest.param(None, 700, Verdict.IDLE, id="the power is unknown"),
    ],
)
def test_power_above_rest_contradicts_a_utilization_of_0(
    drawn: float | None, rated: float | None, verdict: Verdict
) -> None:
    found = judge(instance(), week(IDLE, h20=IDLE._replace(watts_max=drawn)), WINDOWS, gpus=2, watts=rated)
    assert (found.verdict, found.idle_hours) == (verdict, 168 if verdict is Verdict.IDLE else 167)
    if verdict is Verdict.UNKNOWN:
        assert found.reason is VerdictReason.METRICS_CONTRADICT


def test_a_store_that_sees_no_work_does_not_remove_a_contradiction() -> None:
    known = judge(instance(), week(IDLE._replace(watts_max=690)), WINDOWS, gpus=2, watts=700)
    quiet = UseVerdict(verdict=Verdict.IDLE, reason=VerdictReason.GPU_IDLE, idle_hours=24, measured_hours=24)
    assert combine(known, quiet) == known


def test_samples_of_ten_seconds_must_cover_the_hour_too() -> None:
    dense = IDLE._replace(samples=360)
    found = judge(instance(), week(dense, h1=dense._replace(samples=54)), WINDOWS, gpus=2, watts=72)
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, VerdictReason.METRIC_INCOMPLETE), "only 9 minutes"
    assert judge(instance(), week(dense, h1=dense._replace(samples=324)), WINDOWS, gpus=2, watts=72).verdict is (
        Verdict.IDLE
    )


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
