"""The final check before an end: the metrics of an instance after its agent reported `drained`.

The last scrape of Prometheus may be older than the drain, and does not show work that began later. So this check uses
only scrapes that began after `drained` was received. Times are those of the metrics store: the local clock may differ
by a minute.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpufleet.domain.decisions import Decision, Objection, Reason
from gpufleet.domain.evidence import STALE_AFTER
from serving.accelerators.contract import UnknownCode
from watchdogs import signals
from watchdogs.draining import DRAIN_SLACK, PendingDrain, drained, sleep_and_renew
from watchdogs.idle.checks import (
    Case,
    Check,
    counters_flat,
    engine_plausible,
    engine_reported,
    gpu_in_range,
    gpu_not_contradicted,
    gpu_reported,
    gpus_quiet,
    judge,
    no_requests,
)
from watchdogs.ports import Ports
from watchdogs.promql import SeriesSelector


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainConfirmed:
    """Both sources were scraped after `drained` was received."""

    decision: Decision
    since: datetime
    """When `drained` was received, by the clock of the metrics store."""
    engine_answers: bool
    """Whether the engine still answers scrapes; an agent stops it before it reports `drained`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainUnconfirmed:
    """The instance cannot be ended now."""

    decision: Decision
    silent: tuple[str, ...] = ()
    """Sources without a scrape since `drained`; empty: its agent has not reported `drained`."""
    error: str | None = None
    """Why the metrics store could not be read."""


@dataclass(slots=True)
class _Empty:
    """An instance whose agent reported `drained`."""

    decision: Decision
    since: datetime
    """By the clock of the metrics store."""
    give_up: datetime
    """By the local clock."""


@dataclass(slots=True)
class FinalChecks:
    """Waits for drains, then for new scrapes. Yields each result as soon as it is known."""

    ports: Ports
    series: SeriesSelector
    _empty: dict[str, _Empty] = field(default_factory=dict[str, _Empty])
    _asked: datetime | None = None
    _interval: timedelta = timedelta(0)

    def wait(
        self, drains: Sequence[PendingDrain], deadline: timedelta
    ) -> Iterator[DrainConfirmed | DrainUnconfirmed]:
        """Yield every decision once.

        Agents have `deadline` to drain, then the sources two scrape intervals to report.
        """
        clock = self.ports.clock
        renewed = clock.now()
        limit = renewed + deadline + DRAIN_SLACK
        waiting = list(drains)
        while waiting or self._empty:
            statuses = self.ports.agents.statuses([instance for _, instance in waiting])
            reported = [drain for drain in waiting if drained(statuses.get(drain[1].id))]
            waiting = [drain for drain in waiting if drain not in reported]
            yield from self._noted(reported)
            yield from self._confirmed()
            if waiting and clock.now() >= limit:
                yield from (DrainUnconfirmed(decision=decision) for decision, _ in waiting)
                waiting = []
            if waiting or self._empty:
                renewed = sleep_and_renew(self.ports, renewed)

    def _noted(self, reported: Sequence[PendingDrain]) -> Iterator[DrainUnconfirmed]:
        """Record the time of the metrics store: later scrapes begin after `drained`."""
        if not reported:
            return
        try:
            since = self.ports.metrics.now()
            self._interval = signals.longest_interval(self.ports.metrics)
        except OSError as error:
            yield from (DrainUnconfirmed(decision=decision, error=str(error)) for decision, _ in reported)
            return
        # a scrape begins within an interval, and ends within another one
        give_up = self.ports.clock.now() + STALE_AFTER * self._interval + DRAIN_SLACK
        for decision, _ in reported:
            self._empty[decision.resource] = _Empty(decision, since, give_up)

    def _confirmed(self) -> Iterator[DrainConfirmed | DrainUnconfirmed]:
        """Yield instances whose sources reported or timed out. One query for all, four times per scrape interval."""
        now = self.ports.clock.now()
        last = any(now >= one.give_up for one in self._empty.values())
        due = self._asked is None or now - self._asked >= self._interval / 4
        if not self._empty or not (last or due):
            return
        self._asked = now
        try:
            scrapes = signals.scrapes(self.ports.metrics, self.series, sorted(self._empty))
        except OSError as error:
            yield from (DrainUnconfirmed(decision=one.decision, error=str(error)) for one in self._empty.values())
            self._empty.clear()
            return
        for key, one in list(self._empty.items()):
            found = scrapes.get(key, signals.Scrapes())
            silent = found.silent_since(one.since)
            if silent and now < one.give_up:
                continue
            del self._empty[key]
            if silent:
                yield DrainUnconfirmed(decision=one.decision, silent=silent)
            else:
                yield DrainConfirmed(decision=one.decision, since=one.since, engine_answers=found.engine_answers)


def objection(case: Case, confirmed: DrainConfirmed, now: datetime) -> Objection | None:
    """Why a drained instance must not be ended, by the evidence of the last scrapes; None: it may be ended.

    `now` is the time of the metrics store, which the ages of the evidence refer to.
    """
    engine: tuple[Check, ...] = (_engine_in_numbers,) if confirmed.engine_answers else ()
    ended = _series_ended(case)
    reported: tuple[Check, ...] = () if ended else (gpu_reported,)
    gpu = (gpus_quiet, *reported, gpu_in_range, gpu_not_contradicted)
    objected = judge(case, (no_requests, counters_flat, *engine, *gpu))
    if objected is not None:
        return objected
    evidence, age = case.evidence, now - confirmed.since
    for source, side, counts in (
        ("GPU exporter", evidence.gpu if evidence else None, not ended),
        ("engine", evidence.engine if evidence else None, confirmed.engine_answers),
    ):
        if counts and (side is None or side.newest_age is None or side.newest_age >= age):
            return Objection(reason=Reason.METRICS_STALE, detail=f"{source}: nothing newer than `drained`")
    return None


def _series_ended(case: Case) -> bool:
    """Whether the exporter answers without a series, because the drained engine was the program that held the device.

    Exporters of some kinds report a device only while a program holds it.
    """
    gpu = case.evidence.gpu if case.evidence else None
    return gpu is not None and gpu.newest_age is None and UnknownCode.NO_WORKLOAD in gpu.unknown


def _engine_in_numbers(case: Case) -> Objection | None:
    """An engine that still answers reports every signal with valid values. Its CPU counter need not increase."""
    evidence = case.evidence
    if evidence is not None and evidence.engine is not None:
        still = replace(evidence.engine, pulse_changes=1.0)
        case = replace(case, evidence=replace(evidence, engine=still))
    return judge(case, (engine_reported, engine_plausible))
