"""The schedule with real threads: one run of each job at a time, missed starts made up for once, a patient stop."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from watchdogs.schedule import Job, JobState, Schedule

OFTEN = timedelta(milliseconds=50)
LIMIT_S = 60.0
NONE = timedelta(0)


@pytest.fixture
def schedules() -> Iterator[list[Schedule]]:
    made: list[Schedule] = []
    yield made
    for schedule in made:
        schedule.stop(timedelta(seconds=LIMIT_S))


def until(true: Callable[[], bool]) -> None:
    """Look every few milliseconds until it is so; fails the test when it never is."""
    tick = threading.Event()
    for _ in range(int(LIMIT_S / 0.005)):
        if true():
            return
        tick.wait(0.005)
    pytest.fail("it never came true")


def test_a_job_never_runs_twice_at_once_and_others_continue(schedules: list[Schedule]) -> None:
    released, most, inside = threading.Event(), [0], [0]
    others = threading.Semaphore(0)

    def slow() -> bool:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        released.wait(LIMIT_S)
        inside[0] -= 1
        return True

    def quick() -> bool:
        others.release()
        return True

    schedule = Schedule([Job(name="slow", every=OFTEN, run=slow), Job(name="quick", every=OFTEN, run=quick)])
    schedules.append(schedule)
    schedule.start()
    until(lambda: schedule.states()[0].skipped >= 2)
    assert all(others.acquire(timeout=LIMIT_S) for _ in range(3))
    assert most == [1]
    released.set()
    until(lambda: schedule.states()[0].runs >= 2)
    assert most == [1]


def test_a_failed_job_is_reported_and_retried(schedules: list[Schedule]) -> None:
    answers = iter([lambda: 1 / 0, lambda: False, lambda: True])

    def run() -> bool:
        return bool(next(answers, lambda: True)())

    schedule = Schedule([Job(name="one", every=OFTEN, run=run)])
    schedules.append(schedule)
    schedule.start()
    until(lambda: schedule.states()[0].runs >= 3)
    state = schedule.states()[0]
    assert state.failures == 2
    assert state.error is None
    assert state.succeeded_at is not None


def test_starts_missed_while_the_machine_slept_are_made_up_for_once(schedules: list[Schedule]) -> None:
    asleep = datetime.now(UTC) - timedelta(hours=1)
    schedule = Schedule([Job(name="one", every=timedelta(minutes=1), run=lambda: True)], lambda: asleep)
    schedules.append(schedule)
    schedule.start()
    until(lambda: schedule.states()[0].runs == 1 and schedule.next_starts()["one"] > datetime.now(UTC))
    assert schedule.states()[0].runs == 1, "sixty starts were missed"


def test_a_clock_that_was_set_back_does_not_make_jobs_rest(schedules: list[Schedule]) -> None:
    clock = [datetime.now(UTC)]
    schedule = Schedule([Job(name="one", every=timedelta(hours=1), run=lambda: True)], lambda: clock[0])
    schedules.append(schedule)
    schedule.start()
    until(lambda: schedule.states()[0].runs == 1 and schedule.next_starts()["one"] > clock[0])
    assert schedule.catch_up() == (), "planned within its interval"
    clock[0] -= timedelta(hours=2)
    assert schedule.catch_up() == ("one",)
    until(lambda: schedule.states()[0].runs == 2)


def test_a_stop_lets_a_run_finish_and_starts_no_other() -> None:
    begun, release = threading.Event(), threading.Event()

    def run() -> bool:
        begun.set()
        return release.wait(LIMIT_S)

    schedule = Schedule([Job(name="one", every=OFTEN, run=run)])
    schedule.start()
    assert begun.wait(LIMIT_S)
    assert schedule.stop(NONE) == ("one",), "it still runs"
    release.set()
    until(lambda: schedule.states()[0].running_since is None)
    assert schedule.states()[0].runs == 1


@pytest.mark.parametrize(
    ("every", "silence", "stuck"),
    [
        pytest.param(60, 600, False, id="a pass may wait for drains"),
        pytest.param(60, 661, True, id="eleven minutes of a minute's job"),
        pytest.param(3600, 3 * 3600, False, id="three intervals of a slow job"),
        pytest.param(3600, 3 * 3600 + 1, True, id="more than three"),
    ],
)
def test_a_job_that_does_not_finish_is_overdue(every: int, silence: int, stuck: bool) -> None:
    began = datetime(2026, 11, 21, tzinfo=UTC)
    state = JobState(name="one", every=timedelta(seconds=every))
    assert state.overdue(began, began + timedelta(seconds=silence)) is stuck
    finished = JobState(name="one", every=state.every, finished_at=began + timedelta(seconds=silence), error="cloud")
    assert not finished.overdue(began, began + timedelta(seconds=silence)), "a failed run has finished"


def test_a_job_that_never_succeeds_has_no_success_and_a_hanging_job_is_unhealthy(
    schedules: list[Schedule],
) -> None:
    clock, release = [datetime.now(UTC)], threading.Event()
    hour = timedelta(hours=1)
    schedule = Schedule(
        [
            Job(name="failing", every=hour, run=lambda: False),
            Job(name="hanging", every=hour, run=lambda: release.wait(LIMIT_S)),
        ],
        lambda: clock[0],
    )
    schedules.append(schedule)
    schedule.start()
    until(lambda: schedule.states()[0].runs == 1 and schedule.states()[1].running_since is not None)
    failing = schedule.states()[0]
    assert (failing.failures, failing.succeeded_at, failing.finished_at) == (1, None, clock[0])
    assert schedule.healthy()
    clock[0] += 4 * hour
    assert not schedule.healthy()
    release.set()


def test_a_stop_waits_for_what_runs_and_then_starts_nothing() -> None:
    begun, release = threading.Event(), threading.Event()

    def run() -> bool:
        begun.set()
        return release.wait(LIMIT_S)

    schedule = Schedule([Job(name="one", every=OFTEN, run=run)])
    schedule.start()
    assert begun.wait(LIMIT_S)
    threading.Timer(0.05, release.set).start()
    assert schedule.stop(timedelta(seconds=LIMIT_S)) == (), "it had the time to finish"
    schedule.soon("one")
    assert schedule.states()[0].runs == 1


@pytest.mark.parametrize("count", [0, 2])
def test_jobs_have_different_names_and_there_is_one_at_least(count: int) -> None:
    jobs = [Job(name="one", every=OFTEN, run=lambda: True)] * count
    with pytest.raises(ValueError, match="different names"):
        Schedule(jobs)
