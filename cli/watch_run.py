"""`gpufleet watch run`: the daemon. It runs all watchdogs of some fleets repeatedly until it is stopped."""

import errno
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Annotated, Final

import typer

from app import logs, spot_notices
from app.daemon_page import Page, serve
from app.errors import AppError, ErrorCode
from app.fleets import load_each, load_one, urls_of
from app.passes import Options, WatchdogKind, is_watched, kinds
from app.revisions import run_locked
from cli import slack, watch_cost
from cli.addresses import host_and_port
from cli.options import FleetOption
from cli.output import Exit
from cli.signals import on_signals
from cli.watch_pass import Show, over_fleets, readable
from gpufleet.domain import durations
from gpufleet.http_server import HttpServer
from gpufleet.settings.document import FleetDocument
from watchdogs.schedule import Job, Schedule

COST: Final = "cost"
REVISIONS: Final = "revisions"
EVERY: Final = {
    "idle": timedelta(minutes=1),
    "spot": timedelta(seconds=30),
    "scale": timedelta(seconds=30),
    "orphans": timedelta(minutes=10),
    REVISIONS: timedelta(seconds=30),
}
COST_EVERY: Final = timedelta(minutes=5)
MIN_EVERY: Final = timedelta(seconds=1)
STOP_LIMIT: Final = "150s"
"""More than the longest usual drain, so that a pass that waits for a drain can finish."""
JITTER_SHARE: Final = 0.1

EveryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--every",
        metavar="NAME=SPAN",
        help="Interval between passes of one watchdog, at least 1s, for example idle=60s; repeatable. "
        "Default: idle 1m, spot 30s, scale 30s, orphans 10m, revisions 30s, cost 5m.",
    ),
]
ListenOption = Annotated[str, typer.Option("--listen", help="HOST:PORT to serve /healthz and /metrics on.")]


def register(watch_app: typer.Typer) -> None:
    watch_app.command("run")(run)


def run(
    fleet: FleetOption = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Carry out plans. Without it, plans are only logged.")
    ] = False,
    every: EveryOption = None,
    listen: ListenOption = "127.0.0.1:9470",
    stop_limit: Annotated[
        str, typer.Option(help="Longest time that running passes may take after the first stop signal.")
    ] = STOP_LIMIT,
) -> None:
    """Run all watchdogs as a daemon, until SIGTERM or Ctrl-C. A second signal stops it immediately.

    If passes are interrupted, the next run continues them.
    """
    logs.configure("daemon", service=True)
    spans = _spans(every or ())
    limit = _span(stop_limit, "--stop-limit")
    fleets = load_each(fleet)
    documents, _ = readable(fleets)
    daemon = Daemon(fleet_urls=tuple(fleet or ()), apply=apply)
    schedule = Schedule(daemon.jobs(fleets, spans))
    stop = on_signals(second_ends=True)
    server = _serve(listen, Page(schedule=schedule, calls=daemon.calls, apply=apply))
    schedule.start()
    log = logs.get()
    spot_notices.listen(documents, schedule, stop, log)
    buttons = slack.listen_if_set(documents)
    names = [
        f"{k.name} {spot_notices.place_of(d)}" for d in documents for k in kinds().values() if not is_watched(k, d)
    ]
    log.info(
        "process",
        outcome="started",
        detail=None if apply else "dry run: without --apply nothing is changed",
        apply=apply,
        jobs={state.name: durations.render(state.every) for state in schedule.states()},
        without_rules=names or None,
        listen=listen,
    )
    stop.wait()
    log.info("process", outcome="stopping", detail="running passes may finish")
    left = schedule.stop(limit)
    server.stop()
    buttons()
    if left:
        detail = f"they did not finish within {stop_limit}; the next run continues from there"
        log.warning("process", outcome="stopped", jobs=list(left), detail=detail)
        # the threads of those passes would otherwise keep the interpreter running
        os._exit(Exit.FAILED)
    log.info("process", outcome="stopped")


@dataclass(slots=True, kw_only=True)
class Daemon:
    """Runs the passes as jobs of the schedule, and counts their API calls."""

    fleet_urls: tuple[str, ...]
    """Empty: the URLs in $GPUFLEET_FLEET."""
    apply: bool
    calls: Counter[str] = field(default_factory=Counter[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def jobs(self, fleets: Sequence[FleetDocument | AppError], spans: dict[str, timedelta]) -> list[Job]:
        """One job for each watchdog and fleet. Each pass reads the document again, because `pulumi up` changes it.

        If a fleet's document cannot be read now, its jobs are named by its URL, and run once the document can be
        read.
        """
        found: list[Job] = []
        for number, fleet in enumerate(fleets):
            place = self._url(number) if isinstance(fleet, AppError) else spot_notices.place_of(fleet)
            for kind in kinds().values():
                run = partial(self._watch, kind, number)
                found.append(_job(f"{kind.name} {place}", spans[kind.name], run))
            found.append(_job(f"{REVISIONS} {place}", spans[REVISIONS], partial(self._follow, number)))
            found.append(_job(f"{COST} {place}", spans[COST], partial(self._collect, number)))
        return found

    def _watch(self, kind: WatchdogKind, number: int) -> bool:
        document = load_one(self._url(number))
        if not is_watched(kind, document):
            return True
        code, _ = over_fleets(kind, [document], Options(apply=self.apply, count=self._count), Show.PROBLEMS)
        return code is not Exit.FAILED

    def _follow(self, number: int) -> bool:
        return run_locked(load_one(self._url(number)), apply=self.apply)

    def _collect(self, number: int) -> bool:
        code, _ = watch_cost.over_fleets([load_one(self._url(number))], show=False, count=self._count)
        return code is not Exit.FAILED

    def _url(self, number: int) -> str:
        return urls_of(self.fleet_urls)[number]

    def _count(self, made: Mapping[str, int]) -> None:
        with self._lock:
            self.calls.update(made)


def _job(name: str, every: timedelta, run: Callable[[], bool]) -> Job:
    return Job(name=name, every=every, run=partial(_logged, name, run), jitter=every * JITTER_SHARE)


def _logged(name: str, run: Callable[[], bool]) -> bool:
    """Run a pass. An error that ends it is logged, because the page shows only the last error."""
    try:
        return run()
    except Exception as error:
        known = isinstance(error, AppError)
        if not (known and error.logged):
            frames = None if known else traceback.format_exc()
            logs.get().error("job", job=name, outcome="failed", error=error, traceback=frames)
        raise


def _serve(listen: str, page: Page) -> HttpServer:
    host, port = host_and_port("--listen", listen, "127.0.0.1:9470")
    try:
        return serve(page, host, port)
    except OSError as error:
        remedy = (
            "write an address of this machine"
            if error.errno == errno.EADDRNOTAVAIL
            else "check whether another daemon is running"
        )
        raise AppError(f"--listen {listen}: {error.strerror or error}; {remedy}") from error


def _spans(given: Sequence[str]) -> dict[str, timedelta]:
    spans = {**EVERY, COST: COST_EVERY}
    for text in given:
        name, found, value = text.partition("=")
        if not found or name not in spans:
            raise AppError(
                f"--every {text}: expected NAME=SPAN with NAME one of {', '.join(spans)}", ErrorCode.WRONG_USE
            )
        spans[name] = _span(value, f"--every {text}")
        if spans[name] < MIN_EVERY:
            raise AppError(
                f"--every {text}: expected at least 1s, because clouds limit the rate of requests",
                ErrorCode.WRONG_USE,
            )
    return spans


def _span(text: str, option: str) -> timedelta:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise AppError(f"{option}: {error}", ErrorCode.WRONG_USE) from error
