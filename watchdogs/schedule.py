"""When passes run: the only file that imports APScheduler.

Each job has one instance at most. After missed starts (a busy pool, a suspended machine) a job is run once, however
many were missed. Starts are spread by a jitter, so that many fleets do not ask a cloud at the same second.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from apscheduler.events import EVENT_JOB_MAX_INSTANCES  # pyright: ignore[reportMissingTypeStubs]
from apscheduler.executors.pool import ThreadPoolExecutor  # pyright: ignore[reportMissingTypeStubs]
from apscheduler.schedulers.background import BackgroundScheduler  # pyright: ignore[reportMissingTypeStubs]
from apscheduler.triggers.interval import IntervalTrigger  # pyright: ignore[reportMissingTypeStubs]

OVERDUE_INTERVALS: Final = 3
OVERDUE_SLACK: Final = timedelta(minutes=10)
"""A pass may wait for drains; only one that takes this much longer counts as stuck."""
CLOCK_LOOK_S: Final = 5.0
"""Interval of the check for a clock that was set back."""
SLACK: Final = timedelta(seconds=1)
"""Tolerance: a start is scheduled slightly before this check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something to run again and again. `run` returns whether it succeeded; what it raises counts as failed."""

    name: str
    every: timedelta
    run: Callable[[], bool]
    jitter: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job."""

    name: str
    every: timedelta
    running_since: datetime | None = None
    finished_at: datetime | None = None
    """When it last ended, whether it succeeded or failed."""
    succeeded_at: datetime | None = None
    runs: int = 0
    failures: int = 0
    seconds: float = 0.0
    """Sum over all runs."""
    skipped: int = 0
    """Starts that were skipped because the previous run had not finished."""
    error: str | None = None
    """Of the last run; None: it succeeded."""

    def overdue(self, began: datetime, now: datetime) -> bool:
        """Whether it should have finished long ago. A failed run has finished."""
        last = self.finished_at or began
        return now - last > max(OVERDUE_INTERVALS * self.every, self.every + OVERDUE_SLACK)


def _trigger(job: Job) -> Any:
    make: Any = IntervalTrigger  # its annotations say int, it takes parts of a second
    return make(seconds=job.every.total_seconds(), jitter=job.jitter.total_seconds() or None, timezone=UTC)


class Schedule:
    """Runs jobs in threads until it is stopped."""

    def __init__(self, jobs: Sequence[Job], read_clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        if len({job.name for job in jobs}) != len(jobs) or not jobs:
            raise ValueError(f"a schedule needs jobs of different names, got {[job.name for job in jobs]}")
        self._jobs = tuple(jobs)
        self._clock = read_clock
        self._began = read_clock()
        self._changed = threading.Condition()
        self._states = {job.name: JobState(name=job.name, every=job.every) for job in jobs}
        self._stopping = False
        self._stopped = threading.Event()
        self._scheduler: Any = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(len(jobs))}, timezone=UTC, daemon=True
        )

    @property
    def began(self) -> datetime:
        return self._began

    def start(self) -> None:
        """Every job runs at once for the first time."""
        self._scheduler.add_listener(self._skipped, EVENT_JOB_MAX_INSTANCES)
        for job in self._jobs:
            self._scheduler.add_job(
                self._run,
                _trigger(job),
                args=(job,),
                id=job.name,
                name=job.name,
                next_run_time=self._began,
                max_instances=1,
                coalesce=True,
                misfire_grace_time=None,
            )
        self._scheduler.start()
        threading.Thread(target=self._follow_clock, name="clock", daemon=True).start()

    def soon(self, name: str) -> None:
        """Start a job now instead of at its scheduled time. A run in progress is not interrupted."""
        with self._changed:
            if self._stopping:
                return
        self._scheduler.modify_job(name, next_run_time=self._clock())

    def catch_up(self) -> tuple[str, ...]:
        """Start what is planned further ahead than its interval: it was planned by a clock that was set back since.

        Without this a job would not run until the clock catches up. Returns the names of the started jobs.
        """
        now, planned = self._clock(), self.next_starts()
        most = {job.name: job.every + 2 * job.jitter + SLACK for job in self._jobs}
        far = tuple(name for name, at in planned.items() if at - now > most[name])
        for name in far:
            self.soon(name)
        return far

    def _follow_clock(self) -> None:
        while not self._stopped.wait(CLOCK_LOOK_S):
            self.catch_up()

    def states(self) -> tuple[JobState, ...]:
        """Of all jobs, in the order given."""
        with self._changed:
            return tuple(self._states[job.name] for job in self._jobs)

    def next_starts(self) -> dict[str, datetime]:
        """When each job starts next, by name."""
        found = {job.id: job.next_run_time for job in self._scheduler.get_jobs()}
        return {name: at for name, at in found.items() if at is not None}

    def healthy(self) -> bool:
        """Whether all jobs end in time.

        A failed run does not count: a restart of the process does not fix a cloud.
        """
        now = self._clock()
        return not any(state.overdue(self._began, now) for state in self.states())

    def stop(self, timeout: timedelta) -> tuple[str, ...]:
        """Start no more jobs and wait for the running ones.

        Returns the names of jobs that still run at the timeout.
        """
        with self._changed:
            self._stopping = True
        self._stopped.set()
        self._scheduler.shutdown(wait=False)
        with self._changed:
            self._changed.wait_for(lambda: not self._running(), timeout=timeout.total_seconds())
            return tuple(self._running())

    def _running(self) -> list[str]:
        return [name for name, state in self._states.items() if state.running_since is not None]

    def _run(self, job: Job) -> None:
        began = self._clock()
        with self._changed:
            if self._stopping:
                return
            self._states[job.name] = replace(self._states[job.name], running_since=began)
        error: str | None = None
        try:
            if not job.run():
                error = "the pass had failures: see its log"
        except Exception as raised:  # noqa: BLE001 - a job that breaks must not end the others
            error = f"{type(raised).__name__}: {raised}"
        finally:
            self._finished(job, began, error)

    def _finished(self, job: Job, began: datetime, error: str | None) -> None:
        now = self._clock()
        with self._changed:
            old = self._states[job.name]
            self._states[job.name] = replace(
                old,
                running_since=None,
                finished_at=now,
                succeeded_at=old.succeeded_at if error else now,
                runs=old.runs + 1,
                failures=old.failures + (1 if error else 0),
                seconds=old.seconds + (now - began).total_seconds(),
                error=error,
            )
            self._changed.notify_all()

    def _skipped(self, event: Any) -> None:
        with self._changed:
            old = self._states[str(event.job_id)]
            self._states[old.name] = replace(old, skipped=old.skipped + 1)
