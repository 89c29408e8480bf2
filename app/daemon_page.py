"""The daemon's own endpoints, read-only: `/healthz` for supervisors and `/metrics` for Prometheus."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from prometheus_client.core import Metric

from gpufleet.http_server import Answer, HttpRequest, HttpServer, Routes, ServerLimits
from gpufleet.metrics_page import CONTENT_TYPE, Values, counter, gauge, page
from watchdogs.schedule import JobState, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The state of the daemon as HTTP clients see it."""

    schedule: Schedule
    calls: Mapping[str, int]
    apply: bool

    def health(self) -> tuple[int, dict[str, Any]]:
        """200 while jobs finish in time, else 503. A failing cloud alone is not a reason for a restart, so it is not
        a 503.
        """
        well = self.schedule.healthy()
        starts = self.schedule.next_starts()
        jobs = {
            state.name: {
                "running_since": _iso(state.running_since),
                "finished_at": _iso(state.finished_at),
                "next_start": _iso(starts.get(state.name)),
                "runs": state.runs,
                "failures": state.failures,
                "error": state.error,
            }
            for state in self.schedule.states()
        }
        return 200 if well else 503, {"status": "ok" if well else "stuck", "apply": self.apply, "jobs": jobs}

    def metrics(self) -> str:
        """The metrics in Prometheus' text format."""
        states = self.schedule.states()
        calls = [({"operation": operation}, count) for operation, count in sorted(dict(self.calls).items())]
        began = self.schedule.began.timestamp()
        return page(
            (
                *(kind(name, meaning, _values(states, of)) for name, kind, meaning, of in _FAMILIES),
                counter("gpufleet_daemon_api_calls_total", "Calls of cloud and metrics APIs, by operation.", calls),
                gauge("gpufleet_daemon_started_timestamp_seconds", "Start time of the daemon.", [({}, began)]),
            )
        )


def _values(
    states: Sequence[JobState], of: Callable[[JobState], float | None]
) -> Iterator[tuple[dict[str, str], float]]:
    for state in states:
        value = of(state)
        if value is not None:
            watchdog, _, fleet = state.name.partition(" ")
            yield {"watchdog": watchdog, "fleet": fleet}, value


def _seconds(at: datetime | None) -> float | None:
    """A missing time is not zero: an event that has not happened has no series."""
    return None if at is None else at.timestamp()


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")


_FAMILIES: Final[
    Sequence[tuple[str, Callable[[str, str, Values], Metric], str, Callable[[JobState], float | None]]]
] = (
    ("gpufleet_daemon_runs_total", counter, "Passes that ended.", lambda s: float(s.runs)),
    ("gpufleet_daemon_failures_total", counter, "Passes that failed.", lambda s: float(s.failures)),
    ("gpufleet_daemon_run_seconds_total", counter, "Time spent in passes.", lambda s: s.seconds),
    (
        "gpufleet_daemon_skipped_total",
        counter,
        "Starts that were skipped because a pass was running.",
        lambda s: float(s.skipped),
    ),
    ("gpufleet_daemon_running", gauge, "1 while a pass runs.", lambda s: float(s.running_since is not None)),
    (
        "gpufleet_daemon_finished_timestamp_seconds",
        gauge,
        "Time of the last end of a pass, successful or not.",
        lambda s: _seconds(s.finished_at),
    ),
    (
        "gpufleet_daemon_succeeded_timestamp_seconds",
        gauge,
        "Time of the last successful end of a pass.",
        lambda s: _seconds(s.succeeded_at),
    ),
)


def serve(shown: Page, host: str, port: int) -> HttpServer:
    """Serve the page from a separate thread. Raises OSError when the address is taken."""

    def health(_: HttpRequest) -> Answer:
        status, body = shown.health()
        return Answer(status=status, body=json.dumps(body), content_type="application/json")

    def metrics(_: HttpRequest) -> Answer:
        return Answer(body=shown.metrics(), content_type=CONTENT_TYPE)

    routes = Routes({"GET /healthz": health, "GET /metrics": metrics})
    return HttpServer((host, port), routes, limits=ServerLimits(idle_s=15)).start("page")
