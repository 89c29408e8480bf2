"""The last look before an end: what both sources say of an instance after its agent said `drained`.

What Prometheus scraped last may be older than the drain, and shows no work that began after it. So a look rests on
scrapes that began after `drained` was heard, by the store's own clock: ours may be a minute off.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpufleet.domain.decisions import Decision, Objection, Reason
from gpufleet.domain.evidence import STALE_AFTER
from watchdogs import signals
from watchdogs.draining import DRAIN_SLACK, Drain, drained, sleep_and_renew
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainConfirmed:
    """Both sources were scraped since `drained` was heard."""

    decision: Decision
    since: datetime
    """When it was heard, by the store's clock."""
    engine_answers: bool
    """Whether the engine gave its numbers since then; an agent stops it before it says `drained`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainUnconfirmed:
    """It cannot be ended now."""

    decision: Decision
    silent: tuple[str, ...] = ()
    """Sources without a scrape since `drained`; none: its agent has not said `drained`."""
    error: str | None = None
    """Why the store could not be asked."""


@dataclass(slots=True)
class _Empty:
    """One that said `drained`."""

    decision: Decision
    since: datetime
    """By the store's clock."""
    give_up: datetime
    """By ours."""


@dataclass(slots=True)
class FinalChecks:
    """Waits for those that drain, then for their numbers. Each is given as soon as it can be judged."""

    ports: Ports
    series: signals.SeriesSelector
    _empty: dict[str, _Empty] = field(default_factory=dict[str, _Empty])
    _asked: datetime | None = None
    _interval: timedelta = timedelta(0)

    def wait(self, drains: Sequence[Drain], deadline: timedelta) -> Iterator[DrainConfirmed | DrainUnconfirmed]:
        """Every decision once. Agents have `deadline` to drain, then the sources two scrape intervals to report."""
        clock = self.ports.clock
        renewed = clock.now()
        limit = renewed + deadline + DRAIN_SLACK
        waiting = list(drains)
        while waiting or self._empty:
            statuses = self.ports.agents.statuses([instance for _, instance in waiting])
            said = [drain for drain in waiting if drained(statuses.get(drain[1].id))]
            waiting = [drain for drain in waiting if drain not in said]
            yield from self._noted(said)
            yield from self._heard()
            if waiting and clock.now() >= limit:
                yield from (DrainUnconfirmed(decision=decision) for decision, _ in waiting)
                waiting = []
            if waiting or self._empty:
                renewed = sleep_and_renew(self.ports, renewed)

    def _noted(self, said: Sequence[Drain]) -> Iterator[DrainUnconfirmed]:
        """Remember the store's time: what it scrapes from now on, it scrapes after `drained`."""
        if not said:
            return
        try:
            since = self.ports.metrics.now()
            self._interval = signals.longest_interval(self.ports.metrics)
        except OSError as error:
            yield from (DrainUnconfirmed(decision=decision, error=str(error)) for decision, _ in said)
            return
        # a scrape begins within an interval, and ends within another one
        give_up = self.ports.clock.now() + STALE_AFTER * self._interval + DRAIN_SLACK
        for decision, _ in said:
            self._empty[decision.resource] = _Empty(decision, since, give_up)

    def _heard(self) -> Iterator[DrainConfirmed | DrainUnconfirmed]:
        """Those whose sources reported, and those whose time is over. One query for all, four times an interval."""
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


def objection(case: Case, heard: DrainConfirmed, now: datetime) -> Objection | None:
    """Why a drained instance is not ended, by evidence over the last scrapes; None: nothing speaks against it.

    `now` is the store's, as the ages of the evidence are.
    """
    engine: tuple[Check, ...] = (_engine_in_numbers,) if heard.engine_answers else ()
    gpu = (gpus_quiet, gpu_reported, gpu_in_range, gpu_not_contradicted)
    objected = judge(case, (no_requests, counters_flat, *engine, *gpu))
    if objected is not None:
        return objected
    evidence, age = case.evidence, now - heard.since
    for source, side, counts in (
        ("GPU exporter", evidence.gpu if evidence else None, True),
        ("engine", evidence.engine if evidence else None, heard.engine_answers),
    ):
        if counts and (side is None or side.newest_age is None or side.newest_age >= age):
            return Objection(reason=Reason.METRICS_STALE, detail=f"{source}: nothing newer than `drained`")
    return None


def _engine_in_numbers(case: Case) -> Objection | None:
    """An engine that still answers does so whole and in numbers; its CPU clock may stand still for a while."""
    evidence = case.evidence
    if evidence is not None and evidence.engine is not None:
        still = replace(evidence.engine, pulse_changes=1.0)
        case = replace(case, evidence=replace(evidence, engine=still))
    return judge(case, (engine_reported, engine_plausible))
